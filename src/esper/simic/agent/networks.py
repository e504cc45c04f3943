"""Networks by name, as `LearnerConfig.architecture` calls them."""

from esper.simic.agent.network import FactoredRecurrentActorCritic, RecurrentActorCritic
from esper.simic.agent.pointing import PointingActorCritic
from esper.simic.config import LearnerConfig
from esper.simic.control.action_masks import ActionSpec

NetworkClass = type[FactoredRecurrentActorCritic] | type[PointingActorCritic]
_CLASSES: dict[str, NetworkClass] = {
    network.ARCHITECTURE: network for network in (FactoredRecurrentActorCritic, PointingActorCritic)
}


def network_class(name: str) -> NetworkClass:
    return _CLASSES[name]


def make_network(config: LearnerConfig, spec: ActionSpec, state_dim: int) -> RecurrentActorCritic:
    """A fresh network as the config asks for it."""
    kind = _CLASSES[config.architecture]
    options = {name: getattr(config, name) for name in ("lstm_hidden_dim", "lstm_layers", *kind.OPTIONS)}
    return kind(spec, state_dim, **options)

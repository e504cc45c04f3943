"""Policy and value networks: a recurrent trunk, one small head per factor of the action, and a value head.

`FactoredRecurrentActorCritic` reads observations of one width, whatever they mean; `pointing.py` has the network that
reads hosts of any number of slots and kinds.

| tensor | shape |
|---|---|
| obs | `[B, D]` or `[B, T, D]` |
| logits | `[B, T, H, K]`, heads padded to the widest; conditional ones `[B, T, H, G, K]` |
| values | `[B, T]`, in the units that the value head was trained in |
| hidden | two of `[layers, B, hidden]` |
"""

from collections.abc import Sequence
from copy import copy
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from esper.kasmina.torch_private import compile_recurrent, unwrapped
from esper.leyline import InputError
from esper.simic.agent.rollout_buffer import SequenceBatch, TamiyoRolloutBuffer
from esper.simic.agent.types import Hidden, PolicyStep
from esper.simic.config import LearnerConfig
from esper.simic.config.training import Architecture
from esper.simic.control.action_masks import (
    ActionSpec,
    MaskedCategorical,
    Masks,
    draw_actions,
    pad_heads,
    require_finite,
    require_fitting,
    require_legal,
    select_logits,
    select_masks,
)
from esper.simic.control.anatomy import Anatomy
from esper.simic.control.normalization import ReturnScale, RunningMeanStd, SharedMeanStd

WIDE_FEATURE_DIM = 256
"""Width of the first of two feature layers."""
MIN_HEAD_DIM = 32
_DEFAULT = LearnerConfig()


class NetworkOutput(NamedTuple):
    """What one forward pass gives."""

    logits: Tensor
    values: Tensor
    hidden: Hidden


class ActionEvaluation(NamedTuple):
    """Stored actions seen by the present network: all `[B, T, H]` but `values [B, T]` and the logits."""

    log_probs: Tensor
    entropies: Tensor
    values: Tensor
    logits: Tensor
    hidden: Hidden


class ResidualFeatures(nn.Module):
    """Two feature layers; a projection of the input is added to the result."""

    def __init__(self, state_dim: int, feature_dim: int, *, input_norm: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(state_dim, WIDE_FEATURE_DIM),
            nn.LayerNorm(WIDE_FEATURE_DIM) if input_norm else nn.Identity(),
            nn.ReLU(),
            nn.Linear(WIDE_FEATURE_DIM, feature_dim),
        )
        self.shortcut = nn.Linear(state_dim, feature_dim, bias=False)

    def forward(self, obs: Tensor) -> Tensor:
        """`[..., D]` to `[..., feature_dim]`."""
        return torch.relu(self.layers(obs) + self.shortcut(obs))


class RecurrentActorCritic(nn.Module):
    """What networks share: the LSTM with the norm behind it, acting, and seeing stored actions again.

    `lstm_ln` takes out the slow drift of the hidden magnitude before the heads read it. The state handed to the next
    step is the raw one.
    """

    ARCHITECTURE: ClassVar[Architecture]
    OPTIONS: ClassVar[tuple[str, ...]]
    """Of `LearnerConfig`: what makes such a network, beside the sizes of its LSTM."""
    value_head: nn.Sequential

    def __init__(self, spec: ActionSpec, state_dim: int, core_dim: int, lstm_hidden_dim: int, lstm_layers: int) -> None:
        super().__init__()
        self.spec = spec
        self.state_dim = state_dim
        self.lstm_hidden_dim = lstm_hidden_dim
        self.lstm_layers = lstm_layers
        self.options: dict[str, int | float | None] = {}
        self.lstm = nn.LSTM(core_dim, lstm_hidden_dim, lstm_layers, batch_first=True)
        self.lstm_ln = nn.LayerNorm(lstm_hidden_dim)

    def policy_head(self, name: str) -> nn.Sequential:
        """The head that gives the logits of factor `name`."""
        head = self.get_submodule(f"{name}_head")
        assert isinstance(head, nn.Sequential)
        return head

    def make_normalizer(self, device: torch.device | str) -> RunningMeanStd:
        """Statistics for its observations, still empty."""
        return RunningMeanStd((self.state_dim,), device)

    @torch.no_grad()
    def _initialise(self, policy_gain: float) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.orthogonal_(module.weight, gain=2**0.5)
                if module.bias is not None:
                    module.bias.zero_()
        for head in self.spec.heads:
            nn.init.orthogonal_(last_layer(self.policy_head(head.name)).weight, gain=policy_gain)
        nn.init.orthogonal_(last_layer(self.value_head).weight, gain=1.0)
        for name, parameter in self.lstm.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter)
            else:
                parameter.zero_()
                # PyTorch stacks the gates as input, forget, cell, output, so the second quarter is the forget gate.
                # The cell adds both bias vectors; only one carries the 1, or the gate would start at 2.
                if name.startswith("bias_ih"):
                    quarter = len(parameter) // 4
                    parameter[quarter : 2 * quarter] = 1.0

    def _check_lstm(self) -> None:
        if (self.lstm.num_layers, self.lstm.hidden_size) != (self.lstm_layers, self.lstm_hidden_dim):
            raise InputError(
                f"the LSTM has {self.lstm.num_layers} layers of {self.lstm.hidden_size}; "
                f"the network says {self.lstm_layers} of {self.lstm_hidden_dim}"
            )

    def get_initial_hidden(self, batch_size: int, device: torch.device | str | None = None) -> Hidden:
        """The state before the first step of an episode: zeros `[layers, batch, hidden]`, twice."""
        device = self.lstm_ln.weight.device if device is None else device
        shape = (self.lstm_layers, batch_size, self.lstm_hidden_dim)
        return torch.zeros(shape, device=device), torch.zeros(shape, device=device)

    def _remember(self, features: Tensor, hidden: Hidden | None) -> tuple[Tensor, Hidden]:
        """The normalised LSTM output `[B, T, hidden]` and its new state; features `[B, D]` are taken as one step."""
        hidden = self.get_initial_hidden(len(features)) if hidden is None else hidden
        one_step = features.dim() == 2
        out, (h, c) = self._one_step(features, hidden) if one_step else self.lstm(features, hidden)
        return self.lstm_ln(out), (h, c)

    def _one_step(self, features: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """What `lstm` gives for sequences of one step, `[B, 1, hidden]`, without the weight reordering of its call.

        On a CPU this takes a half to a third of the time, and acting does nothing else.
        """
        states = []
        for layer, weights in enumerate(self.lstm.all_weights):
            features, cell = torch.lstm_cell(features, [hidden[0][layer], hidden[1][layer]], *weights)
            states.append((features, cell))
        h, c = (torch.stack(parts) for parts in zip(*states, strict=True))
        return features.unsqueeze(1), (h, c)

    @torch.inference_mode()
    def get_action(
        self, obs: Tensor, masks: Masks, hidden: Hidden, *, deterministic: bool = False, step: int | None = None
    ) -> PolicyStep:
        """Act once for `obs [N, D]`; `step` is named if a mask leaves no legal action.

        The results are inference tensors: copy them into ordinary ones before training on them, as the buffer does.
        """
        require_fitting(self.spec, masks, len(obs))
        output: NetworkOutput = self(obs, hidden)
        logits = output.logits.squeeze(1)
        require_finite(self.spec, obs, logits)
        # Head by head, each under the mask that earlier heads leave it; then what that mask was.
        actions = draw_actions(self.spec, logits, masks, deterministic=deterministic)
        selected = select_masks(self.spec, masks, actions)
        require_legal(self.spec, selected, step)
        chosen = MaskedCategorical(select_logits(self.spec, logits, actions), selected, validate=False)
        return PolicyStep(actions, chosen.log_prob(actions), output.values.squeeze(1), output.hidden)

    def evaluate_actions(self, obs: Tensor, actions: Tensor, selected: Tensor, hidden: Hidden) -> ActionEvaluation:
        """Log-probabilities, normalised entropies and values of stored sequences, replayed from `hidden`.

        `selected [B, T, H, K]` are the masks that applied, as `select_masks` gives them. They are not checked again:
        acting has done so, and the update checks all results for finiteness in one go.
        """
        output: NetworkOutput = self(obs, hidden)
        logits = select_logits(self.spec, output.logits, actions)
        distribution = MaskedCategorical(logits, selected, validate=False)
        return ActionEvaluation(
            distribution.log_prob(actions),
            distribution.normalized_entropy(),
            output.values,
            output.logits,
            output.hidden,
        )


class FactoredRecurrentActorCritic(RecurrentActorCritic):
    """Feature net, LSTM, LayerNorm, and a head per factor of the action.

    Two LayerNorms on purpose: the one in the feature net takes out the scale of the input (`input_norm=False` removes
    it), that of the trunk the drift of the hidden magnitude.
    """

    ARCHITECTURE = "flat"
    OPTIONS = ("feature_dim", "feature_layers", "input_norm", "head_dim", "policy_gain")

    def __init__(
        self,
        spec: ActionSpec,
        state_dim: int,
        *,
        feature_dim: int = _DEFAULT.feature_dim,
        feature_layers: int = _DEFAULT.feature_layers,
        input_norm: bool = _DEFAULT.input_norm,
        lstm_hidden_dim: int = _DEFAULT.lstm_hidden_dim,
        lstm_layers: int = _DEFAULT.lstm_layers,
        head_dim: int | None = _DEFAULT.head_dim,
        policy_gain: float = _DEFAULT.policy_gain,
    ) -> None:
        if feature_layers not in (1, 2):
            raise InputError(f"feature_layers is {feature_layers}; choose 1 or 2")
        super().__init__(spec, state_dim, feature_dim, lstm_hidden_dim, lstm_layers)
        self.options = {
            "feature_dim": feature_dim,
            "feature_layers": feature_layers,
            "input_norm": input_norm,
            "head_dim": head_dim,
            "policy_gain": policy_gain,
        }
        self.feature_net = _feature_net(state_dim, feature_dim, feature_layers, input_norm)
        width = head_width(head_dim, lstm_hidden_dim)
        for head in spec.heads:
            self.add_module(f"{head.name}_head", make_head(lstm_hidden_dim, width, head.size))
        self.value_head = make_head(lstm_hidden_dim, width, 1)
        self._initialise(policy_gain)
        self._check_lstm()

    def forward(self, obs: Tensor, hidden: Hidden | None = None) -> NetworkOutput:
        """Logits, values and the new state. `obs [B, D]` is taken as sequences of one step."""
        # Trunk: features, memory, norm.
        core, hidden = self._remember(self.feature_net(obs), hidden)
        # Heads, padded to the widest.
        logits = [self.policy_head(head.name)(core) for head in self.spec.heads]
        return NetworkOutput(pad_heads(logits, self.spec.width), self.value_head(core).squeeze(-1), hidden)


def _feature_net(state_dim: int, feature_dim: int, layers: int, input_norm: bool) -> nn.Module:
    if layers == 2:
        return ResidualFeatures(state_dim, feature_dim, input_norm=input_norm)
    norm = nn.LayerNorm(feature_dim) if input_norm else nn.Identity()
    return nn.Sequential(nn.Linear(state_dim, feature_dim), norm, nn.ReLU())


def head_width(head_dim: int | None, lstm_hidden_dim: int) -> int:
    """The hidden width of heads."""
    return max(MIN_HEAD_DIM, lstm_hidden_dim // 2) if head_dim is None else head_dim


def make_head(input_dim: int, width: int, output_dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(input_dim, width), nn.ReLU(), nn.Linear(width, output_dim))


def last_layer(head: nn.Sequential) -> nn.Linear:
    """The layer that gives the result of a head."""
    layer = head[-1]
    assert isinstance(layer, nn.Linear)
    return layer


class Policy:
    """All that deciding takes: a network, the statistics that normalise its observations, and the scale of its values.

    Without `normalize`, observations are taken as they are. Values go in and out in raw units.
    """

    def __init__(
        self,
        network: nn.Module,
        device: torch.device | str = "cpu",
        *,
        normalize: bool = False,
        scale_values: bool = True,
        compile_network: bool = False,
    ) -> None:
        base = unwrapped(network)  # weights are saved without the wrapper's prefix
        assert isinstance(base, RecurrentActorCritic)
        self.network = base.to(device)
        self.device = torch.device(device)
        self.normalizer = base.make_normalizer(device) if normalize else None
        self.return_scale = ReturnScale(self.device, enabled=scale_values)
        if compile_network:
            compile_recurrent(base)

    @property
    def spec(self) -> ActionSpec:
        """The heads it decides with."""
        return self.network.spec

    def for_spec(self, spec: ActionSpec) -> "Policy":
        """The same policy, weights and all, for hosts with other slots; only a pointing network can be asked."""
        if spec == self.spec:
            return self
        if not isinstance(self.normalizer, SharedMeanStd):
            raise InputError(f"a flat network decides for {self.spec.head('slot').size} slots alone")
        other = copy(self)
        other.network = copy(self.network)
        other.network.spec = spec
        anatomy = Anatomy(spec.head("slot").size, spec.head("blueprint").size)
        other.network.state_dim, other.normalizer = anatomy.width, self.normalizer.of(anatomy)
        return other

    def initial_hidden(self, num_envs: int) -> Hidden:
        """The LSTM state at the start of an episode."""
        return self.network.get_initial_hidden(num_envs)

    def normalized(self, obs: Tensor) -> Tensor:
        """Raw observations as the network takes them."""
        return obs if self.normalizer is None else self.normalizer.normalize(obs)

    @torch.inference_mode()
    def act(
        self, obs: Tensor, masks: Masks, hidden: Hidden, *, deterministic: bool = False, step: int | None = None
    ) -> PolicyStep:
        """Decide for normalised `obs [N, D]`; `step` is named if a mask leaves no legal action."""
        decision = self.network.get_action(obs, masks, hidden, deterministic=deterministic, step=step)
        return decision._replace(values=decision.values * self.return_scale.scale)

    @torch.inference_mode()
    def value(self, obs: Tensor, hidden: Hidden) -> Tensor:
        """V of normalised `obs [N, D]`: for bootstrapping, the state after a step under the LSTM state after it."""
        values: Tensor = self.network(obs, hidden).values
        return values.squeeze(1) * self.return_scale.scale

    def replay(self, batch: SequenceBatch) -> NetworkOutput:
        """Logits and values, in units of the return scale, of stored sequences from their start."""
        output: NetworkOutput = self.network(batch.obs, batch.hidden)
        return output

    def scaled(self, returns: Tensor) -> Tensor:
        """Returns in the units of the value head."""
        return returns / self.return_scale.scale

    def take_in_observations(self, buffer: TamiyoRolloutBuffer, *, normalize_again: bool = False) -> None:
        """Let the statistics take in a round; its observations stay as acted upon unless they are normalised again."""
        if self.normalizer is not None:
            self.normalizer.update(buffer.raw_obs[buffer.valid])
            if normalize_again:
                buffer.obs.copy_(self.normalizer.normalize(buffer.raw_obs))

    def take_in_returns(self, buffer: TamiyoRolloutBuffer) -> None:
        """Let the scale take in the returns of a round; the values of the network stay what they are."""
        self.return_scale.update(buffer.returns[buffer.valid], last_layer(self.network.value_head))

    @torch.no_grad()
    def add_bias(self, head: str, bias: Sequence[float]) -> None:
        """Add to the initial logits of a head."""
        last_layer(self.network.policy_head(head)).bias.add_(torch.tensor(bias, device=self.device))

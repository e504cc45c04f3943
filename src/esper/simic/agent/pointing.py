"""A policy for any number of slots and kinds: it scores what it sees instead of having a place for each.

One encoder reads every kind and one reads every slot; slots learn of each other by mean and maximum; the LSTM keeps the
story of the host. Then op is scored by the core, slot by core and slot, blueprint by core, slot and kind, and blend by
core and slot. No weight belongs to a slot or a kind, so another host needs no other weights (`Policy.for_spec`).

| tensor | shape |
|---|---|
| obs | `[B, D]` or `[B, T, D]`: rows of `control/anatomy.py` |
| logits | `[B, T, H, G, K]`: slot given op, blueprint and blend given slot |
"""

import torch
from torch import Tensor, nn

from esper.leyline import HEAD_NAMES, InputError
from esper.simic.agent.network import NetworkOutput, RecurrentActorCritic, head_width, make_head
from esper.simic.agent.types import Hidden
from esper.simic.config import LearnerConfig
from esper.simic.control.action_masks import ActionSpec, pad_conditional
from esper.simic.control.anatomy import BLOCKS, Anatomy
from esper.simic.control.normalization import SharedMeanStd

_DEFAULT = LearnerConfig()


class PointingActorCritic(RecurrentActorCritic):
    """Esper's four heads over whatever slots and kinds there are."""

    ARCHITECTURE = "pointing"
    OPTIONS = ("feature_dim", "head_dim", "policy_gain")

    def __init__(
        self,
        spec: ActionSpec,
        state_dim: int,
        *,
        feature_dim: int = _DEFAULT.feature_dim,
        lstm_hidden_dim: int = _DEFAULT.lstm_hidden_dim,
        lstm_layers: int = _DEFAULT.lstm_layers,
        head_dim: int | None = _DEFAULT.head_dim,
        policy_gain: float = _DEFAULT.policy_gain,
    ) -> None:
        super().__init__(spec, state_dim, feature_dim, lstm_hidden_dim, lstm_layers)
        if spec.names != HEAD_NAMES:
            raise InputError(f"the pointing network decides with the heads {', '.join(HEAD_NAMES)} alone")
        if self.anatomy.width != state_dim:
            raise InputError(f"{self.anatomy} has observations of {self.anatomy.width}, not of {state_dim}")
        self.options = {"feature_dim": feature_dim, "head_dim": head_dim, "policy_gain": policy_gain}
        host, slot, kind = (len(block.columns) for block in BLOCKS)
        width, part = head_width(head_dim, lstm_hidden_dim), max(1, feature_dim // 4)
        # Encoders: of each kind, of each slot with its kinds, and of the host with its slots.
        self.kind_net = _encoder(kind, part, part)
        self.slot_net = _encoder(slot + 2 * part, part, part)
        self.feature_net = nn.Sequential(nn.Linear(host + 2 * part, feature_dim), nn.LayerNorm(feature_dim), nn.ReLU())
        # Heads: what each of them is scored by.
        seen = lstm_hidden_dim + 2 * part
        self.op_head = make_head(seen, width, spec.head("op").size)
        self.slot_head = make_head(seen + part, width, spec.head("op").size)
        self.blueprint_head = make_head(lstm_hidden_dim + 2 * part, width, 1)
        self.blend_head = make_head(seen + part, width, spec.head("blend").size)
        self.value_head = make_head(seen, width, 1)
        self._initialise(policy_gain)
        self._check_lstm()

    @property
    def anatomy(self) -> Anatomy:
        """How its observations are laid out."""
        return Anatomy(self.spec.head("slot").size, self.spec.head("blueprint").size)

    def make_normalizer(self, device: torch.device | str) -> SharedMeanStd:
        return SharedMeanStd(self.anatomy, device)

    def forward(self, obs: Tensor, hidden: Hidden | None = None) -> NetworkOutput:
        """Logits, values and the new state. `obs [B, D]` is taken as sequences of one step."""
        host, slots, kinds = self.anatomy.split(obs)
        exists, fits = slots[..., 0] > 0, kinds[..., 0] > 0
        # From kinds to slots to the host.
        kinds = self.kind_net(kinds)
        slots = self.slot_net(torch.cat([slots, _pooled(kinds, fits)], -1))
        around = _pooled(slots, exists)
        core, hidden = self._remember(self.feature_net(torch.cat([host, around], -1)), hidden)
        # Acting has no axis of time yet; the core has.
        shape = core.shape[:2]
        slots, kinds, around = (x.reshape(*shape, *x.shape[obs.dim() - 1 :]) for x in (slots, kinds, around))
        # Heads: from the core alone, for each slot, and for each kind in it.
        core_and_all = torch.cat([core, around], -1)
        by_slot = torch.cat([core_and_all.unsqueeze(-2).expand(*slots.shape[:-1], -1), slots], -1)
        logits = {
            "op": self.op_head(core_and_all).unsqueeze(-2),
            "slot": self.slot_head(by_slot).transpose(-1, -2),
            "blueprint": self._score_kinds(core, slots, kinds),
            "blend": self.blend_head(by_slot),
        }
        padded = pad_conditional(self.spec, logits)
        return NetworkOutput(padded, self.value_head(core_and_all).squeeze(-1), hidden)

    def _score_kinds(self, core: Tensor, slots: Tensor, kinds: Tensor) -> Tensor:
        """`[B, T, S, B]`: the logits of every kind in every slot."""
        first, *rest = self.blueprint_head
        assert isinstance(first, nn.Linear)
        # The first layer of the head on core, slot and kind side by side, without writing that out for every kind.
        for_core, for_slot, for_kind = first.weight.split((core.shape[-1], slots.shape[-1], kinds.shape[-1]), 1)
        shared = (core @ for_core.T + first.bias).unsqueeze(-2) + slots @ for_slot.T
        scores: Tensor = nn.Sequential(*rest)(shared.unsqueeze(-2) + kinds @ for_kind.T)
        return scores.squeeze(-1)


def _encoder(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs), nn.ReLU())


def _pooled(parts: Tensor, there: Tensor) -> Tensor:
    """Mean and maximum `[..., 2E]` of `parts [..., n, E]` that are there; 0 if none is."""
    kept = torch.where(there.unsqueeze(-1), parts, 0.0)
    mean = kept.sum(-2) / there.sum(-1, keepdim=True).clamp(min=1)
    # Encodings are 0 or more, so 0 is no larger than any that is there.
    return torch.cat([mean, kept.amax(-2)], -1)

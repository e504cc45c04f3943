"""Storage for one round: every step of every environment, allocated once.

| tensor | shape |
|---|---|
| obs, raw_obs | `[N, T, D]`: as acted upon, and before normalisation |
| actions, log_probs | `[N, T, H]` |
| values, rewards, bootstrap_values, advantages, returns | `[N, T]` |
| dones, truncated | `[N, T]`: the episode ended here; it ended by a time limit |
| masks | per head `[N, T, ...]` |
| hidden_h, hidden_c | `[N, T or 1, layers, hidden]`: the state before the step |
| step_counts | `[N]`, on the CPU: how many steps of each row are stored |

All but the counts are on the buffer's device, and so is what it returns.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from esper.leyline import (
    DEFAULT_EPISODE_LENGTH,
    DEFAULT_LSTM_HIDDEN_DIM,
    DEFAULT_LSTM_LAYERS,
    DEFAULT_NUM_ENVS,
    InputError,
    SlotConfig,
)
from esper.simic.agent.advantages import generalized_advantages, standardize
from esper.simic.agent.network import Decision
from esper.simic.agent.sequences import SequenceBatch, gather_sequences
from esper.simic.agent.types import Hidden
from esper.simic.control.action_spec import ActionSpec, Masks, esper_action_spec
from esper.simic.control.placing import move

LARGEST_ROUND = 2**30
"""Numbers that one round may store, about 4 GiB: a hundred times what large runs need. More is a slip of the pen."""


@dataclass(slots=True)
class TamiyoRolloutBuffer:
    """What happened in one round. A row holds one environment, and may hold several episodes one after another.

    All environments are stored with one call per step. An environment that is left out of a step (`active`) has
    finished its row.
    """

    state_dim: int
    num_envs: int = DEFAULT_NUM_ENVS
    max_steps: int = DEFAULT_EPISODE_LENGTH
    lstm_hidden_dim: int = DEFAULT_LSTM_HIDDEN_DIM
    lstm_layers: int = DEFAULT_LSTM_LAYERS
    slot_config: SlotConfig = field(default_factory=SlotConfig.default)
    action_spec: ActionSpec | None = None
    """None: Esper's heads for `slot_config`."""
    device: torch.device | str = "cpu"
    hidden_storage: Literal["all", "first"] = "all"
    """"first" keeps the state of step 0 alone, which is all that the update needs: later episodes start at zero."""

    num_steps: int = field(default=0, init=False)
    spec: ActionSpec = field(init=False)
    obs: Tensor = field(init=False)
    raw_obs: Tensor = field(init=False)
    actions: Tensor = field(init=False)
    log_probs: Tensor = field(init=False)
    values: Tensor = field(init=False)
    rewards: Tensor = field(init=False)
    dones: Tensor = field(init=False)
    truncated: Tensor = field(init=False)
    bootstrap_values: Tensor = field(init=False)
    advantages: Tensor = field(init=False)
    returns: Tensor = field(init=False)
    masks: dict[str, Tensor] = field(init=False)
    hidden_h: Tensor = field(init=False)
    hidden_c: Tensor = field(init=False)
    step_counts: Tensor = field(init=False)

    def __post_init__(self) -> None:
        if self.num_envs < 1 or self.max_steps < 1:
            raise InputError(f"a buffer needs environments and steps; got {self.num_envs} and {self.max_steps}")
        self.spec = esper_action_spec(self.slot_config) if self.action_spec is None else self.action_spec
        self._check_size()
        grid = (self.num_envs, self.max_steps)
        self.obs, self.raw_obs = self._zeros(*grid, self.state_dim), self._zeros(*grid, self.state_dim)
        self.actions = self._zeros(*grid, len(self.spec.heads), dtype=torch.long)
        self.log_probs = self._zeros(*grid, len(self.spec.heads))
        self.values, self.rewards, self.bootstrap_values = (self._zeros(*grid) for _ in range(3))
        self.advantages, self.returns = self._zeros(*grid), self._zeros(*grid)
        self.dones, self.truncated = (self._zeros(*grid, dtype=torch.bool) for _ in range(2))
        self.masks = {
            head.name: self._zeros(*grid, *self.spec.mask_shape(head), dtype=torch.bool) for head in self.spec.heads
        }
        kept = self.max_steps if self.hidden_storage == "all" else 1
        shape = (self.num_envs, kept, self.lstm_layers, self.lstm_hidden_dim)
        self.hidden_h, self.hidden_c = self._zeros(*shape), self._zeros(*shape)
        self.step_counts = torch.zeros(self.num_envs, dtype=torch.long)

    def _check_size(self) -> None:
        per_step = 2 * self.state_dim + sum(math.prod(self.spec.mask_shape(head)) for head in self.spec.heads)
        states = 2 * self.lstm_layers * self.lstm_hidden_dim if self.hidden_storage == "all" else 0
        if self.num_envs * self.max_steps * (per_step + states) > LARGEST_ROUND:
            raise InputError(
                f"a round of {self.num_envs} environments and {self.max_steps} steps is too large to store; "
                "choose fewer environments or steps"
            )

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    @property
    def valid(self) -> Tensor:
        """`[N, T]`, True where a step was stored."""
        if (self.step_counts < 0).any():
            raise InputError(f"step counts cannot be negative: {self.step_counts.tolist()}")
        return move(torch.arange(self.max_steps) < self.step_counts.unsqueeze(1), self.device)

    def add_step(
        self,
        obs: Tensor,
        masks: Masks,
        hidden: Hidden,
        decision: Decision,
        rewards: Tensor,
        dones: Tensor,
        truncated: Tensor,
        *,
        bootstrap_values: Tensor | None = None,
        raw_obs: Tensor | None = None,
        active: Tensor | None = None,
    ) -> None:
        """Store one step of all environments, wherever its tensors are; nothing waits for the device.

        `hidden` is the state before acting. `bootstrap_values [N]` holds V of the state after this step, under the
        LSTM state after it; it is read where an episode was truncated or the row ends. `active [N]` leaves out
        environments that have finished.
        """
        if self.num_steps == self.max_steps:
            raise InputError(f"the buffer is full: it holds {self.max_steps} steps; update or clear it first")
        step = self.num_steps
        given = [
            (self.obs, obs),
            (self.raw_obs, obs if raw_obs is None else raw_obs),
            (self.actions, decision.actions),
            (self.log_probs, decision.log_probs),
            (self.values, decision.values),
            (self.rewards, rewards),
            (self.dones, dones),
            (self.truncated, truncated),
            *((mask, masks[name]) for name, mask in self.masks.items()),
        ]
        if step < self.hidden_h.shape[1]:
            given += [(self.hidden_h, hidden[0].movedim(0, 1)), (self.hidden_c, hidden[1].movedim(0, 1))]
        for rows, values in given:
            rows[:, step] = move(values, self.device)
        self.bootstrap_values[:, step] = math.nan if bootstrap_values is None else bootstrap_values
        self._count(active)

    def _count(self, active: Tensor | None) -> None:
        if active is None:
            self.step_counts += 1
        else:
            counted = active.cpu()
            if (counted & (self.step_counts != self.num_steps)).any():
                raise InputError("an environment that was left out of a step has finished its row until `clear`")
            self.step_counts += counted
        self.num_steps += 1

    def compute_advantages_and_returns(
        self, gamma: float, gae_lambda: float, *, value_lambda: float | None = None, horizon_is_terminal: bool = False
    ) -> None:
        """Fill `advantages` and `returns`, in raw units; returns by a lambda of their own if it is given.

        A terminated episode is worth 0 afterwards. A truncated one, or one that goes on beyond the row, is worth its
        stored bootstrap value; with `horizon_is_terminal` a time limit is the end of the problem and worth 0 too.
        """
        valid = self.valid
        last = move(torch.arange(self.max_steps) == self.step_counts.unsqueeze(1) - 1, self.device)
        ends = self.dones | last
        bootstrapped = valid & torch.where(self.dones, self.truncated & (not horizon_is_terminal), last)
        if (bootstrapped & ~self.bootstrap_values.isfinite()).any():
            raise InputError(
                "a truncated or unfinished episode needs a finite value of the state after its last step: "
                "give `bootstrap_values` to `add_step`"
            )
        following = self.values.roll(-1, dims=1)
        next_values = torch.where(bootstrapped, self.bootstrap_values, torch.where(ends, 0.0, following))
        steps = (self.rewards, self.values, next_values, ends, gamma)
        self.advantages.copy_(generalized_advantages(*steps, gae_lambda))
        if value_lambda is None:
            self.returns.copy_(self.advantages + self.values)
        else:
            self.returns.copy_(generalized_advantages(*steps, value_lambda) + self.values)

    def normalize_advantages(self) -> None:
        """Zero mean and unit spread over all valid steps of all environments together."""
        self.advantages.copy_(standardize(self.advantages, self.valid))

    def get_batched_sequences(self, device: torch.device | str | None = None) -> SequenceBatch:
        """Every episode, or the part of it that is in its row, as one padded sequence on `device`.

        Transfers do not block: synchronise before timing them.
        """
        starts = torch.zeros_like(self.dones)
        starts[:, 0] = True
        starts[:, 1:] = self.dones[:, :-1]
        fields = {
            "obs": self.obs,
            "actions": self.actions,
            "old_log_probs": self.log_probs,
            "advantages": self.advantages,
            "returns": self.returns,
        }
        first_hidden = (self.hidden_h[:, 0], self.hidden_c[:, 0])
        batch = gather_sequences(self.spec, fields, self.masks, first_hidden, starts & self.valid, self.valid)
        return batch.to(self.device if device is None else device)

    def clear(self) -> None:
        """Forget all steps; the memory stays."""
        self.num_steps = 0
        self.step_counts.zero_()

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

For learning, episodes become padded sequences, so that one fused LSTM call replays a whole minibatch from the episodes'
starts. A row may hold several episodes; each becomes one of `G` sequences of at most `L` steps. A sequence that begins
inside a row starts from zeros, as acting did; one that begins a row starts from the stored state, which is zeros too
unless its episode began in an earlier round. State never crosses a boundary.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from esper.leyline import (
    ADVANTAGE_STD_FLOOR,
    DEFAULT_EPISODE_LENGTH,
    DEFAULT_NUM_ENVS,
    InputError,
    SlotConfig,
)
from esper.simic.agent.types import Hidden, PolicyStep
from esper.simic.config.training import HiddenStorage, LearnerConfig
from esper.simic.control.action_masks import (
    ActionSpec,
    Masks,
    esper_action_spec,
    move_masks,
    relevant_heads,
    select_masks,
    to_device,
)

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
    lstm_hidden_dim: int = LearnerConfig().lstm_hidden_dim
    lstm_layers: int = LearnerConfig().lstm_layers
    slot_config: SlotConfig = field(default_factory=SlotConfig.default)
    action_spec: ActionSpec | None = None
    """None: Esper's heads for `slot_config`."""
    device: torch.device | str = "cpu"
    hidden_storage: HiddenStorage = "all"
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
        return to_device(torch.arange(self.max_steps) < self.step_counts.unsqueeze(1), self.device)

    def add_step(
        self,
        obs: Tensor,
        masks: Masks,
        hidden: Hidden,
        decision: PolicyStep,
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
        # With hidden_storage "first" there is room for the state of the first step alone.
        if step < self.hidden_h.shape[1]:
            given += [(self.hidden_h, hidden[0].movedim(0, 1)), (self.hidden_c, hidden[1].movedim(0, 1))]
        for rows, values in given:
            rows[:, step] = to_device(values, self.device)
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
        # A row ends at its last stored step, whether or not its episode does.
        last = to_device(torch.arange(self.max_steps) == self.step_counts.unsqueeze(1) - 1, self.device)
        ends = self.dones | last
        bootstrapped = valid & torch.where(self.dones, self.truncated & (not horizon_is_terminal), last)
        if (bootstrapped & ~self.bootstrap_values.isfinite()).any():
            raise InputError(
                "a truncated or unfinished episode needs a finite value of the state after its last step: "
                "give `bootstrap_values` to `add_step`"
            )
        # V of the next state: stored where the episode was cut, 0 where it ended, the next value of the row elsewhere.
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
        valid = self.valid
        if valid.any():
            chosen = self.advantages[valid]
            # A tiny spread is noise: it is not blown up to 1.
            spread = chosen.std(correction=0).clamp(min=ADVANTAGE_STD_FLOOR)
            self.advantages.copy_(torch.where(valid, (self.advantages - chosen.mean()) / spread, self.advantages))

    def get_batched_sequences(self, device: torch.device | str | None = None) -> "SequenceBatch":
        """Every episode, or the part of it that is in its row, as one padded sequence on `device`.

        Transfers do not block: synchronise before timing them.
        """
        # A sequence begins with its row, and behind every step that ended an episode.
        starts = torch.zeros_like(self.dones)
        starts[:, 0] = True
        starts[:, 1:] = self.dones[:, :-1]
        index, real, lengths = _layout(starts & self.valid, self.valid)
        actions = _take(self.actions, index, real)
        masks = {name: _take(mask, index, real) for name, mask in self.masks.items()}
        # Only sequences that begin a row may have begun in an earlier round, and so need their stored state.
        row, begins_row = index[:, 0] // self.max_steps, (index[:, 0] % self.max_steps == 0).view(1, -1, 1)
        first = (state[row, 0].movedim(1, 0) for state in (self.hidden_h, self.hidden_c))
        h, c = (torch.where(begins_row, state, 0.0).contiguous() for state in first)
        batch = SequenceBatch(
            obs=_take(self.obs, index, real),
            actions=actions,
            old_log_probs=_take(self.log_probs, index, real),
            advantages=_take(self.advantages, index, real),
            returns=_take(self.returns, index, real),
            valid=real,
            active=causal_masks(self.spec, actions, real),
            selected=select_masks(self.spec, masks, actions),
            masks=masks,
            hidden=(h, c),
            lengths=lengths.cpu(),
        )
        return batch.to(self.device if device is None else device)

    def clear(self) -> None:
        """Forget all steps; the memory stays."""
        self.num_steps = 0
        self.step_counts.zero_()


def causal_masks(spec: ActionSpec, actions: Tensor, valid: Tensor) -> Tensor:
    """`[..., H]`, True where a head mattered at a real step: `actions [..., H]`, `valid [...]`.

    The decider causes everything that follows, so it takes the full advantage. A head that did not matter for the
    sampled decision had no effect on what came next (slot under WAIT, blueprint and blend under anything but
    GERMINATE): crediting it would be noise, so policy loss, entropy, KL and metrics leave it out, all by this mask.
    """
    return relevant_heads(spec, actions) & valid.unsqueeze(-1)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def generalized_advantages(
    rewards: Tensor, values: Tensor, next_values: Tensor, ends: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """Generalised advantage estimates `[N, T]`, all arguments `[N, T]`.

    `next_values` is what the step is bootstrapped with: 0 at a terminal step, V of the state after the step at a
    truncated or last one. `ends` is True where the sum over later steps is cut, whatever the reason.
    """
    deltas = rewards + gamma * next_values - values
    carry = gamma * gae_lambda * (~ends).to(deltas.dtype)
    advantages = torch.empty_like(deltas)
    running = torch.zeros_like(deltas[:, 0])
    for step in range(deltas.shape[1] - 1, -1, -1):
        # `where` and not a product: beyond an end there may be stale numbers, and 0 times NaN is NaN.
        running = deltas[:, step] + torch.where(ends[:, step], 0.0, carry[:, step] * running)
        advantages[:, step] = running
    return advantages


@dataclass(slots=True)
class SequenceBatch:
    """Sequences with everything the losses need.

    | tensor | shape |
    |---|---|
    | obs | `[G, L, D]` |
    | actions, old_log_probs, active | `[G, L, H]` |
    | advantages, returns, valid | `[G, L]` |
    | selected | `[G, L, H, K]`: the masks that applied to the stored actions |
    | masks | per head `[G, L, ...]`: all of them, for the exact joint statistics |
    | hidden | two of `[layers, G, hidden]` |
    | lengths | `[G]`, on the host |

    Padding is 0 everywhere, follows the real steps, and is False in `valid` and `active`.
    """

    obs: Tensor
    actions: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    returns: Tensor
    valid: Tensor
    active: Tensor
    selected: Tensor
    masks: dict[str, Tensor]
    hidden: Hidden
    lengths: Tensor

    def rows(self, index: Tensor) -> "SequenceBatch":
        """The sequences in `index`, cut to the longest of them, without the full masks: losses need `selected` only."""
        longest = int(self.lengths[index].max())
        place = to_device(index, self.obs.device)
        return SequenceBatch(
            **{name: getattr(self, name)[place, :longest] for name in _STEP_FIELDS},
            masks={},
            hidden=(self.hidden[0][:, place], self.hidden[1][:, place]),
            lengths=self.lengths[index],
        )

    @property
    def legal(self) -> Tensor:
        """`[G, L, H, K]`: `selected`, but everything for heads that did not matter, whose logits must stay finite."""
        return self.selected | ~self.active.unsqueeze(-1)

    def finite_rows(self) -> tuple["SequenceBatch | None", int]:
        """The sequences without NaN or infinity, None if there are none, and how many others there are.

        Observations, returns and the first LSTM state are looked at; the full masks are left out, as in `rows`.
        """
        steps = self.obs.isfinite().all(-1) & self.returns.isfinite()
        state = self.hidden[0].isfinite() & self.hidden[1].isfinite()
        finite = (steps.all(-1) & state.all(-1).all(0)).cpu()
        left_out = int((~finite).sum())
        if left_out == len(finite):
            return None, left_out
        return (self.rows(finite.nonzero().squeeze(-1)) if left_out else replace(self, masks={})), left_out

    def to(self, device: torch.device | str) -> "SequenceBatch":
        """The same on `device`, but for the lengths."""
        return replace(
            self,
            **{name: to_device(getattr(self, name), device) for name in _STEP_FIELDS},
            masks=move_masks(self.masks, device),
            hidden=(to_device(self.hidden[0], device), to_device(self.hidden[1], device)),
        )


_STEP_FIELDS = tuple(spec.name for spec in fields(SequenceBatch) if spec.name not in ("masks", "hidden", "lengths"))


def _layout(starts: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where each step of each sequence lies: flat index `[G, L]`, whether it is real, and lengths `[G]`.

    `starts [N, T]` is True where a sequence begins. Padding points at step 0.
    """
    flat = valid.flatten().nonzero().squeeze(-1)
    # Steps lie row after row, so counting the starts numbers the sequences.
    sequence = starts.flatten()[flat].cumsum(0) - 1
    lengths = sequence.bincount()
    first = lengths.cumsum(0) - lengths
    position = torch.arange(len(flat), device=flat.device) - first[sequence]
    index = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.long, device=flat.device)
    real = torch.zeros_like(index, dtype=torch.bool)
    index[sequence, position] = flat
    real[sequence, position] = True
    return index, real, lengths


def _take(tensor: Tensor, index: Tensor, real: Tensor) -> Tensor:
    """`[N, T, ...]` to `[G, L, ...]`; padding is zeroed, because NaN there would poison gradients even if masked."""
    taken = tensor.flatten(0, 1)[index]
    taken[~real] = 0
    return taken


def minibatches(lengths: Tensor, count: int) -> Iterator[Tensor]:
    """Shuffled groups of whole sequences with about the same number of steps; every sequence is in exactly one."""
    # Cut the shuffled sequences, laid end to end, into equal parts; each belongs where its middle lies.
    order = torch.randperm(len(lengths))
    ends = lengths[order].cumsum(0)
    middles = ends - lengths[order] / 2
    group = (middles * count / ends[-1]).long()
    for number in range(count):
        chosen = order[group == number]
        if len(chosen):
            yield chosen

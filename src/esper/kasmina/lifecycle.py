"""The lifecycle of seeds: pure functions from a slot table and what happened to the next table.

One step of a host is `act`, then `begin_epoch`, an epoch of training and validation, then `end_epoch`.
Nothing here knows of modules: `graft.py` and the executors make networks follow the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from esper.kasmina.table import ActionMasks, Catalogue, SlotTable, action_masks
from esper.leyline import (
    BLENDING_EPOCHS,
    HEAD_NAMES,
    TRAINING_EPOCHS,
    TRANSITIONS,
    Blend,
    IllegalActionError,
    InputError,
    Op,
    Stage,
)

MAX_BLEND_PAUSES: Final = 2
"""How often a gated blend may stand still on a negative contribution."""
MAX_HOLDS: Final = 2
"""How often alpha may hold because the next one would cost too much; the seed is culled at the next time."""
TRIAL_TOLERANCE: Final = 0.01
"""By how much the validation score may fall with a seed's next alpha for that alpha to be taken: one point."""
EMBARGO_EPOCHS: Final = 1
"""Epochs spent in each of CULLED and EMBARGOED before a slot is free again."""
_LEGAL_MOVES = torch.tensor([[(old, new) in TRANSITIONS for new in Stage] for old in Stage])
_ROUNDING = 1e-6
"""Scores are single precision, and a fall by just one point is not more than a point."""
_STEEPNESS = 12.0
"""Of the sigmoid blend."""


@dataclass(frozen=True, slots=True)
class Transitions:
    """The K stage changes of one call, in host and then slot order; all fields are `[K]`."""

    host: Tensor
    slot: Tensor
    old: Tensor
    new: Tensor
    epochs_in_old: Tensor
    """Epochs that the old table had counted in the stage that was left."""
    refused: Tensor
    """Bool: culled because its next alpha would have cost too much once too often."""

    def __len__(self) -> int:
        return len(self.host)


@dataclass(frozen=True, slots=True)
class EpochEvidence:
    """What an epoch showed; gates read this and nothing else, so telemetry cannot change a decision.

    | field | shape | meaning |
    |---|---|---|
    | score | [N] | validation score of the whole network, in [0, 1] |
    | loss_finite | [N] | the training loss stayed finite |
    | seed_gradient | [N, S] | gradient norm of each seed over the epoch |
    | contribution | [N, S] | score with the seed minus score without it; NaN where not measured |
    | trial | [N, S] | score with the seed at its `next_alpha` minus the score; NaN where not tried |
    """

    score: Tensor
    loss_finite: Tensor
    seed_gradient: Tensor
    contribution: Tensor
    trial: Tensor


def move(table: SlotTable, where: Tensor, new: Stage) -> None:
    """Put the slots `where [N, S]` into stage `new`, in place; an illegal move raises and changes nothing."""
    illegal = where & ~_LEGAL_MOVES[table.stage, new]
    if illegal.any():
        host, slot = illegal.nonzero()[0].tolist()
        old = Stage(int(table.stage[host, slot]))
        raise IllegalActionError(f"slot {slot} of host {host} cannot move from {old.name} to {new.name}")
    table.stage[where] = new.value
    table.epochs_in_stage[where] = 0


def check_actions(table: SlotTable, actions: Tensor, masks: ActionMasks) -> None:
    """Raise unless `actions [N, 4]` are of the right kind and legal by the `masks` of `table`."""
    if actions.shape != (table.shape[0], len(HEAD_NAMES)) or actions.dtype != torch.int64:
        raise InputError(
            f"actions must be int64 of shape {[table.shape[0], len(HEAD_NAMES)]}; "
            f"got {actions.dtype} of shape {list(actions.shape)}"
        )
    allowed = masks.allow(actions)
    if not allowed.all():
        raise IllegalActionError(_explain(table, actions, int((~allowed).nonzero()[0])))


def act(
    table: SlotTable, actions: Tensor, catalogue: Catalogue, budget: Tensor, score: Tensor
) -> tuple[SlotTable, Transitions]:
    """Apply one action per host, `actions [N, 4]` in `HEAD_NAMES` order; any illegal one raises and changes nothing.

    `budget [N]` is the most parameters that a host's seeds may add together; `score [N]`, the latest
    validation score, is kept with new seeds.
    """
    check_actions(table, actions, action_masks(table, catalogue, budget))
    new = table.clone()
    slot, blueprint, blend, op = actions.unbind(1)
    chosen = torch.nn.functional.one_hot(slot, table.shape[1]).bool()

    germinated = chosen & (op == Op.GERMINATE)[:, None]
    move(new, germinated, Stage.GERMINATED)
    new.blueprint = torch.where(germinated, blueprint[:, None] + 1, new.blueprint)
    new.blend = torch.where(germinated, blend[:, None], new.blend)
    new.alpha = torch.where(germinated & (new.blend == Blend.INSTANT), 1.0, new.alpha)
    new.params = torch.where(germinated, catalogue.params[slot, blueprint][:, None], new.params)
    new.score_at_germination = torch.where(germinated, score[:, None], new.score_at_germination)

    move(new, chosen & (op == Op.FOSSILIZE)[:, None], Stage.FOSSILIZED)
    _cull(new, chosen & (op == Op.CULL)[:, None])
    return new, stage_changes(table, new)


def begin_epoch(table: SlotTable) -> tuple[SlotTable, Transitions]:
    """What the start of an epoch changes: germinated seeds begin to train, but for those that joined at once."""
    new = table.clone()
    move(new, (table.stage == Stage.GERMINATED) & table.isolated, Stage.TRAINING)
    return new, stage_changes(table, new)


def blend_alpha(blend: Tensor, blend_epoch: Tensor) -> Tensor:
    """Alpha in the given epoch of blending, 1 to `BLENDING_EPOCHS`; exactly 1 in the last.

    Linear and gated climb in equal steps (a gated blend differs in when it may take the next one, not in
    how high that is); sigmoid starts and ends gently.
    """
    progress = blend_epoch / BLENDING_EPOCHS
    low, high = torch.sigmoid(torch.tensor([-_STEEPNESS / 2, _STEEPNESS / 2]))
    gentle = (torch.sigmoid(_STEEPNESS * (progress - 0.5)) - low) / (high - low)
    alpha = torch.where(blend == Blend.SIGMOID, gentle, progress)
    return torch.where(blend_epoch >= BLENDING_EPOCHS, 1.0, alpha)


def next_alpha(table: SlotTable) -> Tensor:
    """`[N, S]`: the alpha that a seed would get at the end of the present epoch; NaN where none would rise.

    What the network scores with it belongs into `EpochEvidence.trial`; an alpha that was not tried is taken.
    """
    ready = _at_gate(table) & table.healthy
    rising = ready | ((table.stage == Stage.BLENDING) & (table.blend_epoch < BLENDING_EPOCHS))
    return torch.where(rising, blend_alpha(table.blend, table.blend_epoch + 1), torch.nan)


def end_epoch(table: SlotTable, evidence: EpochEvidence) -> tuple[SlotTable, Transitions]:
    """What the end of an epoch changes: ages, measurements, gates, alpha and the cool-down of culled slots."""
    new = table.clone()
    new.epochs_in_stage += 1
    _record(new, table, evidence)
    _judge_learning(new, table, evidence)
    move(new, (table.stage == Stage.BLENDING) & (table.blend_epoch >= BLENDING_EPOCHS), Stage.HOLDING)
    refused = _raise_alpha(new, table, evidence)
    cooled = new.epochs_in_stage >= EMBARGO_EPOCHS
    move(new, (table.stage == Stage.CULLED) & cooled, Stage.EMBARGOED)
    move(new, (table.stage == Stage.EMBARGOED) & cooled, Stage.DORMANT)
    return new, stage_changes(table, new, refused)


def plant_fossils(table: SlotTable, planted: Mapping[int, int], catalogue: Catalogue) -> SlotTable:
    """The table with blueprints in place from the start, at alpha 1 and for good: networks that are not grown.

    `planted` maps slots to blueprint ids; every host gets the same.
    """
    new = table.clone()
    for slot, blueprint in planted.items():
        new.stage[:, slot] = Stage.FOSSILIZED.value
        new.alpha[:, slot] = 1.0
        new.blueprint[:, slot] = blueprint
        new.params[:, slot] = catalogue.params[slot, blueprint - 1]
    return new


def drop_unfinished(table: SlotTable, hosts: Tensor | None = None) -> SlotTable:
    """The end of the story, of all hosts or of `hosts [N]` (bool): every seed that was not kept for good goes."""
    new = table.clone()
    unfinished = table.on_trial
    if hosts is not None:
        unfinished &= hosts[:, None]
    new.clear(unfinished)
    new.stage[unfinished] = Stage.DORMANT.value
    new.epochs_in_stage[unfinished] = 0
    return new


def settle(table: SlotTable, kept: Tensor) -> SlotTable:
    """The end of the story, decided: the seeds `kept [N, S]` (bool) stay for good as they are blended now."""
    new = table.clone()
    new.stage[kept & table.occupied] = Stage.FOSSILIZED.value
    return drop_unfinished(new)


def _record(new: SlotTable, table: SlotTable, evidence: EpochEvidence) -> None:
    occupied, blended = table.occupied, table.blended
    measured = blended & ~evidence.contribution.isnan()
    new.measurements += measured
    new.proven |= measured & (table.alpha == 1)
    # At alpha 0 a seed cannot matter, so its contribution is known to be 0 without a pass.
    contribution = torch.where(blended, evidence.contribution, 0.0)
    new.contribution = torch.where(occupied, contribution, new.contribution)
    new.improvement = torch.where(occupied, evidence.score[:, None] - table.score_at_germination, new.improvement)
    new.seed_grad_norm = torch.where(occupied, evidence.seed_gradient, new.seed_grad_norm)


def _at_gate(table: SlotTable) -> Tensor:
    """Seeds whose time in TRAINING is over when this epoch ends; those that were held back come again."""
    return (table.stage == Stage.TRAINING) & (table.epochs_in_stage + 1 >= TRAINING_EPOCHS)


def _judge_learning(new: SlotTable, table: SlotTable, evidence: EpochEvidence) -> None:
    """Cull what has not learned: instant seeds after their first epoch, the others at their gate."""
    learned = evidence.loss_finite[:, None] & evidence.seed_gradient.isfinite() & (evidence.seed_gradient > 0)
    new.healthy &= ~table.must_learn | learned
    instant = table.must_learn & (table.stage == Stage.GERMINATED)
    move(new, instant & new.healthy, Stage.HOLDING)
    _cull(new, (instant | _at_gate(table)) & ~new.healthy)


def _raise_alpha(new: SlotTable, table: SlotTable, evidence: EpochEvidence) -> Tensor:
    """Let alphas rise where that does not cost too much; returns what was culled because it did so too often."""
    rising = ~next_alpha(table).isnan() & (new.stage == table.stage)
    pausing = rising & (new.blend == Blend.GATED) & (new.contribution < 0) & (new.pauses < MAX_BLEND_PAUSES)
    new.pauses += pausing
    costly = rising & ~pausing & (evidence.trial < -TRIAL_TOLERANCE - _ROUNDING)
    refused = costly & (new.holds >= MAX_HOLDS)
    new.holds += costly
    climbing = rising & ~pausing & ~costly
    move(new, climbing & (table.stage == Stage.TRAINING), Stage.BLENDING)
    new.blend_epoch += climbing
    new.alpha = torch.where(climbing, blend_alpha(new.blend, new.blend_epoch), new.alpha)
    _cull(new, refused)
    return refused


def _cull(table: SlotTable, where: Tensor) -> None:
    move(table, where, Stage.CULLED)
    table.clear(where)


def stage_changes(old: SlotTable, new: SlotTable, refused: Tensor | None = None) -> Transitions:
    """Where the stages of two tables differ; `refused [N, S]` (bool) marks seeds culled for their next alpha."""
    host, slot = (old.stage != new.stage).nonzero(as_tuple=True)
    columns = (old.stage, new.stage, old.epochs_in_stage, torch.zeros_like(old.healthy) if refused is None else refused)
    return Transitions(host, slot, *(column[host, slot] for column in columns))


def _explain(table: SlotTable, actions: Tensor, host: int) -> str:
    slot, blueprint, blend, op = actions[host].tolist()
    name = Op(op).name if 0 <= op < len(Op) else f"op {op}"
    stages = ", ".join(Stage(code).name for code in table.stage[host].tolist())
    return (
        f"{name} (slot {slot}, blueprint {blueprint}, blend {blend}) is not legal for host {host}, "
        f"whose slots are {stages}; the action masks list what is"
    )

"""The grower: adds capacity where it pays, to your own model in your own training loop."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from esper.api.growing.decision import (
    Account,
    Budget,
    Decision,
    Pricing,
    Verdict,
    apply_verdicts,
    judge,
    tell_moves,
    tell_site,
)
from esper.api.growing.evaluation import (
    Evaluator,
    Measure,
    Reading,
    make_scale,
    mean_over_ranks,
    number,
    of_first_rank,
    tend_seeds,
)
from esper.api.growing.exporting import check_target, export
from esper.api.growing.files import GoodEpoch, check_growth, read_growth, write_growth
from esper.api.growing.guard import Guard
from esper.api.growing.seed_rate import SeedRate, checked_seed_lr_scale
from esper.api.growing.setup import (
    checked_controller,
    chosen_sites,
    common_seed,
    is_rule,
    limits_of,
    may_plant,
    number_of_steps,
    to_measure,
    unwrap_model,
)
from esper.api.growing.watch import Lookout, OptimizerWatch, Watched
from esper.kasmina import Sources, catalogue_names, check_actions, graft, next_alpha, stage_changes
from esper.leyline import DEFAULT_EPISODE_LENGTH, DEFAULT_PRICE, InputError, Op, Stage, TrainingFailedError, first_line
from esper.nissa import Hub
from esper.tamiyo import Controller
from esper.tolaria import SignalTable, Situation, TrackerSettings, track
from esper.tolaria.reporting import EpisodeReporter

MAX_FAILURES = 3
"""Failed epochs in a row after which training is given up."""
_OPEN_END = 5
"""If the number of epochs is unknown, this many times as many as were seen are expected."""


class Grower:
    """Grows `model` while you train it. Call `step` after every epoch and `export` at the end.

    | argument | meaning |
    |---|---|
    | at | names of the submodules behind which the model may grow, a mapping from name to family, or "auto" |
    | example | one batch: a tensor, a sequence of positional or a mapping of keyword arguments; batch axis first |
    | optimizer | the model's optimiser; seeds join the parameter groups of their neighbours |
    | evaluate | a function of the model, or without arguments, that returns its score on held-out data |
    | controller | heuristic, schedule, random, never; a file or folder of `esper train`; or a `Controller` |
    | budget | the most that growth may add; without one, rent alone keeps it in check |
    | measure | "score", the default, if evaluate returns a quality in [0, 1]; "loss" if it returns a loss above 0 |
    | higher_is_better | instead of measure, if evaluate returns any other metric: its direction |
    | epochs | how often `step` will be called; without it, seeds may be germinated at any time |
    | price | cost of doubling the model's parameters, in units of score |
    | flop_price | cost of doubling its FLOPs per sample, in addition |
    | seed_lr_scale | learning rate of seeds relative to that of their neighbours |
    | schedulers | learning-rate schedulers, to be saved and rolled back with the model |
    | sources | overrides which tensors bypasses read, as in `{"blocks.2": {"far": "stem"}}`; see `graft` |
    | seed | random seed of the seeds' initial weights and of the controller; torch's own if not given |
    | hub | receives an event for every move, as in the episodes of `esper train` |

    Train `model`, which is the given one with slots. `evaluate` runs in eval mode, once per step, once more without
    each blended seed on trial, and once more with each seed whose alpha is to rise at that alpha; for a controller that
    is not one of Esper's rules also without each seed that was kept. A controller that remembers things is saved if it
    has `state_dict` and `load_state_dict`. `proposal` tells what can grow where.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        example: Any,
        optimizer: Optimizer,
        evaluate: Callable[..., Any],
        at: Sequence[str] | Mapping[str, str] | str = "auto",
        controller: str | Controller = "heuristic",
        budget: Budget | None = None,
        measure: Measure | None = None,
        higher_is_better: bool | None = None,
        epochs: int | None = None,
        price: float = DEFAULT_PRICE,
        flop_price: float = 0.0,
        seed_lr_scale: float = 1.0,
        schedulers: Sequence[LRScheduler] = (),
        sources: Sources | None = None,
        seed: int | None = None,
        hub: Hub | None = None,
    ) -> None:
        host = unwrap_model(model)
        scale = make_scale(measure, higher_is_better)
        self._controller = checked_controller(controller)
        self._epochs = number_of_steps(epochs)
        self._schedulers = list(schedulers)
        self._example = example
        self._pricing = Pricing.of(host, example, price, flop_price)
        rate = checked_seed_lr_scale(seed_lr_scale)
        self._limits = limits_of(budget, self._pricing.host_params)
        self._device = next((p.device for p in host.parameters()), torch.device("cpu"))
        self._seed = common_seed(seed, self._device)
        where = chosen_sites(host, at, example, self._controller)
        generator, most = torch.Generator().manual_seed(self._seed), self._limits.params
        join: dict[str, Any] = {"optimizer": optimizer, "seed_groups": "joined"}
        self.grafted = graft(host, where, example, budget=most, generator=generator, sources=sources, **join)
        """The model with its slots, one layer below: lifecycle calls by hand, gradient clipping."""
        self._account = Account(self.grafted, self._pricing, self._limits)
        self._may_plant = may_plant(self._controller, self._limits, self.grafted)
        self.model: nn.Module = self.grafted if model is host else model
        """What to train: the given model with slots."""
        self._lookout = Lookout(self.grafted, example, self._seed, self._may_plant and not is_rule(self._controller))
        self._watch = OptimizerWatch(optimizer, self.grafted)
        self._seed_rate = SeedRate(optimizer, self.grafted, rate)
        self._evaluator = Evaluator(evaluate, self.grafted, model, scale, self._device)
        self._reporter = EpisodeReporter(hub or Hub(), self.grafted.sites, self._pricing.host_params)
        self.history: list[Decision] = []
        """Every decision since this grower was made or loaded."""
        self._begin()

    def _begin(self) -> None:
        """Measure the model before training: the baseline of growth, and what a first failed epoch rolls back to."""
        if not self._may_plant:
            self.grafted.growth.unhook(self.grafted.host)
        first = self._evaluator.first()
        self.grafted.score = torch.tensor([first.score])
        self._signals = SignalTable.empty(1)
        self._signals.score_history[:, -1] = first.score
        self._guard = Guard(self._evaluator.scale.kind, first.value, self.grafted, self._device)
        self._controller.reset(1, self._seed)
        self._good = self._present()
        self._lookout.open(0)

    @property
    def proposal(self) -> str:
        """The places where this model may grow, and what a seed could do in each: a line for every slot."""
        return "\n".join(map(tell_site, self.grafted.sites))

    @property
    def situation(self) -> Situation:
        """What the controller sees: the same record that it sees in Esper's own episodes."""
        epoch = int(self._signals.epoch)
        length = max(DEFAULT_EPISODE_LENGTH, _OPEN_END * epoch) if self._epochs is None else max(self._epochs, epoch)
        table, catalogue, pricing = self.grafted.table, self.grafted.catalogue, self._pricing
        # What cannot be decided in time is not planted.
        epochs_left = None if self._epochs is None else torch.tensor([self._epochs - epoch])
        return Situation(
            table,
            self._signals,
            self._limits.masks(table, catalogue, epochs_left),
            catalogue,
            self.grafted.sites,
            pricing.host_params,
            pricing.price,
            self.grafted.budget,
            length,
            pricing.host_flops,
            pricing.flop_price,
            self._lookout.of_free_slots(),
            self._lookout.input_correlation,
            math.nan if self._epochs is None else float(self._epochs),  # a step is taken as a pass over the data
        )

    @property
    def _at_rest(self) -> bool:
        """Nothing is planted and nothing will be, so there is nothing to advance or decide."""
        return not self._may_plant and bool((self.grafted.table.stage == Stage.DORMANT).all())

    def step(self, loss: float | Tensor | None = None) -> Decision:
        """Call after every epoch: measures, advances seeds, decides and acts; returns what it did and why.

        `loss`, the epoch's training loss, is optional; the governor checks it too. A failed epoch is rolled back:
        model, seeds and optimiser return to the last good one. The third in a row raises `TrainingFailedError`.
        """
        if self.grafted.growth.abandoned:
            raise InputError("another grower was made of this model since; use that one")
        self._lookout.close()
        self._seed_rate.join()
        self._watch.check()
        table = self.grafted.table
        asked = () if self._at_rest else (to_measure(self._controller, table), next_alpha(table))
        reading = self._evaluator.read(*asked)
        own_loss = None if loss is None else torch.tensor([number(loss, "step was given the loss")])
        train_loss = None if own_loss is None else float(mean_over_ranks(own_loss, self._device))
        failure = self._guard.judge(reading, train_loss, self.grafted)
        watched = self._watch.read()
        if failure is not None:
            decision = self._roll_back(failure, reading)
        else:
            moved = self._end_epoch(reading, watched, math.nan if train_loss is None else train_loss)
            # Before acting, so that a return to this epoch also takes back what came of the decision.
            self._good = self._present()
            decision = replace(self._act(reading), moved=moved)
        if not self._at_rest:
            self.grafted.begin_epoch()
        tend_seeds(self.grafted)
        self._guard.expect(self.grafted)
        self._lookout.open(int(self._signals.epoch))
        self.history.append(decision)
        return decision

    def _end_epoch(self, reading: Reading, watched: Watched, train_loss: float) -> tuple[str, ...]:
        self._evaluator.scale.keep(reading.value)
        val_loss = reading.value if self._evaluator.scale.kind == "loss" else train_loss
        self._signals = track(
            self._signals,
            TrackerSettings(),
            train_loss=torch.tensor([train_loss]),
            train_score=torch.tensor([math.nan]),
            val_loss=torch.tensor([val_loss]),
            val_score=torch.tensor([reading.score]),
            host_grad_norm=watched.host_gradient,
        )
        if self._at_rest:
            self.grafted.score = torch.tensor([reading.score])
            return ()
        self._lookout.look()
        before = self.grafted.table
        moves = self.grafted.end_epoch(
            score=reading.score,
            loss=0.0 if math.isnan(train_loss) else train_loss,
            contributions=reading.contributions,
            seed_gradients=watched.seed_gradients,
            trials=reading.trials,
        )
        after = self.grafted.table
        self._reporter.moved(before, after, moves, self._signals.epoch)
        self._reporter.held(before, after, reading.trials, self._signals.epoch)
        return tell_moves(self.grafted.sites, before, after, moves, reading.trials)

    def _act(self, reading: Reading) -> Decision:
        if self._at_rest:
            return self._told(Op.WAIT, reading)
        situation = self.situation
        actions = of_first_rank(self._controller.decide(situation), self._device)
        check_actions(situation.table, actions, situation.masks)
        before = situation.table
        moves = self.grafted.act(actions)
        self._reporter.moved(before, self.grafted.table, moves, self._signals.epoch + 1)
        return self._account.of_action(int(self._signals.epoch), actions[0], reading, before)

    def _told(self, op: Op, reading: Reading) -> Decision:
        return self._account.of_network(int(self._signals.epoch), op, reading)

    def _roll_back(self, failure: str, reading: Reading) -> Decision:
        self._restore(self._good)
        self._signals = replace(self._signals, epoch=self._signals.epoch + 1)
        self._reporter.rolled_back(0, failure, self._guard.failures)
        if self._guard.failures >= MAX_FAILURES:
            raise TrainingFailedError(
                f"{self._guard.failures} epochs in a row failed, the last because {failure}; the model is back at its "
                "last good epoch. Training fails by itself: try a lower learning rate or clip gradients"
            )
        return replace(self._told(Op.WAIT, reading), rolled_back=failure)

    def _present(self) -> GoodEpoch:
        self._seed_rate.join()
        return GoodEpoch.of(self.grafted, self._schedulers)

    def _restore(self, state: GoodEpoch) -> None:
        self._seed_rate.join()
        state.restore(self.grafted, self._schedulers)
        tend_seeds(self.grafted)

    def finish(self) -> list[Decision]:
        """Decide, at the end, about every seed that is still on trial: each is kept as it is blended now, or goes.

        A seed stays if the score falls by more than its rent without it. To be called after the last `step`; what it
        did is returned and joins `history`.
        """
        verdicts = self._judge_trials()
        if not verdicts:
            return []
        before = self.grafted.table
        self.grafted.follow(apply_verdicts(before, verdicts))
        moves = stage_changes(before, self.grafted.table)
        self._reporter.moved(before, self.grafted.table, moves, self._signals.epoch)
        reading = self._evaluator.read()
        self.grafted.score = torch.tensor([reading.score])
        epoch = int(self._signals.epoch)
        decisions = [self._account.of_verdict(epoch, verdict, reading, before) for verdict in verdicts]
        self.history += decisions
        self._good = self._present()
        return decisions

    def _judge_trials(self) -> list[Verdict]:
        self._lookout.close()
        self._seed_rate.join()
        grafted = self.grafted
        return judge(grafted, self._evaluator.read, self._pricing.owed(grafted.table, grafted.catalogue))

    def mirror(self, copied: nn.Module) -> None:
        """Let a copy of `model`, such as an `AveragedModel` of it, grow along; it can then be averaged as usual."""
        self.grafted.mirror(copied)

    def export(self, path: Path | str | None = None, *, overwrite: bool = False) -> nn.Module:
        """The model with the seeds that were kept, as a plain module: no slots, no hooks.

        Seeds still on trial are decided for the export as `finish` would, and a warning says how; the model itself
        stays as it is. With a path it is written too, so that nothing of Esper is needed to load it: `.pt2` as a
        `torch.export` program, `.onnx` (needs the extra `onnx`), or `.py`, the code that rebuilds it from the original
        model, with its weights beside it in a file `.pt`. A pickle of the module itself can only be loaded where Esper
        is installed. Files that exist are replaced only with `overwrite`.
        """
        if not self.history and not int(self._signals.epoch):
            raise InputError("grower.step() was never called, so nothing could grow; call it after every epoch")
        target = None if path is None else Path(path)
        check_target(target, overwrite)
        verdicts = self._judge_trials()
        if verdicts:
            told = "; ".join(map(self._account.tell_verdict, verdicts))
            warnings.warn(
                f"decided for this export, because still on trial: {told}. "
                "Call grower.finish() after the last step to decide this in the model itself",
                stacklevel=2,
            )
        return export(self.grafted, apply_verdicts(self.grafted.table, verdicts), self._example, target)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue, random state included, as tensors in plain containers.

        Take it between optimiser steps, also in the middle of an epoch.
        """
        remember = getattr(self._controller, "state_dict", dict)
        return {
            "sites": [site.path for site in self.grafted.sites],
            "catalogue": catalogue_names(site.shape.family for site in self.grafted.sites),
            "controller_name": self._controller.name,
            "controller": remember(),
            "present": self._present().state_dict(),
            "good": self._good.state_dict(),
            "signals": self._signals.columns(),
            "merit": self._lookout.merit.clone(),
            "guard": self._guard.state_dict(),
            "watch": self._watch.state_dict(),
            "measure": self._evaluator.scale.kind,
            "scale": self._evaluator.scale.state_dict(),
            "history": [decision.to_dict() for decision in self.history],
            "seeds": self.grafted.generator.get_state(),
            "random_state": torch.get_rng_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a grower of the same model, sites, optimiser, controller and schedulers.

        Also sets torch's random state on the CPU to what it was. A state that does not fit changes nothing.
        """
        before = self.state_dict()
        check_growth(state, before, self.grafted)
        try:
            self._apply(state)
        except Exception as error:
            self._apply(before)
            raise InputError(
                f"the saved growth cannot be used ({first_line(error)}); everything is as it was before"
            ) from error

    def _apply(self, state: Mapping[str, Any]) -> None:
        self._restore(GoodEpoch.from_state_dict(state["present"], len(self.grafted.sites)))
        self._good = GoodEpoch.from_state_dict(state["good"], len(self.grafted.sites))
        self._signals = SignalTable(**state["signals"]).clone()
        self._lookout.merit = state["merit"].clone()
        self._lookout.open(int(self._signals.epoch))
        self._guard.load_state_dict(state["guard"])
        self._watch.load_state_dict(state["watch"])
        self._evaluator.scale.load_state_dict(state["scale"])
        self.history = [Decision.from_dict(decision) for decision in state["history"]]
        self.grafted.generator.set_state(state["seeds"])
        if hasattr(self._controller, "load_state_dict"):
            self._controller.load_state_dict(state["controller"])
        torch.set_rng_state(state["random_state"])

    def save(self, path: Path | str) -> None:
        """Write the growth to a file, atomically: a kill while saving leaves the previous file."""
        write_growth(self.state_dict(), Path(path))

    def load(self, path: Path | str) -> None:
        """Continue the growth in a file; bit for bit on a CPU, if the loop draws its data by torch's generator."""
        self.load_state_dict(read_growth(Path(path)))

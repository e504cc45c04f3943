"""A population: N hosts of one shape that train side by side, each in an episode of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from esper.kasmina import (
    UNLIMITED,
    ActionMasks,
    EpochEvidence,
    SlotTable,
    Transitions,
    act,
    action_masks,
    begin_epoch,
    catalogue_names,
    check_actions,
    check_catalogue,
    drop_unfinished,
    end_epoch,
    find_blueprint,
    neighbour_correlation,
    next_alpha,
    plant_fossils,
    stage_changes,
)
from esper.kasmina.flops import count_flops
from esper.leyline import IllegalActionError, InputError, Op, unknown_name
from esper.nissa import Hub
from esper.tasks import Task
from esper.tolaria.executors import EpochResult, Executor, Measurement, make_executor
from esper.tolaria.executors.base import Streams
from esper.tolaria.governor import Governor, SignalTable, track
from esper.tolaria.records import EpisodeResult, EpisodeSettings, Kept, Outcome, Situation
from esper.tolaria.reporting import EpisodeReporter


class Population:
    """N hosts with their slots, signals, governor and random streams, advanced one epoch at a time.

    The same task, seed, settings and actions give a host the same episode, whatever runs beside it: bit for
    bit with the executor `loop`, to float tolerance with `stacked`. Everything that a host carries through an
    episode is here, and `state_dict` holds all of it.
    """

    def __init__(
        self,
        task: Task,
        num_hosts: int,
        settings: EpisodeSettings | None = None,
        *,
        executor: str = "auto",
        dtype: torch.dtype = torch.float32,
        hub: Hub | None = None,
    ) -> None:
        self.num_hosts = num_hosts
        self.settings = settings or EpisodeSettings()
        self.task = task = _adjusted(task, self.settings)
        self.length = self.settings.length or task.episode_length
        self.executor: Executor = make_executor(executor, task, num_hosts, self.length, dtype, self.settings.compute)
        self.host_params, self.host_flops = self.executor.host_params, _host_flops(task)
        train = task.splits().train
        self._input_correlation = neighbour_correlation(train.x, self.executor.sites)
        self._passes = self.length * task.batches_per_epoch * task.batch_size / len(train)
        self.table = SlotTable.empty(num_hosts, len(self.executor.sites))
        self.signals = SignalTable.empty(num_hosts)
        self.price = torch.zeros(num_hosts)
        budget = self.settings.budget
        self.budget = torch.full((num_hosts,), UNLIMITED if isinstance(budget, tuple) else budget)
        self.ended = torch.ones(num_hosts, dtype=torch.bool)
        """`[N]`: the episode is over, and the host waits for `start`."""
        self.merit = torch.full((num_hosts, *self.executor.catalogue.fits.shape), torch.nan)
        """`[N, S, B]`: as last measured, whatever was planted since."""
        self._governor = Governor(num_hosts, task.guess_loss, self.settings.governor)
        self._good_table = self.table
        self._final_score = torch.full((num_hosts,), torch.nan)
        self._reporter = EpisodeReporter(hub or Hub(), self.executor.sites, self.host_params)

    def start(
        self, seeds: Sequence[int], hosts: Sequence[int] | None = None, *, fossils: Mapping[str, str] | None = None
    ) -> None:
        """Begin new episodes, by default of all hosts.

        `fossils` (slot to blueprint) are seeds that are there from the start, for good: a network that is not grown,
        and is initialised as such.
        """
        places = list(range(self.num_hosts) if hosts is None else hosts)
        if len(seeds) != len(places):
            raise InputError(f"{len(places)} hosts need as many seeds; got {len(seeds)}")
        chosen = torch.zeros(self.num_hosts, dtype=torch.bool)
        chosen[places] = True
        # Fresh networks first, with what they have from the start.
        budgets = [self.settings.draw_budget(Streams.from_seed(seed).budget, self.host_params) for seed in seeds]
        planted = self._find_fossils(fossils or {}, min(budgets, default=UNLIMITED))
        self.executor.start(places, seeds)
        fresh = plant_fossils(SlotTable.empty(*self.table.shape), planted, self.executor.catalogue)
        # Seeds that come at alpha 0 are not silenced, as parts of an ordinary network are not.
        self._follow(replace(fresh, alpha=torch.zeros_like(fresh.alpha)).where(chosen, self.table))
        self._follow(fresh.where(chosen, self.table))
        # Then nothing of the episodes before is known any more.
        self.price[places] = torch.tensor(
            [self.settings.draw_price(Streams.from_seed(seed).price) for seed in seeds], dtype=torch.float32
        )
        self.budget[places] = torch.tensor(budgets)
        self._governor.start(chosen)
        self.ended = self.ended & ~chosen
        self._final_score = self._final_score.masked_fill(chosen, torch.nan)
        self.merit = self.merit.masked_fill(chosen[:, None, None], torch.nan)
        empty = SignalTable.empty(self.num_hosts)
        empty.score_history[:, -1] = self.executor.measure(self.task.splits().val).score
        self.signals = empty.where(chosen, self.signals)
        # Last, because what is remembered now is what a panic in the first epoch returns to.
        self._remember(chosen)
        self._reporter.started(self.task.name, dict(zip(places, seeds, strict=True)))

    @property
    def situation(self) -> Situation:
        """What the controller sees now."""
        return Situation(
            self.table,
            self.signals,
            self._masks(),
            self.executor.catalogue,
            self.executor.sites,
            self.host_params,
            self.price,
            self.budget,
            self.length,
            self.host_flops,
            self.settings.flop_price,
            self.merit.masked_fill(self.table.occupied[..., None], torch.nan),
            self._input_correlation,
            self._passes,
        )

    def _masks(self) -> ActionMasks:
        masks = action_masks(self.table, self.executor.catalogue, self.budget)
        return masks.without(Op.GERMINATE, ~self.signals.stable) if self.settings.germinate_when_stable else masks

    @property
    def done(self) -> bool:
        """Whether all episodes are over."""
        return bool(self.ended.all())

    def step(self, actions: Tensor) -> Outcome:
        """Act (`actions [N, 4]`), train one epoch, measure, move seeds on, and let the governor judge.

        An illegal action raises before anything changes. Hosts whose episodes are over wait, whatever is asked.
        """
        if self.done:
            raise InputError("this episode is over; start another")
        before = self.situation
        running = ~self.ended
        # An epoch: all hosts train, those too whose episodes are over; these are put back by the governor.
        self._act(torch.where(running[:, None], actions, 0))
        result = self.executor.train_epoch()
        # Each alpha that is to rise is tried in advance.
        val, trials = self.task.splits().val, next_alpha(self.table)
        measured = self.executor.measure(val, what_if=self.settings.what_if, trials=trials)
        self._end_epoch(result, measured)
        panicked = self._govern(result, measured, running)
        # Who has come to an end, and what everybody knows now.
        terminated = running & self._governor.exhausted
        truncated = running & ~terminated & (self.signals.epoch >= self.length)
        self._measure_merit(running & ~panicked & ~terminated & ~truncated)
        final_loss = self._commit(terminated | truncated)
        return Outcome(
            before,
            actions,
            self.situation,
            panicked,
            terminated,
            truncated,
            self._final_score.where(terminated | truncated, torch.nan),
            final_loss,
            self.table.added_params,
            self._added_flops(),
        )

    def _added_flops(self) -> Tensor:
        return self.executor.catalogue.planted_flops(self.table).sum(1)

    def _act(self, actions: Tensor) -> None:
        if self.settings.germinate_when_stable:  # which the lifecycle, that checks all else, knows nothing of
            check_actions(self.table, actions, self._masks())
        self._change(*act(self.table, actions, self.executor.catalogue, self.budget, self.situation.score))
        self._change(*begin_epoch(self.table))
        self._follow(self.table)

    def _measure_merit(self, hosts: Tensor) -> None:
        """Look again where `hosts [N]` (bool) could plant something, after 1, 2, 4, 8, … epochs."""
        if not self.settings.merit:
            return
        epoch = self.signals.epoch
        affordable = action_masks(self.table, self.executor.catalogue, self.budget).blueprint
        plantable = (affordable & ~self.table.occupied[..., None]).any(2).any(1)
        due = hosts & plantable & (epoch & (epoch - 1) == 0)
        if due.any():
            measured = self.executor.measure_merit(due).to(self.merit)
            self.merit = torch.where(due[:, None, None], measured, self.merit)

    def _end_epoch(self, result: EpochResult, measured: Measurement) -> None:
        before = self.table
        finite, gradients = result.loss.isfinite(), result.seed_grad_norms
        evidence = EpochEvidence(measured.score, finite, gradients, measured.contributions, measured.trials)
        self._change(*end_epoch(before, evidence))
        self._reporter.held(before, self.table, measured.trials, self.signals.epoch + 1)

    def _change(self, table: SlotTable, transitions: Transitions) -> None:
        """Take over a table and tell what changed; networks follow when they are needed."""
        self._reporter.moved(self.table, table, transitions, self.signals.epoch + 1)
        self.table = table

    def _follow(self, table: SlotTable) -> None:
        self.table = table
        self.executor.follow(table)

    def _remember(self, hosts: Tensor) -> None:
        self._good_table = self.table.where(hosts, self._good_table)
        self.executor.remember(hosts)

    def _govern(self, result: EpochResult, measured: Measurement, running: Tensor) -> Tensor:
        """Let the governor judge the epoch: take it into the signals, or undo it. Returns who panicked, `[N]`.

        Hosts whose episodes are over are put back too: what they ended with does not depend on their neighbours.
        """
        before, judged = self.signals, self.table
        panicked = self._governor.judge(result.loss, measured.loss, running)
        self.executor.follow(judged)
        tracked = track(
            before,
            self.settings.tracker,
            train_loss=result.loss,
            train_score=result.score,
            val_loss=measured.loss,
            val_score=measured.score,
            host_grad_norm=result.host_grad_norm,
        )
        # A rolled-back epoch is spent; what was known before it still holds.
        spent = replace(before, epoch=before.epoch + 1)
        self.signals = before.where(~running, spent.where(panicked, tracked))
        # Networks and tables of failed epochs go back to the last good one.
        undone = panicked | ~running
        if undone.any():
            self.table = self._good_table.where(undone, judged)
            self.executor.restore(undone, self.table)
            for host in panicked.nonzero().flatten().tolist():
                reason = self._governor.explain(float(result.loss[host]), float(measured.loss[host]), host)
                self._reporter.rolled_back(host, reason, int(self._governor.panics[host]))
            changes = stage_changes(judged, self.table)
            self._reporter.moved(judged, self.table, changes, self.signals.epoch, rolled_back=True)
        self._remember(~undone)
        self._reporter.epoch(self.table, self.signals.epoch, result, measured, running, panicked)
        return panicked

    def _commit(self, hosts: Tensor) -> Tensor:
        """End the episodes of `hosts [N]` (bool): drop what was not kept for good and measure what remains.

        Returns their validation losses `[N]`, NaN for the others.
        """
        if not hosts.any():
            return torch.full_like(self._final_score, torch.nan)
        self._follow(drop_unfinished(self.table, hosts))
        measured = self.executor.measure(self.task.splits().val)
        self._final_score = torch.where(hosts, measured.score, self._final_score)
        self.ended = self.ended | hosts
        self._remember(hosts)
        return torch.where(hosts, measured.loss, torch.nan)

    def results(self, *, test: bool = True) -> list[EpisodeResult]:
        """What the episodes ended with; all have to be over.

        Without `test` that split is not read, and scores on it are NaN.
        """
        if not self.done:
            raise InputError("results are known once every episode is over")
        splits = self.task.splits()
        held_out_score = self.executor.measure(splits.test).score if test else torch.full_like(self.price, torch.nan)
        columns = (self._final_score, held_out_score, self.table.added_params, self._added_flops())
        results = []
        for host, (val, held_out, added, flops) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            self._reporter.ended(host, val, held_out, added)
            result = EpisodeResult(
                val_score=val,
                test_score=held_out,
                host_params=self.host_params,
                added_params=added,
                price=float(self.price[host]),
                kept=self._kept(host),
                panics=int(self._governor.panics[host]),
                host_flops=self.host_flops,
                added_flops=flops,
                flop_price=self.settings.flop_price,
            )
            results.append(result)
        return results

    def _kept(self, host: int) -> tuple[Kept, ...]:
        columns = self.table.blueprint[host].tolist(), self.table.params[host].tolist()
        return tuple(
            Kept(site.path, site.slot_id, find_blueprint(site.shape.family, blueprint).name, params)
            for site, blueprint, params in zip(self.executor.sites, *columns, strict=True)
            if blueprint
        )

    def _find_fossils(self, fossils: Mapping[str, str], budget: int) -> dict[int, int]:
        """Slot indices and blueprint ids of names, affordable together."""
        by_name = {name: index for index, site in enumerate(self.executor.sites) for name in (site.slot_id, site.path)}
        planted, catalogue = {}, self.executor.catalogue
        for slot, name in fossils.items():
            if slot not in by_name:
                raise unknown_name("slot", slot, (site.slot_id for site in self.executor.sites))
            site = self.executor.sites[by_name[slot]]
            blueprint = find_blueprint(site.shape.family, name)
            if not catalogue.fits[by_name[slot], blueprint.id - 1]:
                raise IllegalActionError(f"{name!r} does not fit behind {site.path!r}")
            planted[by_name[slot]] = blueprint.id
        # All together have to be within the budget, as if they had been planted one after the other.
        needed = sum(int(catalogue.params[slot, blueprint - 1]) for slot, blueprint in planted.items())
        if needed > budget:
            raise IllegalActionError(
                f"the seeds to start with add {needed:,} parameters; {budget:,} of the budget are left"
            )
        return planted

    def _catalogue_names(self) -> dict[str, list[str]]:
        return catalogue_names(site.shape.family for site in self.executor.sites)

    def state_dict(self) -> dict[str, Any]:
        """Everything that going on in the middle of an episode needs, as tensors in plain containers."""
        return {
            "catalogue": self._catalogue_names(),
            "table": self.table.columns(),
            "signals": self.signals.columns(),
            "price": self.price.clone(),
            "budget": self.budget.clone(),
            "ended": self.ended.clone(),
            "final_score": self._final_score.clone(),
            "merit": self.merit.clone(),
            "governor": self._governor.state_dict(),
            "executor": self.executor.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state of a population of the same task, size, settings, executor and blueprints."""
        again = "start the episodes anew with the present blueprints"
        check_catalogue(state.get("catalogue"), self._catalogue_names(), "the saved population", again)
        if state["price"].shape != self.price.shape:
            raise InputError(f"the saved population has {len(state['price'])} hosts; this one has {self.num_hosts}")
        self.table = SlotTable(**state["table"]).clone()
        self.signals = SignalTable(**state["signals"]).clone()
        self.price, self.budget = state["price"].clone(), state["budget"].clone()
        self.ended = state["ended"].clone()
        self._final_score, self.merit = state["final_score"].clone(), state["merit"].clone()
        self._governor.load_state_dict(state["governor"])
        self.executor.load_state_dict(state["executor"], self.table)
        self._good_table = self.table


def _host_flops(task: Task) -> int:
    """FLOPs of one sample through a host of `task`, counted without running one, as those of seeds are."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        host = task.build_host()
    return count_flops(host.eval(), task.splits().val.x[:1].to("meta"))


def _adjusted(task: Task, settings: EpisodeSettings) -> Task:
    """`task` with the minibatches and the learning rates that `settings` ask for."""
    if settings.batch_size is not None and settings.batch_size > (samples := len(task.splits().train)):
        raise InputError(
            f"batch_size must be at most the {samples} training samples of {task.name}; got {settings.batch_size}"
        )
    rates = {"lr": settings.host_lr, "seed_lr_scale": settings.seed_lr_scale}
    sizes = {"batch_size": settings.batch_size, "batches_per_epoch": settings.batches_per_epoch}
    return replace(task, optimizer=replace(task.optimizer, **_given(rates)), **_given(sizes))


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}

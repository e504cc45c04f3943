"""The distilled rule: what it plants where, what it leaves out, and what it keeps."""

from collections.abc import Sequence

import pytest
import torch

from esper.kasmina import find_blueprint
from esper.leyline import Blend, InputError, Op
from esper.tamiyo import Rule, RulePlanting, RuleSettings
from esper.tolaria import EpisodeSettings, Population
from tests.worlds import host_task

NORM_FIRST = RulePlanting("norm", 0.0, 100.0)
FAR_LAST = RulePlanting("far_wide", 1.0, 100.0)


def played(
    host: str, lines: Sequence[RulePlanting], price: float = 0.03, length: int = 10, **settings: float
) -> Population:
    """An episode in which the rule has only these lines, whatever the host."""
    hosts = Population(host_task(host), 2, EpisodeSettings(length=10, price=price, merit=False), executor="loop")
    hosts.start([0, 1])
    rule = Rule(RuleSettings(tuple(lines), tuple(lines), **settings))  # type: ignore[arg-type]
    rule.reset(2, 0)
    while not hosts.done:
        actions = rule.decide(hosts.situation)
        assert hosts.situation.masks.allow(actions).all()
        hosts.step(actions)
    return hosts


def kept(hosts: Population) -> list[tuple[str, str]]:
    return [(seed.slot_id, seed.blueprint) for seed in hosts.results(test=False)[0].kept]


@pytest.mark.parametrize("host", ["mlp", "conv1d"])
def test_lines_are_planted_where_they_say_and_kept(host: str) -> None:
    slots = len(host_task(host).build_host().slot_sites)
    assert kept(played(host, [NORM_FIRST, FAR_LAST])) == [("r0c0", "norm"), (f"r0c{slots - 1}", "far_wide")]


def test_a_place_that_is_taken_gives_way_to_the_nearest_one() -> None:
    assert kept(played("conv1d", [NORM_FIRST, NORM_FIRST])) == [("r0c0", "norm"), ("r0c1", "norm")]


def test_what_costs_more_than_its_line_allows_is_left_out_and_the_next_line_follows() -> None:
    dear = RulePlanting("far_wide", 1.0, 0.01)
    assert kept(played("conv1d", [dear, NORM_FIRST])) == [("r0c0", "norm")]
    assert kept(played("conv1d", [dear, NORM_FIRST], price=1e-6))[-1][1] == "far_wide"


def test_a_kind_that_a_family_lacks_is_left_out() -> None:
    assert kept(played("mlp", [RulePlanting("mixing", 0.5, 100.0), NORM_FIRST])) == [("r0c0", "norm")]


def test_hosts_train_alone_for_as_long_as_it_says() -> None:
    for host, name in (("conv1d", "first_epoch"), ("mlp", "features_first_epoch")):
        for alone in (0, 3):
            task = host_task(host)
            hosts = Population(task, 1, EpisodeSettings(length=10, merit=False), executor="loop")
            hosts.start([0])
            rule = Rule(RuleSettings((NORM_FIRST,), (NORM_FIRST,), **{name: alone}))
            rule.reset(1, 0)
            ops = []
            for _ in range(alone + 1):
                ops.append(int(rule.decide(hosts.situation)[0, 3]))
                hosts.step(torch.zeros(1, 4, dtype=torch.int64))
            assert ops == [Op.WAIT] * alone + [Op.GERMINATE]


def test_nothing_is_planted_late_or_in_sequences_of_features() -> None:
    assert kept(played("conv1d", [NORM_FIRST], first_epoch=6)) == []
    assert kept(played("transformer", [NORM_FIRST])) == []


def test_it_goes_on_where_it_was() -> None:
    hosts = Population(host_task("conv1d"), 1, EpisodeSettings(length=10, merit=False), executor="loop")
    hosts.start([0])
    rule, other = Rule(RuleSettings((NORM_FIRST, FAR_LAST))), Rule(RuleSettings((NORM_FIRST, FAR_LAST)))
    rule.reset(1, 0)
    hosts.step(rule.decide(hosts.situation))
    other.reset(1, 0)
    other.load_state_dict(rule.state_dict())
    expected = rule.decide(hosts.situation)
    kind = find_blueprint(hosts.situation.sites[-1].shape.family, "far_wide").id - 1
    assert expected[0, 1:].tolist() == [kind, Blend.INSTANT, Op.GERMINATE]
    assert torch.equal(other.decide(hosts.situation), expected)


def test_a_depth_beyond_the_network_is_refused() -> None:
    with pytest.raises(InputError, match="depth must be from 0"):
        RuleSettings(maps=(RulePlanting("norm", 1.5, 1.0),))

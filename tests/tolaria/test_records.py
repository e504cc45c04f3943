"""Settings that are refused, and results that add up."""

import math
from typing import Any

import pytest

from esper.kasmina.flops import count_flops
from esper.leyline import InputError
from esper.tamiyo import Planting, Schedule, run_episode
from esper.tolaria import EpisodeSettings
from tests.worlds import tiny_task


@pytest.mark.parametrize(
    "settings",
    [
        {"length": 0},
        {"price": -1.0},
        {"price": math.nan},
        {"budget": -5},
        {"budget": (2.0, 1.0)},
        {"batches_per_epoch": 0},
        {"host_lr": 0.0},
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        EpisodeSettings(**settings)


def test_the_objective_can_be_recomputed_from_the_report_with_both_prices() -> None:
    keep_two = Schedule([Planting(1, 0, 3), Planting(2, 1, 1)])
    results = {
        flop_price: run_episode(tiny_task(), keep_two, 1, EpisodeSettings(flop_price=flop_price))
        for flop_price in (0.0, 0.2)
    }
    free, priced = results[0.0], results[0.2]
    assert priced.added_flops > 0
    host = tiny_task().build_host()
    assert priced.host_flops == count_flops(host, tiny_task().splits().val.x[:1])
    assert free.test_objective == free.test_score - free.price * free.added_params / free.host_params
    rent = 0.03 * priced.added_params / priced.host_params + 0.2 * priced.added_flops / priced.host_flops
    assert priced.test_objective == pytest.approx(priced.test_score - rent)
    assert priced.val_objective == pytest.approx(priced.val_score - rent)
    assert (priced.test_score, priced.added_params) == (free.test_score, free.added_params)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, True, "much"])
def test_what_is_no_price_of_flops_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InputError, match="flop_price must be a number of 0 or more; got"):
        EpisodeSettings(flop_price=value)

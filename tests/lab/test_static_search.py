"""Random search over static networks: what is drawn, what is trained, what is chosen."""

from dataclasses import replace

import pytest

from esper.tamiyo import Never, run_episode
from esper.tasks import find_task
from esper.tolaria import EpisodeSettings
from esper_lab.static_search import best_of, draw_networks, train_networks
from tests.worlds import tiny_task


def test_networks_differ_are_always_the_same_and_stay_within_their_budget() -> None:
    task = find_task("mnist1d")
    networks = draw_networks(task, 12, most=0.5)
    assert networks == draw_networks(task, 12, most=0.5)
    assert all(network not in networks[:place] for place, network in enumerate(networks))
    assert networks != draw_networks(find_task("mnist1d-shuffled"), 12, most=0.5)
    assert {network.host_settings == task.host_settings for network in networks} == {True, False}
    assert {bool(network.fossils) for network in networks} == {True, False}
    size = sum(parameter.numel() for parameter in task.build_host().parameters())
    short = replace(task, batches_per_epoch=1)
    for (result,) in train_networks(short, networks, [0], EpisodeSettings(length=1)):
        assert result.host_params == size
        assert 0 <= result.added_params <= size / 2


def test_a_network_is_trained_as_it_would_be_alone_and_pays_for_its_width() -> None:
    task = tiny_task(episode_length=4)
    settings = EpisodeSettings(price=0.1)
    network = next(network for network in draw_networks(task, 30) if network.host_settings != task.host_settings)
    (results,) = train_networks(task, [network], [5, 6], settings)
    wide = replace(task, host_settings=network.host_settings)
    alone = run_episode(wide, Never(), 6, settings, fossils=dict(network.fossils))
    assert results[1].test_score == pytest.approx(alone.test_score)
    assert results[1].host_params + results[1].added_params == alone.host_params + alone.added_params
    assert results[1].test_objective < alone.test_objective or not alone.added_params


def test_the_best_on_validation_is_chosen_in_each_group_and_for_each_seed() -> None:
    (result,) = train_networks(tiny_task(episode_length=1), draw_networks(tiny_task(), 1), [0], EpisodeSettings())[0]
    scores = [[0.1, 0.9], [0.2, 0.1], [0.7, 0.3], [0.4, 0.8]]
    trained = [[replace(result, val_score=score, added_params=0) for score in row] for row in scores]
    chosen = best_of(trained, 2)
    assert [[choice.val_score for choice in choices] for choices in chosen] == [[0.2, 0.7], [0.9, 0.8]]
    assert [len(choices) for choices in best_of(trained, 1)] == [4, 4]

"""The signal tracker on scripted series."""

import pytest
import torch

from esper.tolaria import SignalTable, TrackerSettings, track


def run(scores: list[float], losses: list[float], **settings: float) -> SignalTable:
    table = SignalTable.empty(1)
    for score, loss in zip(scores, losses, strict=True):
        table = track(
            table,
            TrackerSettings(**settings),  # type: ignore[arg-type]
            train_loss=torch.tensor([loss + 0.1]),
            train_score=torch.tensor([score]),
            val_loss=torch.tensor([loss]),
            val_score=torch.tensor([score]),
            host_grad_norm=torch.tensor([0.7]),
        )
    return table


def test_before_the_first_epoch_nothing_is_known() -> None:
    table = SignalTable.empty(2)
    assert table.epoch.tolist() == [0, 0]
    assert table.val_score.isnan().all()
    assert not table.stable.any()


def test_deltas_histories_and_best_values() -> None:
    table = run([0.1, 0.3, 0.2], [2.0, 1.0, 1.5])
    assert int(table.epoch) == 3
    assert float(table.score_delta) == pytest.approx(-0.1)
    assert float(table.loss_delta) == pytest.approx(0.5)
    assert float(table.best_val_score) == pytest.approx(0.3)
    assert float(table.best_val_loss) == pytest.approx(1.0)
    assert table.score_history[0, :2].isnan().all()
    assert table.score_history[0, 2:].tolist() == pytest.approx([0.1, 0.3, 0.2])
    assert float(table.host_grad_norm) == pytest.approx(0.7)


def test_histories_hold_the_last_five() -> None:
    table = run([0.1 * i for i in range(8)], [1.0] * 8)
    assert table.score_history[0].tolist() == pytest.approx([0.3, 0.4, 0.5, 0.6, 0.7])


def test_a_plateau_counts_epochs_without_a_real_gain() -> None:
    assert int(run([0.50, 0.501, 0.502], [1.0] * 3, plateau_gain=0.005).plateau_epochs) == 2
    assert int(run([0.50, 0.501, 0.52], [1.0] * 3, plateau_gain=0.005).plateau_epochs) == 0


def test_the_latch_closes_after_stable_epochs_and_stays_closed() -> None:
    falling = [2.0, 1.5, 1.0]
    flat = [0.99, 0.99, 0.99]
    assert not run([0.5] * 5, falling + flat[:2]).stable
    assert run([0.5] * 6, falling + flat).stable
    assert run([0.5] * 8, falling + flat + [0.5, 0.2]).stable


def test_hosts_are_tracked_apart() -> None:
    table = SignalTable.empty(2)
    both = {"train_loss": torch.tensor([1.0, 2.0]), "train_score": torch.tensor([0.5, 0.1])}
    table = track(
        table,
        TrackerSettings(),
        **both,
        val_loss=torch.tensor([1.0, 2.0]),
        val_score=torch.tensor([0.5, 0.1]),
        host_grad_norm=torch.tensor([0.1, 0.2]),
    )
    assert table.val_score.tolist() == pytest.approx([0.5, 0.1])

"""Growing inside a Lightning trainer."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from esper.kasmina import take_snapshot
from esper.leyline import Blend, InputError, Op, Stage
from tests.api.growing.builders import LIFE, WAIT, Action, Script, assert_same, fossilize, germinate, make_data

FAR_WIDE = 6
BYPASS = [germinate(1, FAR_WIDE, Blend.INSTANT), *[WAIT] * 5, fossilize(1)]
"""A bypass that joins at once and is kept later."""

lightning: Any = pytest.importorskip("lightning.pytorch", reason="the extra lightning is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec.*"),
]


class Classifier(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.net(x)
        return result

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.95**epoch)]


def accuracy(module: Any) -> float:
    x, y = make_data(1)
    with torch.no_grad():
        return float((module(x).argmax(-1) == y).float().mean())


def make_callback(life: Sequence[Action] = LIFE) -> Any:
    from esper.api.growing.lightning import GrowthCallback

    settings: dict[str, Any] = {"at": ["net.1", "net.3"], "seed": 0, "controller": Script(life), "epochs": 9}
    return GrowthCallback(example=make_data()[0], evaluate=accuracy, **settings)


def make_trainer(folder: Path, epochs: int, callback: Any, **settings: Any) -> Any:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return lightning.Trainer(max_epochs=epochs, callbacks=[callback], default_root_dir=folder, **quiet, **settings)


def loader() -> Any:
    return DataLoader(TensorDataset(*make_data()), batch_size=8)


def test_a_module_grows_while_it_is_fitted(tmp_path: Path) -> None:
    module, callback = Classifier(), make_callback()
    with pytest.raises(InputError, match="there is no grower before"):
        _ = callback.grower
    trainer = make_trainer(tmp_path, 8, callback, enable_checkpointing=False)
    trainer.fit(module, loader())
    assert [decision.op for decision in callback.decisions] == [Op.GERMINATE, *[Op.WAIT] * 5, Op.FOSSILIZE, Op.WAIT]
    assert trainer.callback_metrics["growth/added_params"] == 304
    plain = callback.grower.export()
    x, _ = make_data()
    torch.testing.assert_close(plain(x), module(x), rtol=0, atol=1e-5)


def test_a_fit_goes_on_from_a_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    def fit(epochs: int, checkpoint: str | None = None) -> tuple[Any, Any]:
        lightning.seed_everything(3, verbose=False)
        module, callback = Classifier(), make_callback(BYPASS)
        trainer = make_trainer(tmp_path, epochs, callback, enable_checkpointing=False)
        trainer.fit(module, loader(), ckpt_path=checkpoint, weights_only=True)
        return trainer, callback

    _, expected = fit(9)
    trainer, half = fit(4)
    assert half.grower.grafted.slot("net.3").stage is Stage.HOLDING
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    _, resumed = fit(9, str(tmp_path / "half.ckpt"))
    assert resumed.grower.grafted.slot("net.3").stage is Stage.FOSSILIZED
    one, other = take_snapshot(resumed.grower.grafted), take_snapshot(expected.grower.grafted)
    assert_same(one.tensors, other.tensors)
    assert_same(one.groups[0].states, other.groups[0].states)


def test_two_optimizers_are_refused(tmp_path: Path) -> None:
    class Two(Classifier):
        automatic_optimization = False

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.net[index].parameters(), lr=0.1) for index in (0, 2)]

    with pytest.raises(InputError, match="one optimizer; this one has 2"):
        make_trainer(tmp_path, 1, make_callback(), enable_checkpointing=False).fit(Two(), loader())


def test_the_best_checkpoint_gives_back_the_network_that_was_measured(tmp_path: Path) -> None:
    class Remember(lightning.Callback):  # type: ignore[misc]
        """Saves an ordinary checkpoint in the middle of the growth, as ModelCheckpoint does for the best epoch."""

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 5:
                trainer.save_checkpoint(tmp_path / "best.ckpt")
                with torch.no_grad():
                    self.output = pl_module(make_data()[0])

    module, callback, remember = Classifier(), make_callback(), Remember()
    trainer = make_trainer(tmp_path, 9, callback, enable_checkpointing=False)
    trainer.callbacks.append(remember)
    trainer.fit(module, loader())
    best = torch.load(tmp_path / "best.ckpt", weights_only=True)["state_dict"]
    assert any(key.startswith("esper_seeds.net/1.mlp.") for key in best)
    module.load_state_dict(best)
    assert torch.equal(module(make_data()[0]), remember.output)
    assert callback.grower.grafted.slot("net.1").stage is Stage.HOLDING
    with pytest.raises(RuntimeError, match=r"grower\.export\(\).*Grower\.load"):
        Classifier.load_from_checkpoint(tmp_path / "best.ckpt", weights_only=True)

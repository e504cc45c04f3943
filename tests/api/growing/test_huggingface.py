"""Growing inside a Hugging Face trainer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from esper.kasmina import take_snapshot
from esper.leyline import InputError, Op, Stage
from tests.api.growing.builders import LIFE, Script, assert_same

transformers: Any = pytest.importorskip("transformers", reason="the extra huggingface is not installed")
pytest.importorskip("accelerate", reason="the extra huggingface is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")


def make_model() -> Any:
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
    )
    transformers.set_seed(0)
    return transformers.BertForSequenceClassification(config)


def tokens(count: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(20, (count, 6), generator=generator), torch.randint(3, (count,), generator=generator)


def accuracy(model: Any) -> float:
    x, y = tokens()
    model.eval()
    with torch.no_grad():
        return float((model(input_ids=x).logits.argmax(-1) == y).float().mean())


def make_trainer(folder: Path, epochs: int, **settings: Any) -> tuple[Any, Any]:
    from esper.api.growing.huggingface import GrowthCallback

    x, y = tokens()
    callback = GrowthCallback(
        example={"input_ids": x[:2]},
        evaluate=accuracy,
        at=["bert.encoder.layer.0", "bert.encoder.layer.1"],
        controller=Script(LIFE),
        seed=0,
        **settings,
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        lr_scheduler_type="constant_with_warmup",
        save_strategy="epoch",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
        logging_strategy="no",
    )
    rows = [{"input_ids": one, "labels": label} for one, label in zip(x, y, strict=True)]
    return transformers.Trainer(make_model(), arguments, train_dataset=rows, callbacks=[callback]), callback


def test_a_model_grows_while_it_is_trained(tmp_path: Path) -> None:
    trainer, callback = make_trainer(tmp_path, 8)
    with pytest.raises(InputError, match="there is no grower before"):
        _ = callback.grower
    trainer.train()
    assert [decision.op for decision in callback.decisions] == [Op.GERMINATE, *[Op.WAIT] * 5, Op.FOSSILIZE, Op.WAIT]
    assert any(
        "germinated mlp in bert.encoder.layer.0" in entry.get("growth", "") for entry in trainer.state.log_history
    )
    plain, x = callback.grower.export(), tokens()[0]
    trainer.model.eval()
    torch.testing.assert_close(plain.eval()(x).logits, trainer.model(x).logits, rtol=0, atol=1e-5)


def test_training_goes_on_from_a_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    trainer, expected = make_trainer(tmp_path / "one", 8)
    trainer.train()
    checkpoint = str(tmp_path / "one" / "checkpoint-8")  # after four epochs of two steps
    resumed, callback = make_trainer(tmp_path / "other", 8, resume_from=checkpoint)
    resumed.train(resume_from_checkpoint=checkpoint)
    assert callback.grower.grafted.slots[0].seed is not None
    assert callback.grower.grafted.slot("bert.encoder.layer.0").stage is Stage.FOSSILIZED
    one, other = take_snapshot(callback.grower.grafted), take_snapshot(expected.grower.grafted)
    assert_same(one.tensors, other.tensors)


def test_a_saved_model_holds_what_was_grown(tmp_path: Path) -> None:
    safetensors: Any = pytest.importorskip("safetensors.torch")
    trainer, _ = make_trainer(tmp_path / "run", 8)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    x = tokens()[0]
    trainer.model.eval()
    expected = trainer.model(x).logits
    state = safetensors.load_file(tmp_path / "saved" / "model.safetensors")
    assert any(key.startswith("esper_seeds.bert/encoder/layer/0.mlp.") for key in state)
    other, again = make_trainer(tmp_path / "other", 7)
    other.train()
    other.model.load_state_dict(state)
    other.model.eval()
    assert torch.equal(other.model(x).logits, expected)
    assert again.grower.grafted.slot("bert.encoder.layer.0").stage is Stage.FOSSILIZED
    with pytest.raises(RuntimeError, match=r"grower\.export\(\).*Grower\.load"):
        make_model().load_state_dict(state)

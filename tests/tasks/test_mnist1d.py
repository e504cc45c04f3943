"""MNIST-1D: generated once as its settings say, and kept."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import InputError
from esper.tasks import find_task
from esper.tasks.files import Arrays
from esper.tasks.mnist1d import canonical_settings, parse_settings, published


def test_shuffled_series_are_the_same_series_with_positions_permuted() -> None:
    plain, shuffled = find_task("mnist1d").splits().test, find_task("mnist1d-shuffled").splits().test
    assert torch.equal(plain.y, shuffled.y)
    assert not torch.equal(plain.x, shuffled.x)
    torch.testing.assert_close(plain.x.sort(1).values, shuffled.x.sort(1).values)


def test_generating_data_leaves_global_random_states_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path))
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    find_task("mnist1d").load()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]  # noqa: NPY002
    assert find_task("mnist1d").data() == "generated, here"


def _kept_arrays(**changes: Any) -> Arrays:
    x = np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32)
    y = np.arange(50) % 10
    return {"x": x, "y": y, "x_test": x[:20], "y_test": y[:20], **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"x": np.full((50, 40), np.nan, np.float32)},
        {"x_test": np.full((20, 40), np.inf, np.float32)},
        {"x": np.zeros((50, 40))},
        {"x": np.zeros((50, 3), np.float32), "x_test": np.zeros((20, 3), np.float32)},
        {"x_test": np.zeros((20, 39), np.float32)},
        {"y": np.full(50, 10)},
        {"y": np.full(50, -1)},
        {"y": np.zeros(49, np.int64)},
        {"y": np.zeros(50, np.float32)},
        {"x": np.zeros((0, 40), np.float32), "y": np.zeros(0, np.int64)},
        {"x": np.array(None)},
    ],
)
def test_kept_data_that_cannot_have_been_made_is_made_again(
    changes: dict[str, Any], data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("esper.tasks.mnist1d._generate", lambda _: _kept_arrays())
    np.savez(data / "mnist1d.npz", **_kept_arrays(**changes))  # type: ignore[arg-type]
    assert len(find_task("mnist1d").load().test) == 20
    assert "mnist1d.npz cannot be read" in caplog.text
    caplog.clear()
    assert len(find_task("mnist1d").load().test) == 20
    assert caplog.text == ""


def test_a_kept_file_that_would_unpack_to_something_huge_is_not_read(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("esper.tasks.mnist1d._generate", lambda _: _kept_arrays())
    np.savez_compressed(data / "mnist1d.npz", **_kept_arrays())  # type: ignore[arg-type]
    find_task("mnist1d").load()
    assert "it is compressed" in caplog.text


_NOISE = st.floats(0, 10, allow_nan=False)
_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "num_samples": st.integers(100, 9999),
        "train_split": st.floats(0.3, 0.9),
        "padding": st.tuples(st.integers(0, 50), st.integers(50, 99)).map(list),
        "corr_noise_scale": _NOISE,
        "iid_noise_scale": _NOISE,
        "shear_scale": _NOISE,
        "shuffle_seq": st.booleans(),
        "final_seq_length": st.integers(8, 200),
        "seed": st.integers(0, 2**32 - 1),
    },
)


@given(_SETTINGS.filter(bool))
def test_canonical_names_parse_to_themselves(settings: dict[str, object]) -> None:
    parsed = parse_settings(canonical_settings(settings))  # type: ignore[arg-type]
    assert parsed == {key: value for key, value in settings.items() if value != published()[key]}
    if parsed:
        assert parse_settings(canonical_settings(parsed)) == parsed


def test_every_generator_argument_can_be_set() -> None:
    text = ",".join(f"{key}={value}" for key, value in published().items() if not isinstance(value, list))
    assert parse_settings(text + ",padding=36-60") == {}
    assert set(published()) >= {"corr_noise_scale", "final_seq_length", "seed", "shuffle_seq", "padding", "num_samples"}


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("mnist1d:seed=7, corr_noise_scale=0.50", "mnist1d:corr_noise_scale=0.5,seed=7"),
        ("mnist1d:seed=42", "mnist1d"),
        ("mnist1d:shuffle_seq=true", "mnist1d-shuffled"),
        ("mnist1d:padding=10-20,seed=42", "mnist1d:padding=10-20"),
    ],
)
def test_one_setting_has_one_name_and_one_task(name: str, canonical: str) -> None:
    task = find_task(name)
    assert task.name == canonical
    assert find_task(canonical) is task


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "noise=1",
        "url=x",
        "seed",
        "seed=",
        "seed=seven",
        "seed=1.5",
        "seed=-1",
        "seed=4294967296",
        "seed=1,seed=2",
        "corr_noise_scale=nan",
        "corr_noise_scale=-1",
        "shuffle_seq=1",
        "padding=36",
        "padding=60-36",
        "train_split=1",
        "num_samples=20,train_split=0.1",
        "final_seq_length=2",
        "max_translation=0",
    ],
)
def test_bad_settings_are_one_line_that_lists_the_keys(settings: str) -> None:
    with pytest.raises(
        InputError, match=r"keys and published values: num_samples=5000, .*padding=36-60.*, seed=42$"
    ) as e:
        find_task(f"mnist1d:{settings}")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("length", [8, 23, 64])
def test_series_of_another_length_fit_the_host_and_are_kept(length: int, data: Path) -> None:
    task = find_task(f"mnist1d:num_samples=100,final_seq_length={length}")
    assert task.data() == "generated at first use, 5 seconds"
    splits = task.load()
    assert [part.x.shape for part in (splits.train, splits.val, splits.test)] == [
        (64, length),
        (16, length),
        (20, length),
    ]
    assert task.build_host()(splits.val.x).shape == (16, task.classes)
    assert task.data() == "generated, here"
    assert torch.equal(task.load().train.x, splits.train.x)
    assert len(list(data.iterdir())) == 1


def test_the_mlp_has_the_same_data_and_reads_series_of_any_length() -> None:
    conv, mlp = find_task("mnist1d:num_samples=100"), find_task("mnist1d-mlp:num_samples=100")
    assert torch.equal(conv.splits().train.x, mlp.splits().train.x)
    assert mlp.name == "mnist1d-mlp:num_samples=100"
    longer = find_task("mnist1d-mlp:num_samples=100,final_seq_length=50")
    assert longer.build_host()(longer.splits().val.x).shape == (len(longer.splits().val), 10)
    assert find_task("mnist1d-mlp:shuffle_seq=true") is find_task("mnist1d-shuffled-mlp")
    assert find_task("mnist1d-mlp:seed=42") is find_task("mnist1d-mlp")

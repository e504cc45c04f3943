"""Sealed files of tensors: what was written comes back, anything else is refused in a sentence."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.leyline import DamagedFileError, InputError
from esper.nissa.state_files import pack_state, read_state


def read(path: Path) -> dict[str, Any]:
    return read_state(path, "growth file", "grower.save makes one")


@pytest.fixture(scope="module")
def packed() -> bytes:
    return pack_state({"weights": torch.arange(20.0), "name": "x"})


def test_a_sealed_file_is_one_that_torch_reads_as_well(tmp_path: Path, packed: bytes) -> None:
    (tmp_path / "state.pt").write_bytes(packed)
    for state in (read(tmp_path / "state.pt"), torch.load(tmp_path / "state.pt", weights_only=True)):
        assert state["name"] == "x"
        assert torch.equal(state["weights"], torch.arange(20.0))


def test_every_flipped_byte_is_found(tmp_path: Path, packed: bytes) -> None:
    path = tmp_path / "flipped.pt"
    for position in range(0, len(packed), 7):
        path.write_bytes(packed[:position] + bytes([packed[position] ^ 4]) + packed[position + 1 :])
        with pytest.raises(DamagedFileError, match=r"flipped\.pt .*grower\.save makes one"):
            read(path)


def test_every_cut_is_found(tmp_path: Path, packed: bytes) -> None:
    path = tmp_path / "cut.pt"
    for length in (0, 1, len(packed) // 2, len(packed) - 1):
        path.write_bytes(packed[:length])
        with pytest.raises(DamagedFileError, match="cut short or is no growth file"):
            read(path)


def test_foreign_files_folders_and_absent_ones_are_refused(tmp_path: Path) -> None:
    unsealed = io.BytesIO()
    torch.save({"weights": 1}, unsealed)
    (tmp_path / "foreign.pt").write_bytes(unsealed.getvalue())
    with pytest.raises(DamagedFileError, match="is no growth file"):
        read(tmp_path / "foreign.pt")
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\)"):
        read(tmp_path)
    with pytest.raises(InputError, match="there is no growth file at"):
        read(tmp_path / "absent.pt")


def test_a_sealed_pickle_of_a_class_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "class.pt").write_bytes(pack_state({"path": Path("x")}))
    with pytest.raises(DamagedFileError, match=r"is no growth file \(UnpicklingError\)"):
        read(tmp_path / "class.pt")


def test_a_device_without_an_end_is_not_read() -> None:
    with pytest.raises(InputError, match=r"/dev/zero is not a file, and so no growth file; grower.save makes one"):
        read(Path("/dev/zero"))

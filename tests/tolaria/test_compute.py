"""Where hosts compute."""

import logging

import pytest
import torch

from esper.leyline import InputError
from esper.tolaria.compute import find_device


def test_auto_falls_back_to_the_cpu_with_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with caplog.at_level(logging.INFO, logger="esper"):
        assert find_device("auto") == torch.device("cpu")
    assert [record.message for record in caplog.records] == ["there is no CUDA device: computing on the CPU"]


def test_a_device_that_was_named_is_never_exchanged_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert find_device("cuda") == torch.device("cuda:0")
    with pytest.raises(InputError, match=r"^unknown device 'cuda:1'; choose one of: cpu, cuda:0$"):
        find_device("cuda:1")

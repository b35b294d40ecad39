from __future__ import annotations

import pytest

from vitscope.processes import local_device


@pytest.mark.parametrize(("device", "expected"), [("cuda", "cuda:1"), ("cuda:0", "cuda:0"), ("cpu", "cpu")])
def test_each_process_of_a_machine_takes_a_gpu_of_its_own(monkeypatch, device, expected):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert local_device(device) == expected


def test_a_single_process_takes_the_first_gpu(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert local_device("cuda") == "cuda:0"

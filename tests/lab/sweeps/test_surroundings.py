"""What a process carries from one run to the next."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from drcl.lab.sweeps import surroundings


def test_what_a_run_changes_in_its_process_is_set_back(tmp_path, monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    begin_anew = surroundings.remember()
    before = torch.get_rng_state(), torch.get_num_threads(), Path.cwd()
    try:
        monkeypatch.delenv("KEPT")
        monkeypatch.setenv("LEFT_BEHIND", "1")
        monkeypatch.chdir(tmp_path)
        torch.manual_seed(3)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.use_deterministic_algorithms(True, warn_only=True)
    finally:
        begin_anew()
    assert os.environ["KEPT"] == "1"
    assert "LEFT_BEHIND" not in os.environ
    assert Path.cwd() == before[2]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert surroundings.resident() > 1 << 20

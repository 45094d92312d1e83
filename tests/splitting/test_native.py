"""Building the fused step: once, again if the file is damaged, and a fallback without a compiler."""

import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import drcl
from drcl.splitting import native

SRC = str(Path(drcl.__file__).parents[1])


def fresh_load(monkeypatch, folder, **environment):
    monkeypatch.setenv("DRCL_CACHE", str(folder))
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    return native.load.__wrapped__()


def works(library):
    return native.first_non_finite(library, [torch.ones(3), torch.tensor([1.0, math.nan])]) == 1


def test_builds_once_and_leaves_no_litter(monkeypatch, tmp_path):
    assert works(fresh_load(monkeypatch, tmp_path / "cache"))
    (built,) = (tmp_path / "cache").iterdir()
    written = built.stat().st_mtime_ns
    assert works(fresh_load(monkeypatch, tmp_path / "cache"))
    assert built.stat().st_mtime_ns == written


def test_a_damaged_build_is_made_again(monkeypatch, tmp_path):
    fresh_load(monkeypatch, tmp_path)
    (built,) = tmp_path.iterdir()
    broken = tmp_path / "other"
    broken.mkdir()
    (broken / built.name).write_bytes(built.read_bytes()[:100])
    assert works(fresh_load(monkeypatch, broken))


def test_a_cache_folder_that_cannot_be_written(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.write_text("in the way")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert works(fresh_load(monkeypatch, file / "cache"))
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("compiler", ["/nowhere/cc", "false", "cc --no-such-option"])
def test_a_compiler_that_does_not_compile(monkeypatch, tmp_path, compiler):
    with pytest.warns(UserWarning, match="fused step is not available.*Install a C compiler") as seen:
        assert fresh_load(monkeypatch, tmp_path, CC=compiler) is None
    assert len(seen) == 1
    assert list(tmp_path.iterdir()) == []


def test_cc_may_carry_options(monkeypatch, tmp_path):
    assert works(fresh_load(monkeypatch, tmp_path, CC="cc -O1"))


TRAIN = """
import sys, warnings, torch, drcl
torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
data = [(torch.randn(8, 4), torch.randint(3, (8,)))]
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    opt = drcl.DRCL(model.named_parameters(), lr=0.1, strength=0.1, backend=sys.argv[1],
                    splitting="douglas-rachford")
    for task in range(2):
        for _ in range(3):
            opt.zero_grad()
            torch.nn.functional.cross_entropy(model(data[0][0]), data[0][1]).backward()
            opt.step()
        opt.consolidate(model, data)
print(len([w for w in seen if "drcl" in str(w.message)]), model.weight.double().sum().item().hex())
"""


def train(backend, **environment):
    environment = {**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen([sys.executable, "-c", TRAIN, backend], env=environment, stdout=subprocess.PIPE, text=True)


def test_whole_processes(tmp_path):
    """Without a compiler there is one warning and the numbers are the same. Two processes may build at once."""
    runs = {
        "first": train("auto", DRCL_CACHE=str(tmp_path / "shared")),
        "second": train("auto", DRCL_CACHE=str(tmp_path / "shared")),
        "no path": train("auto", DRCL_CACHE=str(tmp_path / "none"), PATH="", CC=""),
    }
    told = {name: run.communicate(timeout=120)[0].split() for name, run in runs.items()}
    assert {name: int(words[0]) for name, words in told.items()} == {"first": 0, "second": 0, "no path": 1}
    assert len({words[1] for words in told.values()}) == 1
    assert len(list((tmp_path / "shared").iterdir())) == 1

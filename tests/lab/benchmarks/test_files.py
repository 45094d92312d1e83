"""Benchmarks in a file of the user's own."""

from __future__ import annotations

import numpy as np
import pytest

from drcl.lab import benchmarks
from drcl.lab.benchmarks import files
from drcl.lab.common.plugins import PluginError
from drcl.lab.runs.config import RunConfig
from drcl.lab.sweeps import sweep

TABLE = """
[{name}]
about = "my own images, two classes per task"
data = "npz"
options = {{ path = "images.npz" }}
builder = "class-split"
arguments = {{ classes_per_task = 2 }}
scenario = "task"
tasks = 2
classes = 2
model = {{ kind = "mlp", hidden = [8] }}
epochs = 1
batch = 4
lr = 0.1
momentum = 0.0
"""

pytestmark = pytest.mark.usefixtures("unregistered")


@pytest.fixture
def mine(tmp_path):
    """``mine.toml`` and the arrays it names, in one folder that is not the current one."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 5)
    images = rng.integers(0, 255, (20, 6, 6), dtype=np.uint8)
    arrays = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    np.savez(tmp_path / "images.npz", **arrays)
    file = tmp_path / "mine.toml"
    file.write_text(TABLE.format(name="my-images"))
    return file


def test_a_table_of_ones_own_is_a_benchmark_under_its_own_name(mine):
    name, plugin = files.load_one(str(mine))
    assert name == "my-images"
    config = RunConfig.make(name, "sgd", plugins=(plugin,))
    assert config.name == "my-images-sgd-seed0"
    stream = config.make_benchmark().stream()  # the data lie beside the file
    assert len(stream) == 2
    assert stream.shape == (1, 6, 6)
    assert "my-images" in benchmarks.names()


def test_a_run_remembers_the_file(mine, tmp_path):
    name, plugin = files.load_one(str(mine))
    config = RunConfig.make(name, "sgd", plugins=(plugin,))
    (tmp_path / "config.toml").write_text(config.to_toml())
    again = RunConfig.from_toml(tmp_path / "config.toml")
    assert again.plugins == (str(mine),)
    assert again.key() == config.key()


def test_one_of_several_is_chosen_by_a_colon(mine):
    mine.write_text(TABLE.format(name="my-first") + TABLE.format(name="my-second"))
    with pytest.raises(ValueError, match=r"holds several benchmarks: my-first, my-second; choose one"):
        files.load_one(str(mine))
    assert files.load_one(f"{mine}:my-second")[0] == "my-second"
    with pytest.raises(ValueError, match=r"has no benchmark 'my-secnd': did you mean 'my-second'"):
        files.load_one(f"{mine}:my-secnd")


def test_a_sweep_takes_files_that_lie_beside_it(mine):
    mine.write_text(TABLE.format(name="my-first") + TABLE.format(name="my-second"))
    path = mine.parent / "sweep.toml"
    path.write_text('benchmarks = ["mine.toml", "digits-split"]\nmethods = ["sgd"]\n[benchmark.my-second]\nlr = 0.5\n')
    configs = sweep.read(path)
    assert [config.benchmark for config in configs] == ["my-first", "my-second", "digits-split"]
    assert configs[1].make_benchmark().lr == 0.5
    assert all(config.plugins == (str(mine),) for config in configs)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ("epochs", "epoch"),
            r"mine\.toml: \[my-images\]: 'epoch' is not a setting .*: did you mean 'epochs'",
        ),
        (("lr = 0.1\n", ""), r"mine\.toml: \[my-images\] lacks lr; an example: drcl list benchmarks digits-split"),
        (("lr = 0.1", 'lr = "fast"'), r"mine\.toml: \[my-images\]: lr='fast': give a number"),
        (("tasks = 2", "tasks = 0"), r"mine\.toml: \[my-images\]: .*tasks=0: give a whole number"),
        (('"class-split"', '"clas-split"'), r"mine\.toml: \[my-images\]: .*builder='clas-split': choose one of"),
        (('"npz"', '"nptz"'), r"mine\.toml: \[my-images\]: .*path.*"),
        (("path =", "paht ="), r"mine\.toml: \[my-images\]: npz has no option 'paht'"),
        (("hidden =", "hiden ="), r"mine\.toml: \[my-images\]: .*model\.hiden: network 'mlp' has no option"),
        (("[my-images]", "[digits-split]"), r"mine\.toml: benchmark 'digits-split': drcl has one of that name"),
        (("[my-images]", ""), r"mine\.toml: about is outside of a table"),
        (("[my-images]", "[my-images"), r"mine\.toml: not valid TOML"),
    ],
)
def test_errors_name_the_file_and_the_key(mine, change, words):
    mine.write_text(mine.read_text().replace(*change))
    with pytest.raises(PluginError, match=words):
        files.load_one(str(mine))
    assert "my-images" not in benchmarks.BENCHMARKS.of(str(mine))


def test_an_empty_file_and_none_at_all(tmp_path):
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(PluginError, match=r"empty\.toml: it holds no benchmark"):
        files.load_one(str(tmp_path / "empty.toml"))
    with pytest.raises(PluginError, match=r"there is no such file"):
        files.load_one(str(tmp_path / "none.toml"))

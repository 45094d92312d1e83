"""Configs: where an option goes, what is refused and how, and that the file says the same as the object."""

from __future__ import annotations

import tomllib

import pytest

from drcl.lab import benchmarks, methods
from drcl.lab.common import fields as options
from drcl.lab.common.fields import OptionError
from drcl.lab.runs.config import RunConfig
from drcl.lab.training.settings import OPERATION, Training


def make(method: str = "drcl", benchmark: str = "digits-split", **given) -> RunConfig:
    return RunConfig.make(benchmark, method, 0, given)


def test_each_option_goes_to_its_owner():
    config = make(strength=3, lr="0.5", tasks="4", device="cpu", limit_per_class=7)
    assert config.method_options == {"strength": 3.0}
    assert config.benchmark_options == {"lr": 0.5, "tasks": 4, "limit_per_class": 7}
    assert config.training == {"device": "cpu"}
    assert type(config.method_options["strength"]) is float


def test_a_method_goes_first_and_a_prefix_decides():
    # momentum is an option of the method and of the benchmark
    assert make(momentum=0.5).method_options == {"momentum": 0.5}
    assert make(method="sgd", momentum=0.5).benchmark_options == {"momentum": 0.5}
    both = RunConfig.make("digits-split", "drcl", 0, {"benchmark.momentum": 0.1, "method.momentum": 0.2})
    assert (both.benchmark_options, both.method_options) == ({"momentum": 0.1}, {"momentum": 0.2})
    assert RunConfig.make("digits-split", "sgd", 0, {"training.threads": 2}).training == {"threads": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3.0), ("1e-3", 0.001), (".5", 0.5), ("inf", float("inf")), (2, 2.0)],
)
def test_numbers_from_text(text, value):
    assert make(strength=text).method_options["strength"] == value


def test_text_becomes_the_kind_the_option_wants():
    assert make(stable="none").method_options == {"stable": None}
    assert make(evaluate_unseen="true").training == {"evaluate_unseen": True}
    assert make(memory="0.5").method_options == {"memory": 0.5}
    assert make(memory="latest").method_options == {"memory": "latest"}
    assert make(epochs="3.0").benchmark_options == {"epochs": 3}
    assert make(model="{ kind = 'mlp', hidden = [8, 8] }").make_benchmark().model == {"kind": "mlp", "hidden": [8, 8]}
    nested = RunConfig.make("digits-split", "sgd", 0, {"model.hidden": "[5]", "model.dropout": "0.25"})
    assert nested.make_benchmark().model == {"kind": "mlp", "hidden": [5], "dropout": 0.25}
    assert RunConfig.make("digits-split", "sgd", 0, {"model": "cnn"}).make_benchmark().model == {"kind": "cnn"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"strenght": 3}, r"'strenght' is not an option .*did you mean 'strength'\?"),
        ({"method.lr": 3}, r"'method.lr' is not an option of the method"),
        ({"training.epochs": 3}, r"not an option of the training"),
        ({"xyzzy": 1}, r"known are .*strength"),
        ({"strength": "strong"}, r"strength='strong': give a number"),
        ({"epochs": "2.5"}, r"epochs='2.5': give a whole number"),
        ({"epochs": True}, r"epochs=True: give a whole number"),
        ({"prox": "l3"}, r"prox='l3': give one of l1, l2"),
        ({"memory": "some"}, r"memory='some': give one of sum, latest or a number"),
        ({"deterministic": "maybe"}, r"give true or false"),
        ({"model": 3}, r"model=3: give text or a table"),
        ({"epochs.more": 3}, r"epochs is a single value"),
        ({"strength": -1}, r"strength=-1.0 must be a number >= 0"),
        ({"lr": 0}, r"lr=0.0: give a learning rate above 0"),
        ({"threads": 0}, r"threads=0: give a whole number of at least 1"),
        ({"clip": -1.0}, r"clip=-1.0"),
    ],
)
def test_refused_with_what_is_allowed(given, message):
    with pytest.raises(ValueError, match=message):
        RunConfig.make("digits-split", "drcl", 0, given)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'digits-permuted'"):
        RunConfig.make("permuted-digits", "sgd")
    with pytest.raises(ValueError, match="did you mean 'joint'"):
        RunConfig.make("digits-split", "joined")
    for seed in (-1, True, 1.5):
        with pytest.raises(OptionError, match="seed"):
            RunConfig("digits-split", "sgd", seed)


def test_the_name_tells_runs_apart_and_leaves_out_how_they_are_carried_out():
    assert RunConfig("digits-permuted", "drcl", 4).name == "digits-permuted-drcl-seed4"
    plain, other = make(), make(strength=3.0)
    assert other.name.startswith(plain.name + "-")
    assert make(strength="3").name == other.name
    assert make(strength=4.0).name != other.name
    usual = options.defaults(methods.get("drcl"))["strength"]
    assert make(strength=usual, epochs=20).name == plain.name
    assert make(threads=1, checkpoint_every=3).name == plain.name
    assert make(evaluate_unseen=True).name != plain.name


def test_the_resolved_config_says_everything(tmp_path):
    config = make(strength=2.0, limit_per_class=9)
    full = config.resolved()
    assert full.resolved() == full
    assert set(full.method_options) == set(options.hints(methods.get("drcl")))
    assert set(full.training) == set(options.hints(Training))
    assert full.benchmark_options["lr"] == benchmarks.get("digits-split").lr
    assert full.make_benchmark() == config.make_benchmark()
    assert full.key() == config.key()
    content = tomllib.loads(config.to_toml())
    assert content["method_options"]["strength"] == 2.0
    assert set(content["operation"]) <= set(OPERATION)
    assert not set(content["training"]) & set(OPERATION)


@pytest.mark.parametrize(
    ("benchmark", "method"),
    [(name, "sgd") for name in benchmarks.names()] + [("digits-split", name) for name in methods.names()],
)
def test_every_config_survives_its_file(benchmark, method, tmp_path):
    config = RunConfig(benchmark, method, 2)
    (tmp_path / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    again = RunConfig.from_toml(tmp_path / "config.toml")
    assert again.key() == config.key()
    assert again.resolved() == config.resolved()
    assert again.name == config.name == f"{benchmark}-{method}-seed2"


def test_a_file_by_hand(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('benchmark = "digits-split"\nmethod = "ewc"\n[method_options]\nlam = 5\n[operation]\nthreads = 1\n')
    config = RunConfig.from_toml(path)
    assert (config.seed, config.method_options, config.training) == (0, {"lam": 5.0}, {"threads": 1})
    for text, message in [
        ("benchmark = ", "not TOML"),
        ('method = "sgd"', "benchmark is missing"),
        ('benchmark = "digits-split"\nmethod = "sgd"\nsede = 3', "did you mean 'seed'"),
        ('benchmark = "digits-split"\nmethod = "sgd"\ntraining = 3', "training must be a table"),
        ('benchmark = "digits-split"\nmethod = "sgd"\n[method_options]\nlam = 3', "not an option of method 'sgd'"),
    ]:
        path.write_text(text)
        with pytest.raises(OptionError, match=message):
            RunConfig.from_toml(path)


def test_fewer_tasks_are_the_first_ones_and_more_are_new_ones():
    full, fewer, more = make("sgd"), make("sgd", tasks=2), make("sgd", "digits-permuted", tasks=11)
    assert fewer.stream_options()["tasks"] == 2
    first = full.make_benchmark().stream(0)
    some = fewer.make_benchmark().stream(0, **fewer.stream_options())
    assert [t.classes for t in some] == [t.classes for t in first[:2]]
    assert some.heads == first.heads
    assert len(more.make_benchmark().stream(0, **more.stream_options())) == 11


@pytest.mark.parametrize("order", [1, -1])
def test_a_network_by_its_kind_and_one_of_its_arguments(order):
    given = dict([("model", "alexnet-gpm"), ("model.width", "0.25")][::order])
    made = RunConfig.make("cifar100-10", "sgd", 0, given).make_benchmark()
    assert dict(made.model) == {"kind": "alexnet-gpm", "width": 0.25}


def test_none_where_it_is_not_the_default_survives_the_file(tmp_path):
    config = RunConfig.make("digits-permuted", "drcl-kronecker", 0, {"samples": "none", "rank": "none"})
    (tmp_path / "config.toml").write_text(config.to_toml())
    again = RunConfig.from_toml(tmp_path / "config.toml")
    assert again.key() == config.key()
    assert again.to_toml() == config.to_toml()
    method = again.make_method()
    assert (method.samples, method.rank, method.stable) == (None, None, None)
    assert "stable" not in config.to_toml()  # none by default: left out
    assert config.name != RunConfig.make("digits-permuted", "drcl-kronecker", 0).name


def test_plugins_are_kept_in_the_file_and_are_no_part_of_what_is_run(tmp_path, unregistered):
    code = "from drcl.lab import register\nfrom drcl.lab.methods.sgd import SGD\n"
    (tmp_path / "mine.py").write_text(code + "@register.method\nclass Mine(SGD):\n    name = 'mine'\n")
    by_hand = tmp_path / "by hand.toml"
    by_hand.write_text('plugins = ["mine.py"]\nbenchmark = "digits-split"\nmethod = "mine"\n')
    config = RunConfig.from_toml(by_hand)  # beside the file, wherever we are
    assert config.plugins == (str(tmp_path / "mine.py"),)
    assert config.name == "digits-split-mine-seed0"
    assert config.resolved().plugins == config.plugins
    (tmp_path / "config.toml").write_text(config.to_toml())
    again = RunConfig.from_toml(tmp_path / "config.toml")
    assert again.plugins == config.plugins
    assert again.key() == config.key() == RunConfig("digits-split", "mine").key()
    assert "plugins" not in RunConfig("digits-split", "mine").to_toml()
    for wrong in ('"mine.py"', "[3]", "3"):
        by_hand.write_text(f'plugins = {wrong}\nbenchmark = "digits-split"\nmethod = "mine"\n')
        with pytest.raises(OptionError, match=r"by hand.toml: plugins is .*; give a list of modules or files"):
            RunConfig.from_toml(by_hand)

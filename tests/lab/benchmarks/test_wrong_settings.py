"""Wrong options of networks and pixels are sentences, told before anything is written; replaced parts start anew."""

import pytest

from drcl.lab import benchmarks
from drcl.lab.runs.config import RunConfig


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model.foo": "3"}, r"model\.foo: network 'mlp' has no option 'foo': known are dropout, hidden, norm"),
        ({"model.hiden": "[3]"}, r"did you mean 'hidden'"),
        ({"model.hidden": "abc"}, r"model\.hidden='abc': give a list such as \[1, 2\] with a whole number in each"),
        ({"model.hidden": '["a"]'}, r"model\.hidden=\['a'\]: give a list"),
        ({"model.dropout": "much"}, r"model\.dropout='much': give a number"),
        ({"model": "cnn", "model.channels": "x"}, r"model\.channels='x': give a list"),
        ({"model": "upgd-cnn", "model.width": "2"}, r"network 'upgd-cnn' has no option 'width': it has none"),
        ({"pixels.mean": "abc"}, r"pixels\.mean='abc': give a list .* or a number"),
        ({"pixels.size": "abc"}, r"pixels\.size='abc': give a whole number or none"),
        ({"pixels.size": "-4"}, r"size=-4 must be at least one pixel"),
        ({"pixels.pad": "x"}, r"pixels\.pad='x': give a whole number"),
        ({"pixels.crop": "x"}, r"pixels\.crop='x': give a whole number"),
        ({"pixels.flip": "3"}, r"pixels\.flip=3: give true or false"),
        ({"pixels.mean": "[0.1, 0.2]"}, r"mean has 2 entries and std 1"),
        ({"pixels.std": "[0]"}, r"std=\(0\.0,\) must be positive"),
    ],
)
def test_wrong_values_are_told_in_a_sentence(options, words):
    with pytest.raises(ValueError, match=words) as told:
        RunConfig.make("digits-permuted", "sgd", options=options)
    assert "__init__" not in str(told.value)
    assert "not supported" not in str(told.value)


def test_one_number_for_all_channels():
    made = benchmarks.get("digits-permuted", pixels={"mean": 0.5, "std": 0.25}).view()
    assert (made.mean, made.std) == ((0.5,), (0.25,))


def test_another_builder_starts_with_its_own_arguments():
    kept = benchmarks.get("digits-split", tasks=5)
    assert kept.arguments == {"classes_per_task": 2}
    other = benchmarks.get("digits-split", builder="shards", scenario="domain")
    assert other.arguments == {}
    with_own = benchmarks.get("digits-split", builder="permuted-inputs", arguments={"identity_first": True})
    assert with_own.arguments == {"identity_first": True}
    config = RunConfig.make("digits-split", "sgd", options={"builder": "shards", "scenario": "domain", "classes": "10"})
    assert len(config.make_benchmark().stream()) == 5


def test_another_data_set_starts_with_its_own_options():
    made = benchmarks.get("digits-split", data="npz", options={"path": "a.npz"})
    assert made.options == {"path": "a.npz"}
    again = benchmarks.override(made, data="digits")
    assert again.options == {}


def test_a_changed_builder_is_read_back_from_its_file(tmp_path):
    given = {"builder": "shards", "scenario": "domain", "classes": 10}
    config = RunConfig.make("digits-split", "sgd", options=given)
    (tmp_path / "config.toml").write_text(config.to_toml())
    again = RunConfig.from_toml(tmp_path / "config.toml")
    assert again.key() == config.key()
    assert again.make_benchmark().arguments == {}

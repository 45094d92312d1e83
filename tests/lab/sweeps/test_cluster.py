"""A sweep on a local Ray with two workers, and how results travel from machines that share no folder."""

from __future__ import annotations

import sys

import pytest
from tests.lab.sweeps.plans import QUICK

from drcl.lab.common import plugins
from drcl.lab.runs.read import Run
from drcl.lab.sweeps import cluster, sweep, workers

PLUGIN = """
from drcl.lab import register
from drcl.lab.methods.sgd import SGD

@register.method
class Mine(SGD):
    name = "mine"
"""


@pytest.fixture
def plugin(tmp_path, unregistered):
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    return file


def test_a_sweep_on_two_workers_gives_what_it_gives_here(tmp_path, plugin):
    table = {"benchmarks": "digits-permuted", "methods": ["sgd", "drcl", "mine"], "options": QUICK}
    configs = sweep.plan({**table, "plugins": [str(plugin)]})
    bad = sweep.plan({"benchmarks": "mnist-split", "methods": ["sgd"]})
    todo = sweep.jobs([*configs, *bad], tmp_path / "ray", data_root=tmp_path / "no data here")
    kinds: dict[int, list[str]] = {}
    outcome = sweep.run(
        todo, cluster.on_ray("local", at_once=2), lambda update: kinds.setdefault(update.index, []).append(update.kind)
    )
    assert {job.config.method for job in outcome.done} == {"sgd", "drcl", "mine"}
    assert [job.config.benchmark for job, _ in outcome.failed] == ["mnist-split"]
    assert "mnist" in outcome.failed[0][1]
    assert all(told[0] == "started" for told in kinds.values())
    assert "event" in kinds[0]

    sweep.run(sweep.jobs(configs, tmp_path / "here"), workers.here)
    for config in configs:
        ours, theirs = tmp_path / "here" / config.name, tmp_path / "ray" / config.name
        assert Run.read(theirs).finished
        assert (theirs / "accuracy.csv").read_bytes() == (ours / "accuracy.csv").read_bytes()


def test_results_travel_without_their_checkpoint(tmp_path):
    made = tmp_path / "there"
    (made / "checkpoint").mkdir(parents=True)
    (made / "checkpoint" / "weights.safetensors").write_bytes(b"0" * 100)
    (made / "result.json").write_text("{}")
    (made / "tensorboard").mkdir()
    (made / "tensorboard" / "events").write_text("e")
    cluster.unpack(cluster.pack(made), tmp_path / "here")
    assert {p.relative_to(tmp_path / "here").as_posix() for p in (tmp_path / "here").rglob("*") if p.is_file()} == {
        "result.json",
        "tensorboard/events",
    }


def test_a_worker_that_shares_no_folder_sends_its_files_and_gets_plugins(tmp_path, plugin, monkeypatch):
    class Mailbox:
        class put:
            remote = staticmethod(lambda *letter: None)

    table = {"plugins": [str(plugin)], "benchmarks": "digits-permuted", "methods": "mine", "options": QUICK}
    config = sweep.plan(table)[0]
    sent = plugins.sources(config.plugins)
    plugin.unlink()  # over there it never was
    monkeypatch.setattr(plugins, "_digests", {})
    failed, archive = cluster._work(0, sweep.Job(config, tmp_path / "unused"), None, Mailbox, sent)
    assert failed == ""
    cluster.unpack(archive, tmp_path / "back")
    assert Run.read(tmp_path / "back").finished
    assert not (tmp_path / "unused").exists()


def test_without_ray_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(cluster.ClusterError, match=r"drcl\[cluster\]"):
        cluster.on_ray("local")

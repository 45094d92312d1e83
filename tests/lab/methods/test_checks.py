"""What a method says it needs and can take is what it does, and each refusal names what is wrong and the remedy."""

from __future__ import annotations

import math

import pytest
from tests.lab.methods.loop import Walk, toy_stream
from torch import nn

from drcl.lab import methods
from drcl.lab.methods import _checks
from drcl.lab.methods._checks import Abilities, refuse
from drcl.lab.methods.base import Method, Setting
from drcl.lab.networks import Heads, Network, build

# From the papers, not from the code.
NEEDS_THE_TASK = {"hat", "wsn", "packnet", "trgp", "cuber", "ibpcl", "ban"}
KEEPS_EXAMPLES = {"er", "agem", "star", "der++", "pocl"}
NO_NORM_LAYERS = {"hat", "ucl", "evcl", "mesu", "ibpcl", "ban"}
PLAIN_SGD = {"gpm", "sgp", "became", "hat", "trgp", "cuber", "owm", "ncl"}
HELD_STILL = PLAIN_SGD | NO_NORM_LAYERS | {"wsn", "packnet"}  # weight decay would move what they hold


def made(name: str, trunk: nn.Module | str = "mlp", scenario: str = "task", **setting) -> Method:
    stream = toy_stream(scenario, tasks=2, per_class=4)
    model = build(trunk, stream) if isinstance(trunk, str | dict) else Network(trunk, Heads(5, stream.heads))
    method = methods.get(name)()
    given = {"lr": 0.01, "momentum": 0.0, "batch": 4} | setting
    method.build(model, Setting(stream.scenario, 2, stream.heads, stream.shape, 0, **given))
    return method


def refused(name: str, *words: str, **how) -> bool:
    """Whether it is, with a sentence that begins with the method's name and ends with what to do."""
    try:
        made(name, **how)
    except ValueError as error:
        said = str(error)
        assert said.startswith(f"{name}: ")
        assert all(word in said for word in words)
        assert any(remedy in said for remedy in (": use ", ": set ", ": build "))
        return True
    return False


@pytest.mark.parametrize("name", methods.names())
def test_what_it_says_is_what_the_papers_say_and_what_is_refused(name):
    able = methods.get(name).abilities
    assert able.task_ids == (name in NEEDS_THE_TASK) == refused(name, "told the task", scenario="domain")
    assert able.task_ids == refused(name, "told the task", scenario="class")
    assert (able.norms == "none") == (name in NO_NORM_LAYERS)
    assert (able.norms == "none") == refused(name, trunk={"kind": "mlp", "norm": "group"})
    assert (able.norms != "any") == refused(name, trunk={"kind": "mlp", "norm": "shared"})
    assert (able.optimizer == "sgd") == (name in PLAIN_SGD) == refused(name, "optimizer='adam'", optimizer="adam")
    assert (not able.weight_decay) == (name in HELD_STILL) == refused(name, "weight_decay=0.1", weight_decay=0.1)
    nested = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 5), nn.ReLU()))
    assert (not able.branches) == refused(name, "plain chain", trunk=nested)
    assert not refused(name)


@pytest.mark.parametrize("name", methods.names())
def test_what_it_keeps_and_how_often_it_trains(name):
    trained = {"encoder": "tuned"} if name == "sb-mcl" else {}  # frozen, it makes no steps in later tasks
    able, method = methods.get(name).abilities, methods.get(name)(**trained)
    stream = toy_stream(tasks=2, per_class=4)
    assert (able.old_data == "all") == (len(method.data(stream[1], stream)) > 1)
    method.at.task = 1
    assert able.passes == method.stages
    # A method that does nothing at the end of a task also works if ends are not announced.
    assert able.task_ends or type(method).after_task is Method.after_task
    if able.old_data != "all":
        Walk(method, stream, epochs=1, lr=1e-3, momentum=0.0).run()
        assert (able.old_data == "some") == (name in KEEPS_EXAMPLES) == ("memory" in method.state)


def test_steps_of_its_own_do_not_depend_on_the_optimizer_of_the_run():
    own = {name for name in methods.names() if methods.get(name).abilities.optimizer == "own"}
    assert own == {"mesu", "tag", "upgd"}
    for name in own:
        kinds = {type(made(name, optimizer=word).optimizer(toy_stream(tasks=2)[0])) for word in ("sgd", "adam")}
        assert len(kinds) == 1


def test_all_of_it_fits_a_table():
    columns = [tuple(methods.get(name).abilities.words()) for name in methods.names()]
    assert len(set(columns)) == 1
    told = methods.get("hat").abilities.words()
    assert told == {
        "task ids": "yes",
        "task ends": "yes",
        "old data": "none",
        "passes": "1",
        "norms": "none",
        "residual": "no",
        "optimizer": "sgd",
        "decay": "no",
    }
    assert Abilities().words()["norms"] == "any"


def test_nothing_is_refused_that_nothing_speaks_against():
    stream = toy_stream("class", tasks=2)
    model = build({"kind": "mlp", "norm": "shared"}, stream)
    refuse("any", Abilities(), model, scenario="class", optimizer="adamw", weight_decay=0.5)
    kept = build({"kind": "mlp", "norm": "frozen"}, stream)
    refuse("any", Abilities(norms="unshared"), kept, scenario="class", optimizer="sgd", weight_decay=0.0)


# ---- values


@pytest.mark.parametrize(
    ("check", "right", "wrong", "remedy"),
    [
        (_checks.positive, (1e-9, 5), (0, -1.0, math.inf, math.nan), "a finite number above 0"),
        (_checks.not_negative, (0, 3.5), (-1e-9, math.inf, math.nan), "a finite number of at least 0"),
        (_checks.decay, (0, 0.999), (1, -0.1, math.nan), "a number from 0 to below 1"),
        (_checks.share, (0, 1, 0.5), (1.1, -0.1, math.nan), "a share from 0 to 1"),
        (_checks.at_least_one, (1, 9), (0, -3), "a whole number of at least 1$"),
        (_checks.at_least_one_or_none, (1, None), (0, -3), "a whole number of at least 1, or none$"),
    ],
)
def test_values_are_refused_by_name(check, right, wrong, remedy):
    for value in right:
        check("toy", first=1 if check is not _checks.decay else 0, second=value)
    for value in wrong:
        with pytest.raises(ValueError, match=f"^toy: second={value}: give {remedy}"):
            check("toy", first=1 if check is not _checks.decay else 0, second=value)


def test_limits_come_with_a_remedy_of_their_own():
    _checks.at_least("toy", "lam", 0.0, 0.0, "try 1")
    _checks.inside("toy", "ratio", 0.5, 0.0, 1.0, "try 0.5")
    _checks.adam_lr("toy", None)
    _checks.adam_lr("toy", 0.1)
    with pytest.raises(ValueError, match=r"^toy: lam=-1 must be at least 0.0: try 1$"):
        _checks.at_least("toy", "lam", -1, 0.0, "try 1")
    for value in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match=rf"^toy: ratio={value} must lie between 0.0 and 1.0, both excluded: try"):
            _checks.inside("toy", "ratio", value, 0.0, 1.0, "try 0.5")
    with pytest.raises(ValueError, match=r"^toy: adam_lr=0 must be above 0: give 0.001, or none"):
        _checks.adam_lr("toy", 0)

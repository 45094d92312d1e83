"""Every public call with None, {}, 3, "x" and [] for each of its arguments: a sentence that names the argument.

Nothing else may show through: no AttributeError, KeyError or ZeroDivisionError, and no sentence of Python's own.
"""

import inspect
import re

import pytest
import torch
from tests.tasks import after_one_task, mlp, task
from torch import nn

import drcl
from drcl import DRCL, MAS, Anchor, Fisher, Kronecker, PathIntegral, Retention
from drcl.drift import between, drift
from drcl.preserve import undisturbed
from drcl.prox import L1, L2, Box, ElasticNet, GroupL1, resolve
from drcl.retention import measure

BAD = {"None": None, "dict": {}, "number": 3, "text": "x", "list": []}
T = torch.ones(2, 3)


def enter(model, seed=None):
    with undisturbed(model, seed):
        pass


def deployed(task=None):
    with life()[0].deployed(task):
        pass


def named():
    model = mlp()
    return {"model": model, "batches": task(0), "parameters": dict(model.named_parameters()), "forward": None}


def life():
    model, opt = after_one_task()
    return opt, {"model": model, "batches": task(0), "anchor": opt.anchor}


def of_life(method, *arguments):
    opt, good = life()
    return getattr(opt, method), {name: good[name] for name in arguments}


def path_integral():
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    watching = PathIntegral().watch(opt)
    watching._after_step(opt, (), {})
    return watching, {"model": model, "parameters": dict(model.named_parameters()), "batches": None, "forward": None}


def of_path(method):
    watching, arguments = path_integral()
    return getattr(watching, method), arguments


def growth():
    opt, good = life()
    return opt.grow, {"old": good["model"][2].weight, "new": nn.Linear(16, 5).weight}


def of_retention(method, **arguments):
    probed = Retention({"a": task(0)})
    probed.measure(mlp(), "before")
    return getattr(probed, method), arguments


def of_prox(prox):
    return lambda: (prox, {"r": T, "anchor": T, "threshold": T}), lambda: (
        prox.penalty,
        {"w": T, "anchor": T, "weight": T},
    )


def calls():
    """By name: a function that makes the callable and arguments it accepts."""
    opt, good = life()
    anchor = opt.anchor
    made = {
        "DRCL": lambda: (DRCL, {"params": mlp().named_parameters(), "lr": 0.1}),
        "DRCL.around": lambda: (DRCL.around, {"optimizer": torch.optim.Adam(mlp().parameters())}),
        "DRCL.consolidate": lambda: of_life("consolidate", "model", "batches"),
        "DRCL.protect": lambda: of_life("protect", "model", "anchor"),
        "DRCL.grow": growth,
        "DRCL.add_param_group": lambda: (life()[0].add_param_group, {"param_group": {"params": [nn.Parameter(T)]}}),
        "DRCL.load_state_dict": lambda: (opt.load_state_dict, {"state_dict": opt.state_dict()}),
        "DRCL.deployed": lambda: (deployed, {}),
        "DRCL.step": lambda: (life()[0].step, {}),
        "Anchor": lambda: (Anchor, {"weights": {"w": T}, "importance": {"w": T}}),
        "Anchor.save": lambda: (anchor.save, {"path": "never"}),
        "Anchor.load": lambda: (Anchor.load, {"path": "never"}),
        "Anchor.check": lambda: (anchor.check, {"model": good["model"]}),
        "Anchor.restore": lambda: (anchor.restore, {"model": good["model"]}),
        "drift": lambda: (drift, {"model": good["model"], "anchor": anchor}),
        "drift.between": lambda: (between, {"before": {"w": T}, "after": {"w": T}}),
        "Drift.largest": lambda: (drift(good["model"], anchor).largest, {}),
        "Retention": lambda: (Retention, {"probes": {"a": task(0)}}),
        "Retention.measure": lambda: of_retention("measure", model=mlp(), when="after"),
        "Retention.load": lambda: of_retention("load", facts={"moments": {}}),
        "Retention.record": lambda: of_retention("record", optimizer=opt),
        "retention.measure": lambda: (measure, {"model": mlp(), "probes": {"a": task(0)}}),
        "undisturbed": lambda: (enter, {"model": mlp()}),
        "PathIntegral": lambda: (PathIntegral, {}),
        "PathIntegral.watch": lambda: (PathIntegral().watch, {"optimizer": opt}),
        "PathIntegral.estimate": lambda: of_path("estimate"),
        "PathIntegral.load_state_dict": lambda: (path_integral()[0].load_state_dict, {"state": {}}),
        "prox.resolve": lambda: (resolve, {"prox": "l1"}),
        "prox.ElasticNet": lambda: (ElasticNet, {}),
        "prox.GroupL1": lambda: (GroupL1, {}),
    }
    for estimator in (Fisher, Kronecker, MAS):
        name = estimator.__name__
        made[name] = lambda estimator=estimator: (estimator, {})
        made[f"{name}.estimate"] = lambda estimator=estimator: (estimator(samples=4).estimate, named())
        made[f"{name}.measure"] = lambda estimator=estimator: (estimator(samples=4).measure, named())
    for prox in (L1(), L2(), ElasticNet(), GroupL1(), Box()):
        name = type(prox).__name__
        made[f"prox.{name}()"], made[f"prox.{name}.penalty"] = of_prox(prox)
    return made


CALLS = calls()
# Values that are right for their argument, by (call, argument); "" is for any call.
RIGHT = {
    ("", "seed"): {"None", "number"},
    ("", "forward"): {"None"},
    ("", "history"): {"None"},
    ("", "batch_size"): {"None", "number"},
    ("", "samples"): {"number"},
    ("", "loss"): {"None"},
    ("", "stable"): {"None"},
    ("", "tolerance"): {"None", "number"},
    ("", "preset"): {"None"},
    ("", "strength"): {"None", "number"},
    ("", "closure"): {"None"},
    ("", "rank"): {"None", "number"},
    ("Kronecker", "output_rank"): {"None", "number"},
    ("Kronecker", "memory"): {"None", "number"},
    ("", "likelihood"): {"None"},
    ("", "importance"): {"None"},
    ("", "norms"): {"None"},
    ("", "horizon"): {"None", "number"},
    ("", "storage"): {"None"},
    ("", "labels"): {"None"},
    ("DRCL.deployed", "task"): {"None"},
    ("Anchor.load", "model"): {"None"},
    ("Anchor.save", "path"): {"text"},
    ("Anchor.load", "path"): {"text"},  # a file that is not there
    ("PathIntegral.estimate", "batches"): set(BAD),
    ("PathIntegral.estimate", "forward"): set(BAD),
    ("Anchor", "provenance"): {"dict"},
    ("Anchor", "bases"): {"dict"},
    ("Anchor", "free"): {"dict"},
    ("Anchor", "buffers"): {"dict"},
    ("Anchor", "statistics"): {"dict"},
    ("Anchor", "adapters"): {"dict"},
    ("Anchor.save", "dtype"): {"None"},
    ("", "metric"): {"None"},
    ("Retention", "title"): {"None", "text"},
    ("Retention", "learned"): {"list", "dict"},  # nothing is learned
    ("Retention.measure", "when"): {"text"},
    ("Retention.measure", "optimizer"): {"None"},
    ("DRCL.grow", "rows"): {"None"},
    ("DRCL.around", "arguments"): set(BAD),  # not an argument: whatever DRCL takes
}
# Flags are read as true or false, as torch's are, and numbers of any size serve.
LENIENT = {"nesterov", "maximize", "check_finite", "_inner"}
NUMBERS = {
    *("lr", "momentum", "weight_decay", "damping", "dampening", "iterations", "plasticity_steps", "inner_steps"),
    *("threshold", "weight", "n", "largest", "dim"),
}


def cases():
    for call, make in CALLS.items():
        function, _ = make()
        for argument in inspect.signature(function).parameters:
            if argument in LENIENT:
                continue
            for bad in BAD:
                right = RIGHT.get((call, argument), RIGHT.get(("", argument), set()))
                if bad not in right and not (bad == "number" and argument in NUMBERS):
                    yield call, argument, bad


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("call", "argument", "bad"), list(cases()))
def test_what_cannot_be_is_refused_by_name(call, argument, bad, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, arguments = CALLS[call]()
    with pytest.raises((TypeError, ValueError)) as refused:
        function(**{**arguments, argument: BAD[bad]})
    words = str(refused.value)
    assert re.search(rf"\b{argument.replace('_', '[_ ]')}", words), words
    assert len(words) > 20
    assert not list(tmp_path.iterdir())


def test_every_public_name_is_tried():
    names = {call.partition(".")[0] for call in CALLS}
    assert {n for n in drcl.__all__ if n not in ("AnchorError", "__version__")} <= names
    for kind in (DRCL, Anchor, PathIntegral, Fisher, Kronecker, MAS, Retention):
        methods = {
            f"{kind.__name__}.{n}"
            for n, m in vars(kind).items()
            if callable(m) and not n.startswith("_") and len(inspect.signature(m).parameters) > 1
        }
        internal = {"holds", "name_of", "is_named", "cotangents", "for_model", "answers"}
        assert {m for m in methods if m.rpartition(".")[2] not in internal} <= set(CALLS)

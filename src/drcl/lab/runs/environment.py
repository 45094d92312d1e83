"""Where a run took place: versions, git state, machine. Kept beside its numbers."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import drcl
from drcl.lab.common import parallel, plugins

_PACKAGES = ("drcl", "torch", "numpy", "safetensors", "scikit-learn")


def describe(device: torch.device, plugin_names: Iterable[str] = ()) -> dict[str, Any]:
    """The content of ``environment.json``."""
    outside = plugins.describe(plugin_names)
    machine: dict[str, Any] = {
        "system": platform.system(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }
    return {
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
        "git": _git(Path(__file__).parent),
        "machine": machine,
        "threads": torch.get_num_threads(),
        "processes": parallel.world().size,
    } | ({"plugins": outside} if outside else {})


def processor(told: Path = Path("/proc/cpuinfo")) -> str:
    """The model of the processor. On Linux `platform` only knows its kind, so a name there comes with its numbers:
    several models may share a name."""
    try:
        lines = told.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = facts.get("model name") or platform.processor() or platform.machine()
    numbers = [facts[key] for key in ("cpu family", "model", "stepping", "CPU implementer", "CPU part") if key in facts]
    return f"{name} ({'.'.join(numbers)})" if numbers else name


def changed_plugins(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Plugins whose code has changed since ``environment.json`` was written."""
    then = before.get("plugins")
    if not isinstance(then, dict):
        return []
    return [name for name, facts in now.get("plugins", {}).items() if name in then and then[name] != facts]


def _version(name: str) -> str | None:
    if name == "drcl":
        return drcl.__version__
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path) -> dict[str, Any] | None:
    """The commit of the source, and whether it was changed since; None for an installed package."""
    try:
        commit = _ask(folder, "rev-parse", "HEAD").strip()
        return {"commit": commit, "dirty": bool(_ask(folder, "status", "--porcelain", "--untracked-files=no").strip())}
    except (OSError, subprocess.SubprocessError):
        return None


def _ask(folder: Path, *words: str) -> str:
    # Only a repository that tracks this folder is relevant.
    subprocess.run(["git", "ls-files", "--error-unmatch", "."], cwd=folder, check=True, capture_output=True, timeout=10)
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True, timeout=10)
    return done.stdout

"""The examples run, with tiny settings, and end in tables of what was kept and what was learned."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "own_loop.py": ("sklearn", ["--epochs", "1", "--width", "8"]),
    "lora_peft.py": ("peft", ["--steps", "4", "--width", "8", "--samples", "16"]),
    "avalanche_strategy.py": ("avalanche", ["--epochs", "1", "--width", "8", "--experiences", "2"]),
    "timm_images.py": ("timm", ["--epochs", "1", "--width", "8"]),
    "fsdp.py": ("sklearn", ["--epochs", "1", "--width", "8"]),
    "huggingface_trainer.py": ("transformers", ["--steps", "4", "--width", "8"]),
    "lightning_trainer.py": ("lightning", ["--epochs", "1", "--width", "8"]),
}
# Not installed beside the other libraries.
NEED_TORCHVISION = ("avalanche", "timm")


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_ends_in_two_tables(name, tmp_path):
    library, options = EXAMPLES[name]
    if library in NEED_TORCHVISION:
        pytest.importorskip("torchvision", reason=f"{library} needs torchvision: CONTRIBUTING.md has the command")
    pytest.importorskip(library)
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    # As `python examples/...`, with what lets a torchvision built for another torch load.
    run = (
        f"import sys, runpy; kept = runpy.run_path({str(Path(__file__).with_name('conftest.py'))!r}); "
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if name == "fsdp.py" else ["-c", run]
    command = [sys.executable, *launch, str(ROOT / "examples" / name), *options]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("what you kept") == 2
    assert done.stdout.count("what you learned") == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_it_is_short_and_tested(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 80
    assert path.name in EXAMPLES

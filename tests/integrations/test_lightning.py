"""Continual fine-tuning with the real Lightning: the same as a loop by hand, checkpoints, resuming, what is refused."""

import pytest
import torch

pl = pytest.importorskip("lightning.pytorch")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from tests.integrations.small import WAYS, equal, weights  # noqa: E402
from tests.tasks import mlp, task  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from drcl import DRCL, Anchor, Fisher  # noqa: E402
from drcl.integrations.lightning import Continual  # noqa: E402
from drcl.retention import Retention  # noqa: E402

NEW = task(1, batches=7)  # 14 steps in two epochs; a proposal of four is not finished then


class Module(pl.LightningModule):
    def __init__(self, several=False, own=None):
        super().__init__()
        self.body, self.several, self.own, self.losses = mlp(), several, own, []
        self.automatic_optimization = not several

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch, index):
        return cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.losses.append(float(cross_entropy(self(batch[0]), batch[1])))

    def configure_optimizers(self):
        if self.own is not None:
            return self.own(self)
        made = torch.optim.AdamW(self.parameters(), lr=0.05)
        if self.several:
            return [made, torch.optim.SGD(self.parameters(), lr=0.1)]
        return [made], [torch.optim.lr_scheduler.StepLR(made, 1, 0.5)]


@pytest.fixture(scope="module")
def anchor():
    model = Module()
    opt = DRCL(model.named_parameters(), lr=0.1, preset="weights")
    opt.consolidate(model, task(0), Fisher(samples=40))
    return opt.anchor


def trainer(folder, callbacks, epochs=2, **more):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    if not any(isinstance(c, ModelCheckpoint) for c in callbacks):
        quiet["enable_checkpointing"] = False
    return pl.Trainer(max_epochs=epochs, callbacks=callbacks, default_root_dir=folder, **{**quiet, **more})


def fit(made, module, **more):
    made.fit(module, torch.utils.data.DataLoader(NEW, batch_size=None), **more)


@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_loop_by_hand_bit_for_bit(tmp_path, way, anchor):
    kept, module = Continual(anchor=anchor, **{**WAYS[way], "normalise": "task"}), Module()
    fit(trainer(tmp_path, [kept]), module)
    assert kept.optimizer.progress.horizon == 14  # told by the trainer
    model = Module()
    inner = torch.optim.AdamW(model.parameters(), lr=0.05)
    opt, scheduler = DRCL.around(inner, **kept.task.options), torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
    opt.protect(model, anchor)
    for _ in range(2):
        for batch in NEW:
            opt.zero_grad()
            model.training_step(batch, 0).backward()
            opt.step()
        scheduler.step()
    kept.task._optimizer = opt  # the end of a proposal that is not finished
    kept.task.settle()
    opt.eval()
    assert equal(weights(module), weights(model))
    assert not equal(weights(module), weights(Module()))


@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_checkpoints_hold_deployed_weights(tmp_path, way, weights_only, anchor):
    kept, deployed, training = Continual(anchor=anchor, **{**WAYS[way], "normalise": "task"}), {}, {}

    class Watch(pl.Callback):
        def on_train_batch_end(self, trainer, module, *_):
            held = kept.optimizer.progress.mode
            with kept.optimizer.deployed():
                deployed[trainer.global_step] = weights(module)
            kept.optimizer.train()
            training[trainer.global_step] = weights(module)
            getattr(kept.optimizer, held)()

    saves = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=3, save_top_k=-1, save_weights_only=weights_only)
    fit(trainer(tmp_path, [kept, Watch(), saves]), Module())
    files = sorted(tmp_path.glob("*.ckpt"))
    assert len(files) == 4
    differ = 0
    for file in files:
        step = int(file.stem.removeprefix("step="))
        found = torch.load(file, weights_only=False)["state_dict"]
        assert equal(found, deployed[step])
        differ += not equal(found, training[step])
    assert differ >= 2, "the weights that train are not those that are deployed"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("own", [False, True])
def test_resuming_in_the_middle_of_a_task_is_exact(tmp_path, way, own, anchor):
    options = {"preset": "directions", **WAYS[way], "normalise": "task"}
    make = (lambda m: DRCL.around(torch.optim.AdamW(m.named_parameters(), lr=0.05), **options)) if own else None

    def run(**more):
        kept, module = Continual(anchor=anchor, probes={"old": task(0)}, **({} if own else options)), Module(own=make)
        # Lightning goes on with the next epoch; after seven steps a proposal of four is in the middle.
        saves = ModelCheckpoint(tmp_path, "{step}", every_n_epochs=1, save_top_k=-1)
        fit(trainer(tmp_path, [kept, saves]), module, **more)
        return module, kept

    whole, first = run()
    again, second = run(ckpt_path=tmp_path / "step=7.ckpt")
    assert equal(weights(whole), weights(again))
    assert first.retention.moments == second.retention.moments
    assert list(first.retention.moments) == ["before", "after"]


def test_validation_sees_deployed_weights_and_the_anchor_has_the_measures(tmp_path, capsys):
    probes = Retention({"old": task(0), "new": NEW}, learned="new")
    kept, module = Continual(old=task(0), probes=probes, save=tmp_path / "a", plasticity_steps=5), Module()
    made = trainer(tmp_path, [kept], val_check_interval=3)
    made.fit(
        module, torch.utils.data.DataLoader(NEW, batch_size=None), torch.utils.data.DataLoader(NEW, batch_size=None)
    )
    moments = kept.retention.moments
    assert list(moments) == ["before", "step 3", "step 6", "step 10", "step 13", "after"]
    # Nothing is deployed before the first negotiation, and validation sees just that.
    assert moments["step 3"] == moments["before"]
    sanity, first = module.losses[:2], module.losses[2:9]
    assert sanity == first[:2]
    assert moments["step 10"] != moments["before"]
    assert "what you kept" in capsys.readouterr().out
    saved = Anchor.load(tmp_path / "a", module)
    assert saved.provenance["made"][-1]["retention"]["moments"] == moments
    assert saved.provenance["tasks"] == 2


def test_what_is_refused(tmp_path, anchor):
    with pytest.raises(ValueError, match="made 2 optimizers"):
        fit(trainer(tmp_path, [Continual(anchor=anchor, normalise="task")]), Module(several=True))
    kept = Continual(anchor=anchor, normalise="task")
    fit(trainer(tmp_path, [kept], epochs=1), Module())
    with pytest.raises(RuntimeError, match="has finished its task; make a new one"):
        fit(trainer(tmp_path, [kept], epochs=1), Module())

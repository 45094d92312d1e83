"""Continual fine-tuning with the real Trainer: the same as a loop by hand, checkpoints, resuming, what is refused."""

import types
import warnings

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from safetensors.torch import load_file  # noqa: E402
from tests.integrations.small import (  # noqa: E402
    DIRECTIONS,
    DOUGLAS,
    WAYS,
    batches,
    equal,
    language_model,
    sequences,
    weights,
)
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from drcl import DRCL, Anchor, Fisher  # noqa: E402
from drcl.integrations.huggingface import Continual, continual  # noqa: E402
from drcl.retention import Retention  # noqa: E402

STEPS = 10


@pytest.fixture(scope="module")
def anchor():
    """What a first training left: weights and their importance, weight by weight."""
    model = language_model()
    opt = DRCL(model.named_parameters(), lr=0.1, preset="weights")
    opt.consolidate(model, batches(1), Fisher(samples=16))
    return opt.anchor


def arguments(folder, **more):
    usual = {"max_steps": STEPS, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "save_steps": 3, "seed": 3}
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_steps": 100, "dataloader_num_workers": 0}
    return TrainingArguments(output_dir=str(folder), **{**usual, **quiet, **more})


def trainer(folder, callbacks=(), collator=None, model=None, **more):
    usual = {"optimizers": more.pop("optimizers")} if "optimizers" in more else {}
    evaluation = {"eval_dataset": sequences(2, 8)} if "eval_strategy" in more else {}
    return Trainer(
        language_model() if model is None else model,
        arguments(folder, **more),
        train_dataset=sequences(2),
        callbacks=list(callbacks),
        data_collator=collator or transformers.default_data_collator,
        **usual,
        **evaluation,
    )


class Watch(TrainerCallback):
    """Remembers at every save what is deployed, and what the model trains at."""

    def __init__(self, kept):
        self.kept, self.deployed, self.training = kept, {}, {}

    def on_save(self, args, state, control, model=None, **things):
        with self.kept.optimizer.deployed():
            self.deployed[state.global_step] = weights(model)
        before = self.kept.optimizer.progress.mode
        self.kept.optimizer.train()
        self.training[state.global_step] = weights(model)
        getattr(self.kept.optimizer, before)()


@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_loop_by_hand_bit_for_bit(tmp_path, way, anchor):
    options = {**WAYS[way], **({"normalise": "task"} if way == "directions" else {})}
    seen = []

    def collator(samples):
        seen.append(transformers.default_data_collator(samples))
        return seen[-1]

    kept = Continual(anchor=anchor, **options)
    plain = {"max_grad_norm": 0, "lr_scheduler_type": "constant", "optim": "adamw_torch"}
    made = trainer(tmp_path, [kept], collator, save_strategy="no", **plain)
    made.model_accepts_loss_kwargs = False  # the mean of a batch, as the model gives it
    made.train()
    assert kept.optimizer.progress.horizon == STEPS  # told by the Trainer
    model = language_model()
    opt = DRCL.around(torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0), **kept.task.options)
    opt.protect(model, anchor)
    for batch in seen[:STEPS]:
        opt.zero_grad()
        model(**batch).loss.backward()
        opt.step()
    kept.task._optimizer = opt  # the end of a proposal that is not finished
    kept.task.settle()
    opt.eval()
    assert equal(weights(made.model), weights(model))
    assert opt.tasks == 1
    assert not equal(weights(model), dict(anchor.weights))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["callback", "function", "optimizer"])
def test_checkpoints_hold_deployed_weights_and_resume_exactly(tmp_path, way, how, anchor):
    options = {**WAYS[way], "normalise": "task"}

    def make(folder):
        if how == "function":
            made = trainer(folder)
            return made, continual(made, anchor=anchor, probes={"old": batches(1)}, **options)
        model, own = language_model(), {}
        if how == "optimizer":
            inner = torch.optim.AdamW(model.named_parameters(), lr=1e-2)
            own = {"optimizers": (DRCL.around(inner, **{"preset": "directions", **options}), None)}
        kept = Continual(anchor=anchor, probes={"old": batches(1)}, **({} if own else options))
        return trainer(folder, [kept], model=model, **own), kept

    whole, kept = make(tmp_path)
    watch = Watch(kept)
    whole.add_callback(watch)
    whole.train()
    differ = 0
    for step, expected in watch.deployed.items():
        saved = load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors")
        assert all(torch.equal(saved[name], expected[name]) for name in saved)
        differ += not equal(expected, watch.training[step])
    assert differ >= 2, "the weights that train are not those that are deployed"
    again, other = make(tmp_path)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert equal(weights(whole.model), weights(again.model))
    assert other.retention.moments == kept.retention.moments
    assert list(kept.retention.moments) == ["before", "after"]


def test_a_task_after_another_from_anchor_to_anchor(tmp_path, capsys):
    probes = {"ones": batches(1), "twos": batches(2)}
    first = Continual(old=batches(1), probes=Retention(probes, learned=["twos"]), save=tmp_path / "a", **DIRECTIONS)
    made = trainer(tmp_path, [first], eval_strategy="steps", eval_steps=4)
    made.train()
    moments = first.retention.moments
    assert list(moments) == ["before", "step 4", "step 8", "step 10", "after"]
    model = language_model()
    own = {"input_ids": torch.stack([s["input_ids"] for s in sequences(2, 16)])}
    with torch.no_grad():
        expected = float(model(**own, labels=own["input_ids"]).loss)
    assert moments["before"]["twos"] == pytest.approx(expected, rel=1e-5)
    printed = capsys.readouterr().out
    assert "what you kept" in printed
    assert "what you learned" in printed
    saved = Anchor.load(tmp_path / "a", made.model)
    assert saved.provenance["tasks"] == 2
    assert saved.provenance["made"][-1]["retention"]["moments"] == moments
    made.evaluate()  # after the end nothing is measured any more
    assert list(moments)[-1] == "after"
    second = Continual(anchor=tmp_path / "a", **DIRECTIONS)
    trainer(tmp_path / "b", [second], model=made.model).train()
    assert second.optimizer.tasks == 2


@pytest.mark.parametrize("way", WAYS)
def test_the_best_model_stays_in_place(tmp_path, way, anchor):
    kept = Continual(anchor=anchor, **{**WAYS[way], "normalise": "task"})
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
    made = trainer(tmp_path, [kept], eval_strategy="steps", eval_steps=3, **best)
    made.train()  # with the largest loss called the best, it is not the last one
    found = load_file(f"{made.state.best_model_checkpoint}/model.safetensors")
    assert "checkpoint-9" not in made.state.best_model_checkpoint
    kept.optimizer.eval()
    held = weights(made.model)
    assert all(torch.equal(found[name], held[name]) for name in found)


def test_sft_trainer(tmp_path):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {str(i): i for i in range(14)} | {"<pad>": 14, "<eos>": 15, "<unk>": 16}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    texts = [" ".join(str((i + 3 * k) % 14) for k in range(6)) for i in range(24)]
    given = trl.SFTConfig(
        output_dir=str(tmp_path), max_steps=6, per_device_train_batch_size=4, learning_rate=1e-2, save_steps=3,
        report_to=[], disable_tqdm=True, use_cpu=True, bf16=False, max_length=8,
    )  # fmt: skip
    kept = Continual(old=batches(1), probes={"old": batches(1)}, save=tmp_path / "a", **DOUGLAS)
    watch = Watch(kept)
    made = trl.SFTTrainer(
        language_model(),
        given,
        train_dataset=datasets.Dataset.from_dict({"text": texts}),
        processing_class=fast,
        callbacks=[kept, watch],
    )
    made.train()
    assert Anchor.load(tmp_path / "a").provenance["tasks"] == 2
    for step, expected in watch.deployed.items():
        saved = load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors")
        assert all(torch.equal(saved[name], expected[name]) for name in saved)


def test_a_callback_that_saves_behind_its_back_is_told(tmp_path, anchor):
    class Saves(TrainerCallback):
        def on_step_end(self, args, state, control, **things):
            control.should_save = state.global_step == 2

    options = {"anchor": anchor, **DOUGLAS}
    with pytest.warns(UserWarning, match="checkpoint-2 holds training weights.*put Continual last"):
        trainer(tmp_path / "a", [Continual(**options), Saves()], max_steps=3, save_strategy="no").train()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="drcl")
        trainer(tmp_path / "b", [Saves(), Continual(**options)], max_steps=3, save_strategy="no").train()


# -- what is refused


def test_a_checkpoint_without_our_state_is_refused(tmp_path, anchor):
    trainer(tmp_path).train()
    for make in (lambda m, **k: m.add_callback(Continual(**k)), lambda m, **k: continual(m, **k)):
        made = trainer(tmp_path)
        make(made, anchor=anchor, normalise="task")
        with pytest.raises(ValueError, match=r"was not made by DRCL|has no state of DRCL"):
            made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))


def test_weights_alone_cannot_be_resumed(tmp_path, anchor):
    options = {"anchor": anchor, **DOUGLAS}
    trainer(tmp_path, [Continual(**options)], save_only_model=True).train()
    for make in (lambda m: m.add_callback(Continual(**options)), lambda m: continual(m, **options)):
        made = trainer(tmp_path)
        make(made)
        with pytest.raises(ValueError, match="has no state of DRCL"):
            made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))


def test_a_checkpoint_that_lies_elsewhere(tmp_path, anchor):
    options = {"anchor": anchor, **DOUGLAS}
    whole = trainer(tmp_path / "one", [Continual(**options)])
    whole.train()
    moved = str((tmp_path / "one" / "checkpoint-6").rename(tmp_path / "moved"))
    for make in (lambda m: m.add_callback(Continual(**options)), lambda m: continual(m, **options)):
        made = trainer(tmp_path / "two")
        make(made)
        made.train(resume_from_checkpoint=moved)
        assert equal(weights(made.model), weights(whole.model))


@pytest.mark.parametrize("holder", [types.SimpleNamespace(optimizer=object()), object(), None])
def test_a_trainer_without_an_optimizer_that_drcl_can_go_around(tmp_path, anchor, holder):
    made, kept = trainer(tmp_path), Continual(anchor=anchor, normalise="task")
    before = weights(made.model)
    with pytest.raises(TypeError, match=r"the trainer's optimizer has type .*, but DRCL wraps only torch optimizers"):
        kept.on_train_begin(made.args, made.state, made.control, optimizer=holder, model=made.model)
    assert equal(before, weights(made.model))
    with pytest.raises(RuntimeError, match="before training begins"):
        kept.on_step_begin(made.args, made.state, made.control)


def test_an_anchor_of_another_model(tmp_path, anchor):
    other = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=17))
    with pytest.raises(ValueError, match="belongs to another model"):
        trainer(tmp_path, [Continual(anchor=anchor, normalise="task")], model=other).train()

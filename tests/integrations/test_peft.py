"""Adapters of the real peft: protected by their product without any call of their own, in a loop and in the Trainer."""

import copy
import warnings

import pytest
import torch

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from tests.integrations.small import batches, equal, language_model, sequences, weights  # noqa: E402
from torch import nn  # noqa: E402

from drcl import DRCL, Anchor, Fisher, Kronecker, drift  # noqa: E402
from drcl.anchor import AnchorError  # noqa: E402
from drcl.integrations.huggingface import Continual, self_samples  # noqa: E402
from drcl.retention import measure  # noqa: E402

TARGETS = ["q_proj", "v_proj", "down_proj"]


def lora(model=None, targets=TARGETS, rank=4, **options):
    torch.manual_seed(5)
    config = peft.LoraConfig(r=rank, lora_alpha=8, target_modules=targets, **options)
    return peft.get_peft_model(language_model() if model is None else model, config)


def around(model, **options):
    return DRCL.around(torch.optim.AdamW(model.parameters(), lr=2e-2), preset="directions", **options)


def train(model, opt, step, epochs=8):
    for _ in range(epochs):
        for batch in batches(step):
            opt.zero_grad()
            model(**batch).loss.backward()
            opt.step()


def deltas(model):
    """What peft itself says that its adapters add."""
    layers = [m for m in model.modules() if hasattr(m, "get_delta_weight")]
    return [m.get_delta_weight(m.active_adapters[0]).detach() for m in layers]


@pytest.fixture(scope="module")
def learned():
    model = lora()
    opt = around(model)
    train(model, opt, 1)
    opt.consolidate(model, batches(1), Kronecker(samples=16))
    return model, opt.anchor


def test_a_loop_over_tasks(learned):
    start, anchor = learned
    assert list(anchor.adapters) == anchor.provenance["adapters"]
    assert len(anchor.adapters) == 6
    assert not anchor.weights
    assert not anchor.free  # nothing of the frozen model is copied
    for saved, delta in zip(anchor.adapters.values(), deltas(start)):
        assert torch.allclose(saved.product(), delta, atol=1e-6)
    losses = []
    for strength in (0.0, 3e-5, float("inf")):
        model = lora()
        opt = around(model, strength=strength)
        opt.protect(model, anchor)
        before = measure(model, {"old": batches(1), "new": batches(3)})
        train(model, opt, 3)
        opt.consolidate(model, batches(3), Kronecker(samples=16))
        assert opt.tasks == 2
        after = measure(model, {"old": batches(1), "new": batches(3)})
        losses.append({name: after[name] - before[name] for name in after})
    free, held, frozen = losses
    assert free["old"] > held["old"]
    assert held["new"] < 0
    assert frozen["old"] == frozen["new"] == 0


def test_merged_into_the_model_and_a_new_adapter(learned, tmp_path):
    start, anchor = learned
    anchor.save(tmp_path / "a")
    model = lora(copy.deepcopy(start).merge_and_unload(), rank=2)
    saved = Anchor.load(tmp_path / "a", model)
    opt = around(model)
    opt.protect(model, saved)
    assert all(not d.any() for d in deltas(model))
    assert drift(model, saved).total.largest_change == 0
    ids = batches(1)[0]["input_ids"]
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, start(ids).logits, atol=1e-4)
    train(model, opt, 3, 3)
    opt.consolidate(model, batches(3), Kronecker(samples=16))
    assert drift(model, saved).total.largest_change > 0


def test_an_adapter_of_another_name_or_rank_has_the_same_product(learned):
    start, anchor = learned
    config = peft.LoraConfig(r=6, lora_alpha=3, target_modules=TARGETS)
    model = peft.get_peft_model(language_model(), config, adapter_name="second")
    around(model).protect(model, anchor)
    assert all(torch.allclose(d, e, atol=1e-6) for d, e in zip(deltas(start), deltas(model)))


def test_an_anchor_of_another_adapter_is_refused(learned):
    _, anchor = learned
    with pytest.raises(
        AnchorError, match="the anchor belongs to another adapter; make one with the same target_modules"
    ):
        around(other := lora(targets=["q_proj"])).protect(other, anchor)
    with pytest.raises(
        ValueError, match="the anchor belongs to another adapter; give this one the same target_modules"
    ):
        around(other := lora(targets=[*TARGETS, "k_proj"])).protect(other, anchor)
    with pytest.raises(AnchorError, match="this model's has only rank 1"):
        around(other := lora(rank=1)).protect(other, anchor)
    with pytest.raises(AnchorError, match="not the one that the anchor's adapter was trained on"):
        around(other := lora(language_model(seed=1))).protect(other, anchor)


@pytest.mark.parametrize("estimator", [Kronecker(samples=8), Fisher(samples=8)])
def test_layers_of_every_kind(estimator):
    """Conv1D, which stores its weight the other way, an embedding and convolutions: what is added is what peft adds."""
    torch.manual_seed(0)
    gpt = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=17))
    gpt.config.tie_word_embeddings = False
    config = peft.LoraConfig(r=2, target_modules=["c_attn", "wte"], fan_in_fan_out=True, init_lora_weights=False)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    images = [(torch.randn(8, 2, 4, 4), torch.randint(3, (8,)))]
    conv = peft.LoraConfig(r=2, target_modules=["0", "3"], init_lora_weights=False, modules_to_save=[])
    for model, data in ((peft.get_peft_model(gpt, config), batches(1)), (peft.get_peft_model(net, conv), images)):
        opt = around(model)
        opt.consolidate(model, data, estimator)
        expected = {id(m.get_base_layer().weight): m for m in model.modules() if hasattr(m, "get_delta_weight")}
        names = {n: id(p) for n, p in model.named_parameters()}
        assert len(opt.anchor.adapters) == 2
        for name, adapter in opt.anchor.adapters.items():
            delta = expected[names[name]].get_delta_weight("default")
            assert torch.allclose(adapter.product(), delta.flatten(1), atol=1e-6)
        for batch in data * 12:
            opt.zero_grad()
            out = (
                model(**batch).loss
                if isinstance(batch, dict)
                else nn.functional.cross_entropy(model(batch[0]), batch[1])
            )
            out.backward()
            opt.step()
        assert drift(model, opt.anchor).total.largest_change > 0


def test_where_inputs_ask_for_gradients():
    """Trainers let the embedding's output ask for a gradient, to recompute activations; directions stay the same."""
    found = []
    for asks in (False, True):
        model = lora()
        if asks:
            model.enable_input_require_grads()
        opt = around(model)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            opt.consolidate(model, batches(1), Kronecker(samples=16))
        found.append(opt.anchor.adapters)
    for one, other in zip(*(adapters.values() for adapters in found)):
        assert one.basis.inputs is not None
        assert torch.allclose(one.basis.eigenvalues, other.basis.eigenvalues, rtol=1e-3, atol=1e-3)


def test_beside_other_parameters_and_variants():
    model = lora(modules_to_save=["lm_head"], bias="lora_only", lora_bias=False)
    opt = around(model)
    opt.consolidate(model, batches(1), Kronecker(samples=8))
    assert any("lm_head" in name for name in opt.anchor.weights)
    assert len(opt.anchor.adapters) == 6
    dora = lora(use_dora=True)
    with pytest.raises(ValueError, match="a variant of LoRA"):
        around(dora).consolidate(dora, batches(1))


@pytest.mark.parametrize("save", [False, True])
def test_in_the_trainer_with_checkpoints(tmp_path, learned, save):
    _, anchor = learned

    def trainer(**more):
        kept = Continual(anchor=anchor, preset="directions", plasticity_steps=4, probes={"old": batches(1)})
        given = transformers.TrainingArguments(
            str(tmp_path), max_steps=6, per_device_train_batch_size=8, learning_rate=1e-2, save_steps=3, report_to=[],
            disable_tqdm=True, use_cpu=True, seed=0, save_strategy="steps" if save else "no",
        )  # fmt: skip
        return transformers.Trainer(lora(), given, train_dataset=sequences(3), callbacks=[kept]), kept

    whole, kept = trainer()
    whole.train()
    assert kept.optimizer.progress.adapters
    if save:
        again, _ = trainer()
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
        assert equal(weights(whole.model), weights(again.model))


def test_with_the_trainer_of_trl_from_texts_of_the_model(tmp_path):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {str(i): i for i in range(14)} | {"<pad>": 14, "<eos>": 15, "<unk>": 16}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    model = language_model()
    kept = Continual(old=self_samples(model, fast, 16, length=8), save=tmp_path / "a", plasticity_steps=2)
    given = trl.SFTConfig(
        output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=4, learning_rate=1e-2, save_strategy="no",
        report_to=[], disable_tqdm=True, use_cpu=True, bf16=False, max_length=8,
    )  # fmt: skip
    texts = [" ".join(str((i + 3 * k) % 14) for k in range(6)) for i in range(16)]
    made = trl.SFTTrainer(
        model,
        given,
        train_dataset=datasets.Dataset.from_dict({"text": texts}),
        processing_class=fast,
        peft_config=peft.LoraConfig(r=2, target_modules=TARGETS),
        callbacks=[kept],
    )
    made.train()
    saved = Anchor.load(tmp_path / "a", made.model)
    assert saved.provenance["tasks"] == 2
    assert len(saved.adapters) == 6
    assert all(adapter.basis.inputs is not None for adapter in saved.adapters.values())

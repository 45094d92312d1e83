"""Text that a model writes itself, to measure importance when its training data are not available.

The Fisher information is an expectation over what the model finds likely, so the model's own text is a fair sample. But
it covers only what the model tends to write about: if you have real data of what matters, use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from drcl.preserve import check_model, undisturbed

IGNORED = -100


def self_samples(
    model: nn.Module,
    tokenizer: Any = None,
    n: int = 200,
    *,
    length: int = 128,
    temperature: float = 1.0,
    prompts: Sequence[str] | None = None,
    batch_size: int = 16,
    seed: int = 0,
) -> list[dict[str, Tensor]]:
    """Batches of text written by the model, for ``consolidate(model, batches)`` and ``Continual(old=batches)``.

    >>> opt.consolidate(model, self_samples(model, tokenizer, 200))  # doctest: +SKIP

    The model and all global random generators stay as they were. The same seed gives the same text.

    Args:
        model: a generative language model of transformers, with or without adapters.
        tokenizer: its tokenizer, for ``prompts`` and for the tokens that begin, end and pad a text. Without one these
            tokens come from the model's config.
        n: number of samples.
        length: tokens per sample, including the prompt; at most the number of positions of the model.
        temperature: 1 samples from the model as it is; lower values prefer its most likely tokens.
        prompts: texts to begin with, in turn. Without them a sample begins with the begin token; if there is none,
            with the end token, which often separates training texts; if there is none either, with a random token.
        batch_size: samples per batch.
        seed: seed of the sampling.

    Everything after the end token is padding and does not count: there ``attention_mask`` is 0 and ``labels`` are -100.
    """
    _check(model, n, length, temperature, batch_size)
    if prompts is not None:
        prompts = _texts(prompts, tokenizer)
    config = getattr(model, "config", None)
    vocabulary = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[operator]
    ids = {name: _token(name, tokenizer, config, vocabulary) for name in ("bos", "eos", "pad")}
    positions = getattr(config, "max_position_embeddings", None) or length
    device, found = next(model.parameters()).device, []
    with undisturbed(model, seed=seed), torch.no_grad():
        model.eval()
        for start in _starts(prompts, tokenizer, ids, vocabulary, n, batch_size):
            more = min(length, positions) - start.shape[1]
            if more < 1:
                raise ValueError(
                    f"a prompt has {start.shape[1]} tokens, which leaves no room for new text in "
                    f"length={min(length, positions)}; give shorter prompts or a larger length"
                )
            settings = GenerationConfig(
                do_sample=True,
                temperature=float(temperature),
                top_k=0,
                top_p=1.0,
                max_new_tokens=more,
                min_new_tokens=min(more, 8),
                bos_token_id=ids["bos"],
                eos_token_id=ids["eos"],
                pad_token_id=_padding(ids, vocabulary),
            )
            start = start.to(device)
            written = model.generate(  # type: ignore[operator]
                input_ids=start, attention_mask=torch.ones_like(start), generation_config=settings
            )
            found.append(_batch(written, start.shape[1], ids["eos"]))
    return found


def _check(model: Any, n: Any, length: Any, temperature: Any, batch_size: Any) -> None:
    check_model(model, "self_samples(model, tokenizer)")
    if not callable(getattr(model, "generate", None)) or not hasattr(model, "get_input_embeddings"):
        raise TypeError(f"self_samples: a {type(model).__name__} does not generate text; give a causal language model")
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ValueError(
            f"self_samples: {type(model).__name__} needs an input text and cannot begin one; give real inputs instead"
        )
    for name, value, least in (("n", n, 1), ("length", length, 2), ("batch_size", batch_size, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"self_samples({name}={value!r}): {name} must be a whole number of at least {least}")
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 < temperature < float("inf"):
        raise ValueError(f"self_samples(temperature={temperature!r}): temperature must be a number above 0")


def _texts(prompts: Any, tokenizer: Any) -> Sequence[str]:
    if isinstance(prompts, str) or not isinstance(prompts, Sequence) or not all(isinstance(t, str) for t in prompts):
        raise TypeError(f"self_samples(prompts={prompts!r}): prompts must be a list of texts")
    if not prompts:
        raise ValueError("self_samples(prompts=[]): give at least one text, or leave prompts out")
    if tokenizer is None:
        raise ValueError("self_samples: prompts need a tokenizer; pass tokenizer= too")
    return prompts


def _token(name: str, tokenizer: Any, config: Any, vocabulary: int) -> int | None:
    """The number of a special token; None if the model does not have it."""
    for owner in (tokenizer, config):
        value = getattr(owner, f"{name}_token_id", None)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, int) and 0 <= value < vocabulary:
            return value
    return None


def _padding(ids: dict[str, int | None], vocabulary: int) -> int:
    """The token that fills rows after their end; it is masked, so any token will do."""
    return next((ids[name] for name in ("pad", "eos", "bos") if ids[name] is not None), vocabulary - 1) or 0


def _starts(
    prompts: Sequence[str] | None,
    tokenizer: Any,
    ids: dict[str, int | None],
    vocabulary: int,
    n: int,
    batch_size: int,
) -> Iterator[Tensor]:
    """The first tokens of each batch; all samples of a batch have the same prompt, so nothing needs padding."""
    if prompts is not None:
        share = -(-n // len(prompts))
        for i, text in enumerate(prompts[:n]):
            row = torch.tensor([list(tokenizer(text)["input_ids"])])
            if not row.shape[1]:
                raise ValueError(f"self_samples(prompts=...): the tokenizer makes no tokens from {text!r}")
            for count in _counts(min(share, n - i * share), batch_size):
                yield row.expand(count, -1)
        return
    first = next((ids[name] for name in ("bos", "eos") if ids[name] is not None), None)
    for count in _counts(n, batch_size):
        yield torch.randint(vocabulary, (count, 1)) if first is None else torch.full((count, 1), first)


def _counts(n: int, batch_size: int) -> Iterator[int]:
    for done in range(0, n, batch_size):
        yield min(batch_size, n - done)


def _batch(written: Tensor, begun: int, eos: int | None) -> dict[str, Tensor]:
    """A batch in which everything after the first end token (the prompt excepted) does not count."""
    mask = torch.ones_like(written)
    if eos is not None:
        ended = (written[:, begun:] == eos).cumsum(1) - (written[:, begun:] == eos).long()
        mask[:, begun:] = (ended == 0).long()
    labels = written.masked_fill(mask == 0, IGNORED)
    return {"input_ids": written, "attention_mask": mask, "labels": labels}

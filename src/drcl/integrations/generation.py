"""Text that a model writes itself, for measuring what it can do where its training data are not at hand.

The Fisher information is an expectation over what the model finds likely, so its own text is a fair sample of it. What
the model has never been asked about it will not write about either: real data of what matters are better, where there
are some.
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
    """Batches of text that the model writes, for ``consolidate(model, batches)`` and ``Continual(old=batches)``.

    >>> opt.consolidate(model, self_samples(model, tokenizer, 200))  # doctest: +SKIP

    The model is left as it was, with all global random generators. The same seed gives the same text.

    Args:
        model: a language model of transformers that generates, with or without adapters.
        tokenizer: its tokenizer, for ``prompts`` and for the tokens of beginning, end and padding. Without one these
            are taken from the model's config.
        n: how many samples.
        length: tokens of each, the prompt among them; no more than the model has positions.
        temperature: 1 samples from the model as it is; below that it repeats what it is most sure of.
        prompts: texts to begin with, in turn. Without them a sample begins with the token for a beginning; where there
            is none with the one for an end, which training texts are often parted by; or with any token.
        batch_size: samples of a batch.
        seed: of the sampling.

    What comes after an end is padding, which does not count: ``attention_mask`` is 0 and ``labels`` are -100 there.
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
                    f"a prompt has {start.shape[1]} tokens, which leaves none of length={min(length, positions)} to "
                    "the model; give shorter prompts or a larger length"
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
            f"self_samples: {type(model).__name__} answers to a text and does not begin one; give real inputs instead"
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
        raise ValueError("self_samples: prompts are texts, and the tokenizer that reads them is missing; give it too")
    return prompts


def _token(name: str, tokenizer: Any, config: Any, vocabulary: int) -> int | None:
    """A special token's number, if there is one that the model knows."""
    for owner in (tokenizer, config):
        value = getattr(owner, f"{name}_token_id", None)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, int) and 0 <= value < vocabulary:
            return value
    return None


def _padding(ids: dict[str, int | None], vocabulary: int) -> int:
    """What fills rows that have ended; it is masked, so any token does."""
    return next((ids[name] for name in ("pad", "eos", "bos") if ids[name] is not None), vocabulary - 1) or 0


def _starts(
    prompts: Sequence[str] | None,
    tokenizer: Any,
    ids: dict[str, int | None],
    vocabulary: int,
    n: int,
    batch_size: int,
) -> Iterator[Tensor]:
    """What each batch begins with; prompts of a batch are one text, so that nothing has to be padded."""
    if prompts is not None:
        share = -(-n // len(prompts))
        for i, text in enumerate(prompts[:n]):
            row = torch.tensor([list(tokenizer(text)["input_ids"])])
            if not row.shape[1]:
                raise ValueError(f"self_samples(prompts=...): the tokenizer makes nothing of {text!r}")
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
    """The first end after the beginning counts, what follows does not."""
    mask = torch.ones_like(written)
    if eos is not None:
        ended = (written[:, begun:] == eos).cumsum(1) - (written[:, begun:] == eos).long()
        mask[:, begun:] = (ended == 0).long()
    labels = written.masked_fill(mask == 0, IGNORED)
    return {"input_ids": written, "attention_mask": mask, "labels": labels}

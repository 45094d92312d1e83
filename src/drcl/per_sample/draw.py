"""Draw samples, uniformly and without replacement, from whatever feeds a training loop.

Importance needs a few thousand samples from any amount of data. From a `DataLoader` over an indexable data set only
those are read. Anything else that yields batches is read once, and the samples with the smallest random keys are kept,
so memory depends on the number of samples and not on the size of the data.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils import data

__all__ = ["batch_length", "draw", "join", "map_tensors", "regroup", "take", "tensors"]

# Larger batches are not faster and cost memory; a loader's own smaller batch size is respected.
LARGEST_BATCH = 128


def draw(batches: Any, samples: int, seed: int = 0, batch_size: int | None = None) -> Iterator[Any]:
    """Yield batches that hold `samples` samples of `batches`, each once; or all of them if there are fewer.

    `batches` is a `DataLoader` or any iterable of batches; a batch is a tensor, or a nested tuple, list or dict of
    tensors, with the samples along their first dimension. The samples come in the order of the data. This uses up a
    generator, and an endless one never finishes.
    """
    rng = np.random.default_rng(seed)
    if isinstance(batches, data.DataLoader):
        with _own_generators_kept(batches):
            indices = _indices(batches)
            if indices is not None:
                yield from _draw_indexed(batches, indices, samples, rng, batch_size)
            else:
                yield from _draw_streamed(batches, samples, rng, batch_size)
        return
    if isinstance(batches, data.Dataset) and not isinstance(batches, data.IterableDataset):
        raise TypeError(
            f"batches is a data set ({type(batches).__name__}), which yields single samples; "
            "wrap it in a torch.utils.data.DataLoader"
        )
    if isinstance(batches, torch.Tensor | np.ndarray | str | Mapping) or not isinstance(batches, Iterable):
        raise TypeError(
            f"batches must be a DataLoader or an iterable of batches, got {type(batches).__name__}; "
            "for a single batch pass a list that holds it, [(inputs, labels)]"
        )
    yield from _draw_streamed(batches, samples, rng, batch_size)


@contextmanager
def _own_generators_kept(loader: data.DataLoader[Any]) -> Iterator[None]:
    """Restore the loader's generators, so that drawing does not change the order of the caller's next epoch."""
    owners = (loader, loader.sampler, loader.batch_sampler)
    found = [getattr(owner, "generator", None) for owner in owners]
    states = [(g, g.get_state()) for g in found if isinstance(g, torch.Generator)]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


def _indices(loader: data.DataLoader[Any]) -> Sequence[int] | None:
    """The positions in the data set that the loader would visit, or None if it cannot be indexed."""
    if isinstance(loader.dataset, data.IterableDataset) or loader.batch_size is None:
        return None
    try:
        size = len(loader.dataset)  # type: ignore[arg-type]
    except TypeError:
        return None
    sampler = loader.sampler
    if type(sampler) is data.SequentialSampler:
        return range(size)
    if type(sampler) is data.RandomSampler and not sampler.replacement and sampler.num_samples == size:
        return range(size)
    # A sampler may visit only a part of the data set, such as the training half; draw only from that.
    try:
        visited = itertools.islice(sampler, len(sampler))  # type: ignore[arg-type]
        return list(dict.fromkeys(int(i) for i in visited))
    except TypeError:
        return None


def _draw_indexed(
    loader: data.DataLoader[Any],
    indices: Sequence[int],
    samples: int,
    rng: np.random.Generator,
    batch_size: int | None,
) -> Iterator[Any]:
    if len(indices) > samples:
        chosen = np.sort(rng.choice(len(indices), size=samples, replace=False))
        indices = [indices[i] for i in chosen]
    if len(indices) == 0:
        return
    yield from data.DataLoader(
        data.Subset(loader.dataset, indices),
        batch_size=batch_size or min(loader.batch_size or 1, LARGEST_BATCH),
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=torch.Generator().manual_seed(int(rng.integers(2**31))),
    )


def _draw_streamed(
    batches: Iterable[Any], samples: int, rng: np.random.Generator, batch_size: int | None
) -> Iterator[Any]:
    """One pass with random keys; kept rows are copied from their batches, so that these can be freed.

    A whole batch from a list is not copied, because the list holds it anyway. A generator may reuse its memory, so its
    batches are always copied.
    """
    lasting = isinstance(batches, Sequence)
    kept: list[tuple[np.ndarray, Any]] = []
    held, limit, largest = 0, np.inf, 1
    for batch in batches:
        length = batch_length(batch)
        largest = max(largest, length)
        keys = rng.random(length)
        rows = np.flatnonzero(keys < limit)
        if len(rows):
            whole = lasting and len(rows) == length
            kept.append((keys[rows], batch if whole else take(batch, rows)))
            held += len(rows)
        if held > 2 * samples:
            kept, limit = _smallest(kept, samples)
            held = samples
    if held > samples:
        kept, _ = _smallest(kept, samples)
    yield from regroup([rows for _, rows in kept], batch_size or min(largest, LARGEST_BATCH))


def _smallest(kept: list[tuple[np.ndarray, Any]], samples: int) -> tuple[list[tuple[np.ndarray, Any]], float]:
    keys = np.concatenate([k for k, _ in kept])
    limit = np.partition(keys, samples - 1)[samples - 1]
    fewer = []
    for k, rows in kept:
        inside = np.flatnonzero(k <= limit)
        if len(inside) == len(k):
            fewer.append((k, rows))
        elif len(inside):
            fewer.append((k[inside], take(rows, inside)))
    return fewer, float(limit)


def regroup(pieces: Iterable[Any], batch_size: int) -> Iterator[Any]:
    """Batches of `batch_size` from pieces of any length; pieces of different shapes are never mixed."""
    waiting: dict[Any, list[Any]] = {}
    for piece in pieces:
        length, start = batch_length(piece), 0
        group = waiting.setdefault(_signature(piece), [])
        while start < length:
            room = batch_size - sum(batch_length(p) for p in group)
            stop = min(length, start + room)
            whole = start == 0 and stop == length
            group.append(piece if whole else take(piece, slice(start, stop)))
            start = stop
            if sum(batch_length(p) for p in group) == batch_size:
                yield join(group)
                group.clear()
    for group in waiting.values():
        if group:
            yield join(group)


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, Mapping):
        return [t for value in tree.values() for t in tensors(value)]
    if isinstance(tree, tuple | list):
        return [t for value in tree for t in tensors(value)]
    return []


def map_tensors(function: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """The same nested structure with `function` applied to every tensor."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return {key: map_tensors(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return _like(tree, [map_tensors(function, value) for value in tree])
    return tree


def batch_length(batch: Any) -> int:
    """The number of samples in a batch: the first dimension that all its tensors share."""
    lengths = list(dict.fromkeys(_lengths(batch)))
    if not lengths:
        raise TypeError(
            f"a batch must hold tensors with the samples along the first dimension, got "
            f"{type(batch).__name__}; a batch is a tensor, or a tuple, list or dict of tensors"
        )
    if len(lengths) > 1:
        raise ValueError(
            f"the tensors of a batch disagree on the number of samples (first dimensions {lengths}); "
            "the samples must lie along the first dimension of every tensor"
        )
    return lengths[0]


def _lengths(tree: Any) -> list[int]:
    if isinstance(tree, torch.Tensor | np.ndarray):
        return [tree.shape[0]] if tree.ndim else []
    if isinstance(tree, Mapping):
        return [n for value in tree.values() for n in _lengths(value)]
    if isinstance(tree, tuple | list):
        return [n for value in tree for n in _lengths(value)]
    return []


def take(batch: Any, rows: np.ndarray | Sequence[int] | slice) -> Any:
    """Some samples of a batch: copied if chosen by number, shared if chosen by a slice."""
    return _take(batch, rows if isinstance(rows, slice) else np.asarray(rows), batch_length(batch))


def _take(tree: Any, rows: np.ndarray | slice, length: int) -> Any:
    if isinstance(tree, torch.Tensor):
        if tree.ndim == 0:
            return tree
        return tree[rows if isinstance(rows, slice) else torch.from_numpy(rows).to(tree.device)]
    if isinstance(tree, np.ndarray):
        return tree[rows] if tree.ndim else tree
    if isinstance(tree, Mapping):
        return {key: _take(value, rows, length) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        if _is_column(tree, length):
            return _like(tree, list(tree[rows] if isinstance(rows, slice) else [tree[i] for i in rows]))
        return _like(tree, [_take(value, rows, length) for value in tree])
    return tree


def join(batches: Sequence[Any]) -> Any:
    """Join several batches of the same structure."""
    if len(batches) == 1:
        return batches[0]
    return _join(batches, [batch_length(b) for b in batches])


def _join(trees: Sequence[Any], lengths: list[int]) -> Any:
    first = trees[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(list(trees)) if first.ndim else first
    if isinstance(first, np.ndarray):
        return np.concatenate(list(trees)) if first.ndim else first
    if isinstance(first, Mapping):
        return {key: _join([t[key] for t in trees], lengths) for key in first}
    if isinstance(first, tuple | list):
        if _is_column(first, lengths[0]):
            return _like(first, list(itertools.chain.from_iterable(trees)))
        return _like(first, [_join(column, lengths) for column in zip(*trees)])
    return first


def _is_column(values: Sequence[Any], length: int) -> bool:
    """Whether this is a list with one plain value per sample, such as a loader makes from strings."""
    plain = (torch.Tensor, np.ndarray, Mapping, tuple, list)
    return len(values) == length and not any(isinstance(v, plain) for v in values)


def _like(original: Sequence[Any], values: list[Any]) -> Any:
    if hasattr(original, "_fields"):
        return type(original)(*values)
    return tuple(values) if isinstance(original, tuple) else values


def _signature(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return (tree.shape[1:], tree.dtype, tree.device)
    if isinstance(tree, np.ndarray):
        return (tree.shape[1:], tree.dtype)
    if isinstance(tree, Mapping):
        return tuple((key, _signature(value)) for key, value in tree.items())
    if isinstance(tree, tuple | list):
        return tuple(_signature(value) for value in tree if tensors(value) or isinstance(value, np.ndarray))
    return None

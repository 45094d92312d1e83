"""Draw samples, uniformly and without replacement, from whatever feeds a training loop.

Importance needs some thousand samples out of any amount of data. A `DataLoader` over an indexable data set is
asked for those alone; anything else that yields batches is read once, keeping the samples with the smallest
random keys, so memory is bounded by the number asked for and not by the size of the data.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils import data

__all__ = ["batch_length", "draw", "join", "map_tensors", "regroup", "take", "tensors"]

# Larger batches stopped paying in speed and cost memory; a loader's own smaller batch is respected.
LARGEST_BATCH = 128


def draw(batches: Any, samples: int, seed: int = 0, batch_size: int | None = None) -> Iterator[Any]:
    """Yield batches that hold `samples` samples of `batches`, each once; all of them when it has no more.

    `batches` is a `DataLoader` or any iterable of batches; a batch is a tensor or a tuple, list or dict of
    tensors, nested at will, with the samples along their first dimension. The order is that of the data.
    A generator is used up by this, and an endless one is never finished.
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
    """Drawing must not change the order in which the caller's next epoch comes."""
    owners = (loader, loader.sampler, loader.batch_sampler)
    found = [getattr(owner, "generator", None) for owner in owners]
    states = [(g, g.get_state()) for g in found if isinstance(g, torch.Generator)]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


def _indices(loader: data.DataLoader[Any]) -> Sequence[int] | None:
    """The positions of the data set the loader would visit, or None when it cannot be indexed."""
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
    # A subset sampler holds, say, the training half of the data set: only what it visits may be drawn.
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
    """One pass with random keys; the kept rows are copied out of their batches, which can then be freed.

    A whole batch of a list is kept as it is, since the list holds it anyway; a generator may fill the same
    memory again, so what it yields is always copied.
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
    """Batches of `batch_size` out of pieces of any length; pieces of different shapes are never mixed."""
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
    """The tensors of a nest of tuples, lists and dicts, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, Mapping):
        return [t for value in tree.values() for t in tensors(value)]
    if isinstance(tree, tuple | list):
        return [t for value in tree for t in tensors(value)]
    return []


def map_tensors(function: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """The same nest with `function` applied to every tensor."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return {key: map_tensors(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return _like(tree, [map_tensors(function, value) for value in tree])
    return tree


def batch_length(batch: Any) -> int:
    """How many samples a batch holds: the first dimension all its tensors share."""
    lengths = list(dict.fromkeys(_lengths(batch)))
    if not lengths:
        raise TypeError(
            f"a batch must hold tensors with the samples along the first dimension, got "
            f"{type(batch).__name__}; a batch is a tensor, or a tuple, list or dict of tensors"
        )
    if len(lengths) > 1:
        raise ValueError(
            f"the tensors of a batch disagree on the number of samples (first dimensions {lengths}); "
            "the samples have to lie along the first dimension of every tensor"
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
    """Some samples of a batch: copied when chosen by number, shared when by slice."""
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
    """One batch out of several of the same structure."""
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
    """A list with one plain value per sample, as a loader makes of strings."""
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

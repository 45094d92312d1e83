"""One run on several processes: who we are among them, and the few sums they exchange.

Every process walks through the same batches and holds the same weights and the same method's state; it computes the
loss of its own share of each batch, and the gradients are summed over all. So `batch` counts the images of all
processes together, and a run means the same on one process and on eight. On a single process all of this is nothing.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class World:
    """This process among the others."""

    rank: int = 0
    size: int = 1

    def share(self, count: int) -> slice:
        """Which of `count` examples are ours: blocks of equal length, give or take one."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)


def world() -> World:
    """The group this process is in; a group of one if nobody made another."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    return World()


def join(device: torch.device) -> World:
    """Join the processes that a launcher such as torchrun has started, once and until this one ends.

    Leaving and joining again would race: one process may reach the meeting point while another still closes it.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(dist.destroy_process_group)
    return world()


def local_rank() -> int:
    """Which of the machine's devices is ours."""
    return int(os.environ.get("LOCAL_RANK", "0"))


@torch.no_grad()
def sum_gradients(parameters: Iterable[nn.Parameter], share: float) -> None:
    """Replace each gradient by the sum of all processes' gradients, each weighted by its share of the batch.

    A parameter that no process has a gradient for keeps none, so that no optimizer moves it.
    """
    if world().size == 1:
        return
    chosen = [p for p in parameters if p.requires_grad]
    present = chosen[0].new_tensor([p.grad is not None for p in chosen])
    pieces = [p.new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) * share for p in chosen]
    flat = torch.cat([*pieces, present])
    dist.all_reduce(flat)
    there = flat[-len(chosen) :].tolist()
    for p, piece, someone in zip(chosen, flat[: -len(chosen)].split([p.numel() for p in chosen]), there):
        p.grad = piece.view_as(p).clone() if someone else None


def total(value: Tensor) -> Tensor:
    """The sum of a tensor over all processes."""
    if world().size > 1:
        value = value.clone()
        dist.all_reduce(value)
    return value


def gathered(value: Tensor) -> list[Tensor]:
    """The tensors of all processes, by rank."""
    if world().size == 1:
        return [value]
    # NCCL can only move tensors on its own device.
    here = value.cuda() if dist.get_backend() == "nccl" else value
    out = [torch.empty_like(here) for _ in range(world().size)]
    dist.all_gather(out, here)
    return [t.cpu() for t in out]


@torch.no_grad()
def same_buffers(model: nn.Module) -> None:
    """Give every process the first one's norm statistics, which it took from its own share of the batches."""
    if world().size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def wait() -> None:
    if world().size > 1:
        dist.barrier()

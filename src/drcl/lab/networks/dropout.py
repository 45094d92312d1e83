"""Dropout whose random numbers are cheap on a CPU, where torch's own take much of an AlexNet's training step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

_LEVELS = 1 << 16  # a rate is rounded to a multiple of one part in 65,536


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`; on a CPU, each activation is dropped by 16 random bits of its own.

    One number from torch's generator seeds numpy's SFC64, which is many times faster. So the masks depend on torch's
    random state alone, and a resumed run draws the same ones.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p in (0.0, 1.0) or x.device.type != "cpu":
            return super().forward(x)
        return x * self._mask(x)

    @property
    def scale(self) -> float:
        """What a kept activation is multiplied by."""
        return 1 / (1 - self.p)

    @property
    def least(self) -> int:
        """An activation is kept if its bits, read as a number from -32768 to 32767, are at least this."""
        return round(self.p * _LEVELS) - _LEVELS // 2

    def bits(self, count: int) -> Tensor:
        """16 random bits for each of so many activations, in the order in which they lie in memory."""
        seed = int(torch.randint(1 << 62, ()))
        return torch.from_numpy(np.random.SFC64(seed).random_raw(-(-count // 4)).view(np.int16)[:count])

    def _mask(self, x: Tensor) -> Tensor:
        """Zeros and 1 / (1 - p), laid out in memory as `x` is."""
        bits = self.bits(x.numel())
        # Ones and zeros stay 16 bits wide: comparing into another width and turning truth values into floats is slow.
        kept = torch.ge(bits, self.least, out=torch.empty_like(bits))
        mask = torch.empty_like(x)
        if x.dim() == 4 and mask.is_contiguous(memory_format=torch.channels_last):
            flat = mask.permute(0, 2, 3, 1)
        else:
            flat = mask = torch.empty(x.shape, dtype=x.dtype)
        flat.copy_(kept.view(flat.shape)).mul_(self.scale)
        return mask

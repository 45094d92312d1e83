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

    def _mask(self, x: Tensor) -> Tensor:
        """Zeros and 1 / (1 - p), laid out in memory as `x` is."""
        seed = int(torch.randint(1 << 62, ()))
        words = np.random.SFC64(seed).random_raw(-(-x.numel() // 4))
        bits = torch.from_numpy(words.view(np.int16)[: x.numel()])  # uniform from -32768 to 32767
        # Ones and zeros stay 16 bits wide: comparing into another width and turning truth values into floats is slow.
        kept = torch.ge(bits, round(self.p * _LEVELS) - _LEVELS // 2, out=torch.empty_like(bits))
        mask = torch.empty_like(x)
        if x.dim() == 4 and mask.is_contiguous(memory_format=torch.channels_last):
            flat = mask.permute(0, 2, 3, 1)
        else:
            flat = mask = torch.empty(x.shape, dtype=x.dtype)
        flat.copy_(kept.view(flat.shape)).mul_(1 / (1 - self.p))
        return mask

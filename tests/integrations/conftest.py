"""A torchvision built for another torch lacks two operators whose shapes it registers; defining them lets it load."""

import contextlib
import importlib.util

import torch

if importlib.util.find_spec("torchvision") is not None:
    with contextlib.suppress(RuntimeError):  # they are there
        LIBRARY = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

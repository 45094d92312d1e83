"""Fine-tune an image model on a second task without losing the first: a model of timm, alone and with drcl.

    pip install "drcl[lab]" timm
    python examples/timm_images.py

A small vision transformer learns handwritten digits, then the same images turned by 90 degrees. The second training has
none of the first images, only the anchor. Ends in tables of what was kept and learned.
"""

import argparse
import copy

import timm
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy, interpolate

from drcl import DRCL, Retention


def task(turns):
    """Batches to train on, and batches to measure on."""
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None].expand(-1, 3, -1, -1) / 8 - 1
    x, y = interpolate(x, size=16).rot90(turns, (2, 3)).contiguous(), torch.tensor(digits.target)
    cut = int(0.8 * len(x))
    return [list(zip(x[part].split(32), y[part].split(32))) for part in (slice(cut), slice(cut, None))]


def learn(model, opt, batches, epochs):
    model.train()
    for _ in range(epochs):
        for x, y in batches:
            opt.zero_grad()
            cross_entropy(model(x), y).backward()
            opt.step()


def accuracy(model, batches):
    return sum(float((model(x).argmax(1) == y).sum()) for x, y in batches) / sum(len(y) for _, y in batches)


def main(epochs, width, name):
    torch.manual_seed(0)
    (first, held_first), (second, held_second) = task(0), task(1)
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": width, "depth": 3, "num_heads": 4} if "vit" in name else {}
    start = timm.create_model(name, pretrained=False, num_classes=10, **sizes)
    opt = DRCL.around(torch.optim.AdamW(start.named_parameters(), lr=1e-3))
    learn(start, opt, first, epochs)
    opt.consolidate(start, first)
    anchor = opt.anchor  # anchor.save("digits.safetensors") is what you would ship beside the model
    for title in ("AdamW", "AdamW inside drcl"):
        model = copy.deepcopy(start)
        opt = torch.optim.AdamW(model.named_parameters(), lr=1e-3)
        if title != "AdamW":
            opt = DRCL.around(opt)
            opt.protect(model, anchor)
        held = {"upright": held_first, "turned": held_second}
        retention = Retention(held, ["turned"], metric=accuracy, title=f"{title}: accuracy")
        retention.measure(model, "before")
        learn(model, opt, second, epochs)
        retention.measure(model, "after", *([opt] if isinstance(opt, DRCL) else []))
        print(f"\n{retention}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8, help="of each task")
    parser.add_argument("--width", type=int, default=64, help="of the vision transformer")
    parser.add_argument("--name", default="vit_tiny_patch16_224", help="a model of timm")
    main(**vars(parser.parse_args()))

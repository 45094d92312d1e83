"""The list of data sets."""

from __future__ import annotations

from drcl.lab.data import names


def test_every_promised_data_set_is_registered() -> None:
    wanted = "mnist fashion-mnist emnist cifar10 cifar100 tinyimagenet imagenet celeba cub200 casia-hwdb omniglot"
    wanted += " quickdraw leaf-femnist leaf-celeba digits hanzi folder npz huggingface torch"
    assert set(wanted.split()) <= set(names())
    assert names() == sorted(names())

"""Networks: the usual trunks of benchmarks, heads, and the policies of norm layers."""

from drcl.lab.networks.alexnet import AlexNet, AlexNetGPM
from drcl.lab.networks.cnn import SmallCNN, UPGDNet
from drcl.lab.networks.heads import HeadKind, Heads
from drcl.lab.networks.mlp import MLP
from drcl.lab.networks.network import Network, build, count_parameters
from drcl.lab.networks.norms import NormPolicy, make_norm
from drcl.lab.networks.resnet import ReducedResNet18, ResNet18
from drcl.lab.networks.trunks import TRUNKS, check, names, register

__all__ = [
    "MLP",
    "TRUNKS",
    "AlexNet",
    "AlexNetGPM",
    "HeadKind",
    "Heads",
    "Network",
    "NormPolicy",
    "ReducedResNet18",
    "ResNet18",
    "SmallCNN",
    "UPGDNet",
    "build",
    "check",
    "count_parameters",
    "make_norm",
    "names",
    "register",
]

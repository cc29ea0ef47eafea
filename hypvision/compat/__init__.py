"""Layers of published code that no model here uses, to build and load your own networks.

:mod:`hypvision.nn` has the layers of the models. Here are those of HyperbolicCV,
fully-hyperbolic-nn, HyperCore, FGG, geoopt, hyptorch, HNN++ and HypLL beside them, with the same
conventions; :func:`layer_state` loads weights of single layers as those libraries store them.
"""

from .attention import LorentzLinearAttention
from .ball import PoincareBatchNorm1d, PoincareBatchNorm2d, PoincareConv2d
from .embedding import LorentzPatchEmbed
from .linear import FGGLinear, PLFCLinear, PoincareFullyConnected, PoincareLinear
from .mlr import FGGMLR, GaneaMLR, PoincareMLR
from .norm import GyroLorentzBatchNorm1d, GyroLorentzBatchNorm2d
from .weights import layer_state

__all__ = [
    "FGGLinear", "FGGMLR", "GaneaMLR", "GyroLorentzBatchNorm1d", "GyroLorentzBatchNorm2d",
    "LorentzLinearAttention", "LorentzPatchEmbed", "PLFCLinear",
    "PoincareBatchNorm1d", "PoincareBatchNorm2d", "PoincareConv2d", "PoincareFullyConnected",
    "PoincareLinear", "PoincareMLR", "layer_state",
]  # fmt: skip

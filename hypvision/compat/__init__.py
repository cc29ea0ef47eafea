"""Layers of published code that no model of hypvision uses, for users who build or load their own
networks.

:mod:`hypvision.nn` has the layers of hypvision's models. This package adds layers of HyperbolicCV,
fully-hyperbolic-nn, HyperCore, FGG, geoopt, hyptorch, HNN++ and HypLL, with the same conventions;
:func:`layer_state` converts weights of single layers from the form in which those libraries store
them.
"""

from .attention import LorentzLinearAttention
from .ball import PoincareBatchNorm1d, PoincareBatchNorm2d, PoincareConv2d
from .embedding import HypformerLift, LorentzPatchEmbed
from .linear import FGGLinear, PLFCLinear, PoincareFullyConnected, PoincareLinear
from .mlr import FGGMLR, GaneaMLR, LorentzPrototypeHead, PoincareMLR
from .norm import GyroLorentzBatchNorm1d, GyroLorentzBatchNorm2d
from .weights import layer_state

__all__ = [
    "FGGLinear", "FGGMLR", "GaneaMLR", "GyroLorentzBatchNorm1d", "GyroLorentzBatchNorm2d",
    "HypformerLift", "LorentzLinearAttention", "LorentzPatchEmbed", "LorentzPrototypeHead",
    "PLFCLinear", "PoincareBatchNorm1d", "PoincareBatchNorm2d", "PoincareConv2d",
    "PoincareFullyConnected", "PoincareLinear", "PoincareMLR", "layer_state",
]  # fmt: skip

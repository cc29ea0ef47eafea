"""Neural-network layers built on :mod:`hypvision.geometry`.

Lorentz layers take and return space parts: maps ``(B, C, H, W)``, tokens ``(..., n)``. Points with time come from
``manifold.from_space`` and lose it by ``x[..., 1:]``. Layers of the ball take and return points.
"""

from .attention import LorentzAttention, LorentzLinearAttention
from .ball import PoincareBatchNorm1d, PoincareBatchNorm2d, PoincareConv2d
from .cluster_mixer import ClusterAssignment, ClusterMixer
from .conv import (
    EfficientLorentzConv1d,
    EfficientLorentzConv2d,
    EfficientLorentzLinear,
    LorentzConv1d,
    LorentzConv2d,
    LorentzConvTranspose2d,
)
from .elementwise import OnSpace, OnTangent
from .embedding import HyperbolicEmbedding, LorentzPatchEmbed
from .linear import FGGLinear, LorentzLinear, PoincareFullyConnected, PoincareLinear
from .mlr import GaneaMLR, LorentzMLR, PoincareMLR
from .norm import (
    GyroLorentzBatchNorm1d,
    GyroLorentzBatchNorm2d,
    LorentzBatchNorm1d,
    LorentzBatchNorm2d,
    LorentzLayerNorm,
    LorentzRMSNorm,
)
from .pool import LorentzAvgPool2d, LorentzGlobalAvgPool2d
from .residual import LorentzResidual
from .transition import ChangeManifold, ToLorentz, ToTangent

__all__ = [
    "ChangeManifold",
    "ClusterAssignment",
    "ClusterMixer",
    "EfficientLorentzConv1d",
    "EfficientLorentzConv2d",
    "EfficientLorentzLinear",
    "FGGLinear",
    "GaneaMLR",
    "GyroLorentzBatchNorm1d",
    "GyroLorentzBatchNorm2d",
    "HyperbolicEmbedding",
    "LorentzAttention",
    "LorentzAvgPool2d",
    "LorentzBatchNorm1d",
    "LorentzBatchNorm2d",
    "LorentzConv1d",
    "LorentzConv2d",
    "LorentzConvTranspose2d",
    "LorentzGlobalAvgPool2d",
    "LorentzLayerNorm",
    "LorentzLinear",
    "LorentzLinearAttention",
    "LorentzMLR",
    "LorentzPatchEmbed",
    "LorentzRMSNorm",
    "LorentzResidual",
    "OnSpace",
    "OnTangent",
    "PoincareBatchNorm1d",
    "PoincareBatchNorm2d",
    "PoincareConv2d",
    "PoincareFullyConnected",
    "PoincareLinear",
    "PoincareMLR",
    "ToLorentz",
    "ToTangent",
]

"""Neural-network layers built on :mod:`hypvision.geometry`.

Lorentz layers take and return the space parts of points: maps ``(B, C, H, W)`` or tokens
``(..., n)``. ``manifold.from_space`` adds the time coordinate, ``x[..., 1:]`` removes it. Layers of
the Poincare ball take and return points.

Operations that need no layer of this package:

- Activations and dropout of the published Lorentz networks act on space parts: ``nn.ReLU()``,
  ``nn.Dropout(p)``. :class:`OnSpace` does the same to points with time, :class:`OnTangent` to
  tangent vectors at the origin. Batch norm of the space part alone (an option of HyperCore's) is
  ``nn.BatchNorm2d``.
- Concatenation and splitting of points (the direct ones of Qu and Zou, 2022) are ``torch.cat`` and
  ``torch.split`` of space parts, and flattening a map is ``x.flatten(1)``; the time is computed
  from the result. For points with time they are :func:`hypvision.geometry.lorentz.concat` and
  ``split``; on the ball :func:`hypvision.geometry.poincare.beta_concat` and ``beta_split``.

The default initialisation of every layer keeps radii in range in stacks of any depth. Where it does
not, the layer's docstring names the norm layer to add. A published initialisation that does not can
be chosen by ``init="..."``.

:mod:`hypvision.compat` has layers of other code bases that no model here uses.

Batch norms, times and centroids have backward functions written by hand. A double backward, the
transforms of ``torch.func`` (``vmap``, ``grad``, ...) and compilers use plain operations instead.
One exception: a double backward of :class:`LorentzAttention` needs
``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)``, because PyTorch's faster kernels have none.
"""

from .attention import LorentzAttention
from .batch_statistics import is_batch_norm, update_bn
from .busemann import BusemannLinear, BusemannMLR
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
from .embedding import HyperbolicEmbedding
from .linear import LorentzLinear
from .mlr import LorentzMLR
from .norm import LorentzBatchNorm1d, LorentzBatchNorm2d, LorentzLayerNorm, LorentzRMSNorm
from .pool import LorentzAvgPool2d, LorentzGlobalAvgPool2d
from .residual import LorentzResidual
from .transition import ChangeManifold, ToLorentz, ToTangent

__all__ = [
    "BusemannLinear", "BusemannMLR", "ChangeManifold", "ClusterAssignment", "ClusterMixer",
    "EfficientLorentzConv1d", "EfficientLorentzConv2d", "EfficientLorentzLinear",
    "HyperbolicEmbedding", "LorentzAttention", "LorentzAvgPool2d", "LorentzBatchNorm1d",
    "LorentzBatchNorm2d", "LorentzConv1d", "LorentzConv2d", "LorentzConvTranspose2d",
    "LorentzGlobalAvgPool2d", "LorentzLayerNorm", "LorentzLinear", "LorentzMLR", "LorentzRMSNorm",
    "LorentzResidual", "OnSpace", "OnTangent", "ToLorentz", "ToTangent", "is_batch_norm",
    "update_bn",
]  # fmt: skip

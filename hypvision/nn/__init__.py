"""Neural-network layers built on :mod:`hypvision.geometry`.

Lorentz layers take and return space parts: maps ``(B, C, H, W)``, tokens ``(..., n)``. Points with time come from
``manifold.from_space`` and lose it by ``x[..., 1:]``. Layers of the ball take and return points.

What needs no layer:

- Activations and dropout of the published Lorentz networks act on the space part: ``nn.ReLU()``, ``nn.Dropout(p)`` on
  what the layers hand on. :class:`OnSpace` does the same to points with time, :class:`OnTangent` in the tangent space.
  Batch norm of the space part alone (an option of HyperCore's) is ``nn.BatchNorm2d``.
- Concatenation and splitting of points (the direct ones of Qu and Zou, 2022) are ``torch.cat`` and ``torch.split`` of
  space parts, flattening a map is ``x.flatten(1)``; time follows. With time they are
  :func:`hypvision.geometry.lorentz.concat` and ``split``; on the ball :func:`hypvision.geometry.poincare.beta_concat`
  and ``beta_split``.

Every layer starts with an init that keeps radii in range in stacks of any depth, or names the norm that does. Where the
published init does not, it has a name: ``init="..."``.

:mod:`hypvision.nn.published` has the layers of other code bases that no model here uses.

Batch norms have a backward function written by hand. A double backward (``create_graph=True``) and the transforms of
``torch.func`` (``vmap``, ``grad``, ...) run in plain operations instead, as compilers do. The one exception is
PyTorch's: :class:`published.LorentzAttention` differentiates twice within
``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)``, as the kernels that are faster have no double backward.
"""

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
from .norm import (
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
    "HyperbolicEmbedding",
    "LorentzAvgPool2d",
    "LorentzBatchNorm1d",
    "LorentzBatchNorm2d",
    "LorentzConv1d",
    "LorentzConv2d",
    "LorentzConvTranspose2d",
    "LorentzGlobalAvgPool2d",
    "LorentzLayerNorm",
    "LorentzLinear",
    "LorentzMLR",
    "LorentzRMSNorm",
    "LorentzResidual",
    "OnSpace",
    "OnTangent",
    "ToLorentz",
    "ToTangent",
]

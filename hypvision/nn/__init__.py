"""Neural-network layers built on :mod:`hypvision.geometry`.

Lorentz layers take and return space parts: maps ``(B, C, H, W)``, tokens ``(..., n)``.
``manifold.from_space`` adds the time, ``x[..., 1:]`` drops it. Layers of the ball take and return
points.

What needs no layer:

- Activations and dropout of the published Lorentz networks act on space parts: ``nn.ReLU()``,
  ``nn.Dropout(p)``. :class:`OnSpace` does the same to points with time, :class:`OnTangent` in the
  tangent space. Batch norm of the space part alone (an option of HyperCore's) is
  ``nn.BatchNorm2d``.
- Concatenation and splitting of points (the direct ones of Qu and Zou, 2022) are ``torch.cat`` and
  ``torch.split`` of space parts, flattening a map is ``x.flatten(1)``; time follows. With time they
  are :func:`hypvision.geometry.lorentz.concat` and ``split``; on the ball
  :func:`hypvision.geometry.poincare.beta_concat` and ``beta_split``.

The default initialisation of every layer keeps radii in range in stacks of any depth; where it does
not, the layer's docstring names the norm to add. A published init that does not can be chosen by
``init="..."``.

:mod:`hypvision.compat` has the layers of other code bases that no model here uses.

Batch norms, times and centroids have backward functions written by hand. A double backward and
the transforms of ``torch.func`` (``vmap``, ``grad``, ...) use plain operations instead, as
compilers do. One exception: a double backward of :class:`LorentzAttention` needs
``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)``, because PyTorch's faster kernels have none.
"""

from .attention import LorentzAttention
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
    "ChangeManifold", "ClusterAssignment", "ClusterMixer", "EfficientLorentzConv1d",
    "EfficientLorentzConv2d", "EfficientLorentzLinear", "HyperbolicEmbedding", "LorentzAttention",
    "LorentzAvgPool2d", "LorentzBatchNorm1d", "LorentzBatchNorm2d", "LorentzConv1d",
    "LorentzConv2d", "LorentzConvTranspose2d", "LorentzGlobalAvgPool2d", "LorentzLayerNorm",
    "LorentzLinear", "LorentzMLR", "LorentzRMSNorm", "LorentzResidual", "OnSpace", "OnTangent",
    "ToLorentz", "ToTangent",
]  # fmt: skip

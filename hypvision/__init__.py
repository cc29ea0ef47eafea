"""hypvision: hyperbolic vision models for PyTorch.

Importing the package registers its backbones and optimisers in timm, so that ``timm.create_model("hcformer_tiny")`` and
``timm.optim.create_optimizer_v2(model, "riemannianadamw")`` work. It imports torch and timm only; everything for
segmentation, detection and CLIP loads when it is used.
"""

from . import geometry, models, nn, optim
from .inference import predict
from .version import __version__
from .zoo import load

__all__ = ["__version__", "geometry", "load", "models", "nn", "optim", "predict"]

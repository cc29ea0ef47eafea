"""hypvision: hyperbolic vision models for PyTorch.

Importing the package registers its backbones in timm, so that ``timm.create_model("hcformer_tiny")`` works. It imports
torch and timm only; everything for segmentation, detection and CLIP loads when it is used.
"""

from . import geometry, models
from .version import __version__

__all__ = ["__version__", "geometry", "models"]

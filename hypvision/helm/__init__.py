"""HELM: hyperbolic decoder language models (He et al., NeurIPS 2025), and their Euclidean
counterparts.

No vision model needs this package. :class:`Helm` is written in plain PyTorch;
:mod:`hypvision.helm.huggingface` makes it a model of the transformers library.
"""

from .cache import LatentCache
from .config import PRESETS, Architecture, preset
from .model import Helm, Output

__all__ = ["PRESETS", "Architecture", "Helm", "LatentCache", "Output", "preset"]

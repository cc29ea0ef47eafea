"""Image models; importing this package registers them in timm."""

from . import hcformer
from .hcformer import HCFormer

__all__ = ["HCFormer", "hcformer"]

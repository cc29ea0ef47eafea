"""Image models; importing this package registers them in timm."""

from . import hcformer, himapper, lorentz_resnet, lorentz_vit
from .hcformer import HCFormer
from .himapper import HiMapper
from .lorentz_resnet import LorentzResNet
from .lorentz_vit import LorentzViT

__all__ = [
    "HCFormer", "HiMapper", "LorentzResNet", "LorentzViT", "hcformer", "himapper", "lorentz_resnet",
    "lorentz_vit",
]  # fmt: skip

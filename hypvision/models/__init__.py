"""Image models; importing this package registers them in timm."""

from . import hcformer, hexformer, himapper, lorentz_resnet, lorentz_vit
from .hcformer import HCFormer
from .hexformer import HexFormer
from .himapper import HiMapper
from .lorentz_resnet import LorentzResNet
from .lorentz_vit import LorentzViT

__all__ = [
    "HCFormer", "HexFormer", "HiMapper", "LorentzResNet", "LorentzViT", "hcformer", "hexformer",
    "himapper", "lorentz_resnet", "lorentz_vit",
]  # fmt: skip

"""Image models; importing this package registers them in timm."""

from . import hcformer, himapper, lorentz_resnet
from .hcformer import HCFormer
from .himapper import HiMapper
from .lorentz_resnet import LorentzResNet

__all__ = ["HCFormer", "HiMapper", "LorentzResNet", "hcformer", "himapper", "lorentz_resnet"]

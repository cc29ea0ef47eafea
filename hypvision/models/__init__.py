"""Image models; importing this package registers them in timm."""

from . import hcformer, lorentz_resnet
from .hcformer import HCFormer
from .lorentz_resnet import LorentzResNet

__all__ = ["HCFormer", "LorentzResNet", "hcformer", "lorentz_resnet"]

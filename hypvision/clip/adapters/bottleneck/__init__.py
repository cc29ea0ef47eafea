"""Adapter: small MLPs behind those of CLIP's blocks.

"Parameter-Efficient Transfer Learning for NLP", Houlsby et al., ICML 2019, in the form with one
module a block behind the MLP (Pfeiffer et al., EACL 2021); one of the methods that HyperCLIP is
compared with, where it is called "Adapter".

>>> adapters.inject(model, "bottleneck", width=64)
"""

from hypvision.clip.adapters.bottleneck.config import BottleneckConfig
from hypvision.clip.adapters.bottleneck.model import Bottleneck

__all__ = ["Bottleneck", "BottleneckConfig"]

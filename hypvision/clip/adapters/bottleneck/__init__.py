"""Adapter: a small MLP after the MLP of each of CLIP's blocks.

"Parameter-Efficient Transfer Learning for NLP", Houlsby et al., ICML 2019, in the form with one
module a block, after its MLP (Pfeiffer et al., EACL 2021). HyperCLIP's paper compares itself with
this method and calls it "Adapter".

>>> adapters.inject(model, "bottleneck", width=64)
"""

from .config import BottleneckConfig
from .model import Bottleneck

__all__ = ["Bottleneck", "BottleneckConfig"]

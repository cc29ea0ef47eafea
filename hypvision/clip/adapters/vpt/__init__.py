"""VPT: learned tokens in CLIP's image tower.

"Visual Prompt Tuning", Jia et al., ECCV 2022; one of the methods that HyperCLIP is compared with.
The texts stay as they are; learned tokens of texts are those of :mod:`hypvision.clip.prompting`.

>>> adapters.inject(model, "vpt", tokens=50)
"""

from hypvision.clip.adapters.vpt.config import VPTConfig
from hypvision.clip.adapters.vpt.model import VPT

__all__ = ["VPT", "VPTConfig"]

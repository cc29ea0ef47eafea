"""VPT: learned tokens in CLIP's image tower.

"Visual Prompt Tuning", Jia et al., ECCV 2022; HyperCLIP's paper compares itself with this method.
Texts are encoded without learned tokens; those are in :mod:`hypvision.clip.prompting`.

>>> adapters.inject(model, "vpt", tokens=50)
"""

from .config import VPTConfig
from .model import VPT

__all__ = ["VPT", "VPTConfig"]

"""CLIP with a few hyperbolic parameters. Needs ``open_clip``, which loads when a model is made, not here.

- :mod:`~hypvision.clip.hyperclip`: block-diagonal adapters on the attention projections of any open_clip ViT.
- :mod:`~hypvision.clip.towers`: text and dense image embeddings.
"""

from . import blockmap, hyperclip, towers

__all__ = ["blockmap", "hyperclip", "towers"]

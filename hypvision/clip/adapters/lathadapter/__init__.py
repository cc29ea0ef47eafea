"""LatHAdapter: latent attributes between class names and images, in a hierarchy on the Poincare
ball.

"Fine-Grained VLM Fine-tuning via Latent Hierarchical Adapter Learning", Zhao, Jiang, Ding, Wang,
Tang, Luo, 2025 (arXiv 2508.11176). The attributes, a few learned vectors in CLIP's joint space,
refine the class features and stand between classes and images in a hierarchy that hyperbolic losses
learn (:mod:`.model`). LatHAdapter works on any few-shot method with features of images and classes
(:mod:`hypvision.clip.prompting`).

>>> adapters.inject(host.clip, "lathadapter", classes=100)
>>> adapters.adapter_of(host.clip, "lathadapter").module(out.image, out.text, out.scale, labels)

The official code is not public; options of :class:`.LatHAdapterConfig` choose what the paper leaves
open.
"""

from .config import LatHAdapterConfig, attributes_for
from .model import LatentHierarchy, LatHAdapter, LatHOutput, refine

__all__ = [
    "LatHAdapter",
    "LatHAdapterConfig",
    "LatHOutput",
    "LatentHierarchy",
    "attributes_for",
    "refine",
]

"""HyperCLIP: trained blocks on the frozen attention projections of CLIP.

"Understanding Fine-tuning CLIP for Open-vocabulary Semantic Segmentation in Hyperbolic Space",
Peng, Xu, Zeng, Wen, Huang, Yang, Tang, Shen, CVPR 2025. In every attention block, blocks S that
start at the identity map the rows of the frozen W_q, W_k and W_v (:mod:`.layer`); the rest of CLIP
stays as it is.

>>> model, _, preprocess = open_clip.create_model_and_transforms(
...     "ViT-B-16", "openai", force_quick_gelu=True
... )
>>> adapters.inject(model, "hyperclip")            # at first the outputs are those of CLIP

Where no row reaches the radial clip, the map is linear and the curvature cancels;
:func:`clip_report` measures how far a model's rows are from that clip.
"""

from .config import HyperCLIPConfig
from .layer import BlockMaps
from .model import HyperCLIP, clip_report

__all__ = ["BlockMaps", "HyperCLIP", "HyperCLIPConfig", "clip_report"]

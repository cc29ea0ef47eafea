"""CLIP with a few hyperbolic parameters. Building a model needs ``open_clip``; this import does
not.

>>> from hypvision import clip, viz
>>> found = clip.segment("street.jpg", ["car", "road", "sky"])
>>> viz.draw_segmentation(found.image, found.labels, found.classes).show()

- :mod:`~hypvision.clip.adapters`: adapters, which train a few parameters on a frozen CLIP, such as
  HyperCLIP's blocks on the attention projections of any open_clip ViT.
- :mod:`~hypvision.clip.towers`: embeddings of texts, of images, and of every patch.
- :class:`~hypvision.clip.segmentation.segmenter.OpenVocabSegmenter`: a model of CLIP, an adapter
  and CAT-Seg's head.
- :func:`~hypvision.clip.segmentation.segment.segment`: segment any image by any class names.
- :mod:`~hypvision.clip.radius`: hyperbolic radii of embeddings.
"""

from hypvision.data.classes import load_classes

from . import adapters, towers
from .models import create_clip
from .registered import register
from .segmentation.segment import Segmentation, load_segmenter, segment
from .segmentation.segmenter import OpenVocabSegmenter

__all__ = [
    "OpenVocabSegmenter",
    "Segmentation",
    "adapters",
    "create_clip",
    "load_classes",
    "load_segmenter",
    "segment",
    "towers",
]

register()

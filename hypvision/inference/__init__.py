"""Any model on any images: what :func:`hypvision.predict` and the commands that look at images are made of.

:mod:`~hypvision.inference.sources` reads images, folders, lists and videos; :mod:`~hypvision.inference.predictors`
makes models ready for them; :mod:`~hypvision.inference.results` is what they find, and
:mod:`~hypvision.inference.writers` puts it on disk.
"""

from hypvision.inference.predictors import load_predictor
from hypvision.inference.results import Boxes, Classes, Embedding, Labels, Segments
from hypvision.inference.running import predict
from hypvision.inference.writers import Prediction, Writer

__all__ = [
    "Boxes",
    "Classes",
    "Embedding",
    "Labels",
    "Prediction",
    "Segments",
    "Writer",
    "load_predictor",
    "predict",
]

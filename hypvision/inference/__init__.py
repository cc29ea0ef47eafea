"""Prediction by any model on any images: the parts of :func:`hypvision.predict` and of the commands
that look at images.

:mod:`~hypvision.inference.sources` reads images, folders, lists and videos;
:mod:`~hypvision.inference.predictors` loads models for them; :mod:`~hypvision.inference.results`
has a class for each kind of result, and writes results to disk.
"""

from .knowledge import Known
from .predictors import load_predictor
from .results import Boxes, Classes, Embedding, Labels, Segments, Tags, Writer
from .running import Prediction, predict

__all__ = [
    "Boxes", "Classes", "Embedding", "Known", "Labels", "Prediction", "Segments", "Tags", "Writer",
    "load_predictor", "predict",
]  # fmt: skip

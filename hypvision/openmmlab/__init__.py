"""The code of hypvision that uses mmcv, mmdet and mmseg.

Importing this package makes ``mmcv.ops`` importable without a compiler
(:mod:`~hypvision.openmmlab.ops`), lets configs name weights of the zoo
(:mod:`~hypvision.openmmlab.pretrained`), and registers :class:`TimmBackbone` for the configs of
mmdet and mmseg. These two libraries are imported only when something needs them.
"""

import hypvision.engine  # noqa: F401 - mmengine reads and writes checkpoints safely, or says that it is missing
from hypvision.io import require

require("mmcv", "mm")

from . import images, ops  # noqa: E402 - after the check that says what to install

ops.install()
images.install()

from . import predicting, preparing, pretrained, sample_checks, testing  # noqa: E402 - after mmcv's operations are there
from .backbone import TimmBackbone  # noqa: E402

__all__ = [
    "TimmBackbone",
    "ops",
    "predicting",
    "preparing",
    "pretrained",
    "sample_checks",
    "testing",
]

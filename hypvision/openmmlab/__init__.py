"""Everything that touches mmcv, mmdet and mmseg.

Importing this package makes ``mmcv.ops`` importable without a compiler (:mod:`~hypvision.openmmlab.ops`), makes
mmengine read and write checkpoints safely and lets configs name weights of the zoo
(:mod:`~hypvision.engine.checkpoint`), and registers :class:`TimmBackbone` for the configs of mmdet and mmseg. mmcv,
mmdet and mmseg load when something needs them.
"""

from hypvision.engine.mmengine_import import require_mmengine
from hypvision.errors import require

require_mmengine()
require("mmcv", "mm")

from hypvision.engine import checkpoint  # noqa: E402 - after the check that says what to install
from hypvision.openmmlab import ops  # noqa: E402
from hypvision.openmmlab.backbone import TimmBackbone  # noqa: E402

ops.install()
checkpoint.install()

__all__ = ["TimmBackbone", "checkpoint", "ops"]

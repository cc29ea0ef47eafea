"""Everything that touches mmengine, mmcv, mmdet and mmseg.

Importing this package makes ``mmcv.ops`` importable without a compiler (:mod:`~hypvision.mm.ops`), makes mmengine read
and write checkpoints safely (:mod:`~hypvision.mm.checkpoint`), lets configs name weights of the zoo
(:mod:`~hypvision.mm.pretrained`), and registers :class:`TimmBackbone` for the configs of
mmdet and mmseg. It imports mmengine; mmcv, mmdet and mmseg load when something needs them.
"""

from hypvision.errors import require

from .first_import import require_mmengine

require_mmengine()
require("mmcv", "mm")

from . import checkpoint, ops, pretrained  # noqa: E402 - after the check that says what to install
from .backbone import TimmBackbone  # noqa: E402

ops.install()
checkpoint.install()
pretrained.install()

__all__ = ["TimmBackbone", "checkpoint", "ops", "pretrained"]

"""A training loop by iterations that resumes without loading earlier data again, and a fix for
epochs that end in a batch of one image."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Any

from mmengine.dataset import InfiniteSampler
from mmengine.dist import get_rank
from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import BatchSampler

from hypvision.engine.hooks import seed_everything

_logger = logging.getLogger(__name__)


@LOOPS.register_module()
class SeekingIterTrainLoop(IterBasedTrainLoop):
    """mmengine's iteration-based loop, but a resumed run skips to its position in the data.

    When mmengine resumes, it loads and augments again all data from before the checkpoint, which
    takes hours at the end of a long training. Here the sampler skips these data. For the same
    augmentations as in an uninterrupted run, every run starts its data workers anew, with seeds
    made from (seed, rank, iteration), after each ``restart_interval`` iterations. The engine sets
    this interval to that of the checkpoints, so a resumed run repeats the uninterrupted one
    exactly.

    Skipping needs mmengine's ``InfiniteSampler`` and no special batch sampler, or an iterable data
    set with a method ``seek`` (:mod:`hypvision.data.shards`); with other data the loop works as
    mmengine's.

    Args:
        restart_interval: iterations between two restarts of the workers; 0, the default: no
            restarts.
        args, kwargs: see :class:`mmengine.runner.IterBasedTrainLoop`.
    """

    def __init__(self, *args: Any, restart_interval: int = 0, **kwargs: Any):
        super().__init__(*args, **kwargs)
        sampled = isinstance(self.dataloader.sampler, InfiniteSampler)
        if (
            hasattr(self.dataloader.dataset, "seek")
            or sampled
            and type(self.dataloader.batch_sampler) is BatchSampler
        ):
            self.dataloader_iterator = _SeekingIterator(self, restart_interval)


class _SeekingIterator:
    """An iterator over batches that returns None for those that a resumed loop would discard, so
    that they are not loaded."""

    def __init__(self, loop: SeekingIterTrainLoop, restart_interval: int):
        self.loop = loop
        self.restart_interval = restart_interval
        self.position = 0
        self.batches: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self.position < self.loop.iter:
            self.position += 1
            return None
        if self.batches is None or (
            self.restart_interval > 0 and self.position % self.restart_interval == 0
        ):
            # The old workers must end before the new ones start.
            self.batches = None
            self.batches = self._open()
        self.position += 1
        return next(self.batches)

    def _open(self) -> Iterator[Any]:
        loader = self.loop.dataloader
        seed = self.loop.runner.seed
        if hasattr(loader.dataset, "seek"):
            loader.dataset.seek(self.position, loader.batch_size)
            # Persistent workers hold an outdated copy of the data set, so they are not used again.
            loader._iterator = None
        else:
            loader.sampler.indices = islice(
                loader.sampler._indices_of_rank(), self.position * loader.batch_size, None
            )
        seed_everything(seed, get_rank(), self.position)
        return iter(loader)


def drop_single_image(loop: Any, network: nn.Module) -> None:
    """Let epochs drop a last batch of one image, since batch norms have no statistics of one image,
    and warn if all batches are one image.

    Args:
        loop: the training loop, before it runs.
        network: the model, in training mode.
    """
    loader = loop.dataloader
    norms = [part for part in network.modules() if isinstance(part, _BatchNorm) and part.training]
    if not norms or type(loader.batch_sampler) is not BatchSampler:
        return
    if loader.batch_size == 1:
        _logger.warning(
            "Each batch is one image, and the model trains %d batch norms: their statistics are "
            "those of one image, and PyTorch refuses them for a map of one pixel. Set "
            "train_dataloader.batch_size to 2 or more, or keep the norms as they are: "
            "model.freeze_bn=True of a classifier, norm_eval=True of a backbone.",
            len(norms),
        )
        return
    # The number of images of this process; a sampler by iterations has no end, so no last batch.
    images = len(loader.sampler) if isinstance(loop, EpochBasedTrainLoop) else 0
    single = images > 1 and images % loader.batch_size == 1
    if single and not loader.batch_sampler.drop_last:
        loader.batch_sampler.drop_last = True
        loop._max_iters = loop.max_epochs * len(loader)
        _logger.info(
            "The last batch of an epoch would be one image, of which batch norms have no "
            "statistics: it is left out (%d images, batches of %d).",
            images, loader.batch_size,
        )  # fmt: skip

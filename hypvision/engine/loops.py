"""A training loop by iterations that resumes without loading earlier data again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from mmengine.dataset import InfiniteSampler
from mmengine.dist import get_rank
from mmengine.registry import LOOPS
from mmengine.runner import IterBasedTrainLoop
from torch.utils.data import BatchSampler

from .hooks import seed_everything


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

    def rewind(self) -> None:
        """End the processes that load data; the next step opens the data anew, where it is."""
        iterator = self.dataloader_iterator
        if isinstance(iterator, _SeekingIterator):
            iterator.batches = None
            iterator.position = 0


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

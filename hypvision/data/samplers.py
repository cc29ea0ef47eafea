"""Samplers for mmengine: batches with several images of each class, classes drawn equally often,
and repeated augmentation."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
import timm.data.distributed_sampler as timm_samplers
from mmengine.dist import get_dist_info, sync_random_seed
from mmengine.registry import DATA_SAMPLERS

from hypvision.io import HypvisionError, at_least, between, ensure, one_of

from .usage import classes_of


@DATA_SAMPLERS.register_module()
class MPerClassBatchSampler:
    """Batch sampler whose batches have ``batch_size / m`` random classes with ``m`` random images
    of each.

    All processes draw the same classes and images for a batch of ``batch_size * world_size``, and
    each takes its own part of them, so that no class is drawn twice in the whole batch. Epoch and
    seed are those of ``sampler``, which mmengine sets.

    Config: ``batch_sampler=dict(type="MPerClassBatchSampler", m=2),
    sampler=dict(type="DefaultSampler")``.

    Args:
        sampler: mmengine's ``DefaultSampler``, of which only the data set (which needs ``labels``),
            seed, epoch and rank are used, not the order.
        batch_size: number of images of a batch in each process.
        m: number of images of each class in a batch.
        short_classes: what to do with a class of fewer than ``m`` images: ``"error"`` raises one,
            ``"repeat"`` uses its images several times, ``"drop"`` leaves the class out.
        replace: draw the images of a class with replacement, as the HIER recipes do.
        drop_last: ignored, since no batch is ever smaller than the others; mmengine passes this
            argument.
    """

    def __init__(
        self,
        sampler: Any,
        batch_size: int,
        m: int = 2,
        short_classes: str = "error",
        replace: bool = False,
        drop_last: bool = True,
    ):
        self.sampler = sampler
        self.batch_size = batch_size
        self.m = m
        self.replace = replace
        self.world_size = getattr(sampler, "world_size", 1)
        self.rank = getattr(sampler, "rank", 0)
        ensure(
            m >= 1 and batch_size >= m and not batch_size % m,
            f"A batch of {batch_size} images cannot hold {m} of each class. Set "
            "train_dataloader.batch_size to a multiple of train_dataloader.batch_sampler.m.",
        )
        one_of(("error", "repeat", "drop"), short_classes=short_classes)
        names = classes_of(sampler.dataset)
        members = members_of(sampler.dataset)
        short = [label for label, indices in members.items() if len(indices) < m]
        if short and short_classes == "error":
            name = names[short[0]] if names else short[0]
            raise HypvisionError(
                f"The class '{name}' has {len(members[short[0]])} images, fewer than the {m} that "
                f"a batch takes of each class ({len(short)} such classes). Set "
                "train_dataloader.batch_sampler.short_classes to 'repeat' (use images twice) or "
                "'drop' (leave these classes out), or make m smaller."
            )
        if short_classes == "drop":
            members = {label: indices for label, indices in members.items() if len(indices) >= m}
        self.members = list(members.values())
        self.classes_per_batch = batch_size * self.world_size // m
        ensure(
            len(self.members) >= self.classes_per_batch,
            f"A batch of {batch_size} images in each of {self.world_size} processes, {m} of a "
            f"class, needs {self.classes_per_batch} classes; the training data has "
            f"{len(self.members)}. Make train_dataloader.batch_size smaller, or "
            "train_dataloader.batch_sampler.m (images of a class in a batch) larger.",
        )
        self.images = sum(map(len, self.members))

    def __len__(self) -> int:
        return max(1, self.images // (self.batch_size * self.world_size))

    def __iter__(self) -> Iterator[list[int]]:
        seed = [getattr(self.sampler, "seed", None) or 0, getattr(self.sampler, "epoch", 0)]
        generator = np.random.default_rng(seed)
        per_process = self.classes_per_batch // self.world_size
        for _ in range(len(self)):
            chosen = generator.choice(len(self.members), self.classes_per_batch, replace=False)
            drawn = [self._draw(self.members[c], generator) for c in chosen]
            own = drawn[self.rank * per_process : (self.rank + 1) * per_process]
            yield [int(index) for group in own for index in group]

    def _draw(self, indices: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return generator.choice(indices, self.m, replace=self.replace or len(indices) < self.m)


@DATA_SAMPLERS.register_module()
class BalancedSampler:
    """Sampler that draws rare classes more often: an epoch has equally many samples of each class,
    whatever its number of images.

    All processes draw the same order from seed and epoch, and of n processes each takes every n-th
    sample of it. The images of a class come in a random order, and their numbers of draws in an
    epoch differ by at most one.

    Config: ``train_dataloader = dict(sampler=dict(type="BalancedSampler"))``.

    Args:
        dataset: the data set, which needs ``labels``; mmengine passes it.
        power: 1 draws all classes equally often, 0 as often as the data have them; in between, a
            class's share is proportional to ``count ** (1 - power)``. 0.5 is usual if some classes
            have a hundred times more images than others.
        length: number of samples in an epoch, over all processes, rounded up to a multiple of their
            number; None: as many as the data set has.
        shuffle: whether the samples of an epoch are mixed; False: class after class.
        seed: seed of the orders; mmengine passes its own.
    """

    def __init__(
        self,
        dataset: Sized,
        power: float = 1.0,
        length: int | None = None,
        shuffle: bool = True,
        seed: int | None = None,
    ):
        between(0, 1, power=power)
        self.rank, self.world_size = get_dist_info()
        self.members = list(members_of(dataset).values())
        total = sum(map(len, self.members)) if length is None else length
        at_least(1, integer=True, length=total)
        self.length = -(-total // self.world_size) * self.world_size
        shares = np.array([len(indices) for indices in self.members]) ** (1.0 - power)
        self.wanted = self.length * shares / shares.sum()
        self.power = power
        self.shuffle = shuffle
        self.epoch = 0
        self.seed = sync_random_seed() if seed is None else seed

    def __len__(self) -> int:
        return self.length // self.world_size

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng([self.seed, self.epoch])
        # Counts are rounded up or down at random, so that on average over the epochs each class
        # gets its exact share.
        ends = np.floor(np.cumsum(self.wanted) + generator.random()).astype(int)
        ends[-1] = self.length
        drawn = []
        for indices, count in zip(self.members, np.diff(ends, prepend=0)):
            turns = [generator.permutation(indices) for _ in range(-(-count // len(indices)))]
            drawn.append(np.concatenate([*turns, indices[:0]])[:count])
        order = np.concatenate(drawn)
        if self.shuffle:
            generator.shuffle(order)
        return iter(order[self.rank :: self.world_size].tolist())

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of epoch number ``epoch``; mmengine's hook calls this."""
        self.epoch = epoch


def class_numbers(dataset: Any) -> np.ndarray:
    """Return the label of each sample of a data set, int (N,)."""
    labels = np.asarray(getattr(dataset, "labels", ()))
    ensure(
        labels.ndim == 1 and len(labels),
        "Classes are counted and balanced by the labels of the training data, one per image, "
        f"which {type(dataset).__name__} does not have. Leave out class_weights='balanced' and "
        "the sampler, or use a data set such as ImageFolderDataset.",
    )
    return labels


def members_of(dataset: Any) -> dict[int, np.ndarray]:
    """Return, by label, the numbers of the samples with this label."""
    labels = class_numbers(dataset)
    order = np.argsort(labels, kind="stable")
    numbers, starts = np.unique(labels[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(order, starts[1:])))


def evenly(count: int, most: int) -> list[int]:
    """Return the positions of at most ``most`` of ``count`` samples, evenly spaced from the first
    to the last."""
    return np.linspace(0, count - 1, min(count, most)).astype(int).tolist()


@DATA_SAMPLERS.register_module()
class RepeatAugSampler(timm_samplers.RepeatAugSampler):
    """timm's sampler for repeated augmentation, as used in DeiT's training: an epoch draws each
    image several times in a row.

    The copies of an image go to different processes, if there are as many, and each copy is
    augmented anew. An epoch has as many samples as the data set has images, rounded down to a
    multiple of 256, so it sees only a part of the images: with 3 repeats a third.

    Config: ``sampler=dict(type="RepeatAugSampler", num_repeats=3)``.

    Args:
        num_repeats: how often an epoch draws each image that it uses.
        shuffle: whether each epoch has a new order.
        dataset, seed: passed by mmengine.
    """

    def __init__(
        self, dataset: Sized, num_repeats: int = 3, shuffle: bool = True, seed: int | None = None
    ):
        rank, world_size = get_dist_info()
        super().__init__(dataset, world_size, rank, shuffle, num_repeats)
        self.seed = sync_random_seed() if seed is None else seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of epoch number ``epoch``; mmengine's hook calls this."""
        self.epoch = self.seed + epoch  # timm seeds its generator with this sum

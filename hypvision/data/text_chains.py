"""Chains of texts as a data set of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmengine.registry import DATASETS
from torch.utils.data import Dataset

from hypvision.data.chains import (
    Chain,
    emoji_chains,
    find_image_files,
    read_chains,
    with_negatives,
)
from hypvision.data.preprocessing import default_preprocessing
from hypvision.data.usage import Usage
from hypvision.io.checks import ensure
from hypvision.io.images import open_image
from hypvision.io.types import Plain, StrPath


@DATASETS.register_module()
@dataclass(eq=False, repr=False)
class TextChains(Dataset):
    """Chains with negatives, for radial tuning.

    Args:
        source: a csv or csv.gz file of :func:`~hypvision.data.chains.read_chains`; ``"emoji"``:
            the chains of a folder of emoji.
        root, split: of ``"emoji"``.
        seed: of negatives that are drawn from siblings, for chains that have none of their own.
        images: folder of an image for each chain, see
            :func:`hypvision.data.chains.find_image_files`; for a tuning of the image tower.
        size: side of these images; None: that of the model that is tuned. Images are resized as
            that model expects.
        levels: of the chains that are taken, from 0, such as ``(0, 1, 3)``; None: all.
        share: first and last chain as shares of all: ``(0.95, 1.0)`` are the last 5 %, for
            validation.
    """

    source: StrPath
    root: StrPath = "data/emoji"
    split: str = "train"
    seed: int = 0
    images: StrPath | None = None
    size: int | None = None
    levels: Sequence[int] | None = None
    share: Sequence[float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        chains = self._read()
        first, last = (round(part * len(chains)) for part in self.share)
        share = f"share={tuple(self.share)}"
        nothing = f"{share} leaves none of the {len(chains)} chains of '{self.source}'."
        ensure(chains[first:last], nothing)
        self.usage = Usage(self.source)
        self.usage.use("chains", last - first)
        others = len(chains) - (last - first)
        if others:
            self.usage.leave_out("chains", share, f"of {len(chains)}", others)
        # of this share alone: the others may be for validation
        self.chains = [self._cut(each) for each in with_negatives(chains[first:last], self.seed)]
        self.metainfo = dict(classes=())
        self.view = default_preprocessing(self.size)
        self.files: list[Path] = []
        if self.images is not None:
            owners = [chain.image for chain in self.chains if chain.image]
            nameless = f"The chains '{self.source}' name no images (id or image_url): leave out"
            ensure(len(owners) == len(self.chains), f"{nameless} images=.")
            files = find_image_files(owners, self.images)
            self.files = [files[owner] for owner in owners]

    def _read(self) -> list[Chain]:
        if self.source == "emoji":
            return emoji_chains(self.root, self.split, seed=self.seed)
        return read_chains(self.source)

    def _cut(self, chain: Chain) -> Chain:
        """A chain of the wanted levels."""
        if self.levels is None:
            return chain
        depth = len(chain.texts)
        levels = sorted({*self.levels} & {*range(depth)})
        expected = f"at least two of 0 to {depth - 1} are expected, from general to specific."
        right = len(levels) > 1 and levels == list(self.levels)
        ensure(right, f"levels={tuple(self.levels)}: {expected}")
        texts, negatives = (
            tuple(each[i] for i in levels) for each in (chain.texts, chain.negatives)
        )
        return replace(chain, texts=texts, negatives=negatives)

    @property
    def texts(self) -> list[str]:
        """All texts, each once."""
        return list(
            dict.fromkeys(
                text for chain in self.chains for text in (*chain.texts, *chain.negatives)
            )
        )

    def __len__(self) -> int:
        return len(self.chains)

    def __getitem__(self, index: int) -> Plain:
        """``positive``, ``negative``: lists of texts, one a level. PyTorch's collation turns those
        of a batch into a
        list of levels. With images: ``inputs`` uint8 (3, size, size) and ``image``, its path."""
        chain = self.chains[index]
        found: Plain = dict(positive=list(chain.texts), negative=list(chain.negatives))
        if self.files:
            path = self.files[index]
            found |= dict(inputs=self.view(open_image(path)), image=str(path))
        return found

"""Chains of texts as a data set of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmengine.registry import DATASETS
from torch.utils.data import Dataset

from hypvision.data.chains import (
    Chain,
    emoji_chains,
    find_image_files,
    read_chains,
    shape_chains,
    with_negatives,
)
from hypvision.data.preprocessing import default_preprocessing
from hypvision.data.usage import Usage
from hypvision.io.errors import HypvisionError
from hypvision.io.images import open_image


@DATASETS.register_module()
class TextChains(Dataset):
    """Chains with negatives, for radial tuning.

    Args:
        source: a csv or csv.gz file of :func:`~hypvision.data.chains.read_chains`; ``"shapes"``:
            chains of drawn scenes; ``"emoji"``: those of a folder of emoji.
        root, split: of ``"emoji"``; the split of ``"shapes"``, too.
        length: chains of ``"shapes"``.
        seed: of negatives that are drawn from siblings, for chains that have none of their own.
        images: folder of an image for each chain, see
            :func:`hypvision.data.chains.find_image_files`; for a tuning of the image tower.
        size: side of these images; None: that of the model that is tuned. Images are resized as
            that model expects.
        levels: of the chains that are taken, from 0, such as ``(0, 1, 3)``; None: all.
        share: first and last chain as shares of all: ``(0.95, 1.0)`` are the last 5 %, for
            validation.
    """

    def __init__(
        self,
        source: str | Path,
        root: str | Path = "data/emoji",
        split: str = "train",
        length: int = 1000,
        seed: int = 0,
        images: str | Path | None = None,
        size: int | None = None,
        levels: Sequence[int] | None = None,
        share: tuple[float, float] = (0.0, 1.0),
    ):
        if source == "shapes":
            chains = shape_chains(length, split)
        elif source == "emoji":
            chains = emoji_chains(root, split, seed=seed)
        else:
            chains = read_chains(source)
        first, last = (round(part * len(chains)) for part in share)
        count = len(chains)
        chains = chains[first:last]
        if not chains:
            raise HypvisionError(
                f"share={tuple(share)} leaves none of the {count} chains of '{source}'."
            )
        # of this share alone: the others may be for validation
        chains = with_negatives(chains, seed)
        if levels is not None:
            depth = len(chains[0].texts)
            if len(levels) < 2 or list(levels) != sorted({*levels} & {*range(depth)}):
                raise HypvisionError(
                    f"levels={tuple(levels)}: at least two of 0 to {depth - 1} are expected, from "
                    "general to specific."
                )
            chains = [
                replace(
                    c,
                    texts=tuple(c.texts[i] for i in levels),
                    negatives=tuple(c.negatives[i] for i in levels),
                )
                for c in chains
            ]
        self.chains: list[Chain] = list(chains)
        self.usage = Usage(source)
        self.usage.use("chains", len(self.chains))
        others = count - len(chains)
        if others:
            self.usage.leave_out("chains", f"share={tuple(share)}", f"of {count}", others)
        self.metainfo = dict(classes=())
        self.size = size
        self.view = default_preprocessing(size)
        self.files = []
        if images is not None:
            owners = [chain.image for chain in self.chains if chain.image]
            if len(owners) < len(self.chains):
                raise HypvisionError(
                    f"The chains '{source}' name no images (id or image_url): leave out images=."
                )
            files = find_image_files(owners, images)
            self.files = [files[owner] for owner in owners]

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

    def __getitem__(self, index: int) -> dict[str, Any]:
        """``positive``, ``negative``: lists of texts, one a level. PyTorch's collation turns those
        of a batch into a
        list of levels. With images: ``inputs`` uint8 (3, size, size) and ``image``, its path."""
        chain = self.chains[index]
        found: dict[str, Any] = dict(positive=list(chain.texts), negative=list(chain.negatives))
        if self.files:
            path = self.files[index]
            found |= dict(inputs=self.view(open_image(path)), image=str(path))
        return found

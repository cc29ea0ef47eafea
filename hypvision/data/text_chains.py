"""The data set :class:`TextChains`: chains of texts, from general to specific, for radial
tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmengine.registry import DATASETS
from torch.utils.data import Dataset

from hypvision.io import Plain, StrPath, ensure
from hypvision.io.images import open_image

from .chains import Chain, emoji_chains, find_image_files, read_chains, with_negatives
from .preprocessing import default_preprocessing
from .usage import Usage


@DATASETS.register_module()
@dataclass(eq=False, repr=False)
class TextChains(Dataset):
    """Data set of chains of texts with a negative (false) text at each level, for radial tuning.

    Args:
        source: a csv or csv.gz file that :func:`~hypvision.data.chains.read_chains` reads;
            ``"emoji"``: chains from a folder of emoji.
        root: the folder of emoji, for ``"emoji"``.
        split: name of the split, for ``"emoji"``.
        seed: seed of the choice of negatives, which are drawn from siblings in the tree of texts
            for chains that have no negatives of their own.
        images: folder with one image for each chain, see
            :func:`hypvision.data.chains.find_image_files`; for tuning the image tower.
        size: height and width to which the images are resized; None: those that the tuned model
            expects.
        levels: numbers, from 0, of the levels that each chain keeps, such as ``(0, 1, 3)``; None:
            all levels.
        share: begin and end of the chains that are used, as shares of all chains in the file:
            ``(0.95, 1.0)`` are the last 5 %, for validation.
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
        self.usage.leave_out("chains", share, f"of {len(chains)}", others)
        # Negatives come from this share alone, since the other chains may be for validation.
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
        """Return the chain with only the levels that ``self.levels`` names."""
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
        """Return all texts of all chains, negatives included, each once."""
        return list(
            dict.fromkeys(
                text for chain in self.chains for text in (*chain.texts, *chain.negatives)
            )
        )

    def __len__(self) -> int:
        return len(self.chains)

    def __getitem__(self, index: int) -> Plain:
        """Return a sample: ``positive`` and ``negative``, lists of texts with one text a level
        (PyTorch's collation makes a list of levels of a batch of them); and with images ``inputs``,
        uint8 (3, size, size), and ``image``, its path."""
        chain = self.chains[index]
        found: Plain = dict(positive=list(chain.texts), negative=list(chain.negatives))
        if self.files:
            path = self.files[index]
            found |= dict(inputs=self.view(open_image(path)), image=str(path))
        return found

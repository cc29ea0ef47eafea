"""Embeddings by a frozen CLIP, computed once and cached on disk by content, so that tuning runs only one network."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hypvision.checkpoints.sources import home
from hypvision.checkpoints.storage import kept_tensor
from hypvision.clip.fingerprint import fingerprint
from hypvision.clip.models import CLIPBundle
from hypvision.clip.radial.measure import embed_images
from hypvision.clip.radial.texts import distinct, embed_texts
from hypvision.clip.views import view_of
from hypvision.errors import HypvisionError


class FrozenTexts:
    """Unit embeddings ``(N, d)`` of distinct texts, and their file."""

    def __init__(self, texts: Sequence[str], embeddings: Tensor, path: Path | None = None):
        self.number = {text: row for row, text in enumerate(texts)}
        self.embeddings, self.path = embeddings, path

    def __getitem__(self, texts: Sequence[str]) -> Tensor:
        """Unit embeddings ``(len(texts), d)`` in float32 of texts that were embedded before."""
        try:
            rows = [self.number[text] for text in texts]
        except KeyError as error:
            raise HypvisionError(
                f"The frozen model embeds all texts of the data before the training, but {error} was not among them. "
                "Use data whose 'texts' lists every text."
            ) from None
        return torch.nn.functional.normalize(self.embeddings[rows].float(), dim=-1)


def frozen_texts(
    model: nn.Module,
    tokenizer: Callable[[list[str]], Tensor],
    texts: Sequence[str],
    folder: str | Path | None = None,
    dtype: torch.dtype = torch.float16,
) -> FrozenTexts:
    """Embeddings of texts by a model's present weights; read from disk if this tower has embedded these texts before.

    Args:
        model, tokenizer: of open_clip.
        texts: may repeat themselves.
        folder: of the files; default: ``text-features`` in the cache of hypvision. Their names are hashes of the text
        tower, the tokens of a few texts, and the texts.
        dtype: of the files.
    """
    once = sorted(distinct(texts)[0])
    key = fingerprint(model, lambda name: name.split(".")[0] not in ("visual", "logit_scale", "logit_bias"), dtype)
    key.update(tokenizer(once[:: max(1, len(once) // 16)]).numpy().tobytes())
    key.update("\0".join(once).encode())
    folder = home() / "text-features" if folder is None else Path(folder).expanduser()
    return _cached(folder, key, once, lambda: embed_texts(model, tokenizer, once, progress=True).cpu().to(dtype))


def frozen_images(
    clip: CLIPBundle, paths: Sequence[str | Path], folder: str | Path | None = None, dtype: torch.dtype = torch.float16
) -> FrozenTexts:
    """As :func:`frozen_texts`, for images by their paths; the cache is named by the images' content."""
    once = sorted({str(path) for path in paths})
    images = (view_of(clip.model), clip.mean, clip.std)
    key = fingerprint(clip.model, lambda name: name.split(".")[0] == "visual", dtype, *images)
    for path in once:
        key.update(hashlib.sha256(Path(path).read_bytes()).digest())
    folder = home() / "image-features" if folder is None else Path(folder).expanduser()
    return _cached(folder, key, once, lambda: embed_images(clip, once).cpu().to(dtype))


def _cached(folder: Path, key: Any, names: list[str], compute: Callable[[], Tensor]) -> FrozenTexts:
    path = folder / f"{key.hexdigest()[:32]}.safetensors"
    return FrozenTexts(names, kept_tensor(path, compute, len(names)), path)

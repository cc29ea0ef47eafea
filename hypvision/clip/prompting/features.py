"""Features of the frozen towers, computed once: in memory, and on disk by the content of inputs and weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from hypvision.checkpoints.storage import kept_tensor
from hypvision.clip.fingerprint import bytes_of, fingerprint
from hypvision.clip.prompting.hosts import Host, is_learned
from hypvision.clip.views import show_to


@torch.no_grad()
def cached_texts(folder: str | Path | None, host: Host, sentences: list[str], make: Callable[[], Tensor]) -> Tensor:
    """The result of ``make()`` on the host's device, cached in the folder, if given, by sentences and text tower."""
    if folder is None:
        return make().to(host.scale.device)
    digest = fingerprint(host.clip, lambda n: n.split(".")[0] != "visual" and not is_learned(f"clip.{n}"), "texts")
    digest.update(bytes_of(host.tokens(sentences)))
    path = Path(folder).expanduser() / f"{digest.hexdigest()}.safetensors"
    return kept_tensor(path, lambda: make().cpu()).to(host.scale.device)


class FeatureCache:
    """Features of data sets, cached in the folder (if given): one file per data set, part and number of views."""

    def __init__(self, folder: str | Path | None = None):
        self.folder = None if folder is None else Path(folder).expanduser()

    def features(self, host: Host, dataset: Any, views: int = 0) -> Tensor:
        """Features (V, N, d) by the frozen image tower of a host, on the CPU, not normalised: of so many augmented
        views of each image, or of its centre crop alone (``views=0``, V = 1). The data set has samples with ``inputs``,
        ``paths``, ``description`` and ``viewed(augment)``, and resizes images as the tower needs."""
        show_to(dataset, host.clip)
        if self.folder is None:
            return self._compute(host, dataset, views)
        path = self.folder / f"{self._key(host, dataset, views)}.safetensors"
        return kept_tensor(path, lambda: self._compute(host, dataset, views))

    @torch.no_grad()
    def _compute(self, host: Host, dataset: Any, views: int) -> Tensor:
        device, every = host.scale.device, []
        seen = dataset.viewed(augment=views > 0)
        for _ in range(max(1, views)):
            batches = DataLoader(seen, 64, collate_fn=lambda samples: torch.stack([s["inputs"] for s in samples]))
            every.append(torch.cat([host.frozen_features(images.to(device)).cpu() for images in batches]))
        return torch.stack(every)

    @staticmethod
    @torch.no_grad()
    def _key(host: Host, dataset: Any, views: int) -> str:
        """A hash of the images' bytes, their transform, and the image tower."""
        how = dataset.viewed(augment=views > 0).description
        norm = [value.flatten().tolist() for value in (host.mean, host.std)]
        digest = fingerprint(host.clip, lambda name: name.split(".")[0] == "visual", views, how, norm)
        for number, path in enumerate(dataset.paths):
            try:
                content = Path(path).read_bytes()
            except OSError:
                dataset.viewed(augment=False)[number]  # raises an error that names the broken image
                raise
            digest.update(hashlib.sha256(content).digest())
        return digest.hexdigest()

"""Image features of the frozen tower, computed once: in memory, and on disk by the content of images and model."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hypvision.clip.prompting.hosts import Host
from hypvision.files import replacing

__all__ = ["FeatureCache"]


class FeatureCache:
    """Features of data sets.

    Args:
        folder: where they are kept, a file a data set, part and number of views; None: nothing is kept.
        batch: images at a time.
    """

    def __init__(self, folder: str | Path | None = None, batch: int = 64):
        self.folder, self.batch = None if folder is None else Path(folder).expanduser(), batch

    def features(self, host: Host, dataset: Any, views: int = 0) -> Tensor:
        """(V, N, d) on the CPU, not normalised.

        Args:
            host: whose frozen tower it is.
            dataset: samples with ``inputs``; it has ``paths``, ``description`` and ``viewed(augment)``.
            views: augmented views of each image, V; 0: its centre crop alone (V = 1).
        """
        if self.folder is None:
            return self._compute(host, dataset, views)
        path = self.folder / f"{self._key(host, dataset, views)}.safetensors"
        if path.is_file():
            return load_file(path)["features"]
        found = self._compute(host, dataset, views)
        with replacing(path) as temporary:
            save_file({"features": found}, temporary)
        return found

    @torch.no_grad()
    def _compute(self, host: Host, dataset: Any, views: int) -> Tensor:
        device, every = host.scale.device, []
        seen = dataset.viewed(augment=views > 0)
        for _ in range(max(1, views)):
            batches = DataLoader(_Inputs(seen), self.batch)
            every.append(torch.cat([host.frozen_features(images.to(device)).cpu() for images in batches]))
        return torch.stack(every)

    @staticmethod
    @torch.no_grad()
    def _key(host: Host, dataset: Any, views: int) -> str:
        """A sum over the images' bytes, how they are viewed, and the weights of the image tower."""
        digest = hashlib.sha256(f"{views} {dataset.viewed(augment=views > 0).description}".encode())
        for path in dataset.paths:
            digest.update(hashlib.sha256(Path(path).read_bytes()).digest())
        for name, value in host.clip.visual.state_dict().items():
            digest.update(name.encode())
            digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        for value in (host.mean, host.std):
            digest.update(str(value.flatten().tolist()).encode())
        return digest.hexdigest()


class _Inputs(Dataset):
    """The images of a data set alone."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Tensor:
        return self.dataset[index]["inputs"]

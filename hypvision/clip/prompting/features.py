"""Features of the frozen towers, computed once: in memory, and on disk by the content of inputs and weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from hypvision.checkpoints.storage import kept_tensor
from hypvision.clip.prompting.hosts import Host, is_learned

__all__ = ["FeatureCache", "kept_texts"]


def _kept(folder: Path | None, key: Callable[[], str], make: Callable[[], Tensor]) -> Tensor:
    """What was made before, of this key, in the folder; where there is no folder it is made anew."""
    return make() if folder is None else kept_tensor(folder / f"{key()}.safetensors", make)


def _bytes(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _add_weights(digest: Any, named: Iterable[tuple[str, Tensor]]) -> None:
    for name, value in named:
        digest.update(name.encode())
        digest.update(_bytes(value))


def _add_architecture(digest: Any, named: Iterable[tuple[str, nn.Module]]) -> None:
    """What weights do not tell: activations, constants of norms, numbers of heads."""
    for name, module in named:
        heads = {part: getattr(m, "num_heads", getattr(m, "heads", None)) for part, m in module.named_modules()}
        digest.update(f"{name} {module!r} {heads}".encode())


@torch.no_grad()
def kept_texts(folder: str | Path | None, host: Host, sentences: list[str], make: Callable[[], Tensor]) -> Tensor:
    """``make()``, on the device of the host, or what it gave before for these sentences and this frozen text tower.

    Args:
        folder: where results are kept; None: nothing is.
        host: whose CLIP it is.
        sentences: what the result depends on, beside the weights.
        make: computes it.
    """

    def key() -> str:
        digest = hashlib.sha256(b"texts")
        digest.update(_bytes(host.tokens(sentences)))
        frozen = ((n, m) for n, m in host.clip.named_children() if n != "visual" and not is_learned(f"clip.{n}"))
        _add_architecture(digest, frozen)
        named = host.clip.state_dict().items()
        _add_weights(digest, ((n, v) for n, v in named if not n.startswith("visual.") and not is_learned(f"clip.{n}")))
        return digest.hexdigest()

    path = None if folder is None else Path(folder).expanduser()
    return _kept(path, key, lambda: make().cpu() if path else make()).to(host.scale.device)


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
        return _kept(self.folder, lambda: self._key(host, dataset, views), lambda: self._compute(host, dataset, views))

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
        """A sum over the images' bytes, how they are viewed, and the image tower."""
        digest = hashlib.sha256(f"{views} {dataset.viewed(augment=views > 0).description}".encode())
        for number, path in enumerate(dataset.paths):
            try:
                content = Path(path).read_bytes()
            except OSError:
                dataset.viewed(augment=False)[number]  # tells what is wrong with the image, and what helps
                raise
            digest.update(hashlib.sha256(content).digest())
        _add_architecture(digest, [("visual", host.clip.visual)])
        _add_weights(digest, host.clip.visual.state_dict().items())
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

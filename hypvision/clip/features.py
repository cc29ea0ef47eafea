"""Features of frozen CLIP towers, computed once and cached on disk under a hash of the inputs and
the weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hypvision.checkpoints.sources import home
from hypvision.checkpoints.storage import kept_tensor
from hypvision.data.preprocessing import preprocessing_of, set_preprocessing
from hypvision.io import HypvisionError, StrPath
from hypvision.io.files import read_bytes

from .models import CLIPBundle
from .radial.measure import embed_images
from .radial.texts import distinct, embed_texts

if TYPE_CHECKING:
    from .prompting.hosts import Host

_PLAIN = (bool, int, float, str, tuple, type(None))


def bytes_of(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def fingerprint(model: nn.Module, images: bool, *about: Any) -> Any:
    """Return a hash of everything in a CLIP model that the features of its image tower
    (``images``), or else of its text tower, depend on, and of the ``repr`` of ``about``. The caller
    can update this hashlib object further.

    Weights alone do not determine features: activation, pooling, text mask, numbers of heads and
    constants of norms are module attributes and buffers that are not in the state dict.
    """

    def counts(name: str) -> bool:
        part = name.split(".")[0]  # LatHAdapter changes neither tower
        return (
            part == "visual"
            if images
            else part not in ("visual", "logit_scale", "logit_bias", "lathadapter")
        )

    digest = hashlib.sha256(repr(about).encode())
    for name, module in model.named_modules():
        if counts(name):
            plain = {key: value for key, value in vars(module).items() if isinstance(value, _PLAIN)}
            settings = sorted(
                (key, value) for key, value in plain.items() if key[0] != "_" and key != "training"
            )
            digest.update(
                f"{name} {type(module).__name__}({module.extra_repr()}) {settings}\n".encode()
            )
    for name, value in {**dict(model.named_buffers()), **model.state_dict()}.items():
        if counts(name):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(bytes_of(value))
    return digest


# Caches of the few-shot methods


@torch.no_grad()
def cached_texts(
    folder: StrPath | None, host: Host, sentences: list[str], make: Callable[[], Tensor]
) -> Tensor:
    """Return the tensor of ``make()`` on the host's device, cached in ``folder``, if given, under a
    hash of the sentences and the text tower."""
    if folder is None:
        return make().to(host.scale.device)
    digest = fingerprint(host.clip, False, "texts")
    digest.update(bytes_of(host.tokens(sentences)))
    path = Path(folder).expanduser() / f"{digest.hexdigest()}.safetensors"
    return kept_tensor(path, lambda: make().cpu()).to(host.scale.device)


@torch.no_grad()
def image_features(
    host: Host, dataset: Any, views: int = 0, folder: StrPath | None = None
) -> Tensor:
    """Return features ``(V, N, d)`` of the data set's images by a host's frozen image tower, on the
    CPU and not normalised; cached in ``folder``, if given. They are of ``views`` augmented views of
    each image (V = ``views``), or for ``views=0`` of its centre crop alone (V = 1). The data set
    has samples with ``inputs``, ``paths``, ``description`` and ``viewed(augment)``, and resizes
    images as the tower needs."""
    set_preprocessing(dataset, host.clip)
    seen = dataset.viewed(augment=views > 0)

    def compute() -> Tensor:
        every = []
        for _ in range(max(1, views)):
            batches = DataLoader(
                seen, 64, collate_fn=lambda samples: torch.stack([s["inputs"] for s in samples])
            )
            every.append(
                torch.cat([host.frozen_features(x.to(host.scale.device)).cpu() for x in batches])
            )
        return torch.stack(every)

    if folder is None:
        return compute()
    norm = [value.flatten().tolist() for value in (host.mean, host.std)]
    digest = fingerprint(host.clip, True, views, seen.description, norm)
    for number, path in enumerate(dataset.paths):
        try:
            content = read_bytes(path)
        except OSError:
            dataset.viewed(augment=False)[number]  # raises an error that names the image
            raise
        digest.update(hashlib.sha256(content).digest())
    return kept_tensor(Path(folder).expanduser() / f"{digest.hexdigest()}.safetensors", compute)


# Caches of radial tuning


class FrozenFeatures:
    """Unit embeddings ``(N, d)`` of distinct texts or images, found by text or image path, and the
    cache file ``path``."""

    def __init__(self, names: Sequence[str], embeddings: Tensor, path: Path | None = None):
        self.number = {name: row for row, name in enumerate(names)}
        self.embeddings = embeddings
        self.path = path

    def __getitem__(self, names: Sequence[str]) -> Tensor:
        """Return unit embeddings ``(len(names), d)`` in float32 of texts or image paths that were
        embedded before."""
        try:
            rows = [self.number[name] for name in names]
        except KeyError as error:
            raise HypvisionError(
                f"The frozen model embeds all texts of the data before the training, but {error} "
                "was not among them. Use data whose 'texts' lists every text."
            ) from None
        return F.normalize(self.embeddings[rows].float(), dim=-1)


def frozen_texts(
    model: nn.Module,
    tokenizer: Callable[[list[str]], Tensor],
    texts: Sequence[str],
    folder: StrPath | None = None,
    dtype: torch.dtype = torch.float16,
) -> FrozenFeatures:
    """Return embeddings of texts, which may contain repetitions, by the model's current weights;
    they are read from disk if this tower has embedded these texts before. The cache files have the
    type ``dtype`` and lie in ``folder``, by default ``text-features`` in the cache of hypvision;
    their names are hashes of the text tower, the tokens of a few texts, and the texts."""
    once = sorted(distinct(texts)[0])
    key = fingerprint(model, False, dtype)
    key.update(tokenizer(once[:: max(1, len(once) // 16)]).numpy().tobytes())
    key.update("\0".join(once).encode())

    def embed() -> Tensor:
        return embed_texts(model, tokenizer, once).cpu().to(dtype)

    return _frozen(folder or home() / "text-features", key, once, embed)


def frozen_images(
    clip: CLIPBundle,
    paths: Sequence[StrPath],
    folder: StrPath | None = None,
    dtype: torch.dtype = torch.float16,
) -> FrozenFeatures:
    """Return embeddings of images, given by path, as :func:`frozen_texts` does for texts; the names
    of the cache files are hashes of the image tower and the images' content."""
    once = sorted({str(path) for path in paths})
    key = fingerprint(clip.model, True, dtype, preprocessing_of(clip.model), clip.mean, clip.std)
    for path in once:
        key.update(hashlib.sha256(read_bytes(path)).digest())
    return _frozen(
        folder or home() / "image-features",
        key,
        once,
        lambda: embed_images(clip, once).cpu().to(dtype),
    )


def _frozen(
    folder: StrPath, key: Any, names: list[str], compute: Callable[[], Tensor]
) -> FrozenFeatures:
    path = Path(folder).expanduser() / f"{key.hexdigest()[:32]}.safetensors"
    return FrozenFeatures(names, kept_tensor(path, compute, len(names)), path)

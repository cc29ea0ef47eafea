"""Methods on features of the frozen towers: linear probe, CLIP-Adapter, Tip-Adapter.

They use only the frozen feature of an image, so precomputed features ``(B, d)`` may be given in
place of images.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.checkpoints.types import StateDict
from hypvision.clip.models import CLIPBundle
from hypvision.clip.spaces import space_of
from hypvision.clip.towers import embedding_size
from hypvision.geometry.numerics import exact
from hypvision.io import HypvisionError

from .hosts import Host, HostOutput, mean_class_features

ROWS = 4096  # number of validation images that are compared with the cache in one batch


class LinearProbe(Host, name="linear-probe"):
    """A linear classifier of unit image features, or for a hyperbolic CLIP of the images' tangent
    vectors at the origin; it distinguishes only the ``classes`` of its training. Its weights are
    those of a logistic regression (:class:`hypvision.tasks.few_shot.FitProbeHook`)."""

    learner: nn.Linear
    feature_inputs = on_hyperboloid = True
    reads_names = False

    def __init__(self, clip: CLIPBundle, classes: int):
        super().__init__(clip)
        self.learner = nn.Linear(embedding_size(clip.model), classes)
        nn.init.zeros_(self.learner.weight)
        nn.init.zeros_(self.learner.bias)
        self.learner.requires_grad_(False)

    @property
    def fixed_classes(self) -> int:
        return self.learner.out_features

    def vectors(self, features: Tensor) -> Tensor:
        """Return what the classifier reads, ``(B, d)``, for features ``(B, d)`` of the frozen
        tower."""
        space = space_of(self.clip)
        return space.as_vectors(space.embed(features, "image"))

    def forward(self, images: Tensor, labels: Tensor | None = None) -> HostOutput:
        if len(self.names) != self.learner.out_features:
            raise HypvisionError(
                f"This linear probe was trained on {self.learner.out_features} classes, so it "
                f"cannot recognise {len(self.names)} others. Take a method that reads class names, "
                "such as coop."
            )
        image = self.vectors(self.features(images))
        with exact(image.device):
            return HostOutput(image, None, self.scale, direct=self.learner(image))


class CLIPAdapter(Host, name="clip-adapter"):
    """CLIP-Adapter (Gao et al., 2021): ``x <- ratio MLP(x) + (1 - ratio) x`` on the image feature
    before it is normalised, in float32. The MLP's hidden layer is narrower by the factor
    ``reduction``."""

    feature_inputs = True

    def __init__(self, clip: CLIPBundle, ratio: float = 0.2, reduction: int = 4):
        super().__init__(clip)
        dim = embedding_size(clip.model)
        hidden = max(1, dim // reduction)
        self.ratio = ratio
        self.learner = nn.Sequential(
            nn.Linear(dim, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, dim, bias=False),
            nn.ReLU(),
        )  # fmt: skip

    def features(self, images: Tensor) -> Tensor:
        x = self.frozen_features(images)
        with exact(x.device):
            return self.ratio * self.learner(x) + (1 - self.ratio) * x


class _Cache(nn.Module):
    """The cache of Tip-Adapter: keys ``(N, d)`` and values ``(N, C)`` of the N training images, and
    the numbers alpha and beta."""

    values: Tensor
    alpha: Tensor
    beta: Tensor

    def __init__(self, keys: Tensor, values: Tensor, alpha: float, beta: float):
        super().__init__()
        self.keys = nn.Parameter(keys)
        self.register_buffer("values", values)
        self.register_buffer("alpha", torch.tensor(float(alpha)))
        self.register_buffer("beta", torch.tensor(float(beta)))


class TipAdapter(Host, name="tip-adapter"):
    r"""Tip-Adapter (Zhang et al., ECCV 2022) adds to CLIP's logits those of a cache of the training
    images, :math:`\alpha \exp(-\beta (1 - v \cdot K))\, V` with their features :math:`K` and
    one-hot labels :math:`V`.

    :meth:`fill` fills the cache, which has ``keys`` images of ``classes`` classes; :meth:`search`
    chooses alpha and beta. With ``tune`` the keys are trained further (Tip-Adapter-F). For a
    hyperbolic CLIP the features are directions of tangent vectors at the origin, and CLIP's logits
    are minus its scaled distances. With ``ensemble`` class features are those of
    :func:`.hosts.mean_class_features`, as published for ImageNet.
    """

    learner: _Cache
    feature_inputs = on_hyperboloid = True

    def __init__(
        self,
        clip: CLIPBundle,
        keys: int,
        classes: int,
        alpha: float = 1.0,
        beta: float = 5.5,
        tune: bool = False,
        ensemble: bool = False,
    ):
        super().__init__(clip)
        self.ensemble = ensemble
        self.learner = _Cache(
            torch.zeros(keys, embedding_size(clip.model)), torch.zeros(keys, classes), alpha, beta
        )
        self._start = alpha, beta
        self.learner.keys.requires_grad_(tune)

    @property
    def fixed_classes(self) -> int:
        return self.learner.values.shape[1]

    def encode_classes(self) -> Tensor:
        return mean_class_features(self) if self.ensemble else super().encode_classes()

    def unsaid(self) -> StateDict:
        """Return alpha and beta, because official files contain only the cache."""
        return {
            f"learner.{name}": getattr(self.learner, name).clone() for name in ("alpha", "beta")
        }

    @torch.no_grad()
    def fill(self, features: Tensor, labels: Tensor) -> None:
        """Fill the cache with features ``(N, d)`` of the frozen tower, which are means over
        augmented views, and labels ``(N,)``."""
        size, classes = self.learner.values.shape
        if len(features) != size or int(labels.max()) >= classes:
            raise HypvisionError(
                f"The Tip-Adapter was made for {size} images of {classes} classes, but the data "
                f"has {len(features)} of {int(labels.max()) + 1}. Set the number of images, "
                f"images={len(features)} of few_shot_config or keys={len(features)} of the head, "
                "and the number of classes."
            )
        self.learner.keys.copy_(F.normalize(features.float(), dim=-1))
        self.learner.values.copy_(F.one_hot(labels, classes))

    def cache_logits(self, image: Tensor) -> Tensor:
        """Return the logits ``(B, C)`` of the cache for unit features ``(B, d)``."""
        with exact(image.device):
            affinity = image @ self.learner.keys.T
            return (
                self.learner.alpha
                * torch.exp(-self.learner.beta * (1 - affinity))
                @ self.learner.values
            )

    @torch.no_grad()
    def restart(self) -> None:
        """Reset alpha and beta to their values before :meth:`search`, to train the keys further."""
        self.learner.alpha.fill_(self._start[0])
        self.learner.beta.fill_(self._start[1])

    def search(
        self,
        features: Tensor,
        labels: Tensor,
        alphas: int = 20,
        betas: int = 200,
        plain: Tensor | None = None,
        ends: tuple[float, float] = (7.0, 3.0),
    ) -> float:
        """Choose alpha and beta by a grid search on validation data, and return the accuracy there
        in percent. Among equally good pairs the first one is taken (beta is the outer loop).

        Features ``(N, d)`` are not normalised. ``plain`` are logits ``(N, C)`` to which those of
        the cache are added (None: CLIP's). The grid has ``betas`` and ``alphas`` values, from 0.1
        to below the ``ends`` of beta and alpha.
        """
        image = F.normalize(features.float(), dim=-1)
        plain = self.plain_logits(features.float()) if plain is None else plain
        grid = [
            [0.1 + i * (end - 0.1) / steps for i in range(steps)]
            for end, steps in zip(ends, (betas, alphas))
        ]
        right = torch.zeros(betas, alphas, dtype=torch.long, device=image.device)
        for own, known, truth in zip(image.split(ROWS), plain.split(ROWS), labels.split(ROWS)):
            affinity = own @ self.learner.keys.T
            for b, beta in enumerate(grid[0]):
                cached = torch.exp(-beta * (1 - affinity)) @ self.learner.values
                for a, alpha in enumerate(grid[1]):
                    right[b, a] += ((known + alpha * cached).argmax(-1) == truth).sum()
        first = int((right == right.max()).flatten().nonzero()[0])
        self.learner.beta.fill_(grid[0][first // alphas])
        self.learner.alpha.fill_(grid[1][first % alphas])
        return 100 * int(right.max()) / len(image)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> HostOutput:
        text = self.class_features()
        classes = self.learner.values.shape[1]
        if len(self.names) != classes:
            raise HypvisionError(
                f"This Tip-Adapter has a cache of {classes} classes, so it cannot recognise "
                f"{len(self.names)} others. Fill a cache with images of these classes."
            )
        image = self.features(images)
        return self.output(image, text, extra=self.cache_logits(F.normalize(image, dim=-1)))

"""LatHAdapter as a module and as an adapter: attributes, refined class features, hierarchical losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.clip.adapters.base import Adapter, register
from hypvision.clip.adapters.lathadapter.config import LatHAdapterConfig
from hypvision.clip.adapters.lathadapter.layer import refine
from hypvision.clip.memo import Memo
from hypvision.clip.towers import embedding_size
from hypvision.geometry import PoincareBall
from hypvision.geometry.numerics import exact
from hypvision.losses import clip_to_ball, lca_triplet_loss, sample_triplets

Pair = tuple[Tensor, Tensor]


@dataclass
class LatHOutput:
    """The result of :class:`LatentHierarchy` for a batch.

    Attributes:
        logits: (B, C), ``cosine - distance``.
        cosine: (B, C), scaled cosines with the refined classes.
        distance: (B, C), hyperbolic distances to them; None without the hierarchy.
        text: (C, d), or (B, C, d), the refined classes of the cosines.
        losses: in training, ``loss_va`` (images under attributes) and ``loss_at`` (attributes under classes).
    """

    logits: Tensor
    cosine: Tensor
    distance: Tensor | None
    text: Tensor
    losses: dict[str, Tensor] = field(default_factory=dict)


class LatentHierarchy(nn.Module):
    """Attributes with the refiner and the hyperbolic hierarchy class > attribute > image.

    Computed in float32, outside autocast.
    """

    ball: PoincareBall

    def __init__(self, dim: int, config: LatHAdapterConfig):
        super().__init__()
        self.config = config
        self.attributes = nn.Parameter(torch.randn(config.count, dim) / dim**0.5)
        self.ball = PoincareBall(config.c)
        self._memo = Memo()

    @torch.no_grad()
    def begin(self, text: Tensor) -> None:
        """Before training: with ``start="text"`` set the attributes to the mean of class features (C, d) plus noise."""
        if self.config.start == "text":
            text = text.float() if self.config.raw else F.normalize(text.float(), dim=-1)
            mean = text.flatten(0, -2).mean(0)
            self.attributes.copy_(mean + 0.02 * torch.randn_like(self.attributes))

    def nodes(self) -> Tensor:
        """The attributes, normalised if features are."""
        return self.attributes if self.config.raw else F.normalize(self.attributes, dim=-1)

    def lift(self, x: Tensor) -> Tensor:
        """Map features to points of the ball."""
        radius = self.config.clip_radius if self.config.raw else None
        return clip_to_ball(x, self.ball, radius, self.config.riemannian)

    def refine(self, text: Tensor) -> Tensor:
        """Class features (..., C, d), refined."""
        return refine(text, self.nodes().to(text.dtype), self.config.beta, self.config.degree)

    def classes(self, text: Tensor) -> Pair:
        """Refined classes for the cosines, and as points of the ball; cached until classes or attributes change."""

        def make() -> Pair:
            refined = self.refine(text)
            return (F.normalize(refined, dim=-1) if self.config.renormalise else refined), self.lift(refined)

        if torch.is_grad_enabled() and (self.attributes.requires_grad or text.requires_grad):
            return make()
        return self._memo.get([self.attributes, text], make)

    def forward(
        self,
        image: Tensor,
        text: Tensor,
        scale: Tensor | float,
        labels: Tensor | None = None,
        losses: bool | None = None,
        triplets: Pair | None = None,
        gumbel: Pair | None = None,
        generator: torch.Generator | None = None,
    ) -> LatHOutput:
        """Logits, and in training the hierarchical losses.

        Args:
            image: (B, d) features of images, of unit length with ``feature_norm="l2"``.
            text: (C, d) or (B, C, d) features of classes, likewise.
            scale: of the cosines, ``1 / tau``.
            labels: (B,); images of one class are neighbours.
            losses: whether to compute the losses; default: in training mode only.
            triplets: the triplets of images and of attributes to use; default: they are drawn.
            gumbel: Gumbel noise for both losses, see :func:`hypvision.losses.lca_triplet_loss`.
            generator: of the random numbers.
        """
        with exact(image.device):
            dtype = torch.promote_types(torch.promote_types(image.dtype, self.attributes.dtype), torch.float32)
            image, text = image.to(dtype), text.to(dtype)
            unit, points = self.classes(text)
            cosine = scale * _pairs(lambda x, y: x @ y.mT, F.normalize(image, dim=-1), unit)
            if not self.config.hierarchy:
                return LatHOutput(cosine, cosine, None, unit)
            images = self.lift(image)
            distance = _pairs(self.ball.cdist, images, points)
            out = LatHOutput(cosine - distance, cosine, distance, unit)
            if self.training if losses is None else losses:
                out.losses = self._hierarchy(images, points, labels, triplets, gumbel, generator)
            return out

    def _hierarchy(
        self,
        images: Tensor,
        classes: Tensor,
        labels: Tensor | None,
        triplets: Pair | None,
        gumbel: Pair | None,
        generator: torch.Generator | None,
    ) -> dict[str, Tensor]:
        attributes, config = self.lift(self.nodes().to(images.dtype)), self.config
        if triplets is None:
            triplets = self._draw(images.detach(), labels, generator), self._draw(attributes.detach(), None, generator)
        of_images, of_attributes = triplets
        noise = (None, None) if gumbel is None else gumbel
        parents = (attributes.detach(), classes.detach()) if config.detach else (attributes, classes)
        # If each image has its own class features, repeat the attributes for each of these sets.
        sets = parents[1] if classes.dim() == 3 else parents[1][None]

        def loss(points: Tensor, candidates: Tensor, rows: Tensor, gumbel: Tensor | None) -> Tensor:
            options = gumbel, generator, config.lca_score, config.hard
            distances = self.ball.cdist(points, candidates)
            return lca_triplet_loss(distances, rows, config.tau, config.sigma, *options)

        return dict(
            loss_va=loss(images, parents[0], of_images, noise[0]),
            loss_at=torch.stack([loss(attributes, own, of_attributes, noise[1]) for own in sets]).mean(),
        )

    @torch.no_grad()
    def _draw(self, points: Tensor, labels: Tensor | None, generator: torch.Generator | None) -> Tensor:
        similarity = torch.exp(-self.ball.cdist(points, points)).fill_diagonal_(1.0)
        if labels is not None:
            similarity += labels[:, None] == labels  # ranks images of the same class first
        config = self.config
        return sample_triplets(
            similarity, config.neighbours, config.draws, config.exclude_anchor, generator, config.least
        )


def _pairs(compare: Callable[[Tensor, Tensor], Tensor], images: Tensor, classes: Tensor) -> Tensor:
    """(B, C) of images (B, d) and classes (C, d) or (B, C, d)."""
    return compare(images, classes) if classes.dim() == 2 else compare(images[:, None], classes)[:, 0]


@register
class LatHAdapter(Adapter):
    """A :class:`LatentHierarchy` as the child ``lathadapter`` of an open_clip model.

    The towers stay as they are: a few-shot task gets its logits from :attr:`module`.
    """

    name = "lathadapter"
    Config = LatHAdapterConfig

    @property
    def module(self) -> LatentHierarchy:
        """The attributes with their refiner and hierarchy."""
        return getattr(self.model, self.name)

    def attach(self) -> None:
        dim = self.config.dim or embedding_size(self.model)
        device = next(self.model.parameters()).device
        self.model.add_module(self.name, LatentHierarchy(dim, self.config).to(device).train(self.model.training))

    def detach(self) -> None:
        delattr(self.model, self.name)

    def describe(self) -> str:
        config = self.config
        hierarchy = f"hierarchy with c = {config.c:g}" if config.hierarchy else "no hierarchy"
        return f"LatHAdapter: {config.count} attributes, beta = {config.beta:g}, {hierarchy}"

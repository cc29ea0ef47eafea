"""LatHAdapter as a module and as an adapter: attributes, refined classes and hierarchical
losses."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hypvision.clip.adapters.base import Adapter, register
from hypvision.clip.memo import Memo
from hypvision.clip.towers import embedding_size
from hypvision.geometry import PoincareBall
from hypvision.geometry.numerics import exact, heading
from hypvision.losses import clip_to_ball, lca_triplet_loss
from hypvision.losses.hier import draw_triplets

from .config import LatHAdapterConfig

Pair = tuple[Tensor, Tensor]
_LEAST = 1e-6  # smallest degree of a node with degree="clamp"


def refine(text: Tensor, attributes: Tensor, beta: float = 0.1, degree: str = "abs") -> Tensor:
    r"""Return refined class features ``(..., C, d)``, not normalised, of class features ``text``
    ``(..., C, d)`` and attributes ``(N, d)``.

    The refinement is one step of graph convolution over the nodes :math:`F = [T; A]` with their
    cosines :math:`S` and degrees :math:`D`,

    .. math:: \hat F = F + \beta\, D^{-1/2} S D^{-1/2} F.

    A degree is a sum of cosines, which can be negative for random attributes; its root is then
    undefined. ``"abs"`` sums absolute values, so that :math:`D \ge 1` (the cosine of a node with
    itself is 1) and the matrix has a spectral norm of at most 1; :class:`.config.LatHAdapterConfig`
    explains ``"relu"`` and ``"clamp"``.
    """
    count = text.shape[-2]
    nodes = torch.cat([text, attributes.expand(*text.shape[:-2], -1, -1)], dim=-2)
    unit, _ = heading(nodes)
    cosines = unit[..., :count, :] @ unit.mT  # the rows of attributes are not needed
    if degree == "clamp":  # a sum of inner products is the inner product with the sum
        degrees = (unit @ unit.sum(-2)[..., None])[..., 0].clamp(min=_LEAST)
    else:
        of_attributes = unit[..., count:, :] @ unit.mT
        if degree == "relu":
            cosines = cosines.clamp(min=0)
            of_attributes = of_attributes.clamp(min=0)
        degrees = torch.cat([cosines.abs().sum(-1), of_attributes.abs().sum(-1)], dim=-1)
    scale = degrees.rsqrt()[..., None]
    return text + beta * scale[..., :count, :] * (cosines @ (scale * nodes))


@dataclass
class LatHOutput:
    """The result of :class:`LatentHierarchy` for a batch.

    Attributes:
        logits: ``(B, C)``, ``cosine - distance``.
        cosine: scaled cosines ``(B, C)`` with the refined classes.
        distance: hyperbolic distances ``(B, C)`` from the refined classes; None without the
            hierarchy.
        text: the refined classes of the cosines, ``(C, d)`` or ``(B, C, d)``.
        losses: in training ``loss_va`` (images under attributes) and ``loss_at`` (attributes under
            classes).
    """

    logits: Tensor
    cosine: Tensor
    distance: Tensor | None
    text: Tensor
    losses: dict[str, Tensor] = field(default_factory=dict)


class LatentHierarchy(nn.Module):
    """The attributes, their refiner of class features, and the hyperbolic hierarchy class >
    attribute > image.

    All of it is computed at least in float32, outside autocast.
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
        """Set the initial attributes before training: with ``start="text"`` the mean of class
        features ``(C, d)`` plus noise."""
        if self.config.start == "text":
            mean = self._scaled(text.float()).flatten(0, -2).mean(0)
            self.attributes.copy_(mean + 0.02 * torch.randn_like(self.attributes))

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.config.raw else heading(x)[0]

    def nodes(self) -> Tensor:
        """Return the attributes ``(N, d)``, of unit length if features are."""
        return self._scaled(self.attributes)

    def lift(self, x: Tensor) -> Tensor:
        """Return the points of the ball for features."""
        radius = self.config.clip_radius if self.config.raw else None
        return clip_to_ball(x, self.ball, radius, self.config.riemannian)

    def refine(self, text: Tensor, nodes: Tensor) -> Pair:
        """Return class features ``(..., C, d)`` refined by the attributes ``nodes``: normalised,
        for cosines, and as they are."""
        text = self._scaled(text)
        refined = refine(text, nodes.to(text.dtype), self.config.beta, self.config.degree)
        return heading(refined)[0], refined

    def classes(self, text: Tensor) -> Pair:
        """Return refined classes for cosines, and as points of the ball; cached until classes or
        attributes change."""

        def make() -> Pair:
            unit, refined = self.refine(text, self.nodes())
            return unit, self.lift(refined)

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
    ) -> LatHOutput:
        """Return logits, and in training (or with ``losses``) also the hierarchical losses.

        Args:
            image, text: features ``(B, d)`` of images, and ``(C, d)`` or ``(B, C, d)`` of classes;
                with ``feature_norm="l2"`` of any length, else as the towers give them.
            scale: the factor of the cosines, ``1 / tau``.
            labels: labels ``(B,)``; images of one class are neighbours.
            triplets: the triplets of images and of attributes; None: they are drawn.
            gumbel: Gumbel noise for both losses (:func:`hypvision.losses.lca_triplet_loss`).
        """
        with exact(image.device):
            dtype = torch.promote_types(
                torch.promote_types(image.dtype, self.attributes.dtype), torch.float32
            )
            image = self._scaled(image.to(dtype))
            text = text.to(dtype)
            wanted = self.config.hierarchy and (self.training if losses is None else losses)
            if wanted:
                nodes = self.nodes().to(dtype)
                unit, classes = self.refine(text, nodes)
            else:
                unit, classes = self.classes(text)
            direction, _ = heading(image)
            cosine = scale * (
                direction @ unit.T if text.dim() == 2 else (unit @ direction[..., None])[..., 0]
            )
            if not self.config.hierarchy:
                return LatHOutput(cosine, cosine, None, unit)
            if not wanted:
                rows = self.lift(image)
                rows = rows if classes.dim() == 2 else rows[:, None]
                distance = self.ball.cdist(rows, classes).view_as(cosine)
                return LatHOutput(cosine - distance, cosine, distance, unit)
            noise = gumbel or (None, None)
            distance, parts = self._hierarchy(image, nodes, classes, labels, triplets, noise)
            return LatHOutput(cosine - distance, cosine, distance, unit, parts)

    def _hierarchy(
        self,
        image: Tensor,
        nodes: Tensor,
        classes: Tensor,
        labels: Tensor | None,
        triplets: Pair | None,
        gumbel: tuple[Tensor | None, Tensor | None],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return distances ``(B, C)`` of images from refined classes, and the losses of
        :meth:`forward`."""
        config = self.config
        count = len(image)
        rows = count + len(nodes)
        every = self.lift(torch.cat([image, nodes, classes.flatten(0, -2)]))
        below = every[:rows]
        points = every[rows:].view(classes.shape)
        # If each image has its own class features, images and attributes stand under each set of
        # classes.
        above = torch.cat([below.expand(*points.shape[:-2], -1, -1), points], -2)
        # (1 or B, B + N, B + N + C)
        found = self.ball.cdist(below, above).view(-1, rows, above.shape[-2])
        distance = found[0, :count, rows:]
        if classes.dim() == 3:
            distance = found[:, :count, rows:].diagonal(0, 0, 1).T
        drawn: list[tuple[Tensor, Tensor | None]]
        if triplets is None:
            among = found[0].detach()
            own = self.draw(among[:count, :count], labels)
            drawn = [own, self.draw(among[count:, count:rows], None)]
        else:
            drawn = [(rows, None) for rows in triplets]

        def loss(dist: Tensor, side: int) -> Tensor:
            triplets, valid = drawn[side]
            options = config.tau, config.sigma, gumbel[side], valid, config.lca_score
            return lca_triplet_loss(dist, triplets, *options)

        of_attributes = [loss(part[count:, rows:], 1) for part in found]
        return distance, dict(
            loss_va=loss(found[0, :count, count:rows], 0),
            loss_at=of_attributes[0]
            if len(of_attributes) == 1
            else torch.stack(of_attributes).mean(),
        )

    @torch.no_grad()
    def draw(self, distances: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """Draw triplets of nodes with these ``distances``, and return them with a mask of the valid
        ones (:func:`.draw_triplets`)."""
        similarity = torch.exp(-distances).fill_diagonal_(1.0)
        if labels is not None:
            similarity += labels[:, None] == labels  # images of the same class rank first
        config = self.config
        return draw_triplets(
            similarity,
            config.neighbours,
            config.draws,
            config.exclude_anchor,
            config.least,
        )


@register
class LatHAdapter(Adapter):
    """An adapter that adds a :class:`LatentHierarchy` as the child ``lathadapter`` of an open_clip
    model.

    It does not change the towers: a few-shot task gets its logits from :attr:`module`.
    """

    name = "lathadapter"
    Config = LatHAdapterConfig
    changes_towers = False

    @property
    def module(self) -> LatentHierarchy:
        """The module with the attributes, their refiner and the hierarchy."""
        return getattr(self.model, self.name)

    def attach(self) -> None:
        dim = self.config.dim or embedding_size(self.model)
        device = next(self.model.parameters()).device
        self.model.add_module(
            self.name, LatentHierarchy(dim, self.config).to(device).train(self.model.training)
        )

    def detach(self) -> None:
        delattr(self.model, self.name)

    def describe(self) -> str:
        config = self.config
        hierarchy = f"hierarchy with c = {config.c:g}" if config.hierarchy else "no hierarchy"
        return f"LatHAdapter: {config.count} attributes, beta = {config.beta:g}, {hierarchy}"

r"""HIER and LHIER: metric learning with proxies that become the inner nodes of a hierarchy of the
samples.

Kim, Jeong and Kwak, "HIER: Metric Learning Beyond Class Labels via Hierarchical Regularization"
(CVPR 2023), in the Poincare ball; Bdeir et al., "Robust Hyperbolic Learning with Curvature-Aware
Optimization" (NeurIPS 2025), which moves the method to the hyperboloid with a learned curvature
(LHIER).

Triplets ``(i, j, k)`` of nodes are drawn so that ``i`` and ``j`` are related and ``k`` is not. For
each triplet, one proxy is drawn as the lowest common ancestor (LCA) of ``i`` and ``j``, and one as
that of all three; the loss pulls ``i`` and ``j`` to the first and ``k`` to the second.

The published code holds a tensor ``(N, P, dim)`` to compute the distances, and a dozen tensors
``(triplets, P)``. Here the distances are one matrix product, and :func:`lca_triplet_loss` goes
through the triplets in blocks and adds up the gradient of the distance matrix: apart from this
matrix, the memory does not depend on the number of triplets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hypvision.geometry import Lorentz, Manifold, ManifoldParameter, PoincareBall, lorentz, poincare
from hypvision.geometry.manifold import whose
from hypvision.geometry.numerics import Function, clip_norm, exact, precise, readable
from hypvision.io import ArgumentError, at_least, more_than, one_of

# Triplets per block, by device: on a CPU the tensors of a block fit into the cache of a core; a GPU
# is faster with fewer, larger calls.
_ROWS = {"cpu": 256}
_ROWS_ELSEWHERE = 16384
# Size of the pool of random numbers on a CPU, where drawing fresh noise for every entry would cost
# more than the rest of the loss.
_POOL = 2**20
# Largest range of distance / temperature for which float32 can hold a table of
# exp(-distance / temperature), with a margin for the noise.
_NATS = 130.0
# HIER's least distance of a point from the boundary of the ball, as a share of its radius.
_HIER_EPS = 1e-3


def clip_to_ball(
    x: Tensor, manifold: PoincareBall, radius: float | None = 2.3, riemannian: bool = True
) -> Tensor:
    r"""Map feature vectors to points of the ball: clip their length, apply the exponential map at
    the origin, and project the points away from the boundary.

    The projection is HIER's: :math:`\sqrt c\,|y|` is cut at ``1 - 1e-3``, a distance of ``7.6 /
    sqrt(c)`` from the origin, or at ``1 - eps`` if the manifold was given an ``eps``. A vector
    reaches this limit at the length ``3.8 / sqrt(c)``, so with the default ``radius`` no vector
    does below ``c = 2.7``.

    Args:
        x: feature vectors ``(..., n)``.
        manifold: the ball in which the points lie.
        radius: length at which longer vectors are clipped (Guo et al., CVPR 2022); None: no
            clipping, only the projection.
        riemannian: whether the gradient is scaled by ``(1 - c |y|^2)^2 / 4`` on its way back, as in
            HIER.

    Returns:
        Points ``(..., n)``.
    """
    if radius is not None:
        x = clip_norm(x, radius)
    y = poincare.expmap0(x, manifold.c, _HIER_EPS if manifold.eps is None else manifold.eps)
    if not riemannian:
        return y
    fixed = y.detach()
    # The sum equals y, but its gradient is the scaled one.
    return fixed + poincare.egrad2rgrad(fixed, y - fixed, manifold._value())


def rescale_radii(
    x: Tensor, manifold: Lorentz, slope: float = 2.0, limit: float | Tensor | None = None
) -> Tensor:
    """Return points of a hyperboloid after maximum-distance rescaling
    (:func:`hypvision.geometry.lorentz.rescale`).

    The default limit follows from the curvature, but gives it no gradient (Bdeir et al.).
    """
    c = manifold.c
    if limit is None:
        limit = lorentz.max_distance(c.detach() if isinstance(c, Tensor) else c)
    return lorentz.rescale(x, c, limit=limit, slope=slope)


# Drawing triplets


def mutual_neighbours(similarity: Tensor, k: int) -> Tensor:
    """Return which pairs of nodes are among the ``k`` most similar of each other: bool ``(N, N)``;
    a node is never its own neighbour.

    The node itself takes part in the ranking, so it uses up one of its ``k``.
    """
    near = torch.zeros_like(similarity, dtype=torch.bool)
    near.scatter_(1, similarity.topk(min(k, len(similarity)), dim=1).indices, True)
    return (near & near.T).fill_diagonal_(False)


@torch.no_grad()
def draw_triplets(
    similarity: Tensor,
    k: int = 20,
    draws: int = 50,
    exclude_anchor: bool = False,
    least: int = 2,
) -> tuple[Tensor, Tensor]:
    """Draw triplets ``(i, j, k)`` of nodes: ``j`` is a mutual neighbour of ``i``, and ``k`` is not.

    Args:
        similarity: similarities of the nodes, ``(N, N)``.
        k: number of nearest nodes that count, see :func:`mutual_neighbours`.
        draws: number of triplets for each ``i``, drawn with replacement.
        exclude_anchor: never draw ``i`` itself as ``k``; the published code may draw it.
        least: a node ``i`` with fewer mutual neighbours has no triplets; the published code
            requires two.

    Returns:
        Indices of nodes, ``(N draws, 3)``, sorted by ``i``; and a mask ``(N draws,)`` of those that
        count, because a result of only those would have a size that the host must wait for.
    """
    mutual = mutual_neighbours(similarity, k)
    others = ~mutual
    if exclude_anchor:
        others.fill_diagonal_(False)
    valid = (mutual.sum(1, keepdim=True) >= least) & others.any(1, keepdim=True)
    tables = torch.cat([mutual | ~valid, others | ~valid]).float()
    related, unrelated = torch.multinomial(tables, draws, replacement=True).chunk(2)
    anchors = torch.arange(len(similarity), device=similarity.device)[:, None]
    triplets = torch.stack([anchors.expand_as(related), related, unrelated], -1)
    return triplets.view(-1, 3), valid.expand_as(related).flatten()


# The loss of the triplets


class _Noise:
    """Source of samples of ``exp(Gumbel)``, that is ``1 / Exponential(1)``, in blocks.

    On a CPU with many triplets, blocks are windows at random places of two pools, one pool for each
    of the two LCAs of a triplet. The numbers of a block are independent; different blocks share
    numbers, which leaves every expectation as it is.
    """

    def __init__(self, like: Tensor, gumbel: Tensor | None, rows: int, triplets: int):
        self.like = like
        self.width = like.shape[1]
        self.gumbel = gumbel
        size = max(_POOL // 2, 4 * rows * self.width)
        pooled = gumbel is None and readable(like) and triplets * self.width > size
        self.pools = self._draw(2, size) if pooled else None

    def _draw(self, *shape: int) -> Tensor:
        u = torch.rand(shape, dtype=self.like.dtype, device=self.like.device)
        return u.log_().reciprocal_().neg_()  # u < 1, so no weight is infinite

    def __call__(self, start: int, rows: int) -> Iterable[Tensor]:
        """Return two factors ``(rows, width)``: for the LCA of the pair and for that of the
        triple."""
        if self.gumbel is not None:
            return self.gumbel[:, start : start + rows].to(self.like).exp()
        if self.pools is None:
            return self._draw(2, rows, self.width)
        count = rows * self.width
        at = torch.randint(self.pools.shape[1] - count + 1, (2,)).tolist()
        return [pool[a : a + count].view(rows, self.width) for pool, a in zip(self.pools, at)]


class _TripletLoss(Function):
    """The sum of :func:`lca_triplet_loss` over triplets, as an autograd function whose forward pass
    computes the gradient, too.

    ``energy`` ``(N, P)``, which increases with ``dist``, is what ancestors are drawn by: from the
    softmax of minus the largest energy over the temperature.
    """

    @staticmethod
    def forward(
        ctx: Any,
        dist: Tensor,
        energy: Tensor,
        triplets: Tensor,
        valid: Tensor,
        temperature: float,
        margin: float,
        gumbel: Tensor | None,
    ) -> Tensor:
        rows = _ROWS.get(dist.device.type, _ROWS_ELSEWHERE)
        noise = _Noise(dist, gumbel, rows, len(triplets))
        low, high = energy.aminmax()
        # exp(-max(e_i, e_j) / tau) is the smaller of two entries of a table of exp(-e / tau). The
        # table holds -e / tau instead if its entries would underflow or cannot be looked at.
        narrow = readable(dist) and (high - low).item() <= _NATS * temperature
        table = (energy - (low + high) / 2 if narrow else energy) * (-1 / temperature)
        if narrow:
            table.exp_()
        total = high * 0  # 0, or NaN if any energy is not finite
        # The gradients of dist and of energy.
        grads = dist.new_zeros(2, *dist.shape) if ctx.needs_input_grad[0] else None
        count = len(triplets)
        # A compiled graph takes any number of triplets, so it has one block.
        whole = torch.compiler.is_compiling()
        rows = count if whole else min(rows, count)
        buffers = dist.new_empty(7 * rows * dist.shape[1])
        for start in (0,) if whole else range(0, count, rows):
            block = triplets[start : start + rows]
            counted = valid[start : start + rows]
            factors = noise(start, len(block))
            part = _block(
                dist, table, narrow, block, counted, factors, margin, temperature, grads, buffers
            )
            # Added in place, the sum would get no gradient from PyTorch's compiler.
            total = total + part
        ctx.save_for_backward(grads)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (grads,) = ctx.saved_tensors
        return *(grads * upstream), None, None, None, None, None


def _block(
    dist: Tensor,
    table: Tensor,
    narrow: bool,
    triplets: Tensor,
    valid: Tensor,
    noise: Iterable[Tensor],
    margin: float,
    temperature: float,
    grads: Tensor | None,
    buffers: Tensor,
) -> Tensor:
    """Return the loss of a block of triplets, and add to ``grads`` ``(2, N, P)`` the gradients of
    the drawn distances and those of the energies, which go through the softmax."""
    # row numbers (3, T) of i, j and k
    nodes = triplets.T.contiguous()
    width = dist.shape[1]
    work = buffers[: 7 * nodes.shape[1] * width].view(7, -1, width)
    near, weights, spare = work.split([3, 2, 2])
    torch.index_select(table, 0, nodes.flatten(), out=near.view(-1, width))
    a, b, c = near
    # pair and triple are the weights of each proxy as lowest common ancestor (LCA) of i and j and
    # of all three; j_rules and k_rules mark where j's or k's distance is the largest.
    pair, triple = weights
    torch.minimum(a, b, out=pair)
    torch.minimum(pair, c, out=triple)
    j_rules = torch.lt(b, a, out=b)
    k_rules = torch.lt(c, pair, out=c)
    if not narrow:
        weights.sub_(weights.amax(-1, keepdim=True)).exp_()
    for part, factors in zip(weights, noise):
        part.mul_(factors)
    # The argmax of log-weight plus Gumbel noise is a sample from the softmax.
    chosen = _largest(weights, spare)
    at_pair, at_triple = nodes * width + chosen[:, None]
    flat = dist.reshape(-1)
    gap = flat[at_pair] - flat[at_triple]
    gap[2].neg_()
    gap += margin
    active = (gap > 0) & (chosen[0] != chosen[1])
    sign = (active & valid).to(dist.dtype)
    total = (gap * sign).sum()
    if grads is None:
        return total

    drawn, soft = grads
    sign[2].neg_()
    # Add the gradient of the chosen distances.
    drawn.view(-1).index_add_(0, at_pair.view(-1), sign.view(-1))
    drawn.view(-1).index_add_(0, at_triple.view(-1), sign.view(-1), alpha=-1)
    # Add the gradient through the softmax: with v = dL/d(choice for the pair) = -dL/d(choice for
    # the triple), dL/d(logits) = y (v - <y, v>), which goes to the node at the largest distance.
    v = F.embedding_bag(triplets, dist, per_sample_weights=sign.T.contiguous(), mode="sum")
    scale = weights.sum(-1, keepdim=True)
    mean = torch.mul(weights, v, out=spare).sum(-1, keepdim=True).div_(scale)
    weights.div_(scale.mul_(temperature)).mul_(torch.sub(v, mean, out=spare))
    to_k = k_rules.mul_(triple)
    rest = torch.sub(triple, pair, out=pair).sub_(to_k)
    to_j = j_rules.mul_(rest)
    torch.sub(rest, to_j, out=a)
    soft.index_add_(0, nodes.flatten(), near.view(-1, width))
    return total


def _largest(x: Tensor, spare: Tensor) -> Tensor:
    """Return the column of the largest entry in each row of ``x > 0``; on a CPU this takes half the
    time of ``argmax``."""
    if x.device.type != "cpu":
        return x.argmax(-1)
    # at_top is 1 at the maximum, else 0. If a value is NaN all are 0, and the loss is NaN anyway.
    at_top = torch.ge(x, x.amax(-1, keepdim=True), out=spare)
    return at_top.mul_(torch.arange(x.shape[-1], dtype=x.dtype)).amax(-1).long()


def lca_triplet_loss(
    dist: Tensor,
    triplets: Tensor,
    temperature: float = 0.1,
    margin: float = 0.1,
    gumbel: Tensor | None = None,
    valid: Tensor | None = None,
    score: str = "distance",
) -> Tensor:
    r"""Return the mean hierarchical loss of triplets of nodes (HIER, eq. 6-8).

    With :math:`q_{ij}`, the ancestor of the pair, drawn from
    :math:`\mathrm{softmax}_p(-\max(d_{ip}, d_{jp})/\tau)`, and :math:`q`, that of all three, drawn
    likewise with the largest of three distances, the loss of a triplet is

    .. math:: [d_{iq_{ij}} - d_{iq} + m]_+ + [d_{jq_{ij}} - d_{jq} + m]_+
              + [d_{kq} - d_{kq_{ij}} + m]_+,

    or 0 if :math:`q_{ij} = q`. Draws are maxima of logits plus Gumbel noise; the gradient passes
    them straight through to the softmax with the same noise.

    Args:
        dist: distances ``(N, P)`` of N nodes from P proxies.
        triplets: row numbers ``(T, 3)`` of nodes in ``dist``, see :func:`draw_triplets`.
        temperature: the temperature :math:`\tau` of the softmax.
        margin: the margin :math:`m`.
        gumbel: Gumbel noise ``(2, T, P)``, for the pair and for the triple; None: drawn.
        valid: mask ``(T,)`` of the triplets that count; None: all.
        score: the logits of the softmax: ``"distance"``, as above and in HIER's code, or ``"exp"``,
            as the papers write them: :math:`\exp(-\max(d_{ip}, d_{jp}))`, without a temperature.

    Returns:
        The loss, a scalar; 0 without triplets. It can be differentiated once.
    """
    _check_triplets(dist, triplets, gumbel)
    more_than(0, temperature=temperature)
    one_of(("distance", "exp"), score=score)
    # Elsewhere the host would have to wait for the number of valid triplets, so the mask stays.
    if valid is not None and readable(dist):
        triplets = triplets[valid]
        gumbel = None if gumbel is None else gumbel[:, valid]
        valid = None
    if valid is None:
        valid = triplets.new_ones(len(triplets), dtype=torch.bool)
    if not len(triplets):
        return dist.sum() * 0
    dist = precise(dist)
    # A view, because PyTorch's compiler forgets one of two gradients of the same tensor.
    energy = dist.view_as(dist)
    if score == "exp":
        # The zeros make the energy of a distance that is not finite NaN.
        energy = 0 * dist - torch.exp(-dist)
        temperature = 1.0
    total: Tensor = _TripletLoss.apply(dist, energy, triplets, valid, temperature, margin, gumbel)
    return total / valid.sum().clamp(min=1)


def _check_triplets(dist: Tensor, triplets: Tensor, gumbel: Tensor | None) -> None:
    if dist.dim() != 2 or triplets.dim() != 2 or triplets.shape[1] != 3:
        raise ArgumentError(
            f"dist must be (N, P) and triplets (T, 3), got {tuple(dist.shape)} and "
            f"{tuple(triplets.shape)}."
        )
    if gumbel is not None and gumbel.shape != (2, len(triplets), dist.shape[1]):
        raise ArgumentError(
            f"gumbel must be (2, T, P) = (2, {len(triplets)}, {dist.shape[1]}), got "
            f"{tuple(gumbel.shape)}."
        )


# HIER's loss as a module


class HIERLoss(nn.Module):
    """Hierarchical regularisation of embeddings (HIER in the ball, LHIER on the hyperboloid).

    In the ball the proxies are Euclidean vectors, which each step maps into the ball like the
    embeddings (:func:`clip_to_ball`). On the hyperboloid they are manifold parameters, for a
    Riemannian optimiser, whose radii :func:`hypvision.geometry.lorentz.rescale` keeps below the
    limit.

    Args:
        manifold: space of the embeddings: :class:`~hypvision.geometry.PoincareBall` (HIER,
            published with ``c = 0.1``) or :class:`~hypvision.geometry.Lorentz` (LHIER, ``c = 1``,
            learnable).
        dim: dimension of the space.
        num_proxies: number of proxies.
        temperature, margin, score: see :func:`lca_triplet_loss`.
        neighbours, draws, exclude_anchor: see :func:`draw_triplets`.
        clip_radius: length at which the proxies' vectors are clipped in the ball; on the
            hyperboloid it sets only the initial radii.
        slope: the parameter ``s`` of the rescaling on the hyperboloid.
        limit: largest radius after the rescaling; None:
            :func:`hypvision.geometry.lorentz.max_distance`.

    Shapes:
        points ``(B, dim)`` of the ball or ``(B, dim + 1)`` of the hyperboloid, labels ``(B,)``, to
        a scalar.
    """

    def __init__(
        self,
        manifold: Manifold,
        dim: int,
        num_proxies: int = 512,
        temperature: float = 0.1,
        margin: float = 0.1,
        neighbours: int = 20,
        draws: int = 50,
        exclude_anchor: bool = False,
        clip_radius: float = 2.3,
        slope: float = 2.0,
        limit: float | None = None,
        score: str = "distance",
    ):
        super().__init__()
        if not isinstance(manifold, (PoincareBall, Lorentz)):
            raise ArgumentError(
                f"HIERLoss needs a PoincareBall or a Lorentz manifold, got {whose(manifold)}."
            )
        at_least(2, integer=True, num_proxies=num_proxies, neighbours=neighbours)
        at_least(1, integer=True, draws=draws)
        self.manifold = manifold
        self.temperature = temperature
        self.margin = margin
        self.score = score
        self.neighbours = neighbours
        self.draws = draws
        self.exclude_anchor = exclude_anchor
        self.clip_radius = clip_radius
        self.slope = slope
        self.limit = limit
        vectors = torch.randn(num_proxies, dim) / dim**0.5 * clip_radius * 0.9
        if isinstance(manifold, Lorentz):
            points = lorentz.expmap0(vectors, manifold.c).detach()
            self.proxies: nn.Parameter = ManifoldParameter(points, manifold=manifold)
        else:
            self.proxies = nn.Parameter(vectors)

    def points(self) -> Tensor:
        """Return the proxies as points of the manifold, ``(num_proxies, dim)`` or ``(num_proxies,
        dim + 1)``."""
        if isinstance(self.manifold, Lorentz):
            return rescale_radii(self.proxies, self.manifold, self.slope, self.limit)
        return clip_to_ball(self.proxies, self.manifold, self.clip_radius)

    def forward(
        self,
        x: Tensor,
        labels: Tensor,
        triplets: tuple[Tensor, Tensor] | None = None,
        gumbel: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return the loss of triplets of samples plus that of triplets of proxies; the ancestors of
        both are proxies.

        Args:
            x: embeddings, points of the manifold.
            labels: class numbers of the samples ``(B,)``.
            triplets: two tensors of triplets, of samples and of proxies; None: drawn.
            gumbel: two tensors of noise, for samples and for proxies, see :func:`lca_triplet_loss`.

        Returns:
            The loss, a scalar in float32 or float64, computed outside autocast.
        """
        with exact(x.device):
            x = precise(x)
            proxies = self.points().to(x.dtype)
            count = len(x)
            dist = self.manifold.cdist(torch.cat([x, proxies]), proxies)
            to_samples = dist[:count]
            to_proxies = dist[count:]
            # The distance of a point from itself is only a rounding error, as is its gradient.
            itself = torch.eye(len(proxies), dtype=torch.bool, device=x.device)
            to_proxies = to_proxies.masked_fill(itself, 0.0)
            if triplets is None:
                drawn = self._triplets(x.detach(), labels, to_proxies.detach())
            else:
                drawn = [(rows, None) for rows in triplets]
            first, second = (
                lca_triplet_loss(
                    part, rows, self.temperature, self.margin, noise, valid, self.score
                )
                for part, (rows, valid), noise in zip(
                    (to_samples, to_proxies), drawn, gumbel or (None, None)
                )
            )
            return first + second

    @torch.no_grad()
    def _triplets(
        self, x: Tensor, labels: Tensor, between_proxies: Tensor
    ) -> list[tuple[Tensor, Tensor | None]]:
        similarity = torch.exp(-self.manifold.cdist(x, x))
        similarity.fill_diagonal_(1.0)
        # Similarities are at most 1, so this ranks samples of the same class first.
        similarity += labels.unsqueeze(0) == labels.unsqueeze(1)
        options = (self.neighbours, self.draws, self.exclude_anchor)
        return [
            draw_triplets(table, *options) for table in (similarity, torch.exp(-between_proxies))
        ]

    def extra_repr(self) -> str:
        return (
            f"num_proxies={len(self.proxies)}, temperature={self.temperature}, margin={self.margin}"
        )

"""The plug-in of Hi-Mapper: it finds a tree of visual parts in a map, and makes a better image
feature from it.

Paper: "Improving Visual Recognition with Hyperbolical Visual Hierarchy Mapping", Kwon et al. (CVPR
2024). Official code: kwonjunn01/Hi-Mapper.

- :class:`GaussianTree`: N leaves are learned Gaussians; their ancestors have the matched moments of
  their children. Samples of the nodes are the queries.
- :class:`Decomposer`: one decoder layer, shared by all levels, makes one vector per node from
  queries and map.
- :class:`TreeLift`: maps these vectors to hyperbolic space, where the losses compare them (in
  training only).
- :class:`TreeEncoder`: the image feature attends to the levels in turn, from the leaves to the
  coarsest nodes.
- :class:`HierarchyMapper`: all of these together.

Levels are counted from 0, the finest. Level l has ``n_l = N / 2^l`` nodes with ``m_l = 2^l``
samples each, so that every level has N queries; node k of level l has the children 2k and 2k + 1 of
level l - 1.

The queries do not depend on the image, so they are projected once for all images. All levels run
through the shared layer together. Without noise the samples of a node are equal, so that one per
node is enough.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from timm.models import register_notrace_module
from timm.models._manipulate import checkpoint
from torch import Tensor, nn
from torch.types import Device

from hypvision.geometry import Euclidean, Lorentz
from hypvision.geometry.numerics import exact, held
from hypvision.io import HypvisionError, Plain, one_of
from hypvision.nn.functional import Attached, add_scaled
from hypvision.nn.linear import SharedLinear

# bounds of the log-variances, which mean standard deviations from 1e-3 to 1e3
LOG_VARIANCE = (-13.8, 13.8)
# scale of the logits in the cross attention of the decomposition
CROSS_SCALE = 1 / 0.07
# Up to this number of queries per image, attention projects queries into the space of the memory
# instead of projecting the memory to keys.
FEW = 4


def _fill(module: nn.Module, values: dict[str, Tensor]) -> None:
    """Copy values into the buffers of a module, by their names.

    timm and transformers make networks on the device ``meta``, load their weights and then call
    ``init_non_persistent_buffers`` of each module, because checkpoints lack these buffers.
    """
    for name, value in values.items():
        module.get_buffer(name).copy_(value)


# The tree of Gaussians


class Moments(NamedTuple):
    """Mean and log-variance ``(n_l, C)`` of the nodes of one level, in float32 at least."""

    mean: Tensor
    log_variance: Tensor


class GaussianTree(nn.Module):
    """A binary tree of diagonal Gaussians; its leaves are learned.

    A parent has the mean and the variance of the mixture of its two children with equal weights
    (moment matching): ``mean' = (mean_a + mean_b) / 2``,
    ``var' = (var_a + var_b) / 2 + (mean_a - mean_b)^2 / 4``. In this form the variance cannot
    become negative, and it is never below the smaller one of the children. Log-variances are kept
    within +-13.8.

    Args:
        dim: dimension C of the Gaussians.
        leaves: number N of leaves.
        levels: number L of levels.
        distribution: ``"gaussian"``, or ``"deterministic"``, an ablation without variance in which
            a node is its mean.
        mixture: what the queries of upper nodes are sampled from: ``"moment"``, the Gaussian with
            the matched moments, or ``"components"``, a leaf below the node, drawn with equal
            probability.
    """

    average: Tensor
    share: Tensor
    places: Tensor
    firsts: Tensor

    def __init__(
        self,
        dim: int,
        leaves: int = 32,
        levels: int = 4,
        distribution: str = "gaussian",
        mixture: str = "moment",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        one_of(("gaussian", "deterministic"), tree=distribution)
        one_of(("moment", "components"), mixture=mixture)
        if levels < 1 or leaves < 1 or leaves % 2 ** (levels - 1):
            raise HypvisionError(
                f"A tree of {levels} levels needs a number of leaves that 2^{max(levels - 1, 0)} "
                f"divides, got {leaves}. Change leaves or levels."
            )
        self.leaves = leaves
        self.levels = levels
        self.distribution = distribution
        self.mixture = mixture
        self.mean = nn.Parameter(torch.empty(leaves, dim, device=device, dtype=dtype))
        self.log_variance = None
        if distribution == "gaussian":
            self.log_variance = nn.Parameter(torch.empty(leaves, dim, device=device, dtype=dtype))
        self.nodes = [leaves // 2**level for level in range(levels)]
        self.samples = [2**level for level in range(levels)]
        for name, matrix in self._matrices().items():
            self.register_buffer(name, matrix, persistent=False)
        self.reset_parameters()

    def _matrices(self) -> dict[str, Tensor]:
        """Return the buffers by their names."""
        with torch.device(self.mean.device):
            matrices = _tree_matrices(self.nodes, self.samples)
        return dict(zip(("average", "share", "places", "firsts"), matrices))

    def init_non_persistent_buffers(self) -> None:
        """Fill the buffers, which no checkpoint has, see :func:`_fill`."""
        _fill(self, self._matrices())

    def reset_parameters(self) -> None:
        """Initialise the leaves with siblings near each other, leaves of different parents far
        apart, and variances of about 1."""
        with torch.no_grad():
            pairs = self.mean.new_empty(-(-self.leaves // 2), self.mean.shape[1]).normal_(std=1.5)
            siblings = pairs.repeat_interleave(2, 0)[: self.leaves]
            self.mean.copy_(siblings + 0.01 * torch.randn_like(siblings))
            if self.log_variance is not None:
                nn.init.xavier_uniform_(self.log_variance)

    def moments(self) -> list[Moments]:
        """Return the mean and the log-variance of the nodes of each level. The variances of a
        deterministic tree are those of the mixture of its points, and on the leaves the smallest
        allowed."""
        mean, variance = (found.index_select(0, self.firsts) for found in self._of_queries())
        return [
            Moments(*level)
            for level in zip(mean.split(self.nodes), variance.log().split(self.nodes))
        ]

    def means(self) -> Tensor:
        """Return the means ``(sum n_l, C)`` of all nodes, the finest level first, in float32 at
        least."""
        return self._of_queries()[0].index_select(0, self.firsts)

    def _leaves(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the log-variance ``(N, C)`` of the leaves."""
        low, high = LOG_VARIANCE
        compute_dtype = torch.promote_types(self.mean.dtype, torch.float32)
        mean = self.mean.to(compute_dtype)
        if self.log_variance is None:
            return mean, torch.full_like(mean, low)
        log_variance = self.log_variance.to(compute_dtype)
        return mean, held(log_variance, low, high)

    def _of_queries(self) -> tuple[Tensor, Tensor]:
        """Return for each query the mean and the variance ``(L N, C)`` of its node."""
        mean, log_variance = self._leaves()
        with exact(mean.device):
            queries = self.levels * self.leaves
            found = self.average.to(mean) @ mean
            means, apart = found.split([queries, len(found) - queries])
            variance = self.share.to(mean) @ torch.cat([log_variance.exp(), apart.square()])
            return means, variance

    def draw_noise(
        self, generator: torch.Generator | None = None, one_by_one: bool = False
    ) -> list[Tensor] | Tensor:
        """Return standard normal noise for one forward pass.

        Args:
            generator: generator on the device of the parameters; None: torch's global one.
            one_by_one: whether each ``(n_l, C)`` is drawn in a call of its own, as in the official
                code, which gives the same numbers with the same seed.

        Returns:
            A tensor ``(L N, C)``, one row for each query; with ``one_by_one`` a tensor
            ``(m_l, n_l, C)`` per level, whose dimensions are draw, node and channel.
        """
        dim = self.mean.shape[1]
        if not one_by_one:
            return self._randn((self.levels * self.leaves, dim), generator)
        return [
            torch.stack([self._randn((n, dim), generator) for _ in range(m)])
            for n, m in zip(self.nodes, self.samples)
        ]

    def _randn(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        compute_dtype = torch.promote_types(self.mean.dtype, torch.float32)
        return torch.randn(shape, generator=generator, device=self.mean.device, dtype=compute_dtype)

    def sample(
        self, noise: list[Tensor] | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return queries ``(L N, C)``, level after level: query t of a level is the sample
        ``t mod m_l`` of node ``t // m_l``.

        Args:
            noise: a tensor ``(L N, C)``, one row for each query; or a tensor ``(m_l, n_l, C)`` per
                level, or one tensor ``(n_l, C)`` per draw, the finest level first (the order of the
                official code).
            generator: source of the random choice of leaves if the tree has
                ``mixture="components"``.
        """
        drawn = noise if isinstance(noise, Tensor) else self._joined(noise)
        if self.mixture == "components":
            drawn_leaves = self._drawn_leaves(generator)
            mean, log_variance = (leaves[drawn_leaves] for leaves in self._leaves())
            deviation = torch.exp(log_variance / 2)
        else:
            mean, variance = self._of_queries()
            deviation = torch.sqrt(variance)
        return add_scaled(mean, deviation, drawn.to(mean))

    def _drawn_leaves(self, generator: torch.Generator | None) -> Tensor:
        """Return for each query ``(L N,)`` the number of a leaf below its node, drawn with equal
        probability."""
        device = self.mean.device
        found = [torch.arange(self.leaves, device=device)]
        for n, m in list(zip(self.nodes, self.samples))[1:]:
            below = torch.randint(m, (m, n), generator=generator, device=device)
            found.append((below + m * torch.arange(n, device=device)).T.flatten())
        return torch.cat(found)

    def _joined(self, noise: list[Tensor]) -> Tensor:
        """Return the noise, given by level or by draw, as one tensor ``(L N, C)``, one row for each
        query."""
        dim = self.mean.shape[1]
        draws = [(n, dim) for n, m in zip(self.nodes, self.samples) for _ in range(m)]
        levels = [(m, n, dim) for n, m in zip(self.nodes, self.samples)]
        shapes = [tuple(eps.shape) for eps in noise]
        if shapes not in (levels, draws):
            raise ValueError(
                f"The noise must have the shapes {levels}, or be {sum(self.samples)} tensors (n_l, "
                f"{dim}), got {shapes}."
            )
        return torch.cat([eps.reshape(-1, dim) for eps in noise]).index_select(0, self.places)


def _tree_matrices(nodes: list[int], samples: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return matrices that compute the moments of all nodes from those of the leaves, and indices
    of queries ``(L N,)``, which are in the order of the levels.

    Returns:
        - the matrix ``(L N + inner nodes, N)`` from the means of the leaves to the mean of each
          query's node, and then to half of the difference of the two children of each inner node;
        - the matrix from the variances of the leaves and the squares of these halves to the
          variance of each query's node;
        - for each query its index in noise that is ordered draw after draw;
        - for each node the index of its first query.
    """
    leaves = nodes[0]
    means = [torch.eye(n).repeat_interleave(m, 1) / m for n, m in zip(nodes, samples)]  # (n_l, N)
    gaps = [(mean[0::2] - mean[1::2]) / 2 for mean in means[:-1]]
    shares = []
    for level, (n, m) in enumerate(zip(nodes, samples)):
        # The variance of a node contains that of children below it, weighted by the share of its
        # leaves that they have.
        below = [torch.eye(n).repeat_interleave(m // k, 1) * (k / m) if k <= m else torch.zeros(n,
        leaves // k)
                 for k in samples[1:]]  # fmt: skip
        shares.append(torch.cat([means[level], *below], 1))
    places = [level * leaves + torch.arange(leaves).view(m, n).T.flatten()
              for level, (n, m) in enumerate(zip(nodes, samples))]  # fmt: skip
    firsts = [
        level * leaves + torch.arange(n) * m for level, (n, m) in enumerate(zip(nodes, samples))
    ]
    average, share = (
        torch.cat([part.repeat_interleave(m, 0) for part, m in zip(parts, samples)])
        for parts in (means, shares)
    )
    return torch.cat([average, *gaps]), share, torch.cat(places), torch.cat(firsts)


# Attention layers


class Attention(nn.Module):
    """The weights of a multi-head attention with projections without bias, and the parts of its
    computation."""

    def __init__(
        self, dim: int, heads: int, device: Device = None, dtype: torch.dtype | None = None
    ):
        super().__init__()
        factory: Plain = {"device": device, "dtype": dtype}
        self.heads = heads
        self.q_proj = SharedLinear(dim, dim, bias=False, **factory)
        self.k_proj = SharedLinear(dim, dim, bias=False, **factory)
        self.v_proj = SharedLinear(dim, dim, bias=False, **factory)
        self.proj = SharedLinear(dim, dim, **factory)

    def split(self, x: Tensor) -> Tensor:
        """Return ``(..., T, w)`` as ``(..., heads, T, w / heads)``; several vectors side by side in
        the last dimension become as many times the heads."""
        parts: Tensor = x.unflatten(-1, (-1, self.proj.in_features // self.heads))
        return parts.transpose(-2, -3)

    def join(self, x: Tensor) -> Tensor:
        """Return the projected output ``(..., T, w)`` for the outputs ``(..., heads, T, d)`` of the
        heads."""
        out: Tensor = self.proj(x.transpose(-2, -3).flatten(-2))
        return out

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values ``(..., heads, M, d)`` of ``memory`` ``(..., M, w)``, computed by
        one product."""
        both = F.linear(memory, torch.cat([self.k_proj.weight, self.v_proj.weight]))
        keys, values = both.chunk(2, -1)
        return self.split(keys), self.split(values)

    def cross(self, x: Tensor, memory: Tensor) -> Tensor:
        """Return what queries ``x`` ``(B, T, w)`` read by attention from ``memory`` ``(B, M, w)``,
        ``(B, T, w)``."""
        keys, values = self.keys_values(memory)
        return self.join(F.scaled_dot_product_attention(self.split(self.q_proj(x)), keys, values))

    def alone(self, x: Tensor) -> Tensor:
        """Return the self-attention of tokens ``(..., w)`` of which each sees only itself, so that
        the softmax is 1."""
        out: Tensor = self.proj(self.v_proj(x))
        return out


class DecoderLayer(nn.Module):
    """The weights of a pre-norm decoder layer: cross attention, self-attention, MLP.

    ``memnorm`` is a norm that official checkpoints have and that takes no part in the computation.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        mlp_ratio: float,
        drop: float,
        memnorm: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        factory: Plain = {"device": device, "dtype": dtype}
        self.norm1 = nn.LayerNorm(dim, **factory)
        self.cross_attn = Attention(dim, heads, **factory)
        self.norm2 = nn.LayerNorm(dim, **factory)
        self.self_attn = Attention(dim, heads, **factory)
        self.norm3 = nn.LayerNorm(dim, **factory)
        self.fc1 = nn.Linear(dim, int(dim * mlp_ratio), **factory)
        self.fc2 = nn.Linear(int(dim * mlp_ratio), dim, **factory)
        self.memnorm = nn.LayerNorm(dim, **factory) if memnorm else None
        self.drop = nn.Dropout(drop)

    def mlp(self, x: Tensor) -> Tensor:
        """Return the MLP branch of ``x`` ``(..., w)``, with its norm, before its last dropout."""
        out: Tensor = self.fc2(self.drop(F.gelu(self.fc1(self.norm3(x)))))
        return out


def _projection(dim_in: int, dim_out: int, factory: Plain, norm: bool = False) -> nn.Sequential:
    layers = [nn.LayerNorm(dim_in, **factory), nn.Linear(dim_in, dim_out, **factory)]
    return nn.Sequential(*layers, *([nn.LayerNorm(dim_out, **factory)] if norm else []))


def _init_linear(module: nn.Module) -> None:
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            trunc_normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class Decomposer(nn.Module):
    """Decomposition of a map into one vector per node of the tree: queries attend to the map, then
    to those of their level.

    Args:
        dim: channels C of queries, map and nodes.
        nodes, samples: numbers ``n_l`` of nodes and ``m_l`` of samples per node, of each level.
        width: inner width w.
        heads, mlp_ratio, drop: heads, MLP expansion and dropout of the decoder layer.
    """

    average: Tensor

    def __init__(
        self,
        dim: int,
        nodes: list[int],
        samples: list[int],
        width: int = 128,
        heads: int = 4,
        mlp_ratio: float = 4.0,
        drop: float = 0.1,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        factory: Plain = {"device": device, "dtype": dtype}
        self.nodes = nodes
        self.samples = samples
        self.register_buffer("average", self._means().to(device), persistent=False)
        self.memory_proj = _projection(dim, width, factory, norm=True)
        self.node_proj = _projection(dim, width, factory)
        self.layer = DecoderLayer(width, heads, mlp_ratio, drop, **factory)
        self.out_proj = _projection(width, dim, factory)
        _init_linear(self)

    def _means(self) -> Tensor:
        """Return the matrix that takes the samples of all levels to the mean for each node."""
        levels = zip(self.nodes, self.samples)
        blocks = [torch.eye(n).repeat_interleave(m, 1) / m for n, m in levels]
        matrix: Tensor = torch.block_diag(*blocks)
        return matrix

    def init_non_persistent_buffers(self) -> None:
        """Fill the buffer, which no checkpoint has, see :func:`_fill`."""
        with torch.device(self.average.device):
            _fill(self, {"average": self._means()})

    def forward(
        self, memory: Tensor, queries: Tensor, maps: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return one vector per node, and attention maps.

        Args:
            memory: tokens of the map ``(B, M, C)``.
            queries: queries of all levels, ``(L N, C)`` if they are samples or ``(sum n_l, C)`` if
                they are means.
            maps: whether the attention of each node to the map, the mean over heads and samples, is
                returned too.
        Returns:
            Nodes ``(B, sum n_l, C)``, level after level; attention ``(B, sum n_l, M)`` or None.
        """
        layer = self.layer
        cross = self.layer.cross_attn
        keys, values = cross.keys_values(self.memory_proj(memory))
        # Before the cross attention all images have the same queries.
        start = self.node_proj(queries.to(layer.norm1.weight.dtype))
        query = cross.split(cross.q_proj(layer.norm1(start)).expand(memory.shape[0], -1, -1))
        seen = F.scaled_dot_product_attention(query, keys, values, scale=CROSS_SCALE)
        x = start + layer.drop(cross.join(seen))
        x = x + layer.drop(self._within_levels(layer.norm2(x)))
        x = x + layer.drop(layer.mlp(x))
        attention = None
        if maps:
            weights = torch.softmax(
                torch.matmul(query, keys.transpose(-1, -2)).float() * CROSS_SCALE, -1
            )
            attention = self._average(weights.mean(1))
        return self.out_proj(self._average(x)), attention

    def _within_levels(self, x: Tensor) -> Tensor:
        """Return the self-attention of queries ``x`` that see only those of their own level."""
        attn = self.layer.self_attn
        qkv = F.linear(x, torch.cat([attn.q_proj.weight, attn.k_proj.weight, attn.v_proj.weight]))
        if x.shape[-2] > sum(self.nodes):  # levels of samples count as images
            levels = len(self.nodes)
            batch, queries, width = x.shape
            heads = qkv.view(batch * levels, queries // levels, 3, attn.heads, width // attn.heads)
            q, k, v = (part.transpose(1, 2) for part in heads.unbind(2))
            return attn.join(F.scaled_dot_product_attention(q, k, v)).view_as(x)
        # Levels of means are computed one at a time, because one masked call for all would compute
        # twice as much.
        found = []
        for part in qkv.split(self.nodes, -2):
            q, k, v = part.unflatten(-1, (3, attn.heads, -1)).permute(2, 0, 3, 1, 4)
            found.append(F.scaled_dot_product_attention(q, k, v))
        return attn.join(torch.cat(found, -2))

    def _average(self, x: Tensor) -> Tensor:
        """Return the mean over the samples of each node, ``(B, L N, D)`` to ``(B, sum n_l, D)``;
        queries that are means stay unchanged."""
        if x.shape[-2] == sum(self.nodes):
            return x
        return torch.matmul(self.average.to(x.dtype), x)


class _Joined(NamedTuple):
    """Joined weights of the attentions of a layer for few queries: each head reads the memory
    itself instead of keys and values.

    Because ``(W_k^T q) . m = q . (W_k m)``, the left side can be computed; for few queries it is
    cheaper, as the memory need not be projected.

    Attributes:
        to_keys: matrix ``(heads w, w)`` from tokens to the queries of each head in the space of the
            memory.
        to_out: matrix ``(heads w, w)`` from the mean of the memory that each head sees to the
            projected output.
        bias: bias ``(w,)`` of the output.
        alone: matrix ``(w, w)`` and bias ``(w,)`` of the self-attention of a token that sees only
            itself.
        heads: number of heads.
    """

    to_keys: Tensor
    to_out: Tensor
    bias: Tensor
    alone: tuple[Tensor, Tensor]
    heads: int

    def cross(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return what queries ``x`` ``(B, T, w)`` read by attention from the memory ``(B, M, w)``,
        given twice, ``(B, T, w)``."""
        batch, tokens, width = x.shape
        scale = (width // self.heads) ** -0.5
        # (B, 1, T * heads, w): each query once for each head
        query = F.linear(x, self.to_keys).view(batch, 1, tokens * self.heads, width)
        seen = F.scaled_dot_product_attention(query, keys[:, None], values[:, None], scale=scale)
        joined = seen.view(batch, tokens, self.heads * width)
        return F.linear(joined, self.to_out.mT, self.bias)


def _added(x: Tensor, branch: Tensor, mask: Tensor | None) -> Tensor:
    """Return ``x + branch * mask``, or without a mask the sum."""
    return x + branch if mask is None else add_scaled(x, branch, mask)


class TreeEncoder(nn.Module):
    """Encoder in which features attend to the levels of the tree in turn, leaves first.

    Args:
        dim: channels of the features.
        memory_dim: channels C of the nodes.
        nodes: number ``n_l`` of nodes of each level.
        width, heads, mlp_ratio, drop: inner width, heads, MLP expansion and dropout of the layers,
            one layer per level.
        official: whether layers have the norm that official checkpoints contain but that is not
            used.
    """

    def __init__(
        self,
        dim: int,
        memory_dim: int,
        nodes: list[int],
        width: int = 128,
        heads: int = 4,
        mlp_ratio: float = 4.0,
        drop: float = 0.1,
        official: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        factory: Plain = {"device": device, "dtype": dtype}
        self.nodes = nodes
        self.memory_proj = _projection(memory_dim, width, factory, norm=True)
        self.node_proj = _projection(dim, width, factory)
        self.layers = nn.ModuleList(
            DecoderLayer(width, heads, mlp_ratio, drop, memnorm=official, **factory) for _ in nodes
        )
        self.out_proj = _projection(width, dim, factory)
        _init_linear(self)

    def forward(self, x: Tensor, nodes: Tensor) -> Tensor:
        """Return enriched features ``(B, T, dim)`` for features ``x`` ``(B, T, dim)``, each by
        itself, and nodes ``(B, sum n_l, C)``."""
        memory = self.memory_proj(nodes)
        x = self.node_proj(x)
        layers: Iterable[Any] = self.layers
        few = self._joined() if x.shape[1] <= FEW else [None] * len(self.nodes)
        # The memory is parted twice, so that its gradients as keys and as values are added at once.
        keys, values = (memory.split(self.nodes, -2) for _ in range(2))
        for layer, joined, key, value, masks in zip(layers, few, keys, values, self._masks(x)):
            if joined is None:
                x = _added(x, layer.cross_attn.cross(layer.norm1(x), key), masks[0])
                x = _added(x, layer.self_attn.alone(layer.norm2(x)), masks[1])
            else:
                x = _added(x, joined.cross(layer.norm1(x), key, value), masks[0])
                x = _added(x, F.linear(layer.norm2(x), *joined.alone), masks[1])
            x = _added(x, layer.mlp(x), masks[2])
        out: Tensor = self.out_proj(x)
        return out

    def _masks(self, x: Tensor) -> Sequence[Sequence[Tensor | None]]:
        """Return for each layer the factors ``(B, T, w)`` of dropout of its three branches, all
        drawn at once; None where nothing is dropped."""
        drop: Any = self.layers[0].drop
        count = len(self.nodes)
        if not (drop.training and drop.p):
            return [(None, None, None)] * count
        masks: Tensor = drop(x.new_ones(count, 3, *x.shape))
        return [layer.unbind() for layer in masks.unbind()]

    def _joined(self) -> list[_Joined]:
        """Return the joined weights of the attentions of each layer."""
        layers: list[Any] = list(self.layers)
        crosses = [layer.cross_attn for layer in layers]
        selves = [layer.self_attn for layer in layers]
        heads = crosses[0].heads
        names = ("k_proj", "v_proj", "q_proj", "proj")
        weights = [getattr(a, name).weight for name in names for a in crosses]
        weights += [getattr(a, name).weight for name in ("v_proj", "proj") for a in selves]
        count = len(layers)
        parts = torch.stack(weights).split([2 * count, *[count] * 4])
        left = parts[0].view(2, count, heads, -1, parts[0].shape[-1])  # (2, L, heads, d, w)
        queries = parts[1].unflatten(1, (heads, -1))  # (L, heads, d, w)
        out = parts[2].unflatten(2, (heads, -1)).permute(0, 2, 3, 1)  # (L, heads, d, w)
        both = torch.matmul(left.mT, torch.stack([queries, out])).flatten(2, 3)
        to_keys_and_out = both.flatten(0, 1).unbind()
        alone = torch.matmul(parts[4], parts[3]).unbind()
        return [
            _Joined(keys, outs, cross.proj.bias, (own, last.proj.bias), heads)
            for keys, outs, own, cross, last in zip(
                to_keys_and_out[:count], to_keys_and_out[count:], alone, crosses, selves
            )
        ]

    def unused(self) -> list[nn.Parameter]:
        """Return the parameters that are in checkpoints but do not affect the result."""
        found: list[nn.Parameter] = []
        layers: Iterable[Any] = self.layers
        for layer in layers:
            found += [layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight]
            found += list(layer.memnorm.parameters()) if layer.memnorm is not None else []
        return found


# The lift to hyperbolic space


class TreeLift(nn.Module):
    """Lift of nodes to points of a manifold: a linear map to ``dim_out`` numbers, then one of two
    lifts.

    - ``"exp0"``: the exponential map at the origin of tangent vectors times a learned scale, which
      begins at ``1 / sqrt(dim_out)`` (the paper's lift, as in MERU);
    - ``"official"``: the lift of the released code. In its norm n, which is capped at 1.5,
      coordinate 0 counts as negative; its result does not depend on the curvature and is taken as
      space part.

    Args:
        dim: C.
        dim_out: coordinates of a point, without its time.
        lift: ``"exp0"`` or ``"official"``.
        geometry: ``"lorentz"``, or ``"euclidean"``, an ablation without a lift, with the scale
            alone.
        curvature: initial curvature; it is learned, between a tenth and ten times of this value.
    """

    def __init__(
        self,
        dim: int,
        dim_out: int = 128,
        lift: str = "exp0",
        geometry: str = "lorentz",
        curvature: float = 1.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        one_of(("exp0", "official"), lift=lift)
        one_of(("lorentz", "euclidean"), geometry=geometry)
        self.lift = lift
        self.weight = nn.Parameter(torch.empty(dim, dim_out, device=device, dtype=dtype))
        flat = geometry == "euclidean"
        self.manifold: Lorentz | Euclidean = (
            Euclidean() if flat else Lorentz(curvature, learnable=True)
        )
        self.manifold.to(device=device, dtype=dtype)
        self.scale: nn.Parameter | None = None
        if lift == "exp0" or flat:
            self.scale = nn.Parameter(torch.empty((), device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights Kaiming-uniformly, and the scale with ``1 / sqrt(dim_out)``."""
        bound = (6 / self.weight.shape[1]) ** 0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.scale is not None:
            nn.init.constant_(self.scale, self.weight.shape[1] ** -0.5)

    def forward(self, nodes: Tensor) -> Tensor:
        """Return points ``(..., dim_out + 1)``, time first, for nodes ``(..., C)``, or
        ``(..., dim_out)`` in flat space; in float32 at least."""
        compute_dtype = torch.promote_types(nodes.dtype, torch.float32)
        with exact(nodes.device):
            v = torch.matmul(nodes.to(compute_dtype), self.weight.to(compute_dtype))
            scaled = v if self.scale is None else v * self.scale.to(compute_dtype)
            if isinstance(self.manifold, Euclidean):
                return scaled
            exp0 = self.lift == "exp0"
            return (
                self.manifold.expmap0(scaled)
                if exp0
                else self.manifold.from_space(_official_lift(v))
            )


def _official_lift(v: Tensor) -> Tensor:
    """Return the space part ``(..., D)`` that the released code makes of vectors ``v``
    ``(..., D)``."""
    square = v[..., 1:].square().sum(-1, keepdim=True) - v[..., :1].square()
    # The released code's clamp passes 1e-8 of the gradient.
    leak = 1e-9 + 1e-8 * (square - square.detach())
    n = torch.where(square > 1e-9, square, leak).sqrt()
    r = n.clamp(max=1.5)
    space = torch.sinh(r) * v / n
    return torch.cat([space[..., :1] + torch.cosh(r), space[..., 1:]], -1)


# The whole plug-in


class MapLayout(NamedTuple):
    """The layout of a backbone's map, and the choice of tokens that are keys and values.

    Attributes:
        channels_last: whether maps with four dimensions are ``(B, H, W, C)``, not ``(B, C, H, W)``.
        prefix: number of class and other tokens at the beginning of a sequence
            ``(B, prefix + HW, C)``.
        distilled: whether the second token is a distillation token with a feature and head of its
            own.
        kv: which tokens are keys and values: ``"patch"``, all but the prefix; ``"official"``, by
            the released code's rule, all but the first if C < 500, else all; ``"all"``. The
            distillation token never is one.
    """

    channels_last: bool = False
    prefix: int = 0
    distilled: bool = False
    kv: str = "patch"

    def patches(self, features: Tensor) -> Tensor:
        """Return the tokens ``(B, HW, C)`` that have a place in the image, row after row."""
        if features.ndim == 4:
            return (
                features.flatten(1, 2)
                if self.channels_last
                else features.flatten(2).transpose(1, 2)
            )
        return features[:, self.prefix :]

    def memory(self, features: Tensor) -> Tensor:
        """Return the tokens ``(B, M, C)`` to which queries attend.

        Raises:
            HypvisionError: the backbone returns several maps.
        """
        if isinstance(features, (list, tuple)):
            raise HypvisionError(
                "The backbone gives several maps or sequences in place of one, which Hi-Mapper "
                "needs. Take another backbone."
            )
        if self.kv == "patch" or features.ndim == 4 and self.kv == "all":
            return self.patches(features)
        tokens = self.patches(features) if features.ndim == 4 else features
        if self.distilled:
            tokens = torch.cat([tokens[:, :1], tokens[:, 2:]], 1)
        return tokens[:, 1:] if self.kv == "official" and tokens.shape[-1] < 500 else tokens


class HierarchyMapper(nn.Module):
    """The whole plug-in, for maps of ``dim`` channels and image features of ``cls_dim`` channels.

    Args:
        dim: channels C of the map.
        cls_dim: channels of the image feature.
        leaves, levels: numbers N of leaves and L of levels of the tree.
        width, heads, mlp_ratio, drop: inner width, heads, MLP expansion and dropout of the
            attention layers.
        tree, mixture: see :class:`GaussianTree`.
        eval_noise: noise in eval mode: ``"mean"``, none; ``"sample"``, noise at every call as in
            training (as in the released code); ``"fixed"``, the same noise at every call.
        lift, geometry, curvature, points: see :class:`TreeLift`; ``points`` is its ``dim_out``.
        residual: whether the encoded feature is added to the given one, instead of replacing it.
        one_by_one: whether noise is drawn in the order of the official code.
        layout: layout of the maps of the backbone.
        dense_dim: channels of a map that is enriched too, by an encoder whose output begins at 0
            (not in the paper); None: no such encoder.
    """

    def __init__(
        self,
        dim: int,
        cls_dim: int,
        leaves: int = 32,
        levels: int = 4,
        width: int = 128,
        heads: int = 4,
        mlp_ratio: float = 4.0,
        drop: float = 0.1,
        tree: str = "gaussian",
        mixture: str = "moment",
        eval_noise: str = "mean",
        lift: str = "exp0",
        geometry: str = "lorentz",
        curvature: float = 1.0,
        points: int = 128,
        residual: bool = True,
        one_by_one: bool = False,
        layout: MapLayout = MapLayout(),  # noqa: B008 - immutable
        dense_dim: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        one_of(("mean", "sample", "fixed"), eval_noise=eval_noise)
        if width % heads:
            raise HypvisionError(f"width must be a multiple of heads, got {width} and {heads}.")
        factory: Plain = {"device": device, "dtype": dtype}
        self.eval_noise = eval_noise
        self.residual = residual
        self.one_by_one = one_by_one
        self.layout = layout
        self.grad_checkpointing = False
        self.tree = GaussianTree(dim, leaves, levels, tree, mixture, **factory)
        layer = dict(width=width, heads=heads, mlp_ratio=mlp_ratio, drop=drop, **factory)
        self.decomposer = Decomposer(dim, self.tree.nodes, self.tree.samples, **layer)
        self.encoder: TreeEncoder | None = TreeEncoder(cls_dim, dim, self.tree.nodes, **layer)
        self.lift = TreeLift(dim, points, lift, geometry, curvature, **factory)
        self.dense: TreeEncoder | None = None
        if dense_dim is not None:
            self.dense = TreeEncoder(dense_dim, dim, self.tree.nodes, official=False, **layer)
            blocks: Iterable[Any] = self.dense.layers
            # These weights are not used if attention reads the tokens themselves, and checkpoints
            # lack them.
            for block in blocks:
                block.self_attn.q_proj = block.self_attn.k_proj = None
            nn.init.zeros_(self.dense.out_proj.get_parameter("1.weight"))
        if eval_noise == "fixed":
            noise = self._fixed_noise().to(self.tree.mean.device)
            self.register_buffer("noise", noise, persistent=False)

    def _fixed_noise(self) -> Tensor:
        """Return the noise ``(L, N, C)`` of every call in evaluation, on the CPU."""
        generator = torch.Generator("cpu").manual_seed(0)
        shape = (self.tree.levels, *self.tree.mean.shape)
        return torch.randn(shape, generator=generator, device="cpu")

    def init_non_persistent_buffers(self) -> None:
        """Fill the buffer, which no checkpoint has, see :func:`_fill`."""
        if self.eval_noise == "fixed":
            _fill(self, {"noise": self._fixed_noise()})

    def queries(
        self,
        noise: list[Tensor] | Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the queries, level after level: samples ``(L N, C)``, or the means
        ``(sum n_l, C)`` where there is no noise.

        Args:
            noise: noise to use, see :meth:`GaussianTree.sample`; None: as the mode and
                ``eval_noise`` say.
            generator: source of the random numbers; None: torch's global one.
        """
        if noise is None:
            if self.tree.distribution == "deterministic" or not (
                self.training or self.eval_noise != "mean"
            ):
                return self.tree.means()
            if not self.training and self.eval_noise == "fixed":
                shapes = zip(self.get_buffer("noise"), self.tree.nodes, self.tree.samples)
                noise = [eps.view(m, n, -1) for eps, n, m in shapes]
                if generator is None and self.tree.mixture == "components":
                    generator = torch.Generator(noise[0].device).manual_seed(0)
            else:
                noise = self.tree.draw_noise(generator, self.one_by_one)
        return self.tree.sample(noise, generator)

    def decompose(
        self,
        memory: Tensor,
        noise: list[Tensor] | Tensor | None = None,
        generator: torch.Generator | None = None,
        maps: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the nodes ``(B, sum n_l, C)`` for the tokens of a map ``(B, M, C)``, and with
        ``maps`` their attention (else None); see :class:`Decomposer` and :meth:`queries`."""
        queries = self.queries(noise, generator)
        found: tuple[Tensor, Tensor | None]
        if self.grad_checkpointing and torch.is_grad_enabled():
            found = checkpoint(self.decomposer, memory, queries, maps)
        else:
            found = self.decomposer(memory, queries, maps)
        return found

    def encode(self, feature: Tensor, nodes: Tensor) -> Tensor:
        """Return image features ``(B, cls_dim)``, or several ``(B, T, cls_dim)``, enriched by the
        nodes."""
        x = feature if feature.ndim == 3 else feature.unsqueeze(1)
        assert self.encoder is not None, "prune_intermediate_layers dropped the encoder"
        encoded: Tensor = self.encoder(x, nodes).reshape(feature.shape)
        return feature + encoded if self.residual else encoded

    def updates(self, tokens: Tensor, nodes: Tensor) -> Tensor:
        """Return the update of each token of a map, ``(B, M, dense_dim)``; the mapper must have a
        ``dense_dim``."""
        assert self.dense is not None, "updates needs dense_dim"
        out: Tensor = self.dense(tokens, nodes)
        return out

    def forward(self, features: Tensor, pooled: Tensor) -> Tensor:
        """Return enriched image features of the shape of ``pooled``.

        Args:
            features: the map, as the backbone returns it.
            pooled: image features ``(B, cls_dim)`` or, for several, ``(B, T, cls_dim)``. Anything
                else (a map, if the backbone does not pool) is returned unchanged.
        """
        if pooled.ndim != 2 and not (pooled.ndim == 3 and self.layout.distilled):
            return pooled
        return self.attach(self.encode(pooled, self.decompose(self.layout.memory(features))[0]))

    def attach(self, x: Tensor) -> Tensor:
        """Return ``x``, with a gradient of 0 in training for the parameters on which it does not
        depend: data-parallel training waits for a gradient of every parameter, and some serve only
        the losses or official checkpoints."""
        if self.training and torch.is_grad_enabled():
            unused = [] if self.encoder is None else self.encoder.unused()
            rest = [p for p in (*self.lift.parameters(), *unused) if p.requires_grad]
            out: Tensor = Attached.apply(x, *rest)
            return out
        return x

    def levels(self, x: Tensor, dim: int = 1) -> list[Tensor]:
        """Return a list with the part of ``x`` for each level, cut along the dimension ``dim`` of
        the nodes."""
        return list(x.split(self.tree.nodes, dim))


register_notrace_module(HierarchyMapper)

"""The sizes and options of HELM's language models, and the published ones.

The paper is *HELM: Hyperbolic Large Language Models via Mixture-of-Curvature Experts* (He et al.,
NeurIPS 2025). Sizes have the names and meanings of the official configs: ``dim``, ``inter_dim``,
``v_head_dim``, ``qk_rope_head_dim`` and the size of a head of HELM-D count the time coordinate;
``kv_lora_rank`` and ``qk_nope_head_dim`` do not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from hypvision.io import HypvisionError, Plain, at_least, between, did_you_mean, more_than, one_of
from hypvision.io.records import check_types

_MOST = 1000  # the largest number of layers, and of experts per layer: building more takes hours


@dataclasses.dataclass
class Architecture:
    """A decoder of the HELM family, or its Euclidean counterpart.

    With ``n_routed_experts=0`` every layer is dense (HELM-D), else those after the first
    ``n_dense_layers`` have experts (HELM-MiCE).

    Attributes:
        vocab_size: number of tokens in the vocabulary.
        dim: width of a token.
        n_layers, n_heads: numbers of layers and of heads.
        inter_dim: width of the dense feed-forward layers.
        max_seq_len: length of the context in tokens.
        geometry: ``"lorentz"``, or ``"euclidean"`` for the LLaMA-like or DeepSeek-like network of
            the same sizes.
        attention: ``"full"`` (HELM-D) or ``"latent"`` (HELM-MiCE's HMLA).
        project_emb: whether the embedding is a Euclidean table whose rows are lifted, instead of a
            table of points.
        residual_scale: factor of the space part after each residual connection; None: 4 sqrt(dim)
            for dense models, as in HELM-D, and sqrt(dim) for mixed ones, as in HELM-MiCE.
        rms_eps: number added below the root of RMSNorm; HELM has 1e-8, later code 1e-4.
        safe_clamp: whether Minkowski norms are clamped at the smallest value that means of points
            can have, which affects only round-off; False for the published floors (1e-4, 1e-6).
        positions: ``"rotary"`` (RoPE), or ``"learned"``: a vector for each position in a document,
            added to the space part of its token. The paper compares with learned relative
            positions, which it does not describe.
        rope_theta: base of RoPE.
        original_seq_len, rope_factor, beta_fast, beta_slow, mscale: the options of YaRN, which is
            used where max_seq_len > original_seq_len.
        kv_lora_rank, q_lora_rank: sizes of the latent vectors of keys and values, and of queries
            (0: queries have none).
        qk_nope_head_dim, qk_rope_head_dim, v_head_dim: sizes of a head of latent attention: of the
            parts of queries and keys without and with RoPE, and of values.
        n_dense_layers: number of dense layers at the beginning of a mixed model.
        n_routed_experts, n_shared_experts, n_activated_experts, mice_inter_dim: numbers of routed
            and of shared experts, number of routed experts for each token, and width of an expert.
        n_expert_groups, n_limited_groups: number of groups of experts, and how many of them a token
            may use.
        score_func: function of the router's logits, ``"softmax"`` or ``"sigmoid"``.
        route_scale: factor of the weights of the experts.
        router: logits of the router: ``"linear"`` in the space part, or ``"lorentz"``, minus the
            squared distance from a learned point.
        renorm_topk: whether the weights of the selected experts are made to sum to 1; None: for the
            sigmoid alone.
        moe_combine: how outputs of experts are combined: ``"released"``, by one residual connection
            after the other, with shared experts joined to one of the model's curvature; or
            ``"centroid"``, as in the paper, with shared experts that have curvatures of their own.
        train_curv: whether the curvatures of the experts are learned.
        expert_c_init: initial ``c = -1/K`` of the experts, one number for all or a list; ``"ones"``
            is 1, as released.
        bias_rule: how the load bias of the router follows the loads: ``"proportional"`` or
            DeepSeek's ``"sign"``.
        bias_rate: step of the load bias.
        aux_alpha: weight of the loss on uneven loads.
        pad: the widths of rows are multiples of this number, with which matrix products are faster;
            1 for no padding.
        fused: whether row operations use a backward written by hand.
    """

    vocab_size: int = 128256
    dim: int = 390
    n_layers: int = 6
    n_heads: int = 6
    inter_dim: int = 1560
    max_seq_len: int = 2048
    geometry: str = "lorentz"
    attention: str = "full"
    project_emb: bool = False
    residual_scale: float | None = None
    rms_eps: float = 1e-8
    safe_clamp: bool = True
    positions: str = "rotary"
    rope_theta: float = 10000.0
    original_seq_len: int = 2048
    rope_factor: float = 40.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    kv_lora_rank: int = 65
    q_lora_rank: int = 0
    qk_nope_head_dim: int = 33
    qk_rope_head_dim: int = 17
    v_head_dim: int = 33
    n_dense_layers: int = 1
    n_routed_experts: int = 0
    n_shared_experts: int = 1
    n_activated_experts: int = 2
    mice_inter_dim: int = 780
    n_expert_groups: int = 1
    n_limited_groups: int = 1
    score_func: str = "softmax"
    route_scale: float = 1.0
    router: str = "linear"
    renorm_topk: bool | None = None
    moe_combine: str = "released"
    train_curv: bool = True
    expert_c_init: float | Sequence[float] | Literal["ones"] = 1.0
    bias_rule: str = "proportional"
    bias_rate: float = 0.005
    aux_alpha: float = 1e-4
    pad: int = 8
    fused: bool = True

    def __post_init__(self) -> None:
        check_types(self, "A HELM model")
        if self.expert_c_init == "ones":
            self.expert_c_init = 1.0
        one_of(("lorentz", "euclidean"), geometry=self.geometry)
        one_of(("full", "latent"), attention=self.attention)
        one_of(("rotary", "learned"), positions=self.positions)
        one_of(("softmax", "sigmoid"), score_func=self.score_func)
        one_of(("linear", "lorentz"), router=self.router)
        one_of(("released", "centroid"), moe_combine=self.moe_combine)
        one_of(("proportional", "sign"), bias_rule=self.bias_rule)
        least = dict(
            vocab_size=1, dim=3, n_layers=1, n_heads=1, inter_dim=2, max_seq_len=1, pad=1,
            n_routed_experts=0, n_shared_experts=0, n_dense_layers=0, q_lora_rank=0, kv_lora_rank=1,
            mice_inter_dim=2,
        )  # fmt: skip
        for name, value in least.items():
            at_least(value, integer=True, **{name: getattr(self, name)})
        between(1, _MOST, n_layers=self.n_layers)
        between(
            0, _MOST, n_routed_experts=self.n_routed_experts, n_shared_experts=self.n_shared_experts
        )
        self._check_heads()
        if self.mixed:
            self._check_experts()

    def _check_heads(self) -> None:
        if self.attention == "full":
            if self.dim % self.n_heads:
                raise HypvisionError(
                    f"n_heads must divide dim, got {self.n_heads} heads for {self.dim} coordinates."
                )
            name = "dim / n_heads"
            size = self.dim // self.n_heads
        else:
            name = "qk_rope_head_dim"
            size = self.qk_rope_head_dim
            at_least(2, integer=True, v_head_dim=self.v_head_dim)
            at_least(1, integer=True, qk_nope_head_dim=self.qk_nope_head_dim)
            if self.v_head_dim > self.qk_nope_head_dim + self.qk_rope_head_dim - 1:
                raise HypvisionError(
                    "Values and keys share rows, so v_head_dim must be at most qk_nope_head_dim + "
                    f"qk_rope_head_dim - 1 = {self.qk_nope_head_dim + self.qk_rope_head_dim - 1}, "
                    f"got {self.v_head_dim}."
                )
        if size < 3 or size % 2 == 0:
            raise HypvisionError(
                f"RoPE turns pairs of space coordinates, so {name} - 1 must be even and "
                f"positive, got {name} = {size}. Take an odd one, such as {max(3, size + 1)}."
            )

    def _check_experts(self) -> None:
        e = self.n_routed_experts
        k = self.n_activated_experts
        groups = self.n_expert_groups
        if not 1 <= k <= e:
            raise HypvisionError(
                f"n_activated_experts must be from 1 to n_routed_experts = {e}, got {k}."
            )
        if groups < 1 or e % groups or not 1 <= self.n_limited_groups <= groups:
            raise HypvisionError(
                f"n_expert_groups must divide n_routed_experts = {e}, and n_limited_groups must be "
                f"from 1 to n_expert_groups, got {groups} and {self.n_limited_groups}."
            )
        if self.n_limited_groups * (e // groups) < k:
            raise HypvisionError(
                f"n_limited_groups = {self.n_limited_groups} groups of {e // groups} experts must "
                f"hold at least n_activated_experts = {k} experts."
            )
        more_than(0, route_scale=self.route_scale)
        if len(self.curvatures) != e or not all(
            isinstance(c, (int, float)) and c > 0 for c in self.curvatures
        ):
            raise HypvisionError(
                f"expert_c_init must be 'ones', a positive number or {e} of them, got "
                f"{self.expert_c_init!r}."
            )

    @property
    def mixed(self) -> bool:
        """Whether the model has experts."""
        return self.n_routed_experts > 0

    @property
    def curvatures(self) -> list[float]:
        """The initial ``c`` of each expert."""
        given: Any = self.expert_c_init
        values = list(given) if isinstance(given, Sequence) else [given]
        return values * self.n_routed_experts if len(values) == 1 else values

    @property
    def lorentz(self) -> bool:
        return self.geometry == "lorentz"

    @property
    def scale(self) -> float:
        """The factor of the space part after each residual connection."""
        if self.residual_scale is not None:
            return self.residual_scale
        return (1.0 if self.mixed else 4.0) * self.dim**0.5

    @property
    def renormalize(self) -> bool:
        return self.score_func == "sigmoid" if self.renorm_topk is None else self.renorm_topk

    def to_dict(self) -> Plain:
        """Return the options as plain values by their names."""
        return dataclasses.asdict(self)


_MICE = dict(attention="latent", n_routed_experts=4)
_BIG = dict(
    n_heads=14, n_routed_experts=8, attention="latent", kv_lora_rank=257, qk_rope_head_dim=65
)
_TINY = dict(vocab_size=259, dim=66, n_layers=2, n_heads=2, inter_dim=264, max_seq_len=256)

# The published sizes, by the name of the preset. For the two models of 1B the official training
# script and evaluation disagree.
PRESETS: dict[str, Plain] = {
    "helm_d_115m": dict(),
    "helm_mice_120m": dict(_MICE),
    "helm_mice_1b": dict(
        _BIG, n_layers=16, dim=910, inter_dim=3640, mice_inter_dim=1820, qk_nope_head_dim=65,
        v_head_dim=65, project_emb=True,
    ),
    "helm_mice_1b_eval": dict(
        _BIG, n_layers=15, dim=896, inter_dim=3072, mice_inter_dim=1792, qk_nope_head_dim=129,
        v_head_dim=129, project_emb=True,
    ),
    "helm_d_tiny": dict(_TINY),
    "helm_mice_tiny": {
        **_TINY, **_MICE, "n_layers": 3, "mice_inter_dim": 132, "kv_lora_rank": 21,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 9, "v_head_dim": 17,
    },
}  # fmt: skip


def preset(name: str, **changes: Any) -> Architecture:
    """Return the architecture of a preset, with changed options."""
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise HypvisionError(
            f"There is no preset '{name}'.{did_you_mean(name, PRESETS, 1)} There are: {known}."
        )
    return architecture(PRESETS[name] | _own_names(changes))


ALIASES = {"moe_inter_dim": "mice_inter_dim"}  # later official code has this name


def _own_names(options: Plain) -> Plain:
    for alias, name in ALIASES.items():
        if alias in options and options.get(name, options[alias]) != options[alias]:
            raise HypvisionError(
                f"{alias} is another name of {name}, but they are {options[alias]} and "
                f"{options[name]}. Give one."
            )
    return {ALIASES.get(name, name): value for name, value in options.items()}


def architecture(options: Plain) -> Architecture:
    """Return the architecture with these options, given by their names or by later official
    names."""
    options = _own_names(options)
    fields = {field.name for field in dataclasses.fields(Architecture)}
    for name in options:
        if name not in fields:
            raise HypvisionError(
                f"A HELM model has no option '{name}'.{did_you_mean(name, fields)}"
            )
    return Architecture(**options)

"""Translation of official HELM checkpoints to the names of :class:`hypvision.helm.Helm`, and back.

The published state dict repeats the curvature of every manifold under each layer that uses it, and
holds an (L, L) mask. Ours has one entry per tensor, joins matrices with the same input, and pads
rows with zeros.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hypvision.checkpoints.match import unknown_name
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.io import HypvisionError, Plain

from .config import PRESETS, Architecture, preset
from .layers import RowLinear, RowNorm, pack, unpack
from .model import Helm
from .rope import angles

_ALIAS = re.compile(r"(?:^|\.)(?:c|k)$")
_EXPERT = re.compile(
    r"(layers\.\d+\.ffn\.(?:shared_)?experts\.\d+)\.(expert_manifold\.|w\d\.(?:manifold\.)?[ck]$)?"
)
_BUFFERS = ("attn_mask", "freqs_complex", "freqs_cis")
_POSITIONS = "positions.weight"
# the prefixes of the decoder's weights in a training's checkpoint and in one of save_pretrained()
_DECODER = re.compile(r"(?:decoder|model)\.(.+)")


def decoder_weights(state_dict: Weights) -> StateDict:
    """Return the weights of :class:`Helm` in the state dict of a training or of transformers, by
    Helm's names."""
    inside = {
        match[1]: value for name, value in state_dict.items() if (match := _DECODER.fullmatch(name))
    }
    return inside or dict(state_dict)


def untold(config: Architecture) -> Plain:
    """Return the options that change a model's outputs but cannot be inferred from its weights,
    with their values.

    Options for training or storage are not included.
    """
    names = ["residual_scale", "rms_eps", "safe_clamp"]
    if config.positions == "rotary":
        names += ["max_seq_len", "rope_theta"]
        if config.mixed:
            names += ["original_seq_len", "rope_factor", "beta_fast", "beta_slow", "mscale"]
    if config.mixed:
        names += [
            "n_activated_experts",
            "score_func",
            "route_scale",
            "router",
            "renorm_topk",
            "n_expert_groups",
        ]
        names.append("n_limited_groups")
        if not config.n_shared_experts:
            names.append("moe_combine")
    return {name: getattr(config, name) for name in names}


def helm_arguments(state_dict: Weights) -> Plain:
    """Return the options that an official state dict implies besides its sizes: the length of the
    context, from its mask."""
    mask = next((v for name, v in state_dict.items() if name.endswith("attn_mask")), None)
    return {} if mask is None else {"max_seq_len": mask.shape[-1]}


class _Entry(NamedTuple):
    """The name of one of our tensors (or of a module with ``weight`` and ``bias``), and the names
    of its published parts."""

    ours: str
    official: tuple[str, ...]


def _tensors(config: Architecture) -> Iterator[tuple[_Entry, nn.Module | None]]:
    """Yield an entry for each tensor of a model, and the module to which the tensor belongs, or
    None if :func:`_entries` names the tensor itself."""
    with torch.device("meta"):
        modules = dict(Helm(config).named_modules())
    for entry in _entries(config):
        module = modules.get(entry.ours)
        if module is None:
            yield entry, None
            continue
        for part in ("weight", "bias"):
            if getattr(module, part, None) is not None:
                yield (
                    _Entry(
                        f"{entry.ours}.{part}", tuple(f"{name}.{part}" for name in entry.official)
                    ),
                    module,
                )


def _entries(config: Architecture) -> Iterator[_Entry]:
    """Yield the entries of a model of these sizes, for tensors or whole modules."""
    if config.mixed or config.attention == "latent":
        yield _Entry("embed.weight", ("embed.weight" if config.project_emb else "embed.embedding",))
        yield from (
            _Entry("norm", ("norm",)),
            _Entry("head", ("head",)),
            _Entry("final_proj", ("final_proj.linear",)),
        )
        layer = "layers"
        names = ("attn_norm", "ffn_norm", "attn_res", "ffn_res", "ffn")
    else:
        yield _Entry("embed.weight", ("token_embed.embedding",))
        yield from (_Entry("norm", ("ln_final",)), _Entry("head", ("mapping",)))
        yield _Entry("final_proj", ("final_proj.linear",))
        layer = "resblocks"
        names = ("ln_1", "ln_2", "res1", "res2", "mlp")
    for i in range(config.n_layers):
        theirs = f"{layer}.{i}."
        ours = f"layers.{i}."
        yield _Entry(
            "first_norm" if i == 0 else f"layers.{i - 1}.next_norm", (f"{theirs}{names[0]}",)
        )
        yield _Entry(f"{ours}ffn_norm", (f"{theirs}{names[1]}",))
        yield _Entry(f"{ours}attn_w_y", (f"{theirs}{names[2]}.w_y",))
        yield _Entry(f"{ours}ffn_w_y", (f"{theirs}{names[3]}.w_y",))
        yield from _attention(config, f"{ours}attn.", f"{theirs}attn.")
        if not config.mixed or i < config.n_dense_layers:
            yield from _feed_forward(f"{ours}ffn.", f"{theirs}{names[4]}.")
        else:
            yield from _experts(config, f"{ours}ffn.", f"{theirs}ffn.")


def _attention(config: Architecture, ours: str, theirs: str) -> Iterator[_Entry]:
    yield _Entry(f"{ours}bias", (f"{theirs}bias",))
    if config.attention == "full":
        yield _Entry(f"{ours}scale", (f"{theirs}scale",))
        yield _Entry(f"{ours}qkv", tuple(f"{theirs}{name}" for name in ("Wq", "Wk", "Wv")))
        yield _Entry(f"{ours}out", (f"{theirs}final_linear",))
        return
    yield _Entry(f"{ours}scale", (f"{theirs}softmax_scale",))
    first = "wq_a" if config.q_lora_rank else "wq"
    yield _Entry(f"{ours}down", (f"{theirs}{first}.linear", f"{theirs}wkv_a.linear"))
    yield _Entry(f"{ours}kv_norm", (f"{theirs}kv_norm",))
    yield _Entry(f"{ours}up", (f"{theirs}wkv_b.linear",))
    yield _Entry(f"{ours}out", (f"{theirs}wo.linear",))
    if config.q_lora_rank:
        yield _Entry(f"{ours}q_norm", (f"{theirs}q_norm",))
        yield _Entry(f"{ours}q_up", (f"{theirs}wq_b.linear",))


def _feed_forward(ours: str, theirs: str) -> Iterator[_Entry]:
    yield _Entry(f"{ours}gate_up", (f"{theirs}w1.linear", f"{theirs}w3.linear"))
    yield _Entry(f"{ours}down", (f"{theirs}w2.linear",))


def _experts(config: Architecture, ours: str, theirs: str) -> Iterator[_Entry]:
    yield from (
        _Entry(f"{ours}gate.{name}", (f"{theirs}gate.{name}",)) for name in ("weight", "bias")
    )
    for i in range(config.n_routed_experts):
        yield from _feed_forward(f"{ours}experts.{i}.", f"{theirs}experts.{i}.")
        yield _Entry(f"{ours}experts.{i}.c", (f"{theirs}experts.{i}.expert_manifold.k",))
    # The published code lacks shared experts with curvatures of their own; the names follow those
    # of its other experts.
    if config.moe_combine == "centroid":
        for i in range(config.n_shared_experts):
            yield from _feed_forward(f"{ours}shared.{i}.", f"{theirs}shared_experts.{i}.")
            yield _Entry(f"{ours}shared.{i}.c", (f"{theirs}shared_experts.{i}.expert_manifold.k",))
    elif config.n_shared_experts:
        yield from _feed_forward(f"{ours}shared.", f"{theirs}shared_experts.")
        for name in ("w_y", "scale"):
            yield _Entry(f"{ours}{name}", (f"{theirs}add_experts.{name}",))


def _find(weights: Weights, name: str) -> Tensor:
    if name not in weights:
        raise HypvisionError(
            f"The checkpoint has no entry '{name}', which a HELM model of its sizes has. Take a "
            "complete file."
        )
    return weights[name]


def is_official_helm(state_dict: Weights) -> bool:
    """Return whether the names of a state dict are those of the published code."""
    names = {name.removeprefix("module.") for name in state_dict}
    return any(name.startswith("resblocks.0.attn.Wq") for name in names) or any(
        name.startswith("layers.0.attn.wkv_a.linear") for name in names
    )


def _clean(state_dict: Weights) -> StateDict:
    """Return the weights without a wrapper's prefix, without buffers and without repeated
    curvatures; raise HypvisionError if curvatures contradict each other."""
    weights: StateDict = {}
    manifolds: StateDict = {}
    for name, value in state_dict.items():
        name = name.removeprefix("module.")
        if _ALIAS.search(name):
            manifolds[name] = value
        elif name.rpartition(".")[2] not in _BUFFERS and ".add_pos." not in name:
            weights[name] = value
    for name, value in manifolds.items():
        # The same curvature is stored under the names c and k.
        alias = manifolds.get(f"{name[:-1]}{'ck'[name[-1] == 'c']}", value)
        same = bool((value == alias).all())
        if not same or not any(bool((value == one).all()) for one in _allowed(name, manifolds)):
            raise HypvisionError(
                f"The manifold '{name}' of the checkpoint has c = {value.flatten()[0].item():g}, "
                "but the manifolds of an expert must share one number, and all others have 1, as "
                "in each published model. Check the file."
            )
        if name.endswith(".expert_manifold.k"):
            weights[name] = value
    return weights


def _allowed(name: str, manifolds: Weights) -> list[Tensor]:
    """Return the curvatures that the manifold of this name may have."""
    expert = _EXPERT.match(name)
    own = manifolds.get(f"{expert[1]}.expert_manifold.k") if expert else None
    if expert is None or own is None:
        return [torch.ones(())]
    # Projections into and out of an expert may use the model's manifold.
    return [own] if expert[2] else [own, torch.ones(())]


def official_architecture(state_dict: Weights, **changes: Any) -> Architecture:
    """Return the architecture of an official checkpoint, inferred from its shapes.

    Options that cannot be inferred from the weights are as published (two active experts, a
    softmax, no groups) unless in ``changes``.
    """
    context = helm_arguments(state_dict)
    weights = _clean(state_dict)

    def rows_of(name: str) -> int:
        return _find(weights, name).shape[0]

    def count(pattern: str) -> int:
        return 1 + max(
            (int(m[1]) for m in (re.match(pattern, name) for name in weights) if m), default=-1
        )

    found: Plain
    if "resblocks.0.attn.Wq.weight" in weights:
        dim = weights["token_embed.embedding"].shape[1]
        found = dict(
            dim=dim, vocab_size=rows_of("token_embed.embedding"),
            n_layers=count(r"resblocks\.(\d+)\."),
            n_heads=dim - rows_of("resblocks.0.attn.Wq.weight"),
            inter_dim=rows_of("resblocks.0.mlp.w1.linear.bias") + 1,
        )  # fmt: skip
        return Architecture(**{**found, **context, **changes})
    space = "embed.weight" in weights
    attn = "layers.0.attn."
    rank = rows_of(f"{attn}kv_norm.weight")
    dim = rows_of("norm.weight") + 1
    r = rows_of(f"{attn}wkv_a.linear.bias") - rank
    latent = (
        weights[f"{attn}wq_a.linear.bias"].shape[0] if f"{attn}wq_a.linear.bias" in weights else 0
    )
    queries = rows_of(f"{attn}wq_b.linear.bias" if latent else f"{attn}wq.linear.bias")
    pairs = rows_of(f"{attn}wkv_b.linear.bias")
    values = weights[f"{attn}wo.linear.weight"].shape[1]
    heads = (values - pairs + queries) // (1 + r)
    found = dict(
        attention="latent", dim=dim, vocab_size=rows_of("head.weight"),
        n_layers=count(r"layers\.(\d+)\."), n_heads=heads, kv_lora_rank=rank, q_lora_rank=latent,
        qk_rope_head_dim=r + 1, qk_nope_head_dim=queries // heads - r, v_head_dim=values // heads,
        project_emb=space,
    )  # fmt: skip

    def inner(name: str) -> int:
        """Return the width of the feed-forward layer of this name, 0 if there is none."""
        bias = weights.get(f"{name}w1.linear.bias")
        return 0 if bias is None else len(bias) + 1

    return Architecture(
        **{**found, **_feed_forward_sizes(weights, inner, "shared_experts."), **context, **changes}
    )


def _feed_forward_sizes(weights: Weights, inner: Callable[[str], int], shared: str) -> Plain:
    """Return the sizes of dense layers and of experts. ``inner`` gives the width of a feed-forward
    layer by its name, ``shared`` is the name of shared experts."""
    found: Plain = {"inter_dim": inner("layers.0.ffn.")} if inner("layers.0.ffn.") else {}
    for i in range(len(weights)):
        gate = weights.get(f"layers.{i}.ffn.gate.weight")
        if gate is not None:
            own = inner(f"layers.{i}.ffn.experts.0.")
            ffn = f"layers.{i}.ffn.{shared}"
            if not own:
                _find(weights, f"layers.{i}.ffn.experts.0")
            several = sum(inner(f"{ffn}{n}.") > 0 for n in range(len(weights)))
            found |= dict(
                n_dense_layers=i, n_routed_experts=len(gate), mice_inter_dim=own,
                n_shared_experts=several or inner(ffn) // own,
            )  # fmt: skip
            return found | (dict(moe_combine="centroid") if several else {})
    return found


def helm_from_official(state_dict: Weights, config: Architecture | None = None) -> StateDict:
    """Return our state dict for an official one. A wrapper's prefix ``module.`` and repeated
    curvatures are ignored; without ``config`` the sizes are inferred from the shapes.

    Raises:
        HypvisionError: an entry is missing or unknown, or a constant has another value than in our
            model.
    """
    config = official_architecture(state_dict) if config is None else config
    for name, value in state_dict.items():
        if name.rpartition(".")[2] in _BUFFERS:
            _check_buffer(name, value, config)
    weights = _clean(state_dict)
    ours = {}
    for entry, module in _tensors(config):
        for name in entry.official:
            _find(weights, name)
        parts = [weights.pop(name) for name in entry.official]
        ours[entry.ours] = _packed(
            entry.ours, module, torch.cat(parts) if len(parts) > 1 else parts[0]
        )
    for name in weights:
        raise HypvisionError(unknown_name(name, "HELM"))
    return ours


def _check_buffer(name: str, value: Tensor, config: Architecture) -> None:
    """Raise HypvisionError if a causal mask (L, L) or RoPE table (L, d/2) does not have the values
    that our model computes."""
    if name.endswith("attn_mask"):
        if torch.equal(value.bool(), torch.ones_like(value, dtype=torch.bool).triu(1)):
            return
        raise HypvisionError(
            f"The checkpoint's '{name}' is not the causal mask of a HELM model. Take an intact "
            "copy."
        )
    places = torch.arange(len(value), device=value.device, dtype=torch.float32)
    angle = torch.outer(places, angles(config, 2 * value.shape[-1], value.device))
    if not value.is_complex() or not torch.allclose(
        value, torch.polar(torch.ones_like(angle), angle), atol=1e-3
    ):
        raise HypvisionError(
            f"The checkpoint's '{name}' does not hold the RoPE of "
            f"rope_theta={config.rope_theta:g}. Load the file by "
            "HelmForCausalLM.from_official(FILE, rope_theta=...), with the base that it was "
            "trained with."
        )


def _packed(name: str, module: nn.Module | None, value: Tensor) -> Tensor:
    if isinstance(module, RowLinear):
        live_in = module.live_in if value.dim() == 2 else None
        return pack(value, module.live_out, live_in, module.weight.shape[: value.dim()])
    if isinstance(module, RowNorm):
        return pack(value, module.layout.space, None, (module.layout.width,))
    scalar = name.rpartition(".")[2] in ("attn_w_y", "ffn_w_y", "w_y", "scale", "c")
    return value.reshape(1) if scalar else value.clone()


def helm_to_official(state_dict: Weights, config: Architecture | None = None) -> StateDict:
    """Return the official state dict for ours (of a training or of transformers, too), the inverse
    of :func:`helm_from_official`; the published code loads it with ``strict=False``.

    Raises:
        HypvisionError: an entry is missing, or has no published form, like learned positions.
    """
    state_dict = decoder_weights(state_dict)
    if _POSITIONS in state_dict:
        raise HypvisionError(
            f"The model has learned positions ('{_POSITIONS}'), but published HELM models have the "
            "RoPE and no place for them. Convert a model with positions='rotary', or keep "
            "this one in its own form."
        )
    config = helm_architecture(state_dict) if config is None else config
    official: StateDict = {}
    rest = set(state_dict)
    for entry, module in _tensors(config):
        rest.discard(entry.ours)
        value = _unpacked(entry.ours, module, _find(state_dict, entry.ours))
        pieces = (
            value.split(_parts(config, entry, len(value))) if len(entry.official) > 1 else [value]
        )
        official |= {name: piece.clone() for name, piece in zip(entry.official, pieces)}
    for name in sorted(rest):
        raise HypvisionError(unknown_name(name, "HELM"))
    embedding = next((name for name in official if name.endswith(".embedding")), None)
    if embedding is not None:  # the official model requires this weight but does not use it
        prefix = embedding.removesuffix("embedding")
        official |= {
            f"{prefix}add_pos.w_y": torch.ones(()),
            f"{prefix}add_pos.scale": torch.zeros(()),
        }
    return official


def _unpacked(name: str, module: nn.Module | None, value: Tensor) -> Tensor:
    if isinstance(module, RowLinear):
        return unpack(value, module.live_out, module.live_in if value.dim() == 2 else None)
    if isinstance(module, RowNorm):
        return unpack(value, module.layout.space, None)
    scalar = name.endswith((".ffn.scale", "w_y")) or name.rpartition(".")[2] == "c"
    return value.reshape(()) if scalar else value


def _parts(config: Architecture, entry: _Entry, rows: int) -> list[int]:
    """Return the numbers of rows of the published matrices that one of ours joins."""
    if ".attn.down." in entry.ours:
        second = config.kv_lora_rank + config.qk_rope_head_dim - 1
        return [rows - second, second]
    return [rows // len(entry.official)] * len(entry.official)


def _live(weight: Tensor) -> int:
    """Return the number of rows that are not zero. Zero columns are not looked for, because LoRA
    fills them."""
    return (
        int((weight != 0).flatten(1).any(1).sum()) if weight.dim() > 1 else int((weight != 0).sum())
    )


def helm_architecture(state_dict: Weights) -> Architecture:
    """Return the architecture of weights with our names, inferred from the zeros that pad their
    rows."""
    try:
        weights = dict(state_dict)
        dim = _live(weights["final_proj.weight"]) + 1
        layers = 1 + max(
            int(m[1]) for m in (re.match(r"layers\.(\d+)\.", name) for name in weights) if m
        )
        found: Plain = dict(
            dim=dim, n_layers=layers, vocab_size=weights["head.weight"].shape[0],
            project_emb=weights["embed.weight"].shape[1] == dim - 1,
        )  # fmt: skip
        if _POSITIONS in weights:
            found |= dict(positions="learned", max_seq_len=len(weights[_POSITIONS]))
        attn = "layers.0.attn."
        if f"{attn}qkv.weight" in weights:
            found["n_heads"] = dim - _live(weights[f"{attn}qkv.weight"]) // 3
        else:
            up = (weights[f"{attn}up.weight"] != 0).any(1).tolist()
            nope = up.index(False)
            r = up.index(True, nope) - nope - 1
            rank = _live(weights[f"{attn}kv_norm.weight"])
            latent = f"{attn}q_up.weight" in weights
            queries = _live(weights[f"{attn}q_up.weight" if latent else f"{attn}down.weight"])
            heads = (queries if latent else queries - rank - r) // (nope + r)
            found |= dict(
                attention="latent", kv_lora_rank=rank, qk_nope_head_dim=nope,
                qk_rope_head_dim=r + 1, n_heads=heads, v_head_dim=sum(up) // heads - nope + 1,
                q_lora_rank=_live(weights[f"{attn}q_norm.weight"]) if latent else 0,
            )  # fmt: skip

        def inner(name: str) -> int:
            """Return the width of the feed-forward layer of this name, 0 if there is none."""
            rows = weights.get(f"{name}gate_up.weight")
            return 0 if rows is None else _live(rows) // 2 + 1

        found |= _feed_forward_sizes(weights, inner, "shared.")
        return Architecture(**found)
    except (KeyError, ValueError) as error:
        raise HypvisionError(
            f"These are not the weights of a HELM model ({error}). Expected: weights of "
            "hypvision.helm.Helm with geometry='lorentz'."
        ) from error


def helm_variant(state_dict: Weights) -> tuple[str, Plain]:
    """Return the preset closest to converted weights, and the options in which they differ from
    it."""
    found = helm_architecture(state_dict).to_dict()
    # Without learned positions the weights do not determine the length of the context.
    ignored = {"max_seq_len"} if found["positions"] == "rotary" else set()
    if not found["n_routed_experts"]:
        ignored |= {
            "mice_inter_dim",
            "kv_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
        }
    differences = {
        name: {k: v for k, v in found.items() if k not in ignored and v != options[k]}
        for name, options in ((name, preset(name).to_dict()) for name in PRESETS)
    }
    best = min(differences, key=lambda name: len(differences[name]))
    return best, differences[best]

"""HyperCLIP: a few trainable blocks on the frozen attention projections of any open_clip ViT.

"Understanding Fine-tuning CLIP for Open-vocabulary Semantic Segmentation in Hyperbolic Space", Peng, Xu, Zeng, Wen,
Huang, Yang, Tang, Shen, CVPR 2025. In every attention block the rows of the frozen W_q, W_k and W_v are mapped by
blocks S that start at the identity (:mod:`hypvision.clip.adapters.block_map`); everything else of CLIP stays as it is.

>>> model, _, preprocess = open_clip.create_model_and_transforms("ViT-B-16", "openai", force_quick_gelu=True)
>>> hyperclip.inject(model)                        # identity: the outputs are those of CLIP
>>> print(hyperclip.summary(model))
>>> optimizer = torch.optim.AdamW(hyperclip.trainable_parameters(model), lr=1.5e-5)
>>> hyperclip.save_adapter(model, "adapter.safetensors")
>>> hyperclip.merge(model)                         # plain open_clip weights, no work left at inference

Outside the radial clip the map is linear and the curvature cancels; :func:`clip_report` tells how far a model is from
that clip.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from hypvision.clip.adapters.block_map import (
    _INPUT_RADIUS,
    CLIP_RADIUS,
    BlockMap,
    block_product,
    map_matrices,
    map_packed,
)
from hypvision.clip.towers import Tower, find_towers
from hypvision.errors import HypvisionError
from hypvision.files import replacing
from hypvision.geometry.numerics import exact

__all__ = [
    "HyperCLIPConfig",
    "adapter_state_dict",
    "clip_report",
    "config_of",
    "freeze_unused",
    "inject",
    "is_injected",
    "load_adapter",
    "merge",
    "packed_weight",
    "refresh",
    "remove",
    "save_adapter",
    "summary",
    "trainable_parameters",
]


@dataclass(frozen=True)
class HyperCLIPConfig:
    """What is adapted and how.

    Attributes:
        block: side n of a block; it must divide the width of both towers. 1 is a diagonal.
        text, vision: which towers.
        c_text, c_vision: curvatures (paper: 0.01 for both).
        projections: which of q, k, v, as a string.
        text_layers, vision_layers: numbers of the adapted blocks from 0; None for all.
        shared: one block for all K of a projection.
        form: ``"weight"``: rows of the weights (the official code); ``"feature"``: the tokens after ln_1 (the paper's
            words; the weight form with S transposed, apart from the clip). Only the weight form can be merged.
        geometry: ``"hyperbolic"``, or ``"euclidean"``: the same without a clip (an ablation).
        mobius: False: plain matrix product on the ball, see :func:`hypvision.clip.adapters.block_map.map_rows`.
        fused: False: the literal chain instead of the closed form.
        official_text_curvature: c = 1 in the text tower, as the official code has it.
        official_cls_quirk: the last image block is adapted on the dense path only.
        official_layer_quirk: of the image blocks the first 11 and the last, as the official code does for any depth.
    """

    block: int = 128
    text: bool = True
    vision: bool = True
    c_text: float = 0.01
    c_vision: float = 0.01
    projections: str = "qkv"
    text_layers: tuple[int, ...] | None = None
    vision_layers: tuple[int, ...] | None = None
    shared: bool = False
    form: str = "weight"
    geometry: str = "hyperbolic"
    mobius: bool = True
    fused: bool = True
    official_text_curvature: bool = False
    official_cls_quirk: bool = False
    official_layer_quirk: bool = False

    def __post_init__(self):
        for name, allowed in (("form", ("weight", "feature")), ("geometry", ("hyperbolic", "euclidean"))):
            if getattr(self, name) not in allowed:
                raise HypvisionError(f"HyperCLIP: {name} is {getattr(self, name)!r}; use one of {', '.join(allowed)}.")
        if (
            not self.projections
            or set(self.projections) - set("qkv")
            or len(set(self.projections)) < len(self.projections)
        ):
            raise HypvisionError(f"HyperCLIP: projections is {self.projections!r}; use some of the letters q, k, v.")
        if not (self.text or self.vision):
            raise HypvisionError("HyperCLIP: with text=False and vision=False nothing would be adapted.")
        for name in ("c_text", "c_vision"):
            if not getattr(self, name) > 0:
                raise HypvisionError(
                    f"HyperCLIP: {name} is {getattr(self, name)}; a curvature is above 0. For none use "
                    "geometry='euclidean'."
                )
        for name in ("text_layers", "vision_layers"):
            value = getattr(self, name)
            if value is not None:
                value = (value,) if isinstance(value, int) else tuple(value)
                object.__setattr__(self, name, value)

    def curvature(self, kind: str) -> float:
        """Of the tower ``"text"`` or ``"vision"``."""
        if kind == "text":
            return 1.0 if self.official_text_curvature else self.c_text
        return self.c_vision

    def layers(self, kind: str, depth: int) -> tuple[int, ...]:
        """Numbers of the adapted blocks of a tower of ``depth`` blocks.

        Raises:
            HypvisionError: a number out of range.
        """
        given = self.text_layers if kind == "text" else self.vision_layers
        if given is None:
            if kind == "vision" and self.official_layer_quirk:
                return tuple(range(min(11, depth - 1))) + (depth - 1,)
            return tuple(range(depth))
        wrong = [number for number in given if not 0 <= number < depth]
        if wrong or len(set(given)) < len(given):
            raise HypvisionError(
                f"HyperCLIP: {kind}_layers is {given}, but the {kind} tower has blocks 0 to {depth - 1}."
            )
        return tuple(sorted(given))


# Blocks of a smaller side go through one batched product on a CPU, too: there are too many of them to be called singly.
_SMALL = 32


class _TowerAdapter:
    """Computes the adapted weights of one tower, all layers in one batched call, and keeps them while nothing changed.

    Not a module: parameters live in the blocks, under the official names. A copy starts without what was kept.
    """

    def __init__(self, config: HyperCLIPConfig, kind: str, owners: list[nn.Module], maps: list[nn.ModuleDict]):
        self.config, self.kind, self.owners, self.maps = config, kind, owners, maps
        self.clip = None if config.geometry == "euclidean" else CLIP_RADIUS / math.sqrt(config.curvature(kind))
        self._forget()

    def _forget(self) -> None:
        self._frozen: tuple | None = None  # (key, stacked blocks of the frozen rows or None, their limits)
        self._kept: tuple | None = None  # (key, adapted weights without gradient)
        self._live: list[Tensor] | None = None  # adapted weights of the running training step
        self._live_key: tuple | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key[0] != "_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def packed(self, index: int) -> Tensor:
        """The frozen packed projection (3d, d) of an adapted block."""
        owner = self.owners[index]
        return owner._parameters[owner.packed_name]

    def parameters(self) -> list[nn.Parameter]:
        return [self.maps[i][letter].weights for i in range(len(self.maps)) for letter in self.config.projections]

    def refresh(self, *_: Any) -> None:
        """Begin a new graph. A tower calls this when it begins a forward pass."""
        self._live = None
        if self.config.form == "weight" and torch.is_grad_enabled():
            self.weights()

    def weights(self) -> list[Tensor]:
        """The adapted packed weight (3d, d) of each adapted block."""
        parameters = self.parameters()
        key = _versions(parameters) + _versions([self.packed(i) for i in range(len(self.owners))])
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
            if self._live is None or self._live_key != key:
                self._live, self._live_key = self._compute(key), key
            return self._live
        if self._kept is None or self._kept[0] != key:
            # Not an inference tensor: it may be used under no_grad later.
            with torch.inference_mode(False), torch.no_grad():
                self._kept = (key, self._compute(key))
        return self._kept[1]

    def _compute(self, key: tuple) -> list[Tensor]:
        config, letters = self.config, self.config.projections
        packed = [self.packed(i) for i in range(len(self.owners))]
        dtype = packed[0].dtype
        wide = torch.promote_types(dtype, torch.float32)
        with exact(packed[0].device):
            if config.fused and config.mobius:
                if packed[0].device.type == "cpu" and config.block >= _SMALL:
                    return self._compute_packed(packed, wide)
                mapped = self._compute_batched(packed, wide)
            else:
                mapped = self._compute_literal(packed, wide)
            if torch.is_grad_enabled() and mapped.requires_grad:
                mapped.register_hook(self._used)
            if letters == "qkv":
                return list(mapped.flatten(1, 2).to(dtype).unbind(0))
            order = {letter: number for number, letter in enumerate(letters)}
            return [
                torch.cat([
                    mapped[i, order[letter]].to(dtype) if letter in order else weight.detach()
                    for letter, weight in zip("qkv", packed[i].chunk(3))
                ])
                for i in range(len(packed))
            ]  # fmt: skip

    def _used(self, grad: Tensor) -> None:
        self._live = None  # backward has come through: its graph is gone

    def _compute_packed(self, packed: list[Tensor], wide: torch.dtype) -> list[Tensor]:
        key = _versions(packed)
        if self._frozen is None or self._frozen[0] != key:
            self._frozen = (key, None, None if self.clip is None else self._limits(packed, wide))
        found = map_packed(self._blocks(wide), packed, self._frozen[2], self.clip, self._thirds())
        for weight in found:
            if torch.is_grad_enabled() and weight.requires_grad:
                weight.register_hook(self._used)
        return list(found)

    def _compute_batched(self, packed: list[Tensor], wide: torch.dtype) -> Tensor:
        """(layers, projections, d, d)"""
        key = _versions(packed)
        if self._frozen is None or self._frozen[0] != key:
            self._frozen = (key, *self._stack(packed, wide))
        _, rows, limit = self._frozen
        mapped = map_matrices(self._blocks(wide).flatten(0, 1), rows, limit, self.clip)
        return mapped.unflatten(0, (len(packed), -1))

    def _blocks(self, wide: torch.dtype) -> Tensor:
        """(layers, projections, K, n, n)"""
        blocks = [maps[letter].blocks() for maps in self.maps for letter in self.config.projections]
        return torch.stack(blocks).to(wide).unflatten(0, (len(self.maps), -1))

    def _thirds(self) -> tuple[int, ...]:
        """Where the adapted projections stand in a packed one."""
        return tuple("qkv".index(letter) for letter in self.config.projections)

    @torch.no_grad()
    def _limits(self, packed: list[Tensor], wide: torch.dtype) -> Tensor:
        """How much the literal chain shortens long rows before it maps them, (layers, projections, d)."""
        with torch.inference_mode(False):
            rows = [torch.stack([w.detach().to(wide).chunk(3)[i] for i in self._thirds()]) for w in packed]
            length = torch.stack([torch.linalg.vector_norm(w, dim=-1) for w in rows]).clamp(min=torch.finfo(wide).tiny)
            return (_INPUT_RADIUS / (math.sqrt(self.config.curvature(self.kind)) * length)).clamp(max=1)

    @torch.no_grad()
    def _stack(self, packed: list[Tensor], wide: torch.dtype) -> tuple[Tensor, Tensor | None]:
        n, dim = self.config.block, packed[0].shape[1]
        with torch.inference_mode(False):
            wanted = list(self._thirds())
            size = (len(packed), len(wanted), dim // n, dim, n)
            rows = torch.empty(size, dtype=wide, device=packed[0].device)
            for i, weight in enumerate(packed):
                rows[i].copy_(weight.detach().unflatten(0, (3, -1))[wanted].unflatten(-1, (-1, n)).transpose(1, 2))
            rows = rows.flatten(0, 1)
            return rows, None if self.clip is None else self._limits(packed, wide).flatten(0, 1)

    def _compute_literal(self, packed: list[Tensor], wide: torch.dtype) -> Tensor:
        found = []
        for i, weight in enumerate(packed):
            chunks = dict(zip("qkv", weight.detach().to(wide).chunk(3)))
            found.append(torch.stack([self.maps[i][letter](chunks[letter]) for letter in self.config.projections]))
        return torch.stack(found)

    def features(self, index: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The inputs of q, k and v in the feature form."""
        maps = self.maps[index]
        return tuple(maps[letter](x) if letter in maps else x for letter in "qkv")  # type: ignore[return-value]


def _versions(tensors: list[Tensor]) -> tuple:
    return tuple((t.data_ptr(), 0 if t.is_inference() else t._version, t.dtype, t.device) for t in tensors)


# The modules that hold packed projections -----------------------------------------------------------------------------


class _Adapted:
    """Runs a module with the adapted weight in the place of the frozen one, which stays the registered parameter."""

    packed_name = "in_proj_weight"
    hyperclip: tuple[_TowerAdapter, int]
    dense_only: bool

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        adapter, index = self.hyperclip
        if self.dense_only:
            return super().forward(*args, **kwargs)
        if adapter.config.form == "feature":
            return self.forward_features(adapter, index, *args, **kwargs)
        # The entry is exchanged, not removed, so that the order of parameters stays (optimisers number them).
        parameters: dict = self._parameters  # type: ignore[attr-defined]
        frozen, parameters[self.packed_name] = parameters[self.packed_name], adapter.weights()[index]
        try:
            return super().forward(*args, **kwargs)
        finally:
            parameters[self.packed_name] = frozen

    def forward_features(self, adapter: _TowerAdapter, index: int, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class _AdaptedMultiheadAttention(_Adapted, nn.MultiheadAttention):
    def forward_features(self, adapter, index, query, key, value, need_weights=True, attn_mask=None, **kwargs):
        if key is not query or value is not query or any(v is not None for v in kwargs.values()):
            raise HypvisionError("HyperCLIP's feature form adapts self-attention with a plain mask only.")
        q, k, v = (x.transpose(0, 1) if self.batch_first else x for x in adapter.features(index, query))
        out, weights = F.multi_head_attention_forward(
            q, k, v, self.embed_dim, self.num_heads, self.in_proj_weight, self.in_proj_bias, None, None, False,
            self.dropout, self.out_proj.weight, self.out_proj.bias, training=self.training, need_weights=need_weights,
            attn_mask=attn_mask,
        )  # fmt: skip
        return out.transpose(0, 1) if self.batch_first else out, weights


class _AdaptedLinear(_Adapted, nn.Linear):
    """The packed ``qkv`` of timm's attention."""

    packed_name = "weight"

    def forward_features(self, adapter, index, x):
        bias = (None,) * 3 if self.bias is None else self.bias.chunk(3)
        parts = zip(adapter.features(index, x), self.weight.chunk(3), bias)
        return torch.cat([F.linear(y, w, b) for y, w, b in parts], dim=-1)


_CLASSES: dict[type, type] = {nn.MultiheadAttention: _AdaptedMultiheadAttention, nn.Linear: _AdaptedLinear}


def _adapted_class(owner: nn.Module, form: str) -> type:
    kind = type(owner)
    if kind not in _CLASSES:  # open_clip's own Attention (qk_norm, scaled cosine, ...)
        if not isinstance(getattr(owner, "in_proj_weight", None), nn.Parameter):
            raise HypvisionError(
                f"HyperCLIP adapts packed q, k, v projections, which {kind.__name__} does not have. Use a ViT tower."
            )
        _CLASSES[kind] = type(f"_Adapted{kind.__name__}", (_Adapted, kind), {"__module__": __name__})
        globals()[_CLASSES[kind].__name__] = _CLASSES[kind]  # so that it can be pickled
    if form == "feature" and kind not in (nn.MultiheadAttention, nn.Linear):
        raise HypvisionError(f"HyperCLIP's feature form does not reach inside {kind.__name__}. Use form='weight'.")
    return _CLASSES[kind]


# The public functions -------------------------------------------------------------------------------------------------


def _adapters(model: nn.Module) -> Iterator[tuple[Tower, _TowerAdapter]]:
    for tower in find_towers(model):
        for block in tower.blocks:
            owner = tower.owner(block)
            if isinstance(owner, _Adapted):
                yield tower, owner.hyperclip[0]
                break


def is_injected(model: nn.Module) -> bool:
    """Whether the model carries HyperCLIP's blocks."""
    return any(isinstance(module, _Adapted) for module in model.modules())


def config_of(model: nn.Module) -> HyperCLIPConfig:
    """The configuration that a model was injected with.

    Raises:
        HypvisionError: it was not.
    """
    for module in model.modules():
        if isinstance(module, _Adapted):
            return module.hyperclip[0].config
    raise HypvisionError(
        "The model carries no HyperCLIP adapter. Call inject(model) or load_adapter(model, path) first."
    )


def inject(model: nn.Module, config: HyperCLIPConfig | None = None, freeze: bool = True, **options: Any) -> nn.Module:
    """Put identity blocks on the attention projections of an open_clip model, in place.

    Args:
        model: an open_clip model whose towers are transformers: open_clip's own ViT, timm's (SigLIP), text towers.
        config: what is adapted; or give its fields as keywords: ``inject(model, block=64, text=False)``.
        freeze: stop the gradients of everything else.

    Returns:
        The same model. Its state dict has the old names and ``...BLOCK.hyperbolic_attn.adapter_attn_{q,k,v}.weights``.

    Raises:
        HypvisionError: it is injected already, no such tower, or ``block`` does not divide a width.
    """
    if is_injected(model):
        raise HypvisionError("The model carries a HyperCLIP adapter already. Call remove(model) or merge(model) first.")
    known = {field.name for field in fields(HyperCLIPConfig)}
    if unknown := set(options) - known:
        raise HypvisionError(
            f"HyperCLIP has no option {', '.join(sorted(unknown))}. Known: {', '.join(sorted(known))}."
        )
    if config is None:
        config = HyperCLIPConfig(**options)
    elif options:
        raise HypvisionError("Give HyperCLIP a config or its fields, not both.")
    plan = []
    for tower in find_towers(model):
        if not getattr(config, tower.kind):
            continue
        numbers = config.layers(tower.kind, len(tower.blocks))
        if not numbers:
            continue
        owners = [tower.owner(tower.blocks[number]) for number in numbers]
        classes = [_adapted_class(owner, config.form) for owner in owners]
        maps = [_make_maps(config, tower, owner, kind.packed_name) for owner, kind in zip(owners, classes)]
        plan.append((tower, numbers, owners, classes, maps))
    if not plan:
        raise HypvisionError(
            f"{type(model).__name__} has no transformer tower that HyperCLIP could adapt with text={config.text}, "
            f"vision={config.vision}. Use an open_clip model with a ViT image tower or a transformer text tower."
        )
    if freeze:
        model.requires_grad_(False)
    for tower, numbers, owners, classes, maps in plan:
        adapter = _TowerAdapter(config, tower.kind, owners, maps)
        for i, (number, owner, kind) in enumerate(zip(numbers, owners, classes)):
            last = number == len(tower.blocks) - 1
            owner.__class__ = kind
            owner.hyperclip = (adapter, i)
            owner.dense_only = config.official_cls_quirk and tower.kind == "vision" and last
            holder = nn.Module()
            for letter, found in maps[i].items():
                holder.add_module(f"adapter_attn_{letter}", found)
            tower.blocks[number].hyperbolic_attn = holder
        tower.trunk.hyperclip_hook = tower.trunk.register_forward_pre_hook(adapter.refresh)
    _warn_of_clip(model)
    return model


def _make_maps(config: HyperCLIPConfig, tower: Tower, owner: nn.Module, name: str) -> dict[str, BlockMap]:
    packed = getattr(owner, name)
    if packed.shape[0] != 3 * packed.shape[1]:
        raise HypvisionError(
            f"The {tower.kind} tower has a projection of shape {tuple(packed.shape)}; HyperCLIP needs q, k and v "
            "packed into (3 * width, width)."
        )
    return {
        letter: BlockMap(
            packed.shape[1],
            config.block,
            config.curvature(tower.kind),
            config.shared,
            config.mobius,
            config.geometry == "hyperbolic",
            config.fused,
        ).to(packed.device, torch.promote_types(packed.dtype, torch.float32))
        for letter in config.projections
    }


def _warn_of_clip(model: nn.Module) -> None:
    for name, found in clip_report(model).items():
        if found["largest_row"] > found["clip_radius"]:
            warnings.warn(
                f"HyperCLIP: rows of the {name} tower are as long as {found['largest_row']:.2f}, beyond the radius "
                f"{found['clip_radius']:.2f} at which the map clips, so that the outputs differ from the base model's "
                f"from the start. Use a smaller curvature c_{name}.",
                stacklevel=3,
            )


@torch.no_grad()
def clip_report(model: nn.Module) -> dict[str, dict[str, float]]:
    """How far the rows are from the radial clip, inside which the map is exactly linear.

    Returns:
        For each adapted tower: ``largest_row`` (of the frozen weights), ``largest_mapped_row``, ``clip_radius``
        (infinite for the Euclidean form) and ``clipped_share`` (of all adapted rows).
    """
    report = {}
    for tower, adapter in _adapters(model):
        radius = math.inf if adapter.clip is None else adapter.clip
        before, after = [], []
        for i in range(len(adapter.owners)):
            for letter, rows in zip("qkv", adapter.packed(i).float().chunk(3)):
                if letter in adapter.maps[i]:
                    found = adapter.maps[i][letter]
                    before.append(rows.norm(dim=-1))
                    after.append(_unclipped(rows, found).norm(dim=-1))
        lengths, mapped = torch.cat(before), torch.cat(after)
        report[tower.kind] = dict(
            largest_row=float(lengths.max()),
            largest_mapped_row=float(mapped.max()),
            clip_radius=radius,
            clipped_share=float((mapped > radius).float().mean()),
        )
    return report


def _unclipped(rows: Tensor, found: BlockMap) -> Tensor:
    return block_product(rows, found.weights.to(rows.dtype))


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The blocks S of all adapted projections, for an optimiser.

    Raises:
        HypvisionError: the model is not injected.
    """
    config_of(model)
    return [parameter for _, adapter in _adapters(model) for parameter in adapter.parameters()]


def adapter_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The adapter's own entries of the model's state dict.

    Raises:
        HypvisionError: the model is not injected.
    """
    config_of(model)
    return {name: value for name, value in model.state_dict().items() if ".hyperbolic_attn." in name}


def packed_weight(block: nn.Module, tower: Tower) -> Tensor:
    """The packed projection (3d, d) that a block computes with on the dense path, adapted where it is."""
    owner = tower.owner(block)
    if isinstance(owner, _Adapted):
        adapter, index = owner.hyperclip
        if adapter.config.form == "weight":
            return adapter.weights()[index]
    return owner._parameters[getattr(owner, "packed_name", tower.packed_name)]


def value_input(block: nn.Module, tower: Tower, x: Tensor) -> Tensor:
    """What the value projection of a block sees in place of ``x``: the same, except in the feature form."""
    owner = tower.owner(block)
    if isinstance(owner, _Adapted) and owner.hyperclip[0].config.form == "feature":
        adapter, index = owner.hyperclip
        return adapter.maps[index]["v"](x) if "v" in adapter.maps[index] else x
    return x


def freeze_unused(model: nn.Module) -> None:
    """Stop the gradients of blocks that a dense prediction never meets: in the feature form q and k of the last image
    block, whose dense path is that of v alone. In the weight form theirs are zeros."""
    for tower, adapter in _adapters(model):
        if tower.kind == "vision" and tower.family == "open_clip" and adapter.config.form == "feature":
            last = tower.owner(tower.blocks[-1])
            if last in adapter.owners:
                maps = adapter.maps[adapter.owners.index(last)]
                for letter in {"q", "k"} & set(maps):
                    maps[letter].weights.requires_grad_(False)


def refresh(model: nn.Module, kind: str | None = None) -> None:
    """Begin a new graph of adapted weights; for code that runs blocks without their tower's ``forward``."""
    for tower, adapter in _adapters(model):
        if kind in (None, tower.kind):
            adapter.refresh()


def summary(model: nn.Module) -> str:
    """What is trained, in one line.

    Raises:
        HypvisionError: the model is not injected.
    """
    config = config_of(model)
    parts = []
    for tower, adapter in _adapters(model):
        curvature = f", c = {config.curvature(tower.kind):g}" if config.geometry == "hyperbolic" else ""
        blocks = f"{len(adapter.owners)} of {len(tower.blocks)} {tower.kind} blocks"
        parts.append(f"{blocks} (width {tower.width}{curvature})")
    count = sum(parameter.numel() for parameter in trainable_parameters(model))
    total = sum(parameter.numel() for parameter in model.parameters())
    rest = sum(p.numel() for p in model.parameters() if p.requires_grad) - sum(
        p.numel() for p in trainable_parameters(model) if p.requires_grad
    )
    text = (
        f"HyperCLIP ({config.geometry}, {config.form} form): {count:,} of {total:,} parameters "
        f"({100 * count / total:.2g} %), {config.block} x {config.block} blocks on {', '.join(config.projections)} of "
        f"{' and '.join(parts)}"
    )
    return text + (f"; {rest:,} others train, too" if rest else "")


def merge(model: nn.Module) -> nn.Module:
    """Write the adapted weights into the projections and take the adapter off: a plain open_clip model, in place.

    Raises:
        HypvisionError: not injected; or the feature form, or a last image block that is adapted on the dense path only
            (``official_cls_quirk``), which plain weights cannot express.
    """
    config = config_of(model)
    if config.form == "feature":
        raise HypvisionError(
            "The feature form cannot be merged: away from the clip it equals the weight form with transposed blocks. "
            "Train with form='weight' for a mergeable adapter."
        )
    if any(owner.dense_only for _, adapter in _adapters(model) for owner in adapter.owners):
        raise HypvisionError(
            "With official_cls_quirk the last image block has two sets of weights, so it cannot be merged. For the "
            "dense path alone inject a base model without the quirk, load adapter_state_dict into it, and merge that."
        )
    with torch.no_grad():
        for _, adapter in _adapters(model):
            for i, weight in enumerate(adapter.weights()):
                adapter.packed(i).copy_(weight)
    return remove(model)


def remove(model: nn.Module) -> nn.Module:
    """Take the adapter off, in place; the model is the base model again.

    Raises:
        HypvisionError: the model is not injected.
    """
    config_of(model)
    plain = {adapted: kind for kind, adapted in _CLASSES.items()}
    for tower in find_towers(model):
        for block in tower.blocks:
            owner = tower.owner(block)
            if isinstance(owner, _Adapted):
                owner.__class__ = plain[type(owner)]
                del owner.hyperclip, owner.dense_only, block.hyperbolic_attn
        hook = tower.trunk.__dict__.pop("hyperclip_hook", None)
        if hook is not None:
            hook.remove()
    return model


# Files ----------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _fingerprint(model: nn.Module) -> dict[str, Any]:
    """What tells one base model from another: sizes, the mean size of the weights that are adapted, and some of them
    (two random initialisations have the same mean size)."""
    found = {}
    for tower, adapter in _adapters(model):
        sizes = [adapter.packed(i).float().abs().mean() for i in range(len(adapter.owners))]
        some = adapter.packed(0).float().flatten()
        found[tower.kind] = dict(
            width=tower.width,
            depth=len(tower.blocks),
            mean_abs=float(torch.stack(sizes).mean()),
            sample=some[:: len(some) // 16][:16].tolist(),
        )
    return found


def save_adapter(model: nn.Module, path: str | Path) -> Path:
    """Write the blocks and their configuration into one small safetensors file, moved into place when complete.

    Raises:
        HypvisionError: not injected, another suffix than .safetensors, or the place is not writable.
    """
    path = Path(path).expanduser()
    if path.suffix != ".safetensors":
        raise HypvisionError(f"An adapter is written as .safetensors, got '{path}'.")
    weights = {name: value.detach().cpu().contiguous() for name, value in adapter_state_dict(model).items()}
    about = dict(config=asdict(config_of(model)), base=_fingerprint(model))
    with replacing(path) as temporary:
        temporary.write_bytes(save(weights, metadata={"format": "pt", "hyperclip": json.dumps(about)}))
    return path


def load_adapter(model: nn.Module, path: str | Path, strict: bool = True) -> nn.Module:
    """Put a saved adapter onto a fresh base model, in place.

    Args:
        model: the base model, not injected.
        path: a file of :func:`save_adapter`.
        strict: refuse a base model whose weights are not those that the adapter was trained on.

    Raises:
        HypvisionError: no such file, not an adapter, or one of another model.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise HypvisionError(f"There is no adapter '{path}'. Check the path.")
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("hyperclip", "null"))
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, ValueError) as error:
        advice = "Copy it again."
        if path.suffix in (".pth", ".pt"):
            advice = "A checkpoint of a training is none: load it by clip.load_segmenter, and save_adapter its clip."
        raise HypvisionError(f"The adapter '{path}' cannot be read: {error}. {advice}") from error
    known = {field.name for field in fields(HyperCLIPConfig)}
    if not isinstance(about, Mapping) or not {"base", "config"} <= set(about) or set(about["config"]) - known:
        raise HypvisionError(
            f"'{path}' is not an adapter of HyperCLIP: it lacks its configuration, or has one of another version. Use "
            "save_adapter."
        )
    _check_sizes(model, about["base"], path)
    inject(model, HyperCLIPConfig(**about["config"]))
    try:
        if strict:
            _check_base(_fingerprint(model), about["base"], path)
        own = adapter_state_dict(model)
        wrong = [name for name in {*own, *weights} if name not in own or name not in weights
                 or own[name].shape != weights[name].shape]  # fmt: skip
        if wrong:
            raise HypvisionError(f"The adapter '{path}' does not fit: {', '.join(sorted(wrong)[:3])} differ.")
    except HypvisionError:
        remove(model)
        raise
    model.load_state_dict(weights, strict=False)
    return model


def _check_sizes(model: nn.Module, base: Mapping[str, Any], path: Path) -> None:
    own = {tower.kind: (tower.width, len(tower.blocks)) for tower in find_towers(model)}
    for kind, found in base.items():
        if own.get(kind) != (found["width"], found["depth"]):
            width, depth = own.get(kind, (0, 0))
            raise HypvisionError(
                f"The adapter '{path}' is of another model: its {kind} tower has {found['depth']} blocks of width "
                f"{found['width']}, this one's {depth} of {width}. Load it onto the model that it was trained on."
            )


def _check_base(own: Mapping[str, Any], base: Mapping[str, Any], path: Path) -> None:
    for kind, found in base.items():
        if not math.isclose(own[kind]["mean_abs"], found["mean_abs"], rel_tol=1e-2):
            raise HypvisionError(
                f"The adapter '{path}' was trained on other weights: the {kind} projections of its base model have a "
                f"mean size of {found['mean_abs']:.5f}, this model's {own[kind]['mean_abs']:.5f}. Load the same "
                "pretrained weights first, or pass strict=False."
            )
        # As exact as bfloat16, in which either model may be.
        sample = torch.tensor(found.get("sample", own[kind]["sample"]))
        if not torch.allclose(torch.tensor(own[kind]["sample"]), sample, rtol=1e-2, atol=1e-2 * found["mean_abs"]):
            raise HypvisionError(
                f"The adapter '{path}' was trained on other weights: the {kind} projections of its base model begin "
                "differently. Load the same pretrained weights first, or pass strict=False."
            )

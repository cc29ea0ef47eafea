"""HyperCLIP as an adapter: its blocks in the attention of open_clip's and timm's transformers."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hypvision.checkpoints.types import StateDict
from hypvision.clip.adapters.base import Adapter, adapter_of, register
from hypvision.clip.towers import Tower, find_towers
from hypvision.io import HypvisionError, refuse

from .config import HyperCLIPConfig
from .layer import CLIP_RADIUS, AdaptedWeight, BlockMaps, PackedMap, Together, block_product


class _Site(NamedTuple):
    """A transformer block whose packed projection is adapted by ``maps``."""

    tower: Tower
    number: int
    maps: PackedMap

    @property
    def block(self) -> Any:
        return self.tower.blocks[self.number]

    @property
    def owner(self) -> Any:
        """The module that holds the packed projection of the block."""
        return self.tower.owner(self.block)


class PackedAdapter(Adapter):
    """An adapter that maps the packed projection of each attention block by a trained map
    (:class:`.layer.PackedMap`).

    Each block gets a child with the method's name, and its projection becomes a parametrised weight
    that uses this map. In state dicts the projection keeps its name in the base model.
    """

    def __init__(self, model: nn.Module, config: Any):
        super().__init__(model, config)
        self.sites = [
            _Site(tower, number, self.make_maps(tower, number))
            for tower in find_towers(model)
            for number in self.layers(tower)
        ]
        if not self.sites:
            raise HypvisionError(
                f"{type(model).__name__} has no transformer tower that {type(self).__name__} could "
                f"adapt with text={config.text}, vision={config.vision}. Use an open_clip model "
                "with a ViT image tower or a transformer text tower."
            )

    @abstractmethod
    def layers(self, tower: Tower) -> Sequence[int]:
        """Return the numbers of the adapted blocks of a tower."""

    @abstractmethod
    def make_maps(self, tower: Tower, number: int) -> PackedMap:
        """Return the trained map for the projection of a block."""

    def attach(self) -> None:
        for site in self.sites:
            site.block.add_module(self.name, site.maps)
            self.connect(site)
            self.handles += [
                site.block.register_state_dict_post_hook(_base_names),
                site.block.register_load_state_dict_pre_hook(_own_names),
            ]

    def connect(self, site: _Site) -> None:
        """Make the attention of a block use its map."""
        # The transformer block registers the map; the parametrised module must not register it
        # again.
        parametrize.register_parametrization(
            site.owner, site.tower.packed_name, AdaptedWeight(site.maps)
        )
        self.handles += [
            site.owner.register_forward_pre_hook(site.maps.begin),
            site.owner.register_forward_hook(site.maps.end, always_call=True),
        ]

    def disconnect(self, site: _Site) -> None:
        """Undo :meth:`connect`, except for its hooks."""
        _remove_parametrization(site.owner, site.tower.packed_name)

    def detach(self) -> None:
        super().detach()
        for site in self.sites:
            self.disconnect(site)
            delattr(site.block, self.name)

    def merge(self) -> None:
        with torch.no_grad():
            for site in self.sites:
                frozen = site.tower.frozen(site.block)
                frozen.copy_(site.maps(frozen))

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the maps, text tower first."""
        return [parameter for site in self.sites for parameter in site.maps.parameters()]

    def acts_on(self) -> list[tuple[Tower, Sequence[int]]]:
        towers = {site.tower.modality: site.tower for site in self.sites}
        return [(tower, [site.number for site in self.sites if site.tower.modality == kind])
                for kind, tower in towers.items()]  # fmt: skip


@register
class HyperCLIP(PackedAdapter):
    """HyperCLIP's adapter: trained blocks on the attention projections of any open_clip ViT, timm
    ViT (SigLIP) or text transformer.

    The child ``hyperclip`` of an adapted block (:class:`.layer.BlockMaps`) has the parameters
    ``q``, ``k``, ``v``.
    """

    name = "hyperclip"
    Config = HyperCLIPConfig

    config: HyperCLIPConfig

    def layers(self, tower: Tower) -> Sequence[int]:
        wanted = getattr(self.config, tower.modality)
        return self.config.layers(tower.modality, len(tower.blocks)) if wanted else ()

    def make_maps(self, tower: Tower, number: int) -> PackedMap:
        config = self.config
        owner = tower.owner(tower.blocks[number])
        packed = check_packed(tower, number, "HyperCLIP")
        if config.form == "feature" and not isinstance(owner, (nn.MultiheadAttention, nn.Linear)):
            raise HypvisionError(
                f"HyperCLIP's feature form does not reach inside {type(owner).__name__}. Use "
                "form='weight'."
            )
        last = tower.modality == "vision" and number == len(tower.blocks) - 1
        maps = BlockMaps(
            packed.shape[1],
            config,
            config.curvature(tower.modality),
            config.official_dense_only and last,
        )
        return as_owner(maps, owner, packed)

    def attach(self) -> None:
        super().attach()
        if self.config.form == "weight":
            for tower, places in self.acts_on():
                maps = [site.maps for site in self.sites if site.tower.modality == tower.modality]
                self._gather(tower, list(zip(places, cast(list[BlockMaps], maps))))
        self._warn_of_clip()

    def _gather(self, tower: Tower, sites: list[tuple[int, BlockMaps]]) -> None:
        """Make the blocks of a tower compute their adapted projections together."""
        sites = [(place, maps) for place, maps in sites if not maps.dense_only]
        if len(sites) > 1:
            together = Together(tower, *zip(*sites))
            for _, maps in sites:
                maps.together = together

    def connect(self, site: _Site) -> None:
        owner = site.owner
        maps = cast(BlockMaps, site.maps)
        if self.config.form == "weight":
            super().connect(site)
            return
        owner.map_value_input = maps.map_value_input
        if not maps.dense_only and isinstance(owner, nn.MultiheadAttention):
            self.handles.append(
                owner.register_forward_pre_hook(maps.map_attention_inputs, with_kwargs=True)
            )
        elif not maps.dense_only:
            self.handles.append(owner.register_forward_hook(maps.map_linear_output))

    def disconnect(self, site: _Site) -> None:
        if self.config.form == "weight":
            super().disconnect(site)
        else:
            del site.owner.map_value_input

    def merge(self) -> None:
        refuse(
            (
                self.config.form == "feature",
                "The feature form cannot be merged: away from the radial clip it equals the weight "
                "form with transposed blocks. Train with form='weight' for a mergeable adapter.",
            ),
            (
                any(site.maps.dense_only for site in self.sites),
                "With official_dense_only the last image block has two sets of weights, so it "
                "cannot be merged. For the dense path alone inject a base model without the "
                "option, load adapter_state_dict into it, and merge that.",
            ),
        )
        super().merge()

    def freeze_unused(self) -> None:
        """Freeze q and k of the last image block in the feature form, because its dense path uses
        only v. In the weight form their gradients are zeros."""
        for site in self.sites:
            last = site.tower.modality == "vision" and site.number == len(site.tower.blocks) - 1
            if last and site.tower.family == "open_clip" and self.config.form == "feature":
                for letter in {"q", "k"} & set(self.config.projections):
                    getattr(site.maps, letter).requires_grad_(False)

    def describe(self) -> str:
        config = self.config
        towers = []
        for tower, numbers in self.acts_on():
            curvature = (
                f", c = {config.curvature(tower.modality):g}"
                if config.geometry == "hyperbolic"
                else ""
            )
            towers.append(
                f"{len(numbers)} of {len(tower.blocks)} {tower.modality} blocks (width "
                f"{tower.width}{curvature})"
            )
        return (
            f"HyperCLIP ({config.geometry}, {config.form} form): {config.block} x {config.block} "
            f"blocks on {', '.join(config.projections)} of {' and '.join(towers)}"
        )

    @torch.no_grad()
    def clip_report(self) -> dict[str, dict[str, float]]:
        """Return the lengths of rows beside the radius of the clip, see the function
        :func:`clip_report`."""
        report = {}
        for tower, _ in self.acts_on():
            radius = math.inf
            if self.config.geometry == "hyperbolic":
                radius = CLIP_RADIUS / math.sqrt(self.config.curvature(tower.modality))
            before = []
            after = []
            for site in self.sites:
                if site.tower.modality == tower.modality:
                    for letter, rows in zip("qkv", tower.frozen(site.block).float().chunk(3)):
                        if letter in self.config.projections:
                            before.append(rows.norm(dim=-1))
                            after.append(
                                block_product(rows, getattr(site.maps, letter).to(rows.dtype)).norm(
                                    dim=-1
                                )
                            )
            lengths = torch.cat(before)
            mapped = torch.cat(after)
            report[tower.modality] = dict(
                largest_row=float(lengths.max()),
                largest_mapped_row=float(mapped.max()),
                clip_radius=radius,
                clipped_share=float((mapped > radius).float().mean()),
            )
        return report

    def _warn_of_clip(self) -> None:
        if any(site.tower.frozen(site.block).is_meta for site in self.sites):
            return  # weights on the meta device have no numbers
        for kind, found in self.clip_report().items():
            if found["largest_row"] > found["clip_radius"]:
                warnings.warn(
                    f"HyperCLIP: rows of the {kind} tower are as long as "
                    f"{found['largest_row']:.2f}, beyond the radius {found['clip_radius']:.2f} at "
                    "which the map clips, so that the outputs differ from the base model's from "
                    f"the start. Use a smaller curvature c_{kind}.",
                    stacklevel=4,
                )


def clip_report(model: nn.Module) -> dict[str, dict[str, float]]:
    """Return, for each adapted tower, lengths of rows and the radius of the clip, below which the
    map is exactly linear: ``largest_row`` (of the frozen weights), ``largest_mapped_row``,
    ``clip_radius`` (infinite for the Euclidean form), and ``clipped_share`` (of all adapted
    rows)."""
    adapter: Any = adapter_of(model, HyperCLIP.name)
    return adapter.clip_report()


def as_owner(maps: PackedMap, owner: nn.Module, packed: Tensor) -> PackedMap:
    """Return a map in the mode and on the device of the attention, at least in float32."""
    return maps.train(owner.training).to(
        packed.device, torch.promote_types(packed.dtype, torch.float32)
    )


def check_packed(tower: Tower, number: int, method: str) -> nn.Parameter:
    """Return the packed projection ``(3d, d)`` of a block; an error if it has none or is adapted
    already."""
    owner = tower.owner(tower.blocks[number])
    if parametrize.is_parametrized(owner, tower.packed_name):
        children = tower.blocks[number].named_children()
        other = next(
            (name for name, child in children if isinstance(child, PackedMap)),
            "of PyTorch's parametrize",
        )
        raise HypvisionError(
            f"{method} adapts the q, k, v projections, which have an adapter already: {other}. "
            "Call adapters.merge(model) or adapters.remove(model) first."
        )
    packed = getattr(owner, tower.packed_name, None)
    if not isinstance(packed, nn.Parameter):
        raise HypvisionError(
            f"{method} adapts packed q, k, v projections, which {type(owner).__name__} does not "
            "have. Use a ViT tower."
        )
    if packed.shape[0] != 3 * packed.shape[1]:
        raise HypvisionError(
            f"The {tower.modality} tower has a projection of shape {tuple(packed.shape)}; {method} "
            "needs q, k and v packed into (3 * width, width)."
        )
    return packed


def _remove_parametrization(owner: nn.Module, name: str) -> None:
    kind = type(owner)
    managed = kind.__dict__[name]
    parametrize.remove_parametrizations(owner, name, leave_parametrized=False)
    # Copies of the module have the same class, so the class must keep this property.
    setattr(kind, name, managed)
    # The projection becomes the first parameter again, as in the base model.
    for other in [other for other in owner._parameters if other != name]:
        owner._parameters[other] = owner._parameters.pop(other)


# Names of adapted projections in state dicts
# -------------------------------------------------------------------------------------------------

_ORIGINALS = ("attn.in_proj_weight", "attn.qkv.weight")
_PARAMETRISED = {
    name: ".parametrizations.".join(name.rsplit(".", 1)) + ".original" for name in _ORIGINALS
}


def _base_names(block: nn.Module, state_dict: StateDict, prefix: str, _: Any) -> None:
    """Rename the frozen projection in ``block.state_dict()`` to its name in the base model."""
    for name, parametrised in _PARAMETRISED.items():
        if prefix + parametrised in state_dict:
            state_dict[prefix + name] = state_dict.pop(prefix + parametrised)


def _own_names(block: Any, state_dict: StateDict, prefix: str, *_: Any) -> None:
    """Rename the projection, before ``block.load_state_dict()``, from its name in files to the
    module's."""
    own = {name for name, _ in block.named_parameters()}
    for name, parametrised in _PARAMETRISED.items():
        if parametrised in own and prefix + name in state_dict:
            state_dict[prefix + parametrised] = state_dict.pop(prefix + name)

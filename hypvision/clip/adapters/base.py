"""The interface that every adapter of a frozen CLIP implements.

>>> # The second argument may also be a config: HyperCLIPConfig(block=64)
>>> model = adapters.inject(model, "hyperclip", block=64)
>>> optimizer = torch.optim.AdamW(adapters.trainable_parameters(model), lr=1.5e-5)
>>> adapters.save(model, "adapter.safetensors")        # only the learned weights and the config
>>> adapters.load(fresh_model, "adapter.safetensors")  # onto the base model of the training
>>> adapters.merge(model)            # makes plain open_clip weights; remove(model) drops the change

A method is a folder: ``config.py`` (a dataclass, :class:`AdapterConfig`), ``model.py`` (a subclass
of :class:`Adapter` that changes the model, marked by :func:`register`), and perhaps ``layer.py``
(the mathematics). A model may have one adapter of each method; the argument ``name`` chooses one of
several.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from hypvision.checkpoints.match import check_finite, compare
from hypvision.checkpoints.read import read_weights
from hypvision.checkpoints.storage import format_problem, read_metadata, write_tensors
from hypvision.checkpoints.types import StateDict
from hypvision.clip.towers import Tower, find_towers
from hypvision.io import HypvisionError, Plain, StrPath, Values, did_you_mean, refuse
from hypvision.io.files import why_no_file
from hypvision.io.records import check_types, parse


@dataclass(frozen=True)
class AdapterConfig:
    """Base of the configs of adapters: frozen dataclasses whose fields have defaults."""

    def __post_init__(self) -> None:
        check_types(self, type(self).__name__)
        method = type(self).__name__.removesuffix("Config")
        letters = getattr(self, "projections", "q")
        towers = [getattr(self, tower, True) for tower in ("text", "vision")]
        refuse(
            (
                not letters or len({*letters} & {*"qkv"}) < len(letters),
                f"projections must be some of the letters q, k, v, got {letters!r}.",
            ),
            (
                not any(towers),
                f"{method}: with text=False and vision=False nothing would be adapted.",
            ),
        )

    @classmethod
    def from_options(cls, options: Values) -> AdapterConfig:
        """Return a config with these options; an unknown option is an error."""
        known = [field.name for field in fields(cls)]
        method = cls.__name__.removesuffix("Config")
        unknown = sorted(set(options) - set(known))
        if unknown:
            hint = did_you_mean(unknown[0], known, 2, cutoff=0.6)
            raise HypvisionError(
                f"{method} has no option {', '.join(unknown)}.{hint} Known: "
                f"{', '.join(sorted(known))}."
            )
        return cls(**options)


class Adapter(ABC):
    """An adapter: one method on one model, made by :func:`inject` and stored in ``model.adapters``.

    The modules that it adds are registered under its :attr:`name` (``model.NAME``,
    ``...BLOCK.NAME``), so its entries in the model's state dict are those with this word in their
    names.

    The constructor does not change the model; it raises an error if the method or its config does
    not fit the model.
    """

    name: ClassVar[str]
    Config: ClassVar[type[AdapterConfig]]
    changes_towers: ClassVar[bool] = True
    """Whether the adapter changes embeddings; if not, only tasks that ask the adapter itself use
    it."""

    def __init__(self, model: nn.Module, config: Any):
        self.model = model
        self.config = config
        self.handles: list[Any] = []  # of the hooks that attach() registers

    @abstractmethod
    def attach(self) -> None:
        """Add the adapter to the model. With most methods the model's outputs do not change until
        the adapter is trained."""

    @abstractmethod
    def detach(self) -> None:
        """Undo :meth:`attach`, which restores the base model bit for bit; the base class removes
        the hooks in :attr:`handles`."""
        for handle in self.handles:
            handle.remove()
        self.handles = []

    @abstractmethod
    def describe(self) -> str:
        """Return words for what is adapted, for :func:`summary`."""

    def merge(self) -> None:
        """Merge the learned change into the base weights, if the method allows it; the caller calls
        :meth:`detach` afterwards."""
        raise HypvisionError(
            f"An adapter '{self.name}' cannot be merged, because weights of a plain CLIP cannot "
            "express it. Keep it in the model, and save it with adapters.save."
        )

    def parameters(self) -> list[nn.Parameter]:
        """Return the trainable parameters, in the order of the model's parameters."""
        return [
            value for name, value in self.model.named_parameters() if self.name in name.split(".")
        ]

    def state_dict(self) -> StateDict:
        """Return the adapter's entries in the model's state dict."""
        return {
            name: value
            for name, value in self.model.state_dict().items()
            if self.name in name.split(".")
        }

    def freeze_unused(self) -> None:  # noqa: B027 - most methods have nothing to freeze
        """Freeze parameters that dense prediction does not use, because distributed training fails
        if a parameter gets no gradient."""

    def acts_on(self) -> list[tuple[Tower, Sequence[int]]]:
        """Return the adapted towers with the numbers of their adapted blocks; a saved file
        identifies the base model by these."""
        return [(tower, range(len(tower.blocks))) for tower in find_towers(self.model)]

    @torch.no_grad()
    def fingerprint(self) -> Plain:
        """Return numbers that identify a base model: for each tower its sizes, the mean absolute
        value of its packed projections, and a few of their entries (two random initialisations have
        the same mean)."""
        found = {}
        for tower, numbers in self.acts_on():
            weights = [tower.frozen(tower.blocks[number]).float() for number in numbers]
            some = weights[0].flatten()
            found[tower.modality] = dict(
                width=tower.width,
                depth=len(tower.blocks),
                mean_abs=float(torch.stack([weight.abs().mean() for weight in weights]).mean()),
                sample=some[:: len(some) // 16][:16].tolist(),
            )
        return found


ADAPTERS: dict[str, type[Adapter]] = {}
"""Adapter methods by name, as in configs: ``adapter=dict(type="hyperclip", ...)``. The names are
those in :data:`hypvision.checkpoints.match.ADAPTER_NAMES`."""


def register(method: type[Adapter]) -> type[Adapter]:
    """Register a method under its name; a class decorator."""
    ADAPTERS[method.name] = method
    return method


def _method(name: str) -> type[Adapter]:
    if name not in ADAPTERS:
        raise HypvisionError(f"There is no adapter '{name}'. Known: {', '.join(sorted(ADAPTERS))}.")
    return ADAPTERS[name]


def _method_of(config: AdapterConfig) -> type[Adapter]:
    return next(method for method in ADAPTERS.values() if isinstance(config, method.Config))


def _carried(model: nn.Module) -> dict[str, Adapter]:
    return model.__dict__.get("adapters", {})


def is_injected(model: nn.Module, name: str | None = None) -> bool:
    """Return whether a model has an adapter (of this name, if given)."""
    return bool(_carried(model)) if name is None else name in _carried(model)


def adapter_of(model: nn.Module, name: str | None = None) -> Adapter:
    """Return the adapter of a model; ``name`` chooses one of several."""
    carried = _carried(model)
    if name is None and len(carried) == 1:
        return next(iter(carried.values()))
    if name in carried:
        return carried[name]
    if not carried:
        raise HypvisionError(
            "The model has no adapter. Call adapters.inject(model) or adapters.load(model, path)."
        )
    raise HypvisionError(
        f"The name must be one of the model's adapters ({', '.join(carried)}), got {name!r}."
    )


def inject(
    model: nn.Module,
    config: AdapterConfig | str | Values = "hyperclip",
    freeze: bool = True,
    **options: Any,
) -> nn.Module:
    """Add an adapter to an open_clip model in place, and return the model; its state dict has the
    base model's names and those of the adapter.

    Args:
        config: the method and its settings: a config of the method; or its name, with the config's
            fields as ``options``; or both in a dict, ``dict(type="hyperclip", block=64)``, where
            the default type is HyperCLIP.
        freeze: freeze all parameters but those of adapters.
    """
    if isinstance(config, AdapterConfig):
        if options:
            raise HypvisionError("Give an adapter a config or its fields, not both.")
        method = _method_of(config)
        settings = config
    else:
        options = {**({"type": config} if isinstance(config, str) else config), **options}
        method = _method(options.pop("type", "hyperclip"))
        settings = method.Config.from_options(options)
    if is_injected(model, method.name):
        raise HypvisionError(
            f"The model has an adapter '{method.name}' already. Call adapters.remove(model) or "
            "merge(model) first."
        )
    adapter = method(model, settings)
    if freeze:
        others = {
            id(parameter) for other in _carried(model).values() for parameter in other.parameters()
        }
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.requires_grad and id(parameter) in others)
    adapter.attach()
    model.__dict__["adapters"] = {**_carried(model), method.name: adapter}
    return model


def trainable_parameters(model: nn.Module, name: str | None = None) -> list[nn.Parameter]:
    """Return the trainable parameters of one adapter, or of all, for an optimiser."""
    chosen = (
        _carried(model).values()
        if name is None and is_injected(model)
        else [adapter_of(model, name)]
    )
    return [parameter for adapter in chosen for parameter in adapter.parameters()]


def adapter_state_dict(model: nn.Module, name: str | None = None) -> StateDict:
    """Return the adapter's own entries in the model's state dict."""
    return adapter_of(model, name).state_dict()


def summary(model: nn.Module, name: str | None = None) -> str:
    """Return a line of text about the adapter: the number of its parameters and what it adapts."""
    adapter = adapter_of(model, name)
    own = {id(parameter) for parameter in adapter.parameters()}
    count = sum(parameter.numel() for parameter in adapter.parameters())
    total = sum(parameter.numel() for parameter in model.parameters())
    others = sum(p.numel() for p in model.parameters() if p.requires_grad and id(p) not in own)
    text = f"{count:,} of {total:,} parameters ({100 * count / total:.2g} %), {adapter.describe()}"
    return text + (f"; {others:,} others train, too" if others else "")


def merge(model: nn.Module, name: str | None = None) -> nn.Module:
    """Merge the learned change into the base weights in place and remove the adapter; return the
    model, which is a plain open_clip model then."""
    adapter_of(model, name).merge()
    return remove(model, name)


def remove(model: nn.Module, name: str | None = None) -> nn.Module:
    """Remove the adapter in place, which restores the base model, and return the model."""
    adapter = adapter_of(model, name)
    adapter.detach()
    others = {key: other for key, other in _carried(model).items() if other is not adapter}
    if others:
        model.__dict__["adapters"] = others
    else:
        del model.__dict__["adapters"]
    return model


# Adapter files
# --------------------------------------------------------------------------------------------------


def save(model: nn.Module, path: StrPath, name: str | None = None) -> Path:
    """Write the adapter's weights and configuration to a safetensors file, which is complete when
    it appears at ``path``; return the path."""
    path = Path(path).expanduser()
    if path.suffix != ".safetensors":
        raise HypvisionError(
            f"An adapter is written as .safetensors, got '{path}'. Give a path with this ending."
        )
    adapter = adapter_of(model, name)
    about = dict(type=adapter.name, config=asdict(adapter.config), base=adapter.fingerprint())
    write_tensors(adapter.state_dict(), path, {"adapter": json.dumps(about)})
    return path


def load(model: nn.Module, path: StrPath, strict: bool = True) -> nn.Module:
    """Add an adapter from a file of :func:`save` to a fresh base model in place, and return the
    model. With ``strict`` it is an error if the adapter was trained on other base weights."""
    path = Path(path).expanduser()
    config, base, weights = _read(path)
    _check_sizes(model, base, path)
    adapter = adapter_of(inject(model, config), _method_of(config).name)
    try:
        if strict:
            _check_base(adapter.fingerprint(), base, path)
        found = compare(adapter.state_dict(), weights)
        if found.missing or found.unexpected or found.mismatched:
            raise HypvisionError(
                f"The adapter '{path}' does not fit this model: {found.describe()}. "
                "Load it onto the model that it was trained on."
            )
    except HypvisionError:
        remove(model, adapter.name)
        raise
    check_finite(weights, path)
    model.load_state_dict(weights, strict=False)
    return model


class _Base(NamedTuple):
    """What :meth:`Adapter.fingerprint` records of one tower of the base model."""

    width: int
    depth: int
    mean_abs: float
    sample: list[float]


class _About(NamedTuple):
    """The header of a file that :func:`save` writes."""

    type: str
    config: Plain
    base: dict[str, _Base]


def _read(path: Path) -> tuple[AdapterConfig, Mapping[str, _Base], StateDict]:
    """Read the config, the fingerprint of the base model, and the weights from an adapter file."""
    if not path.is_file():
        raise HypvisionError(f"{why_no_file(path, 'adapter')} Check the path.")
    wrong = format_problem(path)
    if wrong is not None:
        of_training = (
            "To get it from a training, call clip.load_segmenter and save the adapter of its clip."
        )
        advice = of_training if path.suffix in (".pth", ".pt") else "Copy it again."
        raise HypvisionError(f"The adapter '{path}' cannot be read: it is {wrong}. {advice}")
    try:
        about: _About = parse(_About, read_metadata(path, "adapter"), "its header", extra=True)
        config = _method(about.type).Config.from_options(about.config)
    except (KeyError, TypeError, ValueError, HypvisionError) as error:
        raise HypvisionError(
            f"'{path}' was not written by adapters.save: its header has no valid configuration "
            f"({error}). Save the adapter with adapters.save, or take another file."
        ) from error
    return config, about.base, read_weights(path)


def _check_sizes(model: nn.Module, base: Mapping[str, _Base], path: Path) -> None:
    sizes = {tower.modality: (tower.width, len(tower.blocks)) for tower in find_towers(model)}
    for modality, trained in base.items():
        if sizes.get(modality) != (trained.width, trained.depth):
            width, depth = sizes.get(modality, (0, 0))
            raise HypvisionError(
                f"The adapter '{path}' is of another model: its {modality} tower has "
                f"{trained.depth} blocks of width {trained.width}, but here it has {depth} of "
                f"width {width}. Load it onto the model that it was trained on."
            )


def _check_base(measured: Values, base: Mapping[str, _Base], path: Path) -> None:
    for modality, here in measured.items():
        if modality not in base:
            continue
        size = base[modality].mean_abs
        sample, numbers = map(torch.tensor, (base[modality].sample, here["sample"]))
        # The tolerance is that of bfloat16, because either model may be in bfloat16.
        alike = sample.shape == numbers.shape and (
            math.isclose(here["mean_abs"], size, rel_tol=1e-2)
            and torch.allclose(numbers, sample, rtol=1e-2, atol=1e-2 * size)
        )
        if not alike:
            raise HypvisionError(
                f"The adapter '{path}' was trained on other weights: the {modality} projections of "
                f"its base model begin differently, or have another mean size ({size:.5f}, here "
                f"{here['mean_abs']:.5f}). Load its base weights, or pass strict=False."
            )

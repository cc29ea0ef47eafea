"""Configuration of HyperCLIP: which projections it adapts, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypvision.clip.adapters.base import AdapterConfig
from hypvision.io import HypvisionError, at_least, one_of, refuse

# Triples: an option, and another option with a setting that leaves the first without effect.
_WITHOUT_EFFECT = (
    ("text_layers", "text", False),
    ("vision_layers", "vision", False),
    ("vision_layers", "official_twelve_layers", True),
    ("c_text", "text", False),
    ("c_text", "official_text_curvature", True),
    ("c_text", "geometry", "euclidean"),
    ("c_vision", "vision", False),
    ("c_vision", "geometry", "euclidean"),
    ("mobius", "geometry", "euclidean"),
    ("official_text_curvature", "text", False),
    ("official_text_curvature", "geometry", "euclidean"),
    ("official_dense_only", "vision", False),
    ("official_twelve_layers", "vision", False),
)


def _layers(name: str, value: Any) -> tuple[int, ...] | None:
    """Return the block numbers in the option ``name``, which is one number, several or None."""
    if value is None:
        return None
    numbers = (value,) if isinstance(value, int) else tuple(value)
    at_least(0, integer=True, **{f"{name}[{i}]": number for i, number in enumerate(numbers)})
    return numbers


@dataclass(frozen=True)
class HyperCLIPConfig(AdapterConfig):
    """The adapted projections and the form of the map. The defaults are the paper's (Peng et al.,
    CVPR 2025).

    Attributes:
        block: side n of a block (Table 4: 128), which must divide the width of both towers; 1: a
            diagonal matrix.
        text, vision: whether the text tower and the image tower are adapted (Table 6: both).
        c_text, c_vision: curvatures (Sec. 4: 0.01 for both).
        projections: the adapted ones of q, k, v, as a string (Sec. 3.3: all).
        text_layers, vision_layers: numbers of the adapted blocks, from 0; None: all (Sec. 3.3).
        shared: use one block in place of all K blocks of a projection (an option of the official
            code that its configs never use).
        form: ``"weight"``: map the rows of the weights (the official code); ``"feature"``: map the
            tokens after ln_1 (Eq. 7 as it is worded; apart from the clip it is the weight form with
            S transposed). Only the weight form can be merged.
        geometry: ``"hyperbolic"``; or ``"euclidean"``: the same map without the clip (an ablation
            of ours).
        mobius: False: use the plain matrix product on the ball (our reading of Table 7), see
            :func:`hypvision.clip.adapters.hyperclip.layer.map_rows`.
        official_text_curvature: use c = 1 in the text tower, as the official code does.
        official_dense_only: adapt the last image block only on the dense path, as the official code
            does.
        official_twelve_layers: adapt only the first 11 image blocks and the last, as the official
            code does at any depth.
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
    official_text_curvature: bool = False
    official_dense_only: bool = False
    official_twelve_layers: bool = False

    def __post_init__(self) -> None:
        for name in ("text_layers", "vision_layers"):
            object.__setattr__(self, name, _layers(name, getattr(self, name)))
        super().__post_init__()
        one_of(("weight", "feature"), form=self.form)
        one_of(("hyperbolic", "euclidean"), geometry=self.geometry)
        for name in ("c_text", "c_vision"):
            value = getattr(self, name)
            if not value > 0:
                raise HypvisionError(
                    f"{name} must be above 0, got {value}. For no curvature use "
                    "geometry='euclidean'."
                )
        self._check_effects()

    def _check_effects(self) -> None:
        """Raise an error for an option that has no effect because of another one."""
        for option, other, setting in _WITHOUT_EFFECT:
            value = getattr(self, option)
            default = type(self).__dataclass_fields__[option].default
            if getattr(self, other) == setting and value != default:
                raise HypvisionError(
                    f"HyperCLIP: {option}={value} has no effect with {other}={setting!r}. Leave "
                    "out one of the two."
                )

    def curvature(self, modality: str) -> float:
        """Return the curvature for the tower ``"text"`` or ``"vision"``."""
        if modality == "text":
            return 1.0 if self.official_text_curvature else self.c_text
        return self.c_vision

    def layers(self, modality: str, depth: int) -> tuple[int, ...]:
        """Return the numbers of the adapted blocks in a tower of ``depth`` blocks."""
        vision = modality == "vision"
        given = self.vision_layers if vision else self.text_layers
        if given is None:
            first = min(11, depth - 1) if vision and self.official_twelve_layers else depth - 1
            return (*range(first), depth - 1)
        blocks = {*given} & {*range(depth)}
        refuse(
            (
                len(blocks) < len(given),
                f"HyperCLIP: {modality}_layers is {given}, but the {modality} tower has blocks 0 "
                f"to {depth - 1}. Correct the numbers.",
            ),
            (
                vision and self.official_dense_only and depth - 1 not in blocks,
                f"HyperCLIP: official_dense_only has no effect with vision_layers={given}, without "
                f"block {depth - 1}, the last one. Add it, or leave out the option.",
            ),
        )
        return tuple(sorted(given))

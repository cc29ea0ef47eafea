"""Official checkpoints of the prompt methods and ours: names of what was learned.

The official files hold the frozen CLIP beside it (PromptSRC's two), and class tokens of the training's classes; both
are dropped. Ours are those of a few-shot training, ``host.learner.*``. ``hypvision zoo convert --from maple IN OUT``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from hypvision.errors import HypvisionError

__all__ = ["FEW_SHOT", "as_saved", "from_official", "is_official", "learned_names", "to_official", "variant"]

_PREFIX = "host.learner."
_TEXT, _IMAGE = "text_encoder.transformer.resblocks", "image_encoder.transformer.resblocks"

# Method -> (official name, ours); {n} is a number, {m} one more. The first that fits counts.
_NAMES = {
    "maple": [
        ("prompt_learner.ctx", "ctx"),
        ("prompt_learner.compound_prompts_text.{n}", "deep_text.{n}"),
        ("prompt_learner.proj.weight", "projections.0.weight"),
        ("prompt_learner.proj.bias", "projections.0.bias"),
        ("prompt_learner.compound_prompt_projections.{n}.weight", "projections.{m}.weight"),
        ("prompt_learner.compound_prompt_projections.{n}.bias", "projections.{m}.bias"),
    ],
    "promptsrc": [
        ("prompt_learner.ctx", "ctx"),
        (_TEXT + ".{m}.VPT_shallow", "deep_text.{n}"),
        ("image_encoder.VPT", "visual"),
        (_IMAGE + ".{m}.VPT_shallow", "deep_visual.{n}"),
    ],
    "promptkd": [
        ("image_encoder.VPT", "prompts.visual"),
        (_IMAGE + ".{m}.VPT_shallow", "prompts.deep_visual.{n}"),
        *((f"VPT_image_trans.conv1.{i}.{kind}", f"projector.{i}.{kind}") for i in (0, 1, 3)
          for kind in ("weight", "bias")),
        *((f"VPT_image_trans.conv1.1.{kind}", f"projector.1.{kind}")
          for kind in ("running_mean", "running_var", "num_batches_tracked")),
    ],
    "coop": [("prompt_learner.ctx", "ctx")],
    "cocoop": [
        ("prompt_learner.ctx", "ctx"),
        *((f"prompt_learner.meta_net.linear{i}.{kind}", f"meta.{2 * i - 2}.{kind}") for i in (1, 2)
          for kind in ("weight", "bias")),
    ],
}  # fmt: skip
FEW_SHOT = tuple(_NAMES)
"""The methods."""

# What the official files hold beside what was learned: texts of the training's classes, and frozen towers.
_FROZEN = re.compile(r"prompt_learner\.(token_(prefix|suffix)2?$|ZS_image_encoder\.)")
_WORDS = 4  # of "a photo of a", from which the official learners start up to so many tokens

_CONVOLUTION = ("projector.0.weight", "projector.3.weight")  # 1 x 1 kernels in the official code


def _kind(names: Mapping[str, Any]) -> str | None:
    """Which method official names are of."""
    if any(".compound_prompts_text." in name or name.startswith("prompt_learner.proj.") for name in names):
        return "maple"
    if any(name.startswith("VPT_image_trans.") for name in names):
        return "promptkd"
    if "prompt_learner.ctx" not in names:
        return None
    if "image_encoder.VPT" in names:
        return "promptsrc"
    return "cocoop" if any(".meta_net." in name for name in names) else "coop"


def is_official(method: str) -> Callable[[Mapping[str, Tensor]], bool]:
    """Whether weights are an official checkpoint of a method."""
    return lambda weights: _kind(weights) == method


def _translate(name: str, pairs: list[tuple[str, str]]) -> str | None:
    for given, wanted in pairs:
        pattern = re.escape(given).replace(r"\{n\}", r"(?P<n>\d+)").replace(r"\{m\}", r"(?P<m>\d+)")
        if match := re.fullmatch(pattern, name):
            found = match.groupdict()
            n = int(found["n"]) if "n" in found else int(found["m"]) - 1 if "m" in found else 0
            return wanted.format(n=n, m=n + 1)
    return None


def from_official(method: str) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    """What was learned, under our names and in float32.

    The function that is returned raises HypvisionError for learned entries that the method has no place for.
    """

    def convert(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, value in weights.items():
            own = None if _FROZEN.match(name) else _translate(name, _NAMES[method])
            if own is None and _is_lost(name, method):
                raise HypvisionError(
                    f"The checkpoint looks like one of {method}, but has a learned entry '{name}', for which that has "
                    "no place. It is of another method or a variant of it, which cannot be converted."
                )
            if own is not None:
                value = value.float() if value.is_floating_point() else value
                found[_PREFIX + own] = value.flatten(1) if own in _CONVOLUTION else value
        return found

    return convert


def _is_lost(name: str, method: str) -> bool:
    """Whether an entry that has no name of ours was learned and is used."""
    if method == "promptkd" and not name.startswith("image_encoder."):
        return False  # the class features are the teacher's
    return not _FROZEN.match(name) and ("VPT" in name.split(".")[-1] or name.startswith("prompt_learner."))


def learned_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What was learned, by the names of a few-shot training: official names translated, others as they are."""
    method = _kind(weights)
    return dict(weights) if method is None else from_official(method)(weights)


def to_official(method: str) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    """The inverse, without the frozen CLIP, which the official code has anyway.

    The function that is returned raises HypvisionError for what the official form has no place for.
    """

    def convert(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        pairs, found = [(own, official) for official, own in _NAMES[method]], {}
        for name, value in weights.items():
            own = name.removeprefix(_PREFIX)
            official = _translate(own, pairs) if name.startswith(_PREFIX) else None
            if official is None:
                raise HypvisionError(
                    f"The checkpoint has an entry '{name}', for which the official form of {method} has no place"
                    f"{': LatHAdapter is not part of it' if 'lathadapter' in name else ''}."
                )
            found[official] = value[..., None, None] if own in _CONVOLUTION else value
        return found

    return convert


def as_saved(weights: Mapping[str, Tensor], epoch: int) -> dict[str, Any]:
    """What the official code saves and reads, of weights by its names; without the state of its optimiser."""
    return dict(state_dict=dict(weights), epoch=epoch, val_result=None)


def variant(method: str) -> Callable[[Mapping[str, Tensor]], tuple[str, dict[str, Any]]]:
    """The method and the options of its host that the sizes of converted weights tell."""

    def options(weights: Mapping[str, Tensor]) -> tuple[str, dict[str, Any]]:
        own = {name.removeprefix(_PREFIX): value for name, value in weights.items()}

        def count(stem: str) -> int:
            return sum(name.startswith(stem) for name in own)

        if method == "promptkd":
            found = dict(tokens=len(own["prompts.visual"]), depth=1 + count("prompts.deep_visual."))
        elif method == "promptsrc":
            found = dict(text=len(own["ctx"]), vision=len(own["visual"]))
            text, vision = 1 + count("deep_text."), 1 + count("deep_visual.")
            found |= dict(depth=text) if text == vision else dict(text_depth=text, vision_depth=vision)
        elif method == "maple":
            found = dict(tokens=len(own["ctx"]), depth=1 + count("deep_text."))
        else:
            found = dict(tokens=own["ctx"].shape[-2])
            if own["ctx"].dim() == 3:
                found |= dict(per_class=True, classes=len(own["ctx"]))
        if method in ("maple", "promptsrc") and len(own["ctx"]) > _WORDS:
            found["words"] = ""
        return method, found

    return options

"""Conversion of learned weights between official checkpoints of the few-shot methods and ours.

MaPLe, PromptSRC and PromptKD save the whole model with the frozen CLIP (PromptSRC: two of them);
the frozen parts and the tokens of the training's classes are dropped. CoOp, CoCoOp and CLIP-Adapter
save only the learned part, whose names have no prefix; the names of the whole model, with a prefix
(``prompt_learner.``, ``adapter.``), are accepted but never written, because the official code
silently ignores unknown names. Tip-Adapter saves each tensor in a file of its own
(:func:`read_cache`). Our names are those of a few-shot training, ``host.learner.*``; the command is
``hypvision zoo convert --from maple IN OUT``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from hypvision.checkpoints.match import check_tuning, translated
from hypvision.checkpoints.read import read_file
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.io import HypvisionError, Plain, Values

_PREFIX = "host.learner."
_TEXT = "text_encoder.transformer.resblocks"
_IMAGE = "image_encoder.transformer.resblocks"

# Method -> pairs (official name, our name); {n} is a number, {m} is n + 1. The first match is used.
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
    "coop": [("ctx", "ctx")],
    "cocoop": [
        ("ctx", "ctx"),
        *((f"meta_net.linear{i}.{kind}", f"meta.{2 * i - 2}.{kind}") for i in (1,
        2) for kind in ("weight", "bias")),
    ],
    "clip-adapter": [("fc.0.weight", "0.weight"), ("fc.2.weight", "2.weight")],
    "tip-adapter": [(name, name) for name in ("keys", "values", "alpha", "beta")],
}  # fmt: skip
FEW_SHOT = tuple(_NAMES)
"""Names of the few-shot methods whose checkpoints can be converted."""

# Methods whose official code saves only the learned weights.
_ALONE = ("coop", "cocoop", "clip-adapter", "tip-adapter")
# Entries of official files that are not learned: embeddings of class names, a frozen image tower.
_FROZEN = re.compile(
    r"(prompt_learner\.)?token_(prefix|suffix)2?$|prompt_learner\.ZS_image_encoder\."
)
_TOWERS = ("image_encoder.", "text_encoder.", "logit_scale")
# Method -> prefix of the names of its learned part in the whole model.
_PREFIXES = {"coop": "prompt_learner.", "cocoop": "prompt_learner.", "clip-adapter": "adapter."}
# Pairs (frozen entry of official files, the CLIP's own name).
_FROZEN_CLIP = [
    ("image_encoder.{rest}", "visual.{rest}"), ("text_encoder.{rest}", "{rest}"), ("logit_scale",
    "logit_scale")
]  # fmt: skip
# In the official code these weights are 1 x 1 convolutions.
_CONVOLUTION = ("projector.0.weight", "projector.3.weight")


def _kind(names: Values) -> str | None:
    """Return the method whose official checkpoints have such names; None if there is none."""
    lines = "\n".join(name.removeprefix("adapter.") for name in names)
    for method, marks in _MARKS:
        if all(re.search(mark, lines, re.MULTILINE) for mark in marks):
            return method
    return None


# Pairs (method, patterns that its names, one a line, must contain); the first match is used.
_MARKS = (
    ("maple", (r"\.compound_prompts_text\.|^prompt_learner\.proj\.",)),
    ("promptkd", (r"^VPT_image_trans\.",)),
    ("promptsrc", (r"^prompt_learner\.ctx$", r"^image_encoder\.VPT$")),
    ("cocoop", (r"^(prompt_learner\.)?ctx$", r"meta_net\.")),
    ("coop", (r"^(prompt_learner\.)?ctx$",)),
    # A CLIP-Adapter has no biases.
    ("clip-adapter", (r"^fc\.0\.weight$", r"^fc\.2\.weight$", r"\A(?![\s\S]*^fc\.0\.bias$)")),
    ("tip-adapter", (r"^keys$", r"^values$")),
)


def is_official(method: str, weights: Weights) -> bool:
    """Return whether weights are an official checkpoint of a method."""
    return _kind(weights) == method


def from_official(method: str, weights: Weights) -> StateDict:
    """Return official weights by our names, in float32; learned entries of another method are an
    error."""
    found = {}
    for name, value in weights.items():
        bare = name.removeprefix(_PREFIXES.get(method, ""))
        own = None if _FROZEN.match(name) else translated(bare, _NAMES[method])
        if own is None and _is_needed(name, method):
            raise HypvisionError(
                f"The checkpoint looks like one of {method}, but has a learned entry '{name}', "
                "which this method does not have. It belongs to another method or to a variant, "
                "which cannot be converted."
            )
        if own is None and name.startswith("image_encoder."):
            check_tuning([name], f"of {method}")
        if own is not None:
            value = value.float() if value.is_floating_point() else value
            found[_PREFIX + own] = _reshaped(own, value)
    _check_whole(method, found)
    return found


def _check_whole(method: str, weights: Weights) -> None:
    """Raise an error if weights by our names lack one that the method has at every depth."""
    optional = ("alpha", "beta")  # only our files of Tip-Adapter have them
    needed = [own for _, own in _NAMES[method] if "{" not in own and own not in optional]
    lacking = [own for own in needed if _PREFIX + own not in weights]
    if lacking:
        raise HypvisionError(
            f"The checkpoint lacks what {method} has learned: {', '.join(lacking[:3])}. It is of "
            f"another method, its names have a prefix that no code of {method} writes, or it is "
            "not complete."
        )


def _reshaped(own: str, value: Tensor) -> Tensor:
    """Return a tensor reshaped to or from its official shape."""
    if own in _CONVOLUTION:
        return value.flatten(1) if value.dim() == 4 else value[..., None, None]
    return value.T.contiguous() if own == "keys" else value


def _is_needed(name: str, method: str) -> bool:
    """Return whether dropping an entry that has no counterpart among our names would change the
    model."""
    if _FROZEN.match(name) or (
        method == "promptkd" and not name.startswith(("image_encoder.", "VPT_image_trans."))
    ):
        return False  # PromptKD learns no text weights: the class features are its teacher's.
    if name.startswith("VPT_image_trans."):
        return True
    if "VPT" in name.split(".")[-1]:
        return True
    return not name.startswith(_TOWERS) if method in _ALONE else name.startswith("prompt_learner.")


def learned_names(weights: Weights, clip: nn.Module) -> StateDict:
    """Return learned weights by our names; official names are translated, others stay as they are.

    Raises:
        HypvisionError: the frozen CLIP in an official checkpoint is not ``clip``, so the weights
            were not learned for it.
    """
    method = _kind(weights)
    if method is None:
        return dict(weights)
    own = clip.state_dict()
    for name, value in weights.items():
        # In a checkpoint of PromptKD the text tower is the teacher's.
        kept = (
            None
            if method == "promptkd" and name.startswith("text_encoder.")
            else translated(name, _FROZEN_CLIP)
        )
        if kept in own and not _about_equal(value, own[kept]):
            raise HypvisionError(
                f"The checkpoint contains CLIP's weight '{name}' with other values than the CLIP "
                "model here, so it was trained with another one. Give that one."
            )
        if kept is not None and kept not in own and translated(name, _NAMES[method]) is None:
            raise HypvisionError(
                f"The checkpoint's '{name}' is no weight of the CLIP model here. Give the CLIP "
                "model that it was trained with."
            )
    return from_official(method, weights)


def _about_equal(value: Tensor, own: Tensor) -> bool:
    """Return whether weights are equal up to the rounding of float16, in which official files
    contain the frozen CLIP."""
    return value.shape == own.shape and torch.allclose(value.to(own), own, rtol=1e-2, atol=1e-3)


def to_official(method: str, weights: Weights) -> StateDict:
    """Return weights by official names, the inverse of :func:`from_official`, without the frozen
    CLIP; entries that the official format cannot represent are an error."""
    _check_whole(method, weights)
    found = {}
    for name, value in weights.items():
        own = name.removeprefix(_PREFIX)
        official = translated(own, _NAMES[method], back=True) if name.startswith(_PREFIX) else None
        if official is None:
            raise HypvisionError(
                f"The checkpoint has an entry '{name}', for which the official form of {method} "
                f"has no place{': LatHAdapter is not part of it' if 'lathadapter' in name else ''}."
            )
        found[official] = _reshaped(own, value)
    return found


def as_saved(weights: Weights, epoch: int) -> Plain:
    """Return the content of a file as the official code saves and reads it, without optimiser
    state."""
    return dict(state_dict=dict(weights), epoch=epoch, val_result=None)


# Tip-Adapter's code writes its cache to the files keys_NAME.pt (d, N), or best_F_NAME.pt (N, d) for
# trained keys, and values_NAME.pt (N, C).
_CACHE = re.compile(r"(keys|best_F)_(.+)\.pt")
_CACHE_NAMES = (
    "Tip-Adapter's code keeps its cache in two files of one folder, such as keys_16shots.pt "
    "(trained keys: best_F_16shots.pt) and values_16shots.pt. Name the first of them."
)


def read_cache(path: Path) -> Values:
    """Read a checkpoint of Tip-Adapter; for an official file of keys also the file of values beside
    it. The result has ``keys`` ``(d, N)`` and ``values`` ``(N, C)``."""
    content = read_file(path, single="keys")
    if set(content) != {"keys"}:
        return content
    name = _CACHE.fullmatch(path.name)
    keys = content["keys"]
    if name is None:
        raise HypvisionError(
            f"'{path}' holds one tensor, and the name of the file does not say which one. "
            f"{_CACHE_NAMES}"
        )
    beside = path.with_name(f"values_{name[2]}.pt")
    values = read_file(beside, single="values").get("values")
    keys = keys.T if name[1] == "best_F" else keys
    if values is None or keys.dim() != 2 or values.dim() != 2 or keys.shape[1] != len(values):
        shapes = [tuple(value.shape) for value in (keys, values) if isinstance(value, Tensor)]
        raise HypvisionError(
            f"'{path}' and '{beside}' are not the cache of a Tip-Adapter: their shapes are "
            f"{shapes}; expected were (d, N) for the keys and (N, classes) for the values."
        )
    return dict(keys=keys, values=values)


def cache_files(weights: Weights, target: Path) -> dict[Path, Tensor]:
    """Return the official files of a Tip-Adapter's cache, with their content, the inverse of
    :func:`read_cache`."""
    name = _CACHE.fullmatch(target.name)
    if name is None:
        raise HypvisionError(
            f"A cache written to '{target}' could not be read again, because of its name. "
            f"{_CACHE_NAMES}"
        )
    keys = weights["keys"].T if name[1] == "best_F" else weights["keys"]
    return {target: keys.contiguous(), target.with_name(f"values_{name[2]}.pt"): weights["values"]}


_Depth = Callable[[str], int]


def _sizes_of_promptsrc(own: Weights, depth: _Depth) -> Plain:
    text = depth("deep_text.")
    vision = depth("deep_visual.")
    depths = dict(depth=text) if text == vision else dict(text_depth=text, vision_depth=vision)
    return dict(text=len(own["ctx"]), vision=len(own["visual"]), **depths)


def _sizes_of_clip_adapter(own: Weights, depth: _Depth) -> Plain:
    hidden, dim = own["0.weight"].shape
    return dict(reduction=max(1, dim // hidden))


def _sizes_of_tip_adapter(own: Weights, depth: _Depth) -> Plain:
    factors = {name: float(own[name]) for name in ("alpha", "beta") if name in own}
    return dict(keys=len(own["keys"]), classes=own["values"].shape[1], **factors)


def _sizes_of_context(own: Weights, depth: _Depth) -> Plain:
    context = own["ctx"]
    each = dict(per_class=True, classes=len(context)) if context.dim() == 3 else {}
    return dict(tokens=context.shape[-2], **each)


# Method -> function from its weights and the depths of its prompts to its options; methods that are
# not listed have a context.
_SIZES: dict[str, Callable[[Weights, _Depth], Plain]] = {
    "promptkd": lambda own, depth: dict(
        tokens=len(own["prompts.visual"]), depth=depth("prompts.deep_visual.")
    ),
    "promptsrc": _sizes_of_promptsrc,
    "maple": lambda own, depth: dict(tokens=len(own["ctx"]), depth=depth("deep_text.")),
    "clip-adapter": _sizes_of_clip_adapter,
    "tip-adapter": _sizes_of_tip_adapter,
}


def variant(method: str, weights: Weights) -> tuple[str, Plain]:
    """Return the method of converted weights, and those of its options that follow from the sizes
    of the weights."""
    own = {name.removeprefix(_PREFIX): value for name, value in weights.items()}

    def depth(stem: str) -> int:
        return 1 + sum(name.startswith(stem) for name in own)

    found = _SIZES.get(method, _sizes_of_context)(own, depth)
    # The official code starts up to four tokens from the words "a photo of a", but in CoCoOp only
    # exactly four.
    if (method in ("maple", "promptsrc") and len(own["ctx"]) > 4) or (
        method == "cocoop" and len(own["ctx"]) != 4
    ):
        found["words"] = ""
    return method, found

"""Find the weights in the files that trainings save: the key that they lie under, and the prefixes
of wrappers in their names.

A training saves a state dict alone, or under a key (``state_dict``, ``model``, ``ema``, ...). The
names in it may begin with those of the modules around the network: ``module.`` of
DistributedDataParallel, ``_orig_mod.`` of :func:`torch.compile`, ``_fsdp_wrapped_module.``, or the
attribute in which a Lightning module keeps the network.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from hypvision.io import HypvisionError, Values

from .types import StateDict, Weights

# Averages come first, as in timm, then the weights themselves. A teacher comes before its student,
# since it is the average of the student in DINO and most semi-supervised trainings.
KEYS = (
    "state_dict_ema", "model_ema", "params_ema", "ema", "state_dict", "model_state_dict",
    "model_state", "model", "net", "network", "module", "params", "teacher", "student",
)  # fmt: skip
# The names of modules that stand around a part of a network, at any depth of a name.
_INSIDE = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module|_fpw_module)\."
)
# The names of modules that stand around the whole network.
_AROUND = re.compile(r"(?:module\.|_forward_module\.)+")
# The counters of how many models torch's AveragedModel, or mmengine's, has averaged.
_COUNTERS = ("n_averaged", "steps")
_DEEPEST = 4  # limit for keys within keys, since a dict may hold itself
_AVERAGES = ("ema", "teacher", "averaged")


def unwrapped(checkpoint: Values, depth: int = _DEEPEST) -> Values:
    """Return the state dict in the content of a file, with the names that it has there.

    Raises:
        HypvisionError: the file has several state dicts, none of them under a known key.
    """
    for key in KEYS if depth else ():
        if _holds_weights(checkpoint.get(key), depth):
            return unwrapped(checkpoint[key], depth - 1)
    if _has_tensors(checkpoint):
        return checkpoint
    inside = [key for key, value in checkpoint.items() if _has_tensors(value)]
    if len(inside) > 1:
        raise HypvisionError(
            f"The checkpoint holds several sets of weights, under the keys "
            f"{', '.join(map(repr, inside))}, and none under a known one ({', '.join(KEYS)}). Save "
            "the right one alone: torch.save(checkpoint[KEY], path)."
        )
    return checkpoint[inside[0]] if inside else checkpoint


def _has_tensors(value: Any) -> bool:
    """Return whether a value is a dict with named tensors in it."""
    return isinstance(value, Mapping) and any(
        isinstance(each, Tensor) and isinstance(name, str) for name, each in value.items()
    )


def _holds_weights(value: Any, depth: int) -> bool:
    """Return whether a value is a state dict, or a dict with one under a known key."""
    if not depth or not isinstance(value, Mapping):
        return False
    return _has_tensors(value) or any(_holds_weights(value.get(key), depth - 1) for key in KEYS)


def plain_names(weights: Values) -> dict[str, str]:
    """Return each name in a state dict with the name without wrappers; counters of averages are
    left out.

    Raises:
        HypvisionError: FSDP has flattened several weights into one tensor.
    """
    averaged = any(_AROUND.match(name) for name in weights)
    found: dict[str, str] = {}
    for name in weights:
        if averaged and name in _COUNTERS:
            continue
        if name.rpartition(".")[2].startswith(("_flat_param", "flat_param")):
            raise HypvisionError(
                f"The weight '{name}' is a tensor that FSDP has made from several weights. Save "
                "the whole weights: "
                "torch.distributed.checkpoint.state_dict.get_model_state_dict(model, "
                "options=StateDictOptions(full_state_dict=True))."
            )
        inner = _INSIDE.sub("", name)
        around = _AROUND.match(inner)
        found[name] = inner[around.end() :] if around else inner
    return found


def flat(name: str) -> str:
    """Return a name in which ``stages.0`` and timm's flattened ``stages_0`` are the same."""
    return name.replace(".", "_")


def common_prefix(expected: Iterable[str], given: Iterable[str]) -> str:
    """Return the prefix of a network's names in a file, as :func:`flat` writes it: the prefix of
    the most weights; among equals that of an average, else the shortest."""
    names = set(map(flat, expected))
    counts: Counter[str] = Counter({"": 0})
    for name in map(flat, given):
        starts = [0, *(place.end() for place in re.finditer("_", name))]
        counts.update(name[:start] for start in starts if name[start:] in names)

    def rank(prefix: str) -> tuple[int, bool, int]:
        averaged = any(word in prefix.split("_") for word in _AVERAGES)
        return counts[prefix], averaged, -len(prefix)

    return max(counts, key=rank)


def without_prefix(expected: Iterable[str], weights: Weights) -> StateDict:
    """Return weights without the prefix that a file has before the names of a network, as Lightning
    writes ``model.`` or ``net.``, if the prefix is clear: half of the network's names follow it.

    Args:
        expected: names of the network.
        weights: weights of the file, by their :func:`plain_names`.

    Returns:
        All weights of the file; names without the prefix stay as they are.
    """
    expected = list(expected)
    prefix = common_prefix(expected, weights)
    stripped = {_strip(name, prefix): value for name, value in weights.items()}
    clear = 2 * len(stripped.keys() & set(expected)) >= len(expected)
    return stripped if prefix and clear and len(stripped) == len(weights) else dict(weights)


def _strip(name: str, prefix: str) -> str:
    return name[len(prefix) :] if flat(name).startswith(prefix) else name

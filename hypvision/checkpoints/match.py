"""Compare the weights in a checkpoint with those of a model, and describe the differences."""

from __future__ import annotations

import functools
import logging
import re
import sys
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hypvision.io import HypvisionError, StrPath, Values, ensure, few

from .read import BACKBONE, network_weights, stored_weights, tensor_problem
from .types import StateDict, Weights
from .wrappers import without_prefix

_logger = logging.getLogger(__name__)
_judged: ContextVar[bool] = ContextVar("judged", default=False)

ADAPTER_NAMES = ("hyperclip", "lathadapter", "lora", "vpt", "bottleneck")
"""The methods in :data:`hypvision.clip.adapters.ADAPTERS`, as words in the names of their
weights."""
# Words in the names of weights that tune a frozen network, in hypvision and elsewhere. Without
# these weights a network is the untuned one.
_TUNING = re.compile(
    rf"(?:^|[._])({'|'.join(ADAPTER_NAMES)}|dora|ia3|ssf|prompts?|prompt_learner|ctx|meta_net"
    r"|adapt(?:er|ers|mlp|former)|\w+_adapter)(?:[._]|$)",
    re.IGNORECASE,
)
# Counters and tables that follow from the network's sizes, which files of older code contain.
_COUNTER = "num_batches_tracked"
_NO_WEIGHTS = re.compile(
    r"(?:.*\.)?(?:position_ids|relative_position_index|attn_mask|inv_freq"
    r"|freqs_(?:cos|sin)|total_(?:ops|params)|input_resolution|context_length|vocab_size)"
)


class Comparison(NamedTuple):
    """The result of comparing the weights in a checkpoint with those of a model.

    Attributes:
        matched: names in both, with equal shapes and the same kind of numbers.
        missing: names that only the model has.
        unexpected: names that only the checkpoint has.
        mismatched: names in both with different shapes or kinds of numbers, each with a text that
            gives the two.
    """

    matched: list[str]
    missing: list[str]
    unexpected: list[str]
    mismatched: dict[str, str]

    def describe(self) -> str:
        """Return the differences as a text: for each sort of difference the number of names, with
        the first of them."""
        groups = [
            ("missing in the file", self.missing),
            ("unknown to the model", self.unexpected),
            ("of another shape", list(self.mismatched.values())),
        ]
        return "; ".join(f"{len(names)} {what}: {few(names)}" for what, names in groups if names)

    @property
    def share(self) -> float:
        """Return the share of matched names among all names in the model or in the checkpoint; 1 if
        there are no names."""
        total = sum(map(len, self))
        return len(self.matched) / total if total else 1.0


def _kind(value: Tensor) -> str:
    """Return the kind of numbers of a weight, which must equal that of the model's weight."""
    if value.is_complex():
        return "complex numbers"
    return "real numbers" if value.is_floating_point() else "integers"


def _difference(given: Tensor, expected: Tensor) -> str | None:
    """Return a text on how two weights differ in shape or in kind of numbers; None if they
    agree."""
    if given.shape != expected.shape:
        return " instead of ".join(
            "x".join(map(str, value.shape)) or "scalar" for value in (given, expected)
        )
    kinds = tensor_problem(given) or _kind(given), _kind(expected)
    return None if kinds[0] == kinds[1] else f"{kinds[0]} instead of {kinds[1]}"


def compare(expected: Weights, given: Weights) -> Comparison:
    """Compare two state dicts by names, shapes and kinds of numbers; counters of batch norms and
    tables that follow from sizes are ignored."""
    expected = {n: value for n, value in expected.items() if not n.endswith(_COUNTER)}
    given = {
        name: value
        for name, value in given.items()
        if name in expected or not (name.endswith(_COUNTER) or _NO_WEIGHTS.fullmatch(name))
    }
    differences = {
        name: _difference(given[name], expected[name]) for name in expected if name in given
    }
    return Comparison(
        [name for name, difference in differences.items() if difference is None],
        [name for name in expected if name not in given],
        [name for name in given if name not in expected],
        {
            name: f"{name} ({difference})"
            for name, difference in differences.items()
            if difference is not None
        },
    )


def filtered(model: nn.Module, weights: Weights, start: bool = False) -> StateDict:
    """Return weights with the names and shapes of a timm model, e.g. for an official checkpoint:
    the ``checkpoint_filter_fn`` of the model's family converts them, after the prefix of an
    enclosing module was removed.

    Args:
        model: the model.
        weights: weights of the file.
        start: a training starts from the weights: where the family has a ``start_filter_fn``, the
            result also has the model's own values of parts that the file may lack. Without it
            nothing is in the result that is not in the file.
    """
    weights = without_prefix(model.state_dict(), weights)
    family = sys.modules[type(model).__module__]
    convert = getattr(family, "checkpoint_filter_fn", None)
    if start:
        convert = getattr(family, "start_filter_fn", convert)
    return dict(weights if convert is None or not weights else convert(weights, model))


def placed(model: nn.Module, part: str, weights: Weights) -> StateDict:
    """Return weights with the names of a model that holds a network as its attribute ``part``.
    Weights of that network alone (from official code, timm or converted) get the name of the
    attribute as a prefix; others keep their names."""
    expected = getattr(model, part).state_dict().keys()
    alone = 2 * len(expected & weights.keys()) > len(weights)
    return {f"{part}.{name}" if alone else name: value for name, value in weights.items()}


def engine_names(model: nn.Module, checkpoint: Values, start: bool = False) -> Values:
    """Return a checkpoint whose weights have the names of the engine's model, as far as they can be
    translated.

    Files with the network alone (official, of timm, converted) have other names, or lack the prefix
    ``backbone``, in which a classifier or learner holds the network. Models of several parts
    translate names by their method ``checkpoint_filter``.

    Args:
        model: the engine's model.
        checkpoint: content of the file.
        start: a training starts from the weights, see :func:`filtered`.

    Returns:
        The checkpoint itself, or a copy with other weights in ``state_dict``.
    """
    state = checkpoint.get("state_dict", checkpoint)
    weights = _engine_weights(model, checkpoint, start)
    return checkpoint if weights.keys() == state.keys() else {**checkpoint, "state_dict": weights}


def _engine_weights(model: nn.Module, checkpoint: Values, start: bool = False) -> StateDict:
    """Return the weights of a checkpoint with the names of the engine's model, see
    :func:`engine_names`."""
    backbone = getattr(model, "backbone", None)
    translate: Callable[[StateDict], StateDict] | None = getattr(model, "checkpoint_filter", None)
    expected = model.state_dict().keys()
    whole = without_prefix(expected, network_weights(checkpoint, part=None))
    if translate is not None:
        return translate(whole)
    # A TimmBackbone translates names itself when it loads weights.
    if backbone is None or hasattr(backbone, "timm_model") or expected <= whole.keys():
        return whole
    # Weights of a neck or of proxies, which are not part of the backbone.
    beside = {name: value for name, value in whole.items() if name in expected}
    network = filtered(backbone, network_weights(checkpoint), start)
    return {**beside, **placed(model, "backbone", network)}


def unknown_name(name: str, family: str) -> str:
    """Return the error message for an entry that does not belong to a family of models."""
    return (
        f"The checkpoint has an entry '{name}', which no {family} checkpoint has. "
        "Check that the file belongs to this family and holds model weights only."
    )


def translated(name: str, pairs: Iterable[tuple[str, str]], back: bool = False) -> str | None:
    """Translate the name of a weight by the first pair of patterns that fits; None if none fits.

    Args:
        name: name of the weight.
        pairs: pairs of patterns, a name and its translation; in both ``{n}`` stands for a number,
            ``{m}`` for n + 1, and ``{rest}`` for any text.
        back: translate from the second pattern of a pair to the first.
    """
    for pair in pairs:
        given, wanted = reversed(pair) if back else pair
        match = _pattern(given).fullmatch(name)
        if match:
            found = match.groupdict()
            n = int(found.get("n", int(found.get("m", 1)) - 1))
            return wanted.format(**{**found, "n": n, "m": n + 1})
    return None


@functools.cache
def _pattern(given: str) -> re.Pattern[str]:
    """Return the regular expression for the pattern ``given``, with a group for each
    placeholder."""
    kinds = {"n": r"\d+", "m": r"\d+", "rest": ".+"}
    return re.compile(
        re.sub(r"\\{(\w+)\\}", lambda hole: f"(?P<{hole[1]}>{kinds[hole[1]]})", re.escape(given))
    )


def nonfinite_names(weights: Values) -> list[str]:
    """Return the names of the weights that contain NaN or infinity."""
    return [
        name
        for name, value in weights.items()
        if isinstance(value, Tensor)
        and (value.is_floating_point() or value.is_complex())
        # PyTorch has no such operation for 8-bit numbers.
        and not (value.float() if value.itemsize == 1 else value).isfinite().all()
    ]


def check_kinds(expected: Weights, given: Weights) -> None:
    """Raise an error for weights that PyTorch would convert with a loss (complex to real, floating
    point to integer, integer to floating point), and warn of weights that are not finite. PyTorch's
    own check finds the other differences.
    """
    same = {
        name: value
        for name, value in given.items()
        if name in expected and value.shape == expected[name].shape
    }
    wrong = compare({name: expected[name] for name in same}, same).mismatched
    if wrong:
        raise HypvisionError(
            f"The checkpoint does not fit the model: {', '.join(list(wrong.values())[:3])}. Give "
            "weights of this model."
        )
    if not _judged.get():
        check_finite(same)


def check_finite(weights: Weights, source: StrPath | None = None, allow: bool = True) -> None:
    """Warn of weights that are NaN or infinite, as a diverged training leaves them; raise an error
    unless ``allow``. ``source``: the file of the weights, for the message."""
    wrong = nonfinite_names(weights)
    if not wrong:
        return
    which = "that is being loaded" if source is None else f"'{source}'"
    text = (
        f"The checkpoint {which} has NaN or infinite values in {len(wrong)} of {len(weights)} "
        f"weights ({few(wrong)}): the training that "
        "wrote it has diverged."
    )
    ensure(
        allow,
        f"{text} Use an earlier checkpoint, or measure this one nevertheless with "
        "--allow-nonfinite.",
    )
    _logger.warning("%s", text)


def check_compatible(
    model: nn.Module,
    state_dict: Values,
    path: StrPath,
    exact: bool = True,
    allow_nonfinite: bool = True,
) -> None:
    """Check that a checkpoint belongs to the architecture of a model, before it is loaded.

    Args:
        model: the model; the prefix ``module.`` of a wrapper is ignored.
        state_dict: weights by name.
        path: file of the weights, for the message.
        exact: True, for testing and resuming: the file must have every weight of the model, in its
            shape; a few unknown names are allowed, such as those of an auxiliary head. False, for
            fine-tuning: half of all names must match.
        allow_nonfinite: warn of NaN and infinite weights instead of raising an error.

    Raises:
        HypvisionError: the checkpoint is of another architecture (the message shows the first
            differences), has an adapter that the model lacks, or is not finite.
    """
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    # Shapes alone are compared, since the weights of a sharded model are not plain tensors.
    shapes = {
        name: torch.empty((), dtype=value.dtype).expand(value.shape) for name, value in own.items()
    }
    expected = stored_weights(shapes)
    given = without_prefix(expected, stored_weights(state_dict))
    found = compare(expected, given)
    if (found.missing or found.mismatched or found.share < 0.8) if exact else found.share < 0.5:
        raise _misfit(
            found, path, f"the model of the config ({type(model).__name__})",
            f"Use the config that the checkpoint was trained with{_beside(path)}, or a checkpoint "
            "of this network.",
        )  # fmt: skip
    check_unknown(found, path, exact)
    check_finite(given, path, allow_nonfinite)


def load_trained(model: nn.Module, checkpoint: Values, path: StrPath) -> None:
    """Load the checkpoint of a training, or an official one, into the engine's model; every weight
    of the model must be in it.

    Args:
        model: the model.
        checkpoint: content of the file, see :func:`engine_names`; names that the model lacks, and
            the prefix ``module.`` of a wrapper, are ignored.
        path: the file, for messages.
    """
    weights = _engine_weights(model, checkpoint)
    check_compatible(model, weights, path)
    expected = model.state_dict()
    _load_judged(model, {name: value for name, value in weights.items() if name in expected})


def load_into(
    model: nn.Module,
    weights: Weights,
    source: StrPath,
    what: str,
    advice: str,
    extra: bool = False,
    optional: Callable[[str], bool] = lambda name: False,
) -> Comparison:
    """Load weights into a model, either all of them or none.

    Args:
        model: the model.
        weights: weights by the model's names.
        source: the file of the weights, for messages.
        what: name of the model, for messages.
        advice: sentence that says what to do if the weights do not fit.
        extra: allow parts that the model does not have, see :func:`check_unknown`.
        optional: function that says for a name of the model whether its values stay, whatever the
            file has.

    Returns:
        The comparison of file and model, in which nothing is missing or mismatched.

    Raises:
        HypvisionError: a weight is missing, unknown, or of another shape or kind of numbers; or,
            even with ``extra``, a weight belongs to an adapter.
    """
    expected = {name: value for name, value in model.state_dict().items() if not optional(name)}
    weights = without_prefix(expected, weights)
    weights = {name: value for name, value in weights.items() if not optional(name)}
    found = compare(expected, weights)
    if found.missing or found.mismatched or (found.unexpected and not extra):
        raise _misfit(found, source, what, advice)
    check_unknown(found, source)
    taken = {name: value for name, value in weights.items() if name in expected}
    check_finite(taken, source)
    _load_judged(model, taken)
    return found


def check_unknown(found: Comparison, source: StrPath, exact: bool = True) -> None:
    """Check the weights that a file has and the model lacks.

    Weights of a part that the model lacks (a head, an auxiliary loss) are left out with a warning.
    Weights inside the model's own parts would change what these compute, and weights of an adapter,
    of prompts or of a LoRA would make a tuned model of the untuned one: both raise an error.

    Args:
        found: comparison of the file with the model.
        source: the file, for messages.
        exact: False at the start of a training, whose network may have been changed: unknown
            weights inside its parts give a warning only.
    """
    if not found.unexpected:
        return
    check_tuning(found.unexpected, source)
    parts = {_part(name) for name in (*found.matched, *found.missing, *found.mismatched)}
    inside = [name for name in found.unexpected if _part(name) in parts]
    if inside and exact:
        raise HypvisionError(
            f"The checkpoint '{source}' has {len(inside)} weights inside of the model's parts that "
            f"the model does not know: {few(inside)}. Without them the model would compute "
            "something else. Give the model and the arguments that the checkpoint was trained with."
        )
    _logger.warning(
        "'%s' has %d weights that the model does not know, and that are left out: %s.",
        source, len(found.unexpected), few(found.unexpected),
    )  # fmt: skip


def check_tuning(unknown: Iterable[str], source: StrPath) -> None:
    """Raise an error if weights that the model lacks belong to adapters, prompts or a LoRA."""
    tuned = {name: match[1] for name in sorted(unknown) if (match := _TUNING.search(name))}
    if tuned:
        raise HypvisionError(
            f"The checkpoint '{source}' holds an adapter '{next(iter(tuned.values()))}' "
            f"({len(tuned)} weights: {few(list(tuned))}) that the model lacks: without it, this "
            f"would be the untuned model. Give the config of its training{_beside(source)}, or "
            "merge the adapter into the weights: one of hypvision by merge of "
            "hypvision.clip.adapters, one of peft by merge_and_unload() or "
            "hypvision.checkpoints.lora."
        )


def _part(name: str) -> str:
    """Return the part of a model that a weight belongs to; for a weight of the backbone, the part
    of the backbone."""
    network = BACKBONE.fullmatch(name)
    if network is None:
        return name.partition(".")[0]
    return f"backbone.{network[1].partition('.')[0]}"


def _load_judged(model: nn.Module, weights: Weights) -> None:
    """Load weights that :func:`check_finite` has already checked, without a second warning about
    NaN and infinity."""
    token = _judged.set(True)
    try:
        model.load_state_dict(weights, strict=False)
    finally:
        _judged.reset(token)


def _beside(path: StrPath) -> str:
    """Return the config that a training wrote beside its checkpoints, in brackets; an empty text
    unless there is exactly one."""
    scripts = Path(path).parent.glob("*.py") if Path(path).is_file() else ()
    configs = [script for script in scripts if "\nmodel = " in script.read_text(errors="replace")]
    return f" ({configs[0]})" if len(configs) == 1 else ""


def _misfit(comparison: Comparison, source: StrPath, what: str, advice: str) -> HypvisionError:
    count = len(comparison.matched) + len(comparison.missing) + len(comparison.mismatched)
    # Weights of an adapter come first in the message, since they explain the other differences.
    first = sorted(comparison.unexpected, key=lambda name: _TUNING.search(name) is None)
    comparison = comparison._replace(unexpected=first)
    return HypvisionError(
        f"The checkpoint '{source}' does not fit {what}: {len(comparison.matched)} of {count} "
        f"weights match. {comparison.describe()}. {advice}"
    )

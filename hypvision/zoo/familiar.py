"""Recognise an image that is unlike all images that a classifier was trained on, by the features of
all levels of its network.

What enters the head of a trained classifier tells its classes apart, and little else: of a cat it
keeps what it has in common with a mushroom. Features of lower levels still know the difference.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.io import HypvisionError, Plain, Values, between, ensure

# Key in the ``meta`` of a checkpoint and in the header of a file. Entries named "familiar", of
# older files, have features of the head, and are not read.
KEY = "familiar_levels"
_LEVELS = 5  # largest number of levels
_WITHIN = 0.95  # share of held-out images that are to be within the limit
_ROUNDING = 1e-3  # tolerance for distances, which are from 0 to 2


class Familiar(NamedTuple):
    """The mean features of the classes, and the distance up to which an image is familiar.

    The distance of an image is 1 minus the largest cosine between its features
    (:func:`level_features`) and the mean of a class.
    """

    means: Tensor
    """Mean features of each class ``(C, D)``."""
    limit: float
    """The distance below which 95 % of the held-out images lie."""
    false_alarms: float
    """The share of held-out images beyond a limit that other images have set: the mean over two
    halves, each with the limit of the other half."""

    def distances(self, features: Tensor) -> Tensor:
        """Return the distances ``(B,)``, from 0 to 2, of images with the features ``(B, D)``."""
        return 1 - (F.normalize(features, dim=1) @ F.normalize(self.means, dim=1).T).amax(dim=1)


class NoLevels(HypvisionError):
    """The levels of a network give no features of the numbers of channels that it names."""


def levels_of(network: Any) -> list[tuple[nn.Module, int]]:
    """Return the modules of at most five levels of a timm network, evenly spaced, with their
    numbers of channels; [] for a network without timm's ``feature_info``."""
    info = getattr(network, "feature_info", None) or ()
    entries = list(getattr(info, "info", info))
    modules = dict(network.named_modules())
    known = [(modules.get(each.get("module", "")), each["num_chs"]) for each in entries]
    found = [(module, channels) for module, channels in known if module is not None]
    places = torch.linspace(0, len(found) - 1, min(len(found), _LEVELS)).round().long().tolist()
    return [found[place] for place in places]


@contextmanager
def level_features(network: nn.Module | None) -> Iterator[list[Tensor]]:
    """Give a list to which each call of the network appends the features ``(B, D)`` of the images:
    of each level (:func:`levels_of`) the mean over all places, with length 1. Levels that give no
    map or tokens of their channels are left out; the list stays empty for None, and for a network
    of such levels or of none."""
    kept: list[Tensor] = []
    parts: list[Tensor] = []

    def finish(*_: Any) -> None:
        if parts:
            kept.append(torch.cat(parts, dim=1))
        parts.clear()

    with ExitStack() as hooks:
        for module, channels in [] if network is None else levels_of(network):

            def keep(_: Any, inputs: Any, output: Any, channels: int = channels) -> None:
                if isinstance(output, Tensor) and output.ndim > 2 and channels in output.shape[1:]:
                    parts.append(_mean(output.detach().float(), channels))

            hooks.callback(module.register_forward_hook(keep).remove)
        if network is not None:
            hooks.callback(network.register_forward_hook(finish).remove)
        yield kept


def _mean(features: Tensor, channels: int) -> Tensor:
    """Return the mean ``(B, channels)`` of a map ``(B, C, H, W)`` or ``(B, H, W, C)``, or of tokens
    ``(B, N, C)`` or ``(B, C, N)``, with length 1."""
    last = features.shape[-1] == channels if features.ndim == 3 else features.shape[1] != channels
    rows = features.movedim(-1, 1) if last else features
    return F.normalize(rows.flatten(2).mean(dim=2), dim=1)


def fit(features: Tensor, labels: Tensor, held_out: Tensor) -> Familiar:
    """Return the mean features of the classes in ``labels`` (N,), from features ``(N, D)``, with
    the limit that the features ``(M, D)`` of at least two held-out images give."""
    ensure(
        len(held_out) > 1,
        f"{len(held_out)} held-out images are too few to find the limit of familiar images. Give "
        "two or more for validation.",
    )
    means = torch.stack([features[labels == label].mean(dim=0) for label in labels.unique()])
    found = Familiar(means, 0.0, 0.0)
    distances = found.distances(held_out)
    halves = distances[::2], distances[1::2]
    beyond = [
        (one > other.quantile(_WITHIN)).float().mean().item()
        for one, other in (halves, halves[::-1])
    ]
    return Familiar(means, distances.quantile(_WITHIN).item(), sum(beyond) / 2)


def written(found: Familiar) -> Plain:
    """Return plain numbers and a tensor, which a checkpoint stores."""
    return found._asdict()


def familiar_of(checkpoint: Values, where: object = "checkpoint") -> Familiar | None:
    """Return the :class:`Familiar` in the ``meta`` of a checkpoint; None if it has none. ``where``:
    the file, for messages.

    Raises:
        HypvisionError: the checkpoint has an entry of another form.
    """
    meta = checkpoint.get("meta")
    given = meta.get(KEY) if isinstance(meta, Mapping) else None
    return None if given is None else checked(given, where)


def checked(given: Any, where: object) -> Familiar:
    """Return a :class:`Familiar` made from an entry of a file, if the entry has the form of
    :func:`written`.

    Raises:
        HypvisionError: the entry has another form; the message says what is wrong.
    """
    fields = given if isinstance(given, Mapping) else {}
    values: list[Any] = [fields.get(name) for name in Familiar._fields]
    means, limit, alarms = values
    advice = f"Remove '{KEY}' there, and the model is used without it."
    try:
        ensure(
            isinstance(means, Tensor) and means.is_floating_point() and means.ndim == 2,
            "means must be a tensor of floats (C, D).",
        )
        ensure(means.numel() and means.isfinite().all(), "means must be finite numbers.")
        between(-_ROUNDING, 2 + _ROUNDING, limit=limit)
        between(0, 1, false_alarms=alarms)
    except HypvisionError as error:
        raise HypvisionError(
            f"'{where}' does not say what images the model knows ('{KEY}'): {error} {advice}"
        ) from error
    return Familiar(means.float(), float(limit), float(alarms))


def in_header(found: Familiar) -> Plain:
    """Return a :class:`Familiar` as JSON for the header of a weight file. Each mean, whose length
    does not matter, is scaled and stored in numbers of 8 bits."""
    checked(found._asdict(), "model")
    rows = found.means / found.means.abs().amax(dim=1, keepdim=True).clamp(min=1e-12)
    numbers = (127 * rows).round().to(torch.int8)
    return dict(
        means=base64.b64encode(numbers.numpy().tobytes()).decode(),
        classes=len(numbers),
        limit=found.limit,
        false_alarms=found.false_alarms,
    )


def of_header(header: Values, where: object = "header") -> Familiar | None:
    """Return the :class:`Familiar` in the header of a weight file, as :func:`familiar_of` does."""
    given = header.get(KEY)
    if given is None:
        return None
    fields = dict(given) if isinstance(given, Mapping) else {}
    fields["means"] = _means(fields.get("means"), fields.get("classes"))
    return checked(fields, where)


def _means(text: Any, classes: Any) -> Tensor | None:
    """Return the means of ``classes`` classes from the text that :func:`in_header` has written;
    None for other texts."""
    try:
        content = bytearray(base64.b64decode(str(text), validate=True))
    except binascii.Error:
        return None
    if type(classes) is not int or classes < 1 or not content or len(content) % classes:
        return None
    return torch.frombuffer(content, dtype=torch.int8).reshape(classes, -1).float()

"""What the images that a classifier was trained on look like to it, to tell a picture that is
unlike all of them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hypvision.io.checks import between, ensure
from hypvision.io.errors import HypvisionError

KEY = "familiar"  # of ``meta`` in a checkpoint
_WITHIN = 0.95  # share of held-out images that are to be within the limit
_ROUNDING = 1e-3  # of distances, which are from 0 to 2


class Familiar(NamedTuple):
    """Where the features of the classes lie.

    The distance of a picture is 1 minus the largest cosine between its features and the mean of a
    class.
    """

    means: Tensor
    """Mean features of each class ``(C, D)``."""
    limit: float
    """The distance below which 95 % of the held-out images are."""
    false_alarms: float
    """The share of held-out images beyond a limit that others have set: of each half by that of the
    other."""

    def distances(self, features: Tensor) -> Tensor:
        """From features ``(B, D)`` to distances ``(B,)``, from 0 to 2."""
        return 1 - (F.normalize(features, dim=1) @ F.normalize(self.means, dim=1).T).amax(dim=1)


def fit(features: Tensor, labels: Tensor, held_out: Tensor) -> Familiar:
    """The means of the classes that ``labels`` (N,) names, of features ``(N, D)``, and the limit by
    those of two or more held-out images ``(M, D)``."""
    ensure(
        len(held_out) > 1,
        f"{len(held_out)} held-out images say nothing of familiar ones. Give validation data of "
        "two or more.",
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


def written(found: Familiar) -> dict[str, Any]:
    """What a checkpoint holds of it: plain numbers and a tensor."""
    return found._asdict()


def familiar_of(checkpoint: Mapping[str, Any], where: object = "checkpoint") -> Familiar | None:
    """What a checkpoint, whose file ``where`` names, holds under ``meta``; None where it holds
    nothing.

    Raises:
        HypvisionError: it holds something else.
    """
    meta = checkpoint.get("meta")
    given = meta.get(KEY) if isinstance(meta, Mapping) else None
    return None if given is None else checked(given, where)


def checked(given: Any, where: object) -> Familiar:
    """What a file holds, if it is what :func:`written` gives.

    Raises:
        HypvisionError: it is not: the message says what is wrong.
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


def in_header(found: Familiar) -> dict[str, Any]:
    """The same for the header of a weight file, as JSON: of the means, whose lengths do not count,
    each row in numbers of 8 bits."""
    checked(found._asdict(), "model")
    rows = found.means / found.means.abs().amax(dim=1, keepdim=True).clamp(min=1e-12)
    numbers = (127 * rows).round().to(torch.int8)
    return dict(
        means=base64.b64encode(numbers.numpy().tobytes()).decode(),
        classes=len(numbers),
        limit=found.limit,
        false_alarms=found.false_alarms,
    )


def of_header(header: Mapping[str, Any], where: object = "header") -> Familiar | None:
    """What the header of a weight file holds, as :func:`familiar_of`."""
    given = header.get(KEY)
    if given is None:
        return None
    fields = dict(given) if isinstance(given, Mapping) else {}
    fields["means"] = _means(fields.get("means"), fields.get("classes"))
    return checked(fields, where)


def _means(text: Any, classes: Any) -> Tensor | None:
    """The means of so many classes, which :func:`in_header` wrote as text; None of other text."""
    try:
        content = bytearray(base64.b64decode(str(text), validate=True))
    except binascii.Error:
        return None
    if type(classes) is not int or classes < 1 or not content or len(content) % classes:
        return None
    return torch.frombuffer(content, dtype=torch.int8).reshape(classes, -1).float()

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

KEY = "familiar"  # of ``meta`` in a checkpoint
_WITHIN = 0.95  # share of held-out images that are to be within the limit


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


def familiar_of(checkpoint: Mapping[str, Any]) -> Familiar | None:
    """What a checkpoint holds under ``meta``; None where it holds nothing, or something else."""
    meta = checkpoint.get("meta")
    given = meta.get(KEY) if isinstance(meta, Mapping) else None
    if not isinstance(given, Mapping) or given.keys() != set(Familiar._fields):
        return None
    means, limit, alarms = (given[name] for name in Familiar._fields)
    numbers = isinstance(limit, float) and isinstance(alarms, float)
    if (
        not numbers
        or not isinstance(means, Tensor)
        or means.ndim != 2
        or not means.is_floating_point()
    ):
        return None
    return Familiar(means.float(), limit, alarms)


def in_header(found: Familiar) -> dict[str, Any]:
    """The same for the header of a weight file, as JSON: of the means, whose lengths do not count,
    each row in numbers of 8 bits."""
    rows = found.means / found.means.abs().amax(dim=1, keepdim=True).clamp(min=1e-12)
    numbers = (127 * rows).round().to(torch.int8)
    return dict(
        means=base64.b64encode(numbers.numpy().tobytes()).decode(),
        classes=len(numbers),
        limit=found.limit,
        false_alarms=found.false_alarms,
    )


def of_header(header: Mapping[str, Any]) -> Familiar | None:
    """What the header of a weight file holds; None where it holds nothing, or something else."""
    given = header.get(KEY)
    if not isinstance(given, Mapping):
        return None
    limit, alarms, classes = (given.get(name) for name in ("limit", "false_alarms", "classes"))
    if not isinstance(limit, float) or not isinstance(alarms, float) or type(classes) is not int:
        return None
    try:
        content = bytearray(base64.b64decode(str(given.get("means")), validate=True))
    except binascii.Error:
        return None
    if classes < 1 or not content or len(content) % classes:
        return None
    means = torch.frombuffer(content, dtype=torch.int8).reshape(classes, -1)
    return Familiar(means.float(), limit, alarms)

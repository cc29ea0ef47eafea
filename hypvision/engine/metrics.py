"""Rules of every metric: without data its values are NaN, with a warning; predictions that are not
finite are an error."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from mmengine.dist import all_gather_object, is_main_process
from mmengine.evaluator import BaseMetric

from hypvision.io import HypvisionError, Metrics, Values, ensure, require_finite

_logger = logging.getLogger(__name__)
_SHOWN = 5


def tell_missing(what: str, metrics: Values, without_truth: Sequence[str] = ()) -> None:
    """Warn of a metric, named by ``what``, with NaN values, or with classes or images without
    ground truth."""
    unknown = [name for name, value in metrics.items() if math.isnan(value)]
    parts = [f"there is no truth for {_counted(without_truth)}"] if without_truth else []
    if unknown:
        verb = "is" if len(unknown) == 1 else "are"
        parts.append(f"{_counted(unknown)} cannot be measured and {verb} NaN")
    if parts:
        _logger.warning("%s: %s.", what, "; ".join(parts))


def _counted(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


class OfClass(NamedTuple):
    """The value of a metric for one class (higher is better), and its number of samples."""

    name: str
    value: float
    samples: int


def worst(classes: Sequence[OfClass], limit: int) -> list[OfClass]:
    """Return the ``limit`` classes of lowest values, the worst first; of equal ones that with more
    samples comes first."""
    return sorted(classes, key=lambda found: (found.value, -found.samples))[:limit]


class Metric(BaseMetric):
    """Base class of metrics: subclasses call :meth:`check` in ``process``, and their
    ``compute_metrics([])`` returns NaN for every name.

    Attributes:
        allow_nonfinite: if True, predictions that are not finite set all metrics to NaN instead of
            raising an error.
        classes: values of each class from the last ``compute_metrics``; empty if the metric has
            none.
        without_truth: names of classes without ground truth, or a text on how many images have
            none, from the last ``compute_metrics``.
    """

    default_prefix = ""
    allow_nonfinite = False
    classes: Sequence[OfClass] = ()
    without_truth: Sequence[str] = ()
    _spoilt = ""
    _told: tuple[str, tuple[str, ...], tuple[str, ...]] = ("", (), ())

    def class_names(self) -> list[str]:
        """Return the names of the classes, which mmengine takes from the data set; an error if
        there are none."""
        names: Sequence[str] | None = (self.dataset_meta or {}).get("classes")
        names = () if names is None else list(names)
        ensure(
            names,
            f"{type(self).__name__} needs the names of the classes, which the data set does not "
            "give. In a loop of your own set METRIC.dataset_meta = dict(classes=[...]).",
        )
        return list(names)

    def check(self, values: Any, what: str, samples: Sequence[Values]) -> bool:
        """Return whether the predictions for ``samples``, one row of ``values`` for each, are
        finite.

        If one is not and ``allow_nonfinite`` is False, raise an error that names the image, by
        ``img_path``, ``index`` or ``img_id`` of the sample, and ``what`` is not finite, such as "a
        score".
        """
        try:
            require_finite(values, lambda row: f"{what} for {self._place(samples[row], row)}")
        except HypvisionError as error:
            if not self.allow_nonfinite:
                raise
            self._spoilt = self._spoilt or str(error)
            return False
        return True

    def _place(self, sample: Values, row: int) -> str:
        if sample.get("img_path") is not None:
            return f"the image '{sample['img_path']}'"
        number = sample.get("index", sample.get("img_id"))
        return (
            f"sample {len(self.results) + row}" if number is None else f"image {number} of the data"
        )

    def evaluate(self, size: int) -> Metrics:
        """Evaluate as mmengine does and warn of NaN metrics, once for the same warning in a row."""
        self.without_truth = self.classes = ()
        spoilt = next(filter(None, all_gather_object(self._spoilt)), "")
        if spoilt:
            self.results.clear()
        self._spoilt = ""
        found = super().evaluate(size)
        unknown = tuple(name for name, value in found.items() if math.isnan(value))
        told: tuple[str, tuple[str, ...], tuple[str, ...]] = (
            spoilt,
            tuple(self.without_truth),
            unknown,
        )
        if is_main_process() and told != self._told:
            if spoilt:
                _logger.warning("%s: all numbers are NaN. %s", type(self).__name__, spoilt)
            else:
                tell_missing(type(self).__name__, found, self.without_truth)
        self._told = told
        return found

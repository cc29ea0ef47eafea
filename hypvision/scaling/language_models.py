"""Superposition in language models: overlaps and norms of the rows of their heads, token
frequencies, and tables of models and losses.

A head ``W`` ``(vocabulary, m)`` represents each token by a row; with far more tokens than
dimensions and no row near zero, that is strong superposition, and the mean squared overlap of rows
goes as ``1/m``. Source: arXiv 2505.10465, Section 4 and Appendix C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from hypvision.io import HypvisionError, Metrics, Plain, StrPath, Values
from hypvision.io.records import positive, read_table
from hypvision.io.shipped import config_folder

from .fits import JointFit, joint_fit
from .measures import frame, norms, overlaps


class LanguageModel(NamedTuple):
    """A row of a table of models: family, name on the hub or path of the checkpoint, name of the
    head's tensor, and width."""

    family: str
    model: str
    head: str
    m: Annotated[int, positive]


class _Loss(NamedTuple):
    family: str
    dataset: str
    m: float
    loss: float


class Head(NamedTuple):
    """A row of ``heads.csv``: the statistics of one head (:func:`head_statistics`), the name of its
    tensor, and the name that the table of models asked for."""

    model: str
    tensor: str
    tokens: float
    m: float
    overlap_mean_absolute: float
    overlap_std_absolute: float
    overlap_mean: float
    overlap_variance: float
    overlap_max: float
    overlap_times_m: float
    welch: float
    frame_potential: float
    norm_mean: float
    norm_std: float
    norm_min: float
    norm_max: float
    asked: str = ""


def read_models(path: StrPath) -> list[LanguageModel]:
    """Read a csv table of models, with the columns ``family``, ``model``, ``head`` and ``m``."""
    return [row for _, row in read_table(LanguageModel, path)]


@cache
def paper_models() -> tuple[LanguageModel, ...]:
    """Return the paper's 27 models, read from the table that comes with the package.

    OPT-350M is 1024 wide, but its head is a matrix of width 512: 1024 counts for its loss, and 512
    for its overlaps.
    """
    return tuple(read_models(config_folder() / "scaling" / "language_models.csv"))


# Names of the head, the output matrix, in checkpoints. Models that tie the head to their input
# embedding store only the embedding, so the embedding's names come last.
HEADS = (
    "lm_head.weight",
    "embed_out.weight",
    "model.decoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "model.embed_tokens.weight",
    "transformer.wte.weight",
    "wte.weight",
)


def head_name(names: Iterable[str], wanted: str | None = None) -> str:
    """Return the name of the head among the names of a checkpoint's tensors: the ``wanted`` one, or
    the first of :data:`HEADS` that occurs."""
    names = list(names)
    # The names in some checkpoints lack the prefix "model.".
    for name in HEADS if wanted is None else (wanted, wanted.removeprefix("model.")):
        if name in names:
            return name
    likely = [name for name in names if "emb" in name or "head" in name or "wte" in name][
        :6
    ] or names[:6]
    what = f"'{wanted}'" if wanted else f"none of {', '.join(HEADS)}"
    raise HypvisionError(
        f"The checkpoint has {what}. It has: {', '.join(likely)}. Name the tensor with --tensor."
    )


def head_statistics(head: Tensor, block: int = 1024) -> Metrics:
    """Return statistics of the overlaps and norms of a head's rows ``(vocabulary, m)``, computed in
    float32 even if the head is in half precision. ``block`` rows are read at a time, so a head that
    is mapped from a file needs no memory of its size."""
    if head.dim() != 2 or len(head) < 2 or not head.is_floating_point():
        raise HypvisionError(
            f"A head must be a float matrix of at least two rows, got {head.dtype} "
            f"{tuple(head.shape)}."
        )
    lengths = norms(head, block)
    if not math.isfinite(lengths.largest):  # the largest norm is NaN if any value of the head is
        raise HypvisionError(
            "The head has NaN or infinite values, so it has no overlaps. Take an intact checkpoint."
        )
    found = overlaps(head, block)
    m = head.shape[1]
    spread = frame(found, m)
    return dict(
        tokens=len(head), m=m, overlap_mean_absolute=found.mean_absolute,
        overlap_std_absolute=found.std_absolute, overlap_mean=found.mean,
        overlap_variance=found.variance, overlap_max=found.largest, overlap_times_m=found.mean * m,
        welch=spread.bound, frame_potential=spread.potential, norm_mean=lengths.mean,
        norm_std=lengths.std, norm_min=lengths.least, norm_max=lengths.largest,
    )  # fmt: skip


def token_counts(
    texts: Iterable[str], encode: Callable[[str], Sequence[int]], block: int = 1_000_000
) -> Tensor:
    """Return how often each token occurs in texts, by its id; ``encode`` returns the ids of a text
    without special tokens. Tokens are counted in blocks of about ``block``, so that the texts need
    not fit into memory."""
    counts = torch.zeros(0, dtype=torch.int64)
    size = 0
    parts: list[Tensor] = []

    def count() -> Tensor:
        found = torch.bincount(
            torch.cat([torch.zeros(0, dtype=torch.int64), *parts]), minlength=len(counts)
        )
        found[: len(counts)] += counts
        return found

    for text in texts:
        parts.append(torch.as_tensor(encode(text), dtype=torch.int64))
        size += len(parts[-1])
        if size >= block:
            counts = count()
            parts = []
            size = 0
    counts = count()
    if not int(counts.sum()):
        raise HypvisionError("The text has no tokens. Give a longer one.")
    return counts


def frequency_exponent(counts: Tensor, ranks: int = 1000) -> float:
    """Return the exponent with which tokens' frequencies fall with their rank: the slope of a line
    through ``ranks`` of them, uniform in the logarithm."""
    found = torch.sort(counts[counts > 0].double(), descending=True).values
    if len(found) < 10:
        raise HypvisionError(
            f"{len(found)} different tokens are too few to fit an exponent. Give a longer text."
        )
    logs = torch.linspace(0, math.log(len(found)), ranks, dtype=torch.float64)
    rank = logs.exp().round().long().clamp(1, len(found))
    x = rank.double().log()
    y = found[rank - 1].log()
    x = x - x.mean()
    y = y - y.mean()
    return -(x @ y / (x @ x)).item()


def read_losses(path: StrPath) -> list[Plain]:
    """Return the rows of a csv of losses, with the columns ``family``, ``dataset``, ``m`` and
    ``loss``.

    A column ``model`` may replace ``family`` and ``m``, if it names one of :func:`paper_models`.
    """
    known = {row.model: {"family": row.family, "m": str(row.m)} for row in paper_models()}
    rows = read_table(_Loss, path, lambda row: known.get(row.get("model") or "", {}))
    return [row._asdict() for _, row in rows]


def loss_fit(rows: Sequence[Values]) -> JointFit:
    """Return the joint fit ``L = A / m^alpha + B`` of the losses, with an offset ``B`` for each
    family and data set; see :func:`joint_fit`."""
    groups = [f"{row['family']}/{row['dataset']}" for row in rows]
    return joint_fit(
        [float(row["m"]) for row in rows], [float(row["loss"]) for row in rows], groups
    )

"""Training of the models of a grid, with checkpoints of every model, and results that stay in a
folder.

A point of the grid is one model: width, decay, frequencies, replicate. Its first weights depend on
its width and replicate, and the batch of a step on the frequencies and the replicate (both also on
the seed), through random generators that are seeded with these words. So points of the same width
start from the same weights, and those of the same frequencies see the same batches. The result of a
point depends neither on the points that are trained with it nor on how often the training was
interrupted and resumed (on one machine; sums in another order round differently).

On a CPU the models are trained one after the other on each batch, in chunks of samples that stay in
the cache; small models of the same width are trained together, because calls would take longer than
the arithmetic. On a GPU models are joined in one tensor if padding less than doubles each of them:
the paper's six widths become three tensors, which take turns at each step.

A folder of results has ``settings.json``, the settings that all points share; ``points/KEY.json``,
the measures of a finished point; and ``points/KEY.pt``, its weights, or the state of its training.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor
from tqdm import tqdm

from hypvision.checkpoints.read import read_file
from hypvision.io import HypvisionError, Metrics, Plain, StrPath, between
from hypvision.io.files import check_output_folder, replacing, write_json
from hypvision.io.records import is_number, positive, read_record, rule

from . import measures
from .data import Batch, density_scan, frequencies, sample, stream
from .model import initial, joined, loss, loss_and_gradient, parts
from .optimizer import AdamW, learning_rate_factor

CHECK_STEPS = 200  # training steps between checks that the losses are finite
SAVE_SECONDS = 120  # least time between two checkpoints
_BANK_NUMBERS = 50_000  # most parameters, over all models, that are trained together on a CPU


@dataclass(frozen=True)
class Settings:
    """The settings that all points of one folder of results share.

    Attributes:
        n: number of features.
        batch: number of samples in each step.
        rates: the learning rates: ``small``: 0.01 for all; ``large``: ``0.02 (8/m)^(1/4)`` for
            ``W`` and ``2/m`` for ``b``.
        loss_scale: factor of the mean squared error in the loss that is minimised, which matters
            because of Adam's eps. 1, or 100 in the paper's large runs.
        independent: whether every point draws its own first weights and batches, instead of sharing
            those of its width and of its frequencies.
        test_batches: number of fresh batches on which the final loss is measured.
        shortened: in words, how these settings differ from published ones that they reproduce.
    """

    n: int = 1000
    batch: int = 2048
    steps: int = 20000
    warmup: int = 2000
    rates: str = "small"
    loss_scale: float = 1.0
    independent: bool = False
    test_batches: int = 100
    shortened: str = ""
    seed: int = 0

    def stream(self, *words: object) -> torch.Generator:
        """Return a random generator that depends on the words and on the seed; the seed 0 adds
        nothing to the words."""
        return stream(*words, *([self.seed] if self.seed else []))

    def first(self, point: Point) -> torch.Generator:
        """Return the random generator of the first weights of a point."""
        return self.stream(
            "initial", *([point.key] if self.independent else [point.m, point.replicate])
        )

    def peaks(self, m: int) -> tuple[float, float]:
        """Return the peak learning rates of ``W`` and of ``b`` for the width ``m``."""
        return (0.01, 0.01) if self.rates == "small" else (0.02 * (8 / m) ** 0.25, 2 / m)


@dataclass(frozen=True, order=True)
class Point:
    """A point of a grid: one model to be trained.

    Attributes:
        distribution, alpha, density: the frequencies of its features, see
            :func:`hypvision.scaling.data.frequencies` and
            :func:`~hypvision.scaling.data.density_scan`.
        decay: the optimiser's decay ``gamma``.
        m: the width.
        replicate: number of the model among those that differ only by chance.
    """

    distribution: str
    alpha: float
    density: float
    decay: float
    m: int
    replicate: int = 0

    @property
    def key(self) -> str:
        """The name of the point in file names."""
        return f"{self.data}-g{self.decay:+.4f}-m{self.m}"

    @property
    def data(self) -> str:
        """The name of the point's stream of batches: points with equal names see equal batches."""
        return f"{self.distribution}-a{self.alpha:.4f}-s{self.density:.4f}-r{self.replicate}"

    def frequencies(self, n: int) -> Tensor:
        """Return the frequencies of the point's ``n`` features, float64 ``(n,)``."""
        return density_scan(frequencies(self.distribution, n, self.alpha), self.density)


_Positive = Annotated[float, rule("a number above 0", lambda value: is_number(value) and value > 0)]


@dataclass(frozen=True, kw_only=True)
class Row(Point):
    """The result of a point: its loss and the measures of its weights, see
    :mod:`hypvision.scaling.measures`.

    Measures that need at least two strongly represented rows are None if there are fewer, as are
    standard deviations of a single number.
    """

    n: Annotated[int, positive]
    active: float
    loss: _Positive
    loss_std: float | None = None
    train_loss: float
    train_loss_std: float | None = None
    phi_half: float
    phi_one: float
    strong_rows: int
    overlap_mean: float | None = None
    overlap_variance: float | None = None
    overlap_max: float | None = None
    overlap_mean_all: float
    overlap_variance_all: float
    overlap_max_all: float
    overlap_deviation: float | None = None
    welch: float | None = None
    welch_excess: float | None = None
    frame_potential: float | None = None
    etf_possible: bool | None = None
    unlearned_loss: float
    unlearned_approximation: float
    lost_loss: float
    ambiguity: float
    norm_mean: float
    norm_min: float
    norm_max: float
    steps: int
    shortened: str = ""

    def __post_init__(self) -> None:
        if self.strong_rows > 1 and (self.overlap_mean is None or self.overlap_variance is None):
            raise ValueError(
                f"{self.strong_rows} strong rows must have an 'overlap_mean' and an "
                "'overlap_variance'"
            )


# Grids of points


def grid(
    alphas: Sequence[float],
    decays: Sequence[float],
    widths: Sequence[int],
    densities: Sequence[float] = (0.0,),
    replicates: int = 1,
    distribution: str = "power",
) -> list[Point]:
    """Return the points of all combinations of these values."""
    cells = itertools.product(range(replicates), alphas, densities, decays, widths)
    return [Point(distribution, a, s, g, m, replicate) for replicate, a, s, g, m in cells]


def groups(points: Sequence[Point], gpu: bool = False) -> dict[str, list[Point]]:
    """Return the points that are trained in one call, by a name: those that see the same batches
    and, on a CPU, have the same width."""
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.data if gpu else f"{point.data}-m{point.m}", []).append(point)
    return found


# Reading and writing folders of results


def open_results(folder: StrPath, settings: Settings) -> Path:
    """Create a folder of results, or open one that has the same settings, to continue it."""
    folder = check_output_folder(folder)
    path = folder / "settings.json"
    now = asdict(settings)
    if not any(folder.glob("points/*")):
        write_json(path, now, indent=2)
        return folder
    if not path.exists():
        raise HypvisionError(
            f"'{folder}' has results, but lacks their settings, '{path}'. Choose another folder."
        )
    before = read_record(Plain, path, "Restore it, or choose another folder.")
    other = [
        f"{name} {before.get(name)} (now {now[name]})"
        for name in now
        if name != "shortened"
        and before.get(name) != now[name]  # "shortened" may name widths, which later points add
    ]
    if other:
        raise HypvisionError(
            f"'{folder}' has results of another grid: {', '.join(other)}. Choose another folder."
        )
    return folder


def finished(folder: StrPath, points: Iterable[Point]) -> bool:
    """Return whether the folder has the results of all of the points."""
    return all(Path(folder, "points", f"{point.key}.json").exists() for point in points)


def read_rows(folder: StrPath, points: Iterable[Point]) -> list[Plain]:
    """Return the results of points, in the order of the points; points without results are left
    out."""
    rows = []
    for point in points:
        path = Path(folder, "points", f"{point.key}.json")
        if path.exists():
            row = read_record(Row, path, "Remove it and run the command again.", extra=True)
            other = [name for name, value in asdict(point).items() if getattr(row, name) != value]
            if other:
                raise HypvisionError(
                    f"'{path}' belongs to another point ({', '.join(other)}). Remove it."
                )
            rows.append(asdict(row))
    return rows


# Training the points


class _Bank:
    """Models that are trained as one tensor, all of them at the same step."""

    def __init__(
        self, points: Sequence[Point], settings: Settings, device: str, dtype: torch.dtype
    ):
        self.points = list(points)
        self.settings = settings
        models = [
            initial(settings.n, point.m, settings.first(point), dtype) for point in self.points
        ]
        decay = torch.tensor([point.decay for point in self.points], dtype=dtype)
        self.optimizer = AdamW(joined(models).to(device), decay.to(device))
        peaks = torch.tensor(
            [settings.peaks(point.m) for point in self.points], dtype=torch.float64
        ).to(device, dtype)
        self.weight_peaks = peaks[:, 0]
        self.bias_peaks = peaks[:, 1]
        self.losses = torch.zeros(settings.steps, len(self.points), device=device)

    @property
    def parameters(self) -> Tensor:
        return self.optimizer.parameters

    @property
    def done(self) -> bool:
        return self.optimizer.steps >= self.settings.steps

    def step(self, batch: Batch) -> None:
        """Train all models by one step on a batch, and record their losses before the step."""
        settings = self.settings
        now = self.optimizer.steps
        found, gradient = loss_and_gradient(self.parameters, batch)
        if settings.loss_scale != 1:
            gradient *= settings.loss_scale
        self.losses[now] = found
        factor = learning_rate_factor(now, settings.steps, settings.warmup)
        self.optimizer.step(gradient, factor * self.weight_peaks, factor * self.bias_peaks)

    def check(self) -> None:
        """Raise an error if a loss, or a number of the present state, is NaN or infinite."""
        losses = self.losses.isfinite()
        wrong = ~losses.all(0)
        for tensor in self._tensors():
            wrong |= ~tensor.isfinite().all(-1).all(-1)
        if wrong.any():
            index = int(wrong.nonzero()[0])
            step = int(losses[: self.optimizer.steps, index].long().cumprod(0).sum())
            raise HypvisionError(
                f"The training of {self.points[index].key} gave NaN or infinity at step {step}. "
                "Its learning rate is too high for this setting. Take larger batches (--batch), or "
                "more steps (--steps) to warm up longer."
            )

    def save(self, folder: Path) -> None:
        for index, point in enumerate(self.points):
            rows = [*range(point.m), self.parameters.shape[1] - 1]
            state = {
                "step": self.optimizer.steps,
                "losses": self.losses[: self.optimizer.steps, index].cpu().clone(),
                "state": torch.stack([t[index, rows].cpu() for t in self._tensors()]),
            }
            with replacing(_state_path(folder, point), durable=True) as temporary:
                torch.save(state, temporary)

    def load(self, states: Sequence[Plain]) -> None:
        for index, (point, state) in enumerate(zip(self.points, states)):
            rows = [*range(point.m), self.parameters.shape[1] - 1]
            for tensor, stored in zip(self._tensors(), state["state"]):
                tensor[index, rows] = stored.to(tensor)
            self.losses[: state["step"], index] = state["losses"].to(self.losses)
            self.optimizer.steps = state["step"]

    def _tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.parameters, self.optimizer.first, self.optimizer.second


def banks_of(points: Sequence[Point], device: str, n: int) -> list[list[Point]]:
    """Return the groups of points, with ``n`` features each, that are trained as one tensor.

    On a CPU these are points of the same width, as many as fit into the cache; on a GPU all points
    that padding to the largest width less than doubles.
    """
    gpu = str(device).startswith("cuda")
    banks: list[list[Point]] = []

    def fits(bank: list[Point], m: int) -> bool:
        return (
            2 * m > bank[0].m
            if gpu
            else bank[0].m == m and (len(bank) + 1) * (m + 1) * n <= _BANK_NUMBERS
        )

    for point in sorted(points, key=lambda point: -point.m):
        if banks and fits(banks[-1], point.m):
            banks[-1].append(point)
        else:
            banks.append([point])
    return banks


@torch.no_grad()
def train(
    folder: str,
    points: Sequence[Point],
    settings: Settings,
    device: str = "cpu",
    banks: Sequence[Sequence[Point]] | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Train points that have the same frequencies, measure them, and write the results into a
    folder.

    Points that have results are skipped; interrupted ones go on from their last checkpoint.
    ``banks`` are the groups of points that are trained as one tensor; None: :func:`banks_of`.
    """
    place = Path(folder)
    if len(set(map(attrgetter("data"), points))) > 1:
        raise ValueError("train: all points must have the same frequencies and replicate.")
    between(
        1, settings.n, integer=True, **{f"the width of {point.key}": point.m for point in points}
    )
    states = {
        point: _read_state(place, point, settings)
        for point in points
        if not finished(place, [point])
    }
    if not states:
        return
    left = list(states)
    if banks is None:  # models can be trained together only on the same batches
        banks = list(zip(left)) if settings.independent else banks_of(left, device, settings.n)
    trained = _restored(banks, states, settings, device, dtype)
    del states
    p = left[0].frequencies(settings.n)
    first = min(bank.optimizer.steps for bank in trained)
    told = dict(desc=left[0].data, unit="step", leave=False, disable=None)
    with tqdm(total=settings.steps, initial=first, **told) as bar:
        _run(trained, p, settings, place, device, dtype, bar)
    for bank in trained:
        bank.check()
        rows = _measure(bank, p, device, dtype)
        bank.save(place)
        for point, row in zip(bank.points, rows):
            write_json(place / "points" / f"{point.key}.json", row, indent=2)


def _restored(
    banks: Sequence[Sequence[Point]],
    states: dict[Point, Plain | None],
    settings: Settings,
    device: str,
    dtype: torch.dtype,
) -> list[_Bank]:
    """Return the banks of the points that are keys of ``states``, each with points at the same
    step, after loading the states of their checkpoints."""
    trained = []
    for group in banks:
        by_step: dict[int, list[Point]] = {}
        for point in group:
            if point in states:
                state = states[point] or {"step": 0}
                by_step.setdefault(state["step"], []).append(point)
        for step, members in by_step.items():
            bank = _Bank(members, settings, device, dtype)
            if step:
                bank.load([states[point] or {} for point in members])
            trained.append(bank)
    return trained


def _run(
    banks: list[_Bank],
    p: Tensor,
    settings: Settings,
    folder: Path,
    device: str,
    dtype: torch.dtype,
    bar: tqdm,
):
    saved = time.monotonic()
    for step in range(bar.n, settings.steps):
        batches: dict[str, Batch] = {}
        for bank in banks:
            if bank.optimizer.steps == step:
                owner = bank.points[0].key if settings.independent else bank.points[0].data
                if owner not in batches:
                    drawn = sample(p, settings.batch, settings.stream("train", owner, step))
                    batches[owner] = drawn.to(device, dtype)
                bank.step(batches[owner])
        bar.update()
        if (step + 1) % CHECK_STEPS == 0:
            for bank in banks:
                bank.check()
            if time.monotonic() - saved > SAVE_SECONDS:
                for bank in banks:
                    bank.save(folder)
                saved = time.monotonic()


def _state_path(folder: Path, point: Point) -> Path:
    return folder / "points" / f"{point.key}.pt"


def _read_state(folder: Path, point: Point, settings: Settings) -> Plain | None:
    path = _state_path(folder, point)
    if not path.exists():
        return None
    try:
        state = read_file(path)
        step = state["step"]
        losses = state["losses"]
        tensor = state["state"]
        whole = tensor.shape == (3, point.m + 1, settings.n) and losses.shape == (step,)
        if not whole or not 0 < step <= settings.steps:
            raise ValueError("its parts do not fit the point")
        for name, value in (("state", tensor), ("losses", losses)):
            if value.dtype not in (torch.float32, torch.float64):
                raise ValueError(f"its {name} is {value.dtype}, not float32 or float64")
            if not value.isfinite().all():
                raise ValueError(f"its {name} has NaN or infinite numbers")
    except (HypvisionError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HypvisionError(
            f"The checkpoint '{path}' is damaged ({error}). Remove it to train anew."
        ) from error
    return state


# Measuring trained models


def weights_of(folder: StrPath, point: Point, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``W`` ``(n, m)``, ``b`` ``(n,)``, and the losses at all training steps of a point."""
    state = _read_state(Path(folder), point, settings)
    if state is None:
        result = Path(folder, "points", f"{point.key}.json")
        raise HypvisionError(
            f"There are no weights of {point.key}. To train it again, remove '{result}'."
        )
    return *parts(state["state"][:1], 0, point.m), state["losses"]


def _measure(bank: _Bank, p: Tensor, device: str, dtype: torch.dtype) -> list[Plain]:
    settings = bank.settings
    data = bank.points[0].data
    batches = (
        sample(p, settings.batch, settings.stream("test", data, k))
        for k in range(settings.test_batches)
    )
    tested = (
        torch.stack([loss(bank.parameters, batch.to(device, dtype)).cpu() for batch in batches])
        * settings.n
    )
    last = bank.losses[-100:].double().cpu() * settings.n
    rows = []
    for index, point in enumerate(bank.points):
        weight = parts(bank.parameters, index, point.m)[0].cpu()
        rows.append(
            asdict(point)
            | {
                "n": settings.n,
                "active": p.sum().item(),
                "loss": tested[:, index].mean().item(),
                "loss_std": _deviation(tested[:, index]),
                "train_loss": last[:, index].mean().item(),
                "train_loss_std": _deviation(last[:, index]),
            }
            | measures_of(weight, p)
            | {"steps": settings.steps, "shortened": settings.shortened}
        )
    return rows


def measures_of(weight: Tensor, p: Tensor) -> Metrics:
    """Return all measures of trained weights ``(n, m)`` of the toy model with frequencies ``p``;
    see :mod:`hypvision.scaling.measures`."""
    n, m = weight.shape
    lengths = torch.linalg.vector_norm(weight, dim=1)
    half = measures.represented(weight)
    frequent = measures.unlearned_loss(p, half * n)
    strong = measures.overlaps(weight[lengths > 1])
    every = measures.overlaps(weight)
    spread = measures.frame(strong, m) if strong.rows > 1 else None
    return {
        "phi_half": half,
        "phi_one": measures.represented(weight, 1.0),
        "strong_rows": strong.rows,
        "overlap_mean": _known(strong.mean),
        "overlap_variance": _known(strong.variance),
        "overlap_max": _known(strong.largest),
        "overlap_mean_all": every.mean,
        "overlap_variance_all": every.variance,
        "overlap_max_all": every.largest,
        "overlap_deviation": _known(strong.std_absolute),
        "welch": None if spread is None else spread.bound,
        "welch_excess": None if spread is None else spread.excess,
        "frame_potential": None if spread is None else spread.potential,
        "etf_possible": None if spread is None else spread.possible,
        "unlearned_loss": frequent[0],
        "unlearned_approximation": frequent[1],
        "lost_loss": measures.unlearned_loss(p, lengths > 0.5)[0],
        "ambiguity": measures.ambiguity(weight),
        "norm_mean": lengths.mean().item(),
        "norm_min": lengths.min().item(),
        "norm_max": lengths.max().item(),
    }


def _deviation(values: Tensor) -> float | None:
    """Return the standard deviation of the values; None for a single value."""
    return values.std().item() if len(values) > 1 else None


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value

"""Tables and curves of a few-shot results folder: means and deviations over seeds, averages over
data sets, and published values.

The harmonic mean in a row of averages is that of the averaged accuracies, as in publications; the
mean of the harmonic means would be another number.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hypvision.data.fewshot.layouts import CROSS, DOMAINS, SETS
from hypvision.io import HypvisionError, Metrics, Plain, StrPath, Values, ensure, require
from hypvision.io.files import csv_text, markdown_table, write_text
from hypvision.viz.sheet import save_figure

from . import few_shot_published as published
from .few_shot_benchmark import Result, read_result
from .few_shot_recipes import host_options


class Row(NamedTuple):
    """A row of a table: a method on a data set, with mean and standard deviation over seeds and the
    published value of each column.

    ``steps`` are the different numbers of steps of its trainings, ``note`` says how they differ
    from the usual training, and ``of_seeds`` has the columns of each seed.
    """

    method: str
    dataset: str
    seeds: int
    mean: Metrics
    std: Metrics
    known: Metrics
    steps: tuple[int, ...] = ()
    note: str = ""
    of_seeds: dict[int, Metrics] = {}


# The result of a cell, and its numbers on one data set by column.
_Measured = tuple[Result, Metrics]


def harmonic(base: float, new: float) -> float:
    """Return the harmonic mean ``2 b n / (b + n)``; 0 if one number is 0, NaN if one is NaN."""
    return 2 * base * new / (base + new) if base + new else 0.0


def read_results(folder: StrPath) -> list[Result]:
    """Return the results of all finished cells below a folder."""
    paths = sorted(Path(folder).glob("**/result.json"))
    ensure(
        paths,
        f"There are no results (result.json) in '{folder}'. Give the --out of a few-shot run.",
    )
    results = [read_result(path.parent) for path in paths]
    for path, result in zip(paths, results):
        if path.parent.parts[-4:] != tuple(result.cell.key.split("/")):
            raise HypvisionError(
                f"'{path}' says that it is the result of {result.cell.key}, but its folder has "
                "another name. Move it to a folder of this name, or remove it."
            )
    return results


def tables(results: Sequence[Result]) -> dict[str, list[Row]]:
    """Return the rows of each protocol's table, in the order of the benchmark, with a row
    ``average`` for each method that has several data sets with a column in common.

    Cells that differ only in the seed become one row.
    """
    found: dict[str, list[Row]] = {}
    for protocol in dict.fromkeys(result.cell.protocol for result in results):
        lines = _rows(protocol, [one for one in results if one.cell.protocol == protocol])
        sources = ((row.method, row.dataset) for row in lines if row.dataset.endswith("(source)"))
        # Published results have ImageNet as source, so they do not compare with other sources.
        foreign = {method for method, dataset in sources if dataset != "imagenet (source)"}
        lines = [row._replace(known={}) if row.method in foreign else row for row in lines]
        found[protocol] = [*_averages(protocol, lines, foreign), *lines]
    return found


def _rows(protocol: str, results: Sequence[Result]) -> list[Row]:
    """Return the rows of a table without averages, in the order of the benchmark."""
    groups: dict[tuple[str, str], list[_Measured]] = defaultdict(list)
    for result, name in zip(results, _names(results)):
        for dataset, columns in _by_dataset(result):
            groups[name, dataset].append((result, columns))
    lines = [_row(protocol, *key, own) for key, own in groups.items()]
    return sorted(lines, key=lambda row: (row.method, _place(row.dataset)))


def _names(results: Sequence[Result]) -> list[str]:
    """Return the name of each result's row: its method, the options of LatHAdapter that are not the
    defaults, and the settings in which cells of the method differ, because these become rows of
    their own."""
    alike: dict[str, list[Plain]] = defaultdict(list)
    for result in results:
        alike[result.cell.method].append(_settings(result))
    found = []
    for result in results:
        method = result.cell.method
        given = result.settings.adapter or {}
        shown = [*given.items()] if method.endswith("+lath") else []
        for key, value in _settings(result).items():
            if value is not None and any(other.get(key) != value for other in alike[method]):
                shown.append((key, value))
        found.append(" ".join([method, *(f"{key}={value}" for key, value in shown)]))
    return found


def _settings(result: Result) -> Plain:
    """Return the settings that a result depends on, without LatHAdapter's options."""
    method = result.cell.method
    unused = {"adapter"} if method.startswith("promptkd") else {"adapter", "teacher"}
    if result.epochs == 0:
        unused |= {"steps", "epochs", "batch", "views"}
    elif not result.training_images:
        unused.add("views")
    found = {key: value for key, value in result.settings.shared().items() if key not in unused}
    if found["host"]:
        taken = host_options(method)
        found["host"] = {
            option: value for option, value in found["host"].items() if option in taken
        } or None
    return _flat(found)


def _flat(values: Values, prefix: str = "") -> Plain:
    found: Plain = {}
    for key, value in values.items():
        found |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
        )
    return found


def _place(dataset: str) -> tuple[int, str]:
    return (SETS.index(dataset), "") if dataset in SETS else (len(SETS), dataset)


def _by_dataset(result: Result) -> Iterable[tuple[str, Metrics]]:
    """Yield the data sets of a cell, each with its results by column."""
    values = result.accuracy
    own = result.cell.dataset
    if result.cell.protocol == "base2new":
        yield own, dict(values, HM=harmonic(values["base"], values["new"]))
    elif result.cell.protocol == "shots":
        yield own, {f"{result.cell.shots} shots": values["all"]}
    elif "all" in values:  # a cell of PromptKD, which trains for a single target
        yield own, {"accuracy": values["all"]}
    else:
        for dataset, value in values.items():
            name = f"{dataset} (source)" if dataset == own else dataset
            yield name, {"accuracy": value}


def _row(protocol: str, method: str, dataset: str, measured: Sequence[_Measured]) -> Row:
    """Return the row of cells that differ only in the seed."""
    seeds = _by_seed(measured)
    results = [result for result, _ in measured]
    steps = tuple(sorted({result.steps for result in results}))
    known = _known(protocol, method, dataset)
    means = _over(seeds.values())
    return Row(method, dataset, len(seeds), *means, known, steps, _note(results), seeds)


def _by_seed(measured: Sequence[_Measured]) -> dict[int, Metrics]:
    """Return the columns of each seed; raise an error for two cells that differ only in their
    results."""
    seeds: dict[int, Metrics] = defaultdict(dict)
    for result, columns in measured:
        for column, value in columns.items():
            other = seeds[result.cell.seed].setdefault(column, value)
            if other != value:
                raise HypvisionError(
                    f"There are two results of '{result.cell.key}' with the same settings, which "
                    f"differ ({column}: {other:.2f} and {value:.2f}). Remove one of the folders."
                )
    return dict(seeds)


def _note(results: Sequence[Result]) -> str:
    """Return how trainings differ from the usual one, in words; the empty string if they do not."""
    taught = [result.settings for result in results if result.transductive]
    notes = {
        "transductive": bool(taught),
        "own teacher": any((own.teacher or {}).get("clip") == own.clip for own in taught),
        "chosen on test images": any(result.selection == "best_val" for result in results),
    }
    images = {result.training_images for result in results} - {""}
    return ", ".join([*(text for text, holds in notes.items() if holds), *sorted(images)])


def _over(rows: Iterable[Mapping[str, float]]) -> tuple[Metrics, Metrics]:
    """Return the mean of each column, and the standard deviation of columns with several values;
    the harmonic mean is that of the averaged accuracies."""
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for column, value in row.items():
            values[column].append(value)
    mean = {column: statistics.fmean(own) for column, own in values.items()}
    std = {column: statistics.stdev(own) for column, own in values.items() if len(own) > 1}
    if "HM" in mean:
        mean["HM"] = harmonic(mean["base"], mean["new"])
    return mean, std


def _known(protocol: str, method: str, dataset: str) -> Metrics:
    dataset = dataset.removesuffix(" (source)")
    if protocol == "base2new":
        pair = published.BASE_TO_NEW.get(method, {}).get(dataset)
        if pair is not None:
            return dict(base=pair[0], new=pair[1], HM=harmonic(*pair))
        if dataset == "average" and method in published.HARMONIC:
            return dict(HM=published.HARMONIC[method])
        return {}
    if protocol == "shots":
        known = published.SHOTS.get(method, {}) if dataset == "average" else {}
        return {f"{shots} shots": value for shots, value in known.items()}
    table = published.CROSS_DATASET if protocol == "cross" else published.DOMAIN
    value = table.get(method, {}).get(dataset)
    return {} if value is None else dict(accuracy=value)


def _averages(protocol: str, rows: Sequence[Row], foreign: Container[str]) -> list[Row]:
    """Return a row of averages for each method with several data sets that have a column in
    common."""
    found = []
    for method in dict.fromkeys(row.method for row in rows):
        own = [row for row in rows if row.method == method and not row.dataset.endswith("(source)")]
        columns = set.intersection(*({*row.mean} for row in own)) if own else set()
        if len(own) > 1 and columns:
            found.append(_average(protocol, own, columns, method in foreign))
    return found


def _average(protocol: str, rows: Sequence[Row], columns: set[str], foreign: bool) -> Row:
    """Return the row of averages of a method over its data sets; ``foreign``: its cells do not
    compare with published results."""
    method = rows[0].method
    mean, _ = _over(_only(columns, row.mean) for row in rows)
    # Published averages are over all data sets of the benchmark: compare only the average over
    # the same sets.
    every = {"cross": CROSS, "dg": DOMAINS}.get(protocol, SETS)
    whole = {row.dataset for row in rows} == {*every}
    known = _known(protocol, method, "average") if whole and not foreign else {}
    steps = tuple(sorted({count for row in rows for count in row.steps}))
    seeds = _average_seeds(rows, columns)
    std = _only(columns, _over(seeds.values())[1])
    count = min(row.seeds for row in rows)
    return Row(method, "average", count, mean, std, known, steps, rows[0].note, seeds)


def _average_seeds(rows: Sequence[Row], columns: set[str]) -> dict[int, Metrics]:
    """Return the averages of each seed; an empty dict, and so no standard deviation, if the data
    sets do not have the same seeds."""
    seeds = rows[0].of_seeds.keys()
    alike = all(row.of_seeds.keys() == seeds for row in rows)
    measured = (values for row in rows for values in row.of_seeds.values())
    if not alike or not all(columns <= values.keys() for values in measured):
        return {}
    return {seed: _over(row.of_seeds[seed] for row in rows)[0] for seed in seeds}


def _only(columns: Container[str], values: Mapping[str, float]) -> Metrics:
    return {column: value for column, value in values.items() if column in columns}


# Writing tables and curves
# --------------------------------------------------------------------------------------------------


def _columns(rows: Sequence[Row]) -> list[str]:
    seen = dict.fromkeys(column for row in rows for column in row.mean)
    return (
        sorted(seen, key=lambda c: int(c.split()[0]))
        if all(c.endswith(" shots") for c in seen)
        else list(seen)
    )


def markdown(protocol: str, rows: Sequence[Row]) -> str:
    """Return a protocol's rows as a table in Markdown, with published values in brackets."""
    columns = _columns(rows)
    lines = []
    for row in rows:
        name = row.method + (f" ({row.note})" if row.note else "")
        about = [name, row.dataset, str(row.seeds), "/".join(map(str, row.steps))]
        lines.append(about + [_cell(row, column) for column in columns])
    right = ("seeds", "steps", *columns)
    table = markdown_table(("method", "data set", *right), lines, right)
    return "\n".join([f"### {protocol}", "", *table])


def _cell(row: Row, column: str) -> str:
    if column not in row.mean:
        return ""
    spread = f" ± {row.std[column]:.2f}" if column in row.std else ""
    known = f" ({row.known[column]:.2f})" if column in row.known else ""
    return f"{row.mean[column]:.2f}{spread}{known}"


def compared(rows: Sequence[Row]) -> list[str]:
    """Return sentences that compare methods with what they must beat, zero-shot recognition and the
    linear probe: one for each row that is below one of them, or one that says that none is; and one
    that names the data sets without a baseline."""
    baselines = [row for row in rows if row.method.split()[0] in _BASELINES]
    methods = [row for row in rows if row not in baselines]
    lower = []
    known = set()
    for row, base in itertools.product(methods, baselines):
        pairs = _pairs(row, base)
        if pairs:
            known.add(row.dataset)
        lower += _below(row, base, pairs)
    found = []
    if known:
        found = ["Below a baseline:", *lower] if lower else ["No method is below its baselines."]
    return found + _without_baseline({row.dataset for row in methods} - known)


def _below(row: Row, base: Row, pairs: Sequence[tuple[str, float, float]]) -> list[str]:
    """Return a line with the columns in which a row is below a baseline, if there are any."""
    lower = [f"{name} {own:.2f} < {other:.2f}" for name, own, other in pairs if own < other]
    where = f"- {row.method} on {row.dataset}"
    return [f"{where}: {', '.join(lower)}, {base.method}."] if lower else []


def _without_baseline(datasets: set[str]) -> list[str]:
    """Return a sentence on data sets without a baseline in the table, if there are any."""
    where = ", ".join(sorted(datasets))
    run = f"run --method {' '.join(_BASELINES)}, too."
    return [f"To know what a method gains on {where} {run}"] if datasets else []


_BASELINES = ("zeroshot", "linear-probe")


def _pairs(row: Row, base: Row) -> list[tuple[str, float, float]]:
    """Return the columns that a row shares with a baseline, with both values; a zero-shot method
    has one result for all numbers of shots."""
    if row.dataset != base.dataset:
        return []
    values = dict(base.mean)
    if base.method.startswith("zeroshot") and all(name.endswith(" shots") for name in values):
        values = dict.fromkeys(row.mean, next(iter(values.values())))
    pairs = [(name, own, values[name]) for name, own in row.mean.items() if name in values]
    return [pair for pair in pairs if math.isfinite(pair[1]) and math.isfinite(pair[2])]


def comma_separated(rows: Sequence[Row]) -> str:
    """Return rows as a table in CSV: mean, deviation and published value of each column."""
    columns = _columns(rows)
    head = ["method", "note", "dataset", "seeds", "steps"]
    head += [f"{c}{s}" for c in columns for s in ("", " std", " published")]
    lines: list[Sequence[object]] = [head]
    for row in rows:
        numbers = [
            part.get(column, "") for column in columns for part in (row.mean, row.std, row.known)
        ]
        lines.append(
            [row.method, row.note, row.dataset, row.seeds, "/".join(map(str, row.steps)), *numbers]
        )
    return csv_text(lines)


def draw_shots(rows: Sequence[Row], path: StrPath) -> None:
    """Draw accuracy against shots: a line for each method, horizontal for zero-shot, dotted for
    published averages; a method without an average has a line for each data set."""
    plt = require("matplotlib.pyplot", "viz")
    averaged = {row.method for row in rows if row.dataset == "average"}
    figure, axes = plt.subplots(figsize=(6, 4))
    ticks: set[int] = set()
    for row in rows:
        name = row.method
        if row.dataset != "average":
            if name in averaged:
                continue
            name = f"{name}, {row.dataset}"
        found = _by_shots(row.mean)
        ticks |= found.keys()
        # A zero-shot method has one result for all numbers of shots.
        if row.method.startswith("zeroshot"):
            axes.axhline(found[min(found)], color="0.4", ls="--", label=name)
            continue
        (line,) = axes.plot(*zip(*sorted(found.items())), marker="o", label=name)
        if row.known:
            known = zip(*_by_shots(row.known).items())
            axes.plot(*known, ":", color=line.get_color(), label=f"{name}, published")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(ticks), [str(k) for k in sorted(ticks)])
    axes.set_xlabel("images of a class")
    axes.set_ylabel("accuracy / %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    save_figure(figure, path, dpi=150, bbox_inches="tight")
    plt.close(figure)


def _by_shots(columns: Mapping[str, float]) -> dict[int, float]:
    """Return the values of columns such as ``"4 shots"`` by their number of shots."""
    return {int(column.split()[0]): value for column, value in columns.items()}


def write_tables(folder: StrPath, out: StrPath | None = None) -> str:
    """Write ``PROTOCOL.md``, ``PROTOCOL.csv`` and the curve of the protocol ``shots`` for a results
    folder, and return all tables in Markdown."""
    out = Path(out or folder)
    texts = []
    for protocol, rows in tables(read_results(folder)).items():
        texts.append("\n".join([markdown(protocol, rows), "", *compared(rows)]))
        write_text(out / f"{protocol}.md", texts[-1] + "\n")
        write_text(out / f"{protocol}.csv", comma_separated(rows))
        if protocol == "shots":
            draw_shots(rows, out / "shots.png")
    return "\n\n".join(texts)

"""Tables and curves of a few-shot results folder: means and deviations over seeds, averages, and what was published.

The harmonic mean of an average is that of the averaged accuracies, as it is published; the mean of harmonic means
would be another number.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypvision.data.fewshot.layouts import SETS
from hypvision.errors import HypvisionError, require
from hypvision.files import csv_text, read_json, replacing, write_text
from hypvision.tasks import few_shot_published as published

__all__ = ["Row", "draw_shots", "harmonic", "read_results", "tables", "write_tables"]


class Row(NamedTuple):
    """A line of a table: a method on a data set, with mean and deviation over seeds by column, and published values.

    ``steps`` are the numbers of steps of its trainings, ``note`` says how it was trained otherwise than others.
    """

    method: str
    dataset: str
    seeds: int
    mean: dict[str, float]
    std: dict[str, float]
    known: dict[str, float]
    steps: tuple[int, ...] = ()
    note: str = ""


def harmonic(base: float, new: float) -> float:
    """``2 b n / (b + n)``; 0 if either is."""
    return 2 * base * new / (base + new) if base > 0 and new > 0 else 0.0


def read_results(folder: str | Path) -> list[dict[str, Any]]:
    """All finished cells below a folder.

    Raises:
        HypvisionError: there are none, or a damaged one.
    """
    paths = sorted(Path(folder).glob("**/result.json"))
    if not paths:
        raise HypvisionError(f"There are no results (result.json) in '{folder}'. Give the --out of a few-shot run.")
    found = []
    for path in paths:
        try:
            cell = read_json(path)
            found.append(dict(cell["cell"], accuracy={k: float(v) for k, v in cell["accuracy"].items()}, about=cell))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise HypvisionError(
                f"The result '{path}' is damaged ({error}). Remove it: its cell will run again."
            ) from error
    return found


def tables(results: Iterable[Mapping[str, Any]]) -> dict[str, list[Row]]:
    """Tables by protocol, in the order of the benchmark; a row ``average`` where a method has several data sets."""
    groups: dict[str, dict[tuple[str, str], list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    about: dict[str, dict[tuple[str, str], list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for cell in results:
        protocol = cell["protocol"]
        for dataset, values in _by_dataset(cell):
            groups[protocol][_name(cell), dataset].append(values)
            about[protocol][_name(cell), dataset].append(cell.get("about", {}))
    found = {}
    for protocol, rows in groups.items():
        lines = [_row(protocol, *key, cells)._replace(**_told(about[protocol][key])) for key, cells in rows.items()]
        lines.sort(key=lambda row: (row.method, _place(row.dataset)))
        found[protocol] = [*_averages(protocol, lines), *lines]
    return found


def _name(cell: Mapping[str, Any]) -> str:
    """The method, with the options of LatHAdapter that are not its defaults: ablations are rows of their own."""
    options = cell.get("about", {}).get("settings", {}).get("adapter") or {}
    words = [f"{key}={value}" for key, value in options.items()] if cell["method"].endswith("+lath") else []
    return " ".join([cell["method"], *words])


def _place(dataset: str) -> tuple[int, str]:
    return (SETS.index(dataset), "") if dataset in SETS else (len(SETS), dataset)


def _by_dataset(cell: Mapping[str, Any]) -> Iterable[tuple[str, dict[str, float]]]:
    """What a cell says of which data sets, by column."""
    values = cell["accuracy"]
    if cell["protocol"] == "base2new":
        yield cell["dataset"], dict(values, HM=harmonic(values["base"], values["new"]))
    elif cell["protocol"] == "shots":
        yield cell["dataset"], {f"{cell['shots']} shots": values["all"]}
    elif "all" in values:  # PromptKD, on each target
        yield cell["dataset"], {"accuracy": values["all"]}
    else:
        for dataset, value in values.items():
            yield (dataset if dataset != cell["dataset"] else f"{dataset} (source)"), {"accuracy": value}


def _row(protocol: str, method: str, dataset: str, cells: Sequence[Mapping[str, float]]) -> Row:
    values: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        for column, value in cell.items():
            values[column].append(value)
    mean = {column: statistics.fmean(own) for column, own in values.items()}
    std = {column: statistics.stdev(own) if len(own) > 1 else 0.0 for column, own in values.items()}
    if "HM" in mean:
        mean["HM"] = harmonic(mean["base"], mean["new"])
    return Row(method, dataset, max(map(len, values.values())), mean, std, _known(protocol, method, dataset))


def _told(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Steps and note of a row."""
    settings = [cell.get("settings", {}) for cell in cells]
    own = any(s.get("teacher") and s["teacher"].get("clip") == s.get("clip") for s in settings)
    transductive = any(cell.get("transductive") for cell in cells)
    notes = [text for holds, text in ((transductive, "transductive"), (transductive and own, "own teacher")) if holds]
    notes += sorted({cell["training_images"] for cell in cells if cell.get("training_images")})
    steps = {int(cell["steps"]) for cell in cells if "steps" in cell}
    return dict(steps=tuple(sorted(steps)), note=", ".join(notes))


def _known(protocol: str, method: str, dataset: str) -> dict[str, float]:
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


def _averages(protocol: str, rows: Sequence[Row]) -> list[Row]:
    found = []
    for method in dict.fromkeys(row.method for row in rows):
        own = [row for row in rows if row.method == method and not row.dataset.endswith("(source)")]
        if len(own) < 2:
            continue
        columns = [column for column in own[0].mean if all(column in row.mean for row in own)]
        mean = {column: statistics.fmean(row.mean[column] for row in own) for column in columns}
        if "HM" in mean:
            mean["HM"] = harmonic(mean["base"], mean["new"])
        # Published averages are over all data sets of the benchmark: beside fewer they would mislead.
        names = {row.dataset for row in own}
        whole = names >= set(SETS if protocol in ("base2new", "shots") else ())
        known = _known(protocol, method, "average") if whole and protocol in ("base2new", "shots") else {}
        if protocol in ("cross", "dg") and len(own) == {"cross": 10, "dg": 4}[protocol]:
            known = _known(protocol, method, "average")
        steps = tuple(sorted({count for row in own for count in row.steps}))
        found.append(Row(method, "average", min(row.seeds for row in own), mean, {}, known, steps, own[0].note))
    return found


# Writing --------------------------------------------------------------------------------------------------------------


def _columns(rows: Sequence[Row]) -> list[str]:
    seen = dict.fromkeys(column for row in rows for column in row.mean)
    return sorted(seen, key=lambda c: int(c.split()[0])) if all(c.endswith(" shots") for c in seen) else list(seen)


def markdown(protocol: str, rows: Sequence[Row]) -> str:
    """A table in Markdown; published values in brackets."""
    columns = _columns(rows)
    lines = [f"### {protocol}", "", f"| method | data set | seeds | steps | {' | '.join(columns)} |"]
    lines.append("|---|---|--:|--:|" + "--:|" * len(columns))
    for row in rows:
        cells = []
        for column in columns:
            text = f"{row.mean[column]:.2f}" if column in row.mean else ""
            if column in row.std and row.seeds > 1:
                text += f" ± {row.std[column]:.2f}"
            cells.append(f"{text} ({row.known[column]:.2f})" if column in row.known and text else text)
        name, steps = row.method + (f" ({row.note})" if row.note else ""), "/".join(map(str, row.steps))
        lines.append(f"| {name} | {row.dataset} | {row.seeds} | {steps} | {' | '.join(cells)} |")
    return "\n".join(lines)


def comma_separated(rows: Sequence[Row]) -> str:
    """A table as csv: mean, deviation and published value of each column."""
    columns = _columns(rows)
    head = ["method", "note", "dataset", "seeds", "steps"]
    head += [f"{c}{s}" for c in columns for s in ("", " std", " published")]
    cells = [[part.get(column, "") for column in columns for part in (row.mean, row.std, row.known)] for row in rows]
    abouts = [[row.method, row.note, row.dataset, row.seeds, "/".join(map(str, row.steps))] for row in rows]
    lines = [[*about, *values] for about, values in zip(abouts, cells)]
    return csv_text([head, *lines])


def draw_shots(rows: Sequence[Row], path: str | Path) -> None:
    """The curve of accuracy over shots, a line a method; published averages dotted."""
    plt = require("matplotlib.pyplot", "viz")
    averages = [row for row in rows if row.dataset == "average"] or list(rows)
    figure, axes = plt.subplots(figsize=(6, 4))
    for row in averages:
        shots = sorted(int(column.split()[0]) for column in row.mean)
        name = row.method if row.dataset == "average" else f"{row.method}, {row.dataset}"
        (line,) = axes.plot(shots, [row.mean[f"{k} shots"] for k in shots], marker="o", label=name)
        if known := {int(column.split()[0]): value for column, value in row.known.items()}:
            axes.plot(list(known), list(known.values()), ":", color=line.get_color(), label=f"{name}, published")
    axes.set_xscale("log", base=2)
    ticks = sorted({int(column.split()[0]) for row in averages for column in row.mean})
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.set_xlabel("images of a class")
    axes.set_ylabel("accuracy / %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, bbox_inches="tight")
    plt.close(figure)


def write_tables(folder: str | Path, out: str | Path | None = None) -> str:
    """Write ``PROTOCOL.md``, ``PROTOCOL.csv`` and the shots curve of a results folder.

    Args:
        folder: of the results.
        out: where to write; default: there.

    Returns:
        All tables in Markdown.
    """
    out, texts = Path(out or folder), []
    for protocol, rows in tables(read_results(folder)).items():
        texts.append(markdown(protocol, rows))
        write_text(out / f"{protocol}.md", texts[-1] + "\n")
        write_text(out / f"{protocol}.csv", comma_separated(rows))
        if protocol == "shots":
            draw_shots(rows, out / "shots.png")
    return "\n\n".join(texts)

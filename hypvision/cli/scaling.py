"""``hypvision scaling``: the toy model of superposition, its figures, and the same measures on
language models."""

from __future__ import annotations

import itertools
import sys
from argparse import Namespace
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from hypvision.cli.arguments import (
    Parser,
    add_device_argument,
    device_of,
    number,
    whole,
)
from hypvision.cli.submit import Cell, add_submit_arguments, run_cells, submit_options
from hypvision.io.errors import HypvisionError, require
from hypvision.io.files import check_regular, why_no_file, write_table

_USUAL = "a usual name"  # what was asked for, in heads.csv, if it was no tensor


def add_scaling_run_arguments(parser: Parser) -> None:
    parser.add("subjects FIGURE...", "quick, fig1, fig3 to fig8")
    _add_out(parser)
    for name, text in (
        ("alphas", "exponents of the frequencies"),
        ("decays", "decays gamma; below 0 they are growth"),
        ("densities", "densities of active features, from 0 to 1"),
    ):
        parser.add(f"--{name} X...", f"only these {text}", number)
    text = "these widths m instead of the figure's; others than the paper's are marked"
    parser.add("--widths M...", text, whole(1, 2**16))
    parser.add("--replicates N", "models a point", whole(1, 1000), 1)
    text = "of first weights and batches; a folder has results of one seed"
    parser.add("--seed N", text, whole(0, 2**31), 0)
    for name, least, text in (
        ("features", 2, "features n"),
        ("steps", 1, "steps of a training"),
        ("batch", 1, "samples of a step"),
    ):
        text = f"{text} instead of the figure's; the results are marked"
        parser.add(f"--{name} N", text, whole(least, 2**24))
    text = "figures 3 to 7 with the models of quick, a fiftieth of the work; the results are marked"
    parser.add("--tiny", text)
    parser.add("--independent", "first weights and batches of its own for every point")
    parser.add("--losses CSV", "fig1, fig8: losses of language models, as for fit")
    add_device_argument(parser)
    add_submit_arguments(parser)


def add_scaling_heads_arguments(parser: Parser) -> None:
    text = (
        "checkpoints (a file, a folder, USER/REPO on the hub), csv tables of them (family, model, "
        "head, m), or paper for its 27"
    )
    parser.add("subjects CHECKPOINT...", text)
    _add_out(parser)
    parser.add("--tensor NAME", "the name of the tensor, if it has an unusual one")
    add_submit_arguments(parser)


def add_scaling_tokens_arguments(parser: Parser) -> None:
    parser.add("subjects FILE...", "text files, or .npy files of ids")
    _add_out(parser)
    parser.add("--tokenizer JSON", "of texts: tokenizer.json of Hugging Face's tokenizers")


def add_scaling_fit_arguments(parser: Parser) -> None:
    parser.add("subjects CSV...", "csv files with family, dataset, m and loss")
    _add_out(parser)


def _add_out(parser: Parser) -> None:
    text = "folder of results, which a second run takes up"
    parser.add("--out DIR", text, default="scaling", output="folder")


def run_scaling_run(args: Namespace) -> None:
    figures = {name: _chosen(args, name) for name in args.subjects if name != "fig8"}
    for name, chosen in figures.items():
        first = next(iter(figures))
        if replace(chosen.settings, shortened="") != replace(figures[first].settings, shortened=""):
            raise HypvisionError(
                f"{first} and {name} are of different grids. Run each with its own --out."
            )
    for name in args.subjects:
        _run_fig8(args) if name == "fig8" else _run_figure(args, name, figures[name])


def run_scaling_tokens(args: Namespace) -> None:
    _check_stems(args.subjects)
    for subject in args.subjects:
        _run_tokens(args, subject)


def run_scaling_fit(args: Namespace) -> None:
    _check_stems(args.subjects)
    for subject in args.subjects:
        _run_fit(args, subject)


def _check_stems(paths: list[str]) -> None:
    """Refuse files whose tables would have the same name."""
    stems = [Path(path).stem for path in paths]
    for stem in stems:
        if stems.count(stem) > 1:
            raise HypvisionError(
                f"There are {stems.count(stem)} files '{stem}'. Give each an --out of its own."
            )


def _device(args: Namespace) -> str:
    """Where the cells are submitted from there need not be a GPU; cells without one fail by
    themselves."""
    return args.device if args.submit and args.device else device_of(args)


def _chosen(args: Namespace, name: str) -> Any:
    """The trainings of a figure, checked before they start, because they take hours."""
    from hypvision.scaling.experiments import experiment, narrowed
    from hypvision.scaling.sweep import open_results

    require("matplotlib", "viz")
    chosen = narrowed(
        experiment(name, _device(args) != "cpu", args.tiny, args.widths), args.alphas, args.decays,
        args.densities, args.replicates, args.steps, args.batch, args.features, args.seed,
        args.independent,
    )  # fmt: skip
    if not chosen.points:
        raise HypvisionError(
            f"No point of {name} has all of these values. Leave out one of the options."
        )
    if name == "fig1":
        _losses(args)
    # raises an error if the folder has results of another grid
    open_results(args.out, chosen.settings)
    return chosen


def _run_figure(args: Namespace, name: str, chosen: Any) -> None:
    from hypvision.scaling.claims import claims_of, claims_of_language_models, exponents
    from hypvision.scaling.experiments import groups, marked
    from hypvision.scaling.figures import draw
    from hypvision.scaling.sweep import Point, finished, open_results, read_rows, train, weights_of

    losses, fit = _losses(args) if name == "fig1" else ([], None)
    device = _device(args)
    settings = chosen.settings
    gpu = device != "cpu"
    folder = open_results(args.out, settings)
    cells = groups(chosen.points, gpu)
    outcome = run_cells(
        [
            Cell(key, train, (str(folder), points, settings, device))
            for key, points in cells.items()
        ],
        finished=lambda key: finished(folder, cells[key]),
        folder=folder / "jobs",
        **submit_options(args),
    )
    # Another figure may have trained the point with other widths, so mark rows by the settings of
    # this figure.
    rows = [row | {"shortened": settings.shortened} for row in read_rows(folder, chosen.points)]
    if rows:
        write_table(folder / f"{name}.csv", rows)
        found = exponents(rows)
        names = ("distribution", "alpha", "density", "decay")
        table = [
            dict(zip(names, key))
            | dict(
                exponent=one.mean, error_fit=one.error_fit, error_seeds=one.error_seeds, r2=one.r2
            )
            | dict(points=one.fits[0].points, replicates=len(one.fits))
            for key, one in found.items()
        ]
        if table:
            write_table(folder / f"{name}_exponents.csv", table)

        def weights(row: dict[str, Any]):
            point = Point(**{field: row[field] for field in asdict(chosen.points[0])})
            try:
                return weights_of(folder, point, settings)[0]
            except HypvisionError as error:  # a panel without data does not stop the other panels
                print(f"{name}: a panel is empty. {error}", file=sys.stderr)

        figures = draw(name, rows, folder, weights, losses=losses, fit=fit, scan=chosen.scan)
        print(
            f"{name}: {chosen.shows}. {len(rows)} of {len(chosen.points)} points; "
            f"{_names(folder, name, figures)}"
        )
        if settings.shortened:
            print(marked(settings.shortened))
        claims: list[Any] = [
            *claims_of(name, rows, chosen.scan),
            *claims_of_language_models([], fit),
        ]
        for claim in claims or [
            "open: these points tell nothing of the claims (an exponent takes three widths)"
        ]:
            print(claim)
    outcome.check()


def _names(folder: Path, name: str, figures: list[Path]) -> str:
    return ", ".join(map(str, (folder / f"{name}.csv", *figures)))


def run_scaling_heads(args: Namespace) -> None:
    """``scaling heads`` from parsed arguments; prints a line for each head."""
    heads = list(itertools.chain(*(_heads_of(subject, args.tensor) for subject in args.subjects)))
    wanted = {f"{name} ({tensor})" if tensor else name: (name, tensor) for name, tensor in heads}
    path = Path(args.out, "heads.csv")
    rows = {(row["model"], row["tensor"]): row for row in _read_heads(path)}
    known = {key: _known_head(rows, *subject) for key, subject in wanted.items()}
    before = {key: row for key, row in known.items() if row is not None}

    def keep(key: str, row: dict[str, Any]) -> None:
        rows[row["model"], row["tensor"]] = row
        write_table(path, list(rows.values()))

    outcome = run_cells(
        [Cell(key, measure_head, subject) for key, subject in wanted.items()],
        finished=before.__contains__,
        folder=Path(args.out, "jobs"),
        unit="model",
        arrived=keep,
        **submit_options(args),
    )
    for key in wanted:
        row = outcome.results.get(key) or before.get(key)
        if row:
            print(_head_text(row) + (f" (of an earlier call, in {path})" if key in before else ""))
    outcome.check()


def _head_text(row: dict[str, Any]) -> str:
    return (
        f"{row['model']}, {row['tensor']}: {row['tokens']:.0f} tokens in {row['m']:.0f} "
        f"dimensions, mean squared overlap {row['overlap_mean']:.3g} = "
        f"{row['overlap_times_m']:.2f}/m, norms {row['norm_min']:.3g} to {row['norm_max']:.3g}"
    )


def _heads_of(subject: str, tensor: str | None) -> list[tuple[str, str | None]]:
    """The checkpoints that a word names, each with the tensor to look at, if one is known."""
    from hypvision.scaling.language_models import paper_models, read_models

    published = paper_models()
    asked: list[tuple[str, str | None]]
    if subject.endswith(".csv"):
        asked = [(row.model, row.head) for row in read_models(subject)]
    elif subject == "paper":
        asked = [(row.model, row.head) for row in published]
    else:
        asked = [(subject, {row.model: row.head for row in published}.get(subject))]
    return [(model, tensor or head) for model, head in asked]


def _known_head(
    rows: dict[tuple[str, str], dict[str, Any]], name: str, tensor: str | None
) -> dict[str, Any] | None:
    """The row of a head that an earlier call has measured."""
    # The tensor of this name is the one, whatever was asked for; earlier versions did not write
    # that.
    if (name, tensor or "") in rows:
        return rows[name, tensor or ""]
    asked = tensor or _USUAL
    same = (row for row in rows.values() if row["model"] == name and row["asked"] == asked)
    return next(same, None)


def measure_head(source: str, tensor: str | None) -> dict[str, Any]:
    """The statistics of the head of one checkpoint, as a row of ``heads.csv``."""

    from hypvision.scaling.language_models import head_name, head_statistics
    from hypvision.scaling.one_tensor import read_tensor

    name, head = read_tensor(source, partial(head_name, wanted=tensor))
    return {"model": source, "tensor": name} | head_statistics(head) | {"asked": tensor or _USUAL}


def _run_tokens(args: Namespace, source: str) -> None:
    from hypvision.scaling.language_models import frequency_exponent

    path = Path(source)
    counts = _counts_of_ids(path) if path.suffix == ".npy" else _counts_of_text(path, args)
    order = counts.argsort(descending=True)
    order = order[counts[order] > 0]
    total = int(counts.sum())
    rows = [
        {"rank": i, "token": int(t), "frequency": int(counts[t]) / total}
        for i, t in enumerate(order, 1)
    ]
    write_table(Path(args.out, f"{path.stem}_tokens.csv"), rows)
    print(
        f"{path}: {total} tokens, {len(rows)} different ones, frequency ~ "
        f"rank^-{frequency_exponent(counts):.3f}"
    )


def _counts_of_ids(path: Path) -> Any:
    """How often each token is in an array of token ids."""
    import numpy as np

    from hypvision.scaling.language_models import token_counts

    try:
        ids = np.load(check_regular(path), mmap_mode="r", allow_pickle=False).reshape(-1)
    except (ValueError, EOFError) as error:
        raise HypvisionError(f"'{path}' is not a NumPy array: {error}.") from error
    if ids.dtype.kind not in "iu" or (
        len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < 2**24
    ):
        raise HypvisionError(
            f"'{path}' has {ids.dtype} numbers; token ids must be integers below 2^24."
        )

    def as_int64(part: Any) -> Any:
        return part.astype(np.int64)

    return token_counts([ids], as_int64)


def _counts_of_text(path: Path, args: Namespace) -> Any:
    """How often each token is in a text."""
    from hypvision.scaling.language_models import token_counts

    if args.tokenizer is None:
        raise HypvisionError(
            f"'{path}' is a text, so its tokens need a tokenizer. Add --tokenizer tokenizer.json."
        )
    tokenizer = _tokenizer(args.tokenizer)
    with open(check_regular(path), encoding="utf-8", errors="replace") as lines:
        return token_counts(
            lines, lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        )


def _tokenizer(path: str) -> Any:

    tokenizers = require("tokenizers", "lm")
    if not Path(path).is_file():
        raise HypvisionError(
            f"{why_no_file(path, 'tokenizer')} Give the tokenizer.json of a model."
        )
    try:
        return tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # tokenizers raises bare exceptions
        raise HypvisionError(f"'{path}' is not a tokenizer.json: {error}.") from error


def _run_fit(args: Namespace, path: str) -> None:
    from hypvision.scaling.language_models import loss_fit, read_losses
    from hypvision.scaling.published import LOSS_FIT

    fit = loss_fit(read_losses(path))
    write_table(
        Path(args.out, f"{Path(path).stem}_fit.csv"),
        [{"group": group, "exponent": fit.exponent, "error": fit.error,
        "free_error": fit.free_error,
          "factor": fit.factor, "offset": offset} for group, offset in fit.offsets.items()],
    )  # fmt: skip
    print(
        f"{path}: {fit.points} losses, L = {fit.factor:.5g} / m^{fit.exponent:.4f} + B, error of "
        f"the exponent {fit.error:.4f} by the paper's formula, {fit.free_error:.4f} with the "
        f"offsets free (as SciPy's curve_fit), mean squared error {fit.mse:.3g} (paper: "
        f"{LOSS_FIT[0]} ± {LOSS_FIT[1]} by its formula, A = {LOSS_FIT[2]})"
    )
    for group, offset in fit.offsets.items():
        print(f"  B of {group}: {offset:.3f}")


def _run_fig8(args: Namespace) -> None:
    from hypvision.scaling.claims import claims_of_language_models
    from hypvision.scaling.figures import draw_language_models
    from hypvision.scaling.published import HEAD_OVERLAPS

    path = Path(args.out, "heads.csv")
    heads = _read_heads(path)
    losses, fit = _losses(args)
    figures = draw_language_models(heads, losses, fit, args.out)
    names = ("model", "m", "overlap_mean", "norm_min")
    table: list[dict[str, Any]] = [
        {"source": "measured"} | {name: row[name] for name in names} for row in heads
    ]
    table += [
        {"source": "paper", "model": family, "m": m, "overlap_mean": overlap}
        for family, points in HEAD_OVERLAPS.items()
        for m, overlap in points
    ]
    write_table(Path(args.out, "fig8.csv"), table)
    print(
        f"fig8: {len(heads)} heads, {len(losses)} losses; {_names(Path(args.out), 'fig8', figures)}"
    )
    if not heads:
        print(f"The overlaps are the paper's: '{path}' is not there. See: hypvision scaling heads")
    for claim in claims_of_language_models(heads, fit):
        print(claim)
    if fit is not None:
        _run_fit(args, args.losses)


def _losses(args: Namespace) -> tuple[list[Any], Any]:
    """The losses of language models and their fit; without, an empty list and None."""
    from hypvision.scaling.language_models import loss_fit, read_losses

    losses = read_losses(args.losses) if args.losses else []
    return losses, loss_fit(losses) if losses else None


def _read_heads(path: Path) -> list[dict[str, Any]]:
    from hypvision.io.records import read_table
    from hypvision.scaling.language_models import Head

    return [row._asdict() for _, row in read_table(Head, path)] if path.exists() else []

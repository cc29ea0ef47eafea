"""``hypvision scaling``: trainings of the toy model of superposition over a grid, and the same
measures on language models."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypvision.io import HypvisionError, Plain, StrPath, between, ensure, explaining, require
from hypvision.io.files import check_regular, why_no_file, write_table

from .arguments import Parser, add_device_argument, add_submit_arguments, device_of, number, whole
from .submit import Cell, Outcome, run_cells, submit_options

if TYPE_CHECKING:
    from hypvision.scaling.fits import Exponent, Setting
    from hypvision.scaling.sweep import Point, Settings

_USUAL = "a usual name"  # entry "asked" of heads.csv if no tensor was named


def add_scaling_run_arguments(parser: Parser) -> None:
    _add_out(parser)
    for name, text, values in (
        ("alphas", "exponents of the frequencies of the distribution power", [1.0]),
        ("decays", "decays gamma; below 0 they are growth", [-1.0, 0.3333]),
        ("densities", "densities of active features, from 0 to 1", [0.0]),
    ):
        shown = " ".join(f"{value:g}" for value in values)
        parser.add(f"--{name} X...", f"{text} (default: {shown})", number, values)
    parser.add(
        "--widths M...",
        "widths m: numbers of hidden units of the models (default: 8 12 18 27 40)",
        whole(1, 2**16),
        [8, 12, 18, 27, 40],
    )
    parser.add(
        "--distribution",
        "distribution of the frequencies",
        default="power",
        choices=("power", "exponential1", "exponential", "linear"),
    )
    parser.add("--features N", "number n of features", whole(2, 2**24), 200)
    parser.add("--batch N", "number of samples in a step", whole(1, 2**24), 512)
    parser.add(
        "--steps N",
        "number of steps of a training, the first tenth of them a warm-up",
        whole(1, 2**24),
        4000,
    )
    add_training_arguments(parser)


def add_training_arguments(parser: Parser) -> None:
    """Add the options of every command that trains the models of a grid."""
    parser.add("--replicates N", "number of models at each point of the grid", whole(1, 1000), 1)
    parser.add(
        "--seed N",
        "seed of first weights and batches; a folder has results of one seed",
        whole(0, 2**31),
        0,
    )
    parser.add("--independent", "give every point its own first weights and batches")
    add_device_argument(parser)
    add_submit_arguments(parser)


def add_scaling_heads_arguments(parser: Parser) -> None:
    parser.add(
        "subjects CHECKPOINT...",
        "checkpoints (a file, a folder, or USER/REPO on the hub), csv tables of checkpoints "
        "(columns family, model, head, m), or the word paper for the paper's 27 models",
    )
    _add_out(parser)
    parser.add("--tensor NAME", "name of the head's tensor, if it is an unusual one")
    add_submit_arguments(parser)


def add_scaling_tokens_arguments(parser: Parser) -> None:
    parser.add("subjects FILE...", "text files, or .npy files of token ids")
    _add_out(parser)
    parser.add("--tokenizer JSON", "for texts: tokenizer.json of Hugging Face's tokenizers")


def add_scaling_fit_arguments(parser: Parser) -> None:
    parser.add("subjects CSV...", "csv files with the columns family, dataset, m and loss")
    _add_out(parser)


def _add_out(parser: Parser) -> None:
    parser.add(
        "--out DIR",
        "folder of results; a second run continues there",
        default="scaling",
        output="folder",
    )


def run_scaling_run(args: Namespace) -> None:
    from hypvision.scaling.figures import draw_sweep
    from hypvision.scaling.fits import exponents
    from hypvision.scaling.sweep import Settings, grid

    require("matplotlib", "viz")
    settings = Settings(
        n=args.features,
        batch=args.batch,
        steps=args.steps,
        warmup=args.steps // 10,
        independent=args.independent,
        seed=args.seed,
    )
    # Names of points have these numbers to four digits, so the points have them, too.
    alphas, decays, densities = (
        [round(value, 4) for value in values]
        for values in (args.alphas, args.decays, args.densities)
    )
    points = list(
        dict.fromkeys(
            grid(alphas, decays, args.widths, densities, args.replicates, args.distribution)
        )
    )
    between(1, settings.n, integer=True, **{f"the width {m}": m for m in args.widths})
    between(0, 1, **{f"the density {s}": s for s in args.densities})
    rows, outcome = train_points(args, points, settings)
    if rows:
        found = exponents(rows)
        write_results(args.out, "sweep", rows, found)
        figures = draw_sweep(rows, found, args.out)
        print(f"{len(rows)} of {len(points)} points; {file_names(args.out, 'sweep', figures)}")
        for (name, alpha, density, decay), one in found.items():
            print(
                f"{name} frequencies, alpha {alpha:g}, density {density:g}, decay {decay:g}: "
                f"loss ~ m^-{one.mean:.2f} ± {one.error:.2f}, R2 {one.r2:.3f}"
            )
        if not found:
            print("A fit of the loss needs at least three widths.")
    outcome.check()


def run_scaling_tokens(args: Namespace) -> None:
    _check_stems(args.subjects)
    for subject in args.subjects:
        _run_tokens(args, subject)


def run_scaling_fit(args: Namespace) -> None:
    _check_stems(args.subjects)
    for subject in args.subjects:
        write_fit(subject, args.out)


def _check_stems(paths: list[str]) -> None:
    """Raise an error for files whose result tables would have the same name."""
    stems = [Path(path).stem for path in paths]
    for stem in stems:
        if stems.count(stem) > 1:
            raise HypvisionError(
                f"There are {stems.count(stem)} files '{stem}', whose tables would have the same "
                "name. Run the command for each of them, with another --out."
            )


def sweep_device(args: Namespace) -> str:
    """Return the device of the trainings. With ``--submit`` this machine need not have the device;
    cells on machines without it fail by themselves."""
    return args.device if args.submit and args.device else device_of(args)


def train_points(
    args: Namespace, points: Sequence[Point], settings: Settings
) -> tuple[list[Plain], Outcome]:
    """Train the points of a grid that have no results in ``args.out`` yet.

    Returns:
        The rows of all points of the grid that have results, and the outcome of the cells, whose
        method ``check`` raises an error if a cell failed.
    """
    from hypvision.scaling.sweep import finished, groups, open_results, read_rows, train

    device = sweep_device(args)
    folder = open_results(args.out, settings)
    cells = groups(points, device != "cpu")
    outcome = run_cells(
        [Cell(key, train, (str(folder), part, settings, device)) for key, part in cells.items()],
        finished=lambda key: finished(folder, cells[key]),
        folder=folder / "jobs",
        **submit_options(args),
    )
    return read_rows(folder, points), outcome


def write_results(
    folder: StrPath, name: str, rows: list[Plain], found: Mapping[Setting, Exponent]
) -> None:
    """Write rows into ``NAME.csv``, and exponents with their settings, if there are any, into
    ``NAME_exponents.csv``."""
    write_table(Path(folder, f"{name}.csv"), rows)
    names = ("distribution", "alpha", "density", "decay")
    table = [
        dict(zip(names, key))
        | dict(exponent=one.mean, error_fit=one.error_fit, error_seeds=one.error_seeds, r2=one.r2)
        | dict(points=one.fits[0].points, replicates=len(one.fits))
        for key, one in found.items()
    ]
    if table:
        write_table(Path(folder, f"{name}_exponents.csv"), table)


def file_names(folder: StrPath, name: str, figures: list[Path]) -> str:
    """Return the file names of a result as a text."""
    return ", ".join(map(str, (Path(folder, f"{name}.csv"), *figures)))


def run_scaling_heads(args: Namespace) -> None:
    """Run ``scaling heads``: measure output heads, and print a line for each."""
    wanted = {}
    for subject in args.subjects:
        for name, tensor in _heads_of(subject, args.tensor):
            wanted[f"{name} ({tensor})" if tensor else name] = (name, tensor)
    path = Path(args.out, "heads.csv")
    rows = {(row["model"], row["tensor"]): row for row in read_heads(path)}
    known = {key: _known_head(rows, *subject) for key, subject in wanted.items()}

    outcome = run_cells(
        [Cell(key, measure_head, subject) for key, subject in wanted.items()],
        finished=lambda key: known[key] is not None,
        folder=Path(args.out, "jobs"),
        unit="model",
        arrived=lambda _, row: _add_head(path, row),
        **submit_options(args),
    )
    for key in wanted:
        row = outcome.results.get(key) or known[key]
        if row:
            earlier = f" (of an earlier call, in {path})" * (key not in outcome.results)
            print(_head_text(row) + earlier)
    outcome.check()


def _add_head(path: Path, row: Plain) -> None:
    """Put a row into the table of heads, in which another call may have written rows meanwhile."""
    from hypvision.checkpoints.download import locked

    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(".heads.lock"), "a row is added to its table"):
        rows = {(other["model"], other["tensor"]): other for other in read_heads(path)}
        rows[row["model"], row["tensor"]] = row
        write_table(path, list(rows.values()))


def _head_text(row: Plain) -> str:
    return (
        f"{row['model']}, {row['tensor']}: {row['tokens']:.0f} tokens in {row['m']:.0f} "
        f"dimensions, mean squared overlap {row['overlap_mean']:.3g} = "
        f"{row['overlap_times_m']:.2f}/m, norms {row['norm_min']:.3g} to {row['norm_max']:.3g}"
    )


def _heads_of(subject: str, tensor: str | None) -> list[tuple[str, str | None]]:
    """Return the checkpoints that a word of the command line names, each with the tensor to look
    at, or None if no tensor is known."""
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


def _known_head(rows: dict[tuple[str, str], Plain], name: str, tensor: str | None) -> Plain | None:
    """Return the row of a head that an earlier call has measured; None if there is none."""
    # A row with this tensor is the right one, however the tensor was asked for; rows of earlier
    # versions do not record that.
    if (name, tensor or "") in rows:
        return rows[name, tensor or ""]
    asked = tensor or _USUAL
    same = (row for row in rows.values() if row["model"] == name and row["asked"] == asked)
    return next(same, None)


def measure_head(source: str, tensor: str | None) -> Plain:
    """Return the statistics of the head of one checkpoint, as a row of ``heads.csv``."""

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
    """Return how often each token occurs in an array of token ids."""
    import numpy as np

    from hypvision.scaling.language_models import token_counts

    with explaining(lambda error: f"'{path}' is not a NumPy array: {error}.", ValueError, EOFError):
        ids = np.load(check_regular(path), mmap_mode="r", allow_pickle=False).reshape(-1)
    if ids.dtype.kind not in "iu" or (
        len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < 2**24
    ):
        raise HypvisionError(
            f"'{path}' has {ids.dtype} numbers, but token ids must be integers from 0 to 2^24 - 1."
        )

    def as_int64(part: Any) -> Any:
        return part.astype(np.int64)

    return token_counts([ids], as_int64)


def _counts_of_text(path: Path, args: Namespace) -> Any:
    """Return how often each token occurs in a text."""
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
    ensure(
        Path(path).is_file(),
        f"{why_no_file(path, 'tokenizer')} Give the tokenizer.json of a model.",
    )
    # tokenizers raises bare exceptions
    with explaining(lambda error: f"'{path}' is not a tokenizer.json: {error}."):
        return tokenizers.Tokenizer.from_file(path)


def write_fit(path: str, folder: StrPath) -> None:
    """Fit a table of losses, write the fit into a folder, and print it."""
    from hypvision.scaling.language_models import loss_fit, read_losses

    fit = loss_fit(read_losses(path))
    write_table(
        Path(folder, f"{Path(path).stem}_fit.csv"),
        [{"group": group, "exponent": fit.exponent, "error": fit.error,
        "free_error": fit.free_error,
          "factor": fit.factor, "offset": offset} for group, offset in fit.offsets.items()],
    )  # fmt: skip
    print(
        f"{path}: {fit.points} losses, L = {fit.factor:.5g} / m^{fit.exponent:.4f} + B, error of "
        f"the exponent {fit.error:.4f} by the paper's formula, {fit.free_error:.4f} with the "
        f"offsets free (as SciPy's curve_fit), mean squared error {fit.mse:.3g}"
    )
    for group, offset in fit.offsets.items():
        print(f"  B of {group}: {offset:.3f}")


def read_heads(path: Path) -> list[Plain]:
    """Return the rows of ``heads.csv``, an empty list if there is no such file."""
    from hypvision.io.records import read_table
    from hypvision.scaling.language_models import Head

    return [row._asdict() for _, row in read_table(Head, path)] if path.exists() else []

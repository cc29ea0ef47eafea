"""The few-shot benchmark: cells of a protocol, each trained, tested and written to its own file.

A cell is a method on a data set with a seed and a number of shots. Its folder below the results
holds ``result.json`` once the cell is finished; until then it holds checkpoints from which the
training can be resumed. ``settings.json`` holds the settings that all cells of a results folder
share.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import MODELS

import hypvision
from hypvision.clip.features import image_features
from hypvision.clip.models import create_clip
from hypvision.clip.open_vocabulary import lacks_words, warn_of_classes
from hypvision.data.fewshot import FewShotDataset
from hypvision.data.fewshot.dataset import intact, load_cell
from hypvision.data.fewshot.layouts import CROSS, DOMAINS, SETS, layout_of
from hypvision.data.fewshot.splits import class_names
from hypvision.engine.checkpoint import NUMBERED, load
from hypvision.engine.hooks import last_checkpoint, network_of
from hypvision.engine.run import train
from hypvision.io import HypvisionError, Metrics, Plain, StrPath, Values
from hypvision.io.files import write_json
from hypvision.io.records import is_number, positive, read_record, rule

from .few_shot import FewShotCLIP, accuracy
from .few_shot_recipes import few_shot_config, host_options, recipe, split_method

# Methods that recognise only the classes of their training.
_SEEN_ONLY = ("linear-probe", "tip-adapter", "tip-adapter-f")
# Methods that learn without steps, before a "training" that takes none.
_FITTED = ("linear-probe", "tip-adapter")
_NOTES = {"imagenet": "Shots are drawn from sorted files."}
_SHOTS: dict[str, tuple[int, ...]] = {"shots": (1, 2, 4, 8, 16)}
_PASSED_ON = (
    "adapter", "amp", "workers", "steps", "epochs", "batch", "views", "cache", "skip_broken",
    "pickles", "best_val",
)  # fmt: skip
_AMP = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}

Protocol = Literal["base2new", "shots", "cross", "dg"]
_Percent = Annotated[
    float, rule("from 0 to 100", lambda value: is_number(value) and 0 <= value <= 100)
]


class CellSpec(NamedTuple):
    """A cell of a protocol: a method as on the command line (``"promptsrc+lath"``), the data set
    that it is trained on, and the shots and the seed that choose its images; ``targets`` are
    further data sets to test on, for ``cross`` and ``dg``."""

    protocol: Protocol
    method: str
    dataset: str
    shots: Annotated[int, positive]
    seed: int
    targets: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Return the cell's folder, relative to the results folder."""
        return f"{self.protocol}/{self.method}/{self.dataset}/{self.shots}shots-seed{self.seed}"


@dataclass(frozen=True)
class Settings:
    """The settings that all cells of a results folder share.

    Attributes:
        clip: arguments of :func:`hypvision.clip.models.create_clip`.
        size: side of the images; None: that of the CLIP.
        steps, epochs, batch: of each training, instead of the published ones.
        adapter, host: further options of LatHAdapter and of the hosts; each host option goes to the
            hosts that have it.
        teacher: PromptKD's teacher, see :class:`hypvision.clip.prompting.promptkd.PromptKD`;
            ``{dataset}``, ``{shots}`` and ``{seed}`` in its ``checkpoint`` are filled in.
        views: see :class:`hypvision.tasks.few_shot.FeatureCacheHook`.
        amp: mixed precision: ``"bf16"``, ``"fp16"`` or None.
        best_val: choose PromptKD's checkpoint on test images, as its code does.
        skip_broken, pickles: see :class:`~hypvision.data.fewshot.FewShotDataset`.
        root: folder of the data sets; ``cache``: folder of stored features; ``workers``: processes
            that read images. These three change no result.
    """

    clip: Plain
    size: int | None = None
    steps: int | None = None
    epochs: int | None = None
    batch: int | None = None
    adapter: Plain | None = None
    host: Plain | None = None
    teacher: Plain | None = None
    views: int | None = None
    amp: Literal["bf16", "fp16"] | None = None
    best_val: bool = False
    skip_broken: bool = False
    root: str = "data"
    cache: str | None = None
    pickles: str | None = None
    workers: int = 0

    @property
    def precision(self) -> str:
        """Return the precision of the trainings: ``amp`` only has an effect on GPUs."""
        return (torch.cuda.is_available() and self.amp) or "fp32"

    def shared(self) -> Plain:
        """Return the settings that results depend on, as plain values."""
        found = {
            key: value
            for key, value in asdict(self).items()
            if key not in ("root", "cache", "workers")
        }
        return json.loads(json.dumps(found))


@dataclass(frozen=True)
class Result:
    """The ``result.json`` of a finished cell: accuracies in percent by the name of what was tested
    (``base``, ``new``, ``all`` or a data set), and how the cell was trained.

    The ``settings`` in the file are only those that can change the result.
    """

    cell: CellSpec
    accuracy: dict[str, _Percent]
    settings: Settings
    steps: int = 0
    epochs: int = 0
    train_seconds: float = 0.0
    seconds: float = 0.0
    parameters: int = 0
    precision: str = "fp32"
    training_images: str = ""
    transductive: bool = False
    selection: str = "last"
    notes: str = ""
    version: str = ""

    def __post_init__(self) -> None:
        needed = {"base2new": {"base", "new"}, "shots": {"all"}}.get(self.cell.protocol, set())
        if not self.accuracy or not needed <= set(self.accuracy):
            raise ValueError(f"'accuracy' has no {' and '.join(sorted(needed)) or 'numbers'}")


def read_result(folder: StrPath) -> Result:
    """Return the result of a finished cell from its folder."""
    return read_record(
        Result, Path(folder, "result.json"), "Remove it: its cell will run again.", extra=True
    )


# Planning the cells
# --------------------------------------------------------------------------------------------------


def plan(
    protocol: Protocol,
    methods: Sequence[str],
    datasets: Sequence[str] | None = None,
    seeds: Sequence[int] = (1, 2, 3),
    shots: Sequence[int] | None = None,
    source: str = "imagenet",
) -> list[CellSpec]:
    """Return the cells of a protocol for methods of
    :func:`hypvision.tasks.few_shot_recipes.methods`: ``"base2new"`` (16 shots), ``"shots"`` (1, 2,
    4, 8, 16), ``"cross"`` or ``"dg"`` (trained on 16 shots of ``source``).

    ``datasets`` are by default those of the benchmark; ``seeds`` choose the shots."""
    datasets = tuple(dict.fromkeys(datasets or {"cross": CROSS, "dg": DOMAINS}.get(protocol, SETS)))
    counts = dict.fromkeys(shots or _SHOTS.get(protocol, (16,)))
    cells = []
    for method in dict.fromkeys(methods):
        name, _ = split_method(method)
        _check_tested_on_seen(method, protocol, name in _SEEN_ONLY)
        # PromptKD is distilled for each target data set, so each target is a cell of its own.
        targets = datasets if protocol in ("cross", "dg") and name != "promptkd" else ()
        cells += [
            CellSpec(protocol, method, dataset, count, seed, targets)
            for seed in dict.fromkeys(seeds)
            for count in counts
            for dataset in ([source] if targets else datasets)
        ]
    _check_training_images(cells)
    return cells


def _check_training_images(cells: Sequence[CellSpec]) -> None:
    for cell in cells:
        if cell.dataset in DOMAINS and cell.method != "zeroshot":
            raise HypvisionError(
                f"{cell.method} would train on '{cell.dataset}', all of whose images are test "
                "images. Leave out this data set, or give --datasets (for cross and dg: --source) "
                "with training images."
            )


def _check_tested_on_seen(method: str, protocol: Protocol, seen_only: bool) -> None:
    if seen_only and protocol != "shots":
        raise HypvisionError(
            f"{method} recognises only the classes that it was trained on, so '{protocol}' cannot "
            "test it. Run hypvision fewshot shots."
        )


def is_finished(results: StrPath, spec: CellSpec) -> bool:
    """Return whether a cell has its result, with all targets of ``spec``."""
    try:
        return set(spec.targets) <= set(read_result(Path(results, spec.key)).accuracy)
    except HypvisionError:
        return False


def check_settings(results: StrPath, settings: Settings) -> None:
    """Write the settings of a results folder, or raise an error if the folder has others."""
    path = Path(results, "settings.json")
    given = settings.shared()
    if not path.is_file():
        write_json(path, given)
        return
    _same_settings(
        results,
        read_record(Plain, path, "Remove the folder, or give another one with --out."),
        given,
    )


def _same_settings(results: StrPath, known: Values, given: Values) -> None:
    different = [key for key in {**known, **given} if known.get(key) != given.get(key)]
    if different:
        differences = "; ".join(
            f"{key}: {known.get(key)!r} there, {given.get(key)!r} here" for key in different
        )
        raise HypvisionError(
            f"The results in '{results}' have other settings ({differences}). Give another --out."
        )


# Training and testing cells
# --------------------------------------------------------------------------------------------------


def run_cell(spec: CellSpec, settings: Settings, results: StrPath) -> Metrics:
    """Train and test one cell and write its result; if the cell has a result already, only further
    targets are tested and added. Returns accuracies in percent by what was tested: ``base`` and
    ``new``; ``all``; or the names of data sets.

    Raises:
        HypvisionError: the results folder, whose trainings would be resumed, has other settings.
    """
    folder = Path(results, spec.key)
    begin = time.perf_counter()
    before = _known_result(folder, settings)
    check_settings(results, settings)
    if before is not None:
        spec = spec._replace(targets=tuple(dict.fromkeys((*before.cell.targets, *spec.targets))))
    config = cell_config(spec, settings)
    name, lath = split_method(spec.method)
    learns = lath or name not in ("zeroshot", *_FITTED)
    steps = 0
    if learns or name in _FITTED:
        if not (folder / f"epoch_{config.train_cfg.max_epochs}.pth").is_file():
            _forget(folder, finished=before is not None)
            before = None
        model, steps = _train(config, folder, settings.best_val)
    else:
        model = MODELS.build(config.model).to(get_device())
    trained = time.perf_counter() - begin
    known, *spent = (
        (before.accuracy, before.train_seconds, before.seconds) if before else ({}, 0, 0)
    )
    found = {**known, **_measure(model, spec, settings, known)}
    report = Result(
        spec,
        found,
        settings,
        train_seconds=round(trained + spent[0], 1),
        seconds=round(time.perf_counter() - begin + spent[1], 1),
        parameters=sum(value.numel() for value in _fitted(model, name)),
        precision=settings.precision,
        transductive=name == "promptkd",
        selection="best_val" if settings.best_val else "last",
        notes=_NOTES.get(spec.dataset, ""),
        version=hypvision.__version__,
    )
    if learns:
        images = _training_images(config, spec)
        epochs = config.train_cfg.max_epochs
        report = replace(report, steps=steps, epochs=epochs, training_images=images)
    write_json(
        folder / "result.json",
        dict(asdict(report), cell=spec._asdict(), settings=settings.shared()),
    )
    return found


def _fitted(model: FewShotCLIP, name: str) -> list[torch.Tensor]:
    """Return what a method has learned; a linear probe does so without a gradient."""
    if name == "linear-probe":
        return list(model.host.learner.parameters())
    return [value for _, value in model.learned()]


def _known_result(folder: Path, settings: Settings) -> Result | None:
    """Return the result of a cell that has finished; None if it has not. Raise an error if it has
    finished with other settings."""
    try:
        found = read_result(folder)
    except HypvisionError:  # the file is missing or damaged
        return None
    _same_settings(folder, found.settings.shared(), settings.shared())
    return found


def _forget(folder: Path, finished: bool) -> None:
    """Remove leftovers of a cell that must begin anew, because its last weights were deleted or it
    has written no checkpoint yet."""
    if finished:
        Path(folder, "last_checkpoint").unlink(missing_ok=True)
    names = [path.name for path in folder.glob("*")]
    if "last_checkpoint" not in names and not any(map(NUMBERED.match, names)):
        for path in folder.glob("best_*.pth"):
            path.unlink()


def _train(config: Config, folder: Path, best_val: bool) -> tuple[FewShotCLIP, int]:
    """Return the trained model of a cell, and the number of steps of its training."""
    runner = train(config, folder, resume="auto")
    model = network_of(runner)
    if best_val:
        best = measured_checkpoint(folder, True)
        assert best is not None, "a training leaves a checkpoint"
        model.load_state_dict(load(best)["state_dict"])
    return model, runner.iter


def measured_checkpoint(folder: StrPath, best_val: bool) -> Path | None:
    """Return the checkpoint of a cell with which its accuracies were measured; None if it was
    deleted."""
    best = Path(folder).glob("best_top1_epoch_*.pth") if best_val else ()
    return max(
        best, key=lambda path: int(path.stem.rpartition("_")[2]), default=last_checkpoint(folder)
    )


def _training_images(config: Config, spec: CellSpec) -> str:
    """Return which images a method behind the frozen image tower was trained on; the empty string
    for other methods, which always see new views."""
    stored = [hook.views for hook in config.custom_hooks if hook.type == "FeatureCacheHook"]
    if stored:
        return f"{stored[0]} kept views" if stored[0] else "kept centre crops"
    name, _ = split_method(spec.method)
    return (
        "new views" if recipe(name, spec.protocol, spec.dataset, spec.shots, 1, 1).features else ""
    )


def cell_config(spec: CellSpec, settings: Settings) -> Config:
    """Return the config of the training of a cell."""
    name, _ = split_method(spec.method)
    subset = "base" if spec.protocol == "base2new" else "all"
    repeat = recipe(name, spec.protocol, spec.dataset, spec.shots, 1, 1).search is not None
    seen = load_cell(
        settings.root, spec.dataset, spec.shots, spec.seed, subset, settings.pickles, repeat
    )
    every = load_cell(settings.root, spec.dataset, None, spec.seed)
    images = every.train if name == "promptkd" else seen.train
    images = intact(images) if settings.skip_broken else images
    sizes = dict(
        classes=len({item.label for item in seen.train}),
        images=len(images),
        total_classes=len(class_names(every.train)),
    )
    return Config(_options(spec, settings, _teacher(spec, settings), **sizes))


def check_methods(specs: Sequence[CellSpec], settings: Settings) -> None:
    """Check the names of the data sets, build each method once, without data, and compare class
    names with what the CLIP knows, so that an error or a warning comes before the first cell
    runs."""
    for name in dict.fromkeys(name for spec in specs for name in (spec.dataset, *spec.targets)):
        layout_of(name, settings.root)
    models = [
        _options(spec, settings, _untrained(_teacher(spec, settings)), classes=2, images=2)["model"]
        for spec in {spec.method: spec for spec in specs}.values()
    ]
    clip = create_clip(**settings.clip)
    for dataset in dict.fromkeys(spec.dataset for spec in specs) if lacks_words(clip.model) else ():
        with suppress(HypvisionError):  # missing data: only the cells of this data set will fail
            names = class_names(load_cell(settings.root, dataset, None, 1).train)
            warn_of_classes(clip.model, clip.tokenizer, names, dataset)
    for model in models:
        FewShotCLIP(deepcopy(clip), model["host"], model["adapter"])


def _untrained(teacher: Plain | None) -> Plain:
    """Return PromptKD's teacher without its checkpoint, or nothing."""
    return {key: value for key, value in (teacher or {}).items() if key != "checkpoint"}


def _options(spec: CellSpec, settings: Settings, teacher: Plain | None, **sizes: Any) -> Plain:
    """Return the options of a cell's config, for data of these sizes."""
    taken = host_options(spec.method)
    host = {option: value for option, value in (settings.host or {}).items() if option in taken}
    seen_only = bool(host.get("per_class"))
    _check_tested_on_seen(f"{spec.method} with per_class", spec.protocol, seen_only)
    if teacher:
        host["teacher"] = teacher
    return few_shot_config(
        spec.method,
        spec.protocol,
        settings.root,
        spec.dataset,
        spec.shots,
        spec.seed,
        settings.clip,
        settings.size,
        host=host,
        **sizes,
        **{name: getattr(settings, name) for name in _PASSED_ON},
    )


def _teacher(spec: CellSpec, settings: Settings) -> Plain | None:
    """Return PromptKD's teacher with its checkpoint's path filled in; None for other methods."""
    if split_method(spec.method)[0] != "promptkd":
        return None
    if settings.teacher is None:
        raise HypvisionError(
            "PromptKD needs --teacher CHECKPOINT, from a PromptSRC training on the same classes; "
            "{dataset}, {shots} and {seed} in the path are filled in."
        )
    found = json.loads(json.dumps(settings.teacher))
    fields = {name: getattr(spec, name) for name in ("dataset", "shots", "seed")}
    try:
        found["checkpoint"] = found["checkpoint"].format(**fields)
    except (LookupError, ValueError, AttributeError) as error:
        raise HypvisionError(
            f"--teacher '{found['checkpoint']}' cannot be filled in ({error}). Braces may "
            f"contain: {', '.join(fields)}."
        ) from error
    return found


def _measure(
    model: FewShotCLIP, spec: CellSpec, settings: Settings, known: Mapping[str, float]
) -> Metrics:
    """Return the accuracies of a cell that are not in ``known``."""
    tests: Mapping[str, tuple[str, str]] = {"all": (spec.dataset, "all")}
    if spec.protocol == "base2new":
        tests = {part: (spec.dataset, part) for part in ("base", "new")}
    elif spec.targets:
        tests = {name: (name, "all") for name in (spec.dataset, *spec.targets)}
    found = {}
    for key in [key for key in tests if key not in known]:
        data = tested_images(*tests[key], spec, settings)
        stored = settings.cache is not None and model.host.feature_inputs
        features = image_features(model.host, data, folder=settings.cache)[0] if stored else None
        found[key] = accuracy(model, data, 100, settings.workers, _AMP[settings.amp], features)
    return found


def tested_images(name: str, subset: str, spec: CellSpec, settings: Settings) -> FewShotDataset:
    """Return the test images of a data set, or of a subset of its classes, as a cell sees them."""
    options: Plain = dict(size=settings.size, skip_broken=settings.skip_broken)
    return FewShotDataset(settings.root, name, "test", None, spec.seed, subset, **options)

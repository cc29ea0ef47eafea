"""Make a record of the zoo from the checkpoint of a training (``hypvision zoo publish``).

The checkpoint is measured, and so is the file made from it, in a fresh process that finds the file
as users do, through the zoo's index. The record is written only if the two measurements agree, with
the numbers of the file.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.registry import DATASETS
from safetensors.torch import load_file
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from hypvision.checkpoints.download import file_sha256
from hypvision.checkpoints.index import (
    parse_record,
    parse_yaml,
    read_index,
    with_record,
    write_index,
)
from hypvision.checkpoints.language import Language, language_of
from hypvision.checkpoints.read import read
from hypvision.checkpoints.records import Index, Record
from hypvision.checkpoints.storage import (
    expand_tokens,
    read_header,
    trim_tokens,
    write_tensors,
    write_weights,
)
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.clip.hyperbolic_checkpoint import PIXELS
from hypvision.clip.models import ARCHITECTURES, MEAN, RESIZING, STD, architecture, pixels_of
from hypvision.data.classes import checked_templates, load_classes
from hypvision.data.image_folder import imagenet_classes, unrecorded
from hypvision.engine.config import Run, load_config, parse_options
from hypvision.engine.hooks import take_templates
from hypvision.inference.sources import find_files
from hypvision.io import HypvisionError, Metrics, Plain, StrPath, Values, ensure, refuse
from hypvision.io.files import read_text
from hypvision.zoo.backbones import network_arguments
from hypvision.zoo.familiar import KEY as FAMILIAR
from hypvision.zoo.familiar import Familiar, familiar_of, in_header, levels_of
from hypvision.zoo.loading import load
from hypvision.zoo.release import index_of, put_record

from .familiar import familiar_images, noticed_images

PACKAGED_LIMIT = 40 * 2**20  # limit in bytes for all weight files in the repository
MAIN_METRICS = {
    "classification": "top1",
    "segmentation": "mIoU",
    "detection": "coco/bbox_mAP_50",
    "retrieval": "recall@1",
    "zero-shot": "top1",
}


def stripped(checkpoint: Values, task: str) -> StateDict:
    """Return only the weights of a checkpoint, without optimiser and history; for a classifier
    under timm's names, for a CLIP without the words that its training has never seen."""
    weights = checkpoint.get("state_dict", checkpoint)
    weights = {
        name.removeprefix("module."): value
        for name, value in weights.items()
        if isinstance(value, Tensor)
    }
    if task == "zero-shot":
        return _used_words(
            {name[5:]: value for name, value in weights.items() if name.startswith("clip.")}
        )
    if "clip.token_embedding.weight" in weights:  # the weights of a segmenter or detector on CLIP
        return _used_words(weights, "clip.")
    if task != "classification":
        return weights
    outside = [name for name in weights if not name.startswith("backbone.")]
    if len(outside) == len(weights):  # the weights of a checkpoint of timm itself
        return weights
    if outside:
        raise HypvisionError(
            f"The checkpoint has weights outside the timm model: {', '.join(outside[:3])}. Only "
            "classifiers of hypvision.tasks (ImageClassifier) can be published as timm models."
        )
    return {name.removeprefix("backbone."): value for name, value in weights.items()}


def normalisation_of(weights: Weights) -> dict[str, list[float]]:
    """Return ``mean`` and ``std`` that the weights of a hyperbolic CLIP hold; an empty dict for
    other weights."""
    numbers = {
        key: weights[name].flatten().tolist()
        for name, key in zip(PIXELS, ("mean", "std"))
        if name in weights
    }
    return {key: [round(value, 6) for value in values] for key, values in numbers.items()}


def describe_config(config: Run) -> Plain:
    """Return the fields of a record that the config determines: task, model, arguments and input,
    and for whole models the model's own config."""
    if config.kind == "CLIPContrast":
        return _describe_clip(config)
    task = {"mmseg": "segmentation", "mmdet": "detection"}.get(config.scope, "classification")
    if config.kind == "MetricLearner":
        task = "retrieval"
    backbone = dict(config.model.get("backbone") or {})
    clip = (config.model.get("clip") or {}).get("name")
    name: str | None = backbone.get("model_name", clip if clip in ARCHITECTURES else None)
    if name is None:
        raise HypvisionError(
            "Only models with a timm backbone (model.backbone.model_name), or on a CLIP of "
            f"hypvision (model.clip.name: {', '.join(ARCHITECTURES)}), can be published."
        )
    _check_recordable(config)
    found: Plain = {"task": task, "model": name.partition(".")[0]}
    if task != "classification":
        model = json.loads(json.dumps(config.model.to_dict()))
        return {**found, "input": image_input(config), "model_config": _without_start(model)}
    arguments = network_arguments(backbone)
    if arguments:
        found["arguments"] = json.loads(json.dumps(arguments))
    return {**found, "input": image_input(config)}


def _check_recordable(config: Run) -> None:
    """Raise an error for a model or data that a record of the zoo cannot describe."""
    lost = unrecorded(config.dataset("test").get("transform"))
    refuse(
        (
            config.model.get("multi_label"),
            "A record of the zoo means one class per image, and this classifier has "
            "model.multi_label=True. Pass on its config and its checkpoint: hypvision predict "
            "SOURCE --model CONFIG --weights CHECKPOINT.",
        ),
        (
            config.get("test_dataloader") is None,
            f"The config '{config.filename}' has no test_dataloader, from which the record takes "
            "the description of the input. Add it.",
        ),
        (
            lost,
            f"The transform of the test data has {lost}, which a record of the zoo cannot hold: "
            "its users would prepare images otherwise. Test without it.",
        ),
    )


def image_input(config: Run, side: int | None = None) -> Plain:
    """Return the description of the images that the model of a config is tested on, as records of
    the zoo have it. It comes from the transform of the test data, or from the preprocessor of
    mmseg's and mmdet's models; ``side`` as for :func:`input_size`."""
    size = list(input_size(config, side))
    if config.scope in ("mmseg", "mmdet"):
        given = config.model.get("data_preprocessor") or {}
        given = {"mean": MEAN, "std": STD, **given} if config.model.get("clip") else given
        numbers = {
            key: [round(value / 255, 6) for value in given[key]]
            for key in ("mean", "std")
            if given.get(key)
        }
        return dict(size=size, **numbers, crop_pct=1.0, interpolation="bilinear")
    transform = config.dataset("test").get("transform") or {}
    mode = transform.get("crop_mode") or "center"
    return dict(
        size=size,
        mean=list(transform.get("mean", IMAGENET_DEFAULT_MEAN)),
        std=list(transform.get("std", IMAGENET_DEFAULT_STD)),
        crop_pct=transform.get("crop_pct") or 0.875,
        interpolation=transform.get("interpolation", "bilinear"),
        **({} if mode == "center" else {"crop_mode": mode}),
    )


def input_size(config: Run, side: int | None = None) -> tuple[int, int, int]:
    """Return channels, height and width of the images that the model of a config is tested on; with
    ``side`` they are squares of this side."""
    dataset = config.dataset("test")
    if config.scope not in ("mmseg", "mmdet"):
        size = side or (dataset.get("transform") or {}).get("input_size", 224)
        height, width = list(size)[-2:] if isinstance(size, (list, tuple)) else (size, size)
        return int(config.model.backbone.get("in_chans", 3)), height, width
    height, width = (side, side) if side else _size_of_library(config)
    return 3, int(height), int(width)


def _size_of_library(config: Run) -> Sequence[int]:
    """Return height and width of the images for a model of mmseg or mmdet."""
    # An open-vocabulary segmenter resizes images itself, to windows or as a whole.
    side = config.model.get("resolution" if config.model.get("inference") == "whole" else "slide")
    if side:
        return side, side
    size = (config.model.get("data_preprocessor") or {}).get("size")
    size = size or _resized(config.dataset("test"))
    if size is None:
        raise HypvisionError(
            "The config does not say the input size. Add size to model.data_preprocessor (of a "
            "segmenter on CLIP: slide to model), or a Resize to the test pipeline."
        )
    return size


def _describe_clip(config: Any) -> Plain:
    """Return the fields of a record for a CLIP. A record holds the name of an architecture, so the
    name must describe the whole CLIP.

    Raises:
        HypvisionError: the CLIP has an adapter, or options that make it another network.
    """
    name = config.model.clip.name
    options = {**config.model.clip}
    refuse(
        (
            name not in ARCHITECTURES,
            f"Only CLIP models of hypvision can be published ({', '.join(ARCHITECTURES)}), not "
            f"'{name}'.",
        ),
        (
            config.model.get("adapter") is not None or config.model.get("tune") == "adapter",
            "A record of the zoo holds a CLIP without an adapter (model.adapter), which would be "
            "lost. Publish a training with tune='full', or pass on the adapter alone "
            "(hypvision.clip.adapters.save).",
        ),
    )
    name = _architecture_of(name, options)
    vision = ARCHITECTURES[name]["vision_cfg"]
    side = vision["image_size"]
    (mean, std) = pixels_of(vision)
    given = dict(mean=[round(value, 6) for value in mean], std=[round(value, 6) for value in std])
    size = dict(size=[3, side, side], **given, crop_pct=1.0, interpolation="bicubic")
    return {"task": "zero-shot", "model": name, "input": size}


def _architecture_of(name: str, options: Plain) -> str:
    """Return the name of the architecture that a CLIP with these options has."""
    harmless = ("name", "pretrained", "load_weights", "learn_curvature")
    given = {
        option: value
        for option, value in options.items()
        if option not in harmless and value not in (None, False)
    }
    if given.get("geometry") == ARCHITECTURES[name].get("geometry", "sphere"):
        del given["geometry"]
    wanted = architecture(name, options=given)
    found = [other for other in (name, *ARCHITECTURES) if ARCHITECTURES[other] == wanted]
    ensure(
        found and given.keys() <= {"geometry", *RESIZING},
        f"A record of the zoo holds the name of an architecture ({', '.join(ARCHITECTURES)}), "
        f"and none of these is a CLIP with model.clip={given}. Publish a training without "
        "these options.",
    )
    return found[0]


def _used_words(weights: StateDict, prefix: str = "") -> StateDict:
    """Return the weights with CLIP's token table reduced to the rows that the captions of the
    training can have changed; all rows if none is zero."""
    # In weights of the zoo, and after blank_words, the rows of words that were never seen are zero.
    table = weights[f"{prefix}token_embedding.weight"]
    seen = table.abs().sum(1).nonzero().flatten()
    return trim_tokens(weights, seen, prefix) if len(seen) < len(table) else weights


def _resized(dataset: Values) -> tuple[int, int] | None:
    """Return height and width from the Resize of a pipeline, whose scale is (width, height); None
    if it has no Resize."""
    for step in dataset.get("pipeline") or []:
        if str(step.get("type", "")).rpartition(".")[2] == "Resize" and step.get("scale"):
            return step["scale"][1], step["scale"][0]
    return None


def _without_start(node: Any) -> Any:
    """Return the config of a model, or a part of it, without the checkpoints that the training
    started from and without what it froze."""
    if isinstance(node, list):
        return [_without_start(value) for value in node]
    if not isinstance(node, dict):
        return node
    start = {"checkpoint", "checkpoint_path", "pretrained", "frozen"}
    if isinstance(node.get("init_cfg"), dict) and node["init_cfg"].get("type") == "Pretrained":
        start.add("init_cfg")
    return {key: _without_start(value) for key, value in node.items() if key not in start}


def _measure(
    config: str,
    weights: str,
    environment: Mapping[str, str],
    work_dir: Path,
    options: Sequence[str],
) -> Metrics:
    """Return the metrics that ``hypvision test`` prints in a fresh process."""
    command = [
        sys.executable,
        "-m",
        "hypvision.cli",
        "test",
        config,
        weights,
        "--work-dir",
        str(work_dir),
    ]
    command += ["--cfg-options", *options] if options else []
    print(f"$ hypvision {' '.join(command[3:])}", flush=True)
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True
    )
    if done.returncode:
        raise HypvisionError(
            f"The measurement failed: {(done.stderr or done.stdout).strip()[-1500:]}"
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def publish(
    config: StrPath,
    checkpoint: StrPath,
    name: str,
    about: Values,
    folder: StrPath = "model_zoo",
    storage: str = "int8",
    tolerance: float = 0.2,
    metrics: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Record:
    """Publish a checkpoint as a record of a zoo: strip and store its weights, measure both, add the
    record, and write the table.

    Args:
        config: path of the config that trained it, relative to the repository's root, in which this
            must run.
        checkpoint: checkpoint of the engine, which is only read.
        name: name of the record, ``MODEL.TAG``.
        about: texts of the record: ``description``, ``intended_use``, ``data``, ``training`` (the
            command), ``limits``, ``licence``, ``test_data`` (the data that were measured on), and
            if need be ``parent`` and ``prepare`` (the command that makes the data). Texts that are
            not given are taken from an existing record of this name.
        folder: folder of the zoo, with ``index.yml``; it is made if it does not exist.
        storage: format of the weights, see :mod:`hypvision.checkpoints.storage`.
        tolerance: how far a metric of the file may be from that of the checkpoint: in the metric's
            unit, or in per cent for the metrics of mmdet (``coco/...``), which are fractions.
        metrics: names of the metrics to record, the main one first; default: that of the task.
        options: ``KEY=VALUE`` changes of the config for the measurement on this machine, e.g.
            ``data_root=DIR``.
    """
    config = str(config)
    folder = Path(folder)
    loaded = read(checkpoint)
    settings = load_config(config)
    known = describe_config(settings)
    task = known["task"]
    meta = _dataset_meta(loaded, settings, checkpoint)
    weights = stripped(loaded, task)
    known["input"] |= normalisation_of(weights)
    header: Plain = {"name": name, "classes": _classes(settings, meta)}
    found = familiar_of(loaded, checkpoint) if task == "classification" else None
    if found is not None:
        header[FAMILIAR] = in_header(found)
        known["familiar"] = _about_familiar(found, "validation data of the training")
    if "model_config" in known:
        kept = {key: meta[key] for key in ("classes", "palette") if key in meta}
        model = known.pop("model_config")
        take_templates(model, loaded)
        header |= dict(model=model, dataset_meta=json.loads(json.dumps(kept)))
    index = index_of(folder)
    if task == "zero-shot" or "clip" in settings.model:
        known["templates"] = _templates_of(index, name, settings, language_of(loaded))
    texts = _texts(index, name, about)

    with tempfile.TemporaryDirectory(prefix="publish-") as place:
        stage = Path(place)
        write_weights(weights, stage / "new", storage, header)
        file = dict(storage=storage, **_staged(stage / "new", name))
        _check_room(index, name, file["bytes"])
        test_data = texts.pop("test_data")
        record = {
            "name": name,
            **known,
            "config": config,
            "file": file,
            "parameters": sum(value.numel() for value in expand_tokens(weights).values()),
            "classes": header["classes"],
            "licence": "Apache-2.0",
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            **texts,
        }
        command = f"hypvision test {config} zoo:{name}"
        draft = [
            dict(name=metric, value=0.0, data=test_data, measured="us", command=command)
            for metric in metrics or [MAIN_METRICS[task]]
        ]
        # Names and texts are checked here, before measurements that take minutes.
        write_index(
            with_record(index, parse_record({**record, "metrics": draft})), stage / "index.yml"
        )
        _measure_both(draft, config, str(checkpoint), name, stage, storage, tolerance, options)
        final = parse_record({**record, "metrics": draft})
        put_record(folder, final, stage / file["path"], index.records.get(name))
    return final


def _check_room(index: Index, name: str, size: int) -> None:
    """Raise an error for a file with which the zoo would become too large for the repository."""
    others = [r.file.bytes for r in index if r.file.path is not None and r.name != name]
    total = size + sum(others)
    ensure(
        total <= PACKAGED_LIMIT,
        f"With this file the zoo would hold {total / 2**20:.1f} MiB; "
        f"{PACKAGED_LIMIT / 2**20:.0f} MiB is the limit for files in the repository. Store "
        "it with fewer bits, or put it on a hub (hypvision zoo push) and list its url.",
    )


def _about_familiar(found: Familiar, data: str) -> Plain:
    """Return the entry of a record for a :class:`Familiar` that was measured on ``data``."""
    limit, alarms = (round(value, 4) for value in (found.limit, found.false_alarms))
    return dict(limit=limit, false_alarms=alarms, data=data)


def add_familiar(
    name: str,
    folder: StrPath = "model_zoo",
    options: Sequence[str] = (),
    foreign: Mapping[str, str] | None = None,
) -> Record:
    """Add the mean features of a published classifier's classes, and its limit for familiar images,
    to its weight file and its record. They are computed from the data of its config and replace
    earlier ones; the weights stay the same to the byte. The new file has another sum, and the old
    one is removed.

    Args:
        name: name of the record.
        folder: folder of the zoo, with ``index.yml``.
        options: ``KEY=VALUE`` changes of the config, e.g. ``data_root=DIR``.
        foreign: for names of images of other kinds their folders.
    """
    from hypvision.engine.config import import_extensions
    from hypvision.engine.predicting import trained_model

    folder = Path(folder)
    index = read_index(folder)
    foreign_files = {data: find_files([place]) for data, place in (foreign or {}).items()}
    record = index.get(name)
    if record.task != "classification" or record.file.path is None:
        raise HypvisionError(
            f"'{name}' is no classifier with its file in '{folder}': only for such weights can the "
            "limit of familiar images be stored. Give the name of another record."
        )
    settings = load_config(record.config, parse_options(list(options)))
    import_extensions(settings)
    ensure(
        settings.dataset("train") and settings.dataset("val"),
        f"The config of '{name}' has no training and validation data, from which the limit is "
        "measured. Train or probe the model on photos of its classes, hypvision train FOLDER "
        "--method probe: checkpoints of a training have a limit of their own.",
    )
    train, held_out = (DATASETS.build(settings.dataset(phase)) for phase in ("train", "val"))
    model: Any = trained_model(settings, f"{folder.resolve().as_uri()}#{name}")
    ensure(
        levels_of(model.backbone),
        f"The network of '{name}' has no feature_info as timm's have, so it has no levels whose "
        "features could be compared.",
    )
    found = familiar_images(model, train, held_out)
    old = folder / record.file.path
    header = {**read_header(old), FAMILIAR: in_header(found)}
    header.pop("familiar", None)  # what older versions have written: features of the head
    about = f"{min(len(held_out), 1000)} images of the validation data of the training"
    with tempfile.TemporaryDirectory(prefix="publish-") as place:
        text = json.dumps(header, sort_keys=True)
        written = Path(place, "new")
        write_tensors(load_file(old), written, {"hypvision": text})
        file = dict(storage=record.file.storage, **_staged(written, name))
        familiar = _about_familiar(found, about)
        familiar["foreign"] = [
            noticed_images(model, found, held_out.transform, data, files)
            for data, files in foreign_files.items()
        ]
        plain = dict(record.to_dict(), file=file, familiar=familiar)
        final = parse_record(plain)
        put_record(folder, final, Path(place, file["path"]), record)
    return final


def _templates_of(index: Index, name: str, settings: Any, language: Language) -> list[str]:
    """Return the templates of the record that is replaced (``tools/choose_templates.py`` measures
    them), else those of the checkpoint, else those of the training's config."""
    known = index.records.get(name)
    if known is not None and known.templates:
        return list(known.templates)
    if language.templates:
        return list(language.templates)
    return list(checked_templates(settings.model.get("templates") or "catseg"))


def _dataset_meta(loaded: Plain, settings: Run, checkpoint: StrPath) -> Plain:
    """Return the description of the data in the checkpoint, with the names of ImageNet's classes if
    the config asks for them."""
    about = loaded.get("meta")
    given = about.get("dataset_meta") if isinstance(about, dict) else None
    meta: Plain = given if isinstance(given, dict) else {}
    if settings.dataset("test").get("classes") == "imagenet":
        meta = {**meta, "classes": imagenet_classes()}
    ensure(
        meta.get("classes"),
        f"The checkpoint '{checkpoint}' has no class names (meta.dataset_meta). Save it with "
        "`hypvision train`.",
    )
    return meta


def _classes(settings: Run, meta: Values) -> list[str]:
    """Return the classes of the training; for a segmenter or detector on CLIP, which finds other
    classes, too, those of its test."""
    if not settings.model.get("clip") or settings.scope not in ("mmseg", "mmdet"):
        return list(meta["classes"])
    tested = settings.dataset("test").get("classes")
    if tested is None:
        raise HypvisionError(
            "The config does not name the words that the model is tested with, which its record "
            "needs. Add classes=[...] to the data set of test_dataloader."
        )
    return list(load_classes(tested))


def _staged(written: Path, name: str) -> Plain:
    """Move a file of weights into the folder ``weights`` beside it, under a name with its sum, and
    return the entries of a record about it."""
    digest = file_sha256(written)
    path = f"weights/{name}-{digest[:8]}.safetensors"
    placed = written.parent / path
    placed.parent.mkdir()
    os.replace(written, placed)
    return dict(sha256=digest, bytes=placed.stat().st_size, path=path)


def _measure_both(
    draft: list[Plain], config: str, checkpoint: str, name: str, stage: Path, storage: str,
    tolerance: float, options: Sequence[str],
) -> None:  # fmt: skip
    """Measure the checkpoint and the staged file, and put the file's metrics into ``draft`` if both
    agree."""
    before = _measure(config, checkpoint, {}, stage / "before", options)
    for metric in draft:
        if metric["name"] not in before:
            raise HypvisionError(
                f"The test measures no '{metric['name']}'. It measures: {', '.join(before)}."
            )
        if math.isnan(before[metric["name"]]):
            raise HypvisionError(
                f"The test data have no ground truth for '{metric['name']}', so it is NaN. Give "
                "other --metrics."
            )
    environment = {
        "HYPVISION_INDEX": str(stage / "index.yml"),
        "HYPVISION_HOME": str(stage / "home"),
        "HYPVISION_WEIGHTS": "",
        "HYPVISION_OFFLINE": "1",
    }
    load(f"{stage.as_uri()}#{name}")
    after = _measure(config, f"zoo:{name}", environment, stage / "after", options)
    for metric in draft:
        key = metric["name"]
        print(f"{key}: checkpoint {before[key]}, {storage} file {after[key]}", flush=True)
        allowed = tolerance / 100 if key.startswith("coco/") else tolerance
        if not abs(before[key] - after[key]) <= allowed + 1e-9:
            raise HypvisionError(
                f"{key} is {after[key]} with the {storage} file but {before[key]} with the "
                f"checkpoint, a difference of more than the tolerance of {allowed:g}. Store the "
                "file with more bits (--storage)."
            )
        metric["value"] = after[key]
        if storage != "float32":
            metric["full_precision"] = before[key]


_OPTIONAL = ("licence", "parent", "prepare")


def _texts(index: Index, name: str, about: Values) -> Plain:
    keys = (
        "description",
        "intended_use",
        "data",
        "training",
        "limits",
        "licence",
        "parent",
        "prepare",
        "test_data",
    )
    unknown = [key for key in about if key not in keys]
    if unknown:
        raise HypvisionError(f"--about: unknown key '{unknown[0]}'. Known: {', '.join(keys)}.")
    old = index.records[name].to_dict() if name in index.records else {}
    texts = {key: old[key] for key in keys if key in old}
    if old:
        texts["test_data"] = old["metrics"][0]["data"]
    texts |= about
    missing = [key for key in keys if key not in texts and key not in _OPTIONAL]
    ensure(
        not missing,
        f"--about must give {', '.join(missing)}, which every record of the zoo needs.",
    )
    return texts


def read_about(path: StrPath) -> Plain:
    """Return the texts for a record from a YAML file."""
    try:
        about = parse_yaml(read_text(path, 2**26))
    except (OSError, ValueError) as error:
        # A ValueError comes from invalid YAML or UTF-8, or from an impossible date.
        raise HypvisionError(f"The file '{path}' cannot be read: {error}. Correct it.") from error
    if not isinstance(about, dict):
        raise HypvisionError(f"The file '{path}' must be a mapping of keys to texts.")
    return about

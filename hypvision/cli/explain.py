"""``hypvision explain IMAGE --model NAME``: what a model groups together in pictures.

For a clustering backbone writes ``NAME_clusters.png`` (cluster maps of each stage, level and head) and
``NAME_regions.png`` (fine to coarse clusters, merged into regions) for each picture; see :mod:`hypvision.viz.clusters`.
For a Hi-Mapper ``NAME_tree.png``, ``NAME_levels.png`` and ``NAME_disk.png``; see :mod:`hypvision.viz.hierarchy_tree`.
"""

from __future__ import annotations

import difflib
import glob
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import timm
import torch
from PIL import Image
from torch import nn
from tqdm import tqdm

import hypvision.models  # noqa: F401 - registers the models
from hypvision.checkpoints.match import filtered, load_into
from hypvision.checkpoints.read import network_weights, read
from hypvision.checkpoints.sources import find, is_address, resolve
from hypvision.checkpoints.storage import read_header
from hypvision.errors import HypvisionError
from hypvision.viz.clusters import explain_image
from hypvision.viz.hierarchy_tree import explain_hierarchy
from hypvision.viz.sheet import save_picture
from hypvision.zoo.loading import parse_arguments

__all__ = ["add_arguments", "build_model", "find_images", "load_weights", "open_image", "output_names", "run"]

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
# Arguments of TimmBackbone that are not the network's.
_PLUG = {
    "type", "model_name", "out_indices", "pretrained", "checkpoint_path", "frozen_stages", "norm_eval", "with_cp",
    "pad_multiple", "init_cfg", "drop_path_rate",
}  # fmt: skip


# The model


def build_model(name: str, weights: str | Path | None = None, arguments: Mapping[str, Any] | None = None) -> nn.Module:
    """A clustering timm model without a classifier head, ready to look at.

    Args:
        name: name in timm.
        weights: checkpoint, see :func:`load_weights`, or weights of the zoo (``"zoo:NAME"``, ``"hf-hub:USER/REPO"``),
            which say with which arguments and normalisation they go; None: random weights, drawn from seed 0.
        arguments: for the model's constructor, e.g. ``dict(patch_size=2, img_size=32)``.

    Raises:
        HypvisionError: unknown model, arguments that it does not accept, one that does not cluster, or weights that
            cannot be read or are of another architecture.
    """
    config: dict[str, Any] = {}
    if weights is not None and is_address(str(weights)):
        weights, own, config = _zoo_weights(str(weights), name)
        arguments = {**own, **(arguments or {})}
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise HypvisionError(
            f"There is no model '{name}'.{hint} timm.list_models() lists all (after import hypvision)."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            model = _create(name, {"num_classes": 0, **(arguments or {})})
        except (TypeError, ValueError) as error:
            raise HypvisionError(f"The model '{name}' does not accept --model-args: {error}") from error
    if not hasattr(model, "forward_assignments") and not hasattr(model, "forward_with_hierarchy"):
        known = ", ".join(timm.list_models(["hcformer*", "himapper*"]))
        raise HypvisionError(f"The model '{name}' does not cluster, so there is nothing to draw. Take one of: {known}.")
    if weights is not None:
        load_weights(model, weights)
    if config:
        model.pretrained_cfg = {**getattr(model, "pretrained_cfg", {}), **config}
    return model.eval()


def _zoo_weights(address: str, name: str) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """The verified file of a record, the arguments of its network, and what timm's config says of its pictures."""
    index, record = find(address)
    if timm.is_model(name) and name.partition(".")[0] != record.model:
        raise HypvisionError(f"The weights '{address}' are of the model {record.model}: use --model {record.model}.")
    path = resolve(record, index)
    arguments = dict(record.arguments)
    if record.task != "classification":
        # The config of the whole model; its backbone's arguments are those of timm, beside those of the plug.
        backbone = (read_header(path).get("model") or {}).get("backbone") or {}
        arguments = {key: value for key, value in backbone.items() if key not in _PLUG}
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    keys = ("mean", "std", "interpolation")
    config = {key: tuple(value) if isinstance(value := record.input[key], list) else value for key in keys}
    return path, arguments, {**config, "input_size": tuple(record.input["size"])}


def _create(name: str, arguments: dict[str, Any]) -> nn.Module:
    """The model; a Hi-Mapper made so that pictures may have any shape, where its backbone has an argument for that."""
    if "himapper" in name:
        for flexible in ("dynamic_img_size", "strict_img_size"):
            with suppress(TypeError):
                return timm.create_model(name, **{flexible: flexible.startswith("dynamic"), **arguments})
    return timm.create_model(name, **arguments)


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a checkpoint into a timm model; the classifier head does not matter.

    Args:
        model: the model.
        path: anything that :func:`hypvision.checkpoints.read.read` takes: of hypvision's training of any task, a plain
            state dict, or the method's official checkpoint.

    Raises:
        HypvisionError: the file cannot be read, or is of another architecture.
    """
    given = filtered(model, network_weights(read(path)))
    head = f"{getattr(model, 'pretrained_cfg', {}).get('classifier') or 'head'}."
    load_into(
        model, given, path, f"the model {type(model).__name__}",
        "Give the --model that it was trained with, and its arguments: --model-args KEY=VALUE ... as in model.backbone "
        "of its config.",
        extra=True, optional=lambda name: name.startswith(head),
    )  # fmt: skip


# Pictures


def find_images(names: Iterable[str | Path]) -> list[Path]:
    """The files that paths, folders (their pictures, without sub-folders) and glob patterns name, each once.

    Raises:
        HypvisionError: one of them names nothing.
    """
    found: dict[Path, None] = {}
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())
            if not files:
                kinds = " ".join(sorted(SUFFIXES))
                deeper = next((file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES), None)
                advice = f"Those below it: '{path}/**/*{deeper.suffix}'" if deeper else "Give another folder or a file"
                raise HypvisionError(f"The folder '{name}' has no pictures ({kinds}). {advice}.")
        elif path.is_file():
            files = [path]
        else:
            pattern = str(path)
            matches = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else []
            files = [Path(match) for match in matches if Path(match).is_file()]
            if not files:
                raise HypvisionError(f"There is no picture '{name}'. Check the path.")
        found.update(dict.fromkeys(files))
    return list(found)


def open_image(path: str | Path) -> Image.Image:
    """Read a whole picture.

    Raises:
        HypvisionError: it is missing, damaged, no picture, or so large that it looks like an attack.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(path)
            image.load()
    except FileNotFoundError as error:
        raise HypvisionError(f"There is no picture '{path}'. Check the path.") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise HypvisionError(
            f"The picture '{path}' cannot be read: the file is damaged or of a kind that Pillow does not know "
            f"({error}). Replace it by an intact copy, or leave it out."
        ) from error
    return image


def output_names(paths: Sequence[Path]) -> list[str]:
    """A name for the results of each picture: its own without suffix, and a number where that is taken."""
    names: dict[str, None] = {}
    for path in paths:
        name, number = path.stem, 2
        while name in names:
            name, number = f"{path.stem}-{number}", number + 1
        names[name] = None
    return list(names)


# The command line


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``explain``."""
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="picture, folder of pictures, or glob pattern")
    parser.add_argument("--model", required=True, metavar="NAME", help="e.g. hcformer_nano, himapper_resnet50")
    parser.add_argument("--weights", metavar="FILE", help="checkpoint, or zoo:NAME; random weights without")
    parser.add_argument(
        "--model-args",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="arguments of the model, as in model.backbone of its config, e.g. patch_size=2 img_size=32",
    )
    parser.add_argument(
        "--size", type=int, metavar="N", help="short side, a multiple of 32 (default: that of zoo:NAME, or else 224)"
    )
    parser.add_argument("--mean", nargs="+", type=float, metavar="X", help="normalisation; default: the model's own")
    parser.add_argument("--std", nargs="+", type=float, metavar="X", help="normalisation; default: the model's own")
    parser.add_argument("--stage", type=int, metavar="N", help="only this stage, counted from 0 (default: all)")
    parser.add_argument("--block", type=int, metavar="N", help="block of each stage (default: the last)")
    parser.add_argument("--head", type=int, metavar="N", help="only this head (default: all; regions follow head 0)")
    parser.add_argument(
        "--level",
        choices=["patch", "window", "both"],
        default="both",
        help="Euclidean clusters of pixels, hyperbolic clusters of windows, or both (default)",
    )
    parser.add_argument("--regions", type=int, default=8, metavar="K", help="regions to merge into; 0 for none")
    parser.add_argument("--out", default="explain", metavar="DIR", help="folder of the results (default: explain)")


def run(args: Namespace) -> None:
    """``explain`` from parsed arguments; prints the names of the files written."""
    for name in ("mean", "std"):
        value = getattr(args, name)
        if value is not None and (len(value) not in (1, 3) or (name == "std" and min(value) <= 0)):
            raise HypvisionError(f"--{name} takes three values, one a channel{', all > 0' if name == 'std' else ''}.")
    paths = find_images(args.images)
    model = build_model(args.model, args.weights, parse_arguments(args.model_args))
    size = args.size
    if size is None:
        size = model.pretrained_cfg["input_size"][1] if is_address(str(args.weights)) else 224
    if args.weights is None:
        print("No --weights given: the weights are random, and so is what they cluster.")
    for path, name in zip(tqdm(paths, unit="image", disable=len(paths) < 2), output_names(paths)):
        if hasattr(model, "forward_with_hierarchy"):
            pictures = explain_hierarchy(model, open_image(path), size, args.mean, args.std)
        else:
            pictures = explain_image(
                model, open_image(path), size, args.regions, args.mean, args.std, args.stage, args.block,
                args.head, args.level,
            )  # fmt: skip
        for kind, picture in pictures.items():
            target = Path(args.out, f"{name}_{kind}.png")
            tqdm.write(str(save_picture(picture, target)))

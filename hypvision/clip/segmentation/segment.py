"""``hypvision segment IMAGE... --classes "cat, dog, grass"``: segment any pictures by any class names.

For each picture ``NAME_labels.png`` (class numbers; 255, or 65535 with more than 255 classes, is never used) and
``NAME_overlay.png`` (colours and a legend); for a video ``NAME_overlay.mp4``.
"""

from __future__ import annotations

import glob
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps
from tqdm import tqdm

from hypvision.checkpoints.match import load_into
from hypvision.checkpoints.read import network_weights, read
from hypvision.cli.explain import find_images, open_image, output_names
from hypvision.clip.classes import CLASS_LISTS, load_classes
from hypvision.clip.models import pretrained_tags
from hypvision.clip.segmentation.official import (
    is_official_catseg,
    is_official_hyperclip,
    segmenter_from_official,
    segmenter_variant,
)
from hypvision.clip.segmentation.segmenter import OpenVocabSegmenter
from hypvision.errors import HypvisionError, require
from hypvision.viz.palette import palette
from hypvision.viz.sheet import save_picture

__all__ = ["Segmentation", "add_arguments", "load_segmenter", "run", "segment"]

VIDEOS = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".webm")
SHIPPED = "zoo:shapes-s8.captions"

_OFFICIAL: dict[str, dict[str, Any]] = {
    "vitb16": dict(clip=dict(name="ViT-B-16", force_quick_gelu=True)),
    "vitl14-336": dict(clip=dict(name="ViT-L-14-336", force_quick_gelu=True), resolution=336),
}


class Segmentation(NamedTuple):
    """What :func:`segment` finds.

    Attributes:
        labels: int64 array (H, W), numbers of classes.
        classes: their names.
        image: the picture, RGB.
    """

    labels: np.ndarray
    classes: tuple[str, ...]
    image: Image.Image

    def overlay(self, opacity: float = 0.55, legend: bool = True) -> Image.Image:
        """The picture with the classes painted in, and a legend of those that occur."""
        colours = np.array(palette(len(self.classes) + 1)[1:], dtype=np.uint8)
        painted = Image.blend(self.image.convert("RGB"), Image.fromarray(colours[self.labels]), opacity)
        if not legend:
            return painted
        present = [int(number) for number in np.unique(self.labels)]
        columns = max(1, painted.width // 130)
        rows = math.ceil(len(present) / columns)
        sheet = Image.new("RGB", (painted.width, painted.height + 18 * rows + 4), "white")
        sheet.paste(painted, (0, 0))
        draw = ImageDraw.Draw(sheet)
        for place, number in enumerate(present):
            x, y = 4 + place % columns * 130, painted.height + 4 + place // columns * 18
            draw.rectangle((x, y, x + 12, y + 12), fill=tuple(int(value) for value in colours[number]))
            draw.text((x + 17, y), self.classes[number][:17], fill="black")
        return sheet

    def label_image(self) -> Image.Image:
        """The class numbers as a picture of 8 bits, or 16 with more than 255 classes."""
        return Image.fromarray(self.labels.astype(np.uint8 if len(self.classes) <= 255 else np.uint16))


def clip_options(text: str) -> dict[str, str]:
    """``NAME:PRETRAINED`` as arguments of :func:`~hypvision.clip.models.create_clip`.

    Raises:
        HypvisionError: it does not say which weights, and none ship.
    """
    name, _, tag = text.partition(":")
    pretrained = tag or (SHIPPED if name == "shapes-s8" else None)
    if pretrained is None:
        tags = pretrained_tags(name)
        if not tags:
            raise HypvisionError(f"'{name}' has no published weights. Give a file: --clip {name}:FILE.")
        raise HypvisionError(f"Say which weights of '{name}' to use: --clip {name}:TAG, with one of {', '.join(tags)}.")
    return dict(name=name, pretrained=pretrained)


def load_segmenter(
    weights: str | Path | None = None, config: str | Path | None = None, clip: str | None = None
) -> OpenVocabSegmenter:
    """A segmenter from a checkpoint, or straight from a CLIP model.

    Args:
        weights: a converted or trained checkpoint of the whole segmenter. None: the head of two parameters, which needs
            no training, on a plain CLIP.
        config: the config that it was trained with; not needed for converted official checkpoints.
        clip: without weights: name of a CLIP model, ``NAME`` or ``NAME:PRETRAINED``; default ``ViT-B-16:openai``.
            ``shapes-s8`` ships with the project and knows drawn shapes only.

    Raises:
        HypvisionError: files that are missing or do not fit; weights that cannot be downloaded.
    """
    if weights is None:
        clip = clip or "ViT-B-16:openai"
        options: dict[str, Any] = dict(clip=clip_options(clip), head=dict(type="similarity"))
        if options["clip"]["name"] == "shapes-s8":
            options.update(resolution=96, crop=96, slide=96)
        return OpenVocabSegmenter(tune="frozen", **options).eval()
    if clip is not None:
        raise HypvisionError("--clip is for segmenting without --weights. Leave out one of the two.")
    found = network_weights(read(weights), part=None)
    if is_official_catseg(found) or is_official_hyperclip(found):
        found = segmenter_from_official(found)
    if config is not None:
        options = _options_of(config)
    else:
        variant = segmenter_variant(found)[0]
        family, _, size = variant.partition("-")
        if size not in _OFFICIAL:
            raise HypvisionError(f"'{weights}' is of another size ({variant}). Give its config with --config.")
        options = dict(_OFFICIAL[size], tune="hyperbolic" if family == "hyperclip" else "frozen")
    options["clip"] = {k: v for k, v in options.get("clip", {}).items() if k != "pretrained"}  # they are in the file
    model = OpenVocabSegmenter(**options)
    advice = "Give the --config that it was trained with."
    load_into(model, found, weights, "the segmenter", advice, extra=True)
    return model.eval()


def _options_of(config: str | Path) -> dict[str, Any]:
    from hypvision.engine.config import load_config

    model = load_config(config).model.to_dict()
    if model.pop("type", None) != "HyperCLIPSegmentor":
        raise HypvisionError(f"The config '{config}' is not one of a HyperCLIPSegmentor.")
    for name in ("train_classes", "test_classes", "background_from", "ignore_index", "data_preprocessor", "init_cfg"):
        model.pop(name, None)
    return model


def read_picture(image: str | Path | Image.Image | np.ndarray) -> Image.Image:
    """The RGB picture of a path, a PIL image, or an RGB array uint8 (H, W, 3).

    Raises:
        HypvisionError: it is none of these, or cannot be read.
    """
    if isinstance(image, (str, Path)):
        return to_rgb(open_image(image), f"The picture '{image}'")
    if isinstance(image, Image.Image):
        return to_rgb(image)
    if not isinstance(image, np.ndarray):
        raise HypvisionError(f"An image is a path, a PIL image or an array, got {type(image).__name__}.")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise HypvisionError(f"An image array must be uint8 (H, W, 3), got {image.dtype} {image.shape}.")
    return Image.fromarray(image)


def to_rgb(image: Image.Image, name: str = "A picture") -> Image.Image:
    """A picture as it is shown: RGB of 8 bits, turned as the camera says; ``name`` is for the message.

    Raises:
        HypvisionError: its pixels are not integers of at most 16 bits.
    """
    image = ImageOps.exif_transpose(image)
    if image.mode == "I" or image.mode.startswith("I;16"):  # Pillow's own conversion makes all above 255 white
        values = np.array(image)
        if values.min() >= 0 and values.max() <= 65535:
            return Image.fromarray((values // 257).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise HypvisionError(
            f"{name} has pixels of Pillow's mode {image.mode}, whose white and black are not known. Save it with 8 "
            "or 16 bits a channel."
        )
    return image.convert("RGB")


@lru_cache(maxsize=1)
def _default(weights: str | None, config: str | None, clip: str | None) -> OpenVocabSegmenter:
    return load_segmenter(weights, config, clip)


def segment(
    image: str | Path | Image.Image | np.ndarray,
    classes: str | Path | Sequence[str],
    model: OpenVocabSegmenter | None = None,
    weights: str | Path | None = None,
    config: str | Path | None = None,
    clip: str | None = None,
) -> Segmentation:
    """Segment a picture by class names.

    Args:
        image: a path, a PIL image, or an RGB array uint8 (H, W, 3).
        classes: names, or anything that :func:`~hypvision.clip.classes.load_classes` takes.
        model: a segmenter; otherwise it is made by :func:`load_segmenter` from the other arguments, and kept.
        weights, config, clip: see :func:`load_segmenter`.

    Raises:
        HypvisionError: no picture, no classes, or no model.
    """
    name = f"The picture '{image}'" if isinstance(image, (str, Path)) else "The picture"
    image = read_picture(image)
    names = load_classes(classes)
    if model is None:
        model = _default(*(None if value is None else str(value) for value in (weights, config, clip)))
    model.check_size(image.size[::-1], name)
    model.set_classes(names)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return Segmentation(model.predict([pixels])[0].cpu().numpy(), names, image)


# The command line


def parse_classes(text: str) -> str | list[str]:
    """``"cat, dog"`` as a list; the name of a known list or a file as it is."""
    if text in CLASS_LISTS or Path(text).suffix.lower() in (".txt", ".json"):
        return text
    return [name.strip() for name in text.split(",") if name.strip()]


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``segment``."""
    parser.add_argument(
        "images", nargs="+", metavar="IMAGE", help="picture, video, folder of pictures, or glob pattern"
    )
    known = ", ".join(CLASS_LISTS)
    parser.add_argument("--classes", required=True, help=f'"cat, dog, grass", a .txt or .json file, or one of {known}')
    parser.add_argument("--weights", metavar="FILE", help="checkpoint of a segmenter; without: zero-shot CLIP")
    parser.add_argument("--config", metavar="FILE", help="the config that the weights were trained with")
    parser.add_argument("--clip", metavar="NAME[:TAG]", help="zero-shot with this CLIP (default ViT-B-16:openai)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="take every N-th frame of a video (default 1)"
    )
    parser.add_argument("--out", default="segmented", metavar="DIR", help="folder of the results (default: segmented)")


def run(args: Namespace) -> None:
    """``segment`` from parsed arguments; prints the names of the files written."""
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise HypvisionError(f"--device {args.device}: there is no GPU that PyTorch can use. Take --device cpu.")
    if args.every < 1:
        raise HypvisionError(f"--every must be at least 1, got {args.every}.")
    names = load_classes(parse_classes(args.classes))
    pictures, videos = _inputs(args.images)
    model = load_segmenter(args.weights, args.config, args.clip).to(args.device)
    out = Path(args.out)
    for path, name in zip(tqdm(pictures, unit="image", disable=len(pictures) < 2), output_names(pictures)):
        found = segment(path, names, model)
        for picture, kind in ((found.overlay(), "overlay"), (found.label_image(), "labels")):
            save_picture(picture, out / f"{name}_{kind}.png")
            tqdm.write(str(out / f"{name}_{kind}.png"))
    for path, name in zip(videos, output_names(videos)):
        print(_segment_video(path, out / f"{name}_overlay.mp4", names, model, args.every))


def _inputs(names: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Pictures and videos that paths, folders (their pictures) and glob patterns name."""
    videos: dict[Path, None] = {}
    rest: list[str | Path] = []
    for name in names:
        path = Path(name).expanduser()
        found = [path]
        if not path.exists() and glob.has_magic(str(path)):
            found = [match for match in map(Path, sorted(glob.glob(str(path), recursive=True))) if match.is_file()]
        clips = [match for match in found if match.suffix.lower() in VIDEOS and not match.is_dir()]
        if missing := [match for match in clips if not match.is_file()]:
            raise HypvisionError(f"There is no video '{missing[0]}'. Check the path.")
        videos.update(dict.fromkeys(clips))
        rest += [match for match in found if match not in clips] if clips else [name]
    return find_images(rest), list(videos)


def _segment_video(
    path: Path, target: Path, names: Sequence[str], model: OpenVocabSegmenter, every: int
) -> Path:  # pragma: no cover - the test runs where OpenCV has a codec
    cv2 = require("cv2", "mm")
    reader = cv2.VideoCapture(str(path))
    if not reader.isOpened():
        raise HypvisionError(f"The video '{path}' cannot be read. Convert it to .mp4 (H.264) first.")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.stem}.tmp.mp4")
    rate, writer, number = reader.get(cv2.CAP_PROP_FPS) or 25.0, None, 0
    try:
        with tqdm(total=int(reader.get(cv2.CAP_PROP_FRAME_COUNT)) or None, unit="frame") as bar:
            while True:
                good, frame = reader.read()
                if not good:
                    break
                if number % every == 0:
                    picture = segment(np.ascontiguousarray(frame[..., ::-1]), names, model).overlay(legend=False)
                    if writer is None:
                        writer = cv2.VideoWriter(
                            str(temporary), cv2.VideoWriter_fourcc(*"mp4v"), rate / every, picture.size
                        )
                    writer.write(np.asarray(picture)[..., ::-1])
                number += 1
                bar.update()
        if writer is None:
            raise HypvisionError(f"The video '{path}' has no frames that can be read.")
        writer.release()
        temporary.replace(target)
    finally:
        reader.release()
        temporary.unlink(missing_ok=True)
    return target

"""``hypvision explain IMAGE --model NAME``: what a model groups together in images, or where a CLIP
puts images in its hierarchy.

For a classifier the command prints the class with its score. For a clustering backbone it writes
``NAME_clusters.png`` and ``NAME_regions.png`` for each image (:mod:`hypvision.viz.clusters`); for a
Hi-Mapper ``NAME_tree.png``, ``NAME_parts.png``, ``NAME_levels.png`` and ``NAME_disk.png``
(:mod:`hypvision.viz.hierarchy_tree`); for any other classifier ``NAME_class.png``, where it sees
the class (:mod:`hypvision.viz.class_map`); for a segmenter with hyperbolic pixels
``NAME_pixels.png``, where it is uncertain and where it sees borders; for a CLIP
``NAME_walk.png``, the way of the image to the root or another image, and ``radii.png``, the
distances from the root (:mod:`hypvision.viz.traversal`).
"""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hypvision.io import HypvisionError, Plain, ensure, refuse_weights
from hypvision.io.files import below, protecting

from .arguments import (
    Parser,
    add_clip_argument,
    add_model_args,
    add_sources_arguments,
    add_texts_argument,
    clip_of,
    number,
    refuse,
    texts_of,
    whole,
)

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from hypvision.clip.models import CLIPBundle
    from hypvision.inference.pictures import Picture
    from hypvision.inference.predictors import Predictor
    from hypvision.inference.sources import Frame, Sources
    from hypvision.viz.traversal import Found

_CLUSTERS = ("stage", "block", "head", "level", "regions")
_CLASSIFIERS = ("ImageClassifier", "HierarchyClassifier")  # types in configs
# For models of other tasks, and scopes of configs: what shows what the model does.
_INSTEAD = dict(
    detection="a detector draws the boxes that it finds: `hypvision predict {images} --out DIR`",
    segmentation="a segmenter draws classes of pixels: `hypvision predict {images} --out DIR`",
    retrieval="a model for retrieval shows what lies near an image: `hypvision metric search "
    "{images} --gallery DIR`",
)
_TASKS = dict(mmdet="detection", mmseg="segmentation")  # of scopes of configs


def add_explain_arguments(parser: Parser) -> None:
    add_sources_arguments(parser, "IMAGE")
    model = parser.add_mutually_exclusive_group(required=True)
    parser.add(
        "--model NAME|CONFIG",
        "e.g. hcformer_nano, himapper_resnet50, a name of `hypvision zoo list`, which has its own "
        "weights, or the config of a training, with its checkpoint as --weights",
        group=model,
    )
    add_clip_argument(
        parser,
        "a CLIP instead, and the way of each image to its root through --texts and --gallery",
        group=model,
    )
    add_texts_argument(parser, "texts that the way may pass")
    of_clip = partial(parser.add, needs=["--clip"])
    of_clip(
        "--gallery IMAGE...",
        "images that the way may pass: files, folders, patterns; of a folder with captions its "
        "boxes, too",
    )
    of_clip("--to IMAGE", "image where the way ends (default: the root)")
    of_clip("--steps N", "number of points on the way", whole(2, 100_000), 50)
    of_clip(
        "--captions DIR",
        "folder of images with captions (and boxes) for the histogram (docs/data.md)",
    )
    of_model = partial(parser.add, needs=["--model"])
    of_model(
        "--weights FILE",
        "checkpoint, or zoo:NAME; without it weights are random, unless --model has its own",
    )
    add_model_args(parser, needs=["--model"])
    of_model(
        "--size N",
        "short side of images, a multiple of 32 (default: that of zoo:NAME or of the config, or "
        "else 224)",
        whole(32, 8192),
    )
    of_model("--mean X...", "mean of the normalisation (default: the model's own)", number)
    of_model("--std X...", "standard deviation of the normalisation, as --mean", number)
    of_model("--stage N", "for an HCFormer: only this stage, counted from 0 (default: all)", int)
    of_model("--block N", "for an HCFormer: this block of each stage (default: the last)", int)
    of_model(
        "--head N", "for an HCFormer: only this head (default: all; regions follow head 0)", int
    )
    of_model(
        "--level",
        "for an HCFormer: Euclidean clusters of pixels (patch), hyperbolic ones of windows "
        "(window), or both (default)",
        choices=["patch", "window", "both"],
    )
    of_model(
        "--regions K",
        "for an HCFormer: number of regions to merge into; 0 for none (default: 8)",
        whole(0),
    )
    parser.add("--out DIR", "folder of the results", default="explain", output="folder")


def run_explain(args: Namespace) -> None:
    """Run ``explain``: print the classes of images and the names of the files written."""
    if args.clip is not None:
        return _explain_clip(args)
    from hypvision.inference.sources import check_every, find_sources

    for name in ("mean", "std"):
        value = getattr(args, name)
        if value and (len(value) not in (1, 3) or (name == "std" and min(value) <= 0)):
            raise HypvisionError(
                f"--{name} takes one or three values, one for each channel"
                f"{', all > 0' if name == 'std' else ''}."
            )
    sources = find_sources(args.images, args.every)
    check_every(args.every, sources)
    network = _network(args.model)
    (_explain_groups if network.groups else _explain_class)(args, sources, network)


class _Network(NamedTuple):
    """The network that ``--model`` names.

    Attributes:
        name: timm's name of the network, or of the backbone of a config.
        arguments: for a config, the arguments of its backbone.
        seen: for a config, the part of timm's config that describes its images.
        of_training: whether ``--model`` is a config.
        task: task of the weights, as records have it; "" if it is not known.
        groups: whether the network has clusters or a tree of parts.
    """

    name: str
    arguments: Plain
    seen: Plain
    of_training: bool
    task: str
    groups: bool


def _network(model: str) -> _Network:
    import timm

    from hypvision.checkpoints.index import builtin_index
    from hypvision.inference.predictors import means_config
    from hypvision.zoo.backbones import explained_models, model_and_weights

    of_training = means_config(model)
    if not of_training:
        refuse_weights(model)
    record = builtin_index().records.get(model.removeprefix("zoo:"))
    given = _Network(model, {}, {}, False, "" if record is None else record.task, False)
    found = _of_config(model) if of_training else given
    name = found.name
    architecture = name if of_training else model_and_weights(model)[0]
    architecture = architecture.partition(".")[0]
    # A name that is none of timm's is a mistake, which is told where the network is built; but a
    # segmenter or detector of the zoo may be based on a CLIP.
    other = found.task in _INSTEAD or timm.is_model(architecture)
    groups = architecture in explained_models() or not other
    return found._replace(groups=groups)


def _explain_groups(args: Namespace, sources: Sources, network: _Network) -> None:
    """Draw the clusters of an HCFormer, or the tree of a Hi-Mapper, for each image."""
    from hypvision.io.records import parse_arguments
    from hypvision.viz import explain
    from hypvision.zoo.backbones import build_model, model_and_weights, side_seen

    arguments = parse_arguments(args.model_args)
    ensure(
        not network.of_training or args.weights and (not arguments),
        "With a config give --weights CHECKPOINT of its training, and leave out --model-args.",
    )
    name, weights = model_and_weights(network.name, args.weights)
    model = build_model(name, weights, {**network.arguments, **arguments})
    model.pretrained_cfg = {**model.pretrained_cfg, **network.seen}
    side = min(network.seen["input_size"][1:]) if network.seen else side_seen(model, weights)
    if hasattr(model, "forward_with_hierarchy"):
        because = f"is for the clusters of an HCFormer, but '{args.model}' has none. Leave it out."
        refuse(args, _CLUSTERS, because)
    if weights is None:
        print("No --weights given: the weights are random, and so are the clusters.")
    options = {name: value for name in _CLUSTERS if (value := getattr(args, name)) is not None}
    predictor = _classifier(args, network, arguments)

    def draw(frame: Frame) -> Plain:
        image = frame.open()
        if predictor is not None:
            x = predictor.prepare(image)
            print(f"{frame.file}: {_best_class(predictor, x, frame.file, image.size)}")
        return explain(
            model, image, args.size or side, args.mean or None, args.std or None, **options
        )

    _draw_each(args, sources, draw)


def _classifier(args: Namespace, network: _Network, arguments: Plain) -> Predictor | None:
    """Return the predictor of a classifier with clusters or a tree; None for random weights and
    those of other tasks, which have no classes of images."""
    from hypvision.checkpoints.sources import find, is_address
    from hypvision.inference.predictors import Request, load_predictor
    from hypvision.zoo.backbones import model_and_weights
    from hypvision.zoo.loading import head_of

    name, weights = model_and_weights(network.name, args.weights)
    if weights is None or "num_classes" in arguments:
        return None
    if network.of_training:
        known = network.task == "classification"
        return load_predictor(Request(args.model, args.weights)) if known else None
    if is_address(str(weights)):
        known = find(str(weights))[1].task == "classification"
        return load_predictor(Request(weights, arguments=arguments)) if known else None
    known = head_of(weights, name, arguments) is not None
    return load_predictor(Request(name, weights, arguments)) if known else None


def _draw_each(args: Namespace, sources: Sources, draw: Callable[[Frame], Plain]) -> None:
    """Write the drawings of each image into files named by their kind, and print the names."""
    from hypvision.inference.progress import progress
    from hypvision.io.images import leaving_out, require_all
    from hypvision.viz.sheet import save_image

    done = 0
    failed: list[str] = []
    with protecting(*sources.files):
        for frame in progress(sources.frames(failed), len(sources), "image"):
            with leaving_out(frame.file, failed):
                for kind, drawing in draw(frame).items():
                    print(save_image(drawing, below(args.out, f"{frame.stem}_{kind}.png")))
                done += 1
    require_all(failed, done)


def _explain_class(args: Namespace, sources: Sources, network: _Network) -> None:
    """Print the best class of each image and draw where a classifier without clusters or tree sees
    it; or draw how sure a segmenter is of each pixel."""
    from hypvision.inference.predictors import Request, load_predictor
    from hypvision.io.records import parse_arguments
    from hypvision.viz.sheet import titled_sheet

    refuse(
        args, [*_CLUSTERS, "size", "mean", "std"],
        f"is for models with clusters or a tree of parts, but '{args.model}' has none. Leave it "
        "out.",
    )  # fmt: skip
    # Of segmenters some have a map of their uncertainty, which shows when they are loaded.
    ensure(network.task not in ("detection", "retrieval"), _instead(args, network.task))
    arguments = parse_arguments(args.model_args)
    predictor = load_predictor(Request(args.model, args.weights, arguments))
    ensure(predictor.network is not None or predictor.maps, _instead(args, network.task))
    look = _pixel_tiles if predictor.maps else _class_tiles
    kind = "pixels" if predictor.maps else "class"

    def draw(frame: Frame) -> Plain:
        tiles = look(predictor, frame.open(predictor.channels), frame.file)
        print(f"{frame.file}: {tiles[-1][1]}")
        return {kind: titled_sheet(tiles, columns=2)}

    _draw_each(args, sources, draw)


def _instead(args: Namespace, task: str) -> str:
    """Return the message for a model with nothing to explain: what shows what it does."""
    images = shlex.join(args.images)
    weights = "" if args.weights is None else f" --weights {shlex.quote(args.weights)}"
    text = _INSTEAD.get(task, "").format(images=images)
    command = f" --model {shlex.quote(args.model)}{weights}`"
    advice = f" But {text.removesuffix('`')}{command}." if text else ""
    return (
        f"The model '{args.model}' is not a classifier and has no clusters, so there is nothing "
        f"to explain.{advice} Explained are classifiers, HCFormers, Hi-Mappers and segmenters "
        "with hyperbolic pixels."
    )


def _class_tiles(
    predictor: Predictor, image: Image.Image, name: str
) -> list[tuple[Image.Image, str]]:
    """Return two titled pictures: what the network sees, and where it sees the best class."""
    from torchvision.transforms.functional import to_pil_image

    from hypvision.viz.class_map import class_map, draw_class_map

    assert predictor.network is not None
    x = predictor.prepare(image)
    text = _best_class(predictor, x, name, image.size)
    low = x.amin()  # the range of values takes the place of the unknown normalisation
    high = x.amax()
    seen = to_pil_image((x - low) / (high - low).clamp(min=1e-6)).convert("RGB")
    heat = class_map(predictor.network, x[None])
    return [(seen, "what the network sees"), (draw_class_map(seen, heat), text)]


def _pixel_tiles(
    predictor: Predictor, image: Image.Image, _name: str
) -> list[tuple[Image.Image, str]]:
    """Return four titled pictures: the image, its classes, where borders should be, and where
    pixels are uncertain."""
    import torch

    from hypvision.inference.results import Labels
    from hypvision.viz.class_map import boundary_map, draw_class_map

    with torch.no_grad():
        [found] = predictor.find([predictor.prepare(image)])
    assert isinstance(found, Labels)
    assert found.radius is not None
    assert found.uncertainty is not None
    uncertain = torch.from_numpy(found.uncertainty)
    borders = boundary_map(torch.from_numpy(found.radius))
    return [
        (image.convert("RGB"), "image"),
        (found.draw(image), "classes"),
        (draw_class_map(image, borders), "borders, by the distance from the origin"),
        (draw_class_map(image, uncertain), f"uncertainty, mean {found.uncertainty.mean():.2f}"),
    ]


def _best_class(predictor: Predictor, x: Any, name: str, size: tuple[int, int]) -> str:
    """Return the name of the class with the highest score, and the score, as text; print the
    reasons to doubt it for an image of this name and size (width, height)."""
    import torch

    from hypvision.inference.knowledge import doubts, warnings_of
    from hypvision.inference.results import Classes, Tags, brief

    with torch.no_grad():
        [found] = predictor.find([x])
    assert isinstance(found, (Classes, Tags))
    known = predictor.known
    for sentence in warnings_of([(name, doubts(found, size, known))], known):
        print(f"warning: {sentence}", file=sys.stderr)
    best = int(found.scores.argmax())
    names = known.names
    return f"{brief(names[best], names)} {found.scores[best]:.2f}"


def _of_config(config: str) -> _Network:
    """Return the network of a config; whether it has clusters is not looked at."""
    from hypvision.data.image_folder import unrecorded
    from hypvision.engine.config import import_extensions, load_config
    from hypvision.tasks.publishing import image_input
    from hypvision.zoo.backbones import network_arguments
    from hypvision.zoo.loading import as_tuples

    loaded = load_config(config)
    import_extensions(loaded)
    backbone = loaded.get("model", {}).get("backbone") or {}
    ensure(
        "model_name" in backbone,
        f"The config '{config}' has no timm backbone (model.backbone.model_name) to look at. "
        "Give --model another config, or a model.",
    )
    seen = {}
    if loaded.scope in ("mmseg", "mmdet") or loaded.get("test_dataloader") is not None:
        lost = unrecorded(loaded.dataset("test").get("transform"))
        if lost:
            raise HypvisionError(
                f"The transform of the test data of '{config}' has {lost}, but explain would show "
                "what the network makes of images without it. Test without it, or give timm's name "
                "of the backbone as --model, with --size, --mean and --std."
            )
        seen = image_input(loaded)
        seen["input_size"] = seen.pop("size")
    task = _TASKS.get(loaded.scope, "")
    if not task:
        task = "classification" if loaded.kind in _CLASSIFIERS else "retrieval"
    arguments = network_arguments(backbone)
    return _Network(backbone["model_name"], arguments, as_tuples(seen), True, task, False)


def _explain_clip(args: Namespace) -> None:
    """Draw the way of each image to the root of a CLIP or to another image, and what lies beside
    it."""
    from hypvision.clip.radial.measure import embed_readable, rooted
    from hypvision.clip.radial.texts import embed_texts
    from hypvision.inference.pictures import caption_radii, embed_pictures, find_pictures
    from hypvision.inference.sources import find_files
    from hypvision.io.images import open_image, output_names, require_all
    from hypvision.viz.radii import draw_radii
    from hypvision.viz.traversal import draw_traversal

    words = texts_of(args)
    files = find_files(args.images)
    pictures = find_pictures(args.gallery)
    last = _check_ends(args)
    clip = clip_of(args.clip)
    words = words or _own_words(clip, needed=not args.gallery)
    space = rooted(clip)
    failed: list[str] = []
    files, images = embed_readable(clip, files, failed)
    ends, end = _end_of_walk(clip, args.to)
    points = {"images": images}
    if words:
        points["texts"] = embed_texts(clip.model, clip.tokenizer, words)
    if pictures:
        pictures, points["gallery"] = embed_pictures(clip, pictures, failed=failed)

    def draw_walk(path: Path, name: str, point: Tensor) -> None:
        print(path)
        way = space.radius(space.way(point, args.steps, end)).tolist()
        walk = partial(_walk, point, space, args.steps, end)
        # Leave out whole images that are shown already, but not their boxes.
        shown = {Path(each).resolve() for each in (path, *map(Path, ends))}
        passed = _passed_texts(walk, words, points)
        passed += _passed_pictures(walk, pictures, points, shown)
        _say_passed(passed, args.steps)
        out = Path(args.out, f"{name}_walk.png")
        draw_traversal(open_image(path), way, passed, out, last)
        print(out)

    with protecting(*files, *(picture.path for picture in pictures), *ends):
        for path, name, point in zip(files, output_names(files), images):
            draw_walk(path, name, point)
    if args.captions is not None:  # other images and texts, which have no names
        radii = caption_radii(clip, args.captions, space)
        named = {}
    else:
        radii = {name: space.radius(value) for name, value in points.items()}
        named = {"images": output_names(files), "texts": words}
        named["gallery"] = [Path(str(picture)).name for picture in pictures]
    drawn = Path(args.out, "radii.png")
    draw_radii(radii, {}, drawn, "distance from the root", named)
    print(drawn)
    require_all(failed, len(files) + len(pictures))


def _check_ends(args: Namespace) -> Image.Image | None:
    """Read ``--captions`` and the image of ``--to``, before a CLIP is loaded; return the image."""
    from hypvision.data.caption_folder import read_captions
    from hypvision.io.images import open_image

    if args.captions is not None:
        read_captions(args.captions)
    return None if args.to is None else open_image(args.to)


def _end_of_walk(clip: CLIPBundle, path: str | None) -> tuple[list[str], Tensor | None]:
    """Return the paths of the images to which the walk goes, none or one, and its point."""
    from hypvision.clip.radial.measure import embed_images

    if path is None:
        return [], None
    [point] = embed_images(clip, [path])
    return [path], point


def _own_words(clip: CLIPBundle, needed: bool) -> list[str]:
    """Return texts made of the words that are recorded with a CLIP's weights; none if a gallery
    replaces them (``needed`` is False)."""
    if not needed:
        return []
    ensure(
        clip.words,
        "The way from an image to its end passes texts or images, but no words are recorded "
        "with these weights. Give --texts, such as a .txt file of captions, or --gallery, a "
        "folder of images.",
    )
    sentence = next(iter(clip.templates), "{}")
    return [sentence.format(word) for word in clip.words]


def _say_passed(passed: list[Found], steps: int) -> None:
    for found in sorted(passed, key=lambda found: found.step):
        print(
            f"  from {found.step / (steps - 1):4.0%} of the way: {found.name} (distance from the "
            f"root {found.radius:.3f})"
        )


def _walk(
    point: Tensor, space: Any, steps: int, end: Tensor | None,
    points: Tensor, names: list[str], cones: bool | None = None,
) -> Iterator[tuple[int, str, float]]:  # fmt: skip
    """Yield what the way from a point passes among named ``points``: the step, the name and the
    distance from the root."""
    from hypvision.clip.radial.traversal import meru_traversal

    for step in meru_traversal(point, points, names, space, steps, cones=cones, end=end):
        yield round(step.threshold * (steps - 1)), step.text, step.radius


def _passed_texts(walk: Any, words: list[str], points: dict[str, Tensor]) -> list[Found]:
    from hypvision.viz.traversal import Found

    return [Found(*each) for each in walk(points["texts"], words)] if words else []


def _passed_pictures(
    walk: Any, pictures: list[Picture], points: dict[str, Tensor], shown: set[Path]
) -> list[Found]:
    """Return the pictures that a way passes, without the whole images that are shown beside it."""
    from hypvision.viz.traversal import Found

    others = [
        number
        for number, picture in enumerate(pictures)
        if picture.box or picture.path.resolve() not in shown
    ]
    if not others:
        return []
    # cones=False, because only HyCoCLIP has entailment cones for images, and only for boxes; the
    # nearest picture counts.
    found = walk(points["gallery"][others], list(map(str, others)), cones=False)
    return [
        Found(step, str(picture), radius, picture.open())
        for step, name, radius in found
        if name != "[ROOT]"
        for picture in [pictures[int(name)]]
    ]

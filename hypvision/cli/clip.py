"""``hypvision clip``: segmentation by class names, chains of texts from general to specific, and
radii."""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path

from hypvision.cli.arguments import (
    Parser,
    add_clip_argument,
    add_device_argument,
    clip_of,
    device_of,
    number,
    refuse,
    whole,
)
from hypvision.cli.predict import add_sources_arguments
from hypvision.io.errors import HypvisionError
from hypvision.io.files import below, protecting, write_json

# Copied from hypvision.data.classes, because importing it imports PyTorch.
CLASS_LISTS = (
    "coco171", "ade150", "ade847", "pc59", "pc459", "voc20", "voc20b", "coco48", "coco17", "coco65",
    "coco116", "coco133",
)  # fmt: skip


def add_clip_segment_arguments(parser: Parser) -> None:
    add_sources_arguments(parser, "IMAGE")
    known = ", ".join(CLASS_LISTS)
    parser.add(
        "--classes LIST",
        f'"cat, dog, grass", a .txt or .json file, or one of {known} (default: the words that the '
        "record of the CLIP names)",
    )
    parser.add("--weights FILE", "checkpoint of a segmenter; without: zero-shot CLIP")
    parser.add("--config FILE", "the config that the weights were trained with")
    add_clip_argument(parser, "zero-shot with this CLIP (default: ViT-B-16:openai)")
    add_device_argument(parser)
    parser.add("--out DIR", "folder of the results", default="segmented", output="folder")


def run_clip_segment(args: Namespace) -> None:
    """``clip segment`` from parsed arguments; prints the names of the files written."""
    from hypvision.clip.open_vocabulary import check_words
    from hypvision.clip.segmentation.segment import load_segmenter, parse_classes, segment
    from hypvision.data.classes import load_classes
    from hypvision.inference.progress import progress
    from hypvision.inference.results import Labels
    from hypvision.inference.sources import check_every, find_sources
    from hypvision.inference.writers import Writer
    from hypvision.io.images import leaving_out, require_all

    device = device_of(args)
    given = None if args.classes is None else load_classes(parse_classes(args.classes))
    sources = find_sources(args.images, args.every)
    check_every(args.every, sources)
    config = None
    if args.config is not None:
        from hypvision.engine.config import load_config

        config = load_config(args.config).model.to_dict()
    model = load_segmenter(args.weights, config, args.clip).to(device)
    classes = given or model.words
    if not classes:
        raise HypvisionError(
            'This model names no words of its own: give --classes "cat, dog, grass".'
        )
    check_words(model, classes)
    model.set_classes(classes)
    count = 0
    failed: list[str] = []
    with (
        protecting(*sources.files),
        Writer(args.out, ("overlay", "labels"), every=args.every) as writer,
    ):
        for frame in progress(sources.frames(failed), len(sources), "image"):
            with leaving_out(frame.file, failed):
                found = segment(frame.source, classes, model)
                writer.add(frame, found.image, Labels(found.labels, classes))
                count += 1
    for path in writer.written:
        print(path)
    require_all(failed, count)


def add_clip_chains_arguments(parser: Parser) -> None:
    parser.add("chains CHAINS", "csv or csv.gz of chains (HierarCaps' form), see make-chains")
    model = parser.add_mutually_exclusive_group()
    add_clip_argument(parser, "the CLIP before tuning", "ViT-B-32:openai", group=model)
    parser.add(
        "--embeddings FILE",
        "instead of a CLIP: texts, images and root (or c) of any model",
        group=model,
    )
    parser.add("--tuned FILE", "a tuned text tower, or a checkpoint of its training")
    parser.add("--images DIR", "folder of the images of the chains, by file name or id")
    parser.add("--steps N", "radii of the walk", whole(1, 100_000), 50)
    parser.add("--show IMAGE...", "draw the walk of these images")
    parser.add("--candidates CHAINS", "chains whose texts --show chooses from")
    parser.add(
        "--traversal", "the walk of --show (default: hierarcaps)", choices=["hierarcaps", "meru"]
    )
    parser.add("--hyperlex FILE", "HyperLex's hyperlex-all.txt: rank correlations, too")
    parser.add("--tree FILE", "json of ancestors, or BREEDS' folder: retrieval, too")
    parser.add("--tree-images DIR", "class folders for --tree")
    text = (
        "sentence around the names of --hyperlex and --tree, such as 'a photo of a {}.' (default: "
        "the first that the weights name, else the bare name)"
    )
    parser.add("--template TEXT", text)
    parser.add("--out DIR", "folder of chains.json and images", default="chains", output="folder")
    add_device_argument(parser)


def run_clip_chains(args: Namespace) -> None:
    """``clip chains`` from parsed arguments: prints a table, writes it and images."""
    from hypvision.checkpoints.records import is_template
    from hypvision.clip.radial.measure import measure_chains, read_embeddings
    from hypvision.data.chains import find_image_files, read_chains
    from hypvision.io.images import leaving_out, open_image, require_all
    from hypvision.viz.radii import draw_levels

    if bool(args.tree) != bool(args.tree_images):
        raise HypvisionError("--tree and --tree-images need each other. Give both or none.")
    if args.template is not None and not is_template(args.template):
        raise HypvisionError(
            f"--template '{args.template}' must have one {{}}, where the name goes."
        )
    if not (args.hyperlex or args.tree):
        refuse(
            args,
            ["template"],
            "has an effect only with --hyperlex or --tree. Add one of them, or leave it out.",
        )
    if not args.show:
        refuse(
            args,
            ["candidates", "traversal"],
            "has an effect only with --show. Add that, or leave it out.",
        )
    if args.embeddings:
        because = "needs a CLIP, which --embeddings replaces. Leave out one of the two."
        refuse(args, ["tuned", "images", "candidates", "hyperlex", "tree", "device"], because)
    args.traversal = args.traversal or "hierarcaps"
    chains = read_chains(args.chains)
    texts = [chain.texts for chain in chains]
    images = [chain.image for chain in chains]
    out = Path(args.out)
    found = {}
    in_tree = 0
    failed: list[str] = []
    asked = args.show
    args.show = []
    for path in asked:
        with leaving_out(path, failed):
            open_image(path)
            args.show.append(path)
    if args.embeddings:
        embedded, embedded_images, space = read_embeddings(args.embeddings)
        try:
            found["embeddings"] = measure_chains(
                texts, images, embedded, embedded_images, space, args.steps
            )
        except HypvisionError as error:
            raise HypvisionError(f"'{args.embeddings}' and '{args.chains}': {error}") from error
        _show(args, {"embeddings": _walks_of_embeddings(args, found["embeddings"], texts, images)})
    else:
        files = None
        if args.images:
            named = [image for image in images if image is not None]
            if len(named) < len(images):
                raise HypvisionError(
                    f"The chains '{args.chains}' name no images (id or image_url)."
                )
            files = find_image_files(named, args.images)
        found, in_tree = _measure(args, texts, images, files, failed)
    width = max(len(name) for measured in found.values() for name in measured.values)
    print(f"{'':{width}}  " + "  ".join(f"{name:>10}" for name in found))
    for name in next(iter(found.values())).values:
        print(
            f"{name:{width}}  "
            + "  ".join(f"{measured.values[name]:10.4f}" for measured in found.values())
        )
    report = dict(
        chains=str(args.chains), steps=args.steps, models={k: m.values for k, m in found.items()}
    )
    write_json(out / "chains.json", report)
    draw_levels({name: m.space.radius(m.texts) for name, m in found.items()}, out / "radii.png")
    print(out / "chains.json")
    print(out / "radii.png")
    measured = next(iter(found.values())).images
    done = len(args.show) + in_tree + (0 if measured is None else len(measured))
    require_all(list(dict.fromkeys(failed)), done)


def _measure(args: Namespace, texts, images, files, failed: list[str]) -> tuple[dict, int]:
    """Measurements of a CLIP before and after tuning, and the number of images of the tree;
    ``failed`` gets the messages of images that cannot be read."""
    from hypvision.checkpoints.language import language_of
    from hypvision.checkpoints.read import read_file
    from hypvision.clip.radial.measure import measure_clip, measure_hyperlex, measure_tree
    from hypvision.clip.radial.retrieval import read_tree
    from hypvision.clip.radial.weights import merge_tower

    clip = clip_of(args)
    named = clip.templates
    if args.tuned:
        named = language_of(read_file(args.tuned)).templates or named
    template = args.template or next(iter(named), "{}")
    found = {}
    walks = {}
    root = None
    in_tree = 0
    for name in ("before", "after") if args.tuned else ("model",):
        if name == "after":
            root = merge_tower(clip.model, args.tuned)
        try:
            found[name] = measured = measure_clip(
                clip, texts, images, files, root, args.steps, failed
            )
        except HypvisionError as error:
            source = args.tuned if name == "after" else args.clip
            raise HypvisionError(f"'{source}' and '{args.chains}': {error}") from error
        if args.hyperlex:
            measured.values |= measure_hyperlex(clip, args.hyperlex, measured.space, template)
        if args.tree:
            recall, in_tree = measure_tree(
                clip, args.tree_images, read_tree(args.tree), template, failed
            )
            measured.values |= recall
        walks[name] = _walks_of_clip(args, clip, measured.space, texts)
    _show(args, walks)
    return found, in_tree


def _walks_of_clip(args: Namespace, clip, space, texts) -> list:
    """The walk of each image of ``--show`` through the candidates' texts."""
    from hypvision.clip.radial.measure import walk_images
    from hypvision.data.chains import read_chains

    if not args.show:
        return []
    chains = [chain.texts for chain in read_chains(args.candidates)] if args.candidates else texts
    words = list(dict.fromkeys(text for chain in chains for text in chain))
    return walk_images(clip, args.show, words, space, args.steps, args.traversal)


def _walks_of_embeddings(args: Namespace, measured, texts, images) -> list:
    """The walk of each image of ``--show``, which is one of the chains, through their texts."""
    from hypvision.clip.radial.traversal import traverse

    if not args.show:
        return []
    if measured.images is None:
        raise HypvisionError(f"'{args.embeddings}' has no images, so --show has none to draw.")
    every = list(dict.fromkeys(images))
    rows = {Path(str(image)).stem: row for row, image in enumerate(every)}
    for path in args.show:
        same = [str(image) for image in every if Path(str(image)).stem == Path(path).stem]
        if len(same) > 1:
            raise HypvisionError(
                f"--show {path} may be {' or '.join(same[:2])} of '{args.chains}'. Rename one of "
                "them."
            )
    missing = [path for path in args.show if Path(path).stem not in rows]
    if missing:
        raise HypvisionError(
            f"The image '{missing[0]}' has no chain in '{args.chains}'. Name another, or add one."
        )
    shown = measured.images[[rows[Path(path).stem] for path in args.show]]
    place: dict[str, int] = {}
    for place_of, text in enumerate(text for chain in texts for text in chain):
        place.setdefault(text, place_of)
    candidates = measured.texts.flatten(0, 1)[list(place.values())]
    words = list(place)
    return [
        traverse(image, candidates, words, measured.space, args.steps, args.traversal)
        for image in shown
    ]


def _show(args: Namespace, walks: dict) -> None:
    """Print and draw the walks, those of both models side by side."""
    from hypvision.io.images import open_image
    from hypvision.viz.radii import draw_walks
    from hypvision.viz.sheet import save_figure

    for index, image_path in enumerate(args.show):
        print(image_path)
        for name, found in walks.items():
            for step in found[index]:
                numbers = (
                    f"threshold {step.threshold:.3f}  radius {step.radius:.3f}  similarity "
                    f"{step.similarity:.3f}"
                )
                print(f"  {name:6}  {numbers}  {step.text}")
        path = below(args.out, f"{index:02d}_{Path(image_path).stem}.png")
        drawn = {name: [step[:3] for step in found[index]] for name, found in walks.items()}
        save_figure(draw_walks(open_image(image_path), drawn), path, dpi=110)
        print(path)


def add_clip_make_chains_arguments(parser: Parser) -> None:
    text = "shapes (drawn scenes), emoji (a folder of them) or captions (your own)"
    parser.add("source SOURCE", text, choices=["shapes", "emoji", "captions"])
    parser.add("out OUT", "csv or csv.gz", output="file")
    parser.add("--length", "chains of shapes (default: 1000)", whole(1, 10_000_000))
    parser.add("--root DIR", "folder of emoji (default: data/emoji)")
    parser.add("--split", "of shapes or emoji (default: train)", choices=["train", "val", "test"])
    parser.add(
        "--captions FILE", "of captions: a caption a line, or csv with the columns image,caption"
    )
    parser.add("--terms FILE", "of captions: csv word,broader, or the folder of a WordNet export")
    parser.add("--levels", "texts of a chain of captions (default: 4)", whole(3, 50))
    parser.add("--seed", "of the choice of negatives", whole(0), 0)


def run_clip_make_chains(args: Namespace) -> None:
    from hypvision.data.chains import emoji_chains, shape_chains, write_chains
    from hypvision.data.hypernyms import build_chains, read_captions, read_terms

    read = dict(
        shapes=("length", "split"),
        emoji=("root", "split"),
        captions=("captions", "terms", "levels"),
    )
    others = {name for names in read.values() for name in names} - {*read[args.source]}
    refuse(args, sorted(others), f"has no effect on chains of {args.source}. Leave it out.")
    split = args.split or "train"
    if args.source == "captions":
        if not (args.captions and args.terms):
            raise HypvisionError("make-chains captions needs --captions FILE and --terms FILE.")
        captions = read_captions(args.captions)
        chains = build_chains(captions, read_terms(args.terms), args.levels or 4, args.seed)
        print(f"{len(chains)} of {len(captions)} captions have a chain.")
    elif args.source == "emoji":
        chains = emoji_chains(args.root or "data/emoji", split, seed=args.seed)
    else:
        chains = shape_chains(args.length or 1000, split, seed=args.seed)
    write_chains(args.out, chains)
    print(f"{args.out}: {len(chains)} chains of {len(chains[0].texts)} texts")


def add_clip_radius_arguments(parser: Parser) -> None:
    add_clip_argument(parser, "the CLIP before tuning", "ViT-B-16:openai")
    parser.add("--adapter FILE", "a saved HyperCLIP adapter: the CLIP after tuning")
    parser.add("--classes LIST...", 'known lists, files, or "cat, dog"', default=["coco171"])
    parser.add("--images IMAGE...", "images, whose patches are measured")
    parser.add(
        "--convention", "with the factor 2 or not", default="metric2", choices=["metric2", "half"]
    )
    parser.add("--sweep S...", "scale the adapter by these", number)
    add_device_argument(parser)
    parser.add(
        "--out DIR", "folder of radius.json and radius.png", default="radius", output="folder"
    )


def run_clip_radius(args: Namespace) -> None:
    """``clip radius`` from parsed arguments: prints statistics, writes them and a drawing."""
    from hypvision.clip import adapters
    from hypvision.clip.radius import measure_radii, radius_statistics, scale_sweep
    from hypvision.clip.segmentation.segment import parse_classes
    from hypvision.clip.towers import find_towers
    from hypvision.data.classes import load_classes
    from hypvision.inference.sources import find_files
    from hypvision.io.images import require_all
    from hypvision.viz.radii import draw_radii

    clip = clip_of(args)
    lists = {str(source): load_classes(parse_classes(source)) for source in args.classes}
    images = find_files(args.images)
    how = dict(convention=args.convention)
    failed: list[str] = []
    before = measure_radii(clip, lists, images, failed, **how)
    radii = {f"{name} before": value for name, value in before.items()}
    if args.adapter:
        adapters.load(clip.model, args.adapter)
        radii |= {
            f"{name} after": value
            for name, value in measure_radii(clip, lists, images, [], **how).items()
        }
    sweep: dict[float, float] = {}
    if args.sweep:
        if not args.adapter:
            adapters.inject(
                clip.model, block=math.gcd(128, *(tower.width for tower in find_towers(clip.model)))
            )
        sweep = scale_sweep(clip, next(iter(lists.values())), args.sweep, **how)
    statistics = {name: radius_statistics(value) for name, value in radii.items()}
    for name, numbers in statistics.items():
        print(f"{name}: " + ", ".join(f"{label} {value:.3f}" for label, value in numbers.items()))
    for factor, value in sweep.items():
        print(f"S x {factor:g}: mean text radius {value:.3f}")
    out = Path(args.out)
    report = dict(
        statistics=statistics, sweep={str(factor): value for factor, value in sweep.items()}
    )
    with protecting(*images):
        write_json(out / "radius.json", report)
        draw_radii(radii, sweep, out / "radius.png")
    print(out / "radius.json")
    print(out / "radius.png")
    require_all(failed, len(images) - len(failed))

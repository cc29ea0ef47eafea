"""``hypvision clip``: zero-shot evaluation, segmentation by class names, chains of texts from
general to specific, and hyperbolic radii."""

from __future__ import annotations

import math
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypvision.io import HypvisionError, ensure
from hypvision.io.files import below, in_columns, protecting, why_no_file, write_json, write_table

from .arguments import (
    Parser,
    add_clip_argument,
    add_device_argument,
    add_sources_arguments,
    clip_of,
    device_of,
    number,
    whole,
)

if TYPE_CHECKING:
    from hypvision.clip.models import CLIPBundle
    from hypvision.clip.radial.measure import Measured
    from hypvision.data.chains import Chain
    from hypvision.data.zero_shot import Benchmark

# Copied from hypvision.data.zero_shot.PUBLISHED and hypvision.data.classes.CLASS_LISTS, because
# importing them imports PyTorch.
SUITES = ("hycoclip", "uncha", "phyclip", "open_clip")
CLASS_LISTS = (
    "coco171", "ade150", "ade847", "pc59", "pc459", "voc20", "voc20b", "coco48", "coco17", "coco65",
    "coco116", "coco133",
)  # fmt: skip


def add_clip_segment_arguments(parser: Parser) -> None:
    add_sources_arguments(parser, "IMAGE")
    parser.add(
        "--classes LIST",
        'class names "cat, dog, grass", a .txt or .json file of them, or the name of a list: '
        f"{', '.join(CLASS_LISTS)}, imagenet (default: the words recorded with the weights)",
    )
    parser.add("--weights FILE", "checkpoint of a segmenter; without it a CLIP segments zero-shot")
    parser.add("--config FILE", "the config that the weights were trained with")
    add_clip_argument(parser, "zero-shot with this CLIP (default: ViT-B-16:openai)")
    add_device_argument(parser)
    parser.add("--out DIR", "folder of the results", default="segmented", output="folder")


def run_clip_segment(args: Namespace) -> None:
    """Run ``clip segment``: print the names of the files written."""
    from hypvision.clip.open_vocabulary import check_words
    from hypvision.clip.segmentation.segment import load_segmenter, parse_classes, segment
    from hypvision.data.classes import load_classes
    from hypvision.inference.progress import progress
    from hypvision.inference.results import Labels, Writer
    from hypvision.inference.sources import check_every, find_sources
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
    ensure(
        classes,
        'This model has no words recorded with its weights: give --classes "cat, dog, grass".',
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


def add_clip_evaluate_arguments(parser: Parser) -> None:
    add_clip_argument(parser, "the CLIP to measure", required=True)
    parser.add(
        "--suite",
        "data sets, prompts and metrics: those of one of these papers, or of CLIP_benchmark",
        choices=SUITES,
        required=True,
    )
    parser.add(
        "--data DIR",
        "folder of all data sets; sets that are missing there are left out",
        default="data",
    )
    parser.add("--sets NAME...", "only these sets of the suite")
    add_device_argument(parser)
    parser.add(
        "--out DIR",
        "folder of table.csv and a result file for each set; a set with such a file is not "
        "measured again",
        default="evaluated",
        output="folder",
    )


def run_clip_evaluate(args: Namespace) -> None:
    """Run ``clip evaluate``: print what is missing and a table of results, and write the table
    beside the result files."""
    from hypvision.clip.names import clip_options
    from hypvision.tasks.zero_shot import Evaluator, table

    root = Path(args.data).expanduser()
    there = _sets_there(args, root)
    clip = clip_of(args.clip, device_of(args))
    evaluator = Evaluator(clip, clip_options(args.clip), args.suite, root, Path(args.out))
    found = {}
    failed = []
    for benchmark in there:
        try:
            result, kept = evaluator(benchmark)
        except HypvisionError as error:
            failed.append(f"{benchmark.set}: {error}")
            continue
        found[benchmark.set] = benchmark, result
        images = result.hypvision["images"]
        print(f"{benchmark.set}: {images} images{', measured before' if kept else ''}")
    if found:
        rows = table(args.suite, found)
        print(_columns(rows))
        write_table(Path(args.out) / "table.csv", rows)
        print(Path(args.out) / "table.csv")
    if failed:
        raise HypvisionError(f"{len(failed)} sets could not be measured. {' '.join(failed)}")


def _sets_there(args: Namespace, root: Path) -> list[Benchmark]:
    """Return the chosen data sets that are in the folder, and print the others."""
    from hypvision.data.zero_shot import suite
    from hypvision.io import one_of

    sets = {benchmark.set: benchmark for benchmark in suite(args.suite)}
    found = []
    for name in args.sets or sets:
        one_of(sets, **{"A set of --sets": name})
        missing = sets[name].missing(root)
        if missing is None:
            found.append(sets[name])
        else:
            print(f"{name}: left out, there is no '{missing}'")
    ensure(
        found,
        f"None of these sets is in '{root}'. Give the folder of all data sets with --data.",
    )
    return found


def _columns(rows: list[dict[str, str]]) -> str:
    """Return a table as text in columns, with numbers aligned to the right and notes below."""
    names = [name for name in rows[0] if name != "note"]
    lines = [names, *([row[name] for name in names] for row in rows)]
    notes = [f"{row['set']}: {row['note']}" for row in rows if row["note"]]
    return "\n".join([in_columns(lines, "<<>"), *notes])


def add_clip_chains_arguments(parser: Parser) -> None:
    parser.add("chains CHAINS", "csv or csv.gz of chains (HierarCaps' form), see make-chains")
    model = parser.add_mutually_exclusive_group()
    add_clip_argument(parser, "the CLIP before tuning", "ViT-B-32:openai", group=model)
    parser.add(
        "--embeddings FILE",
        "instead of a CLIP: a file with any model's embeddings of the texts and images, and its "
        "root (or c)",
        group=model,
    )
    of_clip = partial(parser.add, without=["--embeddings"])
    of_clip("--tuned FILE", "a tuned text tower, or a checkpoint of its training")
    of_clip("--images DIR", "folder of the images of the chains, by file name or id")
    parser.add("--steps N", "number of radii of a walk", whole(1, 100_000), 50)
    parser.add("--show IMAGE...", "draw the walk of these images through the texts")
    shown = ["--show"]
    of_clip(
        "--candidates CHAINS",
        "chains whose texts a walk chooses from (default: CHAINS)",
        needs=shown,
    )
    choices = ["hierarcaps", "meru"]
    parser.add("--traversal", "choice of texts", default=choices[0], choices=choices, needs=shown)
    of_clip(
        "--hyperlex FILE",
        "file hyperlex-all.txt of HyperLex: also measure rank correlations with it",
    )
    of_clip(
        "--tree FILE",
        "json of ancestors, or BREEDS' folder: also measure retrieval in this tree",
        needs=["--tree-images"],
    )
    parser.add(
        "--tree-images DIR", "folder of the tree's images, one folder a class", needs=["--tree"]
    )
    parser.add(
        "--template TEXT",
        "sentence around the names, such as 'a photo of a {}.' (default: the first one recorded "
        "with the weights, or the bare name)",
        needs=["--hyperlex", "--tree"],
    )
    parser.add("--out DIR", "folder of chains.json and images", default="chains", output="folder")
    add_device_argument(parser, without=["--embeddings"])


def run_clip_chains(args: Namespace) -> None:
    """Run ``clip chains``: print and write a table of measurements, and draw images."""
    from hypvision.checkpoints.records import is_template
    from hypvision.data.chains import read_chains
    from hypvision.io.images import leaving_out, open_image, require_all
    from hypvision.viz.radii import draw_levels

    ensure(
        args.template is None or is_template(args.template),
        f"--template '{args.template}' must contain {{}} once, where the name goes.",
    )
    chains = read_chains(args.chains)
    out = Path(args.out)
    failed: list[str] = []
    asked = args.show
    args.show = []
    for path in asked:
        with leaving_out(path, failed):
            open_image(path)
            args.show.append(path)
    in_tree = 0
    if args.embeddings:
        found = {"embeddings": _measure_embeddings(args, chains)}
    else:
        found, in_tree = _measure(args, chains, failed)
    print(_table(found))
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


def _table(found: dict[str, Measured]) -> str:
    """Return the measured numbers as a text, with a column for each model."""
    names = next(iter(found.values())).values
    rows = [[name, *(f"{one.values[name]:.4f}" for one in found.values())] for name in names]
    return in_columns([["", *found], *rows], "<>")


def _measure_embeddings(args: Namespace, chains: list[Chain]) -> Measured:
    """Return measurements of the embeddings of another model."""
    from hypvision.clip.radial.measure import measure_chains, read_embeddings

    texts = [chain.texts for chain in chains]
    images = [chain.image for chain in chains]
    embedded, embedded_images, space = read_embeddings(args.embeddings)
    try:
        found = measure_chains(texts, images, embedded, embedded_images, space, args.steps)
    except HypvisionError as error:
        raise HypvisionError(f"'{args.embeddings}' and '{args.chains}': {error}") from error
    _show(args, {"embeddings": _walks_of_embeddings(args, found, texts, images)})
    return found


def _files_of(args: Namespace, chains: list[Chain]) -> Any:
    """Return the image files of the chains in ``--images``; None without this option."""
    from hypvision.data.chains import find_image_files

    if not args.images:
        return None
    named = [chain.image for chain in chains if chain.image is not None]
    if len(named) < len(chains):
        raise HypvisionError(
            f"The chains '{args.chains}' name no images. Add a column id or image_url, or leave "
            "out --images."
        )
    return find_image_files(named, args.images)


def _read_sources(args: Namespace) -> Any:
    """Read the files that a CLIP is measured by, before one is loaded, and return the tree of
    classes; None without ``--tree``."""
    from hypvision.clip.radial.measure import images_of_tree
    from hypvision.clip.radial.retrieval import read_hyperlex, read_tree

    if args.hyperlex:
        read_hyperlex(args.hyperlex)
    if not args.tree:
        return None
    tree = read_tree(args.tree)
    images_of_tree(args.tree_images, tree)
    return tree


def _measure(args: Namespace, chains: list[Chain], failed: list[str]) -> tuple[dict, int]:
    """Return measurements of a CLIP before and after tuning, and the number of images of the tree;
    messages of images that cannot be read are added to ``failed``."""
    from hypvision.checkpoints.language import language_of
    from hypvision.checkpoints.read import read_file
    from hypvision.clip.radial.measure import measure_clip, measure_hyperlex, measure_tree
    from hypvision.clip.radial.weights import merge_tower

    files = _files_of(args, chains)
    device = device_of(args)
    tree = _read_sources(args)
    words = _candidates(args, chains)
    of_tuned = language_of(read_file(args.tuned)).templates if args.tuned else ()
    clip = clip_of(args.clip, device)
    texts = [chain.texts for chain in chains]
    images = [chain.image for chain in chains]
    template = next(filter(None, [args.template, *of_tuned, *clip.templates, "{}"]))
    found = {}
    walks = {}
    root = None
    in_tree = 0
    sources = dict(before=args.clip, after=args.tuned) if args.tuned else dict(model=args.clip)
    for name, source in sources.items():
        if name == "after":
            root = merge_tower(clip.model, source)
        try:
            measured = measure_clip(clip, texts, images, files, root, args.steps, failed)
        except HypvisionError as error:
            raise HypvisionError(f"'{source}' and '{args.chains}': {error}") from error
        if args.hyperlex:
            measured.values |= measure_hyperlex(clip, args.hyperlex, measured.space, template)
        if tree is not None:
            recall, in_tree = measure_tree(clip, args.tree_images, tree, template, failed)
            measured.values |= recall
        found[name] = measured
        walks[name] = _walks_of_clip(args, clip, measured.space, words)
    _show(args, walks)
    return found, in_tree


def _candidates(args: Namespace, chains: list[Chain]) -> list[str]:
    """Return the texts that a walk chooses from."""
    from hypvision.data.chains import read_chains

    chosen = read_chains(args.candidates) if args.candidates else chains
    return list(dict.fromkeys(text for chain in chosen for text in chain.texts))


def _walks_of_clip(args: Namespace, clip, space, words: list[str]) -> list:
    """Return the walk of each image of ``--show`` through the candidates' texts."""
    from hypvision.clip.radial.measure import walk_images

    if not args.show:
        return []
    return walk_images(clip, args.show, words, space, args.steps, args.traversal)


def _walks_of_embeddings(args: Namespace, measured: Measured, texts, images) -> list:
    """Return the walk of each image of ``--show`` through the texts of all chains; each image must
    belong to a chain."""
    from hypvision.clip.radial.traversal import traverse

    if not args.show:
        return []
    if measured.images is None:
        raise HypvisionError(
            f"'{args.embeddings}' has no images, so there is nothing to draw. Leave out --show."
        )
    rows: dict[str, list[int]] = {}
    every = list(map(str, dict.fromkeys(images)))
    for row, image in enumerate(every):
        rows.setdefault(Path(image).stem, []).append(row)
    shown = [_row_shown(path, rows, every, args.chains) for path in args.show]
    place: dict[str, int] = {}
    for place_of, text in enumerate(text for chain in texts for text in chain):
        place.setdefault(text, place_of)
    candidates = measured.texts.flatten(0, 1)[list(place.values())]
    return [
        traverse(image, candidates, list(place), measured.space, args.steps, args.traversal)
        for image in measured.images[shown]
    ]


def _row_shown(path: str, rows: dict[str, list[int]], every: list[str], chains: str) -> int:
    """Return the number of the chains' image that a path of ``--show`` names."""
    found = rows.get(Path(path).stem, [])
    ensure(
        found,
        f"The image '{path}' has no chain in '{chains}'. Give another image, or add its chain.",
    )
    if len(found) > 1:
        same = " or ".join(every[row] for row in found[:2])
        raise HypvisionError(
            f"--show {path} may mean {same} of '{chains}'. Rename one of these images."
        )
    return found[0]


def _show(args: Namespace, walks: dict) -> None:
    """Print and draw the walks of the images, those of both models side by side."""
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
    parser.add(
        "source SOURCE",
        "source of the texts: emoji (a folder of them) or captions (your own)",
        choices=["emoji", "captions"],
    )
    parser.add("out OUT", "csv or csv.gz file to write", output="file")
    parser.add("--root DIR", "folder of emoji", default="data/emoji", needs=["emoji"])
    splits = ["train", "val", "test"]
    parser.add("--split", "split of the data", default="train", choices=splits, needs=["emoji"])
    of_captions = ["captions"]
    parser.add(
        "--captions FILE",
        "file with a caption a line, or csv with the columns image,caption",
        needs=of_captions,
    )
    parser.add(
        "--terms FILE",
        "csv with the columns word,broader, or the folder of a WordNet export",
        needs=of_captions,
    )
    parser.add("--levels", "number of texts in a chain", whole(3, 50), 4, needs=of_captions)
    parser.add("--seed", "seed of the choice of negatives", whole(0), 0)


def run_clip_make_chains(args: Namespace) -> None:
    """Run ``clip make-chains``: write the chains, and print how many there are."""
    from hypvision.data.chains import emoji_chains, write_chains

    if args.source == "captions":
        chains = _chains_of_captions(args)
    else:
        chains = emoji_chains(args.root, args.split, seed=args.seed)
    write_chains(args.out, chains)
    print(f"{args.out}: {len(chains)} chains of {len(chains[0].texts)} texts")


def _chains_of_captions(args: Namespace) -> list[Chain]:
    from hypvision.data.hypernyms import build_chains, read_captions, read_terms

    ensure(
        args.captions and args.terms,
        "make-chains captions needs --captions FILE and --terms FILE.",
    )
    captions = read_captions(args.captions)
    chains = build_chains(captions, read_terms(args.terms), args.levels, args.seed)
    print(f"{len(chains)} of {len(captions)} captions have a chain.")
    return chains


def add_clip_radius_arguments(parser: Parser) -> None:
    add_clip_argument(parser, "the CLIP before tuning", "ViT-B-16:openai")
    parser.add("--adapter FILE", "a saved HyperCLIP adapter: the CLIP after tuning")
    parser.add(
        "--classes LIST...",
        'names to measure: known lists, files, or "cat, dog"',
        default=["coco171"],
    )
    parser.add("--images IMAGE...", "images whose patches are measured")
    parser.add(
        "--convention",
        "distances with the factor 2 (metric2) or without it (half)",
        default="metric2",
        choices=["metric2", "half"],
    )
    parser.add(
        "--sweep S...", "measure the mean text radius with the adapter scaled by these, too", number
    )
    add_device_argument(parser)
    parser.add(
        "--out DIR", "folder of radius.json and radius.png", default="radius", output="folder"
    )


def run_clip_radius(args: Namespace) -> None:
    """Run ``clip radius``: print and write statistics of radii, and draw them."""
    from hypvision.clip import adapters
    from hypvision.clip.radius import measure_radii, radius_statistics
    from hypvision.clip.segmentation.segment import parse_classes
    from hypvision.data.classes import load_classes
    from hypvision.inference.sources import find_files
    from hypvision.io.images import require_all
    from hypvision.viz.radii import draw_radii

    device = device_of(args)
    lists = {str(source): load_classes(parse_classes(source)) for source in args.classes}
    images = find_files(args.images)
    _check_adapter(args.adapter)
    clip = clip_of(args.clip, device)
    how = dict(convention=args.convention)
    failed: list[str] = []
    before = measure_radii(clip, lists, images, failed, **how)
    radii = {f"{name} before": value for name, value in before.items()}
    if args.adapter:
        adapters.load(clip.model, args.adapter)
        after = measure_radii(clip, lists, images, [], **how)
        radii |= {f"{name} after": value for name, value in after.items()}
    sweep = _sweep(args, clip, next(iter(lists.values())))
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


def _check_adapter(path: str | None) -> None:
    there = path is None or Path(path).expanduser().is_file()
    ensure(there, f"{why_no_file(path or '', 'adapter')} Check the path.")


def _sweep(args: Namespace, clip: CLIPBundle, classes: Any) -> dict[float, float]:
    """Return the mean text radius for each factor of ``--sweep``, with the saved adapter or a new
    one."""
    from hypvision.clip import adapters
    from hypvision.clip.radius import scale_sweep
    from hypvision.clip.towers import find_towers

    if args.sweep and not args.adapter:
        widths = [tower.width for tower in find_towers(clip.model)]
        adapters.inject(clip.model, block=math.gcd(128, *widths))
    found: dict[float, float] = {}
    if args.sweep:
        found = scale_sweep(clip, classes, args.sweep, convention=args.convention)
    return found

"""``hypvision clip chains``: how a model orders texts from general to specific; ``make-chains``: chains to measure."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from hypvision.cli.arguments import Parser, add_clip_argument, add_device_argument, clip_of, whole


def add_clip_chains_arguments(parser: Parser) -> None:
    parser.add_argument("chains", metavar="CHAINS", help="csv or csv.gz of chains (HierarCaps' form), see make-chains")
    model = parser.add_mutually_exclusive_group()
    add_clip_argument(model, "the CLIP before tuning (default: ViT-B-32:openai)", "ViT-B-32:openai")
    text = "instead of a CLIP: texts, images and root (or c) of any model"
    model.add_argument("--embeddings", metavar="FILE", help=text)
    parser.add_argument("--tuned", metavar="FILE", help="a tuned text tower, or a checkpoint of its training")
    parser.add_argument("--images", metavar="DIR", help="folder of the images of the chains, by file name or id")
    text = "radii of the walk (default: 50)"
    parser.add_argument("--steps", type=whole(1, 100_000), default=50, metavar="N", help=text)
    parser.add_argument("--show", nargs="+", default=[], metavar="IMAGE", help="draw the walk of these images")
    parser.add_argument("--candidates", metavar="CHAINS", help="chains whose texts --show chooses from")
    parser.add_argument("--traversal", choices=["hierarcaps", "meru"], default="hierarcaps", help="the walk of --show")
    parser.add_argument("--hyperlex", metavar="FILE", help="HyperLex's hyperlex-all.txt: rank correlations, too")
    parser.add_argument("--tree", metavar="FILE", help="json of ancestors, or BREEDS' folder: retrieval, too")
    parser.add_argument("--tree-images", metavar="DIR", help="class folders for --tree")
    parser.add_argument("--template", default="{}", metavar="TEXT", help="sentence around the names of --hyperlex and "
                        "--tree, such as 'a photo of a {}.' (default: the bare name)")  # fmt: skip
    text = "folder of chains.json and images (default: chains)"
    parser.add_output("--out", what="folder", default="chains", metavar="DIR", help=text)
    add_device_argument(parser)


def run_clip_chains(args: Namespace) -> None:
    """``clip chains`` from parsed arguments: prints a table, writes it and images."""
    from hypvision.clip.radial.measure import find_image_files, measure_chains, read_embeddings
    from hypvision.data.chains import read_chains
    from hypvision.errors import HypvisionError
    from hypvision.files import write_json
    from hypvision.images import leaving_out, open_image, require_all
    from hypvision.viz.radii import draw_levels

    if bool(args.tree) != bool(args.tree_images):
        raise HypvisionError(
            "--tree (the tree of labels) and --tree-images (the folders of its classes) need each other. Give both or "
            "none."
        )
    if args.template.count("{}") != 1 or set(args.template.replace("{}", "")) & set("{}"):
        raise HypvisionError(f"--template '{args.template}' must have one {{}}, where the name goes.")
    if args.candidates and not args.show:
        raise HypvisionError(
            "--candidates has an effect only with --show IMAGE, which chooses among them. Add --show, or leave it out."
        )
    chains = read_chains(args.chains)
    texts, images = [chain.texts for chain in chains], [chain.image for chain in chains]
    out, found, in_tree = Path(args.out), {}, 0
    failed: list[str] = []
    asked, args.show = args.show, []
    for path in asked:
        with leaving_out(path, failed):
            open_image(path)
            args.show.append(path)
    if args.embeddings:
        if given := [name for name in ("tuned", "images", "candidates", "hyperlex", "tree") if getattr(args, name)]:
            raise HypvisionError(
                f"--{given[0]} needs a CLIP, but --embeddings replaces the model. Leave out one of the two."
            )
        embedded, embedded_images, space = read_embeddings(args.embeddings)
        try:
            found["embeddings"] = measure_chains(texts, images, embedded, embedded_images, space, args.steps)
        except HypvisionError as error:
            raise HypvisionError(f"'{args.embeddings}' and '{args.chains}': {error}") from error
        _show(args, {"embeddings": _walks_of_embeddings(args, found["embeddings"], texts, images)})
    else:
        files = None
        if args.images:
            named = [image for image in images if image is not None]
            if len(named) < len(images):
                raise HypvisionError(f"The chains '{args.chains}' name no images (id or image_url).")
            files = find_image_files(named, args.images)
        found, in_tree = _measure(args, texts, images, files, failed)
    width = max(len(name) for measured in found.values() for name in measured.values)
    print(f"{'':{width}}  " + "  ".join(f"{name:>10}" for name in found))
    for name in next(iter(found.values())).values:
        print(f"{name:{width}}  " + "  ".join(f"{measured.values[name]:10.4f}" for measured in found.values()))
    report = dict(chains=str(args.chains), steps=args.steps, models={k: m.values for k, m in found.items()})
    write_json(out / "chains.json", report)
    draw_levels({name: m.space.radius(m.texts) for name, m in found.items()}, out / "radii.png")
    print(out / "chains.json")
    print(out / "radii.png")
    measured = next(iter(found.values())).images
    done = len(args.show) + in_tree + (0 if measured is None else len(measured))
    require_all(list(dict.fromkeys(failed)), done)


def _measure(args: Namespace, texts, images, files, failed: list[str]) -> tuple[dict, int]:
    """Measurements of a CLIP before and after tuning, and the number of images of the tree; ``failed`` gets the
    messages of images that cannot be read."""
    from hypvision.clip.radial.measure import measure_clip, measure_hyperlex, measure_tree
    from hypvision.clip.radial.retrieval import read_tree
    from hypvision.clip.radial.weights import merge_tower
    from hypvision.errors import HypvisionError

    clip = clip_of(args)
    found, walks, root, in_tree = {}, {}, None, 0
    for name in ("before", "after") if args.tuned else ("model",):
        if name == "after":
            root = merge_tower(clip.model, args.tuned)
        try:
            found[name] = measured = measure_clip(clip, texts, images, files, root, args.steps, failed)
        except HypvisionError as error:
            source = args.tuned if name == "after" else args.clip
            raise HypvisionError(f"'{source}' and '{args.chains}': {error}") from error
        if args.hyperlex:
            measured.values |= measure_hyperlex(clip, args.hyperlex, measured.space, args.template)
        if args.tree:
            recall, in_tree = measure_tree(clip, args.tree_images, read_tree(args.tree), args.template, failed)
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
    from hypvision.errors import HypvisionError

    if not args.show:
        return []
    if measured.images is None:
        raise HypvisionError(f"'{args.embeddings}' has no images, so --show has none to draw.")
    rows = {Path(str(image)).stem: row for row, image in enumerate(dict.fromkeys(images))}
    if missing := [path for path in args.show if Path(path).stem not in rows]:
        raise HypvisionError(
            f"The image '{missing[0]}' has no chain in '{args.chains}'. Name another image, or add its chain."
        )
    shown = measured.images[[rows[Path(path).stem] for path in args.show]]
    place: dict[str, int] = {}
    for number, text in enumerate(text for chain in texts for text in chain):
        place.setdefault(text, number)
    candidates, words = measured.texts.flatten(0, 1)[list(place.values())], list(place)
    return [traverse(image, candidates, words, measured.space, args.steps, args.traversal) for image in shown]


def _show(args: Namespace, walks: dict) -> None:
    """Print and draw the walks, those of both models side by side."""
    from hypvision.files import below
    from hypvision.images import open_image
    from hypvision.viz.radii import draw_walks
    from hypvision.viz.sheet import save_figure

    for number, image_path in enumerate(args.show):
        print(image_path)
        for name, found in walks.items():
            for step in found[number]:
                numbers = f"threshold {step.threshold:.3f}  radius {step.radius:.3f}  similarity {step.similarity:.3f}"
                print(f"  {name:6}  {numbers}  {step.text}")
        path = below(args.out, f"{number:02d}_{Path(image_path).stem}.png")
        drawn = {name: [step[:3] for step in found[number]] for name, found in walks.items()}
        save_figure(draw_walks(open_image(image_path), drawn), path, dpi=110)
        print(path)


def add_clip_make_chains_arguments(parser: Parser) -> None:
    parser.add_argument("source", choices=["shapes", "emoji", "captions"], metavar="SOURCE",
                        help="shapes (drawn scenes), emoji (a folder of them) or captions (your own)")  # fmt: skip
    parser.add_output("out", metavar="OUT", help="csv or csv.gz")
    parser.add_argument("--length", type=whole(1, 10_000_000), default=1000, help="chains of shapes (default: 1000)")
    parser.add_argument("--root", default="data/emoji", metavar="DIR", help="folder of emoji")
    parser.add_argument("--split", choices=["train", "val", "test"], default="train", help="of shapes or emoji")
    parser.add_argument("--captions", metavar="FILE", help="a caption a line, or csv with the columns image,caption")
    parser.add_argument("--terms", metavar="FILE", help="csv word,broader, or the folder of a WordNet export")
    parser.add_argument("--levels", type=whole(3, 50), default=4, help="texts of a chain of captions (default: 4)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the choice of negatives")


def run_clip_make_chains(args: Namespace) -> None:
    from hypvision.data.broader import build_chains, read_captions, read_terms
    from hypvision.data.chains import emoji_chains, shape_chains, write_chains
    from hypvision.errors import HypvisionError

    if args.source == "captions":
        if not (args.captions and args.terms):
            raise HypvisionError("make-chains captions needs --captions FILE and --terms FILE.")
        captions = read_captions(args.captions)
        chains = build_chains(captions, read_terms(args.terms), args.levels, args.seed)
        print(f"{len(chains)} of {len(captions)} captions have a chain.")
    elif args.source == "emoji":
        chains = emoji_chains(args.root, args.split, seed=args.seed)
    else:
        chains = shape_chains(args.length, args.split, seed=args.seed)
    write_chains(args.out, chains)
    print(f"{args.out}: {len(chains)} chains of {len(chains[0].texts)} texts")

"""``hypvision disk WORDS|FOLDER``: a hierarchy of words, or of photos grouped by their features, as
a page with a Poincare disk to walk through."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from hypvision.io import HypvisionError
from hypvision.io.files import protecting

from .arguments import Parser, add_device_argument, device_of, whole

MODEL = "tf_efficientnet_lite0.imagenet"  # its weights ship and are trained on photos


def add_disk_arguments(parser: Parser) -> None:
    parser.add(
        "source WORDS|FOLDER",
        'names from general to special: "animal > mammal > tiger, animal > bird > eagle", a .txt '
        "file of such lines, or a .csv or .tsv file of names and parents; or a folder "
        "of photos, with its sub-folders",
    )
    parser.add("--out FILE", "page to write", default="disk.html", output="file")
    parser.add("--gif FILE", "also a GIF of a walk through the disk", output="file")
    parser.add(
        "--model NAME",
        "model whose features say how alike photos are: any timm model, CLIP or weights of the zoo",
        default=MODEL,
    )
    parser.add("--most N", "largest number of photos, taken evenly from all", whole(3), 300)
    parser.add("--steps N", "number of steps of the training", whole(1), 400)
    parser.add("--seed N", "seed of the training", whole(0), 0)
    add_device_argument(parser)


def run_disk(args: Namespace) -> None:
    """Run ``disk``: write the page, and print what was written."""
    from hypvision.io.images import require_all
    from hypvision.tasks.word_disk import read_words, settle
    from hypvision.viz.disk_page import write_gif, write_page

    for name, ending in (("out", ".html"), ("gif", ".gif")):
        path = getattr(args, name)
        if path is not None and not path.lower().endswith(ending):
            raise HypvisionError(f"--{name} '{path}' must end in {ending}.")
    failed: list[str] = []
    if Path(args.source).is_dir():
        hierarchy, files = _photos(args, failed)
        title = Path(args.source).resolve().name
    else:
        hierarchy = read_words(args.source)
        files = []
        title = "Hierarchy" if ">" in args.source else Path(args.source).stem
    with protecting(*files):
        page = settle(hierarchy, title.replace("_", " "), args.steps, args.seed)
        write_page(page, args.out)
        what = "groups and photos" if files else "names"
        print(f"{len(page.labels)} {what} in {args.out}: open it in a browser")
        if args.gif is not None:
            write_gif(page, args.gif)
            print(f"A walk in {args.gif}")
    require_all(failed, len(hierarchy.pictures))


def _photos(args: Namespace, failed: list[str]):
    from dataclasses import replace

    from hypvision.tasks.embedding import named_embedder
    from hypvision.tasks.search import find_gallery
    from hypvision.tasks.word_disk import group_photos

    sources = find_gallery(args.source)
    images = sources.images
    if len(images) > args.most:
        print(f"{args.most} of {len(images)} photos are shown; --most N takes more.")
        chosen = [images[i * len(images) // args.most] for i in range(args.most)]
        sources = replace(sources, images=tuple(chosen))
    device = device_of(args)
    embedder = named_embedder(args.model, device)
    return group_photos(embedder, sources, args.source, device, failed), sources.files

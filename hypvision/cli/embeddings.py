"""``hypvision embed``, ``search`` and ``hierarchy``: embeddings of images.

All take a metric learner, by its config and checkpoint; ``embed`` and ``search`` also any timm model, whose features
compare by cosine.
"""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from hypvision.cli.arguments import Parser, add_device_argument, device_of, whole
from hypvision.errors import HypvisionError, require

__all__ = [
    "add_embed_arguments",
    "add_hierarchy_arguments",
    "add_search_arguments",
    "run_embed",
    "run_hierarchy",
    "run_search",
]


def _add_model_arguments(parser: Parser, timm: bool = True) -> None:
    parser.add_argument("--config", metavar="CONFIG", required=not timm, help="config of a trained metric learner")
    text = "checkpoint; for --model the default is its published weights" if timm else "checkpoint"
    parser.add_argument("--weights", metavar="FILE", required=not timm, help=text)
    if timm:
        parser.add_argument(
            "--model",
            metavar="NAME",
            help="a timm model instead, such as resnet50 or resnet50.a1_in1k; its features compare by cosine. The "
            "weights are those of --weights, else the published ones of that name (timm's default for it), which are "
            "fetched once",
        )
    parser.add_argument("--batch", type=whole(1), default=32, metavar="N", help="images at a time (default: 32)")
    add_device_argument(parser)


def _embedder(args: Namespace, device: str):
    from hypvision.tasks.embedding import load_embedder

    if args.config is not None:
        import hypvision.openmmlab  # noqa: F401 - lets mmengine load weights by the addresses of the zoo
    return load_embedder(args.config, args.weights, args.model, device)


def add_embed_arguments(parser: Parser) -> None:
    """The arguments of ``embed``."""
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image, folder of images, or glob pattern")
    _add_model_arguments(parser)
    text = "NumPy archive to write (default: embeddings.npz)"
    parser.add_output("--out", default="embeddings.npz", metavar="FILE", help=text)


def run_embed(args: Namespace) -> None:
    """``embed`` from parsed arguments: a NumPy archive of ``embeddings``, ``paths``, ``space``, ``weights``."""
    import numpy as np

    from hypvision.files import check_output, protecting, replacing
    from hypvision.images import find_images
    from hypvision.tasks.embedding import embed_images

    device = device_of(args)
    out = Path(args.out)
    out = check_output(out.with_name(out.name if out.suffix == ".npz" else out.name + ".npz"))
    embedder = _embedder(args, device)
    paths = find_images(args.images)
    vectors = embed_images(embedder, paths, args.batch, device)
    names = np.array([str(path) for path in paths])
    with protecting(*paths), replacing(out) as temporary:
        np.savez(temporary, paths=names, embeddings=vectors.numpy(), space=embedder.space, weights=embedder.weights)
    print(
        f"{len(paths)} embeddings of {vectors.shape[1]} numbers ({embedder.space}) in {out}; weights {embedder.weights}"
    )


def add_search_arguments(parser: Parser) -> None:
    """The arguments of ``search``."""
    parser.add_argument("image", metavar="IMAGE", help="the image to look for")
    parser.add_argument("--gallery", required=True, metavar="DIR", help="folder to search, with its sub-folders")
    _add_model_arguments(parser)
    parser.add_argument("-k", type=whole(1), default=9, metavar="N", help="neighbours (default: 9)")
    text = "image to write, .png, .jpg, .jpeg or .webp (default: search.png)"
    parser.add_output("--out", default="search.png", metavar="FILE", help=text)


def run_search(args: Namespace) -> None:
    """``search`` from parsed arguments: prints the nearest images and draws them."""
    from hypvision.files import check_output, protecting
    from hypvision.images import images_in, open_image
    from hypvision.tasks.embedding import distances, embed_images
    from hypvision.tasks.metric_learning_metrics import nearest
    from hypvision.viz.sheet import image_format, save_image, search_sheet

    device = device_of(args)
    image_format(args.out)  # refuses a wrong one before the work
    query = open_image(args.image)
    paths = [path for path in images_in(args.gallery) if path.resolve() != Path(args.image).resolve()]
    if not paths:
        raise HypvisionError(f"The folder '{args.gallery}' has no other image than the one to look for.")
    with protecting(*paths):
        check_output(args.out)
        embedder = _embedder(args, device)
        gallery = embed_images(embedder, paths, args.batch, device)
        point = embed_images(embedder, [Path(args.image)], device=device)
        ((_, numbers),) = nearest(point, gallery, args.k, embedder.space)
        results = []
        for number, distance in zip(
            numbers[0].tolist(), distances(point[0], gallery[numbers[0]], embedder.space).tolist()
        ):
            path = paths[number]
            print(f"{distance:.4f}  {path}")
            results.append((open_image(path), f"{distance:.3f}  {path.parent.name}/{path.name}"))
        save_image(search_sheet(query, results), args.out)
    print(f"Drawn in {args.out}; weights {embedder.weights}")


def add_hierarchy_arguments(parser: Parser) -> None:
    """The arguments of ``hierarchy``."""
    _add_model_arguments(parser, timm=False)
    parser.add_argument("--split", choices=["train", "test", "both"], default="both", help="which data (default: both)")
    text = "images of a class (default: 100)"
    parser.add_argument("--per-class", type=whole(1), default=100, metavar="N", help=text)
    text = "folder of the results (default: hierarchy)"
    parser.add_output("--out", what="folder", default="hierarchy", metavar="DIR", help=text)
    parser.add_argument("--data-root", metavar="DIR", help="folder of the data, if not the config's")


def run_hierarchy(args: Namespace) -> None:
    """``hierarchy`` from parsed arguments; see :func:`hypvision.tasks.class_hierarchy.class_hierarchy`."""
    require("matplotlib", "viz")
    import hypvision.openmmlab  # noqa: F401 - as above
    from hypvision.tasks.class_hierarchy import class_hierarchy, embed_classes
    from hypvision.tasks.embedding import load_learner

    device = device_of(args)
    learner, config = load_learner(args.config, args.weights)
    data = embed_classes(learner.to(device), config, args.split, args.per_class, args.batch, args.data_root, device)
    print(json.dumps(class_hierarchy(learner.cpu(), data, args.out)))
    print(f"Drawn in {args.out}")

"""``hypvision metric``: embeddings of images, their nearest neighbours, and hierarchies.

``embed``, ``search`` and ``hierarchy`` take a metric learner, by its config and checkpoint;
``embed`` and ``search`` also take a classifier or any timm model, whose features compare by cosine,
and any CLIP, which also embeds texts. ``closure`` embeds a hierarchy of names.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from hypvision.io import Plain, require, without_secrets
from hypvision.io.files import (
    check_output,
    protecting,
    replacing,
    with_ending,
    write_json,
    write_table,
)

from .arguments import (
    Parser,
    add_clip_argument,
    add_device_argument,
    add_sources_arguments,
    add_texts_argument,
    clip_of,
    device_of,
    number,
    texts_of,
    whole,
)

if TYPE_CHECKING:
    from hypvision.inference.sources import Frame, Sources
    from hypvision.tasks.embedding import Embedder
    from hypvision.tasks.search import Found


def _add_model_arguments(parser: Parser) -> None:
    """Add the arguments that name a metric learner, a classifier, a timm model or a CLIP."""
    text = "config of a trained metric learner or classifier"
    model = parser.add_mutually_exclusive_group(required=True)
    parser.add("--config CONFIG", text, group=model)
    parser.add(
        "--weights FILE",
        "checkpoint; for --model the default is the model's published weights",
        without=["--clip"],
    )
    parser.add(
        "--model NAME|CONFIG",
        "a timm model instead, such as resnet50 or resnet50.a1_in1k; its features compare by "
        "cosine. The weights are those of --weights, or else the published ones of this name "
        "(timm's default for it), fetched once; a config is taken as by --config",
        group=model,
    )
    add_clip_argument(parser, "a CLIP instead, for images and texts", group=model)
    _add_speed_arguments(parser)


def _add_speed_arguments(parser: Parser) -> None:
    parser.add("--batch N", "number of images at a time", whole(1), 32)
    add_device_argument(parser)


def _add_queries(parser: Parser, what: str) -> None:
    """Add the arguments for images, or for texts instead of them."""
    group = parser.add_mutually_exclusive_group(required=True)
    add_sources_arguments(parser, "IMAGE", group=group)
    add_texts_argument(parser, what, group=group)


def _sources_of(args: Namespace, *others: Sources) -> Sources:
    """Return the sources of the images, none for texts; ``--every`` must have an effect on these or
    the other sources."""
    from hypvision.inference.sources import Sources, check_every, find_sources

    found = find_sources(args.images, args.every) if args.images else Sources(())
    check_every(args.every, *others, found)
    return found


def _embedder(args: Namespace, device: str) -> Embedder:
    from hypvision.inference.predictors import means_config
    from hypvision.tasks.embedding import clip_embedder, load_embedder

    if args.clip is not None:
        return clip_embedder(clip_of(args.clip, device), args.clip)
    config = args.config
    model = args.model
    if model is not None and means_config(model):
        config = model
        model = None
    if config is not None:
        import hypvision.openmmlab  # noqa: F401 - lets mmengine load zoo addresses
    return load_embedder(config, args.weights, model, device)


def add_metric_embed_arguments(parser: Parser) -> None:
    _add_queries(parser, "texts to embed instead of images")
    _add_model_arguments(parser)
    parser.add("--save FILE", "NumPy archive to write", default="embeddings.npz", output="file")


def run_metric_embed(args: Namespace) -> None:
    """Run ``metric embed``: write a NumPy archive of ``embeddings``, ``paths``, ``frames`` (numbers
    in a video; -1 for images), ``space``, its curvature ``c`` and ``weights``; for texts ``texts``
    replace the paths and frames."""
    import numpy as np

    from hypvision.io.images import require_all
    from hypvision.tasks.embedding import embed_sources

    device = device_of(args)
    out = check_output(with_ending(args.save, ".npz"))
    texts = texts_of(args, once=False)
    sources = _sources_of(args)
    embedder = _embedder(args, device)
    about: Plain = dict(
        space=embedder.space, c=embedder.c, weights=without_secrets(embedder.weights)
    )
    failed: list[str] = []
    if texts:
        vectors = embedder.embed_texts(texts).float().cpu()
        about["texts"] = np.array(texts)
    else:
        frames, vectors = embed_sources(embedder, sources, args.batch, device, failed)
        about["paths"] = np.array([frame.file for frame in frames])
        about["frames"] = np.array(
            [-1 if frame.number is None else frame.number for frame in frames]
        )
    with protecting(*sources.files), replacing(out) as temporary:
        np.savez(temporary, embeddings=vectors.numpy(), **about)
    print(
        f"{len(vectors)} embeddings of {vectors.shape[1]} numbers ({embedder.space}) in {out}; "
        f"weights {embedder.weights}"
    )
    require_all(failed, len(vectors))


def add_metric_search_arguments(parser: Parser) -> None:
    _add_queries(parser, "texts to look for instead of images")
    parser.add("--gallery DIR", "images to search: a folder, or what IMAGE can be", required=True)
    _add_model_arguments(parser)
    parser.add("-k N", "number of neighbours", whole(1), 9)
    parser.add(
        "--save FILE",
        "image to write, .png, .jpg, .jpeg or .webp (default: search.png; for several queries "
        "search_NAME.png); the neighbours are listed beside it in .json and .csv",
        default="search.png",
        output="file",
    )


def run_metric_search(args: Namespace) -> None:
    """Run ``metric search``: print, draw and list the nearest images."""
    from hypvision.io.images import require_all
    from hypvision.tasks.search import find_gallery, search
    from hypvision.viz.sheet import image_format

    device = device_of(args)
    out = Path(args.save)
    image_format(out)  # checks the suffix before the long computation
    texts = texts_of(args)
    gallery = find_gallery(args.gallery, args.every)
    sources = _sources_of(args, gallery)
    with protecting(*sources.files, *gallery.files):
        for ending in (out.suffix, ".json", ".csv"):
            check_output(out.with_suffix(ending))
        embedder = _embedder(args, device)
        failed: list[str] = []
        asked = texts or sources
        found = search(embedder, asked, gallery, args.k, args.batch, device, failed=failed)
        content = []
        rows = []
        for each in found:
            entries = [{**_entry(n.frame), "distance": n.distance} for n in each.neighbours]
            own: Plain = dict(text=each.query.file) if texts else _entry(each.query)
            content.append({**own, "neighbours": entries})
            about = dict(query=each.query.file, query_frame=each.query.number)
            rows += [{**about, "rank": rank, **entry} for rank, entry in enumerate(entries, 1)]
            path = out
            if len(found) > 1:
                path = out.with_stem(f"{out.stem}_{each.query.stem}")
            kind = "cosine" if embedder.space == "cosine" else "hyperbolic"
            print(f"Nearest to {_caption(each.query)}, behind their {kind} distances:")
            _draw_found(each, path)
        info = dict(
            weights=without_secrets(embedder.weights), space=embedder.space, gallery=args.gallery
        )
        write_json(out.with_suffix(".json"), dict(info=info, queries=content))
        write_table(out.with_suffix(".csv"), rows)
    where = path if len(found) < 2 else out.with_stem(f"{out.stem}_*")
    print(f"Drawn in {where}; weights {embedder.weights}")
    require_all(list(dict.fromkeys(failed)), len(gallery) + len(sources) - len(failed))


def _draw_found(found: Found, path: Path) -> None:
    """Print the neighbours of a query, and write a sheet of their pictures."""
    from hypvision.viz.sheet import save_image, search_sheet

    tiles = []
    # Images that differ in their endings alone are named with these.
    short = Counter(Path(frame.file).with_suffix("") for frame, _, _ in found.neighbours)
    for frame, distance, copy in found.neighbours:
        print(f"{distance:.4f}  {_caption(frame)}")
        place = Path(frame.file)
        name = place.stem if short[place.with_suffix("")] == 1 else place.name
        tiles.append((copy, f"{distance:.3f}  {place.parent.name}/{name}"))
    save_image(search_sheet(found.image, tiles), path)


def _entry(frame: Frame) -> dict[str, str | int]:
    number = {} if frame.number is None else {"frame": frame.number}
    return {"file": frame.file, **number}


def _caption(frame: Frame) -> str:
    return frame.file if frame.number is None else f"{frame.file}, frame {frame.number}"


def add_metric_hierarchy_arguments(parser: Parser) -> None:
    parser.add("--config CONFIG", "config of a trained metric learner", required=True)
    parser.add("--weights FILE", "checkpoint of the training", required=True)
    _add_speed_arguments(parser)
    parser.add("--split", "part of the data", default="both", choices=["train", "test", "both"])
    parser.add("--per-class N", "largest number of images of a class", whole(1), 100)
    parser.add("--out DIR", "folder of the results", default="hierarchy", output="folder")
    parser.add("--data-root DIR", "folder of the data, if it is not the config's")


def run_metric_hierarchy(args: Namespace) -> None:
    """Run ``metric hierarchy``: measure and draw the hierarchy of classes; see
    :func:`hypvision.tasks.class_hierarchy.class_hierarchy`."""
    require("matplotlib", "viz")
    import hypvision.openmmlab  # noqa: F401 - lets mmengine load zoo addresses
    from hypvision.tasks.class_hierarchy import class_hierarchy, embed_classes
    from hypvision.tasks.embedding import load_learner

    device = device_of(args)
    learner, config = load_learner(args.config, args.weights)
    data = embed_classes(
        learner.to(device), config, args.split, args.per_class, args.batch, args.data_root, device
    )
    print(json.dumps(class_hierarchy(learner.cpu(), data, args.out)))
    print(f"Drawn in {args.out}")


def add_metric_closure_arguments(parser: Parser) -> None:
    parser.add(
        "closure FILE",
        "pairs of a name and one of its ancestors: csv with the header id1,id2[,weight], or two "
        "columns and a tab",
    )
    parser.add("--transitive", "the file has only parents: take the ancestors of ancestors, too")
    parser.add("--dim N", "number of dimensions", whole(1), 2)
    parser.add(
        "--steps N",
        "steps of training (default: by the number of pairs, 400 to 2500); give more for many "
        "thousands of names",
        whole(1),
    )
    parser.add("--rate X", "learning rate (default: 0.5 in two dimensions, 0.3 in more)", number)
    parser.add(
        "--negatives N",
        "names drawn for each pair, which should be further away than its ancestor",
        whole(1),
        50,
    )
    parser.add("--batch N", "number of pairs in a step", whole(1), 256)
    parser.add("--seed N", "seed of the first points and of the pairs", whole(0), 0)
    parser.add(
        "--out DIR",
        "folder of disk.png (with the root in the centre), points.csv (in the Poincare ball, not "
        "centred) and closure.json (default: closure)",
        default="closure",
        output="folder",
    )


def run_metric_closure(args: Namespace) -> None:
    """Run ``metric closure``: embed and draw a hierarchy of names; see
    :func:`hypvision.tasks.closures.draw_closure`."""
    from hypvision.data.closures import read_closure
    from hypvision.tasks.closures import draw_closure

    closure = read_closure(args.closure, args.transitive)
    names = ("dim", "steps", "rate", "negatives", "batch", "seed")
    options = {name: getattr(args, name) for name in names}
    print(
        json.dumps(
            draw_closure(closure, args.out, Path(args.closure).stem.replace("_", " "), **options)
        )
    )
    print(f"Drawn in {args.out}")

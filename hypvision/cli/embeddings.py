"""Embeddings of pictures on the command line: ``hypvision embed``, ``search`` and ``hierarchy``.

All take a metric learner, by its config and checkpoint; ``embed`` and ``search`` also any timm model, whose features
compare by cosine.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from tqdm import tqdm

import hypvision.models  # noqa: F401 - registers the models
from hypvision.cli.explain import find_images, load_weights, open_image
from hypvision.errors import HypvisionError, require
from hypvision.files import replacing
from hypvision.viz.sheet import picture_format, save_picture

__all__ = [
    "Embedder",
    "add_embed_arguments",
    "add_hierarchy_arguments",
    "add_search_arguments",
    "embed_images",
    "load_embedder",
    "load_learner",
    "recovered_hierarchy",
    "run_embed",
    "run_hierarchy",
    "run_search",
    "search_sheet",
]

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}


class Embedder(NamedTuple):
    """A model that embeds pictures: tensors ``(B, 3, H, W)`` to vectors, the transform before, how vectors compare, and
    the name or file of its weights."""

    embed: Callable[[Tensor], Tensor]
    transform: Callable[[Image.Image], Tensor]
    space: str
    weights: str


def load_learner(config: str | Path, weights: str | Path):
    """A trained metric learner and its config.

    Args:
        config: config file with a ``MetricLearner``.
        weights: checkpoint of its training: a path, ``zoo:NAME``, ``hf-hub:...``, or an address with its sum.

    Returns:
        The :class:`~hypvision.tasks.metric_learning.MetricLearner` in evaluation mode, and the config.

    Raises:
        HypvisionError: no such files, another kind of model, or weights of another architecture.
    """
    require("mmengine", "mm")
    from mmengine.registry import MODELS, DefaultScope

    import hypvision.openmmlab
    import hypvision.tasks.metric_learning  # noqa: F401 - registers the learner
    from hypvision.checkpoints.match import check_compatible
    from hypvision.engine.checkpoint import engine_names, load
    from hypvision.engine.config import load_config

    config = load_config(config)
    if config.model.get("type") != "MetricLearner":
        raise HypvisionError(
            f"The config '{config.filename}' describes a {config.model.get('type')}, not a MetricLearner. Give one of "
            "configs/lhier, or your own like them."
        )
    config.model.backbone.pretrained = False  # the checkpoint has the weights
    with DefaultScope.overwrite_default_scope("mmengine"):
        model = MODELS.build(config.model)
    state = engine_names(model, load(weights))
    state = state.get("state_dict", state)
    check_compatible(model, state, str(weights))
    model.load_state_dict(state)
    return model.eval(), config


def load_embedder(
    config: str | Path | None = None,
    weights: str | Path | None = None,
    model: str | None = None,
    device: str = "cpu",
) -> Embedder:
    """A metric learner (``config`` and ``weights``), or a timm ``model``, on a device.

    A timm model without ``weights`` has its published ones, those that ``pretrained=True`` means.

    Raises:
        HypvisionError: neither or both; what :func:`load_learner` and timm say; a model without published weights, or
            they cannot be fetched.
    """
    if (config is None) == (model is None):
        raise HypvisionError("Give either --config CONFIG --weights FILE, or --model NAME.")
    if config is not None:
        if weights is None:
            raise HypvisionError("--config needs --weights, the checkpoint of its training.")
        learner, settings = load_learner(config, weights)
        learner.to(device)
        from hypvision.data.image_folder import build_transform

        transform = build_transform(settings.test_dataloader.dataset.transform.to_dict())
        return Embedder(lambda x: learner.comparable(learner.embed(x)), transform, learner.space, str(weights))
    from timm.data import create_transform, resolve_data_config

    network = _timm_model(str(model), pretrained=weights is None).eval()
    name = str(weights)
    if weights is not None:
        load_weights(network, weights)
    else:
        published = network.pretrained_cfg
        name = ".".join(filter(None, (published.get("architecture") or str(model), published.get("tag"))))
    settings = resolve_data_config({}, model=network)
    return Embedder(network.to(device), create_transform(**settings), "cosine", name)


def _timm_model(name: str, pretrained: bool) -> nn.Module:
    """A timm model without head, with its published weights or with random ones that the caller replaces."""
    from hypvision.tasks.classification import create_backbone

    try:
        return create_backbone(name, num_classes=0, pretrained=pretrained)
    except HypvisionError:
        raise
    except Exception as error:
        # Whatever the download raises: the hub has its own errors, and so have the sockets below it.
        if not pretrained:
            raise
        if "No pretrained weights exist" in str(error):
            raise HypvisionError(
                f"There are no published weights of the model '{name}', and random ones find nothing. Give --weights "
                "FILE, the checkpoint of a training of it."
            ) from error
        raise HypvisionError(
            f"The published weights of '{name}' cannot be fetched ({type(error).__name__}: {error}). Check the "
            "connection, or give a file with --weights FILE."
        ) from error


@torch.inference_mode()
def embed_images(embedder: Embedder, paths: Sequence[Path], batch_size: int = 32, device: str = "cpu") -> Tensor:
    """Embeddings ``(N, d)`` of picture files, float32.

    Raises:
        HypvisionError: a file that is no picture.
    """
    found = []
    for start in tqdm(range(0, len(paths), batch_size), unit="batch", disable=len(paths) <= batch_size):
        images = [embedder.transform(open_image(path).convert("RGB")) for path in paths[start : start + batch_size]]
        found.append(embedder.embed(torch.stack(images).to(device)).float().cpu())
    return torch.cat(found)


def search_sheet(
    query: Image.Image, results: Sequence[tuple[Image.Image, str]], columns: int = 5, cell: int = 160
) -> Image.Image:
    """A picture of the query, framed in blue, and of its neighbours with a line of text below each."""
    tiles = [(query, "query"), *results]
    columns = min(columns, len(tiles))
    rows = -(-len(tiles) // columns)
    gap, line = 8, 16
    sheet = Image.new("RGB", (columns * (cell + gap) + gap, rows * (cell + line + gap) + gap), "white")
    draw = ImageDraw.Draw(sheet)
    for i, (picture, text) in enumerate(tiles):
        row, column = divmod(i, columns)
        x, y = gap + column * (cell + gap), gap + row * (cell + line + gap)
        scale = cell / max(picture.size)
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        smooth = Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BICUBIC
        tile = picture.convert("RGB").resize(size, smooth)
        sheet.paste(tile, (x + (cell - size[0]) // 2, y + (cell - size[1]) // 2))
        if i == 0:
            draw.rectangle((x - 3, y - 3, x + cell + 2, y + cell + 2), outline=(40, 90, 200), width=3)
        draw.text((x, y + cell + 2), text[: cell // 6], fill="black")
    return sheet


def _gallery(folder: str | Path) -> list[Path]:
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise HypvisionError(f"There is no folder '{folder}' to search in. Give --gallery a folder of pictures.")
    found = sorted(path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not found:
        raise HypvisionError(
            f"The folder '{folder}' has no pictures ({' '.join(sorted(SUFFIXES))}), also not below it."
        )
    return found


def _distance(x: Tensor, y: Tensor, space: str) -> Tensor:
    """Distances of ``x`` ``(d,)`` from ``y`` ``(N, d)``: hyperbolic of curvature 1, or 1 - cosine."""
    from hypvision.geometry import lorentz

    if space == "lorentz":
        return lorentz.dist(x.expand_as(y), y, 1.0)
    return (1 - torch.cosine_similarity(x[None], y)).clamp(min=0)


# The hierarchy of classes


def recovered_hierarchy(points: Tensor, labels: Tensor, ancestors: Sequence[Sequence[str]]) -> dict[str, float]:
    """How well the distances of class centres follow a hierarchy: cophenetic correlations.

    Args:
        points: embeddings of unit curvature ``(N, n + 1)``.
        labels: ``(N,)``.
        ancestors: see :func:`hypvision.tasks.metric_learning_metrics.lca_heights`.

    Returns:
        ``distances``: correlation of the distances of the centres (Lorentz centroids) with the true heights; ``tree``:
        of the heights of their average-linkage tree with them.
    """
    from hypvision.tasks.metric_learning_metrics import lca_heights
    from hypvision.viz.tree import average_linkage, cophenetic_correlation, cophenetic_distances

    between = _centre_distances(points, labels)
    true = lca_heights(ancestors).numpy()
    return {
        "distances": cophenetic_correlation(between, true),
        "tree": cophenetic_correlation(cophenetic_distances(average_linkage(between)), true),
    }


def _centre_distances(points: Tensor, labels: Tensor) -> np.ndarray:
    from hypvision.geometry import lorentz

    points = points.double()
    centres = [lorentz.centroid(points[labels == label], None, 1.0) for label in labels.unique()]
    centres = torch.stack(centres)
    found = lorentz.cdist(centres, centres, 1.0).numpy()
    return (found + found.T) / 2


# The command line


def _add_model_arguments(parser: ArgumentParser, timm: bool = True) -> None:
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
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="pictures at a time (default: 32)")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU, if there is one")


def add_embed_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``embed``."""
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="picture, folder of pictures, or glob pattern")
    _add_model_arguments(parser)
    parser.add_argument(
        "--out", default="embeddings.npz", metavar="FILE", help="NumPy archive to write (default: embeddings.npz)"
    )


def run_embed(args: Namespace) -> None:
    """``embed`` from parsed arguments: a NumPy archive of ``embeddings``, ``paths``, ``space``, ``weights``."""
    device = _check(args)
    embedder = load_embedder(args.config, args.weights, args.model, device)
    paths = find_images(args.images)
    found = embed_images(embedder, paths, args.batch, device)
    out = Path(args.out)
    out = out.with_name(out.name if out.suffix == ".npz" else out.name + ".npz")
    paths_written = np.array([str(path) for path in paths])
    with replacing(out) as temporary:
        content = dict(embeddings=found.numpy(), space=embedder.space, weights=embedder.weights)
        np.savez(temporary, paths=paths_written, **content)
    print(
        f"{len(paths)} embeddings of {found.shape[1]} numbers ({embedder.space}) in {out}; weights {embedder.weights}"
    )


def add_search_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``search``."""
    parser.add_argument("image", metavar="IMAGE", help="the picture to look for")
    parser.add_argument("--gallery", required=True, metavar="DIR", help="folder to search, with its sub-folders")
    _add_model_arguments(parser)
    parser.add_argument("-k", type=int, default=9, metavar="N", help="neighbours (default: 9)")
    text = "picture to write, .png, .jpg, .jpeg or .webp (default: search.png)"
    parser.add_argument("--out", default="search.png", metavar="FILE", help=text)


def run_search(args: Namespace) -> None:
    """``search`` from parsed arguments: prints the nearest pictures and draws them."""
    from hypvision.tasks.metric_learning_metrics import nearest

    device = _check(args)
    if args.k < 1:
        raise HypvisionError(f"-k must be at least 1, got {args.k}.")
    picture_format(args.out)  # refuses a wrong one before the work
    query = open_image(args.image).convert("RGB")
    paths = [path for path in _gallery(args.gallery) if path.resolve() != Path(args.image).resolve()]
    if not paths:
        raise HypvisionError(f"The folder '{args.gallery}' has no other picture than the one to look for.")
    embedder = load_embedder(args.config, args.weights, args.model, device)
    gallery = embed_images(embedder, paths, args.batch, device)
    point = embed_images(embedder, [Path(args.image)], device=device)
    ((_, numbers),) = nearest(point, gallery, args.k, embedder.space)
    distances = _distance(point[0], gallery[numbers[0]], embedder.space)
    results = []
    for number, distance in zip(numbers[0].tolist(), distances.tolist()):
        print(f"{distance:.4f}  {paths[number]}")
        results.append((open_image(paths[number]), f"{distance:.3f}  {paths[number].parent.name}/{paths[number].name}"))
    save_picture(search_sheet(query, results), args.out)
    print(f"Drawn in {args.out}; weights {embedder.weights}")


def add_hierarchy_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``hierarchy``."""
    _add_model_arguments(parser, timm=False)
    parser.add_argument("--split", choices=["train", "test", "both"], default="both", help="which data (default: both)")
    parser.add_argument("--per-class", type=int, default=100, metavar="N", help="pictures of a class (default: 100)")
    parser.add_argument("--out", default="hierarchy", metavar="DIR", help="folder of the results (default: hierarchy)")
    parser.add_argument("--data-root", metavar="DIR", help="folder of the data, if not the config's")


def run_hierarchy(args: Namespace) -> None:
    """``hierarchy`` from parsed arguments.

    Writes ``disk.png`` (samples, class centres and proxies in the Poincare disk), ``tree.png`` (the tree of the class
    centres), ``proxies.png`` (that of the proxies with the classes nearest to them) and ``hierarchy.json``.
    """
    require("matplotlib", "viz")
    device = _check(args)
    if args.per_class < 1:
        raise HypvisionError(f"--per-class must be at least 1, got {args.per_class}.")
    learner, config = load_learner(args.config, args.weights)
    points, labels, classes, ancestors, examples = _embed_data(learner.to(device), config, args, device)
    learner.cpu()
    if len(classes) < 2:
        raise HypvisionError("A hierarchy needs at least two classes of data.")
    report: dict[str, object] = dict(classes=list(classes), pictures=len(points))
    if learner.neck.manifold.learnable:
        report["curvature"] = learner.neck.manifold._value()
    if ancestors and ancestors[0]:
        report["cophenetic"] = recovered_hierarchy(_hyperbolic(points, learner), labels, ancestors)
    out = Path(args.out)
    _draw(learner, points, labels, classes, examples, out, report)
    with replacing(out / "hierarchy.json") as temporary:
        temporary.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    print(f"Drawn in {out}")


def _hyperbolic(points: Tensor, learner) -> Tensor:
    """Embeddings as points of unit curvature; directions of a Euclidean learner become points at the radius 1."""
    if learner.space == "lorentz":
        return points
    from hypvision.geometry import lorentz

    return lorentz.expmap0(points, 1.0)


@torch.inference_mode()
def _embed_data(learner, config, args: Namespace, device: str):
    """Points, labels, class names, their ancestors and an example of each, from the data of a config."""
    from mmengine.registry import DATASETS

    import hypvision.data.retrieval  # noqa: F401 - registers the data sets

    points, labels, classes, ancestors, examples = [], [], [], [], []
    parts = dict(train=["train_dataloader"], test=["test_dataloader"])
    for key in [*parts["train"], *parts["test"]] if args.split == "both" else parts[args.split]:
        settings = config[key].dataset.to_dict()
        settings["transform"] = config.test_dataloader.dataset.transform.to_dict()
        settings.pop("cache", None)
        if args.data_root:
            old = str(config.data_root).rstrip("/")
            settings["root"] = args.data_root.rstrip("/") + str(settings["root"]).removeprefix(old)
        data = DATASETS.build(settings)
        above = data.metainfo.get("ancestors")
        for label in np.unique(data.labels).tolist():
            members = np.flatnonzero(data.labels == label)
            chosen = members[np.linspace(0, len(members) - 1, min(args.per_class, len(members))).astype(int)].tolist()
            for start in range(0, len(chosen), args.batch):
                images = torch.stack([data[i]["inputs"] for i in chosen[start : start + args.batch]])
                points.append(learner.comparable(learner.embed(images.to(device))).cpu())
            labels += [len(classes)] * len(chosen)
            classes.append(data.metainfo["classes"][label])
            ancestors.append(above[label] if above else ())
            examples.append(data.read(chosen[0]))
    return torch.cat(points), torch.tensor(labels), classes, ancestors, examples


def _draw(learner, points: Tensor, labels: Tensor, classes, examples, out: Path, report: dict) -> None:
    from hypvision.geometry import Lorentz, lorentz
    from hypvision.viz.disk import draw_embedding
    from hypvision.viz.palette import palette
    from hypvision.viz.tree import average_linkage, draw_tree

    space = Lorentz(1.0)
    points = _hyperbolic(points, learner)
    proxies = None
    if learner.hier_loss is not None:
        with torch.no_grad():
            proxies = learner.comparable(learner.hier_loss.points())
    _save(draw_embedding(points, labels.tolist(), space, classes, proxies), out / "disk.png")
    colours = ["#{:02x}{:02x}{:02x}".format(*c) for c in palette(len(classes) + 2)[1:]]
    title = ""
    if "cophenetic" in report:
        title = f"cophenetic correlation {report['cophenetic']['tree']:.2f}"
    tree = average_linkage(_centre_distances(points, labels))
    _save(draw_tree(tree, classes, colours, examples, title), out / "tree.png")
    if proxies is None:
        return
    nodes = proxies.double()
    centres = torch.stack([lorentz.centroid(points[labels == i].double(), None, 1.0) for i in range(len(classes))])
    # The proxies that are ancestors of something: those nearest to a sample, at most 40 of them.
    near = lorentz.cdist(points.double(), nodes, 1.0).argmin(1)
    used = torch.bincount(near, minlength=len(nodes)).argsort(descending=True)
    used = used[: min(40, int((torch.bincount(near, minlength=len(nodes)) > 0).sum()))]
    both = torch.cat([centres, nodes[used]])
    found = lorentz.cdist(both, both, 1.0).numpy()
    names = [*classes, *(f"proxy {i}" for i in used.tolist())]
    shades = [*colours[: len(classes)], *["#999999"] * len(used)]
    _save(draw_tree(average_linkage((found + found.T) / 2), names, shades), out / "proxies.png")


def _save(figure, path: Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def _check(args: Namespace) -> str:
    """Check what the commands share; the device to use."""
    if args.batch < 1:
        raise HypvisionError(f"--batch must be at least 1, got {args.batch}.")
    if args.device and args.device.startswith("cuda") and not torch.cuda.is_available():
        raise HypvisionError("--device cuda: PyTorch finds no GPU here. Leave the option out to use the CPU.")
    return args.device or ("cuda" if torch.cuda.is_available() else "cpu")

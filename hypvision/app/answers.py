"""The answers of each tab of the app; the models that were used last stay in memory.

A name that is typed into the page must not open an arbitrary file of this machine. So models are
only given by names of timm, of the zoo or of open_clip, and folders must lie below the one that the
app was started with.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import timm
from PIL import Image
from torch import Tensor

from hypvision.checkpoints.index import builtin_index
from hypvision.clip.locate import clips_here
from hypvision.clip.models import create_clip, pretrained_tags
from hypvision.clip.names import clip_options, parse_name
from hypvision.clip.radial.measure import walk_images
from hypvision.clip.segmentation.segment import load_segmenter, segment
from hypvision.data.classes import split_classes
from hypvision.data.closures import closure_of, read_closure
from hypvision.geometry import Lorentz
from hypvision.inference import Classes, predict
from hypvision.inference.predictors import Request, load_predictor
from hypvision.inference.sources import Frame, Sources, find_sources
from hypvision.io import HypvisionError, StrPath, did_you_mean, ensure
from hypvision.io.images import open_image
from hypvision.tasks.closures import closure_ranks, embed_closure
from hypvision.tasks.embedding import embed_sources, gives_features, named_embedder
from hypvision.tasks.search import find_gallery, search
from hypvision.viz import draw_segmentation, explain
from hypvision.viz.interactive import interactive_hierarchy
from hypvision.viz.radii import draw_walks
from hypvision.zoo.backbones import build_model, explained_models, model_and_weights, side_seen

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from plotly.graph_objects import Figure as Plot

HIERARCHY = """\
thing > animal > mammal > dog
thing > animal > mammal > cat
thing > animal > mammal > horse
thing > animal > mammal > whale
thing > animal > bird > eagle
thing > animal > bird > duck
thing > animal > bird > penguin
thing > animal > fish > salmon
thing > animal > fish > shark
thing > plant > tree > oak
thing > plant > tree > birch
thing > plant > tree > palm
thing > plant > flower > rose
thing > plant > flower > tulip
thing > vehicle > car > taxi
thing > vehicle > car > ambulance
thing > vehicle > ship > ferry
thing > vehicle > ship > tanker
thing > vehicle > aircraft > glider
thing > vehicle > aircraft > helicopter"""
# Texts about emoji to choose from, the general ones first.
TEXTS = """\
animal or plant
food or drink
smiley or emotion
travel or place
mammal
fruit
sea animal
land transport
water transport
monster or costume face
zebra
kiwi fruit
crab
sport utility vehicle
metro
speedboat
hot face
alien
a zebra and a speedboat
a crab and a metro"""
MAX_PIXELS = 16_000_000  # largest photo
# Longer side to which a larger photo is reduced: models see less, and masks of 16 million pixels
# take minutes.
SIDE = 2048
MAX_BYTES = 64 * 2**20  # largest unpacked file of a closure
MAX_PAIRS = 1_000_000  # largest number of pairs of a name and its ancestor
KEPT = 2  # number of models of each kind that stay in memory
Captioned = tuple[Image.Image, str]


class Answers:
    """The functions that the tabs of the page call.

    Args:
        gallery: folder of images to search; None: there is no search.
        device: device on which the models compute.
        max_pixels: largest number of pixels of a photo; a larger JPEG is read at a half to an
            eighth of its size, other larger photos are refused.
    """

    def __init__(
        self, gallery: StrPath | None = None, device: str = "cpu", max_pixels: int = MAX_PIXELS
    ):
        self.device = device
        self.max_pixels = max_pixels
        self.gallery = None if gallery is None else Path(gallery).expanduser().resolve()
        ensure(
            self.gallery is None or self.gallery.is_dir(),
            f"There is no folder '{gallery}'. Give a folder of images to search.",
        )
        keep = lru_cache(maxsize=KEPT)
        self._predictor = keep(
            lambda name, words: load_predictor(Request(name, classes=words, device=device))
        )
        self._explained = keep(lambda name: build_model(name).to(device))
        self._embedder = keep(lambda name: named_embedder(name, device))
        self._segmenter = keep(lambda name: load_segmenter(clip=name).to(device))
        self._clip = keep(self._load_clip)
        self._embedded = keep(self._embed)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process gets only the settings: it loads the models itself.
        return Answers, (self.gallery, self.device, self.max_pixels)

    def _photo(self, path: str | None) -> Image.Image:
        if not path:
            raise HypvisionError("No photo is given. Upload one, or choose an example.")
        image = open_image(path, self.max_pixels)
        image.thumbnail((SIDE, SIDE))
        return image

    def _load_clip(self, name: str) -> Any:
        clip = create_clip(**clip_options(name))
        clip.model.to(self.device)
        return clip

    def _embed(
        self, name: str, gallery: Sources, times: tuple[int, ...]
    ) -> tuple[list[Frame], Tensor]:
        """Return the frames and embeddings of the gallery by a model; ``times``, when its files
        were changed, are a part of the cache's key, so that changed files are embedded again."""
        failed: list[str] = []
        embedded = embed_sources(self._embedder(name), gallery, device=self.device, failed=failed)
        for message in failed:
            warnings.warn(f"Left out of the gallery: {message}", stacklevel=2)
        return embedded

    def classify(
        self, photo: str | None, model: str, words: str = ""
    ) -> tuple[dict[str, float], list[Captioned]]:
        """Return the scores of the best classes in the file ``photo``, and the model's drawings:
        what it finds, its clusters, or its tree of parts. ``model`` is a name of timm or of the
        zoo; a CLIP compares the photo with ``words``, separated by commas."""
        name = known_model(model)
        image = self._photo(photo)
        [found] = predict(image, self._predictor(name, tuple(_listed(words)) or None))
        scores: dict[str, float] = {}
        drawings: list[Captioned] = []
        if isinstance(found.result, Classes):
            for item in found.result.annotations():
                scores.setdefault(item["name"], item["score"])
        else:
            drawing = found.result.draw(image)
            if drawing is not None:
                drawings.append((drawing, found.result.task))
        network, weights = model_and_weights(name)
        if network.partition(".")[0] in explained_models():
            seen = self._explained(name)
            drawings += [
                (drawn, kind)
                for kind, drawn in explain(seen, image, side_seen(seen, weights)).items()
            ]
        return scores, drawings

    def find(
        self, words: str, photo: str | None, model: str, count: int = 9, folder: str = ""
    ) -> list[tuple[Image.Image, str]]:
        """Return the images of the gallery, or of a folder in it, that are nearest to ``words`` or
        to the file ``photo``, each with its distance and name. Words need a CLIP."""
        ensure(
            bool(words.strip()) != bool(photo),
            "Give either words or an example image, not both.",
        )
        root = self._below(folder)
        name = model.strip() if gives_features(model.strip()) else known_clip(model)
        gallery = self._own(find_gallery(root))
        times = tuple(file.stat().st_mtime_ns for file in gallery.files)
        embedded = self._embedded(name, gallery, times)
        asked: Sources | list[str] = (
            [words.strip()] if words.strip() else find_sources(self._photo(photo))
        )
        [found] = search(
            self._embedder(name), asked, gallery, int(count), device=self.device, embedded=embedded
        )
        return [
            (image, f"{distance:.3f}  {Path(frame.file).relative_to(root).as_posix()}")
            for frame, distance, image in found.neighbours
        ]

    def _own(self, found: Sources) -> Sources:
        """Return the sources that lie in the gallery itself, because a link may lead elsewhere."""
        assert self.gallery is not None
        images = [
            image
            for image in found.images
            if Path(str(image)).resolve().is_relative_to(self.gallery)
        ]
        ensure(
            images,
            "The folder has only links to other places, which the app does not follow. Give a "
            "folder with images.",
        )
        return replace(found, images=tuple(images))

    def _below(self, folder: str) -> Path:
        """Return the path of a folder in the gallery; refuse paths that lead out of it."""
        if self.gallery is None:
            raise HypvisionError(
                "There is no folder to search. Start the app with a folder: "
                "hypvision app --gallery DIR"
            )
        asked = Path(folder.strip())
        try:
            path = (self.gallery / asked).resolve()
            inside = (
                path.is_relative_to(self.gallery)
                and not asked.is_absolute()
                and ".." not in asked.parts
            )
            there = inside and path.is_dir()
        except (OSError, ValueError, RuntimeError):
            # The path is too long, contains a NUL, or is a cycle of links.
            there = False
        if not there:  # the same message, so that nobody learns which folders exist outside
            raise HypvisionError(
                f"There is no folder '{folder:.80}' in the folder that the app was started with."
            )
        return path

    def segment(self, photo: str | None, words: str, clip: str) -> Image.Image:
        """Return the photo with each pixel in the colour of the word that fits it best, above a
        legend."""
        names = _listed(words)
        ensure(
            names,
            "No words are given. Name what to look for, separated by commas: car, road, sky",
        )
        found = segment(self._photo(photo), names, self._segmenter(known_clip(clip)))
        return draw_segmentation(found.image, found.labels, found.classes)

    def walk(self, photo: str | None, texts: str, clip: str, walk: str = "hierarcaps") -> Figure:
        """Return a figure of the texts on the way from the root to the photo, the general ones on
        top; ``texts`` has one text a line."""
        words = list(dict.fromkeys(line.strip() for line in texts.splitlines() if line.strip()))
        if len(words) < 2:
            raise HypvisionError(
                "The walk chooses among texts. Give at least two, general and specific ones."
            )
        name = known_clip(clip)
        image = self._photo(photo)
        [steps] = walk_images(self._clip(name), [image], words, walk=walk)
        return draw_walks(image, {name: [step[:3] for step in steps]})

    def disk(self, chains: str, file: str | None, steps: int = 1000) -> Plot:
        """Train points for a hierarchy, and return a figure of them in the Poincare disk. The
        hierarchy is given by ``chains`` with lines such as ``animal > mammal > dog``, or by the
        ``file`` of a closure, see :func:`~hypvision.data.closures.read_closure`."""
        if file:
            closure = read_closure(file, True, MAX_BYTES, MAX_PAIRS)
            title = Path(file).stem.replace("_", " ") + ": "
        else:
            lines = [
                [name.strip() for name in line.split(">") if name.strip()]
                for line in chains.splitlines()
            ]
            closure = closure_of(lines, MAX_PAIRS)
            title = ""
        space = Lorentz(1.0)
        points = embed_closure(closure, space=space, steps=int(steps))
        ranks = closure_ranks(points, space, closure)
        title += (
            f"{len(closure.names)} names, mean rank {ranks['mean_rank']:.2f}, MAP "
            f"{ranks['map']:.2f}"
        )
        return interactive_hierarchy(points, space, closure.names, closure.parents(), title=title)


def _listed(words: str) -> list[str]:
    return split_classes(words, "The list of words")


def known_model(name: str) -> str:
    """Return the name of a model of timm or of the zoo; refuse addresses and paths of files."""
    name = (name or "").strip()
    records = builtin_index().records
    if name in records or timm.is_model(name):
        return name
    raise HypvisionError(
        f"There is no model '{name}'.{did_you_mean(name, [*records, *timm.list_models()])} Give a "
        "name of timm or of `hypvision zoo list`."
    )


def known_clip(name: str) -> str:
    """Return the name of a CLIP with its weights, as ``--clip`` takes it; refuse addresses and
    paths of files."""
    name = (name or "").strip()
    here = clips_here()
    if name in here:
        return name
    network, weights = parse_name(name)
    try:
        tags = pretrained_tags(network)
    except HypvisionError as error:
        raise HypvisionError(
            f"There is no CLIP '{name}'. On this machine are: {', '.join(here)}."
        ) from error
    ensure(
        weights is not None and weights in tags,
        f"'{name}' does not name weights of '{network}'. Give {network}:TAG with one of "
        f"{', '.join(tags) or 'none'}; on this machine are: {', '.join(here)}.",
    )
    return name


def zoo_models() -> list[str]:
    """Return the names of the zoo's trained weights."""
    return list(builtin_index().records)


def best_clip() -> str:
    """Return the name of a CLIP that was fetched, because such a CLIP knows photos, or else of one
    that ships."""
    here = clips_here()
    fetched = [name for name in here if name not in builtin_index().records]
    return [*fetched, *here, "ViT-B-16:openai"][0]

"""Rank classes and texts for an image by the exported towers of a CLIP, and walk from the image to
the root, without PyTorch.

``hypvision export --clip NAME --part both --format onnx --save FOLDER`` writes this file beside the
towers, the tokenizer and ``clip.json``, whose numbers are read here. This file needs numpy, Pillow,
onnxruntime and tokenizers, and nothing of hypvision.

>>> clip = CLIP("FOLDER")
>>> [image] = clip.images(["photo.jpg"])
>>> clip.rank(image, clip.classes(["dog", "cat"]))  # the probability of each class
>>> words = ["an animal", "a brown dog"]
>>> clip.walk(image, clip.texts(words), words)  # from specific to general
"""

from __future__ import annotations

import argparse
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from hypvision.io import Plain, StrPath

Array = np.ndarray[Any, np.dtype[Any]]
_TEXTS = 256  # number of texts in a batch
_TINY = 1e-300


class Step(NamedTuple):
    """A text on a walk: its distance from the root (``radius``), its similarity to the image, and
    the share of the way at which it appears."""

    text: str
    radius: float
    similarity: float
    share: float


class Sphere:
    """The space of CLIP: unit vectors (N, d) around a root."""

    def __init__(self, about: Plain):
        self.root = np.array(about["root"])

    def logits(self, x: Array, y: Array) -> Array:
        return self.similarity(x, y)

    def similarity(self, x: Array, y: Array) -> Array:
        return x @ y.T

    def radius(self, x: Array) -> Array:
        return _length(x - self.root)[..., 0]

    def inside(self, x: Array, y: Array) -> Array:
        """Return True (N,) for all texts, as a walk of CLIP has no entailment cones."""
        return np.ones(len(x), bool)

    def mean(self, points: Array) -> Array:
        """Return points (N, d) for classes with several texts each, (N, P, d): their normalised
        means."""
        mean = points.mean(-2)
        return mean / _length(mean)

    def way(self, x: Array, steps: int, end: Array | None = None) -> Array:
        line = _line(x, self.root if end is None else end, steps)
        return line / _length(line)


class Hyperboloids:
    """The space of MERU, HyCoCLIP and UNCHA, a hyperboloid, and of PHyCLIP, a product of k
    hyperboloids. Points (N, k (n + 1)) have one factor after the other, each with its time first.
    Radii are means over the factors, similarities are sums of their Lorentzian inner products."""

    def __init__(self, about: Plain):
        self.root_of_c = np.sqrt(np.atleast_1d(about["c"]))[:, None]
        self.min_radius = about["min_radius"]

    def _factors(self, x: Array) -> tuple[Array, Array]:
        """Return the coordinates of points, (k, N, n) of space and (k, N, 1) of time, on
        hyperboloids of curvature -1."""
        parts = x.astype(np.float64).reshape(len(x), len(self.root_of_c), -1)
        space = (parts[..., 1:] * self.root_of_c).swapaxes(0, 1)
        return space, np.sqrt(1 + (space**2).sum(-1, keepdims=True))

    def _points(self, space: Array) -> Array:
        """Return the points (N, k (n + 1)) with the coordinates (k, N, n) of space."""
        time = np.sqrt(1 + (space**2).sum(-1, keepdims=True))
        parts = np.concatenate([time, space], -1).swapaxes(0, 1) / self.root_of_c
        return parts.reshape(space.shape[1], -1)

    def logits(self, x: Array, y: Array) -> Array:
        """Return the logits (N, M), before their scale, of images (N, d) for classes (M, d): minus
        the distances on one hyperboloid, the means of the factors' similarities on several."""
        if len(self.root_of_c) > 1:
            return self.similarity(x, y) / len(self.root_of_c)
        s, t = self._factors(x)
        s_, t_ = self._factors(y)
        # The product of the times minus 1, written as a sum of terms that are positive, so that
        # nothing cancels.
        u = t - 1
        u_ = (t_ - 1).swapaxes(1, 2)
        chord = u * u_ + u + u_ - s @ s_.swapaxes(1, 2)
        return np.asarray(-2 * np.arcsinh(np.sqrt(chord[0].clip(0) / 2)) / self.root_of_c)

    def similarity(self, x: Array, y: Array) -> Array:
        """Return the similarities (N, M) between points (N, d) and (M, d)."""
        signs = np.ones((len(self.root_of_c), x.shape[-1] // len(self.root_of_c)))
        signs[:, 0] = -1
        return (x * signs.ravel()) @ y.T

    def radius(self, x: Array) -> Array:
        return (np.arcsinh(_length(self._factors(x)[0])) / self.root_of_c[..., None]).mean((0, 2))

    def inside(self, x: Array, y: Array) -> Array:
        """Return whether ``y`` (1, d) lies in the entailment cones of the points ``x`` (N, d), in
        every factor: (N,)."""
        size = _length(self._factors(x)[0])
        top = 2 * self.min_radius
        aperture = np.arctan2(top, np.sqrt((size**2 - top**2).clip(0)))
        return np.asarray((self._angles(x, y) <= aperture).all((0, 2)))

    def _angles(self, x: Array, y: Array) -> Array:
        """Return the exterior angles (k, N, 1) at ``x`` towards ``y``, which is (N, d) or (1, d),
        or ``x`` is."""
        s, t = self._factors(x)
        s_, t_ = self._factors(y)
        size = _length(s)
        ray = s / size.clip(_TINY)
        way = s_ - s
        along = (ray * way).sum(-1, keepdims=True)
        across = _length(way - along * ray)
        later = (way * (s_ + s)).sum(-1, keepdims=True) / (t_ + t)  # exactly 0 for equal points
        return np.asarray(np.arctan2(across, t * along - size * later))

    def mean(self, points: Array) -> Array:
        """Return points (N, d) for classes with several texts each, (N, P, d): their means in the
        tangent space at the origin."""
        logs = self._logarithms(points.reshape(-1, points.shape[-1]))
        return self._exponentials(logs.reshape(len(logs), *points.shape[:2], -1).mean(-2))

    def way(self, x: Array, steps: int, end: Array | None = None) -> Array:
        first = self._logarithms(x[None])[:, 0]
        last = 0 * first if end is None else self._logarithms(end[None])[:, 0]
        return self._exponentials(_line(first, last, steps).swapaxes(0, 1))

    def _logarithms(self, x: Array) -> Array:
        space = self._factors(x)[0]
        size = _length(space)
        return space * (np.arcsinh(size) / size.clip(_TINY))

    def _exponentials(self, v: Array) -> Array:
        size = _length(v)
        return self._points(v * (np.sinh(size) / size.clip(_TINY)))


class Angles(Hyperboloids):
    """The space of ATMG: images are compared with texts by the exterior angles at the images."""

    def logits(self, x: Array, y: Array) -> Array:
        """Return the mean angles (N, M) of images (N, d) towards the texts of classes (M, P, d), or
        towards texts (M, d)."""
        texts = y.reshape(-1, y.shape[-1])
        angles = [self._angles(image[None], texts)[0].reshape(len(y), -1).mean(-1) for image in x]
        return np.stack(angles)

    def mean(self, points: Array) -> Array:
        return points


_SPACES = dict(sphere=Sphere, angles=Angles, lorentz=Hyperboloids, product=Hyperboloids)


class CLIP:
    """The exported towers of a CLIP in a folder.

    Args:
        folder: folder that the export was written into.
        providers: names of onnxruntime's providers, such as ``("CUDAExecutionProvider",)``.
    """

    def __init__(self, folder: StrPath, providers: Sequence[str] = ("CPUExecutionProvider",)):
        import onnxruntime
        from tokenizers import Tokenizer

        folder = Path(folder)
        self.about = json.loads((folder / "clip.json").read_text(encoding="utf-8"))
        self.space: Any = _SPACES[self.about["geometry"]](self.about)
        self._towers = {
            part: onnxruntime.InferenceSession(folder / f"{part}.onnx", providers=[*providers])
            for part in ("image", "text")
        }
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def images(self, images: Sequence[StrPath | Image.Image]) -> Array:
        """Return the points (B, d) of images, or of the images in files."""
        pixels = np.stack([prepared(image, self.about) for image in images])
        return np.asarray(self._towers["image"].run(None, {"images": pixels})[0])

    def texts(self, texts: Sequence[str]) -> Array:
        """Return the points (N, d) of texts."""
        tokens = self.tokens(texts)
        starts = range(0, len(tokens), _TEXTS)
        batches = [tokens[start : start + _TEXTS] for start in starts]
        return np.concatenate([self._towers["text"].run(None, {"tokens": x})[0] for x in batches])

    def tokens(self, texts: Sequence[str]) -> Array:
        """Return the tokens (N, L), int64, of texts; longer texts are cut."""
        if isinstance(texts, str):
            raise ValueError(f"Give a list of texts, [{texts!r}], and not one text.")
        length = self.about["context"]
        found = np.zeros((len(texts), length), np.int64)
        for row, text in zip(found, texts):
            clean = " ".join(html.unescape(html.unescape(text)).split()).lower()
            ids = self._tokenizer.encode(clean).ids
            row[: len(ids)] = ids[:length]
            if len(ids) > length and self.about["ends"]:
                row[-1] = ids[-1]
        return found

    def classes(self, names: Sequence[str] | None = None) -> Array:
        """Return the points of classes, (N, d) or for ATMG (N, P, d); default: the ``classes`` of
        the record. For a name with synonyms (``"building, edifice"``) the first is used."""
        names = self.about["classes"] if names is None else names
        if isinstance(names, str):
            raise ValueError(f"Give a list of names, [{names!r}], and not one name.")
        templates = self.about["templates"]
        words = [name.split(", ")[0].strip() for name in names]
        points = self.texts([template.format(word) for word in words for template in templates])
        return self.space.mean(points.reshape(len(words), len(templates), -1))

    def rank(self, image: Array, points: Array) -> Array:
        """Return the probabilities (N,) of classes or texts for an image (d,)."""
        logits = self.about["logit_scale"] * self.space.logits(image[None], points)[0]
        shares = np.exp(logits - logits.max())
        return np.asarray(shares / shares.sum())

    def walk(
        self,
        image: Array,
        points: Array,
        words: Sequence[str],
        steps: int = 50,
        end: Array | None = None,
    ) -> list[Step]:
        """Return the texts that an image (d,) passes on its way to the root, or to another image
        ``end``, each once, from specific to general. At each of ``steps`` points of the way it is
        the most similar of the texts (N, d) whose cone holds the point. The last one is the root,
        "[ROOT]"."""
        way = self.space.way(image, steps, end)
        root = self.space.way(image, 2)[-1:]
        texts = np.concatenate([points, root])
        similarity = self.space.similarity(way, texts)
        for row, point in zip(similarity, way):
            row[:-1][~self.space.inside(points, point[None])] = -np.inf
        nearest = similarity.argmax(1)
        first = np.sort(np.unique(nearest, return_index=True)[1])
        radius = self.space.radius(texts)
        own = self.space.similarity(image[None], texts)[0]
        found: list[Step] = []
        for step in first:
            number = nearest[step]
            text = [*words, "[ROOT]"][number]
            if not found or found[-1].text != text:
                share = float(step / max(1, steps - 1))
                found.append(Step(text, float(radius[number]), float(own[number]), share))
        return found


def prepared(image: StrPath | Image.Image, about: Plain) -> Array:
    """Return the normalised pixels (3, H, W), float32, of an image, or of the image in a file."""
    image = image if isinstance(image, Image.Image) else Image.open(image)
    shown = ImageOps.exif_transpose(image).convert("RGBA")
    white = Image.new("RGBA", shown.size, "white")
    seen = Image.alpha_composite(white, shown).convert("RGB")
    _, height, width = about["input_size"]
    size = (width, height)
    # The image is resized so that its shorter side is that of the square.
    if about["crop_mode"] != "squash":
        shorter = min(seen.size)
        size = (int(width * seen.width / shorter), int(width * seen.height / shorter))
    seen = seen.resize(size, Image.Resampling[about["interpolation"].upper()])
    left = round((size[0] - width) / 2)
    top = round((size[1] - height) / 2)
    colours = np.asarray(seen.crop((left, top, left + width, top + height)), np.float32) / 255
    normalised = (colours - np.float32(about["mean"])) / np.float32(about["std"])
    return normalised.transpose(2, 0, 1)


def _length(x: Array) -> Array:
    return np.asarray(np.sqrt((x**2).sum(-1, keepdims=True)))


def _line(first: Array, last: Array, steps: int) -> Array:
    """Return evenly spaced points (steps, ...) on the straight line from ``first`` to ``last``,
    with both ends."""
    share = np.linspace(0, 1, steps).reshape(-1, *[1] * first.ndim)
    return first + share * (last - first)


def main() -> None:
    """Print the most likely classes of an image, and its walk through texts."""
    parser = argparse.ArgumentParser(description="Rank classes for an image, and walk to the root.")
    parser.add_argument("image")
    parser.add_argument("--classes", help="names with a semicolon between them")
    parser.add_argument("--texts", help="a file with a text a line, which the walk may find")
    args = parser.parse_args()
    clip = CLIP(Path(__file__).parent)
    names = args.classes.split(";") if args.classes else clip.about["classes"]
    [image] = clip.images([args.image])
    if names:
        scores = clip.rank(image, clip.classes(names))
        for number in np.argsort(-scores)[:5]:
            print(f"{scores[number]:.3f} {names[number].strip()}")
    if args.texts:
        words = Path(args.texts).read_text(encoding="utf-8").split("\n")
        words = [word for word in words if word.strip()]
        for step in clip.walk(image, clip.texts(words), words):
            print(f"{step.radius:.3f} {step.text}")


if __name__ == "__main__":
    main()

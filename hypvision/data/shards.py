"""Images with captions or labels in tar files (webdataset shards), for data too large for a folder.

The files of one sample have the same name up to the first dot, and follow each other in the tar
file:

- captions: ``KEY.jpg`` with ``KEY.txt``, or with ``KEY.json`` that has a ``caption`` (RedCaps);
- captions and boxes: ``KEY.child.jpg``, ``KEY.child.txt`` and ``KEY.parent000.jpg``,
  ``KEY.parent000.txt``, ... (GRIT as HyCoCLIP prepares it, where a parent is a box of the image);
- labels: ``KEY.jpg`` with ``KEY.cls``, a number from 0.

``hypvision data shard FOLDER OUT`` writes such shards (:mod:`hypvision.data.write_shards`).

>>> view = dict(input_size=224, is_training=True)
>>> data = CaptionShards("data/redcaps/shards/{000000..000999}.tar", transform=view)
"""

from __future__ import annotations

import gzip
import io
import math
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_dist_info
from mmengine.registry import DATASETS
from PIL import Image
from torch.utils.data import IterableDataset, get_worker_info

from hypvision.io import (
    HypvisionError,
    NameList,
    Plain,
    StrPath,
    at_least,
    between,
    ensure,
    explaining,
    require,
    some,
    whole_number,
)
from hypvision.io.files import parse_json, read_lines, why_no_file
from hypvision.io.images import FORMATS, MAX_PIXELS, to_rgb

from .caption_folder import box_fields, chosen_boxes
from .image_folder import build_transform
from .remote import RemoteFile, is_remote
from .shard_index import INDEX, correct, count_shards
from .usage import Usage
from .words import split_words

require("webdataset", "shards")


import braceexpand  # noqa: E402 - after the check that says how to install it
from webdataset.tariterators import group_by_keys  # noqa: E402

ENDINGS = (".tar", ".tar.gz", ".tgz")
# keys of a sample's JSON under which its label may stand, the first one that occurs counts
_LABELS = ("label", "cls", "class", "class_name", "category")
_LARGEST = 2**28  # bytes of the largest file in a compressed shard, as a file is read whole
_IMAGES = ("jpg", "jpeg", "png", "webp", "gif")


def find_shards(shards: StrPath | Sequence[StrPath]) -> list[Path]:
    """Return the paths of the shards that ``shards`` names, in its order: a pattern with braces, a
    folder, or a list of paths or patterns."""
    names = [shards] if isinstance(shards, (str, Path)) else list(shards)
    found: list[Path] = []
    for name in names:
        if is_remote(name):
            found += _remote(str(name))
            continue
        path = Path(name).expanduser()
        inside = sorted(each for ending in ENDINGS for each in path.glob(f"*{ending}"))
        found += inside if path.is_dir() else map(Path, braceexpand.braceexpand(str(path)))
    advice = "Give a folder with .tar files, a pattern or a list of paths."
    ensure(found, f"There are no shards in '{shards}'. {advice}")
    for path in found:
        if not path.is_file():
            raise HypvisionError(
                f"{why_no_file(path, 'shard')} Correct 'shards': give a folder, a list, or a "
                "pattern such as 'shards/{000000..000099}.tar'."
            )
    twice = [str(path) for path, times in Counter(found).items() if times > 1]
    ensure(not twice, f"The shard {some(twice)} is named twice. Remove one from 'shards'.")
    return found


def _remote(name: str) -> Any:
    """Return the shards at an address, which may have braces, or be that of a folder of a remote
    store."""
    if name.rstrip("/").endswith(ENDINGS) or "?" in name:
        return map(RemoteFile, braceexpand.braceexpand(name))
    return RemoteFile(name).children(ENDINGS)


class _Shards(IterableDataset):
    """Base class of data sets in shards, which the processes and their workers share out so that
    each sample comes once an epoch; subclasses say which files a sample must have.

    In a training (``shuffle > 0``) the stream of samples has no end: each epoch has its own random
    order of shards, and the samples of a shard are mixed within a buffer. The place at which a
    resumed training goes on follows from its iteration and the numbers of samples in the shards, so
    shards that it has seen are not opened.
    """

    def __init__(self, shards: Any, transform: Any, shuffle: int, seed: int):
        super().__init__()
        at_least(0, shuffle=shuffle, seed=seed)
        ensure(
            shuffle or get_dist_info()[1] <= 1,
            "Validations and tests on shards must run in a single process. Train without "
            "--launcher, without validation (--cfg-options val_dataloader=None val_cfg=None "
            "val_evaluator=None), or validate on a folder.",
        )
        self.paths = find_shards(shards)
        self.transform = build_transform(transform)
        self.shuffle = shuffle
        self.seed = seed
        self.place = str(self.paths[0].parent)
        self.usage = Usage(self.place)
        self._start = (0, 1)
        self._stop: int | None = None
        self.counts = self._count()
        self.total = sum(self.counts)
        ensure(self.total, f"The shards have no sample that can be used. {self.usage}")

    def _problem(self, sample: Plain) -> str | None:
        """Return the reason why a sample is left out, or None if it is used; the image is not
        decoded for this."""
        raise NotImplementedError

    def _why_left_out(self, sample: Plain) -> str | None:
        try:
            return self._problem(sample)
        except UnicodeDecodeError:
            return "text that is not UTF-8"
        except ValueError:
            return "damaged JSON"

    def _needs(self) -> str:
        """Return the options on which :meth:`_problem` depends, as text: counts in the index hold
        only for the same options."""
        return ""

    def _sample(self, sample: Plain, rng: np.random.Generator) -> Plain:
        raise NotImplementedError

    @property
    def _kind(self) -> str:
        """What counts as a sample, for the index."""
        return f"{type(self).__name__}{self._needs()}"

    def _count(self) -> list[int]:
        """Return the number of samples in each shard, see :mod:`hypvision.data.shard_index`."""
        counts = []
        for path, found in zip(self.paths, count_shards(self.paths, self._kind, self._count_one)):
            counts.append(found.samples)
            self.usage.use("samples", found.samples)
            for reason, key in found.left_out:
                self.usage.leave_out("samples", reason, f"{path.name}, {key}")
        return counts

    def _count_one(self, path: Path) -> tuple[int, list[list[str]]]:
        left_out: list[list[str]] = []
        return sum(1 for _ in self._read(path, left_out, images=False)), left_out

    def _read(self, path: Path, left_out: list[list[str]], images: bool = True) -> Iterator[Plain]:
        """Yield the samples of a shard that can be used, with their files as bytes; the others are
        added to ``left_out`` as [reason, sample]."""
        ended: list[list[str]] = []
        try:
            for sample in group_by_keys(_files(path, ended, images)):
                problem = self._why_left_out(sample)
                if problem is None:
                    yield sample
                else:
                    left_out.append([problem, str(sample["__key__"])])
        except ValueError as error:
            raise HypvisionError(
                f"The shard '{path}' has a file twice ({error}). Write the shard again."
            ) from error
        left_out += ended

    def seek(self, batches: int, batch_size: int, stop: int | None = None) -> None:
        """Continue as if each process had taken ``batches`` batches of ``batch_size``, and end
        after ``stop`` more batches; None: never end."""
        self._start = (batches, batch_size)
        self._stop = stop

    def __len__(self) -> int:
        """Return the number of samples that this process sees in an epoch."""
        return max(1, self.total // get_dist_info()[1]) if self.shuffle else self.total

    def __iter__(self) -> Iterator[Plain]:
        info = get_worker_info()
        left = None
        if self._stop is not None:
            worker, workers = (info.id, info.num_workers) if info else (0, 1)
            left = max(0, -(-(self._stop - worker) // workers)) * self._start[1]
        return islice(self._stream(info), left)

    def _stream(self, info: Any) -> Iterator[Plain]:
        rank, world = get_dist_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        batches, size = self._start
        # After a resume the loader again takes its first batch from worker 0, so that worker must
        # go on with the shards of the worker whose turn it was.
        worker = (worker + batches) % workers
        own = rank * workers + worker
        readers = world * workers
        ensure(
            not (self.shuffle and readers > len(self.paths)),
            f"{len(self.paths)} shards cannot be shared out to {world} processes with "
            f"{workers} workers each. Write more, smaller shards, or set "
            "train_dataloader.num_workers lower.",
        )
        # The loader takes batches from the workers in turn, so this worker has given its share of
        # all batches; so many of its samples are skipped.
        skip = -(-max(0, batches - worker) // workers) * size
        for epoch in count():
            order: np.ndarray = np.arange(len(self.paths))
            if self.shuffle:
                order = np.random.default_rng([self.seed, epoch]).permutation(order)
            for number in order[own::readers]:
                if skip and skip >= self.counts[number]:
                    skip -= self.counts[number]
                    continue
                yield from self._shard(int(number), epoch, skip)
                skip = 0
            if not self.shuffle:
                return

    def one_by_one(self, worker: int = 0, workers: int = 1) -> Iterator[Callable[[], Plain]]:
        """Yield for each sample a function that reads it, in the order of the files, so that a
        check can find all damaged samples; of several ``workers`` each reads its own shards."""
        rng = np.random.default_rng(self.seed)
        for path in self.paths[worker::workers]:
            for sample in self._read(path, []):
                yield partial(self._decoded, path, sample, rng)

    def _shard(self, number: int, epoch: int, skip: int) -> Iterator[Plain]:
        rng = np.random.default_rng([self.seed, epoch, number])
        left_out: list[list[str]] = []
        path = self.paths[number]
        samples = self._read(path, left_out)
        seen = 0
        for place, sample in enumerate(_mixed(samples, self.shuffle, rng)):
            own = np.random.default_rng([self.seed, epoch, number, place])
            seen += 1
            if place >= skip:
                yield self._decoded(path, sample, own)
        if seen != self.counts[number]:
            correct(path, self._kind, seen, left_out)
            raise HypvisionError(
                f"The shard '{path}' has {seen:,} samples, but {self.counts[number]:,} by "
                f"'{INDEX}'. This is corrected now: repeat the command (a training without "
                "--resume: it began with the wrong count)."
            )

    def _decoded(self, path: Path, sample: Plain, rng: np.random.Generator) -> Plain:
        with explaining(
            lambda error: (
                f"The sample '{sample['__key__']}' of the shard '{path}' cannot be read: {error}. "
                "Write the shard without it."
            )
        ):
            return self._sample(sample, rng)

    def _inputs(self, data: bytes) -> torch.Tensor:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise ValueError(
                    f"{opened.width} x {opened.height} pixels, more than {MAX_PIXELS:,} in all"
                )
            image = to_rgb(opened)
        return self.transform(image)


@DATASETS.register_module()
class CaptionShards(_Shards):
    """Data set of images with one caption each, in shards. A sample has ``inputs`` (3, H, W) and
    ``caption``, and if boxes are wanted ``box_inputs`` and ``box_caption``.

    Args:
        shards: a folder, a pattern such as ``"shards/{000000..000999}.tar"``, or a list of paths;
            also addresses with ``https://``, ``s3://`` or ``hf://`` (:mod:`hypvision.data.remote`).
        transform: of the image and of its boxes, as for
            :class:`~hypvision.data.image_folder.ImageFolderDataset`; ``normalize=False`` leaves
            bytes, which :class:`~hypvision.tasks.contrastive.CLIPContrast` expects. None: the
            pixels as they are, uint8.
        boxes: True or 1: a sample has one box of its image, drawn at random, with its words; a
            number above 1: at most so many boxes, the first ones, see
            :func:`~hypvision.data.caption_folder.box_fields`. Samples without a box are left out.
        shuffle: number of samples in the buffer that mixes them; 0: one pass in the order of the
            files, for tests.
        seed: seed of the random order of shards and samples, of the choice of boxes and of that of
            subreddits.
        subreddits: probability that a caption begins with the name of its subreddit in words, ``cat
            pictures : ...``, if its JSON has a ``subreddit``; 0.5 in MERU's training on RedCaps.
    """

    def __init__(
        self,
        shards: Any,
        transform: Any = None,
        boxes: int = False,
        shuffle: int = 1000,
        seed: int = 0,
        subreddits: float = 0.0,
    ):
        between(0, 1, subreddits=subreddits)
        self.boxes = boxes
        self.subreddits = subreddits
        super().__init__(shards, transform, shuffle, seed)

    def _needs(self) -> str:
        return " with boxes" if self.boxes else ""

    def _problem(self, sample: Plain) -> str | None:
        parents = _parents(sample) if self.boxes else []
        problems = (
            (not (_image_of(sample) or _image_of(sample, "child.")), "no image"),
            (not _caption(sample), "no caption"),
            (not all(_caption(sample, f"{name}.") for name in parents), "a box without words"),
            (self.boxes and not parents, "no box"),
        )
        return next((problem for wrong, problem in problems if wrong), None)

    def _sample(self, sample: Plain, rng: np.random.Generator) -> Plain:
        data: Any = _image_of(sample, "child.") or _image_of(sample)
        found = dict(inputs=self._inputs(data), caption=_caption(sample))
        if self.boxes:
            chosen = chosen_boxes(_parents(sample), self.boxes, rng.integers)
            cuts = [self._box(sample, f"{name}.") for name in chosen]
            found |= box_fields(cuts, self.boxes)
        if self.subreddits and rng.random() < self.subreddits:
            subreddit = _json(sample).get("subreddit")
            if subreddit:
                found["caption"] = f"{split_words(str(subreddit))} : {found['caption']}"
        return found

    def _box(self, sample: Plain, name: str) -> tuple[torch.Tensor, str]:
        """Return the pixels and the words of a box, whose files' names begin with ``name``."""
        data: Any = _image_of(sample, name)
        return self._inputs(data), _caption(sample, name)


@DATASETS.register_module()
class ImageShards(_Shards):
    """Data set of images with one label each, in shards. A sample has ``inputs`` (3, H, W) and
    ``label``.

    Args:
        shards, shuffle, seed: as for :class:`CaptionShards`.
        transform: as for :class:`~hypvision.data.image_folder.ImageFolderDataset`.
        classes: class names in the order of the labels, or a text file with one name a line; None:
            the file ``classes.txt`` beside the shards.
    """

    def __init__(
        self,
        shards: Any,
        transform: Any,
        classes: NameList | None = None,
        shuffle: int = 1000,
        seed: int = 0,
    ):
        if classes is None:
            classes = find_shards(shards)[0].parent / "classes.txt"
        if isinstance(classes, RemoteFile):
            classes = classes.read_text().split("\n")
            classes = [name.strip() for name in classes if name.strip()]
        if isinstance(classes, (str, Path)):
            classes = read_lines(
                classes,
                "the list of classes, a name a line (or give classes=[...] in the data set)",
            )
        self.metainfo = dict(classes=tuple(classes))
        self._numbers = {name: number for number, name in enumerate(classes)}
        super().__init__(shards, transform, shuffle, seed)

    def _needs(self) -> str:
        names = self.metainfo["classes"]
        return f" of {len(names)} classes {zlib.crc32(repr(names).encode()):08x}"

    def _label(self, sample: Plain) -> int | str:
        """Return the number of the sample's class, or its class name if that is none of the known
        classes; an empty string if the sample has no label."""
        if "cls" in sample:
            text = sample["cls"].decode("utf-8").strip()
        else:
            about = _json(sample)
            text = str(next((about[key] for key in _LABELS if key in about), "")).strip()
        number = whole_number(text)
        return self._numbers.get(text, text) if number is None else number

    def _problem(self, sample: Plain) -> str | None:
        label = self._label(sample)
        problems = (
            (_image_of(sample) is None, "no image"),
            (label == "", "no label"),
            (isinstance(label, str), f"the label '{label!s:.40}', which is none of the classes"),
            (label not in range(len(self._numbers)), "a label beyond the classes"),
        )
        return next((problem for wrong, problem in problems if wrong), None)

    def _sample(self, sample: Plain, rng: np.random.Generator) -> Plain:
        data: Any = _image_of(sample)
        return dict(inputs=self._inputs(data), label=self._label(sample))


class _Watched:
    """A file for reading that remembers the bytes of its last read."""

    def __init__(self, file: Any):
        self.last = b""
        self.seek = file.seek
        self.tell = file.tell
        self._file = file

    def read(self, size: int = -1) -> bytes:
        self.last = self._file.read(size)
        return self.last


def _files(path: Path, ended: list[list[str]], images: bool) -> Iterator[Plain]:
    """Yield the files of a tar file in webdataset's form; the bytes of images are read only if
    ``images``. A tar file without the two empty blocks that end a whole one may lack samples, so it
    is added to ``ended``."""
    packed = not path.name.endswith(".tar")
    opened: Any = tarfile.open
    name = "the first"
    # A compressed file is read whole, and its own size says nothing about that of its content.
    unpacked: Any = nullcontext
    size: float = path.stat().st_size
    largest = size
    if packed:
        unpacked = gzip.open
        size = math.inf
        largest = _LARGEST
    try:
        with (
            path.open("rb") as raw,
            unpacked(raw) as file,
            opened(mode="r:", fileobj=_Watched(file)) as tar,
        ):
            for member in filter(tarfile.TarInfo.isreg, tar):
                name = member.name
                end = member.offset_data + member.size
                if end > size or member.size > largest:
                    raise tarfile.ReadError("cut off, or too large for a sample")
                wanted = images or packed or not name.lower().endswith(_IMAGES)
                content: Any = tar.extractfile(member)
                data = content.read() if wanted else b"x"[: member.size]
                yield dict(fname=name, data=data, __url__=str(path))
                tar.members = []  # type: ignore[attr-defined] # an iterated archive keeps all of its members
            if tar.fileobj.last != tarfile.NUL * tarfile.BLOCKSIZE:
                raise tarfile.ReadError("no end")
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile):
        ended.append(["the tar file is cut off or damaged: fetch or write it again", name])


def _mixed(samples: Iterator[Any], size: int, rng: np.random.Generator) -> Iterator[Any]:
    buffer: list[Any] = []
    for sample in samples:
        buffer.append(sample)
        if len(buffer) > size:
            yield buffer.pop(int(rng.integers(len(buffer))) if size else 0)
    rng.shuffle(buffer)  # type: ignore[arg-type]
    yield from buffer


def _image_of(sample: Plain, prefix: str = "") -> bytes | None:
    return next(
        (sample[prefix + suffix] for suffix in _IMAGES if sample.get(prefix + suffix)), None
    )


def _parents(sample: Plain) -> list[str]:
    names = sorted({key.partition(".")[0] for key in sample if key.startswith("parent")})
    return [name for name in names if _image_of(sample, f"{name}.")]


def _caption(sample: Plain, prefix: str = "") -> str:
    for name in (prefix,) if prefix else ("child.", ""):
        text = sample.get(f"{name}txt")
        if text is not None:
            return text.decode("utf-8").strip()
    caption = None if prefix else _json(sample).get("caption")
    return caption.strip() if isinstance(caption, str) else ""


def _json(sample: Plain) -> Plain:
    content = parse_json(sample["json"].decode("utf-8")) if "json" in sample else {}
    return content if isinstance(content, dict) else {}

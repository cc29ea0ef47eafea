"""Image retrieval data sets in their published layouts: CUB-200-2011, Cars-196, Stanford Online
Products and In-Shop Clothes.

Training and test images have different classes. Samples are those of :mod:`.image_folder`; a data
set's ``metainfo`` has

- ``classes``: names, in the order of the labels;
- ``ancestors``: for each class a tuple of the groups above it, from general to specific (a maker of
  cars, a kind of product), which defines how bad a mistake is; () if there are none;
- ``queries``: the number of images, at the beginning, that are queries and search among the other
  images (In-Shop); None if every image searches among all others.
"""

from __future__ import annotations

import fnmatch
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mmengine.registry import DATASETS

from hypvision.io import Ancestors, HypvisionError, Names, Plain, did_you_mean, ensure, some
from hypvision.io.files import inside
from hypvision.io.records import parse, read_record

from .classes import check_classes, numbered
from .image_folder import ImageFolderDataset, _ImageDataset
from .published import read_label, read_matlab, read_rows
from .samplers import evenly, members_of
from .usage import Listing, Usage, class_names


class _Loaded(NamedTuple):
    """The content of a split's lists: images, classes, and the number of queries."""

    # path below the root and class of each image; images of other splits' classes may be among them
    rows: Sequence[tuple[str, Any]]
    # name and ancestors of each class of the split, in the order of the labels
    classes: Mapping[Any, tuple[str, Names]]
    # number of images, at the beginning, that are queries; None: every image is one
    queries: int | None = None


class _RetrievalDataset(_ImageDataset):
    """Base class of the published retrieval data sets; ``split`` is ``"train"`` or ``"test"``,
    ``transform`` is that of :func:`~hypvision.data.image_folder.build_transform`."""

    title: str
    folder: str  # the folder that unpacking the archive creates
    source: str  # where the archive can be had
    published: dict[str, tuple[int, int]]  # numbers of images and of classes in each split

    def __init__(self, root: str, transform: Plain | Callable, split: str = "train"):
        super().__init__(transform)
        splits = " and ".join(self.published)
        ensure(split in self.published, f"{self.title} has the splits {splits}, not '{split}'.")
        self.split = split
        self.root = Path(root).expanduser()
        if not self.root.is_dir():
            raise self._missing(f"The data folder '{self.root}' does not exist.")
        rows, classes, queries = self._load()
        place = numbered(classes)
        chosen = [(str(self.root / path), place[key]) for path, key in rows if key in place]
        inside([path for path, _ in chosen], self.root)
        paths, absent = Listing().find_all([path for path, _ in chosen])
        what = f"images of the split '{split}'"
        if not chosen:
            raise self._missing(f"The lists in '{self.root}' name no {what}.")
        if absent:
            raise self._missing(
                f"{len(absent)} of the {len(chosen)} {what} are missing in '{self.root}', the "
                f"first is '{absent[0]}'."
            )
        images, count = self.published[split]
        if (len(chosen), len(classes)) != (images, count):
            warnings.warn(
                f"{self.title}, {split}: {len(chosen)} images of {len(classes)} classes in "
                f"'{self.root}', published are {images} of {count}. Results cannot be compared "
                "with others.",
                stacklevel=2,
            )
        self.usage = Usage(self.root)
        names, ancestors = zip(*classes.values())
        self.fill(list(zip(paths, (label for _, label in chosen))), names, kind="images")
        self.metainfo |= dict(ancestors=ancestors, queries=queries)

    @abstractmethod
    def _load(self) -> _Loaded:
        """Return the content of the lists of ``self.split``."""

    def _missing(self, what: str) -> HypvisionError:
        return HypvisionError(
            f"{what} {self.title} comes from {self.source}; unpack it so that data_root is the "
            f"folder '{self.folder}' (layout in docs/data.md), or give its place with "
            "--cfg-options data_root=FOLDER."
        )

    def _find(self, *names: str) -> Path:
        """Return the path of the first of these files that exists."""
        for name in names:
            if (self.root / name).is_file():
                return self.root / name
        raise self._missing(f"The file '{self.root / names[0]}' does not exist.")

    def _rows(self, width: int, *names: str, skip: int = 0) -> list[list[str]]:
        """Return the words of each line, ``width`` of them, of the first of these files that
        exists."""
        return read_rows(self._find(*names), f"a list of {self.title}", width, width, skip)


@DATASETS.register_module()
class CUB200(_RetrievalDataset):
    """Data set CUB-200-2011 of birds: classes 1-100 for training, 101-200 for test (Wah et al.,
    2011).

    Files: ``images.txt``, ``image_class_labels.txt``, ``classes.txt``, ``images/CLASS/*.jpg``. The
    ancestor of a species is the last word of its name (albatross, sparrow, ...): a common name,
    which is close to the biological family but no taxonomy.
    """

    title = "CUB-200-2011"
    folder = "CUB_200_2011"
    source = "https://data.caltech.edu/records/65de6-vp158 (CUB_200_2011.tgz)"
    published = {"train": (5864, 100), "test": (5924, 100)}

    def _load(self) -> _Loaded:
        sheet = self._find("classes.txt")
        pairs = [(read_label(number, sheet), name) for number, name in self._rows(2, "classes.txt")]
        classes = check_classes(pairs, f"'{sheet}'", "Take an intact copy.")
        numbers = dict(self._rows(2, "image_class_labels.txt"))
        own = {}
        for number in sorted(classes):
            if (number <= 100) == (self.split == "train"):
                name = classes[number].partition(".")[2] or classes[number]
                own[str(number)] = (name, (name.rpartition("_")[2].lower(),))
        rows = [(f"images/{file}", numbers.get(key)) for key, file in self._rows(2, "images.txt")]
        return _Loaded(rows, own)


# The makers in Cars-196 whose names have several words; of all others the first word of a model's
# name is the maker.
_MAKERS = ("AM General", "Aston Martin", "Land Rover")


def car_maker(model: str) -> str:
    """Return the maker of a car from its model's name in Cars-196."""
    return next(
        (maker for maker in _MAKERS if model.startswith(maker + " ")), model.partition(" ")[0]
    )


@DATASETS.register_module()
class Cars196(_RetrievalDataset):
    """Data set Cars-196: the first 98 classes for training, the other 98 for test (Krause et al.,
    2013).

    Files: ``cars_annos.mat`` and ``car_ims/*.jpg``; or, as in later copies,
    ``devkit/cars_meta.mat``, ``devkit/cars_train_annos.mat``, ``cars_test_annos_withlabels.mat``,
    ``cars_train/*.jpg``, ``cars_test/*.jpg``. The ancestor of a model is its maker. Reading
    ``.mat`` needs SciPy.
    """

    title = "Cars-196"
    folder = "CARS_196"
    source = (
        "http://ai.stanford.edu/~jkrause/cars/car_dataset.html (car_ims.tgz, cars_annos.mat), or a "
        "copy of it"
    )
    published = {"train": (8054, 98), "test": (8131, 98)}

    def _load(self) -> _Loaded:
        files = {"": "cars_annos.mat"}
        sheet = files[""]
        if not (self.root / sheet).is_file() and (self.root / "devkit").is_dir():
            sheet = "devkit/cars_meta.mat"
            files = {
                "cars_train/": "devkit/cars_train_annos.mat",
                "cars_test/": "cars_test_annos_withlabels.mat",
            }
        rows = [
            (f"{folder}{name}", label)
            for folder, file in files.items()
            for name, label in self._annotations(file)
        ]
        first = 0 if self.split == "train" else 98
        names = [str(name) for name in self._entry(sheet, "class_names")][first : first + 98]
        own = enumerate(names, start=first + 1)
        return _Loaded(rows, {label: (name, (car_maker(name),)) for label, name in own})

    def _entry(self, name: str, key: str) -> np.ndarray:
        return np.atleast_1d(
            read_matlab(self._find(name), key, squeeze_me=True, struct_as_record=False)
        )

    def _annotations(self, name: str) -> list[tuple[str, int]]:
        """Return the path and the class number of each image in an annotation file."""
        path = "relative_im_path" if name == "cars_annos.mat" else "fname"
        found = []
        for item in self._entry(name, "annotations"):
            fields = getattr(item, "__dict__", {})
            for key in (path, "class"):
                if key not in fields:
                    raise HypvisionError(
                        f"The file '{self.root / name}' has an annotation without '{key}'. Take "
                        "the file that has the classes: the archives also have a file of the test "
                        "images without classes."
                    )
            found.append((str(fields[path]), read_label(fields["class"], self.root / name)))
        return found


@DATASETS.register_module()
class StanfordOnlineProducts(_RetrievalDataset):
    """Data set Stanford Online Products: 11,318 products for training, 11,316 for test (Song et
    al., CVPR 2016).

    Files: ``Ebay_train.txt``, ``Ebay_test.txt`` and ``KIND_final/*.JPG``. The ancestor of a product
    is its kind, one of 12.
    """

    title = "Stanford Online Products"
    folder = "Stanford_Online_Products"
    source = "https://cvgl.stanford.edu/projects/lifted_struct/ (Stanford_Online_Products.zip)"
    published = {"train": (59551, 11318), "test": (60502, 11316)}

    def _load(self) -> _Loaded:
        name = f"Ebay_{self.split}.txt"
        # The columns of the list are image_id, class_id, super_class_id and path.
        rows = self._rows(4, name, skip=1)
        labels = [read_label(row[1], self.root / name) for row in rows]
        paths = [row[3] for row in rows]
        kinds = {
            label: path.partition("/")[0].removesuffix("_final")
            for label, path in zip(labels, paths)
        }
        own = {label: (str(label), (kinds[label],)) for label in sorted(kinds)}
        return _Loaded(list(zip(paths, labels)), own)


@DATASETS.register_module()
class InShop(_RetrievalDataset):
    """Data set In-Shop Clothes Retrieval of DeepFashion (Liu et al., CVPR 2016): 3,997 items for
    training, 3,985 for test.

    Files: ``list_eval_partition.txt`` (or in ``Eval/``) and ``img/...`` (or ``Img/img/...``). The
    images of the split ``"test"`` are first the queries and then the gallery. The ancestors of an
    item are (women or men, kind of garment).
    """

    title = "In-Shop Clothes Retrieval"
    folder = "In-shop"
    source = "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html (on request)"
    published = {"train": (25882, 3997), "test": (26830, 3985)}

    def _load(self) -> _Loaded:
        name = "list_eval_partition.txt"
        # The columns of the list are image_name, item_id and evaluation_status.
        rows = self._rows(3, name, f"Eval/{name}", skip=2)
        unknown = sorted(set(map(itemgetter(2), rows)) - {"train", "query", "gallery"})
        ensure(
            not unknown,
            f"'{self.root}' lists images for {some(unknown, 1)}, not train, query or gallery. "
            "Replace the list by an intact copy.",
        )
        parts = ("train",) if self.split == "train" else ("query", "gallery")
        chosen = [row for part in parts for row in rows if row[2] == part]
        above = {row[1]: tuple(row[0].split("/")[1:3]) for row in chosen}
        base = "Img/" if (self.root / "Img").is_dir() else ""
        queries = None if self.split == "train" else sum(row[2] == "query" for row in chosen)
        own = {item: (item, above[item]) for item in sorted(above)}
        return _Loaded([(f"{base}{row[0]}", row[1]) for row in chosen], own, queries)


def _matching(root: str, classes: Sequence[str] | None) -> Sequence[str] | None:
    """Return the class names, sorted, with each pattern replaced by the folders that match it."""
    if classes is None or not any("*" in name for name in classes):
        return classes
    folders = class_names(Path(root), Usage(root)) if Path(root).is_dir() else []
    found: list[str] = []
    for name in classes:
        matches = fnmatch.filter(folders, name) if "*" in name else [name]
        if not matches and folders:
            raise HypvisionError(
                f"No folder of '{root}' matches the class pattern '{name}'. Correct it."
            )
        found += matches
    return sorted(set(found))


def _in_file(name: str, kind: Any) -> Any:
    """Return the content of a JSON file, ``"FILE.json"``, or the value of one of its keys,
    ``"FILE.json:KEY"``, as a ``kind``."""
    advice = "Correct the file, 'classes' or 'ancestors' of the data in the config, or data_root."
    path, _, key = name.rpartition(":") if ".json:" in name else (name, "", "")
    if not key:
        return read_record(kind, path, advice)
    content = read_record(Plain, path, advice)
    ensure(key in content, f"'{path}' has no '{key}'.{did_you_mean(key, content)} {advice}")
    return parse(kind, content[key], f"'{name}'", advice=advice)


def _above(names: Sequence[str], ancestors: Ancestors | str | None) -> tuple[Names, ...]:
    """Return for each class a tuple of the groups above it, all tuples equally long."""
    if ancestors is None:
        return ((),) * len(names)
    if isinstance(ancestors, str):
        return _above(names, _in_file(ancestors, dict[str, list[str]]))
    absent = [name for name in names if name not in ancestors]
    entry = f"'ancestors' has no entry for the class {some(absent, 1)}. Add it to the config."
    ensure(not absent, entry)
    above = tuple(tuple(ancestors[name]) for name in names)
    depths = "All classes must have equally many 'ancestors', from general to specific."
    ensure(len(set(map(len, above))) < 2, depths)
    return above


@DATASETS.register_module()
class RetrievalFolder(ImageFolderDataset):
    """Data set for retrieval of some classes of images in class folders: CIFAR-10 as a stand-in, or
    the user's own images.

    Args:
        root, transform, cache: see :class:`~hypvision.data.image_folder.ImageFolderDataset`.
        classes: the class folders to use, by name or by pattern (``"* cross"``), or
            ``"FILE.json:KEY"``, a list of names in a file; None: all folders.
        ancestors: for each class the groups above it, from general to specific, e.g.
            ``dict(cat=("animal",))``; or a JSON file with such a dict, ``"FILE.json"`` or
            ``"FILE.json:KEY"``.
        per_class: largest number of images to take of each class, evenly spread over its sorted
            files; None: all.
        gallery: folder with images of the same classes, among which the images of ``root``, the
            queries, are searched for; None: each image of ``root`` searches among all others.
    """

    def __init__(
        self,
        root: str,
        transform: Plain | Callable,
        classes: Sequence[str] | str | None = None,
        ancestors: Ancestors | str | None = None,
        per_class: int | None = None,
        cache: bool = False,
        gallery: str | None = None,
    ):
        if isinstance(classes, str):
            classes = _in_file(classes, list[str])
        super().__init__(root, transform, classes=_matching(root, classes))
        names = self.metainfo["classes"]
        if per_class is not None:
            self._thin(per_class)
        queries = None
        if gallery is not None:
            others = RetrievalFolder(gallery, transform, classes=names, per_class=per_class)
            queries = len(self.paths)
            self.paths = self.paths + others.paths
            self.usage.add(others.usage)
            self.labels = np.concatenate([self.labels, others.labels])
        if cache:
            self._cache = [self._decode(i) for i in range(len(self.paths))]
        self.metainfo |= dict(ancestors=_above(names, ancestors), queries=queries)

    def _sorted(self, names: list[str]) -> list[str]:
        return names  # retrieval only compares labels for equality, so they need no order

    def _thin(self, per_class: int) -> None:
        chosen: list[int] = []
        for members in members_of(self).values():
            chosen += members[evenly(len(members), per_class)].tolist()
        self.usage.use("files", len(chosen) - len(self.paths))
        for i in sorted(set(range(len(self.paths))) - set(chosen)):
            self.usage.leave_out("files", f"per_class={per_class}", Path(self.paths[i]).name)
        self.paths = [self.paths[i] for i in chosen]
        self.labels = self.labels[chosen]

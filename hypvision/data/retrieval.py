"""Image retrieval data in its published layouts: CUB-200-2011, Cars-196, Stanford Online Products,
In-Shop Clothes.

Training and test have different classes. Samples are those of :mod:`.image_folder`; ``metainfo``
has

- ``classes``: names, in the order of the labels;
- ``ancestors``: for each class a tuple of the groups above it, from general to specific (a maker of
  cars, a kind of product); it defines how bad a mistake is. () where there is none;
- ``queries``: the number of images, at the beginning, that search among the others (In-Shop); None
  where every image searches among all others.
"""

from __future__ import annotations

import fnmatch
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.registry import DATASETS

from hypvision.data.classes import check_classes
from hypvision.io.errors import HypvisionError, did_you_mean
from hypvision.io.files import inside
from hypvision.io.records import parse, read_record

from .folders import Listing, class_names
from .image_folder import ImageFolderDataset, _ImageDataset
from .published import read_label, read_matlab, read_rows
from .samplers import members_of
from .taxonomy import KIND_OF, TAXONOMY
from .usage import Usage

_Loaded = tuple[list[str], list[int], list[str], list[tuple[str, ...]], int | None]


class _RetrievalDataset(_ImageDataset):
    """Base of the published data sets, of the split ``"train"`` or ``"test"``; ``transform``: see
    :func:`~hypvision.data.image_folder.build_transform`."""

    title: str
    folder: str  # the folder that unpacking creates
    source: str  # source of the archive
    published: dict[str, tuple[int, int]]  # number of images and classes of each split

    def __init__(self, root: str, transform: dict[str, Any] | Callable, split: str = "train"):
        super().__init__(transform)
        if split not in self.published:
            raise HypvisionError(
                f"{self.title} has the splits {' and '.join(self.published)}, not '{split}'."
            )
        self.split = split
        self.root = Path(root).expanduser()
        if not self.root.is_dir():
            raise self._missing(f"The data folder '{self.root}' does not exist.")
        paths, labels, classes, ancestors, queries = self._load()
        self.paths = inside(paths, self.root)
        self.labels = np.array(labels, dtype=np.int64)
        if not self.paths:
            raise self._missing(
                f"The lists in '{self.root}' name no images of the split '{split}'."
            )
        there = Listing()
        absent = [path for path in self.paths if path not in there]
        if absent:
            raise self._missing(
                f"{len(absent)} of the {len(self.paths)} images of the split '{split}' are missing "
                f"in '{self.root}', the first is '{absent[0]}'."
            )
        found = (len(self.paths), len(classes))
        if found != self.published[split]:
            images, count = self.published[split]
            warnings.warn(
                f"{self.title}, {split}: {found[0]} images of {found[1]} classes in '{self.root}', "
                f"published are {images} of {count}. Results do not compare with those of others.",
                stacklevel=2,
            )
        self.metainfo = dict(classes=tuple(classes), ancestors=tuple(ancestors), queries=queries)
        self.usage = Usage(self.root)
        self.usage.use("images", len(self.paths))

    @abstractmethod
    def _load(self) -> _Loaded:
        """Paths, labels (from 0), class names, their ancestors, and the number of queries."""

    def _missing(self, what: str) -> HypvisionError:
        return HypvisionError(
            f"{what} {self.title} comes from {self.source}; unpack it so that data_root is the "
            f"folder '{self.folder}' (layout in docs/data.md), or give its place with "
            "--cfg-options data_root=FOLDER."
        )

    def _find(self, *names: str) -> Path:
        """The first of these files that exists."""
        for name in names:
            if (self.root / name).is_file():
                return self.root / name
        raise self._missing(f"The file '{self.root / names[0]}' does not exist.")

    def _rows(self, width: int, *names: str, skip: int = 0) -> list[list[str]]:
        """The words of each line, ``width`` of them, of the first of these files that exists."""
        return read_rows(self._find(*names), f"a list of {self.title}", width, width, skip)


@DATASETS.register_module()
class CUB200(_RetrievalDataset):
    """CUB-200-2011 birds: classes 1-100 for training, 101-200 for test (Wah et al., 2011).

    Files: ``images.txt``, ``image_class_labels.txt``, ``classes.txt``, ``images/CLASS/*.jpg``. The
    ancestor of a species is the last word of its name (albatross, sparrow, ...): a common name,
    close to the family but not taxonomy.
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
        wanted = sorted(number for number in classes if (number <= 100) == (self.split == "train"))
        place = {str(number): i for i, number in enumerate(wanted)}
        chosen = [
            (file, place[numbers[key]])
            for key, file in self._rows(2, "images.txt")
            if numbers.get(key) in place
        ]
        names = [classes[number].partition(".")[2] or classes[number] for number in wanted]
        ancestors = [(name.rpartition("_")[2].lower(),) for name in names]
        paths = [str(self.root / "images" / file) for file, _ in chosen]
        return paths, [label for _, label in chosen], names, list(ancestors), None


# Makers in Cars-196 whose name has several words; for others the first word of the model is the
# maker.
_MAKERS = ("AM General", "Aston Martin", "Land Rover")


def car_maker(model: str) -> str:
    """The maker of a car by its name in Cars-196."""
    return next(
        (maker for maker in _MAKERS if model.startswith(maker + " ")), model.partition(" ")[0]
    )


@DATASETS.register_module()
class Cars196(_RetrievalDataset):
    """Cars-196: the first 98 classes for training, the other 98 for test (Krause et al., 2013).

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
        if not (self.root / "cars_annos.mat").is_file() and (self.root / "devkit").is_dir():
            files = {
                "cars_train/": "devkit/cars_train_annos.mat",
                "cars_test/": "cars_test_annos_withlabels.mat",
            }
        rows = [
            (f"{folder}{name}", c)
            for folder, file in files.items()
            for name, c in self._annotations(file)
        ]
        titles = self._entry(
            "devkit/cars_meta.mat" if len(files) > 1 else "cars_annos.mat", "class_names"
        )
        first = 0 if self.split == "train" else 98
        names = [str(name) for name in titles][first : first + 98]
        chosen = [(path, c - 1 - first) for path, c in rows if 0 <= c - 1 - first < len(names)]
        paths = [str(self.root / path) for path, _ in chosen]
        return (
            paths,
            [label for _, label in chosen],
            names,
            [(car_maker(name),) for name in names],
            None,
        )

    def _entry(self, name: str, key: str) -> np.ndarray:
        return np.atleast_1d(
            read_matlab(self._find(name), key, squeeze_me=True, struct_as_record=False)
        )

    def _annotations(self, name: str) -> list[tuple[str, int]]:
        """Path and class of each image in a file."""
        path = "relative_im_path" if name == "cars_annos.mat" else "fname"
        found = []
        for item in self._entry(name, "annotations"):
            fields = getattr(item, "__dict__", {})
            for key in (path, "class"):
                if key not in fields:
                    raise HypvisionError(
                        f"The file '{self.root / name}' has an annotation without '{key}'. Take "
                        "the file that has the classes: the archives also have one of the test "
                        "images without them."
                    )
            found.append((str(fields[path]), read_label(fields["class"], self.root / name)))
        return found


@DATASETS.register_module()
class StanfordOnlineProducts(_RetrievalDataset):
    """Stanford Online Products: 11,318 products for training, 11,316 for test (Song et al., CVPR
    2016).

    Files: ``Ebay_train.txt``, ``Ebay_test.txt`` and ``KIND_final/*.JPG``. The ancestor of a product
    is its kind, one of 12.
    """

    title = "Stanford Online Products"
    folder = "Stanford_Online_Products"
    source = "https://cvgl.stanford.edu/projects/lifted_struct/ (Stanford_Online_Products.zip)"
    published = {"train": (59551, 11318), "test": (60502, 11316)}

    def _load(self) -> _Loaded:
        name = f"Ebay_{self.split}.txt"
        rows = self._rows(4, name, skip=1)  # columns: image_id class_id super_class_id path
        given = [read_label(row[1], self.root / name) for row in rows]
        numbers = sorted(set(given))
        place = {number: i for i, number in enumerate(numbers)}
        kinds = {n: row[3].partition("/")[0].removesuffix("_final") for n, row in zip(given, rows)}
        paths = [str(self.root / row[3]) for row in rows]
        labels = [place[number] for number in given]
        return (
            paths,
            labels,
            [str(number) for number in numbers],
            [(kinds[number],) for number in numbers],
            None,
        )


@DATASETS.register_module()
class InShop(_RetrievalDataset):
    """In-Shop Clothes Retrieval of DeepFashion (Liu et al., CVPR 2016): 3,997 items for training,
    3,985 for test.

    Files: ``list_eval_partition.txt`` (or in ``Eval/``) and ``img/...`` (or ``Img/img/...``). The
    split ``"test"`` has the queries first and then the gallery. The ancestors of an item are (women
    or men, kind of garment).
    """

    title = "In-Shop Clothes Retrieval"
    folder = "In-shop"
    source = "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html (on request)"
    published = {"train": (25882, 3997), "test": (26830, 3985)}

    def _load(self) -> _Loaded:
        name = "list_eval_partition.txt"
        # columns: image_name item_id evaluation_status
        rows = self._rows(3, name, f"Eval/{name}", skip=2)
        unknown = sorted({row[2] for row in rows} - {"train", "query", "gallery"})
        if unknown:
            raise HypvisionError(
                f"'{self.root}' lists images for '{unknown[0]}', not train, query or gallery. "
                "Replace the list."
            )
        parts = ("train",) if self.split == "train" else ("query", "gallery")
        chosen = [row for part in parts for row in rows if row[2] == part]
        items = sorted({row[1] for row in chosen})
        place = {item: i for i, item in enumerate(items)}
        above = {row[1]: tuple(row[0].split("/")[1:3]) for row in chosen}
        base = self.root / "Img" if (self.root / "Img").is_dir() else self.root
        labels = [place[row[1]] for row in chosen]
        queries = None if self.split == "train" else sum(row[2] == "query" for row in chosen)
        return (
            [str(base / row[0]) for row in chosen],
            labels,
            items,
            [above[item] for item in items],
            queries,
        )


def _matching(root: str, classes: Sequence[str] | None) -> Sequence[str] | None:
    """Class names with patterns replaced by the folders that match them, sorted."""
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
    """The content of a JSON file, ``"FILE.json"``, or the value of a key in it,
    ``"FILE.json:KEY"``."""
    advice = "Correct the file, 'classes' or 'ancestors' of the data in the config, or data_root."
    path, _, key = name.rpartition(":") if ".json:" in name else (name, "", "")
    if not key:
        return read_record(kind, path, advice)
    content = read_record(dict[str, Any], path, advice)
    if key not in content:
        raise HypvisionError(f"'{path}' has no '{key}'.{did_you_mean(key, content)} {advice}")
    return parse(kind, content[key], f"'{name}'", advice=advice)


def _taxonomy(name: str) -> dict[str, tuple[str, ...]]:
    """Groups above each class of a hierarchy that is known by name, or of one in a file."""
    if ".json" in name:
        return _in_file(name, dict[str, list[str]])
    if name != "shapes":
        raise HypvisionError(
            f"There are no ancestors by the name of '{name}'. Give a dict, a .json file or "
            "'shapes'."
        )
    return {" ".join(words): (KIND_OF[words[-1]], words[-1]) for words in TAXONOMY.instances}


@DATASETS.register_module()
class RetrievalFolder(ImageFolderDataset):
    """Some classes of images in class folders, for retrieval: CIFAR-10 as a stand-in, or your own
    images.

    Args:
        root, transform, cache: see :class:`~hypvision.data.image_folder.ImageFolderDataset`.
        classes: the folders to take, by name or by pattern (``"* cross"``), or ``"FILE.json:KEY"``,
            a list of names in a file; all by default.
        ancestors: for each class the groups above it, from general to specific, e.g.
            ``dict(cat=("animal",))``; or a JSON file of that, ``"FILE.json"`` or
            ``"FILE.json:KEY"``; or ``"shapes"``: those of the procedural data set at the level of
            instances (kind, shape).
        per_class: take this many images of each class, evenly spread over its sorted files.
        gallery: folder of the same classes that the images of ``root``, the queries, search in;
            None: each image searches among all others of ``root``.
    """

    def __init__(
        self,
        root: str,
        transform: dict[str, Any] | Callable,
        classes: Sequence[str] | str | None = None,
        ancestors: Mapping[str, Sequence[str]] | str | None = None,
        per_class: int | None = None,
        cache: bool = False,
        gallery: str | None = None,
    ):
        if isinstance(classes, str):
            classes = _in_file(classes, list[str])
        super().__init__(root, transform, classes=_matching(root, classes))
        if isinstance(ancestors, str):
            ancestors = _taxonomy(ancestors)
        if per_class is not None:
            self._thin(per_class)
        queries = None
        if gallery is not None:
            others = RetrievalFolder(
                gallery, transform, classes=self.metainfo["classes"], per_class=per_class
            )
            queries = len(self.paths)
            self.paths = self.paths + others.paths
            self.usage.add(others.usage)
            self.labels = np.concatenate([self.labels, others.labels])
        if cache:
            self._cache = [self._decode(i) for i in range(len(self.paths))]
        names = self.metainfo["classes"]
        above: list[tuple[str, ...]] = [() for _ in names]
        if ancestors is not None:
            absent = [name for name in names if name not in ancestors]
            if absent:
                raise HypvisionError(
                    f"'ancestors' has no entry for the class '{absent[0]}'. Add it to the config."
                )
            above = [tuple(ancestors[name]) for name in names]
            if len({len(groups) for groups in above}) > 1:
                raise HypvisionError(
                    "All classes must have equally many 'ancestors', from general to specific."
                )
        self.metainfo |= dict(ancestors=tuple(above), queries=queries)

    def _sorted(self, names: list[str]) -> list[str]:
        return names  # retrieval only compares labels for equality, so they need no order

    def _thin(self, per_class: int) -> None:
        chosen: list[int] = []
        for members in members_of(self).values():
            chosen += members[
                np.linspace(0, len(members) - 1, min(per_class, len(members))).astype(int)
            ].tolist()
        self.usage.use("files", len(chosen) - len(self.paths))
        for i in sorted(set(range(len(self.paths))) - set(chosen)):
            self.usage.leave_out("files", f"per_class={per_class}", Path(self.paths[i]).name)
        self.paths = [self.paths[i] for i in chosen]
        self.labels = self.labels[chosen]

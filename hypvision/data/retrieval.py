"""Image retrieval data in its published layouts: CUB-200-2011, Cars-196, Stanford Online Products, In-Shop Clothes.

Training and test have different classes. Samples are those of :mod:`.image_folder`; ``metainfo`` has

- ``classes``: names, in the order of the labels;
- ``ancestors``: for each class a tuple of the groups above it, from general to specific (a maker of cars, a kind of
  product); it defines how bad a mistake is. () where there is none;
- ``queries``: the number of images, at the beginning, that search among the others (In-Shop); None where every image
  searches among all others.
"""

from __future__ import annotations

import fnmatch
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hypvision.clip.classes import check_classes
from hypvision.errors import HypvisionError, require
from hypvision.files import read_json, read_lines
from hypvision.images import open_image

from .image_folder import ImageFolderDataset, _ImageDataset
from .taxonomy import KINDS, TAXONOMY

require("mmengine", "mm")

from mmengine.registry import DATASETS  # noqa: E402 - after the check that says how to install it

__all__ = ["CUB200", "Cars196", "InShop", "RetrievalFolder", "StanfordOnlineProducts"]


class _RetrievalDataset(_ImageDataset):
    """What the published data sets share. Subclasses implement :meth:`_load`.

    Args:
        root: folder of the data set.
        transform: arguments of :func:`~hypvision.data.image_folder.build_transform`.
        split: ``"train"`` or ``"test"``.

    Raises:
        HypvisionError: unknown split; files are missing, with where to get them; a corrupt image (when it is read).
    """

    title: str
    # The folder that unpacking makes, and where the archive is.
    folder: str
    source: str
    # Images and classes of each split as published.
    published: dict[str, tuple[int, int]]

    def __init__(self, root: str, transform: dict[str, Any] | Callable, split: str = "train"):
        super().__init__(transform)
        if split not in self.published:
            raise HypvisionError(f"{self.title} has the splits {' and '.join(self.published)}, not '{split}'.")
        self.split = split
        self.root = Path(root).expanduser()
        if not self.root.is_dir():
            raise self._missing(f"The data folder '{self.root}' does not exist.")
        self.paths, self.labels, classes, ancestors, queries = self._load()
        if not self.paths:
            raise self._missing(f"The lists in '{self.root}' name no images of the split '{split}'.")
        absent = [path for path in self.paths if not Path(path).is_file()]
        if absent:
            raise self._missing(
                f"{len(absent)} of the {len(self.paths)} images of the split '{split}' are missing in '{self.root}', "
                f"the first is '{absent[0]}'."
            )
        found = (len(self.paths), len(classes))
        if found != self.published[split]:
            images, count = self.published[split]
            warnings.warn(
                f"{self.title}, {split}: {found[0]} images of {found[1]} classes in '{self.root}', published are "
                f"{images} of {count}. Results do not compare with those of others.",
                stacklevel=2,
            )
        self.metainfo = dict(classes=tuple(classes), ancestors=tuple(ancestors), queries=queries)

    @abstractmethod
    def _load(self) -> tuple[list[str], np.ndarray, list[str], list[tuple[str, ...]], int | None]:
        """Paths, labels (from 0), class names, their ancestors, and the number of queries."""

    def _missing(self, what: str) -> HypvisionError:
        return HypvisionError(
            f"{what} {self.title} comes from {self.source}; unpack it so that data_root is the folder '{self.folder}' "
            "(layout in docs/data.md), or give its place with --cfg-options data_root=FOLDER."
        )

    def _lines(self, *names: str) -> list[list[str]]:
        """The words of each line of the first of these files that exists."""
        for name in names:
            if (self.root / name).is_file():
                return [line.split() for line in read_lines(self.root / name, f"a list of {self.title}")]
        raise self._missing(f"The file '{self.root / names[0]}' does not exist.")

    def _table(self, rows: Iterable[list[str]], width: int, name: str) -> list[list[str]]:
        """Rows of ``width`` words, checked."""
        rows = list(rows)
        for row in rows:
            if len(row) != width:
                raise HypvisionError(
                    f"'{self.root / name}' has the line '{' '.join(row)}', which is not {width} words. Replace the "
                    "file by an intact copy."
                )
        return rows

    def _number(self, word: Any, name: str) -> int:
        """The number of a class in a list, checked."""
        try:
            return int(word)
        except (TypeError, ValueError):
            raise HypvisionError(
                f"'{self.root / name}' has '{word}' where the number of a class belongs. Replace the file by an intact "
                "copy."
            ) from None

    def read(self, index: int) -> Image.Image:
        return open_image(self.paths[index])

    def name(self, index: int) -> str:
        return self.paths[index]


@DATASETS.register_module()
class CUB200(_RetrievalDataset):
    """CUB-200-2011 birds: classes 1-100 for training, 101-200 for test (Wah et al., 2011).

    Files: ``images.txt``, ``image_class_labels.txt``, ``classes.txt``, ``images/CLASS/*.jpg``. The ancestor of a
    species is the last word of its name (albatross, sparrow, ...): a common name, close to the family but not taxonomy.

    Args and errors: see the base class.
    """

    title, folder = "CUB-200-2011", "CUB_200_2011"
    source = "https://data.caltech.edu/records/65de6-vp158 (CUB_200_2011.tgz)"
    published = {"train": (5864, 100), "test": (5924, 100)}

    def _load(self):
        rows = self._table(self._lines("classes.txt"), 2, "classes.txt")
        pairs = [(self._number(number, "classes.txt"), name) for number, name in rows]
        classes = check_classes(pairs, f"'{self.root / 'classes.txt'}'", "Take an intact copy.")
        files = self._table(self._lines("images.txt"), 2, "images.txt")
        numbers = dict(self._table(self._lines("image_class_labels.txt"), 2, "image_class_labels.txt"))
        wanted = sorted(number for number in classes if (number <= 100) == (self.split == "train"))
        place = {str(number): i for i, number in enumerate(wanted)}
        chosen = [(file, place[numbers[key]]) for key, file in files if numbers.get(key) in place]
        names = [classes[number].partition(".")[2] or classes[number] for number in wanted]
        ancestors = [(name.rpartition("_")[2].lower(),) for name in names]
        paths = [str(self.root / "images" / file) for file, _ in chosen]
        return paths, np.array([label for _, label in chosen], dtype=np.int64), names, ancestors, None


# Makers of Cars-196 of more than one word; the others are the first word of the model.
_MAKERS = ("AM General", "Aston Martin", "Land Rover")


def car_maker(model: str) -> str:
    """The maker of a car by its name in Cars-196."""
    return next((maker for maker in _MAKERS if model.startswith(maker + " ")), model.partition(" ")[0])


@DATASETS.register_module()
class Cars196(_RetrievalDataset):
    """Cars-196: the first 98 classes for training, the other 98 for test (Krause et al., 2013).

    Files: ``cars_annos.mat`` and ``car_ims/*.jpg``; or, as in later copies, ``devkit/cars_meta.mat``,
    ``devkit/cars_train_annos.mat``, ``cars_test_annos_withlabels.mat``, ``cars_train/*.jpg``, ``cars_test/*.jpg``. The
    ancestor of a model is its maker. Reading ``.mat`` needs SciPy.

    Args and errors: see the base class.
    """

    title, folder = "Cars-196", "CARS_196"
    source = "http://ai.stanford.edu/~jkrause/cars/car_dataset.html (car_ims.tgz, cars_annos.mat), or a copy of it"
    published = {"train": (8054, 98), "test": (8131, 98)}

    def _load(self):
        if (self.root / "cars_annos.mat").is_file() or not (self.root / "devkit").is_dir():
            rows = self._annotations("cars_annos.mat", "relative_im_path")
            names = self._entry("cars_annos.mat", "class_names")
        else:
            names = self._entry("devkit/cars_meta.mat", "class_names")
            rows = []
            for folder, file in (
                ("cars_train", "devkit/cars_train_annos.mat"),
                ("cars_test", "cars_test_annos_withlabels.mat"),
            ):
                rows += [(f"{folder}/{name}", number) for name, number in self._annotations(file, "fname")]
        names = [str(name) for name in np.atleast_1d(names)]
        first = 0 if self.split == "train" else 98
        names = names[first : first + 98]
        chosen = [(path, c - 1 - first) for path, c in rows if 0 <= c - 1 - first < len(names)]
        paths = [str(self.root / path) for path, _ in chosen]
        ancestors = [(car_maker(name),) for name in names]
        return paths, np.array([label for _, label in chosen], dtype=np.int64), names, ancestors, None

    def _entry(self, name: str, key: str) -> Any:
        content = self._mat(name)
        if key not in content:
            found = ", ".join(sorted(k for k in content if not k.startswith("__"))) or "nothing"
            raise HypvisionError(
                f"The file '{self.root / name}' has no '{key}', it has {found}. Replace it by an intact copy"
                + (" with labels." if "test_annos" in name else ".")
            )
        return content[key]

    def _annotations(self, name: str, path: str) -> list[tuple[str, int]]:
        """Path and class of each image in a file."""
        found = []
        for item in np.atleast_1d(self._entry(name, "annotations")):
            fields = getattr(item, "__dict__", {})
            for key in (path, "class"):
                if key not in fields:
                    raise HypvisionError(
                        f"The file '{self.root / name}' has an annotation without '{key}'. Take the file that has the "
                        "classes: the archives have one of the test images without them, too."
                    )
            found.append((str(fields[path]), self._number(fields["class"], name)))
        return found

    def _mat(self, name: str) -> dict[str, Any]:
        if not (self.root / name).is_file():
            raise self._missing(f"The file '{self.root / name}' does not exist.")
        io = require("scipy.io", "metric")
        try:
            return io.loadmat(self.root / name, squeeze_me=True, struct_as_record=False)
        except Exception as error:  # the reader raises whatever the bytes make it stumble over
            raise HypvisionError(
                f"The file '{self.root / name}' cannot be read ({error}). Replace it by an intact copy."
            ) from error


@DATASETS.register_module()
class StanfordOnlineProducts(_RetrievalDataset):
    """Stanford Online Products: 11,318 products for training, 11,316 for test (Song et al., CVPR 2016).

    Files: ``Ebay_train.txt``, ``Ebay_test.txt`` and ``KIND_final/*.JPG``. The ancestor of a product is its kind, one of
    12.

    Args and errors: see the base class.
    """

    title, folder = "Stanford Online Products", "Stanford_Online_Products"
    source = "https://cvgl.stanford.edu/projects/lifted_struct/ (Stanford_Online_Products.zip)"
    published = {"train": (59551, 11318), "test": (60502, 11316)}

    def _load(self):
        name = f"Ebay_{self.split}.txt"
        rows = self._table(self._lines(name)[1:], 4, name)  # image_id class_id super_class_id path
        given = [self._number(row[1], name) for row in rows]
        numbers = sorted(set(given))
        place = {number: i for i, number in enumerate(numbers)}
        kinds = {n: row[3].partition("/")[0].removesuffix("_final") for n, row in zip(given, rows)}
        labels = np.array([place[number] for number in given], dtype=np.int64)
        paths = [str(self.root / row[3]) for row in rows]
        return paths, labels, [str(number) for number in numbers], [(kinds[number],) for number in numbers], None


@DATASETS.register_module()
class InShop(_RetrievalDataset):
    """In-Shop Clothes Retrieval of DeepFashion (Liu et al., CVPR 2016): 3,997 items for training, 3,985 for test.

    Files: ``list_eval_partition.txt`` (or in ``Eval/``) and ``img/...`` (or ``Img/img/...``). The split ``"test"`` has
    the queries first and then the gallery. The ancestors of an item are (women or men, kind of garment).

    Args and errors: see the base class.
    """

    title, folder = "In-Shop Clothes Retrieval", "In-shop"
    source = "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html (on request)"
    published = {"train": (25882, 3997), "test": (26830, 3985)}

    def _load(self):
        name = "list_eval_partition.txt"
        rows = self._table(self._lines(name, f"Eval/{name}")[2:], 3, name)  # image_name item_id evaluation_status
        unknown = sorted({row[2] for row in rows} - {"train", "query", "gallery"})
        if unknown:
            raise HypvisionError(
                f"'{self.root}' lists images for '{unknown[0]}', but In-Shop has train, query and gallery. "
                "Replace the list."
            )
        parts = ("train",) if self.split == "train" else ("query", "gallery")
        chosen = [row for part in parts for row in rows if row[2] == part]
        items = sorted({row[1] for row in chosen})
        place = {item: i for i, item in enumerate(items)}
        above = {row[1]: tuple(row[0].split("/")[1:3]) for row in chosen}
        base = self.root / "Img" if (self.root / "Img").is_dir() else self.root
        labels = np.array([place[row[1]] for row in chosen], dtype=np.int64)
        queries = None if self.split == "train" else sum(row[2] == "query" for row in chosen)
        return [str(base / row[0]) for row in chosen], labels, items, [above[item] for item in items], queries


def _matching(root: str, classes: Sequence[str] | None) -> list[str] | None:
    """Class names with patterns replaced by the folders that match them, sorted."""
    if classes is None or not any("*" in name for name in classes):
        return None if classes is None else list(classes)
    folders = sorted(path.name for path in Path(root).glob("*/")) if Path(root).is_dir() else []
    found: list[str] = []
    for name in classes:
        matches = fnmatch.filter(folders, name) if "*" in name else [name]
        if not matches and folders:
            raise HypvisionError(f"No folder of '{root}' matches the class pattern '{name}'. Correct it.")
        found += matches
    return sorted(set(found))


def _in_file(name: str) -> Any:
    """What a JSON file holds, ``"FILE.json"``, or what is there by a key, ``"FILE.json:KEY"``."""
    path, _, key = name.rpartition(":") if ".json:" in name else (name, "", "")
    try:
        content = read_json(Path(path).expanduser())
        return content[key] if key else content
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HypvisionError(
            f"'{name}' cannot be read ({type(error).__name__}: {error}). Expected: a JSON file"
            + (f" that has '{key}'" if key else "")
            + ". Correct 'classes' or 'ancestors' of the data in the config, or data_root."
        ) from error


def _taxonomy(name: str) -> dict[str, tuple[str, ...]]:
    """Groups above each class of a hierarchy that is known by name, or of one in a file."""
    if ".json" in name:
        return _in_file(name)
    if name != "shapes":
        raise HypvisionError(f"There are no ancestors by the name of '{name}'. Give a dict, a .json file or 'shapes'.")
    parents = {shape: kind for kind, shapes in KINDS.items() for shape in shapes}
    return {" ".join(words): (parents[words[-1]], words[-1]) for words in TAXONOMY.instances}


@DATASETS.register_module()
class RetrievalFolder(ImageFolderDataset):
    """Some classes of images in class folders, for retrieval: CIFAR-10 as a stand-in, or your own images.

    Args:
        root, transform, cache: see :class:`~hypvision.data.image_folder.ImageFolderDataset`.
        classes: the folders to take, by name or by pattern (``"* cross"``), or ``"FILE.json:KEY"``, a list of names in
            a file; all by default.
        ancestors: for each class the groups above it, from general to specific, e.g. ``dict(cat=("animal",))``; or a
            JSON file of that, ``"FILE.json"`` or ``"FILE.json:KEY"``; or ``"shapes"``: those of the procedural data set
            at the level of instances (kind, shape).
        per_class: take this many images of each class, evenly spread over its sorted files.
        gallery: folder of the same classes that the images of ``root``, the queries, search in; None: each image
            searches among all others of ``root``.

    Raises:
        HypvisionError: as there; a file that cannot be read; ``ancestors`` lacks a class, or they are not equally many.
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
            classes = _in_file(classes)
        super().__init__(root, transform, classes=_matching(root, classes))
        if isinstance(ancestors, str):
            ancestors = _taxonomy(ancestors)
        if per_class is not None:
            self._thin(per_class)
        queries = None
        if gallery is not None:
            others = RetrievalFolder(gallery, transform, classes=self.metainfo["classes"], per_class=per_class)
            queries, self.paths = len(self.paths), self.paths + others.paths
            self.labels = np.concatenate([self.labels, others.labels])
        if cache:
            self._cache = [np.asarray(self._decode(i)) for i in range(len(self.paths))]
        names = self.metainfo["classes"]
        above: list[tuple[str, ...]] = [() for _ in names]
        if ancestors is not None:
            absent = [name for name in names if name not in ancestors]
            if absent:
                raise HypvisionError(f"'ancestors' has no entry for the class '{absent[0]}'. Add it to the config.")
            above = [tuple(ancestors[name]) for name in names]
            if len({len(groups) for groups in above}) > 1:
                raise HypvisionError("All classes must have equally many 'ancestors', from general to specific.")
        self.metainfo |= dict(ancestors=tuple(above), queries=queries)

    def _thin(self, per_class: int) -> None:
        keep: list[int] = []
        for label in np.unique(self.labels):
            members = np.flatnonzero(self.labels == label)
            keep += members[np.linspace(0, len(members) - 1, min(per_class, len(members))).astype(int)].tolist()
        self.paths = [self.paths[i] for i in keep]
        self.labels = self.labels[keep]

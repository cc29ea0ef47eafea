"""Detection data sets for mmdet's registry, with checked annotations. Importing this module imports
mmdet.

It replaces mmdet's own data sets by :class:`CheckedCocoDataset` and :class:`CheckedVOCDataset`,
makes CocoMetric read annotation files through :class:`CheckedCOCO`, and replaces it by
:class:`~hypvision.openmmlab.coco_metric.CheckedCocoMetric`.
"""

from __future__ import annotations

import logging
import math
import os
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mmcv.transforms import LoadImageFromFile
from mmdet.datasets import (
    BaseDetDataset,
    CocoDataset,
    CocoPanopticDataset,
    OpenImagesDataset,
    XMLDataset,
)
from mmdet.datasets import VOCDataset as PascalDataset
from mmdet.datasets.api_wrappers import COCO
from mmdet.evaluation.metrics import coco_metric
from mmdet.registry import DATASETS

import hypvision.openmmlab.coco_metric  # noqa: F401 - takes the place of mmdet's metric
from hypvision.data.annotations import (
    NAME_THEM,
    Box,
    BoxCheck,
    as_number,
    check_names,
    compare_names,
    is_number,
    mask_fault,
    refuse_masks,
    whole_size,
)
from hypvision.data.classes import check_classes, numbered
from hypvision.data.usage import Listing, Usage, similar_names
from hypvision.data.voc_xml import read_xml
from hypvision.io import HypvisionError, Plain, did_you_mean, ensure, some
from hypvision.io.files import inside, many_objects, read_json, read_lines
from hypvision.io.images import SUFFIXES, open_image
from hypvision.openmmlab.images import tell_depth

_logger = logging.getLogger(__name__)

_NEEDED = {  # list of an annotation file -> keys of its entries that mmdet reads
    "images": ("id", "file_name", "height", "width"),
    "annotations": ("id", "image_id", "category_id", "bbox"),
    "categories": ("id", "name"),
}
_ADVICE = "Expected: COCO's format (see docs/data.md). Correct the file."


class CheckedCOCO(COCO):
    """An annotation file in COCO's format; mistakes that would lead to wrong labels are errors.

    mmdet itself silently drops annotations of unknown categories, and numbers the classes wrongly
    if a category is missing. Boxes without ``area`` or ``iscrowd``, which many tools leave out, get
    the values of a plain box. Invalid boxes (without size, outside the image) are left out of the
    ground truth.

    Args:
        annotation_file: path of the JSON file.
        usage: counts the boxes and images that are left out.
        masks: whether the masks are needed, and so checked, too.
        content: content of the file, if it was read already.
    """

    def __init__(
        self,
        annotation_file: str | None = None,
        usage: Usage | None = None,
        masks: bool = False,
        content: Plain | None = None,
    ):
        super().__init__(None)
        self.place = annotation_file
        if annotation_file is not None:
            with many_objects():
                self.dataset = content or read_annotations(annotation_file, _NEEDED)
                self._check_content(usage or Usage(annotation_file))
                if masks:
                    self.check_masks()
                self.createIndex()
            self.img_ann_map = self.imgToAnns
            self.cat_img_map = self.catToImgs

    def _check_content(self, usage: Usage) -> None:
        content = self.dataset
        images = images_by_id(self.dataset, str(self.place), usage)
        named = ((item["id"], item["name"]) for item in content["categories"])
        categories = check_classes(
            named,
            f"The annotation file '{self.place}'",
            "Correct its categories.",
            shared_names=True,
        )
        check = BoxCheck(usage, "[left, top, width, height]")
        boxes = []
        seen: set[Any] = set()
        for number, item in enumerate(content["annotations"]):
            where = f"In '{self.place}', annotation {item['id']} (annotations[{number}])"
            item.setdefault("iscrowd", 0)
            wrong = _annotation_fault(item, categories, images, seen)
            if wrong:
                raise HypvisionError(f"{where} has {wrong}")
            seen.add(item["id"])
            image = images[item["image_id"]]
            check.numbers(where, item["bbox"], image["height"], image["width"])
            left, top, width, height = item["bbox"]
            item.setdefault("area", width * height)
            box = Box(
                left, top, left + width, top + height, image["height"], image["width"],
                item["area"], bool(item["iscrowd"]),
            )  # fmt: skip
            fault = check.fault(f"{image['file_name']}, annotation {item['id']}", box)
            if fault is None or not fault.no_box:
                boxes.append(item)
        check.finish()
        content["annotations"] = boxes
        for item in boxes:
            if item["id"] == 0:  # for pycocotools id 0 means that no object was matched
                item["id"] = int(max(seen)) + 1

    def check_masks(self) -> None:
        images = {item["id"]: item for item in self.dataset["images"]}
        items = self.dataset["annotations"]
        if items and not any(item.get("segmentation") for item in items):
            raise HypvisionError(
                f"The annotation file '{self.place}' has boxes without masks (no 'segmentation' in "
                "its annotations), but the config trains or measures masks (with_mask=True in its "
                "pipelines, 'segm' in its metric). For boxes alone take Faster R-CNN, RetinaNet or "
                "FCOS, as docs/own-data.md shows; for masks add 'segmentation' to each annotation."
            )
        sizes = (
            (images[item["image_id"]]["height"], images[item["image_id"]]["width"])
            for item in items
        )
        faults = (
            (
                f"In '{self.place}', annotation {item['id']}",
                mask_fault(item.get("segmentation"), *size),
            )
            for item, size in zip(items, sizes)
        )
        refuse_masks(faults, str(self.place))

    def get_cat_ids(
        self, cat_names: Sequence[str] = (), sup_names: Sequence[str] = (), cat_ids: Any = ()
    ) -> list[int]:
        """Return the ids of the categories in the order of the names, which mmdet uses for its
        labels; the order in the file may differ."""
        if not cat_names:
            return super().get_cat_ids(cat_names, list(sup_names), list(cat_ids))
        check_names(cat_names)
        numbers = {category["name"]: number for number, category in self.cats.items()}
        own = [category["name"] for category in self.cats.values()]
        where = f"The annotation file '{self.place}'"
        twice = [name for name, count in Counter(own).items() if count > 1]
        ensure(
            not twice,
            f"{where} has a name more than once in its categories: {some(twice)}. Correct it.",
        )
        compare_names(own, cat_names, where, ignored="others")
        return [numbers[name] for name in cat_names]

    def loadRes(self, resFile: Any) -> COCO:
        """Load results as COCO does, but also from an empty list, for which mmdet would compute no
        metrics."""
        if not isinstance(resFile, list) or resFile:
            return super().loadRes(resFile)
        found = COCO()
        found.dataset = dict(self.dataset, annotations=[])
        found.createIndex()
        return found


def read_annotations(path: str, needed: Mapping[str, Sequence[str]]) -> Plain:
    """Read a JSON file of COCO's kind; ``needed`` has the lists that it must contain, and the keys
    of their entries."""
    advice = "Check data_root and ann_file, or get the annotation file again."
    content = read_json(path, advice=advice)
    if isinstance(content, dict):
        content.setdefault("annotations", [])  # files of test images have no annotations
    lists = isinstance(content, dict) and [content.get(key) for key in needed]
    if not lists or not all(isinstance(value, list) for value in lists):
        raise HypvisionError(
            f"The annotation file '{path}' lacks one of the lists {', '.join(needed)}. {_ADVICE}"
        )
    for kind, keys in needed.items():
        for number, item in enumerate(content[kind]):
            wrong = _entry_fault(item, keys)
            if wrong:
                raise HypvisionError(f"In '{path}', {kind}[{number}] has {wrong}. {_ADVICE}")
    return content


# Checks return text, empty for a correct entry, because a file may have a million entries.


def _entry_fault(item: Any, keys: Sequence[str]) -> str:
    """Return what is wrong with an entry of a list, in words that follow "it has"; empty if
    nothing."""
    if not isinstance(item, dict):
        return f"no {some(list(keys))}"
    lacking = [key for key in keys if key not in item]
    if lacking:
        return f"no {some(lacking)}"
    for key in keys:
        if key.endswith("id") and not isinstance(item[key], (int, float, str)):
            return f"the '{key}': {item[key]!r:.60}. Expected: a number"
    return ""


def _annotation_fault(
    item: Plain,
    categories: Collection[Any],
    images: Collection[Any],
    seen: Collection[Any],
) -> str:
    """Return what is wrong with an annotation, in words that follow "it has"; empty if nothing."""
    if item["category_id"] not in categories:
        return (
            f"the category_id {item['category_id']}, which is none of the file's categories "
            f"({some(sorted(map(str, categories)))}). Correct the number, or add the category."
        )
    if item["image_id"] not in images:
        return f"the image_id {item['image_id']}, which the file does not list. {_ADVICE}"
    if item["id"] in seen:
        return "the id of an earlier annotation. Give it an id of its own."
    if not is_number(item["id"]):
        return "an id that is not a number. Correct it."
    if not is_number(item.get("area", 0)) or item["iscrowd"] not in (0, 1):
        return (
            f"the area {item.get('area')!r:.60} and the iscrowd {item['iscrowd']!r:.60}. Expected: "
            "a number, and 0 or 1. Correct them, or remove the keys."
        )
    return ""


def images_by_id(content: Plain, path: str, usage: Usage) -> dict[Any, dict]:
    """Return the images of a file by id; those that are listed twice count once."""
    found: dict[Any, dict] = {}
    for number, item in enumerate(content["images"]):
        first = found.setdefault(item["id"], item)
        name = item["file_name"]
        size = (item["height"], item["width"])
        if not isinstance(name, str) or not whole_size(*size):
            raise HypvisionError(
                f"In '{path}', images[{number}] has the file_name {name!r:.60} and the height and "
                f"width {size!r:.60}. Expected: a name, and two whole numbers above 0. Correct it."
            )
        if first["file_name"] != name:
            raise HypvisionError(
                f"In '{path}', images[{number}] ('{name}') has the id {item['id']}, which "
                f"'{first['file_name']}' has too, so that the boxes of the two cannot be told "
                "apart. Give each image an id of its own."
            )
        if first is not item:
            usage.leave_out("images", "listed twice", name)
    content["images"] = list(found.values())
    names = Counter(item["file_name"] for item in content["images"])
    # In the file that mmdet's metric makes of the ground truth no image has a name.
    twice = [name for name, count in names.items() if count > 1 and name]
    if twice:
        _logger.warning(
            "'%s' lists %d images under several ids, which count several times, each with the "
            "objects of its id alone: %s. Give each image one entry.", path, len(twice),
            some(twice),
        )  # fmt: skip
    return found


CocoDataset.COCOAPI = CheckedCOCO  # mmdet's data sets that derive from CocoDataset use it, too
coco_metric.COCO = CheckedCOCO


class CountedDataset(BaseDetDataset):
    """The base of the data sets of all formats; ``usage`` counts the items that are left out.

    Args:
        ignored: class names whose objects in the files are ignored; ``"others"``: all names that
            are not among the classes.
    """

    OBJECTS = "boxes"
    data_list: list[dict]

    def __init__(self, *args: Any, ignored: Sequence[str] | str = (), **kwargs: Any):
        self.ignored = (ignored,) if isinstance(ignored, str) and ignored != "others" else ignored
        super().__init__(*args, **kwargs)

    def full_init(self) -> None:
        """Initialise the data set as mmdet does; it is an error if nothing is left to learn from,
        or if images of a test are missing."""
        if not self._fully_initialized:
            check_names(self.metainfo.get("classes"))
            self.usage = Usage(self.ann_file)
            self.usage.notes += similar_names(self.metainfo.get("classes") or ())
            super().full_init()

    def filter_data(self) -> list[dict]:
        """Return the images that mmdet's filter keeps, and count those that it leaves out."""
        if not self.backend_args:
            self._check_places()
        self.data_list = self._on_disk()
        kept = self._filtered()
        self._count_left_out(kept)
        used = self._chosen(kept)
        labels = self._count_kept(used)
        if not self.backend_args:
            tell_depth(self.pipeline.transforms, [item["img_path"] for item in used], self.usage)
        nothing = not kept or (not labels and self.usage.left_out(self.OBJECTS))
        if nothing and not self.test_mode:
            raise HypvisionError(
                f"The training data have no {'objects' if kept else 'images'} to learn from. "
                f"{self.usage} Correct '{self.ann_file}', or data_prefix and filter_cfg of the "
                "data set in the config (see docs/data.md)."
            )
        return kept

    def _chosen(self, kept: list[dict]) -> list[dict]:
        """Return the images that mmdet takes of those that are kept: all, or those at the
        ``indices``."""
        if self._indices is None:
            return kept
        self.data_list = kept
        return self._get_unserialized_subset(self._indices)

    def _check_places(self) -> None:
        """Raise an error for a file outside the folders of the data."""
        keys = ("img_path", "seg_map_path")
        named = [item[key] for item in self.data_list for key in keys if item.get(key)]
        inside(named, *self._places())

    def _count_kept(self, used: list[dict]) -> Counter[int]:
        """Count the images, objects and classes that are used; return the number of objects of each
        label."""
        labels = Counter(label for item in used for label in self._labels(item))
        self.usage.use("images", len(used))
        self.usage.use(self.OBJECTS, sum(labels.values()))
        self.usage.use("classes", len(labels))
        for label, name in enumerate(self.metainfo.get("classes") or ()):
            if label not in labels:
                self.usage.leave_out("classes", f"without {self.OBJECTS}", name)
        return labels

    def _count_left_out(self, kept: list[dict]) -> None:
        """Count the images that mmdet's filter leaves out, by reason."""
        ids = {id(item) for item in kept}
        smallest = (self.filter_cfg or {}).get("min_size", 0)
        for item in self.data_list:
            if id(item) in ids:
                continue
            side = min(item.get("width", math.inf), item.get("height", math.inf))
            reason = "without objects, see filter_empty_gt"
            if side < smallest:
                reason = f"smaller than min_size={smallest}"
            self.usage.leave_out("images", reason, item["img_path"])

    def _places(self) -> list[str]:
        """Return the folders of the data: ``data_root``, and those of ``data_prefix``, which may be
        links to other disks."""
        return [self.data_root or "", *filter(None, self.data_prefix.values())]

    def _filtered(self) -> list[dict]:
        return super().filter_data()

    @staticmethod
    def _labels(item: dict) -> list[int]:
        """Return the labels of the objects of an image that are used in training; objects without a
        box are skipped."""
        objects = item.get("instances") or ()
        return [
            item["bbox_label"]
            for item in objects
            if "bbox_label" in item and not item.get("ignore_flag")
        ]

    def _on_disk(self) -> list[dict]:
        """Return the images that exist; images in a remote store, and images that no pipeline
        reads, are not checked."""
        read = any(isinstance(step, LoadImageFromFile) for step in self.pipeline.transforms)
        if self.backend_args or not read:
            return self.data_list
        there = Listing()
        missing = []
        for item in self.data_list:
            path = item["img_path"] = there.find(item["img_path"]) or item["img_path"]
            if path not in there:
                self.usage.leave_out("images", "missing on disk", path)
                missing.append(path)
        if missing and self.test_mode:
            raise HypvisionError(
                f"{len(missing)} of the {len(self.data_list)} images of '{self.ann_file}' do not "
                f"exist, the first is {some(missing[:1])}. Put them there, correct "
                "data_prefix, or take them out of the file."
            )
        return [item for item in self.data_list if item["img_path"] in there]


@DATASETS.register_module(name="CocoDataset", force=True)
class CheckedCocoDataset(CountedDataset, CocoDataset):
    """mmdet's CocoDataset, whose annotation file is read by :class:`CheckedCOCO`."""

    def load_data_list(self) -> list[dict]:
        masks = any(getattr(step, "with_mask", False) for step in self.pipeline.transforms)
        self.COCOAPI = partial(self._open, masks=masks)
        self.checked = False
        return super().load_data_list()

    def parse_data_info(self, raw_data_info: dict) -> Any:
        """Return an image with its objects. Count those that mmdet drops from a file that it reads
        in its own way (LVIS)."""
        info = super().parse_data_info(raw_data_info)
        dropped = len(raw_data_info["raw_ann_info"]) - len(info["instances"])
        if dropped and not self.checked:
            self.usage.leave_out(
                "boxes", "without area or outside the image", info["img_path"], dropped
            )
        return info

    def _content(self, path: str) -> Plain | None:
        """Return the annotations in COCO's form for a file of another format; None: the file has
        it."""
        return None

    def _open(self, path: str, masks: bool) -> CheckedCOCO:
        coco = CheckedCOCO(path, self.usage, masks, self._content(path))
        self.checked = True
        classes = self.metainfo["classes"]
        own = {number: item["name"] for number, item in coco.cats.items()}
        compare_names(list(own.values()), classes, f"The annotation file '{path}'", self.ignored)
        left_out = {number: name for number, name in own.items() if name not in set(classes)}
        for item in coco.dataset["annotations"] if left_out else ():
            if item["category_id"] in left_out:
                self.usage.leave_out("boxes", "of ignored classes", left_out[item["category_id"]])
        return coco


# Endings of the images beside VOC's XML files, the usual one first.
_ENDINGS = [
    write(ending) for ending in (".jpg", *sorted(SUFFIXES)) for write in (str, str.upper, str.title)
]


@DATASETS.register_module(name=["CheckedVOCDataset", "XMLDataset"], force=True)
class CheckedVOCDataset(CountedDataset, XMLDataset):
    """Images ``JPEGImages/NAME.*`` with boxes in VOC's XML, ``Annotations/NAME.xml``; a list file
    has the names.

    mmdet's own class silently leaves out objects of other classes, and expects every image to be a
    ``.jpg``.
    """

    def load_data_list(self) -> list[dict]:
        self.cat2label = numbered(self.metainfo["classes"])
        self.check = BoxCheck(self.usage, "xmin, ymin, xmax and ymax in <bndbox>")
        self.there = Listing()
        names = Counter(read_lines(self.ann_file, "the list of the images"))
        found = []
        for name, count in names.items():
            if count > 1:
                self.usage.leave_out("images", "listed twice", name, count - 1)
            annotation = Path(self.sub_data_root, self.ann_subdir, f"{name}.xml")
            (path,) = inside([annotation], *self._places())
            found.append(self.parse_data_info(dict(img_id=name, xml_path=path)))
        self.check.finish()
        return found

    def parse_data_info(self, img_info: Plain) -> Plain:
        """Return the content of one XML file: ``img_path``, ``height``, ``width`` and
        ``instances``."""
        path = img_info["xml_path"]
        folder = Path(self.sub_data_root, self.img_subdir)
        try:
            root = read_xml(self.there.find(path) or path)
        except FileNotFoundError as error:
            raise HypvisionError(
                f"The annotation '{path}' does not exist, but '{self.ann_file}' has the name "
                f"'{img_info['img_id']}'. Put it there, or take the name out of the list."
            ) from error

        names = [f"{img_info['img_id']}{ending}" for ending in _ENDINGS]
        beside = (self.there.find(str(folder / name)) for name in names)
        image = next(filter(None, beside), folder / names[0])
        width, height = (
            as_number(root.findtext(f"size/{side}", "")) for side in ("width", "height")
        )
        if not whole_size(height, width):  # some tools write a size of 0, others no size
            width, height = open_image(image).size
        objects = enumerate(root.findall("object"), start=1)
        instances = [
            self._instance(item, path, number, int(height), int(width)) for number, item in objects
        ]
        size = dict(height=int(height), width=int(width))
        return dict(img_info, img_path=str(image), **size, instances=list(filter(None, instances)))

    def _instance(
        self, item: ElementTree.Element, path: str, number: int, height: int, width: int
    ) -> Plain:
        """Return an object in mmdet's form; {} if it is left out."""
        name = str(item.findtext("name", "")).strip()
        where = f"{Path(path).name}, object {number}"
        if name not in self.cat2label:
            if name in self.ignored or self.ignored == "others":
                self.usage.leave_out("boxes", "of ignored classes", name)
                return {}
            raise HypvisionError(
                f"The annotation '{path}' has an object '{name}', which is not a class of the data "
                f"set.{did_you_mean(name, self.cat2label)} Classes: {some(list(self.cat2label))}. "
                f"{NAME_THEM}"
            )
        sides = [
            as_number(item.findtext(f"bndbox/{side}", ""))
            for side in ("xmin", "ymin", "xmax", "ymax")
        ]
        self.check.numbers(f"In '{path}', object {number} ('{name}')", sides, height, width)
        # VOC counts pixels from 1, mmdet from 0.
        left, top, right, bottom = corners = [int(side) - 1 for side in sides]
        difficult = as_number(item.findtext("difficult", "0")) not in (0, math.nan)
        fault = self.check.fault(
            where, Box(left, top, right, bottom, height, width, difficult=difficult)
        )
        if fault is not None and fault.no_box:
            return {}
        small = min(right - left, bottom - top) < (self.bbox_min_size or 0)
        return dict(
            bbox=corners, bbox_label=self.cat2label[name], ignore_flag=int(difficult or small)
        )


@DATASETS.register_module(force=True)
class VOCDataset(CheckedVOCDataset, PascalDataset):
    """mmdet's VOCDataset with Pascal's 20 classes, read as :class:`CheckedVOCDataset` does."""


class _StockDataset(CountedDataset):
    """The base for formats that are read by mmdet's own code; its errors become one sentence."""

    def load_data_list(self) -> list[dict]:
        try:
            return super().load_data_list()
        except (
            AssertionError,
            AttributeError,
            LookupError,
            NameError,
            TypeError,
            ValueError,
        ) as error:
            raise HypvisionError(
                f"The annotation file '{self.ann_file}' cannot be read as mmdet's "
                f"{type(self).__name__} ({type(error).__name__}: {error}). Compare it with the "
                "format that mmdet's documentation describes."
            ) from error


class _PanopticDataset(_StockDataset):
    OBJECTS = "segments"

    def parse_data_info(self, raw_data_info: dict) -> Any:
        """Return an image with its segments, and count the segments that mmdet drops."""
        info = super().parse_data_info(raw_data_info)
        own = [item for item in raw_data_info["raw_ann_info"] if item["image_id"] == info["img_id"]]
        dropped = len(own) - len(info["segments_info"])
        if dropped:
            self.usage.leave_out("segments", "without area", info["img_path"], dropped)
        return info

    @staticmethod
    def _labels(item: dict) -> list[int]:
        return [segment["category"] for segment in item["segments_info"]]


class _OpenImages(_StockDataset):
    def load_data_list(self) -> list[dict]:
        """Return mmdet's list with correct paths: in mmdet's, a last image with one box has the
        path of the image before it."""
        rows = super().load_data_list()
        return [
            dict(row, img_path=os.path.join(self.data_prefix["img"], f"{row['img_id']}.jpg"))
            for row in rows
        ]


def _checked_base(stock: type) -> type:
    """Return the base class that checks one of mmdet's further formats, to stand before mmdet's
    class."""
    if issubclass(stock, OpenImagesDataset):
        return _OpenImages
    if issubclass(stock, CocoPanopticDataset):
        return _PanopticDataset
    return CheckedCocoDataset if issubclass(stock, CocoDataset) else _StockDataset


CHECKED = SimpleNamespace()
"""The formats of mmdet with checks, under the names of mmdet's classes. Configs find them by these
names, and worker processes by this module."""
for _stock in {kind for kind in DATASETS.module_dict.values() if issubclass(kind, BaseDetDataset)}:
    if issubclass(_stock, CountedDataset):
        continue
    _place = {"__module__": __name__, "__qualname__": f"CHECKED.{_stock.__name__}"}
    _kind = type(_stock.__name__, (_checked_base(_stock), _stock), _place)
    setattr(CHECKED, _stock.__name__, _kind)
    for _name in [name for name, kind in DATASETS.module_dict.items() if kind is _stock]:
        DATASETS.register_module(_name, True, _kind)

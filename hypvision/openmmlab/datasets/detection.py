"""Detection data sets that mmdet does not have, in its registry. Importing this module imports mmdet.

It also makes mmdet's CocoDataset and CocoMetric read annotation files through :class:`CheckedCOCO`, and puts
:class:`~hypvision.openmmlab.coco_metric.CheckedCocoMetric` in the place of the latter.
"""

from __future__ import annotations

import logging
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmdet.datasets import CocoDataset, XMLDataset
from mmdet.datasets.api_wrappers import COCO
from mmdet.evaluation.metrics import coco_metric
from mmdet.registry import DATASETS

import hypvision.openmmlab.coco_metric  # noqa: F401 - takes the place of mmdet's metric
from hypvision.clip.classes import check_classes
from hypvision.data.taxonomy import TAXONOMY
from hypvision.errors import HypvisionError, did_you_mean
from hypvision.files import read_json
from hypvision.images import SUFFIXES
from hypvision.viz.palette import palette

_logger = logging.getLogger(__name__)

_NEEDED = {  # what mmdet reads of each entry
    "images": ("id", "file_name", "height", "width"),
    "annotations": ("id", "image_id", "category_id", "bbox"),
    "categories": ("id", "name"),
}


class CheckedCOCO(COCO):
    """An annotation file of COCO's format; mistakes in it are told before they become wrong labels.

    mmdet itself drops annotations of unknown categories without a word, and numbers the classes wrongly where a
    category is missing. Boxes without ``area`` or ``iscrowd``, which many tools leave out, get those of a plain box.

    Args:
        annotation_file: path of the JSON file.

    Raises:
        HypvisionError: it is damaged, not of COCO's format, or refers to images or categories that it does not have.
    """

    def __init__(self, annotation_file: str | None = None):
        super().__init__(None)
        self.place = annotation_file
        if annotation_file is not None:
            self.dataset = self._read(annotation_file)
            self.createIndex()
            self.img_ann_map, self.cat_img_map = self.imgToAnns, self.catToImgs

    @staticmethod
    def _read(path: str) -> dict[str, Any]:
        try:
            content = read_json(path)
        except ValueError as error:
            raise HypvisionError(
                f"The annotation file '{path}' is damaged: it is not valid JSON ({error}). Download or copy it again."
            ) from error
        advice = "Expected: COCO's format (see docs/data.md). Correct the file."
        if isinstance(content, dict):
            content.setdefault("annotations", [])  # as in the lists of test images that come without truth
        if not isinstance(content, dict) or not all(isinstance(content.get(key), list) for key in _NEEDED):
            raise HypvisionError(f"The annotation file '{path}' lacks one of the lists {', '.join(_NEEDED)}. {advice}")
        for kind, keys in _NEEDED.items():
            for number, item in enumerate(content[kind]):
                lacking = [key for key in keys if not isinstance(item, dict) or key not in item]
                if lacking:
                    raise HypvisionError(f"In '{path}', {kind}[{number}] has no '{lacking[0]}'. {advice}")
        named = ((item["id"], item["name"]) for item in content["categories"])
        check_classes(named, f"The annotation file '{path}'", "Correct its categories.", twins=True)
        images, categories = ({item["id"] for item in content[kind]} for kind in ("images", "categories"))
        seen = set()
        for number, item in enumerate(content["annotations"]):
            where = f"In '{path}', annotation {item['id']} (annotations[{number}])"
            if item["category_id"] not in categories:
                known = ", ".join(str(key) for key in sorted(categories, key=str)[:10])
                raise HypvisionError(
                    f"{where} has the category_id {item['category_id']}, which is none of the file's categories "
                    f"({known}{', ...' if len(categories) > 10 else ''}). Correct the number, or add the category."
                )
            if item["image_id"] not in images:
                raise HypvisionError(f"{where} has the image_id {item['image_id']}, which the file has not. {advice}")
            if item["id"] in seen:
                raise HypvisionError(f"{where} has an id that an earlier one has too. Give each its own number.")
            seen.add(item["id"])
            if not _is_box(item["bbox"]):
                raise HypvisionError(
                    f"{where} has the bbox {item['bbox']}. Expected: [left, top, width, height], four finite numbers."
                )
            item.setdefault("area", item["bbox"][2] * item["bbox"][3])
            item.setdefault("iscrowd", 0)
        return content

    def get_cat_ids(self, cat_names: Sequence[str] = (), sup_names: Sequence[str] = (), cat_ids: Any = ()) -> list[int]:
        """As COCO's, but in the order of the names, which mmdet numbers what it finds by; the file's may be another."""
        if not cat_names or isinstance(cat_names, str):
            return super().get_cat_ids(cat_names, list(sup_names), list(cat_ids))
        numbers = {category["name"]: number for number, category in self.cats.items()}
        own = [category["name"] for category in self.cats.values()]
        found = [name for name in cat_names if name in numbers]
        missing = [name for name in cat_names if name not in numbers]
        # Fewer categories than classes are right where they are the first ones, as in a small piece of a data set.
        if found != list(cat_names)[: len(found)] or (missing and len(found) < len(own)) or len(numbers) < len(own):
            lacking = f"lacks {', '.join(map(repr, missing[:5]))}" if missing else "has a name more than once"
            raise HypvisionError(
                f"The categories of the annotation file '{self.place}' are not the classes of the data set: it "
                f"{lacking}{', ...' if len(missing) > 5 else ''}. Expected: {_some(cat_names)}. Found: "
                f"{_some(own)}. Give the names of your categories, in any order, as metainfo=dict(classes=(...)) "
                "of the data set in the config."
            )
        return [numbers[name] for name in found]

    def loadRes(self, resFile: Any) -> COCO:
        """As COCO's, but no detection at all is a result, too: of it mmdet would give no metrics."""
        if not isinstance(resFile, list) or resFile:
            return super().loadRes(resFile)
        _logger.warning(
            "Nothing was detected in the %d images of '%s', so the precision is 0 where there is truth. That is usual "
            "after a few steps of training; else train for longer, or lower score_thr in model.test_cfg.",
            len(self.imgs), self.place,
        )  # fmt: skip
        found = COCO()
        found.dataset = dict(self.dataset, annotations=[])
        found.createIndex()
        return found


def _some(names: Sequence[str], limit: int = 8) -> str:
    return ", ".join(map(str, names[:limit])) + (", ..." if len(names) > limit else "")


def _is_box(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(isinstance(number, (int, float)) and math.isfinite(number) for number in value)
    )


CocoDataset.COCOAPI = CheckedCOCO  # the place that mmdet has for other readers
coco_metric.COCO = CheckedCOCO  # where it has none


@DATASETS.register_module()
class CheckedVOCDataset(XMLDataset):
    """Images with boxes as VOC's XML, ``JPEGImages/NAME.*`` and ``Annotations/NAME.xml``, the names in a list.

    mmdet's own leaves out objects of other classes without a word, and takes every image for a ``.jpg``.

    Args:
        ignored: names of objects that shall count for nothing.
        metainfo: ``dict(classes=(...))``; the other arguments are those of mmdet's XMLDataset.

    Raises:
        HypvisionError: an annotation that is missing or damaged, an object of another class, a box that is none.
    """

    def __init__(self, *args: Any, ignored: Sequence[str] = (), **kwargs: Any):
        self.ignored = tuple(ignored)
        super().__init__(*args, **kwargs)

    def parse_data_info(self, img_info: dict[str, Any]) -> dict[str, Any]:
        """What stands in one file: ``img_path``, ``height``, ``width``, ``instances``."""
        path, classes = img_info["xml_path"], self.metainfo["classes"]
        try:
            root = ElementTree.parse(path).getroot()
        except FileNotFoundError as error:
            raise HypvisionError(
                f"The annotation '{path}' does not exist, but '{self.ann_file}' has the name '{img_info['img_id']}'. "
                "Put it there, or take the name out of the list."
            ) from error
        except ElementTree.ParseError as error:
            raise HypvisionError(f"The annotation '{path}' is damaged: it is not valid XML ({error}).") from error
        for item in root.findall("object"):
            name = item.findtext("name")
            if name not in classes and name not in self.ignored:
                raise HypvisionError(
                    f"The annotation '{path}' has an object '{name}', which is no class of the data set."
                    f"{did_you_mean(str(name), classes)} Classes: {_some(classes)}. Name your classes, in any order, "
                    "as metainfo=dict(classes=(...)) of the data set in the config, or what shall not count as "
                    "ignored=(...)."
                )
            sides = [item.findtext(f"bndbox/{side}", "") for side in ("xmin", "ymin", "xmax", "ymax")]
            if not _is_box([_number(side) for side in sides]):
                raise HypvisionError(
                    f"The annotation '{path}' has an object '{name}' with the box {sides}. Expected: xmin, ymin, xmax "
                    "and ymax in <bndbox>, four finite numbers."
                )
        image = Path(self.sub_data_root, img_info["file_name"])
        if not image.is_file():  # mmdet's guess ends in .jpg
            beside = [file for file in sorted(image.parent.glob(f"{image.stem}.*")) if file.suffix.lower() in SUFFIXES]
            if beside:
                img_info = dict(img_info, file_name=str(Path(self.img_subdir, beside[0].name)))
        return super().parse_data_info(img_info)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


@DATASETS.register_module()
class ShapesCocoDataset(CocoDataset):
    """The procedural scenes of :mod:`hypvision.data.shapes` as ``hypvision data make --layout coco`` writes them.

    Args:
        level: the level of the hierarchy that they were exported at: ``"kind"`` or ``"shape"``.
    """

    def __init__(self, *args, level: str = "shape", **kwargs):
        classes = TAXONOMY.classes[level]
        colours = [tuple(colour) for colour in palette(1 + len(classes))[1:]]
        super().__init__(*args, metainfo=dict(classes=classes, palette=colours), **kwargs)

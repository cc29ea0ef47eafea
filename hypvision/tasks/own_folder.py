"""The recipe for a folder of photos: ``hypvision train FOLDER``."""

from __future__ import annotations

from pathlib import Path

import torch
from mmengine.config import Config

from hypvision.data.folders import class_names
from hypvision.data.image_folder import ImageFolderDataset
from hypvision.data.usage import Usage
from hypvision.engine.config import load_config
from hypvision.io.errors import HypvisionError
from hypvision.io.shipped import config_folder, find_config
from hypvision.tasks.probe import every_fifth


def config_of(source: str | Path | Config) -> str | Path | Config:
    """The recipe for a folder; anything else, and a name of a shipped config, as it is."""
    if (
        isinstance(source, Config)
        or not Path(source).expanduser().is_dir()
        or find_config(source) is not None
    ):
        return source
    return folder_config(Path(source).expanduser())


def folder_config(folder: Path) -> Config:
    """The config ``_base_/own_photos.py`` for a folder of class folders.

    Args:
        folder: ``{train,val}/CLASS/*``, or ``CLASS/*``, where every fifth image of a class is for
            validation.

    Raises:
        HypvisionError: there are not two classes, or an image of none to validate with.
    """
    config = load_config(config_folder() / "_base_" / "own_photos.py")
    config.work_dir = str(Path("work_dirs", folder.resolve().name))
    train = folder / "train"
    val = folder / "val"
    parts = ("train", "val", "test")
    datasets = [config.dataset(part) for part in parts]
    places = (train, val, val)
    indices: tuple[list[int] | None, ...] = (None, None, None)
    if not (train.is_dir() and val.is_dir()):
        images = ImageFolderDataset(str(folder), dict(datasets[1].transform))
        apart = every_fifth(torch.from_numpy(images.labels))
        held_out = apart.nonzero().flatten().tolist()
        if not held_out:
            raise HypvisionError(
                f"No class in '{folder}' has two images, one to learn from and one to validate "
                "with."
            )
        places = (folder, folder, folder)
        indices = ((~apart).nonzero().flatten().tolist(), held_out, held_out)
    for dataset, place, kept in zip(datasets, places, indices):
        dataset.root = str(place)
        dataset.indices = kept
    classes = class_names(places[0], Usage(places[0]))
    if len(classes) < 2:
        raise HypvisionError(
            f"The folder '{folder}' has {len(classes)} class folders. Expected: a folder for each "
            f"class with its images, such as '{folder}/cat/1.jpg' and '{folder}/dog/1.jpg', or "
            f"these below '{folder}/train' and '{folder}/val'."
        )
    config.model.backbone.num_classes = len(classes)
    return config

"""Models of configs, as ``hypvision summary`` measures them; see
:mod:`hypvision.inference.summary`."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

import torch
from mmengine.config import Config

from hypvision.data.preprocessing import preprocessing_of
from hypvision.engine.config import Run, load_config
from hypvision.engine.predicting import untrained_model
from hypvision.inference.summary import Subject
from hypvision.io import StrPath, ensure
from hypvision.io.plugins import PLUGINS
from hypvision.zoo.export_clip import ImageTower

from .publishing import input_size

_STAND_INS = tuple(f"class {number}" for number in range(1, 21))


def subject_of_config(config: StrPath | Config, size: int | None = None) -> Subject:
    """Return the model of a config (also a path or the name of a shipped one) with random weights,
    and an input image of the size of its test data, or with side ``size``."""
    loaded = load_config(config)
    kind = loaded.kind
    ensure(
        kind not in ("LanguageModel", "RadialTuning"),
        f"The config '{config}' describes a {kind}, which learns from texts, but a summary is "
        "for models of images. For the text tower of a CLIP run "
        "hypvision summary --clip NAME --part text.",
    )
    model: Any = untrained_model(loaded, whole=True).eval()
    clip = getattr(getattr(model, "host", model), "clip", None)
    about = ""
    shape = _shape_seen(loaded, clip, size)
    if kind == "CLIPContrast":  # measure only the image tower, which does the work for an image
        return Subject(ImageTower(clip).eval(), torch.randn(1, *shape), about="its image tower")
    if clip is not None and not getattr(model, "test_classes", ()):
        model.train_classes = model.test_classes = _STAND_INS
        model.set_classes(_STAND_INS)
        about = f"with {len(_STAND_INS)} classes in place of the data's"
    if loaded.scope in ("mmseg", "mmdet"):
        subject: Subject = resolve_name(PLUGINS["subject of segmentation"])(model, shape)
    else:
        pixels = torch.randn(1, *shape) if clip is None else torch.randint(0, 256, (1, *shape))
        subject = Subject(model, pixels)
    return subject._replace(about=about)


def _shape_seen(config: Run, clip: Any, size: int | None) -> tuple[int, ...]:
    """Return channels, height and width of the images; a detector's are larger than its CLIP's."""
    if clip is None or config.scope == "mmdet":
        return input_size(config, size)
    return (3, size, size) if size else (3, *preprocessing_of(clip).size)

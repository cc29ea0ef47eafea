"""Any image, any class names, with a trained open-vocabulary detector or panoptic model.

>>> model = load_openvocab("configs/hyperclip/hyperclip-det-vitb16_8xb8-3e_coco48-17.py", "weights.pth")
>>> found = look(model, "street.jpg", ["car", "scooter", "zebra"])
>>> found.pred_instances.bboxes, found.pred_instances.scores, found.pred_instances.labels
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmdet.structures import DetDataSample
from PIL import Image

from hypvision.checkpoints.match import load_trained
from hypvision.checkpoints.read import read
from hypvision.engine.checks import readable_errors
from hypvision.engine.config import load_config
from hypvision.engine.extensions import import_extensions
from hypvision.errors import HypvisionError
from hypvision.images import open_image
from hypvision.openmmlab.open_vocabulary.vocabulary import Vocabulary


def load_openvocab(config: str | Path | Any, weights: str | Path, device: str | torch.device = "cpu") -> Vocabulary:
    """A model of ``configs/hyperclip`` with the weights of its training, in evaluation mode.

    Args:
        config: the config that it was trained with: a path, or a config.
        weights: checkpoint of that training.
        device: where to put it.

    Raises:
        HypvisionError: a file is missing or does not fit, or the config is of another kind of model.
    """
    from mmengine.registry import DefaultScope

    config = load_config(config)
    import_extensions(config)
    config.model.clip.load_weights = False  # the checkpoint contains CLIP's weights
    if config.model.get("backbone"):
        config.model.backbone.init_cfg = None
    with DefaultScope.overwrite_default_scope(config.get("default_scope", "mmdet")), readable_errors():
        from mmdet.registry import MODELS

        model = MODELS.build(config.model)
    if not isinstance(model, Vocabulary):
        raise HypvisionError(
            f"The config has a {type(model).__name__}, whose classes are fixed. Give one of HyperCLIP."
        )
    load_trained(model, read(weights), weights)
    return model.to(device).eval()


@torch.inference_mode()
def look(
    model: Vocabulary,
    image: str | Path | np.ndarray | Image.Image,
    classes: str | Path | Sequence[str] | None = None,
    things: Sequence[str] | None = None,
    size: int | None = 640,
) -> DetDataSample:
    """Find things in an image.

    Args:
        model: of :func:`load_openvocab`.
        image: path, RGB array uint8 (H, W, 3), or PIL image.
        classes: what to look for; anything that :func:`hypvision.clip.classes.load_classes` takes. None: as before.
        things: for panoptic models: classes of which every object is a segment of its own; None: all.
        size: the longer side that the image is resized to; None: as it is.

    Returns:
        A sample with ``pred_instances`` (``bboxes`` in pixels of the image, ``scores``, ``labels`` into the list,
        maybe ``masks``), or ``pred_panoptic_seg.sem_seg`` (1, H, W): label + 1000 * number of the object.

    Raises:
        HypvisionError: the image cannot be read, or the list of classes is wrong.
    """
    if classes is not None:
        model.set_test_classes(classes, things)
    opened = open_image(image)
    width, height = opened.size
    scale = 1.0 if size is None else size / max(width, height)
    new = (max(1, round(width * scale)), max(1, round(height * scale)))
    if new != opened.size:
        opened = opened.resize(new, Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(opened)[..., ::-1].copy()).permute(2, 0, 1)
    meta = dict(
        img_id=0, ori_shape=(height, width), img_shape=(new[1], new[0]), scale_factor=(new[0] / width, new[1] / height)
    )
    return model.test_step(dict(inputs=[pixels], data_samples=[DetDataSample(metainfo=meta)]))[0]

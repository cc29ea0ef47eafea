"""The functions of mmseg.apis and mmdet.apis that make a model of a config and predict an image."""

import numpy as np
import pytest
from helpers.cases import each

pytest.importorskip("mmdet")
pytest.importorskip("mmseg")
pytest.importorskip("open_clip")

import hypvision.openmmlab  # noqa: F401, I001 - mmcv's operations, before mmdet asks for them
import mmdet.apis
import mmseg.apis
from mmengine.config import Config

from hypvision.engine.config import load_config
from hypvision.io.errors import HypvisionError

RANDOM_CLIP = {"model.clip.pretrained": None}
SMALL_CLIP = {**RANDOM_CLIP, "model.clip.name": "ViT-S-32-alt"}
SEGMENTERS = [
    ("hyperclip/camvid_hyperclip_600i", RANDOM_CLIP),
    ("hyperbolic-segmentation/hyperbolic-fpn-2d_600i_camvid", {}),
]
MORE_SEGMENTERS = [
    ("hcformer/semantic-fpn_hcformer-nano_600i_camvid", {}),
    ("himapper/upernet_himapper-deit-tiny_8xb2-80k_ade20k-512x512", {}),
    ("hyperclip/hyperclip-vitb16_test-voc20", SMALL_CLIP),
]
DETECTORS = [("hyperclip/emoji_hyperclip-det_600i", RANDOM_CLIP)]
MORE_DETECTORS = [
    ("baselines/faster-rcnn_tf-efficientnet-lite0_2e_emoji", {}),
    ("hcformer/mask-rcnn_hcformer-nano_8xb2-1x_coco", {}),
    ("himapper/mask-rcnn_himapper-aux-resnet50_8xb2-1x_coco", {}),
    ("hyperclip/hyperclip-panoptic-vitb16_test-ade150", RANDOM_CLIP),
]


def image():
    return np.random.default_rng(0).integers(0, 255, (64, 48, 3), dtype=np.uint8)


def check_segmenter(name, changes):
    model = mmseg.apis.init_model(load_config(name), None, device="cpu", cfg_options=changes)
    if "hyperclip" in name:
        with pytest.raises(HypvisionError, match="set_test_classes"):
            mmseg.apis.inference_model(model, image())
        model.set_test_classes(["car", "tree", "sky"])
    found = mmseg.apis.inference_model(model, image())
    assert found.pred_sem_seg.data.shape == (1, 64, 48)


def check_detector(name, changes):
    model = mmdet.apis.init_detector(load_config(name), None, device="cpu", cfg_options=changes)
    if "hyperclip" in name:
        model.set_test_classes(["car", "tree", "sky"])
    found = mmdet.apis.inference_detector(model, image())
    assert "pred_panoptic_seg" in found or "pred_instances" in found


@each("name, changes", SEGMENTERS)
def test_segmenters_of_mmseg_s_api(name, changes):
    check_segmenter(name, changes)


@pytest.mark.slow
@each("name, changes", MORE_SEGMENTERS)
def test_more_segmenters_of_mmseg_s_api(name, changes):
    check_segmenter(name, changes)


@each("name, changes", DETECTORS)
def test_detectors_of_mmdet_s_api(name, changes):
    check_detector(name, changes)


@pytest.mark.slow
@each("name, changes", MORE_DETECTORS)
def test_more_detectors_of_mmdet_s_api(name, changes):
    check_detector(name, changes)


@each("option, value", [("pretrained", "weights.pth"), ("train_cfg", dict(max_iters=1))])
def test_options_of_mmseg_s_models_that_have_no_effect_here(option, value):
    config = load_config("hyperclip/camvid_hyperclip_600i")
    model = Config(dict(config.model, clip=dict(name="emoji-t8"), **{option: value}))
    with pytest.raises(HypvisionError, match=option):
        mmseg.registry.MODELS.build(model)

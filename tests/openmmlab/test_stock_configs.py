"""mmdet's and mmseg's own configs, as they come in their wheels, with our backbone in the place of
theirs."""

import warnings
from pathlib import Path

import pytest
import torch
from helpers.cases import each

pytest.importorskip("mmdet")
pytest.importorskip("mmseg")
import mmdet
import mmseg
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

import hypvision.openmmlab  # noqa: F401 - mmcv's operations, before the heads ask for them
from hypvision.engine.config import import_extensions, load_config, prepare
from hypvision.engine.predicting import untrained_model
from hypvision.io.errors import HypvisionError

BACKBONE = dict(
    _delete_=True, type="TimmBackbone", model_name="hcformer_nano", dims=(16, 16, 16, 16),
    heads=(2, 2, 2, 2), head_dim=8, layers=(1, 1, 1, 1), mlp_ratios=(2, 2, 2, 2), img_size=64,
)  # fmt: skip
DETECTION = (
    "atss/atss_r50_fpn_1x_coco.py", "cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py",
    "conditional_detr/conditional-detr_r50_8xb2-50e_coco.py",
    "deformable_detr/deformable-detr_r50_16xb2-50e_coco.py", "detr/detr_r50_8xb2-150e_coco.py",
    "dino/dino-4scale_r50_8xb2-12e_coco.py", "faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py",
    "fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py", "foveabox/fovea_r50_fpn_4xb4-1x_coco.py",
    "gfl/gfl_r50_fpn_1x_coco.py", "mask2former/mask2former_r50_8xb2-lsj-50e_coco.py",
    "mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py", "point_rend/point-rend_r50-caffe_fpn_ms-1x_coco.py",
    "reppoints/reppoints-moment_r50_fpn_1x_coco.py", "retinanet/retinanet_r50_fpn_1x_coco.py",
    "solo/solo_r50_fpn_1x_coco.py", "sparse_rcnn/sparse-rcnn_r50_fpn_1x_coco.py",
    "tood/tood_r50_fpn_1x_coco.py", "vfnet/vfnet_r50_fpn_1x_coco.py",
)  # fmt: skip
SEGMENTATION = (
    "ann/ann_r50-d8_4xb4-80k_ade20k-512x512.py", "ccnet/ccnet_r50-d8_4xb4-80k_ade20k-512x512.py",
    "danet/danet_r50-d8_4xb4-80k_ade20k-512x512.py",
    "deeplabv3plus/deeplabv3plus_r50-d8_4xb4-80k_ade20k-512x512.py",
    "fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512.py", "gcnet/gcnet_r50-d8_4xb4-80k_ade20k-512x512.py",
    "mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py",
    "pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py",
    "segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py",
    "sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py", "upernet/upernet_r50_4xb4-80k_ade20k-512x512.py",
)  # fmt: skip
REFUSED = {
    "carafe/faster-rcnn_r50_fpn-carafe_1x_coco.py": "carafe",
    "carafe/mask-rcnn_r50_fpn-carafe_1x_coco.py": "carafe",
    "dcn/faster-rcnn_r50_fpn_dpool_1x_coco.py": "deform_roi_pool",
    "dcnv2/faster-rcnn_r50_fpn_mdpool_1x_coco.py": "deform_roi_pool",
    "dyhead/atss_r50_fpn_dyhead_1x_coco.py": "modulated_deform_conv_forward",
    "guided_anchoring/ga-retinanet_r50-caffe_fpn_1x_coco.py": "masked_im2col",
    "guided_anchoring/ga-faster-rcnn_r50-caffe_fpn_1x_coco.py": "masked_im2col",
    "pisa/faster-rcnn_r50_fpn_pisa_1x_coco.py": "nms_match",
    "psanet/psanet_r50-d8_4xb4-80k_ade20k-512x512.py": "psamask",
}


def stock(name):
    """The config, at home in either library."""
    for library in (mmdet, mmseg):
        path = Path(library.__file__).parent / ".mim/configs" / name
        if path.is_file():
            return load_config(path)
    raise FileNotFoundError(name)


def narrow(part):
    """Every part that looks at the backbone's maps is told how many channels ours have."""
    if isinstance(part, (list, tuple)):
        for item in part:
            narrow(item)
    if not isinstance(part, dict):
        return
    if "in_index" in part and "in_channels" in part:
        part["in_channels"] = (
            [16] * len(part["in_index"]) if isinstance(part["in_index"], (list, tuple)) else 16
        )
    if part.get("in_channels") == [256, 512, 1024, 2048]:
        part["in_channels"] = [16] * 4
    if "c1_in_channels" in part:
        part["c1_in_channels"] = 16
    for value in part.values():
        narrow(value)


def with_our_backbone(name):
    config = stock(name)
    levels = config.model.backbone.get("out_indices", (0, 1, 2, 3))
    config.merge_from_dict(dict(model=dict(backbone=dict(BACKBONE, out_indices=tuple(levels)))))
    neck = config.model.get("neck")
    for first in neck[:1] if isinstance(neck, list) else [neck] if neck else []:
        first["in_channels"] = [16] * len(levels)
    for key in ("decode_head", "auxiliary_head", "panoptic_head") if not neck else ():
        narrow(config.model.get(key))
    if "num_queries" in config.model:
        config.model.num_queries = config.model.test_cfg.max_per_img = 50  # of a small image
    config.model.data_preprocessor.pop("size", None)
    if config.model.data_preprocessor.get("batch_augments"):
        config.model.data_preprocessor.pop("batch_augments")
    import_extensions(config)
    prepare(config)
    with DefaultScope.overwrite_default_scope(config.default_scope):
        return MODELS.build(config.model).eval()


@pytest.mark.slow
@pytest.mark.parametrize("name", DETECTION)
def test_detectors_find_boxes(name):
    from mmdet.structures import DetDataSample

    model, size = with_our_backbone(name), (64, 96)
    shape = dict(
        img_shape=size,
        ori_shape=size,
        pad_shape=size,
        batch_input_shape=size,
        scale_factor=(1.0, 1.0),
    )
    with torch.no_grad():
        [sample] = model.predict(torch.randn(1, 3, *size), [DetDataSample(metainfo=shape)])
    found = sample.pred_instances if "pred_instances" in sample else sample.pred_panoptic_seg
    assert all(value.isfinite().all() for value in found.values() if torch.is_tensor(value))


@pytest.mark.slow
@pytest.mark.parametrize("name", SEGMENTATION)
def test_segmenters_label_pixels(name):
    model = with_our_backbone(name)
    with torch.no_grad():
        [sample] = model.predict(torch.randn(1, 3, 64, 96))
    assert sample.seg_logits.data.shape[1:] == (64, 96) and sample.seg_logits.data.isfinite().all()


@pytest.mark.parametrize("ours", [True, False])
def test_weights_of_the_backbone_before_are_left_out(ours, caplog):
    config = stock("pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py")
    if ours:
        config.merge_from_dict(dict(model=dict(backbone=BACKBONE)))
    import_extensions(config)
    prepare(config)
    assert (config.model.pretrained is None) == ours
    told = "resnet50_v1c'" in caplog.text and "TimmBackbone 'hcformer_nano'" in caplog.text
    assert told == ours


@each("name", REFUSED)
def test_a_missing_operator_is_reported_when_the_config_is_read(name):
    config = stock(name)
    with pytest.raises(HypvisionError, match=rf"{REFUSED[name]}.*mim install"):
        prepare(config)


def test_every_type_that_needs_a_missing_operator_is_known():
    """Types of the libraries' configs beside the list in the documentation."""
    from hypvision.openmmlab.ops import MISSING

    page = (Path(__file__).parents[2] / "docs/everywhere.md").read_text()
    assert all(
        f"`{operator}`" in page and f"`{types[0]}`" in page for operator, types in MISSING.items()
    )
    assert isinstance(stock("fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512.py"), Config)


def test_the_snippet_of_the_page_fits_and_other_channels_are_named(tmp_path):
    """In every command, not in a training alone."""
    page = (Path(__file__).parents[2] / "docs/everywhere.md").read_text()
    snippet = page.partition("## Stock configs")[2].partition("```python\n")[2].partition("```")[0]
    base = '_base_ = ["mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py"]\n'
    (tmp_path / "mine.py").write_text(base + snippet)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # mmengine's look for mmdet warns of pkg_resources
        config = load_config(tmp_path / "mine.py")
    model = untrained_model(config)
    assert list(model.neck.in_channels) == model.backbone.out_channels
    config = load_config(tmp_path / "mine.py", {"model.neck.in_channels": [8, 8, 8, 8]})
    with pytest.raises(HypvisionError, match=r"Set model.neck.in_channels=\[64, 128, 320, 512\]"):
        untrained_model(config)

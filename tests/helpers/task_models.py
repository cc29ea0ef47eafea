"""One small model of every kind that is more than a timm model, for tests that all of them must
pass.

What a model computes from a batch, without the lists that heads make of it, is ``run``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

SIZE = (64, 96)
BACKBONE = dict(
    dims=(16, 16, 16, 16),
    heads=(2, 2, 2, 2),
    head_dim=8,
    layers=(1, 1, 1, 1),
    mlp_ratios=(2, 2, 2, 2),
    img_size=64,
)
CLASSES = 3
DENSE = dict(num_classes=CLASSES, in_channels=16, feat_channels=64, stacked_convs=1)
HEADS: dict[str, dict[str, Any]] = dict(
    retinanet=dict(bbox_head=DENSE, test_cfg=dict(score_thr=0.3)),
    fcos=dict(bbox_head=DENSE, test_cfg=dict(score_thr=0.3)),
    faster_rcnn=dict(
        rpn_head=dict(in_channels=16, feat_channels=16),
        roi_head=dict(
            bbox_roi_extractor=dict(out_channels=16),
            bbox_head=dict(in_channels=16, fc_out_channels=32, num_classes=CLASSES),
        ),
        test_cfg=dict(
            rpn=dict(nms_pre=60, max_per_img=40), rcnn=dict(score_thr=0.3, max_per_img=12)
        ),
    ),
)
HEADS["mask_rcnn"] = {**HEADS["faster_rcnn"], "roi_head": {**HEADS["faster_rcnn"]["roi_head"]}}
HEADS["mask_rcnn"]["roi_head"].update(
    mask_roi_extractor=dict(out_channels=16),
    mask_head=dict(in_channels=16, conv_out_channels=8, num_convs=1, num_classes=CLASSES),
)


class Task(NamedTuple):
    """A kind of model: how it is built, what it computes, from what."""

    create: Callable[[], nn.Module]
    run: Callable[[nn.Module, Tensor], Tensor | tuple[Tensor, ...]]
    inputs: Callable[[], Tensor]


def config_of(name: str, *changes: dict[str, Any]) -> Any:
    """The config of a small ``segmenter`` or detector, of its model alone."""
    from mmengine.config import Config

    from hypvision.io.shipped import config_folder

    if name == "segmenter":
        name = "semantic_fpn"
        head = dict(in_channels=[16] * 4, channels=16, num_classes=CLASSES)
        changes = (dict(model=dict(decode_head=head, data_preprocessor=dict(size=SIZE))), *changes)
    else:
        changes = (dict(model=HEADS[name]), *changes)
    config = Config.fromfile(config_folder() / f"_base_/models/{name}_hcformer.py")
    small = dict(backbone=BACKBONE, neck=dict(in_channels=[16] * 4, out_channels=16))
    for change in (dict(model=small), *changes):
        config.merge_from_dict(change)
    return config


def _built(config: Any, scope: str) -> nn.Module:
    from mmengine.registry import MODELS, DefaultScope

    import hypvision.openmmlab

    if scope == "mmdet":
        import hypvision.openmmlab.mask_head  # noqa: F401 - registers it, as det_runtime.py does

    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope(scope):
        return MODELS.build(config.model).eval()


def detector(name: str, **changes: Any) -> nn.Module:
    """A small detector whose scores are all over the place."""
    model = _built(config_of(name, changes), "mmdet")
    heads = [model.rpn_head, model.roi_head] if hasattr(model, "roi_head") else [model.bbox_head]
    with torch.no_grad():
        for head in heads:
            for parameter in head.parameters():
                if parameter.dim():
                    parameter.copy_(torch.randn(parameter.shape) / parameter[0].numel() ** 0.5)
    return model


def segmenter() -> nn.Module:
    """A small Semantic FPN."""
    model = _built(config_of("segmenter"), "mmseg")
    nn.init.normal_(model.decode_head.conv_seg.weight)
    return model


def learner(geometry: str) -> nn.Module:
    """A metric learner with the losses of HIER or LHIER."""
    from helpers.metric_learning import HIER, VIT

    from hypvision.tasks.metric_learning import MetricLearner

    torch.manual_seed(0)
    hier = None if geometry == "euclidean" else HIER
    return MetricLearner(VIT, dict(dim=8, geometry=geometry), num_classes=4, hier_loss=hier).eval()


def clip(options: dict[str, Any]) -> nn.Module:
    """A CLIP with an adapter that has learned something."""
    from helpers import clip_models

    from hypvision.clip import adapters

    model = adapters.inject(clip_models.openai_clip(), options)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.02 * torch.randn_like(parameter)
    return model.eval()


def language(name: str) -> nn.Module:
    """A small HELM."""
    from hypvision.helm import Helm, preset

    torch.manual_seed(0)
    return Helm(preset(name)).eval()


def _maps(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """All maps of a detector's dense head."""
    head = model.rpn_head if hasattr(model, "rpn_head") else model.bbox_head
    return tuple(level for kind in head(model.extract_feat(x)) for level in kind)


def _labels(model: nn.Module, x: Tensor) -> Tensor:
    return model.decode_head(model.extract_feat(x))


def _text(model: nn.Module, x: Tensor) -> Tensor:
    from hypvision.clip.towers import encode_text

    return encode_text(model, x, cut=False)


def _compared(model: nn.Module, x: Tensor) -> Tensor:
    """Logits of a LatHAdapter for classes that are given as embeddings."""
    from hypvision.clip import adapters

    features = model.encode_image(x)
    text = torch.eye(3, features.shape[1], device=x.device)
    return adapters.adapter_of(model, "lathadapter").module(features, text, 10.0).logits


def _images(height: int, width: int) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(3))


def _prompts() -> Tensor:
    from helpers import clip_models

    return clip_models.prompts()


def _tokens() -> Tensor:
    return torch.randint(0, 259, (2, 24), generator=torch.Generator().manual_seed(3))


_HYPERCLIP, _LATH = dict(type="hyperclip", block=16), dict(type="lathadapter", attributes=3)
TASKS = {
    "segmenter": Task(segmenter, _labels, partial(_images, *SIZE)),
    **{name: Task(partial(detector, name), _maps, partial(_images, *SIZE)) for name in HEADS},
    "hyperclip-image": Task(
        partial(clip, _HYPERCLIP), lambda model, x: model.encode_image(x), partial(_images, 64, 64)
    ),
    "hyperclip-text": Task(partial(clip, _HYPERCLIP), _text, _prompts),
    "lathadapter": Task(partial(clip, _LATH), _compared, partial(_images, 64, 64)),
    **{
        f"learner-{geometry}": Task(
            partial(learner, geometry), lambda model, x: model(x), partial(_images, 32, 32)
        )
        for geometry in ("poincare", "lorentz", "euclidean")
    },
    **{
        name: Task(partial(language, f"{name}_tiny"), lambda model, x: model(x).logits, _tokens)
        for name in ("helm_d", "helm_mice")
    },
}

"""Goldens of CLIP: the adapter, the towers, CAT-Seg's head, the segmenter; and of the models of
mmseg and mmdet."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import internals
import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from summaries import fill, gradients, images, numbers
from torch import nn

TEXT = dict(context_length=20, vocab_size=100, width=32, heads=2, layers=3)
VISION = dict(image_size=64, layers=4, width=64, patch_size=16, head_width=16)


def clip(kind: str) -> nn.Module:
    """A tiny open_clip model: OpenAI's architecture, SigLIP's, or one with open_clip's own
    attention module."""
    from open_clip.model import CLIP, CustomTextCLIP

    if kind == "openai":
        model = CLIP(64, VISION, TEXT, quick_gelu=True)
    elif kind == "siglip":
        vision = dict(
            image_size=160, timm_model_name="test_vit3", timm_pool="map", timm_proj="none"
        )
        text = dict(TEXT, no_causal_mask=True, proj_bias=True, pool_type="last", width=96, heads=2)
        model = CustomTextCLIP(96, vision, text)
    else:
        model = CLIP(64, VISION, dict(TEXT, qk_norm=True))
    return fill(model).eval()


def random_images(model: nn.Module) -> torch.Tensor:
    size = model.visual.image_size
    return images(2, size if isinstance(size, int) else size[0])


def tokens() -> torch.Tensor:
    """Three texts of different lengths; the largest number ends each."""
    rows = torch.zeros(3, 20, dtype=torch.long)
    for i, row in enumerate(rows):
        end = 4 + 3 * i
        row[:end], row[end] = (torch.arange(end) * 7 + 11 * i) % 97 + 1, 99
    return rows


def adapted(kind: str, **options: Any) -> nn.Module:
    """With an adapter that is not the identity."""
    model = internals.inject_adapter(clip(kind), **{"block": 16, **options})
    with torch.no_grad():
        for number, weight in enumerate(internals.adapter_weights(model)):
            weight.add_(0.1 * numbers(f"adapter {number}", *weight.shape))
    return model


@torch.no_grad()
def features(model: nn.Module) -> dict[str, Any]:
    image, text = model(random_images(model), tokens())[:2]
    dense, maps, class_token = internals.encode_dense(model, random_images(model), hooks=(1, 2))
    return dict(
        image=image, text=text, short_text=internals.encode_text(model, tokens()), dense=dense,
        maps=maps, class_token=class_token,
    )  # fmt: skip


def adapter(kind: str, merges: bool = True, **options: Any) -> dict[str, Any]:
    model = adapted(kind, **options)
    weights = internals.adapter_weights(model)
    out = dict(
        adapted=features(model), shapes=" ".join("x".join(map(str, w.shape)) for w in weights)
    )
    model.train()
    image, text, scale = model(random_images(model), tokens())[:3]
    loss = F.cross_entropy(image @ text.T * 5 + 0 * scale, torch.tensor([0, 2]))
    loss.backward()
    out["train"] = dict(loss=loss, **gradients(weights, 8))
    if merges:
        out["merged"] = features(internals.merge_adapter(model).eval())
    return out


def adapter_file(**options: Any) -> dict[str, Any]:
    """Names and shapes in the file; what a fresh model does with it."""
    with tempfile.TemporaryDirectory() as folder:
        path = internals.save_adapter(
            adapted("openai", **options), Path(folder) / "adapter.safetensors"
        )
        with safe_open(path, framework="pt") as file:
            names = sorted(file.keys())
            entries = " ".join(
                f"{name}:{'x'.join(map(str, file.get_slice(name).get_shape()))}" for name in names
            )
            entries = internals.former_names(entries)
            metadata = internals.former_names(" ".join(sorted(file.metadata())))
            values = [file.get_tensor(name) for name in (names[0], names[-1])]
        return dict(
            entries=entries, metadata=metadata, values=values,
            loaded=features(internals.load_adapter(clip("openai"), path)),
        )  # fmt: skip


def plain(kind: str) -> dict[str, Any]:
    return features(clip(kind))


def maps_of_rows() -> dict[str, Any]:
    """The map of rows of weights, in the range of the clip and beyond."""
    out = {}
    for c, mobius in ((0.01, True), (30.0, True), (1.0, False)):
        x, blocks = (
            numbers("rows", 6, 32).requires_grad_(),
            numbers("blocks", 4, 8, 8).requires_grad_(),
        )
        y = internals.map_rows(x, blocks, c, mobius)
        (y * numbers("weights", 6, 32)).sum().backward()
        out[f"c {c}"] = dict(y=y, **gradients([x, blocks]))
    return out


# Segmentation

SMALL = dict(embed_dim=24, hidden=32, heads=4, window=4, guidance=16, text_guidance=8, decoder=(32,
16),
             decoder_in=(12, 6), decoder_guidance=(8, 4), pad_len=16)  # fmt: skip


def head(grid: tuple[int, int] = (8, 8), classes: int = 5, **options: Any) -> dict[str, Any]:
    model = fill(internals.aggregation_head(**{**SMALL, **options})).eval()
    prompts = options.get("prompts", 1)
    text = F.normalize(numbers("text", classes, prompts, 24), dim=-1)
    maps = (
        numbers("map 1", 2, 12, 2 * grid[0], 2 * grid[1]),
        numbers("map 2", 2, 6, 4 * grid[0], 4 * grid[1]),
    )
    inputs = (numbers("features", 2, 24, *grid), text, () if options.get("guidance") == 0 else maps)
    with torch.no_grad():
        out = dict(logits=model(*inputs))
    model.train()
    trained = model(*inputs)
    (trained * numbers("weights", *trained.shape)).mean().backward()
    return dict(out, train=trained, **gradients(list(model.parameters()), 8))


HEAD = dict(
    hidden=16,
    heads=2,
    window=4,
    guidance=8,
    text_guidance=8,
    decoder=(16, 8),
    decoder_guidance=(4, 4),
    pad_len=8,
)


def tokenizer(texts: list[str]) -> torch.Tensor:
    """Letter by letter, cut to 20 tokens; the largest number ends a text."""
    rows = torch.zeros(len(texts), 20, dtype=torch.long)
    for row, text in zip(rows, texts):
        codes = [1 + ord(letter) % 90 for letter in text][-18:]
        row[: len(codes) + 1] = torch.tensor([*codes, 99])
    return rows


def segmenter(kind: str = "openai", **options: Any) -> nn.Module:
    settings = dict(adapter=dict(block=16), head=HEAD, upsample=(8, 8), resolution=64, crop=64,
    slide=96,
                    tokenizer=tokenizer, mean=(120.0,) * 3, std=(60.0,) * 3)  # fmt: skip
    return internals.segmenter(
        clip(kind), classes=("cat", "dog", "grass"), **{**settings, **options}
    )


def random_image(height: int, width: int) -> torch.Tensor:
    return (128 + 60 * images(1, max(height, width))[0, :, :height, :width]).clamp(0, 255)


def segmentation(kind: str = "openai", **options: Any) -> dict[str, Any]:
    model = segmenter(kind, **options).eval()
    fill_all_but_clip(model)
    with torch.no_grad():
        logits = model.logits(random_image(64, 64)[None])
        labels = model.predict([random_image(50, 70), random_image(33, 20)])
        scores = model.predict([random_image(50, 70)], scores=True)[0][1]
        text = model.encode_classes()
    model.train()
    loss = model(torch.stack([random_image(64, 64)]), torch.arange(64 * 64).view(1, 64, 64) % 3)
    loss.backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    return dict(
        logits=logits,
        labels=labels,
        scores=scores,
        text=text,
        train=dict(loss=loss, **gradients(trained)),
    )


@torch.no_grad()
def fill_all_but_clip(model: nn.Module) -> None:
    for name, part in model.named_children():
        if name != "clip":
            fill(part)
    weights = internals.adapter_weights(model.clip) if internals.is_adapted(model.clip) else []
    for number, weight in enumerate(weights):
        weight.add_(0.1 * numbers(f"adapter {number}", *weight.shape))


# Models of mmseg and mmdet on a CLIP of the offline configurations, filled


def fill_openvocab(model: nn.Module) -> nn.Module:
    """CLIP's own weights, which an adapter may wrap, by shape alone; the adapter near the identity;
    then the rest."""
    clip_model = model.clip
    adapter = internals.adapter_weights(clip_model) if internals.is_adapted(clip_model) else []
    identity = [weight.detach().clone() for weight in adapter]
    fill(model)
    with torch.no_grad():
        for number, (weight, start) in enumerate(zip(adapter, identity)):
            weight.copy_(start + 0.1 * numbers(f"adapter {number}", *weight.shape))
    return model


MM_HEAD = dict(
    hidden=8,
    heads=2,
    layers=1,
    guidance=8,
    text_guidance=8,
    decoder=(8, 8),
    decoder_guidance=(4, 4),
    pad_len=4,
)


def mmseg_segmentor() -> dict[str, Any]:
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    options = dict(clip=dict(name="emoji-t8"), adapter=dict(block=32), head=MM_HEAD, upsample=(8,
    8), resolution=64,
                   crop=64, slide=96)  # fmt: skip
    names = dict(train_classes=["cat", "dog"], test_classes=["a", "b", "c"])
    model = fill_openvocab(internals.mmseg_segmentor(**options, **names)).eval()
    inputs = [random_image(40, 60).to(torch.uint8), random_image(70, 30).to(torch.uint8)]
    with torch.no_grad():
        found = model.test_step(dict(inputs=inputs))
        out = dict(
            labels=[sample.pred_sem_seg.data for sample in found],
            features=model.extract_feat(random_image(64, 64)[None] / 255),
            logits=model(random_image(64, 64)[None], mode="tensor"),
        )
    model.train()
    torch.manual_seed(0)
    sample = SegDataSample(gt_sem_seg=PixelData(data=(torch.arange(64 * 64) % 2).view(1, 64, 64)))
    losses = model.loss(random_image(64, 64)[None], [sample])
    loss = sum(value for name, value in losses.items() if "loss" in name)
    loss.backward()
    return dict(out, losses=losses, **gradients([p for p in model.parameters() if p.requires_grad]))


def _detections(count: int, side: int, things: bool = True) -> list[Any]:
    """Samples with two boxes and masks each."""
    from mmdet.structures import DetDataSample
    from mmdet.structures.bbox import HorizontalBoxes
    from mmdet.structures.mask import BitmapMasks
    from mmengine.structures import InstanceData, PixelData

    boxes = np.array([[6, 8, 30, 34], [28, 20, 60, 56]])
    masks = np.zeros((2, side, side), dtype=np.uint8)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes):
        mask[y1:y2, x1:x2] = 1
    samples = []
    for i in range(count):
        meta = dict(img_shape=(side, side), ori_shape=(side, side), scale_factor=(1.0, 1.0),
        img_id=i,
                    batch_input_shape=(side, side), pad_shape=(side, side))  # fmt: skip
        instances = InstanceData(
            bboxes=HorizontalBoxes(torch.tensor(boxes, dtype=torch.float32)).tensor,
            labels=torch.tensor([i, 3]), masks=BitmapMasks(masks.copy(), side, side),
        )  # fmt: skip
        semantic = PixelData(sem_seg=torch.full((1, side, side), 255))
        samples.append(
            DetDataSample(metainfo=meta, gt_instances=instances, ignored_instances=InstanceData(
                bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long),
                masks=BitmapMasks(np.zeros((0, side, side), dtype=np.uint8), side, side)),
                gt_sem_seg=semantic)
        )  # fmt: skip
    return samples


def detector() -> dict[str, Any]:
    """What the network computes before boxes are suppressed, which is a matter of the last bit."""
    from mmengine.config import ConfigDict
    from mmengine.structures import InstanceData

    model = fill_openvocab(internals.model_of_config("hyperclip-det.py")).eval()
    model.set_test_classes(["disk", "red cow", "cross"])
    x, box_head = images(2, 64), model.roi_head
    boxes = torch.tensor([[0, 8.0, 8, 40, 40], [1, 20, 4, 60, 30]])
    with torch.no_grad():
        maps = model.extract_feat(x)
        config = ConfigDict(
            score_thr=-1.0, nms=dict(type="nms", iou_threshold=1.0), max_per_img=100
        )
        found = box_head.predict_bbox(
            maps, [dict(img_shape=(64, 64), scale_factor=(1.0, 1.0))] * 2,
            [InstanceData(bboxes=row[None, 1:]) for row in boxes], config,
        )  # fmt: skip
        order = [sample.labels.argsort() for sample in found]
        out = dict(
            maps=list(maps), proposals=model.rpn_head(maps),
            boxes=box_head._bbox_forward(maps, boxes),
            masks=box_head._mask_forward(maps, boxes)["mask_preds"],
            scores=[s.scores[k] for s, k in zip(found, order)],
            found=[s.bboxes[k] for s, k in zip(found, order)],
        )  # fmt: skip
    model.train()
    torch.manual_seed(0)  # anchors are sampled
    losses = model.loss(x, _detections(2, 64))
    out["losses"] = {name: value for name, value in losses.items() if "rpn" in name}
    return out


def panoptic() -> dict[str, Any]:
    model = fill_openvocab(internals.model_of_config("hyperclip-panoptic.py")).eval()
    model.set_test_classes(["disk", "red cow", "sky"], ["disk"])
    x = images(2, 64)
    with torch.no_grad():
        maps = model.extract_feat(x)
        scores, masks = model.panoptic_head(maps, _detections(2, 64))
    return dict(maps=list(maps), scores=scores, masks=masks)


@torch.no_grad()
def backbone(name: str, levels: tuple[int, ...], size: int = 67, **options: Any) -> dict[str, Any]:
    model = fill(internals.timm_backbone(name, levels, **options)).eval()
    x = images(1, size)
    return dict(maps=list(model(x)), strides=model.strides, channels=model.out_channels)


# What the engine trains


def engine(**config: Any) -> dict[str, Any]:
    model = internals.engine_model(**config)
    fill(model).train()
    losses = model(images(4, 32), torch.tensor([0, 0, 1, 1]), torch.arange(4), mode="loss")
    sum(value for name, value in losses.items() if "loss" in name).backward()
    out = dict(losses=losses, **gradients([p for p in model.parameters() if p.requires_grad]))
    with torch.no_grad():
        return dict(out, output=model.eval()(images(4, 32), mode="tensor"))


VIT = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=2)
HIERARCHY = dict(
    model_name="himapper",
    backbone="vit_tiny_patch16_224",
    num_classes=3,
    mapper_drop=0.0,
    tree="deterministic",
    **VIT,
)
METRIC = dict(
    type="MetricLearner",
    backbone=dict(model_name="test_vit", img_size=32),
    num_classes=2,
    metric_loss=dict(name="ProxyAnchorLoss"),
)
ENGINE = {
    "classifier": dict(
        type="ImageClassifier", label_smoothing=0.1, test_flip=True,
        backbone=dict(model_name="hcformer_nano", num_classes=3, img_size=32),
    ),
    "hierarchy": dict(type="HierarchyClassifier", backbone=HIERARCHY),
    **{
        f"metric {geometry}": dict(METRIC, neck=dict(dim=8, geometry=geometry))
        for geometry in ("poincare", "lorentz", "euclidean")
    },
}  # fmt: skip

ADAPTERS = {
    "openai": ("openai", {}),
    "openai block 1": ("openai", dict(block=1)),
    "openai shared": ("openai", dict(block=32, shared=True)),
    "openai qv": ("openai", dict(projections="qv")),
    "openai vision": ("openai", dict(text=False)),
    "openai text": ("openai", dict(vision=False, text_layers=(1,))),
    "openai euclidean": ("openai", dict(geometry="euclidean")),
    "openai plain product": ("openai", dict(mobius=False)),
    "openai curvature": ("openai", dict(c_text=0.5, c_vision=0.1)),
    "openai clipped": ("openai", dict(c_text=30.0, c_vision=30.0)),
    "openai class token": ("openai", dict(internals.OFFICIAL_CLASS_TOKEN, merges=False)),
    "openai feature": ("openai", dict(form="feature", merges=False)),
    "siglip": ("siglip", {}),
    "siglip feature": ("siglip", dict(form="feature", merges=False)),
    "custom": ("custom", {}),
    "custom qv": ("custom", dict(projections="qv")),
}
HEADS = {
    "linear": {}, "full": dict(attention="full"), "prompts": dict(prompts=3),
    "small grid": dict(grid=(3, 3)), "many classes": dict(grid=(8, 12), classes=23),
    "no guidance": dict(guidance=0, text_guidance=0, decoder_in=(0, 0), pad_len=0),
}  # fmt: skip
SEGMENTERS = {
    "openai": {}, "siglip": dict(kind="siglip"), "similarity": dict(head=dict(type="similarity")),
    "not squashed": dict(squash=False), "catseg": dict(adapter=None, tune="attention"),
}  # fmt: skip
CASES = {
    "clip map of rows": maps_of_rows,
    **{f"clip {kind}": partial(plain, kind) for kind in ("openai", "siglip", "custom")},
    **{f"adapter {key}": partial(adapter, kind, **options) for key, (kind,
    options) in ADAPTERS.items()},
    "adapter file": partial(adapter_file, c_text=1.0, projections="qv"),
    **{f"catseg head {key}": partial(head, **options) for key, options in HEADS.items()},
    **{f"segmenter {key}": partial(segmentation, **options) for key, options in SEGMENTERS.items()},
    "openmmlab segmentor": mmseg_segmentor, "openmmlab detector": detector,
    "openmmlab panoptic": panoptic,
    "openmmlab backbone resnet18": partial(backbone, "resnet18", (1, 2, 3, 4)),
    "openmmlab backbone hcformer": partial(backbone, "hcformer_nano", (0, 1, 2, 3), img_size=64),
    "openmmlab backbone swin": partial(
        backbone, "swin_tiny_patch4_window7_224", (0, 1, 2, 3), embed_dim=16, depths=(1, 1, 1, 1),
        num_heads=(1, 1, 2, 2), window_size=4,
    ),
    **{f"task {key}": partial(engine, **config) for key, config in ENGINE.items()},
}  # fmt: skip
FAST = {
    "clip map of rows", "clip openai", "adapter openai", "adapter openai clipped",
    "adapter openai feature", "adapter siglip", "adapter file", "catseg head linear",
    "segmenter openai", "task classifier", "task hierarchy", "task metric lorentz",
}  # fmt: skip

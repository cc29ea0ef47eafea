"""Goldens of the weights that ship, on a drawn image, and of the converters of official
checkpoints."""

import hashlib
from functools import partial
from typing import Any

import golden_clip
import internals
import torch
from summaries import fill, images

# Arguments of a small model of each family that has an official counterpart.
HIMAPPER = dict(
    backbone="vit_tiny_patch16_224",
    preset="official",
    img_size=32,
    patch_size=8,
    embed_dim=64,
    depth=2,
    num_heads=2,
)
FAMILIES = {
    "hcformer": ("hcformer_nano", dict(num_classes=7)),
    "himapper": ("himapper", HIMAPPER),
    "hyperboliccv": (
        "hcnn_resnet18",
        dict(widths=(6, 8, 12, 16), num_classes=5, learn_curvature=True),
    ),
    "hyperboliccv hybrid": (
        "hecnn_resnet18",
        dict(widths=(6, 8, 12, 16), num_classes=5, plus=False, clip=1.0),
    ),
}
NO_VARIANT = ("himapper",)  # of a backbone that no published model has


def listed(weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Names and shapes as a checksum, some of them, and the sizes of the values in the order of the
    names."""
    lines = [f"{name}:{'x'.join(map(str, weights[name].shape))}" for name in sorted(weights)]
    norms = [weights[name].double().norm() for name in sorted(weights)]
    return dict(
        count=str(len(lines)), checksum=hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        some=" ".join(lines[:: max(1, len(lines) // 6)]), norms=torch.stack(norms), sum=sum(norms),
    )  # fmt: skip


@torch.no_grad()
def conversion(family: str) -> dict[str, Any]:
    """To the official names and back."""
    if family in FAMILIES:
        name, arguments = FAMILIES[family]
        model = fill(internals.create_model(name, **arguments))
    else:
        options = dict(adapter=None, tune="attention") if family == "catseg" else {}
        model = golden_clip.segmenter(**options)
        golden_clip.fill_all_but_clip(model)
    functions = internals.converter(family.split()[0])
    weights = {name: value.detach() for name, value in model.state_dict().items()}
    official = functions.to_official(weights)
    back = functions.from_official(official)
    former = {internals.former_names(name): value for name, value in back.items()}
    out = dict(official=listed(official), back=listed(former))
    if family not in NO_VARIANT:
        out["variant"] = str(functions.variant(back))
    return out


@torch.no_grad()
def shipped(name: str, task: str) -> dict[str, Any]:
    """What a record of the zoo gives on an image; of detectors what comes before boxes are
    suppressed."""
    model = internals.load_from_zoo(name)
    out: dict[str, Any] = dict(state=listed(model.state_dict())["norms"])
    if task == "classification":
        x = images(2, model.pretrained_cfg["input_size"][-1])
        return dict(out, logits=model(x), features=model.forward_features(x), names=" ".join(
            model.pretrained_cfg["label_names"]))  # fmt: skip
    if task == "zero-shot":
        text = model.tokenizer(["a photo of a mammal", "a photo of a fruit and a bird"])
        return dict(
            out, image=model.encode_image(images(2, 64)), text=model.encode_text(text), tokens=text
        )
    out["names"] = " ".join(model.dataset_meta["classes"])
    x = images(1, 96)
    if task == "segmentation":
        return dict(out, maps=model.extract_feat(x), logits=model(x, mode="tensor"))
    maps = model.extract_feat(x)
    boxes = torch.tensor([[0, 8.0, 8, 60, 60], [0, 20, 4, 90, 40]])
    found = model.roi_head._bbox_forward(maps, boxes)
    return dict(out, maps=maps, proposals=model.rpn_head(maps), boxes=found)


@torch.no_grad()
def timm_pretrained(name: str) -> dict[str, Any]:
    """timm's own way to the weights of the zoo."""
    model = internals.create_model(name, pretrained=True).eval()
    return dict(logits=model(images(2, model.pretrained_cfg["input_size"][-1])))


SHIPPED = {
    "hcformer_nano.cifar10": "classification",
    "semantic-fpn_hcformer_nano.camvid": "segmentation",
    "faster-rcnn_tf_efficientnet_lite0.emoji": "detection",
    "emoji-t8.scenes": "zero-shot",
}


def shipped_names() -> dict[str, str]:
    return dict(
        names=" ".join(sorted(f"{record.name}:{record.task}" for record in internals.zoo_records()))
    )


CASES = {
    "zoo names": shipped_names,
    **{f"zoo {name}": partial(shipped, name, task) for name, task in SHIPPED.items()},
    **{
        f"zoo timm {name}": partial(timm_pretrained, name)
        for name in SHIPPED
        if SHIPPED[name] == "classification"
    },
    **{
        f"convert {family}": partial(conversion, family)
        for family in (*FAMILIES, "hyperclip", "catseg")
    },
}
FAST = {
    "zoo names", "zoo hcformer_nano.cifar10", "zoo emoji-t8.scenes", "convert himapper",
    "convert hyperboliccv", "convert hyperclip",
}  # fmt: skip

"""Goldens of the image models: everything in timm's registry, and the options that change what they
compute."""

from functools import partial
from typing import Any

import internals
import torch
import torch.nn.functional as F
from summaries import fill, gradients, images, numbers
from torch import nn

LABELS = torch.tensor([1, 4, 0, 2])


def build(name: str, **arguments: Any) -> nn.Module:
    return fill(internals.create_model(name, **arguments)).eval()


def contract(model: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """timm's interface."""
    features = model.forward_features(x)
    final, maps = model.forward_intermediates(x)
    return dict(
        logits=model(x), features=features,
        pre_logits=model.forward_head(features, pre_logits=True), maps=maps, final=final,
    )  # fmt: skip


def training(model: nn.Module, loss: torch.Tensor, scalars: bool = True) -> dict[str, Any]:
    """``scalars=False`` leaves out the gradients of curvatures, in which large terms cancel."""
    loss.backward()
    return dict(loss=loss, **gradients([p for p in model.parameters() if scalars or p.numel() > 1]))


def train(model: nn.Module, x: torch.Tensor, scalars: bool = True) -> dict[str, Any]:
    model.train()
    return training(model, F.cross_entropy(model(x), LABELS[: len(x)]), scalars)


def maps(name: str, x: torch.Tensor, **arguments: Any) -> list[torch.Tensor]:
    with torch.no_grad():
        return build(name, features_only=True, **arguments)(x)


def hcformer(name: str, train_too: bool = True, size: int = 64, **arguments: Any) -> dict[str, Any]:
    model, x = build(name, num_classes=5, img_size=size, **arguments), images(2, size)
    with torch.no_grad():
        out = contract(model, x)
    found = model.forward_assignments(x)
    out["assignments"] = {
        f"{s}.{b}": a._asdict() for s, b, a in (found if train_too else found[-1:])
    }
    out["feature_maps"] = maps(name, x, img_size=size, **arguments)
    if train_too:
        out["train"] = train(model, x)
    return out


def himapper(name: str, train_too: bool = True, size: int = 64, **arguments: Any) -> dict[str, Any]:
    """Every random number of the mapper is given; its dropout is off."""
    options = dict(num_classes=5, mapper_drop=0.0, **arguments)
    model, x = build(name, **options), images(2, arguments.get("img_size", size))
    official = (
        arguments.get("preset") == "official"
    )  # draws random numbers where they cannot be given
    noise = [numbers(f"noise {i}", *eps.shape) for i, eps in enumerate(internals.tree_noise(model))]
    torch.manual_seed(0)  # for the choice of leaves of mixture="components"
    with torch.no_grad():
        out = dict(hierarchy=model.forward_with_hierarchy(x, noise, maps=True))
        if not official:
            out.update(contract(model, x))
    if not official:
        out["feature_maps"] = maps(name, x, **options)
    if train_too:
        model.train()
        torch.manual_seed(0)
        found = model.forward_with_hierarchy(x, noise)
        out["train"] = training(
            model, F.cross_entropy(found["logits"], LABELS[:2]) + model.aux_loss(found)
        )
    return out


def himapper_dense_training(dense: str) -> dict[str, Any]:
    """Maps and auxiliary losses as a segmenter trains with them; moments in place of random
    samples."""
    model = build(
        "himapper", **VIT, mapper_drop=0.0, tree="deterministic", dense=dense, features_only=True
    )
    model.train()
    found = model(images(2, 32))
    auxiliary = model.model.pop_losses() if hasattr(model, "model") else model.pop_losses()
    loss = sum(level.square().mean() for level in found) + sum(auxiliary.values())
    return dict(maps=found, losses=auxiliary, **training(model, loss))


@torch.no_grad()
def calibrate(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """Running statistics as a training leaves them: those of ``x``, by one pass."""
    norms = [
        module
        for module in model.modules()
        if hasattr(module, "running_var") and hasattr(module, "momentum")
    ]
    old = [module.momentum for module in norms]
    for module in norms:
        module.momentum = 1.0
    model.train()(x)
    for module, momentum in zip(norms, old):
        module.momentum = momentum
    return model.eval()


def resnet(name: str, train_too: bool = True, size: int = 32, **arguments: Any) -> dict[str, Any]:
    x = images(4, size)
    model = calibrate(build(name, num_classes=5, **arguments), x)
    with torch.no_grad():
        out = contract(model, x)
        out["feature_maps"] = calibrate(build(name, features_only=True, **arguments), x)(x)
    out["curvatures"] = list(model.curvatures().values())
    if train_too:
        out["train"] = train(model, x, scalars=False)
        out["running"] = [v for k, v in model.state_dict().items() if "running" in k][-4:]
    return out


VIT = dict(
    backbone="vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=2
)
SWIN = dict(
    backbone="swin_tiny_patch4_window7_224", img_size=64, embed_dim=16, depths=(1, 1, 1, 1),
    num_heads=(1, 1, 2, 2), window_size=2, drop_path_rate=0.0,
)  # fmt: skip
NARROW = dict(widths=(6, 8, 12, 16))

HCFORMER = {
    "nano minimal padding": dict(
        pad="minimal", layer_scale=0.3, fold=(4, 2, 1, 1), prop=(2, 2, 4, 2)
    ),
    "nano curvature": dict(curvature=0.4, patch_size=2, size=32),
}
HIMAPPER = {
    "vit": VIT,
    "vit official": dict(**VIT, preset="official"),
    "vit 16 leaves": dict(**VIT, leaves=16, levels=3),
    "vit components": dict(**VIT, mixture="components"),
    "vit deterministic": dict(**VIT, tree="deterministic"),
    "vit euclidean": dict(**VIT, geometry="euclidean"),
    "vit curvature": dict(**VIT, curvature=0.3, logit="inner"),
    "vit aux": dict(**VIT, dense="aux"),
    "swin": SWIN,
    "convnext": dict(backbone="convnext_atto", size=64),
    "distilled": dict(
        backbone="deit_tiny_distilled_patch16_224", img_size=32, depth=2, patch_size=8
    ),
}
RESNETS = {
    "hcnn18": ("hcnn_resnet18", {}),
    "hcnn18 plus": ("hcnn_resnet18", dict(plus=True)),
    "hcnn50": ("hcnn_resnet50", dict(layers=(1, 2, 1, 1))),
    "hcnn50 plus": ("hcnn_resnet50", dict(plus=True, layers=(1, 1, 1, 1))),
    "hecnn18": ("hecnn_resnet18", {}),
    "hecnn18 iclr": ("hecnn_resnet18", dict(plus=False, clip=4.0)),
    "hecnn50": ("hecnn_resnet50", dict(layers=(1, 1, 1, 1))),
    "hecnn50 exact": ("hecnn_resnet50", dict(layers=(1, 1, 1, 1), conv="exact", rescale=False)),
    "curvature per stage": (
        "hcnn_resnet18", dict(plus=True, curvature_per_stage=True, curvature=0.7,
        head_curvature=1.3)
    ),
    "no boost": ("hecnn_resnet18", dict(boost="none", norm_match="none", slope=3.0)),
    "full boost": ("hecnn_resnet18", dict(boost="full", norm_match="sum")),
    "linear head": ("hcnn_resnet18", dict(head_type="linear")),
    "euclidean": ("hecnn_resnet18", dict(hyperbolic_stages=(), head_type="linear")),
    "imagenet stem": ("hcnn_resnet18", dict(stem="imagenet", size=64)),
}  # fmt: skip

# Registered names of their full size: at a small image, in training too where that is cheap.
FULL = {
    **{f"hcformer_{size}": partial(hcformer, f"hcformer_{size}",
    size == "nano") for size in ("nano", "tiny", "small")},
    "hcformer_medium": partial(hcformer, "hcformer_medium", False),
    **{
        f"himapper_{backbone}": partial(himapper, f"himapper_{backbone}", "tiny" in backbone,
        **options)
        for backbone, options in (
            ("deit_tiny_patch16_224", dict(img_size=64)),
            ("deit_small_patch16_224", dict(img_size=64)),
            ("deit_base_patch16_224", dict(img_size=64)),
            ("swin_tiny_patch4_window7_224", dict(img_size=64, drop_path_rate=0.0)),
            ("swin_small_patch4_window7_224", dict(img_size=64)), ("resnet50", {}),
            ("efficientnet_b4", {}),
        )
    },
    **{name: partial(resnet, name, False) for name in
       ("hcnn_resnet18", "hcnn_resnet50", "hecnn_resnet18", "hecnn_resnet50")},
}  # fmt: skip


def second_names() -> dict[str, Any]:
    """``X_himapper`` is ``himapper_X``; and which names there are."""
    first = internals.create_model("himapper_deit_tiny_patch16_224", device="meta").state_dict()
    second = internals.create_model("deit_tiny_patch16_224_himapper", device="meta").state_dict()
    same = [tuple(v.shape) for v in first.values()] == [tuple(v.shape) for v in second.values()]
    return dict(same=str(same), names=" ".join(internals.registered_models()))


CASES = {
    **{f"model {name}": function for name, function in FULL.items()},
    "model names": second_names,
    **{
        f"hcformer {key}": partial(hcformer, "hcformer_nano", **value)
        for key, value in HCFORMER.items()
    },
    **{
        f"himapper {key}": partial(himapper, "himapper", **value) for key, value in HIMAPPER.items()
    },
    **{
        f"himapper dense {dense}": partial(himapper_dense_training, dense)
        for dense in ("aux", "fuse")
    },
    **{
        f"resnet {key}": partial(resnet, name, **NARROW, **value)
        for key, (name, value) in RESNETS.items()
    },
}
FAST = {
    "model hcformer_nano", "model names", "himapper vit", "himapper vit official",
    "himapper dense aux", "resnet hcnn18", "resnet hecnn18", "resnet hecnn50",
}  # fmt: skip

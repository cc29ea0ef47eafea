"""Where a classifier sees a class: Grad-CAM (Selvaraju et al., ICCV 2017).

>>> model = timm.create_model("resnet18", pretrained=True).eval()
>>> heat = class_map(model, x)  # for the class with the highest score
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from hypvision.io import HypvisionError
from hypvision.io.images import to_rgb

from .clusters import evaluating

_OPACITY = 0.65  # opacity of the colour where the map has its maximum


def class_map(model: nn.Module, x: Tensor, label: int | None = None) -> Tensor:
    r"""Return the map :math:`\mathrm{relu}(\sum_c \alpha_c A_c)` of the last features :math:`A`,
    where :math:`\alpha_c` is the mean gradient of the logit with respect to channel c (eqs. 1 and
    2).

    For a ViT, whose head may read only the class token, the features are the patch tokens that
    enter the last block.

    Args:
        model: a timm model, or one with ``forward_features`` and ``forward_head`` as in timm; its
            mode and weights are left as they are.
        x: a normalised image ``(1, channels, H, W)``.
        label: number of the class; None: the class with the largest logit.

    Returns:
        ``(h, w)`` from 0 to 1, float32; 0 everywhere if no feature speaks for the class.
    """
    kept: list[Tensor] = []
    layer = _last_block(model)
    if layer is not None:
        handle = layer.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    try:
        with evaluating(model), torch.enable_grad():
            # The input requires a gradient, so that a frozen model has gradients of features, too.
            network: Any = model
            features = network.forward_features(x.detach().requires_grad_())
            logits = network.forward_head(features)
            features = kept[0] if kept else features
            label = int(logits.argmax()) if label is None else label
            (gradient,) = torch.autograd.grad(logits[0, label], features)
    finally:
        if layer is not None:
            handle.remove()
    values = _as_map(model, features.detach(), x)
    slopes = _as_map(model, gradient, x)
    heat = F.relu((slopes.mean((1, 2), keepdim=True) * values).sum(0))
    return (heat / heat.max().clamp(min=1e-12)).float().cpu()


def _last_block(model: nn.Module) -> nn.Module | None:
    """Return the last block of a ViT; None for networks whose head reads the whole last map."""
    if getattr(getattr(model, "stem", None), "class_token", None) is not None:
        stages: Any = model.stages
        last: nn.Module = stages[-1]
        return last
    blocks = getattr(model, "blocks", None)
    tokens = hasattr(model, "num_prefix_tokens") and isinstance(blocks, nn.Sequential)
    return blocks[-1] if tokens and blocks is not None else None


def _as_map(model: nn.Module, features: Tensor, x: Tensor) -> Tensor:
    """Return the features of one image as a map ``(C, h, w)``."""
    if features.dim() == 3 and hasattr(model, "split_tokens"):  # channels first
        network: Any = model
        patches: Tensor = network.split_tokens(features)[1][0]
        return patches.unflatten(1, [side // network.patch_size for side in x.shape[-2:]])
    if features.dim() == 3:
        patches = features[0, int(getattr(model, "num_prefix_tokens", 0)) :]
        height, width = x.shape[-2:]
        rows = round((len(patches) * height / width) ** 0.5)
        if rows < 1 or len(patches) % rows:
            raise HypvisionError(
                f"The {len(patches)} tokens of {type(model).__name__} do not form a map of its "
                "image, so where it sees a class cannot be shown. Take another model."
            )
        return patches.T.unflatten(1, (rows, len(patches) // rows))
    if features.dim() != 4:
        raise HypvisionError(
            f"The features of {type(model).__name__} have the shape {tuple(features.shape)}. A map "
            "of a class needs (B, C, h, w), (B, h, w, C) or (B, tokens, C)."
        )
    last = getattr(model, "output_fmt", "NCHW") == "NHWC"
    return features[0].permute(2, 0, 1) if last else features[0]


def boundary_map(radius: Tensor) -> Tensor:
    """Return a map ``(h, w)`` from 0 to 1 of where borders of classes should be: 1 minus the
    distance of each pixel's embedding from the origin (``radius``), divided by the largest distance
    in the image (Ghadimi Atigh et al., CVPR 2022)."""
    return 1 - radius / radius.max().clamp(min=torch.finfo(radius.dtype).tiny)


def draw_class_map(image: Image.Image, heat: Tensor) -> Image.Image:
    """Return the image in grey with a map ``(h, w)``, enlarged smoothly, over it: red where the map
    is high."""
    image = to_rgb(image)
    large = F.interpolate(heat[None, None].float(), (image.height, image.width), mode="bilinear")[
        0, 0
    ]
    share = (255 * _OPACITY * large.clamp(0, 1)).round().numpy().astype(np.uint8)
    red = Image.new("RGB", image.size, (230, 20, 30))
    return Image.composite(red, image.convert("L").convert("RGB"), Image.fromarray(share))

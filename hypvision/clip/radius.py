r"""``hypvision radius``: how far from the origin CLIP's embeddings lie on the ball, before and after tuning.

An embedding z is a tangent vector at the origin; :math:`\mathrm{Rad}(\exp_0(z)) = (2/\sqrt c)\,\mathrm{artanh}(\sqrt c
|\exp_0(z)|) = 2 |z|`, whatever c is. The paper's Fig. 2 and 5 do not say which convention they plot:
``convention="half"`` leaves out the factor 2.
"""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.cli.explain import find_images
from hypvision.clip import adapters
from hypvision.clip.classes import TEMPLATES, load_classes, prompts
from hypvision.clip.models import CLIPBundle, create_clip
from hypvision.clip.segmentation.segment import clip_options, parse_classes, read_picture
from hypvision.clip.towers import encode_dense, encode_text, find_towers
from hypvision.errors import HypvisionError, require
from hypvision.files import replacing

__all__ = ["add_arguments", "hyperbolic_radius", "image_radii", "radius_penalty", "radius_statistics", "run",
           "scale_sweep", "text_radii"]  # fmt: skip


def hyperbolic_radius(z: Tensor, c: float = 0.01, convention: str = "metric2", input: str = "tangent") -> Tensor:
    r"""Distance of points from the origin of the Poincare ball.

    Args:
        z: (..., d): tangent vectors at the origin, or points.
        c: curvature.
        convention: ``"metric2"``: :math:`(2/\sqrt c)\,\mathrm{artanh}(\sqrt c |x|)`; ``"half"``: without the factor 2.
        input: ``"tangent"`` or ``"ball"``.

    Returns:
        (...), float32 at least.

    Raises:
        HypvisionError: unknown convention or input, c not positive, or points outside of the ball.
    """
    if convention not in ("metric2", "half") or input not in ("tangent", "ball"):
        raise HypvisionError(
            f"convention={convention!r}, input={input!r}: use 'metric2' or 'half', and 'tangent' or 'ball'."
        )
    if not c > 0:
        raise HypvisionError(f"The curvature must be c > 0, got {c}.")
    factor = 2.0 if convention == "metric2" else 1.0
    length = torch.linalg.vector_norm(z.to(torch.promote_types(z.dtype, torch.float32)), dim=-1)
    if input == "tangent":
        return factor * length  # artanh(sqrt(c) |exp0(z)|) = sqrt(c) |z|
    root = math.sqrt(c)
    if (root * length >= 1).any():
        raise HypvisionError(f"A point of norm {float(length.max()):.4g} is not inside the ball of c = {c}.")
    return factor / root * torch.atanh(root * length)


@torch.no_grad()
def text_radii(
    clip: CLIPBundle, classes: Sequence[str], templates: Sequence[str] = TEMPLATES["catseg"], **how
) -> Tensor:
    """Radii (T,) of the un-normalised text embeddings of class names; ``how`` goes to :func:`hyperbolic_radius`."""
    sentences = [text for name in classes for synonym in prompts(name, templates) for text in synonym]
    device = next(clip.model.parameters()).device
    text = torch.cat([encode_text(clip.model, chunk.to(device)) for chunk in clip.tokenizer(sentences).split(256)])
    return hyperbolic_radius(text, **how).unflatten(0, (len(classes), -1)).mean(1)


@torch.no_grad()
def image_radii(clip: CLIPBundle, images: Tensor, patches: bool = False, **how) -> Tensor:
    """Radii of images (B, 3, H, W), RGB from 0 to 255: (B,), or those of their patches (B, h, w)."""
    device = next(clip.model.parameters()).device
    mean, std = (torch.tensor(value, device=device)[:, None, None] for value in (clip.mean, clip.std))
    x = (images.to(device).float() - mean) / std
    if patches:
        return hyperbolic_radius(encode_dense(clip.model, x)[0].permute(0, 2, 3, 1), **how)
    return hyperbolic_radius(clip.model.encode_image(x), **how)


def radius_statistics(radii: Tensor) -> dict[str, float]:
    """Mean, standard deviation and quantiles, for a log."""
    flat = radii.flatten().double()
    quantiles = torch.quantile(flat, torch.tensor([0.0, 0.05, 0.5, 0.95, 1.0], dtype=torch.double)).tolist()
    names = ("min", "q05", "median", "q95", "max")
    return dict(mean=float(flat.mean()), std=float(flat.std(correction=0)), **dict(zip(names, quantiles)))


@torch.no_grad()
def scale_sweep(clip: CLIPBundle, classes: Sequence[str], factors: Sequence[float], **how) -> dict[float, float]:
    """Mean text radius when every adapted S of the text tower is multiplied by a factor; weights are put back.

    Fig. 5 varies the radius by means that the paper does not describe. Text embeddings are made unit length before they
    are compared, so scaling *them* would change nothing; scaling S changes what the attention computes.

    Raises:
        HypvisionError: the text tower carries no adapter.
    """
    blocks = [
        p for name, p in clip.model.named_parameters() if ".hyperclip." in name and not name.startswith("visual.")
    ]
    if not blocks:
        raise HypvisionError("The sweep scales HyperCLIP's blocks, but the text tower carries none. Use inject first.")
    kept, result = [parameter.clone() for parameter in blocks], {}
    try:
        for factor in factors:
            for parameter, value in zip(blocks, kept):
                parameter.copy_(factor * value)
            result[float(factor)] = float(text_radii(clip, classes, **how).mean())
    finally:
        for parameter, value in zip(blocks, kept):
            parameter.copy_(value)
    return result


def radius_penalty(text: Tensor, target: float, weight: float = 1.0, **how) -> Tensor:
    """``weight * (mean radius - target)^2`` of embeddings before they are made unit length; a regulariser of ours."""
    return weight * F.mse_loss(hyperbolic_radius(text, **how).mean(), text.new_tensor(target, dtype=torch.float32))


# The command line


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``radius``."""
    parser.add_argument("--clip", default="ViT-B-16:openai", metavar="NAME[:TAG]", help="the CLIP before tuning")
    parser.add_argument("--adapter", metavar="FILE", help="a saved HyperCLIP adapter: the CLIP after tuning")
    parser.add_argument(
        "--classes", nargs="+", default=["coco171"], metavar="LIST", help='known lists, files, or "cat, dog"'
    )
    parser.add_argument("--images", nargs="+", default=[], metavar="IMAGE", help="pictures, whose patches are measured")
    parser.add_argument("--convention", choices=["metric2", "half"], default="metric2", help="with the factor 2 or not")
    parser.add_argument("--sweep", nargs="+", type=float, default=[], metavar="S", help="scale the adapter by these")
    parser.add_argument("--out", default="radius", metavar="DIR", help="folder of radius.json and radius.png")


def run(args: Namespace) -> None:
    """``radius`` from parsed arguments: prints statistics, writes them and a picture."""
    clip = create_clip(**clip_options(args.clip))
    lists = {str(source): load_classes(parse_classes(source)) for source in args.classes}
    radii = _measure(clip, lists, args.images, args.convention, "before")
    sweep: dict[float, float] = {}
    if args.adapter:
        adapters.load(clip.model, args.adapter)
        radii |= _measure(clip, lists, args.images, args.convention, "after")
    if args.sweep:
        if not args.adapter:
            adapters.inject(clip.model, block=math.gcd(128, *_widths(clip.model)))
        first = next(iter(lists.values()))
        sweep = scale_sweep(clip, first, args.sweep, convention=args.convention)
    statistics = {key: radius_statistics(value) for key, value in radii.items()}
    for key, found in statistics.items():
        print(f"{key}: " + ", ".join(f"{label} {value:.3f}" for label, value in found.items()))
    for factor, value in sweep.items():
        print(f"S x {factor:g}: mean text radius {value:.3f}")
    out = Path(args.out)
    report = dict(statistics=statistics, sweep={str(key): value for key, value in sweep.items()})
    with replacing(out / "radius.json") as temporary:
        temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    _plot(radii, sweep, out / "radius.png")
    print(out / "radius.json")
    print(out / "radius.png")


def _widths(model: nn.Module) -> list[int]:
    return [tower.width for tower in find_towers(model)]


def _measure(
    clip: CLIPBundle, lists: dict[str, tuple[str, ...]], images: Sequence[str], convention: str, when: str
) -> dict[str, Tensor]:
    found = {f"text {name} {when}": text_radii(clip, names, convention=convention) for name, names in lists.items()}
    if images:
        side = clip.model.visual.image_size
        size = (side, side) if isinstance(side, int) else tuple(side)
        pictures = [read_picture(path).resize(size[::-1]) for path in find_images(images)]
        batch = torch.stack([torch.from_numpy(np.array(picture)).permute(2, 0, 1) for picture in pictures])
        found[f"images {when}"] = image_radii(clip, batch, convention=convention)
        found[f"patches {when}"] = image_radii(clip, batch, patches=True, convention=convention)
    return found


def _plot(radii: dict[str, Tensor], sweep: dict[float, float], path: Path) -> None:
    pyplot = require("matplotlib.pyplot", "viz")
    figure, axes = pyplot.subplots(1, 2 if sweep else 1, figsize=(10 if sweep else 6, 4), squeeze=False)
    for name, value in radii.items():
        axes[0, 0].hist(value.flatten().numpy(), bins=40, density=True, histtype="step", label=name)
    axes[0, 0].set(xlabel="hyperbolic radius", ylabel="density")
    axes[0, 0].legend(fontsize=7)
    if sweep:
        axes[0, 1].plot(list(sweep), list(sweep.values()), marker="o")
        axes[0, 1].set(xlabel="factor of S", ylabel="mean text radius")
    figure.tight_layout()
    try:
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=120)
    finally:
        pyplot.close(figure)

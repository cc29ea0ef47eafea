r"""Hyperbolic radii of CLIP's embeddings, which are distances from the origin of the Poincare ball,
before and after tuning.

An embedding z is a tangent vector at the origin, whose radius does not depend on c:

.. math:: \mathrm{Rad}(\exp_0(z)) = (2/\sqrt c)\,\mathrm{artanh}(\sqrt c |\exp_0(z)|) = 2 |z|.

The paper's Fig. 2 and 5 do not say which convention they plot: ``convention="half"`` leaves out the
factor 2. Embeddings of hyperbolic models (MERU, HyCoCLIP) are points already; their radius is their
distance from the origin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hypvision.data.classes import TEMPLATES, prompts
from hypvision.data.preprocessing import preprocessing_of
from hypvision.geometry import poincare
from hypvision.io import HypvisionError, Metrics, StrPath, more_than, one_of
from hypvision.io.images import leaving_out, open_image, require_all

from .models import CLIPBundle
from .spaces import Modality, Sphere
from .towers import encode_by_length, encode_dense, encode_image


def hyperbolic_radius(
    z: Tensor, c: float = 0.01, convention: str = "metric2", input: str = "tangent"
) -> Tensor:
    r"""Return the distances ``(...)``, at least in float32, of ``z`` ``(..., d)`` from the origin
    of the Poincare ball of curvature c.

    Args:
        z: the points (``input="ball"``), or tangent vectors at the origin (``"tangent"``).
        convention: ``"metric2"``: :math:`(2/\sqrt c)\,\mathrm{artanh}(\sqrt c |x|)`; ``"half"``:
            without the factor 2.
    """
    one_of(("metric2", "half"), convention=convention)
    one_of(("tangent", "ball"), input=input)
    more_than(0, c=c)
    factor = 2.0 if convention == "metric2" else 1.0
    length = torch.linalg.vector_norm(z.to(torch.promote_types(z.dtype, torch.float32)), dim=-1)
    if input == "tangent":
        return factor * length  # artanh(sqrt(c) |exp0(z)|) = sqrt(c) |z|
    if (math.sqrt(c) * length >= 1).any():
        raise HypvisionError(
            f"A point of norm {float(length.max()):.4g} is not inside the ball of c = {c}, where "
            "norms are below 1/sqrt(c)."
        )
    return factor / 2 * poincare.dist0(z.to(length.dtype), c)


@torch.no_grad()
def text_radii(
    clip: CLIPBundle, classes: Sequence[str], templates: Sequence[str] | None = None, **how
) -> Tensor:
    """Return radii ``(T,)`` of T class names: means over the sentences of each, whose text
    embeddings are not normalised. ``templates`` None: those of the weights, else CAT-Seg's. ``how``
    is passed to :func:`hyperbolic_radius`."""
    templates = templates or clip.templates or TEMPLATES["catseg"]
    sentences = [
        text for name in classes for synonym in prompts(name, templates) for text in synonym
    ]
    tokens = clip.tokenizer(sentences).to(clip.device)
    text = encode_by_length(clip.model, tokens, budget=4096)
    return _radii(clip, text, "text", **how).unflatten(0, (len(classes), -1)).mean(1)


@torch.no_grad()
def image_radii(clip: CLIPBundle, images: Tensor, patches: bool = False, **how) -> Tensor:
    """Return radii ``(B,)`` of RGB images ``(B, 3, H, W)``, 0 to 255, or with ``patches`` those of
    their patches, ``(B, h, w)``."""
    x = clip.normalised(images)
    if patches:
        return hyperbolic_radius(encode_dense(clip.model, x)[0].permute(0, 2, 3, 1), **how)
    return _radii(clip, encode_image(clip.model, x), "image", **how)


def _radii(clip: CLIPBundle, features: Tensor, modality: Modality, **how) -> Tensor:
    """Return radii ``(...)`` of features ``(..., E)``; for a hyperbolic CLIP the distances of the
    features' points from the origin."""
    if isinstance(clip.space, Sphere):
        return hyperbolic_radius(features, **how)
    if how.get("convention", "metric2") != "metric2":
        raise HypvisionError(
            "A hyperbolic CLIP (MERU, HyCoCLIP) has a metric of its own: leave out the convention."
        )
    return clip.space.radius(clip.space.embed(features, modality))


def radius_statistics(radii: Tensor) -> Metrics:
    """Return mean, standard deviation and quantiles of radii, for a log."""
    flat = radii.flatten().double()
    quantiles = torch.quantile(
        flat, torch.tensor([0.0, 0.05, 0.5, 0.95, 1.0], dtype=torch.double)
    ).tolist()
    names = ("min", "q05", "median", "q95", "max")
    return dict(
        mean=float(flat.mean()), std=float(flat.std(correction=0)), **dict(zip(names, quantiles))
    )


@torch.no_grad()
def scale_sweep(
    clip: CLIPBundle, classes: Sequence[str], factors: Sequence[float], **how
) -> dict[float, float]:
    """Return, for each factor, the mean text radius when every adapted S of the text tower is
    multiplied by this factor; the weights are restored.

    The paper does not describe how its Fig. 5 varies the radius. Text embeddings are normalised
    before they are compared, so scaling *them* would change nothing; scaling S changes what the
    attention computes.
    """
    blocks = [
        p
        for name, p in clip.model.named_parameters()
        if ".hyperclip." in name and not name.startswith("visual.")
    ]
    if not blocks:
        raise HypvisionError(
            "The sweep scales HyperCLIP's blocks, but the text tower has none. Call "
            "adapters.inject first."
        )
    kept = [parameter.clone() for parameter in blocks]
    result = {}
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
    """Return ``weight * (mean radius - target)^2`` for text embeddings that are not normalised yet;
    this regulariser is our own."""
    return weight * F.mse_loss(
        hyperbolic_radius(text, **how).mean(), text.new_tensor(target, dtype=torch.float32)
    )


def measure_radii(
    clip: CLIPBundle,
    class_lists: Mapping[str, Sequence[str]],
    images: Sequence[StrPath] = (),
    failed: list[str] | None = None,
    **how,
) -> dict[str, Tensor]:
    """Return radii by name: of the class names of each list (``"text NAME"``) and, if there are
    image files, of the images (``"images"``) and their ``"patches"``, preprocessed for the model.
    Messages about unreadable images go into ``failed``; with ``failed=None`` they are errors.
    ``how`` is passed to :func:`hyperbolic_radius`."""
    radii = {f"text {name}": text_radii(clip, names, **how) for name, names in class_lists.items()}
    if images:
        view = preprocessing_of(clip.model)
        seen = []
        for path in images:
            with leaving_out(path, failed):
                seen.append(view(open_image(path)))
        if not seen:
            require_all(failed or [], done=0)
        batch = torch.stack(seen)
        radii["images"] = image_radii(clip, batch, **how)
        if isinstance(clip.space, Sphere):  # patches have no points on a hyperboloid
            radii["patches"] = image_radii(clip, batch, patches=True, **how)
    return radii

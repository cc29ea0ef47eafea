"""MERU, HyCoCLIP, UNCHA, PHyCLIP, ATMG and their CLIP baselines.

Papers: "Hyperbolic Image-Text Representations", Desai, Nickel, Rajpurohit, Johnson, Vedantam (ICML
    2023); "Compositional Entailment Learning for Hyperbolic Vision-Language Models", Pal, van
    Spengler, di Melendugno, Flaborea, Galasso, Mettes (ICLR 2025); "Uncertainty-guided
    Compositional Alignment with Part-to-Whole Semantic Representativeness in Hyperbolic
    Vision-Language Models", Kim, Jang, Kim, Chun (CVPR 2026; UNCHA); "l1-Product of Hyperbolic
    Factors Unifies Hierarchy and Compositionality in Vision-Language Representation Learning",
    Yoshikawa, Matsubara (ICLR 2026; PHyCLIP); "Accept the Modality Gap: An Exploration in the
    Hyperbolic Space", Ramasinghe et al. (CVPR 2024; ATMG).

>>> clip = create_clip("hycoclip-vit-s-16", "grit")
>>> clip.similarity(clip.embed_images(images), clip.embed_texts(["a dog", "a cat"]))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from open_clip.model import CLIP
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from hypvision.io import HypvisionError, Plain, one_of, refuse

from .hyperbolic_checkpoint import (
    BOX_SCALES,
    CURVATURES,
    FACTORS,
    PIXELS,
    SCALARS,
    family_of_config,
)
from .spaces import ExteriorAngles, Hyperboloid, HyperboloidProduct, Modality, Space, Sphere
from .towers import class_token_features, logit_scale_of

MAX_LOGIT_SCALE = math.log(100)


class HyperbolicCLIP(CLIP):
    """open_clip's CLIP whose embeddings lie on a hyperboloid, a product of hyperboloids or a
    sphere; a ViT of timm is changed to that of MoCo v3.

    ``encode_image`` and ``encode_text`` return features before the lift onto the manifold, and with
    ``normalize=True`` points of :attr:`space`; points of the hyperboloid are ``(B, E + 1)``, time
    first. The mean and standard deviation that normalise images are in the state dict, as in
    official files: :data:`~hypvision.clip.hyperbolic_checkpoint.PIXELS`.

    Args:
        geometry: ``"lorentz"`` (MERU, HyCoCLIP, UNCHA), ``"product"`` of hyperboloids (PHyCLIP) or
            ``"sphere"`` (the CLIP baselines, which learn no curvature).
        factors: number of hyperboloids of a product; None: one for every 8 numbers of a feature, as
            PHyCLIP has 64 for 512.
        product_metric: the distance in a product, see
            :class:`~hypvision.clip.spaces.HyperboloidProduct`.
        box_scales: learn UNCHA's three logit scales; ``logit_scale`` is then unused.
        angles: compare images and texts by exterior angles, as ATMG does.
        curvature: the curvature at the start; ATMG's is 0.1, all others' 1.
        learn_curvature: whether the curvature is learned; else it keeps its initial value.
        vision_heads: number of attention heads of the ViT; MoCo v3's small ViT has 12, timm's has
            6.
        others: the other arguments, like the first three, are those of
            :class:`open_clip.model.CLIP`. With ``output_dict`` the network returns a dict, see
            :meth:`forward`.
    """

    root: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        vision_cfg: Plain,
        text_cfg: Plain,
        geometry: str = "lorentz",
        learn_curvature: bool = True,
        vision_heads: int = 12,
        factors: int | None = None,
        product_metric: str = "l1",
        box_scales: bool = False,
        angles: bool = False,
        curvature: float = 1.0,
        **others: Any,
    ):
        super().__init__(embed_dim, vision_cfg, text_cfg, **others)
        one_of(("lorentz", "product", "sphere"), geometry=geometry)
        low, high = CURVATURES
        refuse(
            (
                geometry != "lorentz" and (box_scales or angles),
                "box_scales (UNCHA) and angles (ATMG) are for one hyperboloid, but geometry is "
                f"'{geometry}'. Give geometry='lorentz'.",
            ),
            (
                not low <= curvature <= high,
                f"curvature must lie between {low} and {high}, got {curvature}.",
            ),
        )
        self.geometry = geometry
        self.angles = angles
        self.product_metric = product_metric
        self.family = family_of_config(dict(geometry=geometry, box_scales=box_scales))
        self.embed_dim = embed_dim
        self.constants: list[str] = []  # names of parameters that never train
        for name, values in zip(PIXELS, (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)):
            self.register_buffer(name, torch.tensor(values).reshape(3, 1, 1))
        # Traversals begin at the root; checkpoints of baselines may contain one too.
        self.register_buffer("root", None, persistent=False)
        trunk = getattr(self.visual, "trunk", None)
        if trunk is not None:
            self._as_moco_v3(trunk, vision_heads, vision_cfg["image_size"])
        if geometry != "sphere":
            self._add_scalars(math.log(curvature), factors)
        if box_scales:
            self._add_box_scales(text_cfg.get("width", 512))
        if not learn_curvature:
            self.constants += [name for name, _ in self.named_parameters() if "curv" in name]
        for name in self.constants:
            self.get_parameter(name).requires_grad_(False)

    def _add_scalars(self, curvature: float, factors: int | None) -> None:
        """Add the logarithms of the curvature and of the scales; for a product also those of its
        factors, and then those of MERU are unused, as in PHyCLIP's files."""
        scale = -0.5 * math.log(self.embed_dim)
        for name, value in zip(SCALARS, (curvature, scale, scale)):
            self.register_parameter(name, nn.Parameter(torch.tensor(value)))
        if self.geometry != "product":
            return
        count = factors or self.embed_dim // 8
        if self.embed_dim % count:
            raise HypvisionError(
                f"Features of {self.embed_dim} numbers cannot be cut into {count} equal factors. "
                "Give a number of factors that divides it."
            )
        scale = -0.5 * math.log(self.embed_dim // count)
        for name, value in zip(FACTORS, (curvature, scale, scale)):
            numbers = [nn.Parameter(torch.tensor(value)) for _ in range(count)]
            self.register_module(name, nn.ParameterList(numbers))
        self.constants += SCALARS

    def _add_box_scales(self, width: int) -> None:
        """Add UNCHA's logit scales, and a head that is in UNCHA's files but never used."""
        for name, temperature in zip(BOX_SCALES, (0.07, 0.05, 0.06)):
            self.register_parameter(name, nn.Parameter(torch.tensor(-math.log(temperature))))
        self.min_radius_head = nn.Linear(width, 1)
        nn.init.zeros_(self.min_radius_head.weight)
        nn.init.zeros_(self.min_radius_head.bias)
        self.constants += ["logit_scale", "min_radius_head.weight", "min_radius_head.bias"]

    def _logarithms(self, single: str, each: str) -> list[Tensor]:
        """Return the logarithms of a scalar: one for a hyperboloid, one a factor for a product."""
        if self.geometry == "product":
            return [*self.get_submodule(each).parameters()]
        return [self.get_parameter(single)]

    def _scale(self, tower: str) -> Tensor:
        """Return the scale of a tower's features, or ``(k,)`` scales for the k factors of a
        product."""
        logarithms = self._logarithms(f"{tower}_alpha", f"{tower}_concept_alphas")
        found = torch.stack(logarithms).float().exp()
        return found if self.geometry == "product" else found[0]

    def _as_moco_v3(self, trunk: Any, vision_heads: int, size: int) -> None:
        self.visual.set_input_size(size)
        for block in trunk.blocks:
            block.attn.num_heads = vision_heads
            block.attn.head_dim = trunk.embed_dim // vision_heads
            block.attn.scale = block.attn.head_dim**-0.5
        for module in trunk.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-5
        with torch.no_grad():
            # As in MoCo v3: fixed positions, another epsilon and, in the small ViT, twice as many
            # heads as timm's.
            trunk.pos_embed.copy_(sincos_positions(trunk.patch_embed.grid_size, trunk.embed_dim))
            nn.init.normal_(self.visual.head.proj.weight, std=trunk.embed_dim**-0.5)
        self.constants.append("visual.trunk.pos_embed")

    def normalisation(self) -> dict[str, tuple[float, ...]]:
        """Return the ``mean`` and ``std`` that normalise RGB from 0 to 1."""
        # str() gives 0.485 and not the nearest float32, 0.4850000143.
        values = [self.get_buffer(name).float().flatten().cpu().numpy() for name in PIXELS]
        mean, std = (tuple(float(str(number)) for number in value) for value in values)
        return dict(mean=mean, std=std)

    @torch.no_grad()
    def normalise_by(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Set the mean and standard deviation that normalise RGB from 0 to 1."""
        for name, values in zip(PIXELS, (mean, std)):
            buffer = self.get_buffer(name)
            buffer.copy_(torch.tensor(tuple(values)).reshape(buffer.shape))

    def _load_from_state_dict(self, state_dict: Plain, prefix: str, *args: Any) -> None:
        for name in PIXELS:  # files of older trainings lack the normalisation
            state_dict.setdefault(prefix + name, self.get_buffer(name))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def in_float32(self) -> set[str]:
        """Return the names of the parameters and buffers that stay float32 in half precision: all
        scalars, the root and the normalisation."""
        scalars = {name for name, value in self.named_parameters() if value.dim() == 0}
        return scalars | {"root", *PIXELS}

    @property
    def space(self) -> Space:
        """The space of the embeddings, with the current curvature and scales."""
        if self.geometry == "sphere":
            return Sphere(self.root)
        scales: dict[Modality, Tensor] = {
            "image": self._scale("visual"),
            "text": self._scale("textual"),
        }
        if self.geometry == "lorentz":
            hyperboloid = ExteriorAngles if self.angles else Hyperboloid
            return hyperboloid(self.curv.float().exp(), scales=scales)
        c = torch.stack(self._logarithms("curv", "curvs")).float().exp()
        metric = self.product_metric
        return HyperboloidProduct(c, self.embed_dim // len(c), scales=scales, metric=metric)

    @torch.no_grad()
    def clamp_scalars(self) -> None:
        """Clamp the scalars to their intervals; a training calls this before each step."""
        low, high = map(math.log, CURVATURES)
        for name, parameter in self.named_parameters():
            first = name.partition(".")[0]
            if first.endswith("logit_scale"):
                parameter.clamp_(max=MAX_LOGIT_SCALE)
            elif first in ("curv", "curvs"):
                parameter.clamp_(low, high)
            elif first.endswith(("_alpha", "_alphas")):
                parameter.clamp_(max=0)

    def encode_image(self, image: Tensor, normalize: bool = False) -> Tensor:
        """Return features ``(B, E)`` of normalised images, or with ``normalize`` their points."""
        features = class_token_features(self.visual, image)
        return self.space.embed(features, "image") if normalize else features

    def encode_text(self, text: Tensor, normalize: bool = False) -> Tensor:
        """Return features ``(B, E)`` of tokens ``(B, L)``, or with ``normalize`` their points."""
        features: Tensor = super().encode_text(text)
        return self.space.embed(features, "text") if normalize else features

    def forward(self, image: Tensor | None = None, text: Tensor | None = None) -> Any:
        """Return points of images and of texts, or None for what is not given, and the scale of
        their logits; with ``output_dict`` as a dict of open_clip's keys ``image_features``,
        ``text_features`` and ``logit_scale``.

        The points are those of :attr:`space`, which compares them, and no vectors to multiply.
        """
        images = None if image is None else self.encode_image(image, normalize=True)
        texts = None if text is None else self.encode_text(text, normalize=True)
        scale = logit_scale_of(self).exp()
        if self.output_dict:
            return dict(image_features=images, text_features=texts, logit_scale=scale)
        return images, texts, scale

    def get_logits(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the contrastive loss for images among texts ``(B, T)``, and for
        texts among images ``(T, B)``."""
        images = self.encode_image(image, normalize=True)
        texts = self.encode_text(text, normalize=True)
        scale = logit_scale_of(self).exp()
        space = self.space
        return space.logits(images, texts, scale), space.text_logits(texts, images, scale)

    @torch.no_grad()
    def merge(self) -> None:
        """Multiply the scales of the features into the projections of the towers, which keeps the
        embeddings."""
        if self.geometry == "sphere":
            return
        visual: Any = self.visual
        timm = getattr(visual, "trunk", None) is not None
        projections = dict(
            visual=visual.head.proj.weight.T if timm else visual.proj, textual=self.text_projection
        )
        for tower, projection in projections.items():
            scale = self._scale(tower).reshape(-1)
            projection.mul_(scale.repeat_interleave(self.embed_dim // len(scale)))
            for logarithm in self._logarithms(f"{tower}_alpha", f"{tower}_concept_alphas"):
                logarithm.zero_()


def sincos_positions(grid: tuple[int, int], width: int) -> Tensor:
    """Return the fixed position embeddings ``(1, 1 + rows * columns, width)`` of MoCo v3 (Chen et
    al., ICCV 2021), which are 0 for the class token."""
    rows, columns = grid
    across, down = torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="ij")
    omega = 10000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    angles = [place.flatten()[:, None] * omega for place in (across, down)]
    table = torch.cat(
        [function(angle) for angle in angles for function in (torch.sin, torch.cos)], dim=1
    )
    return torch.cat([table.new_zeros(1, width), table])[None].float()

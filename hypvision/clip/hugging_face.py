"""Convert state dicts between Hugging Face's ``CLIPModel`` and open_clip's ``CLIP``, bit for bit.

Both hold the same numbers under other names: q, k and v are one matrix in open_clip, and
projections are transposed. Neither holds the number of heads or the activation (OpenAI's weights
need ``force_quick_gelu=True``).
"""

from __future__ import annotations

import re

import torch

from hypvision.checkpoints.match import translated
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.io import HypvisionError, Plain, Values

_TRANSPOSED = [
    ("text_projection.weight", "text_projection"),
    ("visual_projection.weight", "visual.proj"),
]
_TOWERS = (("text_model.encoder.layers.", "transformer.resblocks."),
           ("vision_model.encoder.layers.", "visual.transformer.resblocks."))  # fmt: skip
_BLOCK = (("layer_norm1", "ln_1"), ("layer_norm2", "ln_2"), ("mlp.fc1", "mlp.c_fc"), ("mlp.fc2",
"mlp.c_proj"),
          ("self_attn.out_proj", "attn.out_proj"))  # fmt: skip
# Pairs (Hugging Face's name, open_clip's name) for translated().
_NAMES = [
    ("logit_scale", "logit_scale"),
    ("text_model.embeddings.token_embedding.weight", "token_embedding.weight"),
    ("text_model.embeddings.position_embedding.weight", "positional_embedding"),
    ("text_model.final_layer_norm.{rest}", "ln_final.{rest}"),
    ("vision_model.embeddings.class_embedding", "visual.class_embedding"),
    ("vision_model.embeddings.patch_embedding.weight", "visual.conv1.weight"),
    ("vision_model.embeddings.position_embedding.weight", "visual.positional_embedding"),
    # The spelling mistake is Hugging Face's.
    ("vision_model.pre_layrnorm.{rest}", "visual.ln_pre.{rest}"),
    ("vision_model.post_layernorm.{rest}", "visual.ln_post.{rest}"),
    *(
        (f"{old}{{n}}.{theirs}.{{rest}}", f"{new}{{n}}.{ours}.{{rest}}")
        for old, new in _TOWERS
        for theirs, ours in _BLOCK
    ),
    *_TRANSPOSED,
]
_PACKED = re.compile(r"(.*)self_attn\.([qkv])_proj\.(weight|bias)")


def is_hugging_face(weights: Values) -> bool:
    """Return whether the names of weights are those of Hugging Face's ``CLIPModel``."""
    return any(name.startswith(("text_model.", "vision_model.")) for name in weights)


def _convert(weights: Weights, backwards: bool) -> StateDict:
    found: StateDict = {}
    for name, value in weights.items():
        new = translated(name, _NAMES, backwards)
        if new is None:
            side = "open_clip's CLIP" if backwards else "Hugging Face's CLIPModel"
            raise HypvisionError(
                f"'{name}' is not a weight of {side}, so the checkpoint cannot be converted."
            )
        found[new] = value.T.contiguous() if any(name in pair for pair in _TRANSPOSED) else value
    return found


def from_hugging_face(weights: Weights) -> StateDict:
    """Return open_clip's state dict for Hugging Face's ``weights``, of both towers or of one
    alone."""
    packed: dict[str, StateDict] = {}
    rest = {}
    for name, value in weights.items():
        match = _PACKED.fullmatch(name)
        if match:
            packed.setdefault(f"{match[1]}attn.in_proj_{match[3]}", {})[match[2]] = value
        elif not name.endswith("embeddings.position_ids"):
            rest[name] = value
        elif not torch.equal(value.flatten(), torch.arange(value.numel(), device=value.device)):
            raise HypvisionError(
                f"The checkpoint's '{name}' are not 0, 1, 2, ..., as open_clip's CLIP numbers the "
                "positions of tokens. Take an intact copy."
            )
    found = _convert(rest, backwards=False)
    for name, parts in packed.items():
        lacking = sorted(set("qkv") - set(parts))
        if lacking:
            raise HypvisionError(
                f"'{name.partition('attn.')[0]}' lacks {lacking[0]}_proj. Take an intact copy."
            )
        for old, new in _TOWERS:
            if name.startswith(old):
                found[new + name[len(old) :]] = torch.cat([parts[part] for part in "qkv"])
    return found


def to_hugging_face(weights: Weights) -> StateDict:
    """Return Hugging Face's state dict for that of open_clip's ``CLIP`` with two plain
    transformers, the inverse of :func:`from_hugging_face`."""
    rest = {}
    found = {}
    for name, value in weights.items():
        kind = name.rpartition("attn.in_proj_")[2]
        if kind in ("weight", "bias"):
            old, new = next((new, old) for old, new in _TOWERS[::-1] if name.startswith(new))
            block = name[len(old) :].partition(".")[0]
            for part, rows in zip("qkv", value.chunk(3)):
                found[f"{new}{block}.self_attn.{part}_proj.{kind}"] = rows.contiguous()
        else:
            rest[name] = value
    return {**_convert(rest, backwards=True), **found}


def clip_variant(weights: Weights) -> tuple[str, Plain]:
    """Return open_clip's name of the architecture of OpenAI that the weights have, and the
    arguments of :func:`~hypvision.clip.models.create_clip` that it needs."""
    patches = weights.get("visual.conv1.weight")
    places = weights.get("visual.positional_embedding")
    if patches is not None and places is not None:
        width, _, size, _ = patches.shape
        side = round((len(places) - 1) ** 0.5) * size
        known = {(768, 32, 224): "ViT-B-32", (768, 16, 224): "ViT-B-16", (1024, 14,
        224): "ViT-L-14",
                 (1024, 14, 336): "ViT-L-14-336"}  # fmt: skip
        if (width, size, side) in known:
            return known[width, size, side], {"force_quick_gelu": True}
    raise HypvisionError(
        "The weights are of none of OpenAI's CLIP models (ViT-B-32, ViT-B-16, ViT-L-14, "
        "ViT-L-14-336). Take a checkpoint of one of these."
    )

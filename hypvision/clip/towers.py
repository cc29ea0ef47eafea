"""The transformer towers of open_clip models, seen alike: where their blocks are, how text and images are encoded.

:func:`encode_text` cuts prompts to the longest one, which changes nothing under a causal mask and saves most of the
work; :func:`encode_dense` gives an embedding for every patch, as CAT-Seg takes them from CLIP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from hypvision.errors import HypvisionError

__all__ = ["Tower", "encode_dense", "encode_text", "find_towers", "patch_size", "vision_tower"]


@dataclass(frozen=True)
class Tower:
    """One transformer of a model.

    Attributes:
        kind: ``"text"`` or ``"vision"``.
        trunk: the module whose ``forward`` runs the blocks.
        blocks: the blocks in order.
        family: ``"open_clip"`` or ``"timm"``.
    """

    kind: str
    trunk: nn.Module
    blocks: nn.ModuleList | nn.Sequential
    family: str

    @property
    def packed_name(self) -> str:
        """Name of the packed q, k, v projection in its owner."""
        return "weight" if self.family == "timm" else "in_proj_weight"

    def owner(self, block: nn.Module) -> nn.Module:
        """The module that holds the packed projection of a block."""
        return block.attn.qkv if self.family == "timm" else block.attn

    def frozen(self, block: nn.Module) -> nn.Parameter:
        """The packed projection (3d, d) of a block as it was loaded, under whatever parametrises it."""
        owner = self.owner(block)
        if parametrize.is_parametrized(owner, self.packed_name):
            return owner.parametrizations[self.packed_name].original
        return owner._parameters[self.packed_name]

    def values(self, block: nn.Module, x: Tensor) -> Tensor:
        """What the attention of an open_clip block mixes: the value projection of the normalised tokens (..., d)."""
        owner, dim = self.owner(block), x.shape[-1]
        if (adapt := getattr(owner, "map_value_input", None)) is not None:  # set by an adapter of the inputs
            x = adapt(x)
        bias = None if owner.in_proj_bias is None else owner.in_proj_bias[2 * dim :]
        return F.linear(x, getattr(owner, self.packed_name)[2 * dim :].to(x.dtype), bias)

    @property
    def width(self) -> int:
        """Length of a token."""
        return self.frozen(self.blocks[0]).shape[1]


def find_towers(model: nn.Module) -> list[Tower]:
    """The transformer towers of an open_clip model (of a text or an image tower alone, too), text first."""
    found = []
    text = getattr(model, "text", None)
    text = model if text is None else text  # CustomTextCLIP keeps it apart, CLIP has its parts itself
    transformer = getattr(text, "transformer", None)
    if hasattr(transformer, "resblocks") and hasattr(text, "token_embedding"):
        found.append(Tower("text", transformer, transformer.resblocks, "open_clip"))
    visual = getattr(model, "visual", model)
    transformer = getattr(visual, "transformer", None)
    if hasattr(transformer, "resblocks") and hasattr(visual, "conv1"):
        found.append(Tower("vision", transformer, transformer.resblocks, "open_clip"))
    trunk = getattr(visual, "trunk", None)
    blocks = getattr(trunk, "blocks", None)
    if blocks is not None and len(blocks) and hasattr(getattr(blocks[0], "attn", None), "qkv"):
        found.append(Tower("vision", trunk, blocks, "timm"))
    return found


def vision_tower(model: nn.Module) -> Tower:
    """The image tower.

    Raises:
        HypvisionError: it is not a ViT.
    """
    for tower in find_towers(model):
        if tower.kind == "vision":
            return tower
    raise HypvisionError(
        f"The image tower of {type(model).__name__} is not a ViT of open_clip or timm, so it has no patches to segment "
        "by. Use a model such as ViT-B-16."
    )


def patch_size(model: nn.Module) -> tuple[int, int]:
    """Height and width of a patch in pixels."""
    tower = vision_tower(model)
    if tower.family == "timm":
        return tuple(tower.trunk.patch_embed.patch_size)
    return tuple(model.visual.conv1.kernel_size)


# Text -----------------------------------------------------------------------------------------------------------------


def encode_text(model: nn.Module, tokens: Tensor, normalize: bool = False, cut: bool = True) -> Tensor:
    """Text embeddings as ``model.encode_text`` gives them, for less work.

    Args:
        model: an open_clip model.
        tokens: (T, L) token numbers.
        normalize: to unit length.
        cut: drop what stands behind the end of the longest text, where that cannot change the result: under a causal
            mask no token sees what follows it.

    Returns:
        (T, E)
    """
    text = getattr(model, "text", model)
    causal = getattr(text, "attn_mask", None) is not None and getattr(text, "cls_emb", None) is None
    pool = getattr(text, "pool_type", None) or getattr(text, "text_pool_type", None)
    if not (cut and causal and pool in ("argmax", "eos") and not getattr(text, "use_pad_mask", False)):
        return model.encode_text(tokens, normalize=normalize)
    if pool == "argmax":
        end = tokens.argmax(-1)
    else:
        end = (tokens == (getattr(text, "eos_id", None) or getattr(text, "text_eos_id", None))).int().argmax(-1)
    length = int(end.max()) + 1
    x = text.token_embedding(tokens[:, :length]).to(text.transformer.get_cast_dtype())
    x = x + text.positional_embedding[:length].to(x.dtype)
    x = text.transformer(x, attn_mask=text.attn_mask[:length, :length])
    x = text.ln_final(x[torch.arange(len(x), device=x.device), end])  # a norm of tokens: the others are not needed
    projection = text.text_projection
    if projection is not None:
        x = projection(x) if isinstance(projection, nn.Module) else x @ projection
    return F.normalize(x, dim=-1) if normalize else x


# Images ---------------------------------------------------------------------------------------------------------------


def encode_dense(
    model: nn.Module, images: Tensor, hooks: tuple[int, ...] = (), checkpointing: bool = False
) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """An embedding for every patch, in the space of the text embeddings.

    For open_clip's ViT this is CAT-Seg's dense mode: the last block uses its value path alone, without mixing tokens,
    and adds the class token (not the patch's own) as the residual. For timm's ViT (SigLIP), which has no class token,
    all blocks run as they are and the attention pooling is applied to each patch by itself; that is our own choice.

    Args:
        model: an open_clip model with a ViT image tower, adapted or not.
        images: (B, 3, H, W), normalised; sides are multiples of the patch size.
        hooks: numbers of blocks whose patch tokens are wanted, too.
        checkpointing: compute the blocks again in backward instead of keeping their activations.

    Returns:
        Embeddings (B, E, h, w), not normalised; the hooked maps (B, width, h, w); the embedding of the class token
        (B, E), None where there is none.

    Raises:
        HypvisionError: the image is smaller than a patch or no multiple of it.
    """
    tower = vision_tower(model)
    rows, columns = patch_size(model)
    height, width = images.shape[-2:]
    if height < rows or width < columns:
        raise HypvisionError(f"The image has {height} x {width} pixels, less than one patch of {rows} x {columns}.")
    if height % rows or width % columns:
        raise HypvisionError(
            f"The image has {height} x {width} pixels, no multiple of the patch of {rows} x {columns}. Resize it first."
        )
    grid = (height // rows, width // columns)
    if bad := [number for number in hooks if not 0 <= number < len(tower.blocks)]:
        raise HypvisionError(f"There is no image block {bad[0]}: the tower has blocks 0 to {len(tower.blocks) - 1}.")
    run = _timm_dense if tower.family == "timm" else _open_clip_dense
    return run(model, tower, images, grid, hooks, checkpointing and torch.is_grad_enabled())


def _as_map(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    return tokens.transpose(1, 2).unflatten(2, grid)


def resize_positions(table: Tensor, grid: tuple[int, int], old: tuple[int, int]) -> Tensor:
    """Position embeddings (1 + h w, D) for another grid: bicubic, corners not aligned, without antialiasing.

    That is CAT-Seg's resize; open_clip's own antialiases.
    """
    if grid == old:
        return table
    patches = table[1:].T.reshape(1, -1, *old)
    patches = F.interpolate(patches.float(), grid, mode="bicubic", align_corners=False).to(table.dtype)
    return torch.cat([table[:1], patches.flatten(2)[0].T])


def _open_clip_dense(
    model: nn.Module, tower: Tower, images: Tensor, grid: tuple[int, int], hooks: tuple[int, ...], checkpointing: bool
) -> tuple[Tensor, list[Tensor], Tensor]:
    visual: Any = model.visual
    x = visual.conv1(images.to(visual.conv1.weight.dtype)).flatten(2).transpose(1, 2)
    x = torch.cat([visual.class_embedding.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
    x = visual.ln_pre(x + resize_positions(visual.positional_embedding, grid, visual.grid_size).to(x.dtype))
    maps: dict[int, Tensor] = {}
    for number, block in enumerate(tower.blocks[:-1]):
        x = checkpoint(block, x, use_reentrant=False) if checkpointing else block(x)
        if number in hooks:
            maps[number] = _as_map(x[:, 1:], grid)
    block: Any = tower.blocks[-1]
    owner = tower.owner(block)
    y = tower.values(block, block.ln_1(x))
    # What else stands between the values and the residual in open_clip's own Attention.
    y = getattr(owner, "ln_inner", nn.Identity())(y)
    y = getattr(block, "ln_attn", nn.Identity())(owner.out_proj(y))
    y = block.ls_1(y) + x[:, :1]
    y = y + block.ls_2(block.mlp(block.ln_2(y)))
    if len(tower.blocks) - 1 in hooks:
        maps[len(tower.blocks) - 1] = _as_map(y[:, 1:], grid)
    y = visual.ln_post(y)
    if visual.proj is not None:
        y = y @ visual.proj
    return _as_map(y[:, 1:], grid), [maps[number] for number in hooks], y[:, 0]


def _timm_dense(
    model: nn.Module, tower: Tower, images: Tensor, grid: tuple[int, int], hooks: tuple[int, ...], checkpointing: bool
) -> tuple[Tensor, list[Tensor], None]:
    trunk: Any = tower.trunk
    x = trunk.patch_embed.proj(images.to(trunk.patch_embed.proj.weight.dtype)).flatten(2).transpose(1, 2)
    x = trunk.patch_embed.norm(x)
    if trunk.cls_token is not None or trunk.pos_embed is None:
        raise HypvisionError("The dense mode of timm's image towers is for those without a class token (SigLIP).")
    prefix, old = trunk.num_prefix_tokens, tuple(trunk.patch_embed.grid_size)
    table = trunk.pos_embed[0]
    extra = len(table) - old[0] * old[1]  # of register tokens
    patches = resize_positions(torch.cat([table[:1], table[extra:]]), grid, old)[1:]
    x = x + patches.to(x.dtype)
    if prefix:
        registers = trunk.reg_token[0] + (table[:extra] if extra else 0)
        x = torch.cat([registers.to(x.dtype).expand(len(x), -1, -1), x], dim=1)
    x = trunk.norm_pre(x)
    maps: dict[int, Tensor] = {}
    for number, block in enumerate(tower.blocks):
        x = checkpoint(block, x, use_reentrant=False) if checkpointing else block(x)
        if number in hooks:
            maps[number] = _as_map(x[:, prefix:], grid)
    x = trunk.norm(x[:, prefix:])
    if trunk.attn_pool is not None:
        x = trunk.attn_pool(x.flatten(0, 1)[:, None]).unflatten(0, x.shape[:2])
    x = model.visual.head(trunk.head(trunk.fc_norm(x)))
    return _as_map(x, grid), [maps[number] for number in hooks], None

"""The transformer towers of open_clip models, seen alike: where their blocks are, how text and images are encoded.

:func:`encode_text` cuts prompts to the longest one, which changes nothing under a causal mask and saves most of the
work; :func:`encode_dense` gives an embedding for every patch, as CAT-Seg takes them from CLIP. All three functions take
learned tokens (:class:`PromptTokens`) that join the sequences at the layers they are for; :func:`set_prompts` makes a
model give them by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from hypvision.errors import HypvisionError


@dataclass(frozen=True)
class Tower:
    """One transformer of a model.

    Attributes:
        modality: ``"text"`` or ``"vision"``.
        trunk: the module whose ``forward`` runs the blocks.
        blocks: the blocks in order.
        family: ``"open_clip"`` or ``"timm"``.
    """

    modality: str
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
    text = model if text is None else text  # CustomTextCLIP keeps it apart, CLIP has its modules itself
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


def embedding_size(model: nn.Module) -> int:
    """Length of an embedding: both towers end in the same space; the text tower says its size without running."""
    text = getattr(model, "text", model)
    projection = text.text_projection
    if isinstance(projection, nn.Linear):
        return projection.out_features
    return text.ln_final.weight.shape[0] if projection is None else projection.shape[1]


def vision_tower(model: nn.Module) -> Tower:
    """The image tower.

    Raises:
        HypvisionError: it is not a ViT.
    """
    for tower in find_towers(model):
        if tower.modality == "vision":
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


def fixed_size(model: nn.Module) -> tuple[int, int] | None:
    """Height and width of the images that the tower has learned positions for; None: it takes any."""
    visual = getattr(model, "visual", None)
    trunk = getattr(visual, "trunk", None)  # of timm
    flexible = getattr(trunk, "dynamic_img_size", False) or getattr(trunk, "pos_embed", None) is None
    size = getattr(visual, "image_size", None)
    if size is None or (flexible and not hasattr(visual, "positional_embedding") and not hasattr(visual, "attnpool")):
        return None
    return (size, size) if isinstance(size, int) else tuple(size)


# Learned tokens -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PromptTokens:
    """Learned tokens of one tower, by the number of the block that they are an input of.

    In a text they stand behind the first token, among images behind the last patch. The first set joins the sequence,
    which grows; each later one takes the place of what the set before has become; at blocks without a set the tokens
    run on. So ``{0: ctx}`` is CoOp's context and shallow visual prompts, ``{0: ..., 1: ..., 8: ...}`` the deep prompts
    of MaPLe, IVLP and PromptSRC, and a first key above 0 tokens that join later. Tokens of block 0 come before the
    norm of an image tower, and get positions in a text with a causal mask; others have none.

    Attributes:
        layers: block number -> tokens (n, width), or (B, n, width) where each sequence has its own (CoCoOp, classes
            with a context each).
        overwrite: the first set takes the place of n tokens that stand there already, CoOp's placeholder words, so that
            the sequence does not grow. For texts.
    """

    layers: Mapping[int, Tensor]
    overwrite: bool = False

    def check(self, tower: Tower) -> None:
        """Raises:
        HypvisionError: a block that the tower does not have, or tokens of another width.
        """
        for number, tokens in self.layers.items():
            if not 0 <= number < len(tower.blocks):
                raise HypvisionError(
                    f"There are prompt tokens for the {tower.modality} block {number}: the tower has blocks 0 to "
                    f"{len(tower.blocks) - 1}."
                )
            if tokens.dim() not in (2, 3) or tokens.shape[-1] != tower.width:
                raise HypvisionError(
                    f"Tokens of the {tower.modality} block {number} have the shape {tuple(tokens.shape)} instead of "
                    f"(n, {tower.width}) or (B, n, {tower.width})."
                )


def set_prompts(model: nn.Module, provider: Callable[[str], PromptTokens | None] | None) -> None:
    """Let :func:`encode_text`, :func:`encode_image` and :func:`encode_dense` ask for prompts in each call.

    open_clip's own ``model.encode_text`` and ``model.encode_image`` know nothing of them.

    Args:
        model: an open_clip model.
        provider: gives the tokens of the tower ``"text"`` or ``"vision"``, None for none; a method of a module, say, so
            that copies of the model have their own. None: as before.
    """
    model.__dict__.pop("prompt_provider", None)
    if provider is not None:
        model.__dict__["prompt_provider"] = provider


class _Sequence:
    """Tokens (B, L, width) on their way through a tower, and where the prompts among them are."""

    def __init__(self, model: nn.Module, tower: Tower, prompts: PromptTokens | None):
        provider = model.__dict__.get("prompt_provider")
        if prompts is None and provider is not None:
            prompts = provider(tower.modality)
        if prompts is not None:
            prompts.check(tower)
        self.layers = {} if prompts is None else prompts.layers
        self.overwrite = prompts is not None and prompts.overwrite
        self.text, self.present, self.grown = tower.modality == "text", 0, 0

    def enter(self, number: int, x: Tensor) -> Tensor:
        """The input of a block, with the tokens that are for it."""
        tokens = self.layers.get(number)
        if tokens is None:
            return x
        count, leaves = tokens.shape[-2], self.present
        if self.overwrite and not self.present:
            leaves = count
        if leaves > x.shape[1] - 1:
            raise HypvisionError(f"{leaves} prompt tokens cannot overwrite those of sequences of {x.shape[1]}.")
        start = 1 if self.text else x.shape[1] - leaves
        tokens = tokens.to(x.dtype).expand(len(x), -1, -1)
        self.present, self.grown = count, self.grown + count - leaves
        return torch.cat([x[:, :start], tokens, x[:, start + leaves :]], dim=1)

    def leave(self, x: Tensor) -> Tensor:
        """Images without the prompts."""
        return x[:, : x.shape[1] - self.present]


# Text -----------------------------------------------------------------------------------------------------------------


def _tell_dtype(text: nn.Module) -> None:
    """open_clip asks the first layer for its dtype; one that PyTorch has quantised does not say it."""
    blocks = getattr(getattr(text, "transformer", None), "resblocks", None)
    first = blocks[0].mlp.c_fc if blocks is not None and hasattr(blocks[0], "mlp") else None
    if callable(getattr(first, "weight", None)):
        first.int8_original_dtype = torch.float32


def encode_text(
    model: nn.Module,
    tokens: Tensor,
    normalize: bool = False,
    cut: bool = True,
    prompts: PromptTokens | None = None,
    embeddings: Tensor | None = None,
) -> Tensor:
    """Text embeddings as ``model.encode_text`` gives them, for less work.

    Args:
        model: an open_clip model.
        tokens: (T, L) token numbers.
        normalize: to unit length.
        cut: drop what stands behind the end of the longest text, where that cannot change the result: under a causal
            mask no token sees what follows it.
        prompts: learned tokens; default: what the model gives (:func:`set_prompts`).
        embeddings: (T, L, width) in place of those of the tokens, which still say where a text ends; for learned words
            anywhere in it.

    Returns:
        (T, E)

    Raises:
        HypvisionError: prompts that do not fit the tower, or make a text longer than it has positions.
    """
    text = getattr(model, "text", model)
    _tell_dtype(text)
    causal, pool = _causal(text), _pool(text)
    known = causal and pool in ("argmax", "eos") and not getattr(text, "use_pad_mask", False)
    tower = next((tower for tower in find_towers(model) if tower.modality == "text"), None)
    sequence = None if tower is None else _Sequence(model, tower, prompts)
    prompted = prompts is not None or embeddings is not None or (sequence is not None and bool(sequence.layers))
    if not prompted and not (cut and known):
        return model.encode_text(tokens, normalize=normalize)
    masked = getattr(text, "cls_emb", None) is not None or getattr(text, "use_pad_mask", False)
    if sequence is None or masked or pool not in ("argmax", "eos", "first", "last"):
        raise HypvisionError(f"The text tower of {type(model).__name__} is of a kind that takes no prompt tokens.")
    if pool in ("argmax", "eos"):
        end = _end(text, tokens)
    else:
        end = torch.full(tokens.shape[:1], 0 if pool == "first" else tokens.shape[1] - 1, device=tokens.device)
    length = int(end.max()) + 1 if cut and known else tokens.shape[1]
    x = text.token_embedding(tokens[:, :length]) if embeddings is None else embeddings[:, :length]
    x = x.to(text.transformer.get_cast_dtype())
    positions = text.positional_embedding.to(x.dtype)
    if causal:
        x = sequence.enter(0, x)
        if x.shape[1] > len(positions):
            raise HypvisionError(
                f"Texts of {length} tokens and {sequence.present} prompt tokens do not fit into the {len(positions)} "
                "positions of the text tower. Use shorter texts or fewer prompt tokens."
            )
        x = x + positions[: x.shape[1]]
    else:  # a text that is always of full length
        x = sequence.enter(0, x + positions[: x.shape[1]])
    if sequence.layers:
        again = bool(getattr(text.transformer, "grad_checkpointing", False))
        for number, block in enumerate(tower.blocks):
            x = sequence.enter(number, x) if number else x
            mask = _mask(text, x)
            if number == len(tower.blocks) - 1 and _is_plain(block):
                x = _at_one_place(block, x, end if pool == "first" else end + sequence.grown, mask)
            else:
                x = checkpoint(block, x, attn_mask=mask, use_reentrant=False) if again else block(x, attn_mask=mask)
    else:
        x = text.transformer(x, attn_mask=_mask(text, x))
    if x.dim() == 3:
        end = end if pool == "first" else end + sequence.grown
        x = x[torch.arange(len(x), device=x.device), end]
    x = _project(text, x)
    return F.normalize(x, dim=-1) if normalize else x


def encode_packed(model: nn.Module, tokens: Tensor, normalize: bool = False) -> Tensor:
    """:func:`encode_text` without padding: texts stand one behind the other in sequences of about as many tokens as the
    tower is wide (there attention costs a sixth of a block), and each sees itself alone.

    Args:
        model: an open_clip model. One without prompts, whose text tower is causal and pooled at the end of a text; for
            others texts are padded.
        tokens: (T, L) token numbers.
        normalize: to unit length.

    Returns:
        (T, E)
    """
    text = getattr(model, "text", model)
    plain = _causal(text) and _pool(text) in ("argmax", "eos") and not getattr(text, "use_pad_mask", False)
    if not plain or model.__dict__.get("prompt_provider") is not None:
        return encode_text(model, tokens, normalize)
    lengths = _end(text, tokens) + 1
    sequence = (lengths.cumsum(0) - 1) // text.positional_embedding.shape[1]
    found = []
    for part, size in zip(*(x.split(sequence.unique_consecutive(return_counts=True)[1].tolist())
                            for x in (tokens, lengths))):  # fmt: skip
        own, place = (torch.arange(part.shape[1], device=part.device) < size[:, None]).nonzero(as_tuple=True)
        x = text.token_embedding(part[own, place]).to(text.transformer.get_cast_dtype())
        x = x + text.positional_embedding.to(x.dtype)[place]
        seen = (own[:, None] == own) & (place[:, None] >= place)
        mask = torch.zeros(seen.shape, dtype=x.dtype, device=x.device).masked_fill_(~seen, float("-inf"))
        found.append(_project(text, text.transformer(x[None], attn_mask=mask)[0, size.cumsum(0) - 1]))
    x = torch.cat(found)
    return F.normalize(x, dim=-1) if normalize else x


def _causal(text: Any) -> bool:
    return getattr(text, "attn_mask", None) is not None and getattr(text, "cls_emb", None) is None


def _pool(text: Any) -> str | None:
    return getattr(text, "pool_type", None) or getattr(text, "text_pool_type", None)


def _end(text: Any, tokens: Tensor) -> Tensor:
    """Places (T,) of the ends of texts that are pooled there."""
    number = getattr(text, "eos_id", None) or getattr(text, "text_eos_id", None)
    return (tokens if _pool(text) == "argmax" else (tokens == number).int()).argmax(-1)


def _project(text: Any, x: Tensor) -> Tensor:
    """Embeddings (T, E) of the tokens that texts are pooled at; the norm is one of tokens, so no others are needed."""
    x, projection = text.ln_final(x), text.text_projection
    if projection is None:
        return x
    return projection(x) if isinstance(projection, nn.Module) else x @ projection


def _is_plain(block: nn.Module) -> bool:
    """Whether a block is open_clip's own, with nothing that listens to its tokens or replaces its attention."""
    own = type(block).__module__.startswith("open_clip.") and type(block).__name__ == "ResidualAttentionBlock"
    if not own or not isinstance(block.attn, nn.MultiheadAttention) or "forward" in vars(block.attn):
        return False
    return not any(module._forward_hooks or module._forward_pre_hooks for module in block.modules())


def _at_one_place(block: Any, x: Tensor, places: Tensor, mask: Tensor | None = None) -> Tensor:
    """What a block gives at one place of each sequence: all that the pooling after the last block looks at.

    Args:
        block: see :func:`_is_plain`.
        x: (B, L, width)
        places: (B,)
        mask: (L, L), added to the attention.

    Returns:
        (B, width)
    """
    rows = torch.arange(len(x), device=x.device)
    y = block.ln_1(x)
    if mask is not None:
        mask = mask[places][:, None].repeat_interleave(block.attn.num_heads, 0)
    one = x[rows, places][:, None] + block.ls_1(block.attention(y[rows, places][:, None], y, y, mask))
    return (one + block.ls_2(block.mlp(block.ln_2(one))))[:, 0]


def _mask(text: Any, x: Tensor) -> Tensor | None:
    """The causal mask of a text tower, for sequences of any length."""
    mask, size = getattr(text, "attn_mask", None), x.shape[1]
    if mask is None or size <= len(mask):
        return mask if mask is None else mask[:size, :size]
    return torch.full((size, size), float("-inf"), device=x.device).triu_(1)


# Images ---------------------------------------------------------------------------------------------------------------


def encode_image(
    model: nn.Module, images: Tensor, normalize: bool = False, prompts: PromptTokens | None = None
) -> Tensor:
    """Image embeddings as ``model.encode_image`` gives them, with learned tokens where there are any.

    Args:
        model: an open_clip model.
        images: (B, 3, H, W), normalised, of the model's size.
        normalize: to unit length.
        prompts: learned tokens; default: what the model gives (:func:`set_prompts`). They are gone before the pooling.

    Returns:
        (B, E)

    Raises:
        HypvisionError: prompts for a tower that is not a ViT, or that do not fit it.
    """
    if prompts is None and "prompt_provider" not in model.__dict__:
        return model.encode_image(images, normalize=normalize)
    tower, visual = vision_tower(model), model.visual
    sequence = _Sequence(model, tower, prompts)
    if tower.family == "timm":
        trunk: Any = tower.trunk
        x = trunk.patch_drop(trunk._pos_embed(trunk.patch_embed(images.to(trunk.patch_embed.proj.weight.dtype))))
        x = _run_blocks(tower, trunk.norm_pre(sequence.enter(0, x)), sequence, trunk.grad_checkpointing)
        x = visual.head(trunk.forward_head(trunk.norm(sequence.leave(x))))
    else:
        x = visual.patch_dropout(_embed_patches(visual, images, visual.grid_size))
        x = visual.ln_pre(sequence.enter(0, x))
        if sequence.layers and _pools_first(visual) and _is_plain(tower.blocks[-1]):
            last = len(tower.blocks) - 1
            x = _run_blocks(tower, x, sequence, tower.trunk.grad_checkpointing, stop=last)
            x = _at_one_place(tower.blocks[last], sequence.enter(last, x), x.new_zeros(len(x), dtype=torch.long))
            x = visual._pool(x[:, None])[0]
        else:
            x = _run_blocks(tower, x, sequence, tower.trunk.grad_checkpointing)
            x = visual._pool(sequence.leave(x))[0]
        x = x if visual.proj is None else x @ visual.proj
    return F.normalize(x, dim=-1) if normalize else x


def _pools_first(visual: Any) -> bool:
    """Whether an embedding is made of the class token alone."""
    return visual.attn_pool is None and visual.pool_type == "tok"


def _embed_patches(visual: Any, images: Tensor, grid: tuple[int, int]) -> Tensor:
    """Class token and patches with positions, (B, 1 + h w, width)."""
    x = visual.conv1(images.to(visual.conv1.weight.dtype)).flatten(2).transpose(1, 2)
    x = torch.cat([visual.class_embedding.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
    return x + resize_positions(visual.positional_embedding, grid, visual.grid_size).to(x.dtype)


def _run_blocks(
    tower: Tower,
    x: Tensor,
    sequence: _Sequence,
    checkpointing: bool,
    stop: int | None = None,
    hook: Callable[[int, Tensor], None] = lambda number, x: None,
) -> Tensor:
    """The blocks of an image tower, up to ``stop``; ``hook`` sees what each gives, without prompts."""
    for number, block in enumerate(tower.blocks[:stop]):
        x = sequence.enter(number, x) if number else x
        x = checkpoint(block, x, use_reentrant=False) if checkpointing else block(x)
        hook(number, sequence.leave(x))
    return x


def encode_dense(
    model: nn.Module,
    images: Tensor,
    hooks: tuple[int, ...] = (),
    checkpointing: bool = False,
    prompts: PromptTokens | None = None,
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
        prompts: learned tokens; default: what the model gives (:func:`set_prompts`).

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
    sequence = _Sequence(model, tower, prompts)
    return run(model, tower, images, grid, hooks, checkpointing and torch.is_grad_enabled(), sequence)


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
    model: nn.Module,
    tower: Tower,
    images: Tensor,
    grid: tuple[int, int],
    hooks: tuple[int, ...],
    checkpointing: bool,
    sequence: _Sequence,
) -> tuple[Tensor, list[Tensor], Tensor]:
    visual: Any = model.visual
    maps: dict[int, Tensor] = {}

    def keep(number: int, x: Tensor) -> None:
        if number in hooks:
            maps[number] = _as_map(x[:, 1:], grid)

    x = visual.ln_pre(sequence.enter(0, _embed_patches(visual, images, grid)))
    x = sequence.leave(_run_blocks(tower, x, sequence, checkpointing, -1, keep))
    block: Any = tower.blocks[-1]
    owner = tower.owner(block)
    y = tower.values(block, block.ln_1(x))
    # What else stands between the values and the residual in open_clip's own Attention.
    y = getattr(owner, "ln_inner", nn.Identity())(y)
    y = getattr(block, "ln_attn", nn.Identity())(owner.out_proj(y))
    y = block.ls_1(y) + x[:, :1]
    y = y + block.ls_2(block.mlp(block.ln_2(y)))
    keep(len(tower.blocks) - 1, y)
    y = visual.ln_post(y)
    if visual.proj is not None:
        y = y @ visual.proj
    return _as_map(y[:, 1:], grid), [maps[number] for number in hooks], y[:, 0]


def _timm_dense(
    model: nn.Module,
    tower: Tower,
    images: Tensor,
    grid: tuple[int, int],
    hooks: tuple[int, ...],
    checkpointing: bool,
    sequence: _Sequence,
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
    maps: dict[int, Tensor] = {}

    def keep(number: int, x: Tensor) -> None:
        if number in hooks:
            maps[number] = _as_map(x[:, prefix:], grid)

    x = trunk.norm_pre(sequence.enter(0, x))
    x = sequence.leave(_run_blocks(tower, x, sequence, checkpointing, hook=keep))
    x = trunk.norm(x[:, prefix:])
    if trunk.attn_pool is not None:
        x = trunk.attn_pool(x.flatten(0, 1)[:, None]).unflatten(0, x.shape[:2])
    x = model.visual.head(trunk.head(trunk.fc_norm(x)))
    return _as_map(x, grid), [maps[number] for number in hooks], None

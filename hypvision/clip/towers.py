"""The transformer towers of open_clip models: their blocks, and how texts and images are encoded.

:func:`encode_text` cuts the padding after the longest text, which changes nothing under a causal
mask and saves most of the work; :func:`encode_dense` returns an embedding for every patch, as
CAT-Seg takes them from CLIP. These two and :func:`encode_image` accept learned tokens
(:class:`PromptTokens`) that join the sequences at given blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

from hypvision.io import HypvisionError, refuse

from .spaces import space_of

MANY_TEXTS = 4096  # a CPU takes about a minute for so many texts in a CLIP of usual size


@dataclass(frozen=True)
class Tower:
    """A transformer of a CLIP model.

    Attributes:
        modality: ``"text"`` or ``"vision"``.
        trunk: the module whose ``forward`` runs the blocks.
        blocks: the blocks of the transformer.
        family: the library of the transformer, ``"open_clip"`` or ``"timm"``.
    """

    modality: str
    trunk: Any
    blocks: nn.ModuleList | nn.Sequential
    family: str

    @property
    def packed_name(self) -> str:
        """Name of the packed projection to queries, keys and values in the module that holds it."""
        return "weight" if self.family == "timm" else "in_proj_weight"

    def owner(self, block: Any) -> nn.Module:
        """Return the module that holds the packed projection of a block."""
        return block.attn.qkv if self.family == "timm" else block.attn

    def frozen(self, block: nn.Module) -> nn.Parameter:
        """Return the packed projection ``(3d, d)`` of a block as loaded, below any
        parametrisation."""
        owner: Any = self.owner(block)
        if parametrize.is_parametrized(owner, self.packed_name):
            return owner.parametrizations[self.packed_name].original
        return owner._parameters[self.packed_name]

    def values(self, block: nn.Module, x: Tensor) -> Tensor:
        """Return the values of an open_clip block for its normalised tokens ``(..., d)``."""
        owner: Any = self.owner(block)
        dim = x.shape[-1]
        adapt = getattr(owner, "map_value_input", None)
        if adapt is not None:  # an adapter of the projection's inputs sets this method
            x = adapt(x)
        bias = None if owner.in_proj_bias is None else owner.in_proj_bias[2 * dim :]
        return F.linear(x, getattr(owner, self.packed_name)[2 * dim :].to(x.dtype), bias)

    @property
    def width(self) -> int:
        """Length of a token's vector."""
        return self.frozen(self.blocks[0]).shape[1]


def text_part(model: nn.Module) -> Any:
    """Return the module with the text tower: a part of ``CustomTextCLIP``, but ``CLIP`` itself."""
    text = getattr(model, "text", None)
    return model if text is None else text


def find_towers(model: nn.Module) -> list[Tower]:
    """Return the transformer towers of an open_clip model (or of one tower alone), text first."""
    text = text_part(model)
    visual = getattr(model, "visual", model)
    found = []
    for modality, part, first in (("text", text, "token_embedding"), ("vision", visual, "conv1")):
        transformer = getattr(part, "transformer", None)
        if transformer is not None and hasattr(transformer, "resblocks") and hasattr(part, first):
            found.append(Tower(modality, transformer, transformer.resblocks, "open_clip"))
    trunk = getattr(visual, "trunk", None)
    blocks = getattr(trunk, "blocks", None)
    if blocks is not None and len(blocks) and hasattr(getattr(blocks[0], "attn", None), "qkv"):
        found.append(Tower("vision", trunk, blocks, "timm"))
    return found


def embedding_size(model: nn.Module) -> int:
    """Return the length of an embedding, read from the weights of the text tower."""
    text = text_part(model)
    projection = text.text_projection
    if isinstance(projection, nn.Linear):
        return projection.out_features
    return text.ln_final.weight.shape[0] if projection is None else projection.shape[1]


def logit_scale_of(model: Any) -> Tensor:
    """Return the logarithm of the scale of a CLIP's logits. UNCHA learns its own, for whole images
    and texts, and leaves ``logit_scale`` unused."""
    return getattr(model, "global_logit_scale", model.logit_scale)


def vision_tower(model: nn.Module) -> Tower:
    """Return the image tower, which must be a ViT; any other is an error."""
    for tower in find_towers(model):
        if tower.modality == "vision":
            return tower
    raise HypvisionError(
        f"The image tower of {type(model).__name__} is not a ViT of open_clip or timm, so it has "
        "no patches to segment by. Use a model such as ViT-B-16."
    )


def patch_size(model: Any) -> tuple[int, int]:
    """Return the height and width of a patch in pixels."""
    tower = vision_tower(model)
    rows, columns = (
        tower.trunk.patch_embed.patch_size
        if tower.family == "timm"
        else model.visual.conv1.kernel_size
    )
    return rows, columns


def fixed_size(model: nn.Module) -> tuple[int, int] | None:
    """Return the height and width that the image tower's positions need; None: any size will do."""
    visual = getattr(model, "visual", None)
    trunk = getattr(visual, "trunk", None)  # timm's ViT
    flexible = (
        getattr(trunk, "dynamic_img_size", False) or getattr(trunk, "pos_embed", None) is None
    )
    # timm's own method changes the size of the network inside alone.
    inner = getattr(getattr(trunk, "patch_embed", None), "img_size", None)
    size = inner or getattr(visual, "image_size", None)
    if size is None or (
        flexible and not hasattr(visual, "positional_embedding") and not hasattr(visual, "attnpool")
    ):
        return None
    return (size, size) if isinstance(size, int) else tuple(size)


def check_images(model: nn.Module, images: Tensor, advice: str) -> None:
    """Raise an error unless images are RGB, ``(B, 3, H, W)``, of the size that the image tower
    takes; ``advice`` says how to get there, with the place ``{}`` for the tower's height."""
    size = fixed_size(model)
    shape = tuple(images.shape)
    wanted = "H, W" if size is None else f"{size[0]}, {size[1]}"
    refuse(
        (
            len(shape) != 4 or shape[1] != 3 or not len(images),
            f"The images have the shape {shape}. Expected: (B, 3, {wanted}), RGB, of one image or "
            "more.",
        ),
        (
            size is not None and shape[-2:] != size,
            f"The images have {'x'.join(map(str, shape[-2:]))} pixels, and this CLIP takes "
            f"{'x'.join(map(str, size or ()))}. {advice.format((size or (0,))[0])}",
        ),
    )


# Learned tokens in the sequences of a tower
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PromptTokens:
    """Learned tokens of one tower: block number -> tokens ``(n, width)`` that join the input of the
    block, or ``(B, n, width)`` where each sequence has its own (CoCoOp, classes with a context
    each).

    In a text they stand after the first token, in an image after the last patch. The first set is
    added to the sequence, or with ``overwrite`` replaces n tokens that a text already contains,
    such as CoOp's placeholder words; each later set replaces the set before; blocks without a set
    process the tokens that are present. So ``{0: ctx}`` is CoOp's context or shallow visual
    prompts, ``{0: ..., 1: ..., 8: ...}`` the deep prompts of MaPLe, IVLP and PromptSRC, and with a
    first key above 0 the tokens join later. Tokens of block 0 join before the first norm of an
    image tower, and get positions in a text with a causal mask; other tokens get none.
    """

    layers: Mapping[int, Tensor]
    overwrite: bool = False

    def check(self, tower: Tower) -> None:
        """Raise an error for a block number that the tower does not have, or tokens of another
        width."""
        for number, tokens in self.layers.items():
            if not 0 <= number < len(tower.blocks):
                raise HypvisionError(
                    f"There is no {tower.modality} block {number}: the tower has blocks 0 to "
                    f"{len(tower.blocks) - 1}."
                )
            if tokens.dim() not in (2, 3) or tokens.shape[-1] != tower.width:
                raise HypvisionError(
                    f"Tokens of the {tower.modality} block {number} have the shape "
                    f"{tuple(tokens.shape)} instead of (n, {tower.width}) or (B, n, {tower.width})."
                )


class _Sequence:
    """Inserts learned tokens into sequences ``(B, L, width)`` on their way through a tower."""

    def __init__(self, tower: Tower, prompts: PromptTokens | None):
        prompts = PromptTokens({}) if prompts is None else prompts
        prompts.check(tower)
        self.layers = prompts.layers
        self.overwrite = prompts.overwrite
        self.text = tower.modality == "text"
        self.present = 0
        self.grown = 0

    def enter(self, number: int, x: Tensor) -> Tensor:
        """Return the input ``x`` of block ``number`` with the learned tokens of this block."""
        tokens = self.layers.get(number)
        if tokens is None:
            return x
        count = tokens.shape[-2]
        replaced = count if self.overwrite and not self.present else self.present
        if replaced > x.shape[1] - 1:
            raise HypvisionError(
                f"{replaced} prompt tokens cannot replace tokens in sequences of {x.shape[1]}. Use "
                "fewer prompt tokens."
            )
        start = 1 if self.text else x.shape[1] - replaced
        tokens = tokens.to(x.dtype).expand(len(x), -1, -1)
        self.present = count
        self.grown = self.grown + count - replaced
        return torch.cat([x[:, :start], tokens, x[:, start + replaced :]], dim=1)

    def leave(self, x: Tensor) -> Tensor:
        """Return image tokens without the learned tokens at their end."""
        return x[:, : x.shape[1] - self.present]


# Encoding texts
# --------------------------------------------------------------------------------------------------


def encode_text(
    model: Any,
    tokens: Tensor,
    normalize: bool = False,
    cut: bool = True,
    prompts: PromptTokens | None = None,
    embeddings: Tensor | None = None,
) -> Tensor:
    """Return text embeddings ``(T, E)`` of tokens ``(T, L)``, equal to those of
    ``model.encode_text`` but faster.

    Tokens in the memory of the host are cut to the longest text without waiting for a GPU.

    Args:
        normalize: return points of :func:`hypvision.clip.spaces.space_of` the model; those of a
            CLIP have unit length.
        cut: drop the padding after the longest text, where a causal mask makes this exact.
        prompts: learned tokens.
        embeddings: vectors ``(T, L, width)`` in place of the token embeddings; ``tokens`` still
            tell where each text ends.
    """
    text = text_part(model)
    _set_quantised_dtype(text)
    cut = cut and _can_be_cut(text)
    device = next(text.parameters()).device
    if prompts is None and embeddings is None and not cut:
        x = model.encode_text(tokens.to(device))
        return space_of(model).embed(x, "text") if normalize else x
    tower = _plain_text_tower(model)
    sequence = _Sequence(tower, prompts)
    end = _end(text, tokens)
    length = int(end.max()) + 1 if cut else tokens.shape[1]
    end = end.to(device)
    words = tokens.to(device)[:, :length]
    x = text.token_embedding(words) if embeddings is None else embeddings[:, :length]
    x = _enter_text(text, x.to(text.transformer.get_cast_dtype()), sequence)
    x = _run_text(tower, text, x, sequence, end)
    if x.dim() == 3:
        x = x[torch.arange(len(x), device=x.device), _pooled(text, end, sequence)]
    x = _project(text, x)
    return space_of(model).embed(x, "text") if normalize else x


def _enter_text(text: Any, x: Tensor, sequence: _Sequence) -> Tensor:
    """Return the input of the first block: embedded tokens with learned tokens and positions."""
    positions = text.positional_embedding.to(x.dtype)
    length = x.shape[1]
    if not _is_causal(text):  # without a causal mask texts have their full length
        return sequence.enter(0, x + positions[:length])
    x = sequence.enter(0, x)
    if x.shape[1] > len(positions):
        raise HypvisionError(
            f"Texts of {length} tokens and {sequence.present} prompt tokens do not fit into "
            f"the {len(positions)} positions of the text tower. Use shorter texts or fewer "
            "prompt tokens."
        )
    return x + positions[: x.shape[1]]


def _run_text(tower: Tower, text: Any, x: Tensor, sequence: _Sequence, end: Tensor) -> Tensor:
    """Return the tokens ``(T, L, width)`` after the last block, or ``(T, width)`` if that block
    computed only the pooled tokens."""
    if not sequence.layers:
        return text.transformer(x, attn_mask=_mask(text, x))
    again = bool(getattr(text.transformer, "grad_checkpointing", False))
    for number, block in enumerate(tower.blocks):
        x = sequence.enter(number, x) if number else x
        mask = _mask(text, x)
        if number == len(tower.blocks) - 1 and _is_plain(block):
            x = _at_one_place(block, x, _pooled(text, end, sequence), mask)
        elif again:
            x = checkpoint(block, x, attn_mask=mask, use_reentrant=False)
        else:
            x = block(x, attn_mask=mask)
    return x


def _pooled(text: Any, end: Tensor, sequence: _Sequence) -> Tensor:
    """Return the positions ``(T,)`` of the pooled tokens, which learned tokens before them
    shift."""
    return end if _pool(text) == "first" else end + sequence.grown


def encode_packed(model: nn.Module, tokens: Tensor, normalize: bool = False) -> Tensor:
    """Return what :func:`encode_text` returns, computed without padding: texts are packed into
    sequences of about as many tokens as the tower is wide (at this length attention costs a sixth
    of a block), and each text attends only to itself.

    Models whose text tower is not causal and pooled at the end of a text pad their texts. Tokens in
    the memory of the host are packed without waiting for a GPU.
    """
    text = text_part(model)
    if not _can_be_cut(text):
        return encode_text(model, tokens, normalize)
    lengths = _end(text, tokens) + 1
    sequence = (lengths.cumsum(0) - 1) // text.positional_embedding.shape[1]
    counts = sequence.unique_consecutive(return_counts=True)[1].tolist()
    found = []
    device = text.positional_embedding.device
    for part, size in zip(tokens.split(counts), lengths.split(counts)):
        own, place = (torch.arange(part.shape[1], device=part.device) < size[:, None]).nonzero(
            as_tuple=True
        )
        last = size.cumsum(0) - 1
        words, own, place, last = (rows.to(device) for rows in (part[own, place], own, place, last))
        x = text.token_embedding(words).to(text.transformer.get_cast_dtype())
        x = x + text.positional_embedding.to(x.dtype)[place]
        seen = (own[:, None] == own) & (place[:, None] >= place)
        mask = torch.zeros(seen.shape, dtype=x.dtype, device=x.device).masked_fill_(
            ~seen, float("-inf")
        )
        found.append(_project(text, text.transformer(x[None], attn_mask=mask)[0, last]))
    embedded = torch.cat(found)
    return space_of(model).embed(embedded, "text") if normalize else embedded


def _set_quantised_dtype(text: Any) -> None:
    """Set the dtype that open_clip asks the first layer for, which a layer quantised by PyTorch
    does not have."""
    blocks = getattr(getattr(text, "transformer", None), "resblocks", None)
    first: Any = blocks[0].mlp.c_fc if blocks is not None and hasattr(blocks[0], "mlp") else None
    if callable(getattr(first, "weight", None)):
        first.int8_original_dtype = torch.float32


def _is_causal(text: Any) -> bool:
    return getattr(text, "attn_mask", None) is not None and getattr(text, "cls_emb", None) is None


def _pool(text: Any) -> str | None:
    return getattr(text, "pool_type", None) or getattr(text, "text_pool_type", None)


def _can_be_cut(text: Any) -> bool:
    """Return whether embeddings of texts are independent of the tokens after each text's end."""
    return (
        _is_causal(text)
        and _pool(text) in ("argmax", "eos")
        and not getattr(text, "use_pad_mask", False)
    )


def _plain_text_tower(model: nn.Module) -> Tower:
    """Return the text tower, which must pool a token at a known position and mask no padding."""
    text = text_part(model)
    masked = getattr(text, "cls_emb", None) is not None or getattr(text, "use_pad_mask", False)
    plain = not masked and _pool(text) in ("argmax", "eos", "first", "last")
    for tower in find_towers(model) if plain else ():
        if tower.modality == "text":
            return tower
    raise HypvisionError(
        f"The text tower of {type(model).__name__} takes no prompt tokens. "
        "Use a model such as ViT-B-16."
    )


def _end(text: Any, tokens: Tensor) -> Tensor:
    """Return the positions ``(T,)`` of the pooled tokens, in most towers the ends of the texts."""
    pool = _pool(text)
    if pool == "argmax":
        return tokens.argmax(-1)
    if pool == "eos":
        return tokens.eq(getattr(text, "eos_id", None) or text.text_eos_id).int().argmax(-1)
    place = 0 if pool == "first" else tokens.shape[1] - 1
    return torch.full(tokens.shape[:1], place, device=tokens.device)


def _project(text: Any, x: Tensor) -> Tensor:
    """Return embeddings ``(T, E)`` of pooled tokens, which are normalised and projected."""
    x = text.ln_final(x)
    projection = text.text_projection
    if projection is None:
        return x
    return projection(x) if isinstance(projection, nn.Module) else x @ projection


def _is_plain(block: Any) -> bool:
    """Return whether a block is open_clip's own, without hooks or a replaced attention."""
    own = (
        type(block).__module__.startswith("open_clip.")
        and type(block).__name__ == "ResidualAttentionBlock"
    )
    if (
        not own
        or not isinstance(block.attn, nn.MultiheadAttention)
        or "forward" in vars(block.attn)
    ):
        return False
    return not any(module._forward_hooks or module._forward_pre_hooks for module in block.modules())


def _at_one_place(block: Any, x: Tensor, places: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the output ``(B, width)`` of a plain block at one position ``(B,)`` of each sequence
    ``(B, L, width)``, which is all that pooling after the last block needs. The mask ``(L, L)`` is
    added to the attention's scores."""
    rows = torch.arange(len(x), device=x.device)
    y = block.ln_1(x)
    if mask is not None:
        mask = mask[places][:, None].repeat_interleave(block.attn.num_heads, 0)
    one = x[rows, places][:, None] + block.ls_1(
        block.attention(y[rows, places][:, None], y, y, mask)
    )
    return (one + block.ls_2(block.mlp(block.ln_2(one))))[:, 0]


def _mask(text: Any, x: Tensor) -> Tensor | None:
    """Return the causal mask of a text tower for the length of ``x``; None for a tower without
    one."""
    mask = getattr(text, "attn_mask", None)
    size = x.shape[1]
    if mask is None or size <= len(mask):
        return mask if mask is None else mask[:size, :size]
    return torch.full((size, size), float("-inf"), device=x.device).triu_(1)


def token_lengths(tokens: Tensor) -> Tensor:
    """Return the numbers of tokens ``(T,)`` of texts ``(T, L)``, without open_clip's padding
    (0)."""
    places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    return torch.where(tokens != 0, places, 0).amax(-1)


def _batches(lengths: Tensor, budget: int) -> list[int]:
    """Return numbers of texts for batches of at most ``budget`` tokens each, padding included; the
    lengths of the texts are in rising order."""
    found = []
    rest = lengths.cpu()
    while len(rest):
        padded = rest[:budget] * torch.arange(1, len(rest[:budget]) + 1)
        found.append(max(1, int((padded <= budget).sum())))
        rest = rest[found[-1] :]
    return found


def encode_by_length(
    model: nn.Module, tokens: Tensor, normalize: bool = False, budget: int | None = None
) -> Tensor:
    """Return what :func:`encode_text` returns, computed in four parts of texts of similar lengths,
    or in batches of at most ``budget`` tokens, each cut to its longest text. Tokens in the memory
    of the host are sorted and cut without waiting for a GPU."""
    lengths = token_lengths(tokens)
    order = lengths.argsort(stable=True)
    size = max(1, -(-len(tokens) // 4)) if budget is None else _batches(lengths[order], budget)
    chunks = tokens[order].split(size)
    words: Sequence[Tensor | None] = [None] * len(chunks)
    text = text_part(model)
    device = next(text.parameters()).device
    if torch.is_grad_enabled() and _can_be_cut(text) and text.token_embedding.weight.requires_grad:
        # Embed the words of all parts at once: each part would add a gradient as large as the table
        # of words, almost all of it 0.
        longest = int(lengths.max())
        words = text.token_embedding(tokens[order, :longest].to(device)).split(size)
    parts = []
    shown = None if len(tokens) > MANY_TEXTS else True  # None: a progress bar on a terminal
    with tqdm(total=len(tokens), desc="texts", disable=shown, leave=False) as bar:
        for chunk, embedded in zip(chunks, words):
            parts.append(encode_text(model, chunk, embeddings=embedded))
            bar.update(len(chunk))
    found = torch.cat(parts)[order.argsort().to(device)]
    return space_of(model).embed(found, "text") if normalize else found


# Encoding images
# --------------------------------------------------------------------------------------------------


def encode_image(
    model: Any, images: Tensor, normalize: bool = False, prompts: PromptTokens | None = None
) -> Tensor:
    """Return image embeddings ``(B, E)`` as ``model.encode_image`` does, with learned tokens if
    any.

    Images are ``(B, 3, H, W)``, normalised and of the model's size; ``normalize`` returns points of
    :func:`hypvision.clip.spaces.space_of` the model. Learned tokens are removed before the pooling.
    """
    if prompts is None:
        images = images.to(_dtype_of_images(model.visual, images.dtype))
        x = model.encode_image(images)
        return space_of(model).embed(x, "image") if normalize else x
    tower = vision_tower(model)
    visual = model.visual
    trunk = tower.trunk
    last = len(tower.blocks) - 1
    sequence = _Sequence(tower, prompts)
    if tower.family == "timm":
        x = trunk.patch_drop(
            trunk._pos_embed(trunk.patch_embed(images.to(trunk.patch_embed.proj.weight.dtype)))
        )
        x = _run_blocks(
            tower, trunk.norm_pre(sequence.enter(0, x)), sequence, trunk.grad_checkpointing
        )
        x = visual.head(trunk.forward_head(trunk.norm(sequence.leave(x))))
    else:
        x = visual.patch_dropout(_embed_patches(visual, images, visual.grid_size))
        x = visual.ln_pre(sequence.enter(0, x))
        class_token_alone = visual.attn_pool is None and visual.pool_type == "tok"
        if sequence.layers and class_token_alone and _is_plain(tower.blocks[-1]):
            x = _run_blocks(tower, x, sequence, trunk.grad_checkpointing, stop=last)
            x = _at_one_place(
                tower.blocks[last], sequence.enter(last, x), x.new_zeros(len(x), dtype=torch.long)
            )
            x = visual._pool(x[:, None])[0]
        else:
            x = _run_blocks(tower, x, sequence, trunk.grad_checkpointing)
            x = visual._pool(sequence.leave(x))[0]
        x = x if visual.proj is None else x @ visual.proj
    return space_of(model).embed(x, "image") if normalize else x


def _dtype_of_images(visual: nn.Module, default: torch.dtype) -> torch.dtype:
    """Return the dtype of the images that a tower takes: that of its first convolution, because
    open_clip's half precision leaves other parameters in float32."""
    floats = [value for value in visual.parameters() if value.is_floating_point()]
    kernels = [value for value in floats if value.dim() == 4]
    return next((value.dtype for value in (*kernels, *floats)), default)


def class_token_features(visual: Any, images: Tensor) -> Tensor:
    """Return ``visual(images)``, ``(B, E)``. In timm's plain ViT that pools the class token, the
    last block computes only this token, which saves time."""
    trunk: Any = getattr(visual, "trunk", None)
    blocks: Any = getattr(trunk, "blocks", None)
    plain = (
        blocks is not None
        and getattr(trunk, "global_pool", "") == "token"
        and _is_plain_timm(blocks[-1])
    )
    if trunk is None or not plain or trunk.grad_checkpointing or trunk.num_prefix_tokens != 1:
        return visual(images)
    x = trunk.norm_pre(trunk.patch_drop(trunk._pos_embed(trunk.patch_embed(images))))
    for block in blocks[:-1]:
        x = block(x)
    block = blocks[-1]
    attention = blocks[-1].attn
    y = block.norm1(x)
    weight = attention.qkv.weight
    bias = attention.qkv.bias
    width = attention.qkv.out_features // 3
    query = F.linear(y[:, :1], weight[:width], bias[:width])
    key, value = F.linear(y, weight[width:], bias[width:]).chunk(2, dim=-1)
    query, key, value = (
        part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
        for part in (query, key, value)
    )
    one = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    one = x[:, :1] + block.drop_path1(block.ls1(attention.proj_drop(attention.proj(one))))
    one = one + block.drop_path2(block.ls2(block.mlp(block.norm2(one))))
    return visual.head(trunk.forward_head(trunk.norm(one)))


def _is_plain_timm(block: Any) -> bool:
    """Return whether a block is timm's own, without hooks, and without dropout or norms in its
    attention."""
    attention: Any = getattr(block, "attn", None)
    if (type(block).__name__, type(attention).__name__) != ("Block", "Attention"):
        return False
    norms = (attention.q_norm, attention.k_norm, attention.norm)
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in block.modules())
    plain = (
        isinstance(attention.qkv, nn.Linear),
        isinstance(attention.qkv.bias, Tensor),
        all(isinstance(norm, nn.Identity) for norm in norms),
        getattr(attention, "gate", None) is None,
        not hooked,
        attention.attn_drop.p == 0,
        not hasattr(attention, "rope"),
    )
    return all(plain)


def encode_dense(
    model: Any,
    images: Tensor,
    hooks: tuple[int, ...] = (),
    checkpointing: bool = False,
    prompts: PromptTokens | None = None,
) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """Return an embedding for every patch, in the space of the text embeddings.

    For open_clip's ViT this is CAT-Seg's dense mode: the last block uses only its value path,
    without mixing tokens, and adds the class token (not the patch's own token) as the residual. For
    timm's ViT (SigLIP), which has no class token, all blocks run as usual and the attention pooling
    is applied to each patch by itself; this choice is ours.

    Args:
        images: ``(B, 3, H, W)``, normalised; sides are multiples of the patch size.
        hooks: numbers of the blocks whose patch tokens are returned too.
        checkpointing: save memory by computing the blocks again in the backward pass.
        prompts: learned tokens.

    Returns:
        Embeddings ``(B, E, h, w)``, not normalised; a list of the hooked blocks' patch tokens ``(B,
        width, h, w)``; the embedding of the class token ``(B, E)``, or None without one.
    """
    tower = vision_tower(model)
    visual = model.visual
    grid = _grid_of(model, images)
    depth = len(tower.blocks)
    bad = next((number for number in hooks if not 0 <= number < depth), None)
    refuse(
        (bad is not None, f"There is no image block {bad}: the tower has blocks 0 to {depth - 1}.")
    )
    checkpointing = checkpointing and torch.is_grad_enabled()
    sequence = _Sequence(tower, prompts)
    maps = dict[int, Tensor]()

    def as_map(x: Tensor) -> Tensor:
        return x[:, -grid[0] * grid[1] :].transpose(1, 2).unflatten(2, grid)

    def collect(number: int, x: Tensor) -> None:
        if number in hooks:
            maps[number] = as_map(x)

    class_token = None
    if tower.family == "timm":
        trunk = tower.trunk
        x = trunk.norm_pre(sequence.enter(0, _embed_timm_patches(trunk, images, grid)))
        x = sequence.leave(_run_blocks(tower, x, sequence, checkpointing, hook=collect))
        x = trunk.norm(x[:, trunk.num_prefix_tokens :])
        if trunk.attn_pool is not None:
            x = trunk.attn_pool(x.flatten(0, 1)[:, None]).unflatten(0, x.shape[:2])
        x = visual.head(trunk.head(trunk.fc_norm(x)))
    else:
        x = visual.ln_pre(sequence.enter(0, _embed_patches(visual, images, grid)))
        x = sequence.leave(_run_blocks(tower, x, sequence, checkpointing, -1, collect))
        x = _values_of_last_block(tower, x)
        collect(depth - 1, x)
        x = visual.ln_post(x)
        x = x if visual.proj is None else x @ visual.proj
        class_token = x[:, 0]
    return as_map(x), [maps[number] for number in hooks], class_token


def _grid_of(model: Any, images: Tensor) -> tuple[int, int]:
    """Return the rows and columns of patches; an image that does not consist of whole patches is an
    error."""
    rows, columns = patch_size(model)
    height, width = images.shape[-2:]
    # Messages built for every image would make its sizes constants of an exported program.
    if height < rows or width < columns:
        raise HypvisionError(
            f"The image has {height} x {width} pixels, less than one patch of {rows} x {columns}. "
            "Enlarge it."
        )
    if height % rows or width % columns:
        raise HypvisionError(
            f"The image has {height} x {width} pixels, which is not a multiple of the patch of "
            f"{rows} x {columns}. Resize it first."
        )
    return height // rows, width // columns


def _values_of_last_block(tower: Tower, x: Tensor) -> Tensor:
    """Return the tokens after open_clip's last block, by its value path alone: after the values
    come the remaining steps of open_clip's Attention and the class token as the residual."""
    block: Any = tower.blocks[-1]
    owner: Any = tower.owner(block)
    y = tower.values(block, block.ln_1(x))
    y = getattr(owner, "ln_inner", nn.Identity())(y)
    y = getattr(block, "ln_attn", nn.Identity())(owner.out_proj(y))
    y = block.ls_1(y) + x[:, :1]
    return y + block.ls_2(block.mlp(block.ln_2(y)))


def _run_blocks(
    tower: Tower,
    x: Tensor,
    sequence: _Sequence,
    checkpointing: bool,
    stop: int | None = None,
    hook: Callable[[int, Tensor], None] = lambda number, x: None,
) -> Tensor:
    """Run the blocks of an image tower up to ``stop``, and return the tokens; ``hook`` gets the
    number and the output of each block, without learned tokens."""
    for number, block in enumerate([*tower.blocks][:stop]):
        x = sequence.enter(number, x) if number else x
        x = checkpoint(block, x, use_reentrant=False) if checkpointing else block(x)
        hook(number, sequence.leave(x))
    return x


def _embed_patches(visual: Any, images: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return class token and patches of open_clip's ViT with positions, ``(B, 1 + h w, width)``."""
    x = visual.conv1(images.to(visual.conv1.weight.dtype)).flatten(2).transpose(1, 2)
    x = torch.cat([visual.class_embedding.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
    return x + resize_positions(visual.positional_embedding, grid, visual.grid_size).to(x.dtype)


def _embed_timm_patches(trunk: Any, images: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return register tokens, if any, and patches of timm's ViT with positions, ``(B, prefix + h w,
    width)``."""
    if trunk.cls_token is not None or trunk.pos_embed is None:
        raise HypvisionError(
            "Dense embeddings need a timm tower with position embeddings and without a class token "
            "(SigLIP). Use a model such as ViT-B-16-SigLIP."
        )
    x = (
        trunk.patch_embed.proj(images.to(trunk.patch_embed.proj.weight.dtype))
        .flatten(2)
        .transpose(1, 2)
    )
    table = trunk.pos_embed[0]
    old = tuple(trunk.patch_embed.grid_size)
    # The table may have entries for register tokens before those of the grid.
    extra = len(table) - old[0] * old[1]
    patches = resize_positions(torch.cat([table[:1], table[extra:]]), grid, old)[1:]
    x = trunk.patch_embed.norm(x) + patches.to(x.dtype)
    if trunk.num_prefix_tokens:
        registers = trunk.reg_token[0] + (table[:extra] if extra else 0)
        x = torch.cat([registers.to(x.dtype).expand(len(x), -1, -1), x], dim=1)
    return x


def resize_positions(table: Tensor, grid: tuple[int, int], old: tuple[int, int]) -> Tensor:
    """Return position embeddings ``(1 + h w, D)`` resized from the grid ``old`` to ``grid``:
    bicubic, corners not aligned, without antialiasing.

    CAT-Seg resizes in this way; open_clip's own function uses antialiasing.
    """
    if grid == old:
        return table
    patches = table[1:].T.reshape(1, -1, *old)
    patches = F.interpolate(patches.float(), grid, mode="bicubic", align_corners=False).to(
        table.dtype
    )
    return torch.cat([table[:1], patches.flatten(2)[0].T])

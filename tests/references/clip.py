"""CLIP's dense image embeddings, written down literally."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def reference_dense(model, image):
    """Section by section as the specification says it; plain softmax attention, one image."""
    visual = model.visual
    patches = F.conv2d(image[None], visual.conv1.weight, stride=visual.conv1.stride)[0]
    d, h, w = patches.shape
    x = torch.cat([visual.class_embedding[None], patches.reshape(d, h * w).T])
    side = visual.grid_size[0]
    table = visual.positional_embedding[1:].T.reshape(1, d, side, side)
    table = F.interpolate(table, (h, w), mode="bicubic", align_corners=False)[0].reshape(d, -1).T
    x = F.layer_norm(
        x + torch.cat([visual.positional_embedding[:1], table]),
        (d,),
        visual.ln_pre.weight,
        visual.ln_pre.bias,
    )
    maps, blocks = [], list(visual.transformer.resblocks)

    def norm(y, layer):
        return F.layer_norm(y, (d,), layer.weight, layer.bias)

    def mlp(y, block):
        y = F.linear(norm(y, block.ln_2), block.mlp.c_fc.weight, block.mlp.c_fc.bias)
        return F.linear(
            y * torch.sigmoid(1.702 * y), block.mlp.c_proj.weight, block.mlp.c_proj.bias
        )

    for block in blocks[:-1]:
        q, k, v = F.linear(
            norm(x, block.ln_1), block.attn.in_proj_weight, block.attn.in_proj_bias
        ).chunk(3, -1)
        heads = []
        for i in range(0, d, 16):
            score = q[:, i : i + 16] @ k[:, i : i + 16].T / 4
            heads.append(score.softmax(-1) @ v[:, i : i + 16])
        x = x + F.linear(torch.cat(heads, -1), block.attn.out_proj.weight, block.attn.out_proj.bias)
        x = x + mlp(x, block)
        maps.append(x[1:].T.reshape(d, h, w))
    block = blocks[-1]
    y = (
        norm(x, block.ln_1) @ block.attn.in_proj_weight[2 * d :].T
        + block.attn.in_proj_bias[2 * d :]
    )
    y = F.linear(y, block.attn.out_proj.weight, block.attn.out_proj.bias) + x[0]
    y = norm(y + mlp(y, block), visual.ln_post) @ visual.proj
    return y[1:].T.reshape(-1, h, w), maps, y[0]


def _norm(x, layer):
    return F.layer_norm(x, x.shape[-1:], layer.weight, layer.bias, layer.eps)


def _block(x, block, causal):
    """One open_clip block on one sequence (L, d), QuickGELU, softmax head by head."""
    d, heads = x.shape[-1], block.attn.num_heads
    width = d // heads
    q, k, v = F.linear(
        _norm(x, block.ln_1), block.attn.in_proj_weight, block.attn.in_proj_bias
    ).chunk(3, -1)
    mixed = []
    for i in range(0, d, width):
        score = q[:, i : i + width] @ k[:, i : i + width].T / width**0.5
        if causal:
            for row in range(len(x)):
                score[row, row + 1 :] = float("-inf")
        mixed.append(score.softmax(-1) @ v[:, i : i + width])
    x = x + F.linear(torch.cat(mixed, -1), block.attn.out_proj.weight, block.attn.out_proj.bias)
    y = F.linear(_norm(x, block.ln_2), block.mlp.c_fc.weight, block.mlp.c_fc.bias)
    return x + F.linear(
        y * torch.sigmoid(1.702 * y), block.mlp.c_proj.weight, block.mlp.c_proj.bias
    )


def prompted_text(model, ids, prompts, overwrite=False):
    """One text (a list of token numbers that ends with its largest) with learned tokens behind the
    first, by layer."""
    rows = [model.token_embedding.weight[i] for i in ids]
    if 0 in prompts:
        rows = [rows[0], *prompts[0], *rows[1 + (len(prompts[0]) if overwrite else 0) :]]
    present = len(prompts[0]) if 0 in prompts else 0
    x = torch.stack([row + model.positional_embedding[i] for i, row in enumerate(rows)])
    for number, block in enumerate(model.transformer.resblocks):
        if number and number in prompts:
            x = torch.cat([x[:1], prompts[number], x[1 + present :]])
            present = len(prompts[number])
        x = _block(x, block, True)
    return _norm(x, model.ln_final)[-1] @ model.text_projection


def prompted_image(model, image, prompts):
    """One image with learned tokens behind its patches, by layer."""
    visual = model.visual
    patches = F.conv2d(image[None], visual.conv1.weight, stride=visual.conv1.stride)[0]
    x = (
        torch.cat([visual.class_embedding[None], patches.flatten(1).T])
        + visual.positional_embedding
    )
    length = len(x)
    if 0 in prompts:
        x = torch.cat([x, prompts[0]])
    x = _norm(x, visual.ln_pre)
    for number, block in enumerate(visual.transformer.resblocks):
        if number and number in prompts:
            x = torch.cat([x[:length], prompts[number]])
        x = _block(x, block, False)
    return _norm(x, visual.ln_post)[0] @ visual.proj

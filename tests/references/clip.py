"""CLIP's dense image embeddings, written down literally."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def literal_dense(model, image):
    """Section by section as the specification says it; plain softmax attention, one image."""
    visual = model.visual
    patches = F.conv2d(image[None], visual.conv1.weight, stride=visual.conv1.stride)[0]
    d, h, w = patches.shape
    x = torch.cat([visual.class_embedding[None], patches.reshape(d, h * w).T])
    side = visual.grid_size[0]
    table = visual.positional_embedding[1:].T.reshape(1, d, side, side)
    table = F.interpolate(table, (h, w), mode="bicubic", align_corners=False)[0].reshape(d, -1).T
    x = F.layer_norm(
        x + torch.cat([visual.positional_embedding[:1], table]), (d,), visual.ln_pre.weight, visual.ln_pre.bias
    )
    maps, blocks = [], list(visual.transformer.resblocks)

    def norm(y, layer):
        return F.layer_norm(y, (d,), layer.weight, layer.bias)

    def mlp(y, block):
        y = F.linear(norm(y, block.ln_2), block.mlp.c_fc.weight, block.mlp.c_fc.bias)
        return F.linear(y * torch.sigmoid(1.702 * y), block.mlp.c_proj.weight, block.mlp.c_proj.bias)

    for block in blocks[:-1]:
        q, k, v = F.linear(norm(x, block.ln_1), block.attn.in_proj_weight, block.attn.in_proj_bias).chunk(3, -1)
        heads = []
        for i in range(0, d, 16):
            score = q[:, i : i + 16] @ k[:, i : i + 16].T / 4
            heads.append(score.softmax(-1) @ v[:, i : i + 16])
        x = x + F.linear(torch.cat(heads, -1), block.attn.out_proj.weight, block.attn.out_proj.bias)
        x = x + mlp(x, block)
        maps.append(x[1:].T.reshape(d, h, w))
    block = blocks[-1]
    y = norm(x, block.ln_1) @ block.attn.in_proj_weight[2 * d :].T + block.attn.in_proj_bias[2 * d :]
    y = F.linear(y, block.attn.out_proj.weight, block.attn.out_proj.bias) + x[0]
    y = norm(y + mlp(y, block), visual.ln_post) @ visual.proj
    return y[1:].T.reshape(-1, h, w), maps, y[0]

"""Hugging Face's CLIP text model, from the description of its state dict: q, k and v apart,
projection (d, w)."""

import torch
from torch.nn import functional as F


def text_features(weights, tokens, heads):
    """Features (T, d) of token numbers (T, L), read at the largest token number; before
    normalisation."""
    length = tokens.shape[1]
    prefix = "text_model.embeddings."
    x = (
        weights[f"{prefix}token_embedding.weight"][tokens]
        + weights[f"{prefix}position_embedding.weight"][:length]
    )
    mask = torch.full((length, length), float("-inf")).triu(1)

    def norm(x, name):
        return F.layer_norm(
            x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5
        )

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    number = 0
    while f"text_model.encoder.layers.{number}.layer_norm1.weight" in weights:
        layer = f"text_model.encoder.layers.{number}"
        y = norm(x, f"{layer}.layer_norm1")
        q, k, v = (
            linear(y, f"{layer}.self_attn.{p}_proj").unflatten(-1, (heads, -1)).transpose(1, 2)
            for p in "qkv"
        )
        scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5 + mask
        x = x + linear(
            (scores.softmax(-1) @ v).transpose(1, 2).flatten(2), f"{layer}.self_attn.out_proj"
        )
        y = linear(norm(x, f"{layer}.layer_norm2"), f"{layer}.mlp.fc1")
        x = x + linear(y * torch.sigmoid(1.702 * y), f"{layer}.mlp.fc2")
        number += 1
    x = norm(x, "text_model.final_layer_norm")
    return x[torch.arange(len(x)), tokens.argmax(-1)] @ weights["text_projection.weight"].T

"""MERU, HyCoCLIP and their CLIP baseline, written out from the papers over a plain state dict with
the official names.

``state`` maps official keys to tensors of one float dtype, to which gradients flow back.
"""

import math

import torch
import torch.nn.functional as F

CUT = math.asinh(2**15)  # the largest argument of sinh in the lift
APERTURE = 0.1  # K of the half aperture
TOKENS, CONTEXT = 49408, 77


def shapes(
    width, depth, patch, grid, text_width, text_depth, embedding, hyperbolic=True, tokens=TOKENS
):
    """The keys of a released file with the shape of each."""
    keys = {"logit_scale": (), "pixel_mean": (3, 1, 1), "pixel_std": (3, 1, 1)}
    if hyperbolic:
        keys |= {"curv": (), "visual_alpha": (), "textual_alpha": ()}
    keys |= {"visual.cls_token": (1, 1, width), "visual.pos_embed": (1, grid * grid + 1, width)}
    linears = {"visual.patch_embed.proj": (width, 3, patch, patch)}
    norms = {"visual.norm": width, "textual.ln_final": text_width}
    for i in range(depth):
        block = f"visual.blocks.{i}."
        linears |= {block + "attn.qkv": (3 * width, width), block + "attn.proj": (width, width)}
        linears |= {block + "mlp.fc1": (4 * width, width), block + "mlp.fc2": (width, 4 * width)}
        norms |= {block + "norm1": width, block + "norm2": width}
    for i in range(text_depth):
        block = f"textual.resblocks.{i}."
        keys |= {block + "attn.in_proj_weight": (3 * text_width, text_width)}
        keys |= {block + "attn.in_proj_bias": (3 * text_width,)}
        linears |= {block + "attn.out_proj": (text_width, text_width)}
        linears |= {
            block + "mlp.c_fc": (4 * text_width, text_width),
            block + "mlp.c_proj": (text_width, 4 * text_width),
        }
        norms |= {block + "ln_1": text_width, block + "ln_2": text_width}
    for name, shape in linears.items():
        keys |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name, size in norms.items():
        keys |= {f"{name}.weight": (size,), f"{name}.bias": (size,)}
    keys |= {
        "textual.token_embed.weight": (tokens, text_width),
        "textual.posit_embed": (CONTEXT, text_width),
    }
    keys |= {"textual.attn_mask": (CONTEXT, CONTEXT)}
    return keys | {
        "visual_proj.weight": (embedding, width),
        "textual_proj.weight": (embedding, text_width),
    }


def sine_cosine_positions(width, grid):
    """MoCo-v3's fixed positions, the class token's zero row first."""
    omega = 10000.0 ** (-torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    grid_w, grid_h = torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing="ij")
    across, down = (g.flatten().double()[:, None] * omega for g in (grid_w, grid_h))
    rows = torch.cat([across.sin(), across.cos(), down.sin(), down.cos()], dim=1)
    return torch.cat([torch.zeros(1, width, dtype=torch.float64), rows])[None]


# The two towers


def norm(state, name, x):
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt() * state[f"{name}.weight"] + state[f"{name}.bias"]


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def attention(qkv, heads, mask=None):
    size = qkv.shape[-1] // 3 // heads
    query, key, value = qkv.unflatten(-1, (3, heads, size)).permute(
        2, 0, 3, 1, 4
    )  # each: batch, heads, tokens, size
    scores = query @ key.transpose(-1, -2) / math.sqrt(size)
    if mask is not None:
        scores = scores.masked_fill(mask, -math.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)


def linear(state, name, x):
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def depth_of(state, prefix):
    return 1 + max(int(key.split(".")[2]) for key in state if key.startswith(prefix))


def image_features(state, images, heads):
    """Images in [0, 1] to the class token's feature, projected."""
    weight = state["visual.patch_embed.proj.weight"]
    x = (images.to(weight) - state["pixel_mean"]) / state["pixel_std"]
    x = (
        F.conv2d(x, weight, state["visual.patch_embed.proj.bias"], stride=weight.shape[-1])
        .flatten(2)
        .transpose(1, 2)
    )
    x = (
        torch.cat([state["visual.cls_token"].expand(len(x), -1, -1), x], dim=1)
        + state["visual.pos_embed"]
    )
    for i in range(depth_of(state, "visual.blocks.")):
        b = f"visual.blocks.{i}."
        qkv = linear(state, b + "attn.qkv", norm(state, b + "norm1", x))
        x = x + linear(state, b + "attn.proj", attention(qkv, heads))
        x = x + linear(
            state, b + "mlp.fc2", gelu(linear(state, b + "mlp.fc1", norm(state, b + "norm2", x)))
        )
    return norm(state, "visual.norm", x)[:, 0] @ state["visual_proj.weight"].T


def text_features(state, ids, heads):
    """Token ids to the feature at the end of text, projected."""
    length = ids.shape[1]
    x = state["textual.token_embed.weight"][ids] + state["textual.posit_embed"][:length]
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    for i in range(depth_of(state, "textual.resblocks.")):
        b = f"textual.resblocks.{i}."
        qkv = (
            norm(state, b + "ln_1", x) @ state[b + "attn.in_proj_weight"].T
            + state[b + "attn.in_proj_bias"]
        )
        x = x + linear(state, b + "attn.out_proj", attention(qkv, heads, future))
        x = x + linear(
            state, b + "mlp.c_proj", gelu(linear(state, b + "mlp.c_fc", norm(state, b + "ln_2", x)))
        )
    x = norm(state, "textual.ln_final", x)
    return x[torch.arange(len(x)), ids.argmax(1)] @ state["textual_proj.weight"].T


# The space: points travel as space components


def lift(v, c):
    root = c.sqrt()
    length = v.norm(dim=-1, keepdim=True)
    return (root * length).clamp(max=CUT).sinh() * v / (root * length)


def embed(state, features, alpha):
    """``alpha``: "visual_alpha" or "textual_alpha"; a baseline has none and stays on the unit
    sphere."""
    if "curv" not in state:
        return features / features.norm(dim=-1, keepdim=True)
    return lift(state[alpha].exp() * features, state["curv"].exp())


def class_weights(state, features):
    """One embedding from the features (templates, dim) of one class: averaged before the lift."""
    if "curv" not in state:
        features = features / features.norm(dim=-1, keepdim=True)
    return embed(state, features.mean(0), "textual_alpha")


def time(x, c):
    return (1 / c + x.square().sum(-1)).sqrt()


def inner(x, y, c):
    """Lorentz inner products of all pairs."""
    return x @ y.T - time(x, c)[:, None] * time(y, c)


def distance(x, y, c):
    return torch.acosh(-c * inner(x, y, c)) / c.sqrt()


def angle(x, y, c):
    """At each x: between the ray that leaves the origin through x and the geodesic from x to the
    same row of y."""
    outward = x / x.norm(dim=-1, keepdim=True)
    along = (outward * y).sum(-1)
    across = (y - along[:, None] * outward).norm(dim=-1)
    # The tangent at x towards y, in the frame of the radial unit vector and the space directions
    # orthogonal to it
    radial = c.sqrt() * (time(x, c) * along - x.norm(dim=-1) * time(y, c))
    return torch.atan2(across, radial)


def aperture(x, c):
    return torch.asin((2 * APERTURE / (c.sqrt() * x.norm(dim=-1))).clamp(max=1))


# Training


def contrast(state, query, keys):
    """Cross entropy of each query against all keys, its own row the target."""
    if "curv" in state:
        logits = -state["logit_scale"].exp() * distance(query, keys, state["curv"].exp())
    else:
        logits = state["logit_scale"].exp() * query @ keys.T
    return -logits.log_softmax(1).diagonal().mean()


def entailment(first, second, c, factor=1.0):
    return F.relu(angle(first, second, c) - factor * aperture(first, c)).mean()


def clip_loss(state, image, text):
    return (contrast(state, image, text) + contrast(state, text, image)) / 2


def meru_loss(state, image, text):
    return clip_loss(state, image, text) + 0.2 * entailment(text, image, state["curv"].exp())


def hycoclip_loss(state, image, text, box_image, box_text):
    c = state["curv"].exp()
    whole = contrast(state, image, text) + contrast(state, text, image)
    boxes = contrast(state, box_image, text) + contrast(state, box_text, image)
    between = entailment(text, image, c, 0.7) + entailment(box_text, box_image, c, 0.7)
    within = entailment(box_image, image, c, 1.2) + entailment(box_text, text, c, 1.2)
    return 0.25 * (whole + boxes) + 0.2 * 0.5 * (between + within)


def clamp_scalars(state):
    """What the scalars are set to before a step."""
    limits = {"logit_scale": (-math.inf, 4.6052), "curv": (math.log(0.1), math.log(10))}
    limits |= {"visual_alpha": (-math.inf, 0.0), "textual_alpha": (-math.inf, 0.0)}
    return {key: state[key].clamp(*limit) for key, limit in limits.items() if key in state}


def traversal(state, embedding, texts, root=None, steps=50):
    """Rows of ``texts`` met on the way to the root, in order and each once; ``len(texts)`` stands
    for the origin.

    ``root``: of a baseline.
    """
    weight = torch.linspace(0, 1, steps, dtype=embedding.dtype)[:, None]
    if "curv" not in state:
        way = (1 - weight) * embedding + weight * root
        scores = way / way.norm(dim=-1, keepdim=True) @ texts.T
    else:
        c = state["curv"].exp()
        length = c.sqrt() * embedding.norm()
        tangent = length.asinh() / length * embedding
        way = torch.cat([lift((1 - weight[:-1]) * tangent, c), torch.zeros_like(embedding)[None]])
        scores = inner(way, torch.cat([texts, torch.zeros_like(embedding)[None]]), c)
        for row, text in enumerate(texts):
            inside = angle(text.expand_as(way), way, c) <= aperture(text[None], c)
            scores[:, row] = scores[:, row].masked_fill(~inside, -math.inf)
    return list(dict.fromkeys(scores.argmax(1).tolist()))

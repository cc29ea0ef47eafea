"""The few-shot methods as their authors' code computes them, written down step by step: one
sequence at a time, every class text again for each batch, full-length texts, prompts concatenated
between token rows.

Tokens come as lists of tensors by layer; class names are put into sentences by a tokenizer that
ends each text with its largest number.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from references.clip import _block, _norm, prompted_image


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def half(x, emulate):
    return x.half().float() if emulate else x


def text_of_rows(model, rows, end, deep=(), emulate=False):
    """A text from its token rows (L, d); ``deep`` replaces the rows behind the first at blocks 1,
    2, ..."""
    x = rows + model.positional_embedding[: len(rows)]
    for number, block in enumerate(model.transformer.resblocks):
        if 1 <= number <= len(deep):
            tokens = half(deep[number - 1], emulate)
            x = torch.cat([x[:1], tokens, x[1 + len(tokens) :]])
        x = _block(x, block, True)
    return _norm(x, model.ln_final)[end] @ model.text_projection


def class_texts(model, tokenizer, prefix, names, ctx, deep=(), emulate=False, position="end"):
    """Un-normalised class features (C, d): SOS, context, name, full stop, padding."""
    found = []
    for number, name in enumerate(names):
        ids = tokenizer([f"{prefix} {name}."])[0]
        embedded = model.token_embedding.weight[ids]
        own = ctx[number] if ctx.dim() == 3 else ctx
        n, k = len(own), int(tokenizer([name])[0].argmax()) - 1
        start, name_rows, rest = embedded[:1], embedded[1 + n : 1 + n + k], embedded[1 + n + k :]
        if position == "end":
            rows = [start, own, name_rows, rest]
        elif position == "middle":
            rows = [start, own[: n // 2], name_rows, own[n // 2 :], rest]
        else:
            rows = [start, name_rows, own, rest]
        found.append(text_of_rows(model, torch.cat(rows), int(ids.argmax()), deep, emulate))
    return torch.stack(found)


def plain_texts(model, tokenizer, template, names):
    """Un-normalised features of sentences without prompts."""
    found = []
    for name in names:
        ids = tokenizer([template.format(name)])[0]
        found.append(text_of_rows(model, model.token_embedding.weight[ids], int(ids.argmax())))
    return torch.stack(found)


def image_features(model, images, layers=(), emulate=False):
    tokens = {i: half(t, emulate) for i, t in enumerate(layers)}
    return torch.stack([prompted_image(model, image, tokens) for image in images])


def logits(model, images, texts):
    return model.logit_scale.exp() * unit(images) @ unit(texts).T


def maple(
    model, tokenizer, names, images, ctx, deep, projections, prefix="a photo of a", emulate=False
):
    """Logits of MaPLe; ``projections`` are (weight, bias), the first for the context."""
    vision = [F.linear(t, w, b) for t, (w, b) in zip([ctx, *deep], projections)]
    texts = class_texts(model, tokenizer, prefix, names, ctx, deep, emulate)
    return logits(model, image_features(model, images, vision, emulate), texts)


def promptsrc(
    model, tokenizer, names, images, labels, ctx, deep, vision, templates, prefix="a photo of a"
):
    """The four losses of PromptSRC, in a dict, and the prompted logits."""
    text = unit(class_texts(model, tokenizer, prefix, names, ctx, deep))
    image = unit(image_features(model, images, vision))
    with torch.no_grad():
        frozen_text = unit(
            torch.stack([plain_texts(model, tokenizer, t, names) for t in templates]).mean(0)
        )
        frozen_image = unit(image_features(model, images))
        zero_shot = model.logit_scale.exp() * frozen_image @ frozen_text.T
    prompted = model.logit_scale.exp() * image @ text.T
    p, q = prompted.log_softmax(1), zero_shot.log_softmax(1)
    return dict(
        ce=-p[range(len(labels)), labels].mean(),
        loss_text=25 * (text - frozen_text).abs().mean(),
        loss_image=10 * (image - frozen_image).abs().mean(),
        loss_logits=(q.exp() * (q - p)).sum() / q.numel(),
    ), prompted


def cocoop(model, tokenizer, names, images, ctx, meta, prefix="a photo of a"):
    """Logits of CoCoOp; ``meta`` maps a unit image feature to a shift of all context vectors."""
    rows = []
    for image in unit(image_features(model, images)):
        texts = class_texts(model, tokenizer, prefix, names, ctx + meta(image))
        rows.append(model.logit_scale.exp() * unit(texts) @ image)
    return torch.stack(rows)


def promptkd(
    teacher_image,
    teacher_text,
    teacher_scale,
    student_image,
    student_scale,
    weight=1000.0,
    temperature=1.0,
):
    """The distillation loss from unit features, and the student's logits."""
    teacher = teacher_scale * teacher_image @ teacher_text.T
    student = student_scale * student_image @ teacher_text.T
    p, q = (student / temperature).log_softmax(1), (teacher / temperature).log_softmax(1)
    return weight * temperature**2 * (q.exp() * (q - p)).sum() / p.numel(), student


def tip_adapter(image, text, keys, values, alpha, beta):
    """Tip-Adapter's logits from unit features, with one-hot ``values``."""
    return 100 * image @ text.T + alpha * (-beta * (1 - image @ keys.T)).exp() @ values


# The same in batches, as the official codes run it: what benchmarks compare with
# --------------------------------------


def batched_texts(model, tokens, ctx=None, deep=()):
    """Class features (C, d) from whole texts (C, 77), whose rows behind the first are replaced by
    the prompts."""
    x = model.token_embedding(tokens)
    if ctx is not None:
        x = torch.cat([x[:, :1], ctx.expand(len(x), -1, -1), x[:, 1 + len(ctx) :]], dim=1)
    x = x + model.positional_embedding
    for number, block in enumerate(model.transformer.resblocks):
        if 1 <= number <= len(deep):
            prompt = deep[number - 1]
            x = torch.cat([x[:, :1], prompt.expand(len(x), -1, -1), x[:, 1 + len(prompt) :]], dim=1)
        x = block(x, attn_mask=model.attn_mask)
    x = model.ln_final(x)
    return x[torch.arange(len(x)), tokens.argmax(-1)] @ model.text_projection


def batched_images(model, images, layers=()):
    """Image features (B, d) with prompts behind the patches."""
    visual = model.visual
    x = visual.conv1(images).flatten(2).transpose(1, 2)
    x = (
        torch.cat([visual.class_embedding.expand(len(x), 1, -1), x], dim=1)
        + visual.positional_embedding
    )
    length = x.shape[1]
    if layers:
        x = torch.cat([x, layers[0].expand(len(x), -1, -1)], dim=1)
    x = visual.ln_pre(x)
    for number, block in enumerate(visual.transformer.resblocks):
        if 1 <= number < len(layers):
            x = torch.cat([x[:, :length], layers[number].expand(len(x), -1, -1)], dim=1)
        x = block(x)
    return visual.ln_post(x[:, 0]) @ visual.proj


# LatHAdapter
# --------------------------------------------------------------------------------------------------


def refine(text, attributes, beta, degree="abs"):
    """The attribute-aware text refiner, with the full normalised adjacency."""
    nodes = torch.cat([text, attributes])
    s = unit(nodes) @ unit(nodes).T
    if degree == "relu":
        s = s.clamp(min=0)
    d = {"abs": s.abs().sum(1), "relu": s.sum(1), "clamp": s.sum(1).clamp(min=1e-6)}[degree]
    scale = torch.diag(d**-0.5)
    return (nodes + beta * scale @ s @ scale @ nodes)[: len(text)]


def to_ball(x, c, radius=None, riemannian=False):
    """Points for features, which are clipped at a radius; a Riemannian gradient is the Euclidean
    one over the squared conformal factor."""
    if radius is not None:
        x = torch.where(x.norm(dim=-1, keepdim=True) > radius, radius * unit(x), x)
    n = x.norm(dim=-1, keepdim=True)
    y = torch.tanh(math.sqrt(c) * n) * x / (math.sqrt(c) * n)
    if riemannian:
        conformal = 2 / (1 - c * (y.detach() ** 2).sum(-1, keepdim=True))
        y.register_hook(lambda gradient: gradient / conformal**2)
    return y


def distances(x, y, c):
    """Geodesic distances of all pairs, by the Moebius sum."""
    found = torch.empty(len(x), len(y), dtype=x.dtype)
    for i, a in enumerate(x):
        for j, b in enumerate(y):
            ab, aa, bb = -(a @ b), a @ a, b @ b
            top = (1 + 2 * c * ab + c * bb) * -a + (1 - c * aa) * b
            found[i, j] = (
                2
                / math.sqrt(c)
                * torch.atanh(math.sqrt(c) * (top / (1 + 2 * c * ab + c * c * aa * bb)).norm())
            )
    return found


def lath(
    image, text, attributes, scale, labels, triplets, noise, c=0.1, beta=0.1, sigma=0.1, tau=0.1,
    lca_score="distance", feature_norm="l2", clip_radius=2.3, riemannian=False,
):  # fmt: skip
    """The four losses of LatHAdapter from raw features and attributes, and recorded triplets and
    Gumbel noise."""
    from references.hier import reference_triplet_loss

    raw = feature_norm == "none"
    image, text, a = (x if raw else unit(x) for x in (image, text, attributes))
    refined = refine(text, a, beta)
    radius = clip_radius if raw else None
    v, t, a = (to_ball(x, c, radius, riemannian) for x in (image, refined, a))
    exp = lca_score == "exp"
    d_class = distances(v, t, c)
    cosine = scale * unit(image) @ unit(refined).T
    return dict(
        loss_ecls=F.cross_entropy(cosine, labels),
        loss_hcls=F.cross_entropy(-d_class, labels),
        loss_va=reference_triplet_loss(distances(v, a, c), triplets[0], noise[0], tau, sigma, exp),
        loss_at=reference_triplet_loss(distances(a, t, c), triplets[1], noise[1], tau, sigma, exp),
    ), cosine - d_class

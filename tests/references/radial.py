"""Radial embeddings, written as the sheet of formulas has them: loops, ``arccos``, masks; slow."""

import numpy as np
import torch


def angle(e, specific, root):
    """Exterior angle by arccos, without guards."""
    a, b = e - root, specific - e
    cosine = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))
    return torch.arccos(cosine.clamp(-1, 1))


def radial_loss(e, root, before, weights=(10.0, 1.0, 1.0)):
    """(ploss, eloss, mloss, total) of embeddings (8, b, d), positives first, and those of the model
    as it was."""
    p = torch.stack([angle(e[i], e[i + 1], root) for i in range(3)])
    n = torch.stack([angle(e[i], e[4 + i], root) for i in range(3)])
    t = p - n
    eloss = p.mean() - n.mean()
    mloss = t.flatten()[p.argmax()] + t.flatten()[n.argmin()]
    ploss = (1 - (e * before).sum(-1).mean()) / 2
    return ploss, eloss, mloss, weights[0] * ploss + weights[1] * eloss + weights[2] * mloss


def chain_metrics(texts, embeddings, images, image_embeddings, root, steps=50):
    """Per-image precision and recall, per-chain tau, and predictions, image by image and level by
    level.

    Args:
        texts: n chains of strings.
        embeddings: (n, L, d).
        images: the image of each chain.
        image_embeddings: (m, d), in the order in which the images first appear.
        root: (d,).
        steps: number of radii.
    """
    radii = np.linalg.norm(embeddings - root, axis=-1).astype(np.float32)
    levels = np.linspace(radii.min(), radii.max(), steps, dtype=np.float64)
    masks = [radii <= np.float32(level) for level in levels]
    inside = [
        np.array(texts)[mask] for mask in masks
    ]  # the texts within each radius, in their order
    order = list(dict.fromkeys(images))
    depth = embeddings.shape[1]
    precisions, recalls, predictions = [], [], []
    for image, v in zip(order, image_embeddings):
        similarity = embeddings @ v
        predicted = []
        for mask, candidates in zip(masks, inside):
            text = str(candidates[similarity[mask].argmax()])
            if not predicted or predicted[-1] != text:
                predicted.append(text)
        chains = [chain for chain, owner in zip(texts, images) if owner == image]
        known = {text for chain in chains for text in chain}
        precisions.append(len(set(predicted) & known) / max(1, len(set(predicted))))
        recalls.append(
            sum(any(chain[i] in predicted for chain in chains) for i in range(depth)) / depth
        )
        predictions.append(predicted)
    taus = []
    for row in radii:
        places = np.argsort(row, kind="stable")
        pairs = [(a, b) for a in range(depth) for b in range(a + 1, depth)]
        concordant = sum(1 if places[a] < places[b] else -1 for a, b in pairs)
        taus.append(concordant / len(pairs))
    return precisions, recalls, taus, predictions


def traverse(similarity, radii, texts, steps=50):
    """(threshold, similarity, text) wherever the nearest text within a growing radius changes."""
    found = []
    for threshold in np.linspace(min(radii), max(radii), steps):
        inside = [
            i for i, radius in enumerate(radii) if np.float32(radius) <= np.float32(threshold)
        ]
        best = max(inside, key=lambda i: (similarity[i], -i))
        if not found or found[-1][2] != texts[best]:
            found.append((threshold, similarity[best], texts[best]))
    return found

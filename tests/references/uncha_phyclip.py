"""UNCHA and PHyCLIP, written out from the sheet for float64: towers' features in, losses out.

Points travel as space components. Nothing here is shared with the package.
"""

import math
import zlib

import numpy as np
import torch

CUT = math.asinh(2**15)
K = 0.1


def det(name, *shape):
    """The sheet's fixed random numbers."""
    seed = zlib.crc32(name.encode()) & 0x7FFFFFFF
    numbers = np.random.RandomState(seed).standard_normal(shape).astype(np.float32)
    return torch.from_numpy(numbers).double()


def lift(v, c):
    root = c**0.5
    length = v.norm(dim=-1, keepdim=True)
    return torch.sinh((root * length).clamp(max=CUT)) * v / (root * length)


def time(x, c):
    return (1 / c + (x * x).sum(-1)).sqrt()


def inner(x, y, c):
    return x @ y.T - time(x, c)[:, None] * time(y, c)


def distances(x, y, c):
    """Through the chord, which keeps the digits of near points that an acosh loses."""
    chord = ((x[:, None] - y) ** 2).sum(-1) - (time(x, c)[:, None] - time(y, c)) ** 2
    return 2 / c**0.5 * torch.asinh((chord.clamp(min=0) * c).sqrt() / 2)


def angle(x, y, c):
    """The exterior angle at ``x``, from the tangent vector at it towards ``y`` along and across
    the ray."""
    ray = x / x.norm(dim=-1, keepdim=True)
    along = (ray * y).sum(-1)
    across = (y - along[:, None] * ray).norm(dim=-1)
    return torch.atan2(across, c**0.5 * (time(x, c) * along - x.norm(dim=-1) * time(y, c)))


def aperture(x, c):
    return torch.asin((2 * K / (c**0.5 * x.norm(dim=-1))).clamp(max=1))


def both_ways(logits):
    n = range(len(logits))
    rows = -logits.log_softmax(1)[n, n].mean()
    columns = -logits.log_softmax(0)[n, n].mean()
    return 0.5 * (rows + columns)


# PHyCLIP


class PHyCLIP:
    """``curvs``, ``image_alphas``, ``text_alphas``: logarithms (k,)."""

    def __init__(self, curvs, image_alphas, text_alphas, logit_scale):
        self.c = curvs.exp()
        self.alphas = {"image": image_alphas.exp(), "text": text_alphas.exp()}
        self.scale = logit_scale.exp()

    def embed(self, features, modality):
        """A list of the factors' points."""
        k = len(self.c)
        pieces = features.chunk(k, dim=-1)
        return [lift(self.alphas[modality][i] * pieces[i], self.c[i]) for i in range(k)]

    def distance(self, x, y, metric="l1"):
        each = torch.stack([distances(a, b, c) for a, b, c in zip(x, y, self.c)])
        return each.mean(0) if metric == "l1" else (each**2).mean(0).sqrt()

    def similarity(self, x, y):
        return sum(inner(a, b, c) for a, b, c in zip(x, y, self.c))

    def outside(self, x, y, factor):
        each = [
            torch.relu(angle(a, b, c) - factor * aperture(a, c)) for a, b, c in zip(x, y, self.c)
        ]
        return torch.stack(each).mean()

    def ranked(self, query, keys):
        logits = -self.scale * self.distance(query, keys)
        return -logits.log_softmax(1).diagonal().mean()

    def losses(self, image, text, box_image, box_text):
        """Features (B, E); contrast, and the sum of entailment before its weight 0.2."""
        image, box_image = self.embed(image, "image"), self.embed(box_image, "image")
        text, box_text = self.embed(text, "text"), self.embed(box_text, "text")
        wholes = 0.5 * (self.ranked(image, text) + self.ranked(text, image))
        boxes = 0.5 * (self.ranked(box_image, text) + self.ranked(box_text, image))
        inside = self.outside(text, image, 0.7) + self.outside(box_text, box_image, 0.7)
        inside = inside + self.outside(box_image, image, 1.2) + self.outside(box_text, text, 1.2)
        return 0.5 * wholes + 0.5 * boxes, 0.5 * inside


# UNCHA


def uncertainty(x):
    return torch.log1p(torch.exp(-x.norm(dim=-1)))


class UNCHA:
    """``scales``: the logarithms of the global, the local and the global-local one."""

    def __init__(self, curv, image_alpha, text_alpha, scales):
        self.c = curv.exp()
        self.alphas = {"image": image_alpha.exp(), "text": text_alpha.exp()}
        self.scales = [scale.exp() for scale in scales]

    def embed(self, features, modality):
        return lift(self.alphas[modality] * features, self.c)

    def residual(self, x, y, factor):
        found = angle(x, y, self.c)
        return torch.relu(found - factor * aperture(x, self.c)) + 0.1 * found

    def contrast(self, image, text, box_image, box_text, owner):
        whole, local, across = self.scales
        total = both_ways(-whole * distances(image, text, self.c))
        total = total + both_ways(-local * distances(box_image, box_text, self.c))
        for box, of_whole in ((box_image, text), (box_text, image)):
            weight = torch.exp(-uncertainty(box) / 2).clamp(0.1, 10).detach()
            logits = -across * weight[:, None] * distances(box, of_whole[owner], self.c)
            total = total - 0.5 * logits.log_softmax(1).diagonal().mean()
        return total

    def entailment(self, image, text, box_image, box_text, owner):
        total = 0.5 * self.residual(text, image, 0.7).mean()
        total = total + 0.5 * self.residual(box_text, box_image, 0.7).mean()
        for box, of_whole in ((box_image, image), (box_text, text)):
            residual = self.residual(box, of_whole[owner], 1.2)
            total = total + 0.5 * (0.5 * residual.mean()) + self.calibration(residual, box)
        return total

    def calibration(self, residual, box):
        u = uncertainty(box)
        share = u.softmax(0)
        entropy = -(share * torch.log(share + 1e-8)).sum()
        fit = (0.5 * residual.detach() / (torch.exp(u) + 1e-6) + 0.5 * u).mean()
        return 10 * (fit + entropy)

    def losses(self, image, text, box_image, box_text, owner):
        """Features; contrast, and entailment before its weight 0.2."""
        image, box_image = self.embed(image, "image"), self.embed(box_image, "image")
        text, box_text = self.embed(text, "text"), self.embed(box_text, "text")
        points = (image, text, box_image, box_text, owner)
        return self.contrast(*points), self.entailment(*points)

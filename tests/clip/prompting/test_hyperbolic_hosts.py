"""Few-shot methods with a hyperbolic CLIP: closed forms in the tangent space, in float64; what is
refused."""

import pytest
import torch
from helpers import clip_models
from helpers.fewshot import NAMES, tokenize

from hypvision.clip.models import CLIPBundle
from hypvision.clip.prompting import build_host
from hypvision.clip.towers import encode_image, encode_text
from hypvision.io.errors import HypvisionError
from hypvision.tasks.few_shot import FewShotCLIP


@pytest.fixture(scope="module")
def clip():
    return CLIPBundle(clip_models.meru(), tokenize, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.fixture(scope="module")
def images(clip):
    return clip_models.random_images(clip.model, 5)


def tangents(clip, features, alpha):
    """Vectors at the origin, whose length is the distance of their points."""
    return features.detach().double() * alpha.detach().double().exp()


def image_tangents(clip, images):
    with torch.no_grad():
        return tangents(clip, encode_image(clip.model, images), clip.model.visual_alpha)


def text_tangents(clip, template):
    with torch.no_grad():
        tokens = tokenize([template.format(name) for name in NAMES])
        return tangents(clip, encode_text(clip.model, tokens), clip.model.textual_alpha)


def distances(u, v, c):
    """By the hyperbolic law of cosines, of the lengths of two tangents and their angle."""
    a, b = (x.norm(dim=-1, keepdim=True) for x in (u, v))
    cosine = (u / a) @ (v / b).T
    a, b, root = a * c.sqrt(), (b * c.sqrt()).T, c.sqrt()
    return torch.acosh((a.cosh() * b.cosh() - a.sinh() * b.sinh() * cosine).clamp(min=1)) / root


def plain(clip, images, texts):
    c, scale = (
        clip.model.curv.detach().double().exp(),
        clip.model.logit_scale.detach().double().exp(),
    )
    return -scale * distances(image_tangents(clip, images), texts, c)


@pytest.mark.parametrize("ensemble", [False, True])
def test_zero_shot_by_the_law_of_cosines(clip, images, ensemble):
    host = build_host(clip, "zeroshot", ensemble=ensemble)
    host.set_classes(NAMES)
    templates = host.mean_templates if ensemble else [host.template]
    texts = sum(text_tangents(clip, template) for template in templates) / len(templates)
    found = host(images).logits()
    assert torch.allclose(found.double(), plain(clip, images, texts), atol=2e-3)
    assert torch.equal(found, host(host.frozen_features(images)).logits())


def test_a_linear_probe_reads_tangent_vectors(clip, images):
    host = build_host(clip, "linear-probe", classes=4)
    host.set_classes(NAMES)
    torch.nn.init.normal_(host.learner.weight, generator=torch.Generator().manual_seed(0))
    expected = image_tangents(clip, images) @ host.learner.weight.detach().double().T
    assert torch.allclose(host(images).logits().double(), expected, atol=1e-4)


def test_a_tip_adapter_adds_its_cache_of_directions_to_minus_the_distances(clip, images):
    host = build_host(clip, "tip-adapter", keys=5, classes=4, alpha=1.5, beta=2.0)
    host.set_classes(NAMES)
    labels = torch.tensor([0, 1, 2, 3, 1])
    host.fill(host.frozen_features(images), labels)
    own = torch.nn.functional.normalize(image_tangents(clip, images), dim=-1)
    cache = 1.5 * torch.exp(-2.0 * (1 - own @ own.T)) @ torch.eye(4, dtype=torch.double)[labels]
    known = plain(clip, images, text_tangents(clip, host.template))
    assert torch.allclose(host(images).logits().double(), known + cache, atol=2e-3)
    # The search begins at distances, too: with a cache that cannot help it is as right as they are.
    host.learner.values.zero_()
    assert host.search(host.frozen_features(images), known.argmax(-1)) == 100
    assert host.search(host.frozen_features(images), known.argmin(-1)) == 0


def test_what_has_no_meaning_there_is_refused(clip):
    for name in ("maple", "coop", "promptsrc", "clip-adapter"):
        with pytest.raises(
            HypvisionError,
            match=f"'{name}' .*hyperboloid. .*: linear-probe, tip-adapter, zeroshot.",
        ):
            build_host(clip, name)
    with pytest.raises(HypvisionError, match="LatHAdapter .* hyperboloid: leave out"):
        FewShotCLIP(clip, dict(name="zeroshot"), dict(type="lathadapter", classes=4))

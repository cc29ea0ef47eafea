"""Walks of one image, on the sphere and on the hyperboloid, against a plain walk and by hand."""

import math

import pytest
import torch
from helpers.cases import each
from references import radial as reference

from hypvision.clip.radial.traversal import hierarcaps_traversal, meru_traversal
from hypvision.clip.spaces import Hyperboloid, Sphere
from hypvision.geometry import lorentz


def units(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator), dim=-1)


@each("measure", ["cosine", "distance"])
@each("steps", [50, 3])
def test_hierarcaps_walk(measure, steps):
    texts, image, root = units(60, 8), units(8, seed=1), units(8, seed=2)
    words = [f"w{i % 40}" for i in range(60)]  # some texts twice
    space = Sphere(root, measure)
    radii = 1 - texts @ root if measure == "cosine" else (texts - root).norm(dim=-1)
    found = hierarcaps_traversal(image, texts, words, space, steps)
    expected = reference.traverse((texts @ image).tolist(), radii.tolist(), words, steps)
    assert [step.text for step in found] == [text for _, _, text in expected]
    for step, (threshold, similarity, _) in zip(found, expected):
        assert step.threshold == pytest.approx(threshold, abs=1e-6)
        assert step.similarity == pytest.approx(similarity, abs=1e-6)
        assert step.radius <= step.threshold + 1e-6


def test_both_measures_order_alike():
    texts, root = units(50, 6), units(6, seed=3)
    distance, cosine = Sphere(root).radius(texts), Sphere(root, "cosine").radius(texts)
    assert torch.equal(distance.argsort(), cosine.argsort())
    assert torch.allclose(distance**2, 2 * cosine, atol=1e-5)
    with pytest.raises(ValueError, match="measure"):
        Sphere(root, "angle")


def ray(*radii):
    """Points on one ray of the hyperboloid, by their distances from the origin, and one on another
    ray."""
    tangents = torch.tensor([[radius, 0.0] for radius in radii] + [[0.0, 1.0]])
    return lorentz.expmap0(tangents, 1.0)


def test_meru_walk_goes_down_the_ray():
    texts = ray(0.3, 1.0, 2.0)
    words = ["animal", "dog", "a brown dog", "a car"]
    image = lorentz.expmap0(torch.tensor([2.2, 0.0]), 1.0)
    space = Hyperboloid(1.0, min_radius=0.05)
    found = meru_traversal(image, texts, words, space, 50)
    assert [step.text for step in found] == ["a brown dog", "dog", "animal", "[ROOT]"]
    assert [step.threshold for step in found] == sorted(step.threshold for step in found)
    # Without cones nearer texts win, not those that hold the point: "dog" stays only while it is
    # nearest.
    near = meru_traversal(image, texts, words, space, 50, cones=False)
    assert [near[0].text, *(step.text for step in near[-2:])] == ["a brown dog", "animal", "[ROOT]"]


def test_points_towards_the_root():
    x = lorentz.expmap0(torch.tensor([0.6, 0.8]), 2.0)
    points = Hyperboloid(2.0).way(x, 5)
    assert torch.allclose(
        lorentz.dist0(points, 2.0), torch.tensor([1.0, 0.75, 0.5, 0.25, 0.0]), atol=1e-5
    )
    sphere = Sphere(torch.tensor([0.0, 1.0])).way(torch.tensor([1.0, 0.0]), 3)
    assert torch.allclose(sphere, torch.tensor([[1.0, 0], [math.sqrt(0.5)] * 2, [0, 1]]), atol=1e-6)


def test_ways_between_two_images():
    tangents = torch.tensor([[1.5, 0.5], [-0.5, 1.0]])
    x, y = lorentz.expmap0(tangents, 2.0)
    points = Hyperboloid(2.0).way(x, 4, y)
    expected = torch.stack(
        [tangents[0] + share * (tangents[1] - tangents[0]) for share in (0, 1 / 3, 2 / 3, 1)]
    )
    assert torch.allclose(lorentz.logmap0(points, 2.0), expected, atol=1e-5)
    x, y = units(2, 6)
    points = Sphere().way(x, 3, y)
    assert torch.allclose(points, torch.stack([x, (x + y) / (x + y).norm(), y]), atol=1e-6)


def test_the_walk_to_another_image_finds_what_lies_between():
    tangents = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0], [-2.0, -2.0]])
    images, space = lorentz.expmap0(tangents, 1.0), Hyperboloid(1.0)
    found = meru_traversal(
        images[0], images, ["a", "between", "b", "far"], space, 51, cones=False, end=images[2]
    )
    assert [step.text for step in found] == ["a", "between", "b"]
    assert found[1].threshold < 0.5 < found[2].threshold
    apart = lorentz.expmap0(
        torch.tensor([[2.0, 0.0], [-2.0, 0.0]]), 1.0
    )  # the straight line leads over the root
    found = meru_traversal(apart[0], apart, ["a", "b"], space, 51, cones=False, end=apart[1])
    assert [step.text for step in found] == ["a", "[ROOT]", "b"]


def test_meru_walk_of_clip():
    root, texts, words = units(8, seed=4), units(30, 8), [f"w{i}" for i in range(30)]
    image = texts[3]
    found = meru_traversal(image, texts, words, Sphere(root), 50)
    assert found[0].text == "w3" and found[0].similarity == pytest.approx(1, abs=1e-5)
    expected = []
    for share in range(
        50
    ):  # of the official code: CLIP has no cones, and the root is one of the texts
        point = (1 - share / 49) * image + share / 49 * root
        nearest = int((torch.cat([texts, root[None]]) @ (point / point.norm())).argmax())
        expected.append([*words, "[ROOT]"][nearest])
    assert [step.text for step in found] == list(dict.fromkeys(expected)) and found[
        -1
    ].text == "[ROOT]"


def test_hyperboloid_similarity_is_the_lorentzian_product():
    x, y = ray(0.5, 1.5), ray(0.2)
    found = Hyperboloid().similarity(x, y)
    assert torch.allclose(
        torch.acosh((-found).clamp(min=1)), lorentz.dist(x[:, None], y[None], 1.0), atol=1e-3
    )

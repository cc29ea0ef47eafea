"""The Poincare disk and the trees: geometry says what is right; a figure is an image."""

import io

import numpy as np
import pytest
import torch
from helpers.cases import each
from PIL import Image
from scipy.cluster.hierarchy import leaves_list

from hypvision.geometry import Euclidean, Lorentz, PoincareBall, lorentz, poincare
from hypvision.viz.disk import draw_embedding, draw_hierarchy, geodesic_arc, poincare_disk, to_disk
from hypvision.viz.tree import (
    average_linkage,
    cophenetic_correlation,
    cophenetic_distances,
    draw_tree,
)


def distances(xy):
    x = torch.from_numpy(xy)
    return poincare.cdist(x, x, 1.0).numpy()


@each("c", [0.3, 1.0])
@each("centre", ["mean", "origin"])
def test_two_dimensions_are_shown_without_distortion(c, centre):
    space, ball = Lorentz(c), PoincareBall(c)
    x = space.random(20, 2, dtype=torch.float64)
    expected = space.cdist(x, x).numpy() * c**0.5
    for points, manifold in ((x, space), (ball.from_lorentz(x), ball)):
        xy = to_disk(points, manifold, centre, scale=1.0)
        assert np.allclose(distances(xy), expected, atol=1e-5)


def test_more_dimensions_keep_the_distance_from_the_centre():
    space = Lorentz(0.5)
    x = space.random(30, 7, dtype=torch.float64)
    middle = space.centroid(x)
    xy = to_disk(x, space, scale=1.0)
    expected = space.dist(x, middle.expand_as(x)).numpy() * 0.5**0.5
    assert np.allclose(2 * np.arctanh(np.linalg.norm(xy, axis=1)), expected, atol=1e-6)
    xy = to_disk(x, space, centre=x[3], scale=1.0)
    assert np.allclose(xy[3], 0, atol=1e-6)
    # points that lie in a plane are shown as they lie
    flat = torch.cat([x[:, :3], torch.zeros(30, 5)], 1)
    flat = lorentz.from_space(flat[:, 1:], 0.5)
    assert np.allclose(
        distances(to_disk(flat, space, scale=1.0)),
        space.cdist(flat, flat).numpy() * 0.5**0.5,
        atol=1e-5,
    )


def test_far_points_stay_inside_and_bad_arguments_are_told():
    x = Lorentz(1.0).expmap0(torch.randn(9, 4) * 30)
    assert np.linalg.norm(to_disk(x, Lorentz(1.0)), axis=1).max() <= 0.951
    assert np.linalg.norm(to_disk(x, Lorentz(1.0), scale=1.0), axis=1).max() < 1
    assert to_disk(torch.zeros(3, 2), Euclidean()).tolist() == [[0, 0]] * 3
    assert np.allclose(
        to_disk(torch.tensor([[0.7, 0.0]]), Euclidean(), "origin", 1.0), [[np.tanh(0.35), 0]]
    )
    with pytest.raises(ValueError, match=r"\(N, d\)"):
        to_disk(x[0], Lorentz(1.0))
    with pytest.raises(ValueError, match="centre"):
        to_disk(x, Lorentz(1.0), "median")


def test_geodesics_are_circles_at_right_angles_to_the_rim():
    p, q = np.array([0.5, 0.3]), np.array([-0.2, 0.6])
    arc = geodesic_arc(p, q, 50)
    assert np.allclose(arc[0], p) and np.allclose(arc[-1], q)
    # a circle with centre m, radius r meets the unit circle at right angles where |m|^2 = 1 + r^2
    middle = np.linalg.solve(2 * np.stack([p, q]), 1 + (np.stack([p, q]) ** 2).sum(1))
    assert np.allclose(np.linalg.norm(arc - middle, axis=1), (middle @ middle - 1) ** 0.5)
    steps = [poincare.dist(*torch.from_numpy(arc[i : i + 2]), 1.0).item() for i in range(49)]
    assert np.allclose(steps, steps[0])


def test_many_segments_are_those_drawn_one_by_one():
    _, disk = poincare_disk()
    starts, ends = np.array([[0.1, 0.2], [-0.7, 0.0]]), np.array([[0.5, -0.4], [0.1, 0.9]])
    disk.geodesics(starts, ends, steps=16)
    arcs = disk.axes.collections[0].get_segments()
    assert len(arcs) == 2
    for arc, p, q in zip(arcs, starts, ends):
        assert np.allclose(arc, geodesic_arc(p, q, 16), atol=1e-12)


def test_circles_are_at_their_distance():
    _, disk = poincare_disk(grid=())
    disk.circle((0.4, -0.3), 1.2)
    drawn = disk.axes.patches[-1]
    angles = np.linspace(0, 6, 9)
    boundary = np.array(drawn.center) + drawn.radius * np.stack([np.cos(angles), np.sin(angles)], 1)
    centre = torch.tensor([[0.4, -0.3]], dtype=torch.float64).expand(9, 2)
    found = poincare.dist(torch.from_numpy(boundary), centre, 1.0)
    assert torch.allclose(found, torch.full_like(found, 1.2))


def pixels(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    return np.asarray(Image.open(buffer).convert("RGB")).reshape(-1, 3)


def test_an_embedding_is_drawn_in_the_colours_of_its_classes():
    x = Lorentz(1.0).random(40, 5)
    labels = [i % 2 for i in range(40)]
    plain = draw_embedding(x, labels, Lorentz(1.0), ("cat", "dog"), title="two classes")
    with_proxies = draw_embedding(x, labels, Lorentz(1.0), proxies=Lorentz(1.0).random(10, 5))
    for figure in (plain, with_proxies):
        assert len(np.unique(pixels(figure), axis=0)) > 20
    assert {text.get_text() for text in plain.axes[0].texts} == {"cat", "dog"}
    assert len(with_proxies.axes[0].collections[0].get_offsets()) == 10


def test_a_name_without_room_above_its_point_stands_below():
    x = torch.tensor([[0.0, 0.0], [0.5, 0.5], [0.5, 0.48], [0.5, 0.46]])
    below = np.array([[1, 0], [2, 0], [3, 0]])
    figure = draw_hierarchy(x, PoincareBall(1.0), ["top", "first", "second", "third"], below)
    places = {text.get_text(): text.get_va() for text in figure.axes[0].texts}
    assert places == {
        "top": "baseline",
        "first": "baseline",
        "second": "top",
    }  # there is no room for the third


# Trees


@each("count", [2, 3, 25])
def test_average_linkage_joins_by_mean_distance(count):
    x = np.random.default_rng(count).normal(size=(count, 3))
    d = np.linalg.norm(x[:, None] - x[None], axis=2)
    found = average_linkage(d)
    members, joined = {i: [i] for i in range(count)}, np.zeros((count, count))
    for number, (a, b, height, size) in enumerate(found, start=count):
        one, other = members.pop(int(a)), members.pop(int(b))
        nearest = (
            min(d[np.ix_(p, q)].mean() for p in members.values() for q in (one, other))
            if members
            else np.inf
        )
        assert height == pytest.approx(d[np.ix_(one, other)].mean()) and height <= nearest + 1e-9
        joined[np.ix_(one, other)] = joined[np.ix_(other, one)] = height
        members[number] = one + other
        assert size == len(members[number])
    assert np.abs(cophenetic_distances(found) - joined).max() < 1e-15
    assert sorted(leaves_list(found)) == list(range(count))


def test_a_tree_is_recovered_from_its_distances():
    # ((0, 1), 2), (3, 4) with heights 1, 2, 1.5 and 4
    true = np.array(
        [[0, 1, 2, 4, 4], [1, 0, 2, 4, 4], [2, 2, 0, 4, 4], [4, 4, 4, 0, 1.5], [4, 4, 4, 1.5, 0]]
    )
    assert np.allclose(cophenetic_distances(average_linkage(true)), true)
    assert cophenetic_correlation(true, 3 * true + 1) == pytest.approx(1)
    above = np.triu_indices(5, 1)
    noise = np.random.default_rng(0).normal(size=(5, 5))
    other = noise + noise.T
    assert cophenetic_correlation(true, other) == pytest.approx(
        np.corrcoef(true[above], other[above])[0, 1]
    )
    assert np.isnan(cophenetic_correlation(true, np.ones((5, 5))))
    for wrong in (noise, true[:1], true[:1, :1]):
        with pytest.raises(ValueError, match="symmetric"):
            average_linkage(wrong)


def test_trees_are_drawn_with_names_and_images():
    linkage = average_linkage(np.array([[0, 1, 4], [1, 0, 4], [4, 4, 0.0]]))
    figure = draw_tree(
        linkage,
        ["cat", "dog", "ship"],
        leaf_images=[Image.new("RGB", (8, 8), "red")] * 3,
        title="tree",
    )
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        ("cat", "dog", "ship")[i] for i in leaves_list(linkage)
    ]
    assert sum(len(lines.get_segments()) for lines in axes.collections) == 2
    assert (pixels(figure) == [255, 0, 0]).all(1).any()
    with pytest.raises(ValueError, match="3 leaves needs 3 labels"):
        draw_tree(linkage, ["cat"])

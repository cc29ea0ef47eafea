import numpy as np
import pytest
import torch
from draw_methods import DRAWINGS, at, boosted, centroid, cone, draw
from matplotlib.path import Path
from PIL import Image

from hypvision.geometry import lorentz, poincare


def test_the_cone_that_is_drawn_is_that_of_the_loss():
    apex = at(0.75, 75)
    outline = Path(cone(apex, 0.25))
    generator = np.random.default_rng(0)
    points = np.stack(
        [at(radius, degrees) for radius, degrees in generator.uniform((0.1, 0), (4, 360), (200, 2))]
    )
    on = [
        lorentz.expmap0(2 * poincare.logmap0(torch.from_numpy(p), 1.0), 1.0) for p in (points, apex)
    ]
    angles = lorentz.exterior_angle(on[1].expand_as(on[0]), on[0], 1.0)
    entailed = (angles < lorentz.half_aperture(on[1], 1.0, 0.25)).numpy()
    assert 5 < entailed.sum() < 100
    assert np.array_equal(outline.contains_points(points), entailed)


def test_a_rotation_and_a_boost_keep_distances():
    points = torch.rand(6, 2, dtype=torch.float64) - 0.5
    before, _, after = (torch.from_numpy(xy) for xy in boosted(points, 35, at(1.6, 25)))
    torch.testing.assert_close(
        poincare.cdist(after, after, 1.0), poincare.cdist(before, before, 1.0)
    )
    torch.testing.assert_close(before, points)


def test_the_average_of_two_points_is_the_middle_of_their_geodesic():
    ends = np.stack([at(1.0, 100), at(2.4, 330)])
    middle = torch.from_numpy(centroid(ends, [0.5, 0.5]))
    first, last = torch.from_numpy(ends)
    halves = [poincare.dist(end, middle, 1.0) for end in (first, last)]
    torch.testing.assert_close(halves[0], halves[1])
    torch.testing.assert_close(2 * halves[0], poincare.dist(first, last, 1.0))
    # of equal weights, all on one point
    np.testing.assert_allclose(centroid(np.stack([ends[0]] * 3), [0.2, 0.3, 0.5]), ends[0])


@pytest.mark.slow
@pytest.mark.drawn
def test_every_drawing_is_written(tmp_path):
    draw(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(DRAWINGS)
    assert all(Image.open(path).width > 400 for path in tmp_path.iterdir())

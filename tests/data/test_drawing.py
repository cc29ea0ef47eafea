"""Outlines, textures and sprites against closed forms."""

import math

import numpy as np
import pytest

from hypvision.data.drawing import (
    COLOURS,
    OUTLINES,
    PARTS,
    TEXTURES,
    Sprite,
    add_noise,
    draw_background,
    rasterise,
)


def polygon(sides: int) -> float:
    return sides / 2 * math.sin(2 * math.pi / sides)


def crescent() -> float:
    """The unit disk without its overlap with a disk of radius 0.82 around (0.5, 0): a lens of two
    circular segments."""
    d, r = 0.5, 0.82
    a, b = (d * d + 1 - r * r) / (2 * d), (d * d + r * r - 1) / (2 * d)
    lens = (
        math.acos(a)
        - a * math.sqrt(1 - a * a)
        + r * r * math.acos(b / r)
        - b * math.sqrt(r * r - b * b)
    )
    return math.pi - lens


def bars(count: int, width: float) -> float:
    """Rectangles through one point: their sum, less the rhombs that two share, plus what all
    share."""
    total = count * 4 * width * math.sqrt(1 - width * width)
    if count == 2:
        return total - 4 * width * width
    return total - 3 * 4 * width * width / math.sin(math.pi / 3) + 2 * math.sqrt(3) * width * width


AREAS = {  # in the unit circle
    "disk": math.pi,
    "ring": math.pi * (1 - 0.52**2),
    "ellipse": math.pi / 2,
    "crescent": crescent(),
    "triangle": polygon(3),
    "square": polygon(4),
    "pentagon": polygon(5),
    "hexagon": polygon(6),
    "star": 5 * math.sin(math.pi / 5) * math.cos(2 * math.pi / 5) / math.cos(math.pi / 5),
    "cross": bars(2, 0.3),
    "asterisk": bars(3, 0.17),
    "arrow": 1.25 * 0.4 + 0.9 * 0.7 - 0.2 * 0.4,
}


def sprite(shape="disk", texture="plain", **changes) -> Sprite:
    values = dict(
        colour="red", x=80.0, y=80.0, radius=60.0, angle=0.0, period=20.0, grain=0.0,
        phase=(0.0, 0.0), lighter=True, tint=(0.0, 0.0, 0.0),
    )  # fmt: skip
    return Sprite(shape=shape, texture=texture, **{**values, **changes})


@pytest.mark.parametrize("angle", [0.0, 0.4])
@pytest.mark.parametrize("shape", AREAS)
def test_areas(shape, angle):
    stamp = rasterise(sprite(shape, angle=angle), 160, 160)
    # Coverage is right to second order; only corners of less than a pixel are rounded.
    assert stamp.cover.sum() / 60**2 == pytest.approx(AREAS[shape], rel=0.012)
    assert stamp.inside.sum() / 60**2 == pytest.approx(AREAS[shape], rel=0.02)


@pytest.mark.parametrize("shape", OUTLINES)
def test_every_shape_fits_its_circle_and_turns_with_its_angle(shape):
    upright = rasterise(sprite(shape, x=64.0, y=64.0), 128, 128)
    grid = np.arange(128) + 0.5 - 64
    distance = np.hypot(grid[:, None], grid[None, :])[upright.window]
    assert distance[upright.inside].max() <= 60.6
    turned = rasterise(
        sprite(shape, x=64.0, y=64.0, angle=math.pi / 2), 128, 128
    )  # clockwise: y points down
    assert (np.rot90(upright.inside, -1) != turned.inside).mean() < 2e-3
    cut = rasterise(sprite(shape, x=0.0, y=128.0), 128, 128)
    assert cut.cover.shape == (61, 61) and cut.window == (slice(67, 128), slice(0, 61))
    assert np.array_equal(cut.inside, upright.inside[:61, -61:])  # the upper right quarter


@pytest.mark.parametrize(
    ("texture", "share"), [("striped", 0.5), ("checkered", 0.5), ("dotted", math.pi * 0.31**2)]
)
def test_textures_mix_two_shades(texture, share):
    stamp = rasterise(sprite("disk", texture, lighter=False, grain=0.3), 160, 160)
    inner = stamp.cover == 1
    red = stamp.paint[..., 0][inner] / COLOURS["red"][0]  # 1 in the first shade, 0.4 in the second
    assert red.min() == pytest.approx(0.4, abs=0.01) and red.max() == pytest.approx(1, abs=0.01)
    assert ((1 - red) / 0.6).mean() == pytest.approx(share, abs=0.03)
    lighter = rasterise(sprite("disk", texture, grain=0.3), 160, 160).paint[inner]
    assert lighter.max(0) == pytest.approx([c + (255 - c) * 0.65 for c in COLOURS["red"]], abs=1)


def test_plain_has_one_colour_and_its_tint():
    stamp = rasterise(sprite(tint=(5.0, -5.0, 3.0)), 160, 160)
    assert np.unique(stamp.paint.reshape(-1, 3), axis=0).tolist() == [[220, 30, 48]]


@pytest.mark.parametrize("shape", ["car", "face", "house", "tree"])
def test_parts_lie_in_wholes(shape):
    stamp = rasterise(sprite(shape, "striped", angle=0.2), 160, 160)
    names = [part.name for part in OUTLINES[shape]]
    assert {PARTS[number - 1] for number in np.unique(stamp.parts) if number} == {
        f"{shape}/{name}" for name in names
    }
    assert np.array_equal(
        stamp.parts > 0, stamp.inside
    )  # every pixel of the whole is one part, none lies outside
    if shape == "face":
        whole = math.pi * 60**2
        assert (stamp.parts == PARTS.index("face/eye") + 1).sum() == pytest.approx(
            2 * 0.17**2 * whole, rel=0.05
        )


def test_blend_paints_by_coverage():
    canvas = np.full((160, 160, 3), 100, dtype=np.float32)
    stamp = rasterise(sprite(), 160, 160)
    stamp.blend(canvas)
    edge = (stamp.cover > 0.2) & (stamp.cover < 0.8)
    expected = 100 + stamp.cover[edge][:, None] * (np.array(COLOURS["red"]) - 100)
    np.testing.assert_allclose(canvas[stamp.window][edge], expected, atol=1e-3)
    assert (canvas[:15] == 100).all()


@pytest.mark.parametrize("size", [(32, 32), (33, 190)])
def test_background_is_grey_smooth_and_of_any_size(size):
    ground = draw_background(np.random.default_rng(0), *size)
    assert ground.shape == (*size, 3) and ground.min() > 30 and ground.max() < 230
    assert np.ptp(ground, axis=2).max() <= 17  # nearly grey
    assert (
        np.abs(np.diff(ground, axis=0)).max() < 70 * 3 / size[0]
        and np.abs(np.diff(ground, axis=1)).max() < 7
    )
    image = add_noise(np.random.default_rng(1), ground)
    assert image.dtype == np.uint8 and np.abs(image - ground).max() <= 6.5


def test_texts_name_what_there_is():
    assert (
        tuple(sorted(TEXTURES)) == TEXTURES
        and list(COLOURS) == sorted(COLOURS)
        and len(set(PARTS)) == len(PARTS)
    )

"""The page of a disk: its data, and places after a walk, against the formulas of the ball."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch
from PIL import Image

from hypvision.geometry import poincare
from hypvision.viz.disk_page import DiskPage, draw_page, geodesics, moved, write_gif, write_page

PLACES = np.array([[0.0, 0.0], [0.6, 0.2], [-0.3, -0.7], [0.9, 0.3]])


def page(label="root </script>"):
    return DiskPage(
        title="a <b>",
        frames=np.stack([0.1 * PLACES, PLACES]),
        labels=[label, "left", "right", "leaf"],
        edges=np.array([[1, 0], [2, 0], [3, 1]]),
        shades=np.array([[0.6, 0.6, 0.6], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]),
        order=[0, 1, 2, 3],
        pictures={3: Image.new("RGB", (96, 96), (0, 128, 0))},
    )


def test_a_walk_is_the_translation_of_the_ball():
    z = PLACES[:, 0] + 1j * PLACES[:, 1]
    points = torch.from_numpy(PLACES)
    a = points[1].expand_as(points)
    expected = poincare.mobius_add(-a, points, 1.0).numpy()
    found = moved(z, z[1])
    assert np.allclose(np.stack([found.real, found.imag], -1), expected)
    arc = geodesics(z[1:2], z[2:3])[0]
    there = torch.from_numpy(np.stack([arc.real, arc.imag], -1))
    first, last = (points[n].expand_as(there) for n in (1, 2))
    whole = poincare.dist(points[1], points[2], 1.0)
    parts = poincare.dist(first, there, 1.0) + poincare.dist(there, last, 1.0)
    assert torch.allclose(parts, whole.expand_as(parts))
    assert np.allclose([arc[0], arc[-1]], z[1:3])


def test_one_file_with_all_data(tmp_path):
    path = tmp_path / "page.html"
    write_page(page(), path)
    text = path.read_text()
    assert "a &lt;b&gt;" in text and "a <b>" not in text
    assert not re.search(r"https?://", text) and "default-src 'none'" in text
    content = re.search(r'application/json">(.*?)</script>', text, re.DOTALL).group(1)
    data = json.loads(content)
    assert data["labels"][0] == "root </script>"
    assert np.allclose(data["frames"][-1], PLACES)
    assert data["pictures"]["3"].startswith("data:image/jpeg;base64,")
    assert data["colours"][1] == "#ff0000"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_computes_the_same(tmp_path):
    path = tmp_path / "page.html"
    write_page(page(), path)
    script = re.search(r'<script>\n"use strict";(.*?)</script>', path.read_text(), re.DOTALL)
    lines = """
        const home = {a: [1, 0], b: [0, 0]};
        const once = then([0.6, 0.2], home);
        const twice = then(apply(once, [-0.3, -0.7]), once);
        console.log(JSON.stringify([apply(once, [0.9, 0.3]), apply(twice, [-0.3, -0.7]),
                                    ...geodesic([0.6, 0.2], [-0.3, -0.7], 11)]));
    """
    ran = subprocess.run(
        ["node", "-e", script.group(1) + lines], capture_output=True, text=True, check=True
    )
    found = np.array(json.loads(ran.stdout)) @ [1, 1j]
    expected = moved(np.array([0.9 + 0.3j]), 0.6 + 0.2j)
    assert np.allclose(found[:1], expected) and abs(found[1]) < 1e-12
    assert np.allclose(found[2:], geodesics(np.array([0.6 + 0.2j]), np.array([-0.3 - 0.7j]))[0])


def test_the_drawing_has_names_where_they_are():
    drawn = np.asarray(draw_page(page(""), PLACES @ [1, 1j], 200)).astype(int)
    row, column = 100 - round(99 * 0.2), 100 + round(99 * 0.6)
    red, green, blue = drawn[row, column]
    assert red > 200 and green < 80 and blue < 80
    row, column = 100 - round(99 * 0.3), 100 + round(99 * 0.9)
    assert drawn[row, column, 1] > 100 and drawn[row, column, 0] < 60  # its picture is green


def test_gif(tmp_path):
    path = tmp_path / "walk.gif"
    write_gif(page(), path, size=100)
    with Image.open(path) as gif:
        assert gif.size == (100, 100) and gif.n_frames > 10

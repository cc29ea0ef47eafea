"""The tutorial does what it says: its code runs and prints what stands there, its images and links
exist."""

import doctest
import importlib
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from hypvision.geometry import PoincareBall
from hypvision.nn import OnTangent

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "geometry.md").read_text(encoding="utf-8")


def test_code_blocks_run_and_print_what_the_page_shows():
    pytest.importorskip("mmengine")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 8 and all(">>> " in block for block in blocks)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "docs/geometry.md", None, 0)
    report = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert result.attempted > 40
    assert result.failed == 0, "".join(report)


def test_links_and_pictures_are_there():
    targets = re.findall(r"\]\(([^)#]+)", PAGE)
    assert "images/geometry/tree.png" in targets
    for target in targets:
        assert (DOCS / target).is_file(), target


def test_what_replaces_hypll_exists():
    """Every name of the table that begins with the package, and every method of the manifold."""
    table = PAGE.partition("## Coming from HypLL")[2].partition("\n## ")[0]
    cells = [row.split("|")[2] for row in table.splitlines() if row.startswith("| ")][1:]
    assert len(cells) == 16
    names = set(re.findall(r"hypvision\.(?:\w+\.)*\w+", "".join(cells)))
    assert {"hypvision.compat.PoincareConv2d", "hypvision.nn.OnTangent"} < names
    for name in names:
        module, _, member = name.rpartition(".")
        assert member in importlib.import_module(module).__all__, name
    ball = PoincareBall(1.0)
    for name in ("centroid", "frechet_mean", "cdist", "gyration", "mobius_add", "transp"):
        assert name in "".join(cells) and callable(getattr(ball, name))


def test_the_table_of_hypll_says_what_it_computes():
    layers = pytest.importorskip("hypll.nn")
    from hypll.manifolds.poincare_ball import Curvature
    from hypll.manifolds.poincare_ball import PoincareBall as HypllBall
    from hypll.tensors import ManifoldTensor

    theirs = HypllBall(Curvature(1.0))
    ball = PoincareBall(float(theirs.c().detach()))
    assert float(ball.c) == pytest.approx(1.3133, abs=1e-4)
    x = ball.expmap0(0.3 * torch.randn(2, 4, 4, 3))
    maps = ManifoldTensor(x.movedim(-1, 1), manifold=theirs, man_dim=1)
    found = layers.HReLU(theirs)(maps).tensor.movedim(1, -1)
    torch.testing.assert_close(OnTangent(nn.ReLU(), ball)(x), found)
    pooled = nn.MaxPool2d(2)(ball.logmap0(x).movedim(-1, 1)).movedim(1, -1)
    found = layers.HMaxPool2d(2, theirs)(maps).tensor.movedim(1, -1)
    torch.testing.assert_close(ball.expmap0(pooled), found)
    linear = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    points = ManifoldTensor(x, manifold=theirs)
    found = layers.TangentSequential(linear, theirs)(points).tensor
    torch.testing.assert_close(OnTangent(linear, ball)(x), found)
    target = HypllBall(Curvature(0.3))
    found = layers.ChangeManifold(target)(points).tensor
    other = PoincareBall(float(target.c().detach()))
    torch.testing.assert_close(other.expmap0(ball.logmap0(x)), found)
    equal = x[:1, :1, :1].expand(1, 2, 2, 3).movedim(-1, 1).contiguous()
    found = layers.HAvgPool2d(2, theirs)(ManifoldTensor(equal, manifold=theirs, man_dim=1)).tensor
    assert (found.flatten() - x[0, 0, 0]).abs().max() > 0.01

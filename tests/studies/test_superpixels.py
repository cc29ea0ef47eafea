"""Measures of superpixels by closed forms, and the tool on what ships."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tools/demo_data"


@pytest.fixture(scope="module")
def tool():
    sys.path.insert(0, str(ROOT / "studies"))
    spec = importlib.util.spec_from_file_location("superpixels", ROOT / "studies/superpixels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(ROOT / "studies"))


def halves(at, side=12):
    """Two classes, left and right of column ``at``."""
    return (np.arange(side) >= at).astype(np.int64) * np.ones((side, 1), np.int64)


@pytest.mark.parametrize("shift, found", [(0, 1.0), (2, 1.0), (3, 0.0), (-2, 1.0), (-3, 0.0)])
def test_a_border_counts_within_two_pixels(tool, shift, found):
    assert tool.boundary_recall(halves(6 + shift), halves(6)) == found


def test_recall_of_part_of_a_border(tool):
    regions = halves(6)
    regions[6:] = (
        0  # the upper half has the border; below it its last row and a corner are near enough
    )
    recall = tool.boundary_recall(regions, halves(6))
    assert 0.5 < recall < 1
    assert np.isnan(tool.boundary_recall(regions, np.zeros((12, 12), np.int64)))
    assert tool.boundary_recall(np.zeros((12, 12), np.int64), halves(6)) == 0


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_undersegmentation_is_the_area_that_bleeds_counted_for_both_classes(tool, shift):
    # the left region has 12 x shift pixels of the right class: a minimum of that for each of the
    # two classes
    assert tool.undersegmentation(halves(6 + shift), halves(6)) == pytest.approx(2 * shift / 12)


def test_the_best_overlap_is_that_of_the_nearest_region(tool):
    mask = halves(6) == 1
    assert tool.best_overlaps(halves(6), [mask, ~mask]) == [1.0, 1.0]
    assert tool.best_overlaps(halves(9), [mask]) == [
        pytest.approx(0.5)
    ]  # 36 of 72; the other region has 36 of 144
    assert tool.best_overlaps(np.zeros((12, 12), np.int64), [mask]) == [pytest.approx(0.5)]


@pytest.mark.parametrize(
    "count, height, width, cells", [(12, 30, 40, 12), (1, 5, 5, 1), (100, 7, 7, 49)]
)
def test_a_grid_has_about_the_cells_asked_for(tool, count, height, width, cells):
    labels = tool.grid(count, height, width)
    assert labels.shape == (height, width) and len(np.unique(labels)) == cells
    sizes = np.bincount(labels.ravel())
    assert sizes.max() <= 2.5 * sizes[sizes > 0].min()


def test_photos_and_their_label_maps(tool, tmp_path):
    pytest.importorskip("skimage")
    for name in ("img", "ann"):
        (tmp_path / name).mkdir()
    for number in range(2):
        labels = halves(40 + 8 * number, 96)
        Image.fromarray((labels * 200).astype(np.uint8)).convert("RGB").save(
            tmp_path / f"img/{number}.png"
        )
        Image.fromarray(labels.astype(np.uint8)).save(tmp_path / f"ann/{number}.png")
    network = tool.clustering_network("zoo:hcformer_nano.cifar10")
    rows = tool.superpixels(network, tmp_path / "img", tmp_path / "ann", 2)
    slic = [row for row in rows if row["method"] == "SLIC"]
    assert slic[0]["boundary recall"] > 0.95 and slic[0]["achievable accuracy"] > 0.98


def test_a_model_without_clusters_is_refused(tool):
    with pytest.raises(tool.HypvisionError, match="does not cluster: take an HCFormer"):
        tool.clustering_network("zoo:tf_efficientnet_lite0.imagenet")

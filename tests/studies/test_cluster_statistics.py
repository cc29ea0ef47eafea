"""The numbers of the diagnosis tool: sharpness of assignments against closed forms; purity of
clusters made by hand."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

import hypvision.models  # noqa: F401 - registers the models
from hypvision.nn import ClusterAssignment

_TOOL = runpy.run_path(str(Path(__file__).parents[2] / "studies/hcformer_diagnosis.py"))
cluster_purity, grid_labels, purity, sharpness = (
    _TOOL[name] for name in ("cluster_purity", "grid_labels", "purity", "sharpness")
)


def test_uniform_and_hard_assignments_are_the_ends_of_the_scale():
    uniform = sharpness(torch.full((2, 3, 4, 5, 5), 0.25))
    assert uniform.excess == pytest.approx(0) and uniform.entropy == pytest.approx(1)
    assert uniform.spread == pytest.approx(0, abs=1e-6) and uniform.content == pytest.approx(0)
    hard = torch.eye(4)[torch.randint(4, (2, 3, 5, 5))].permute(0, 1, 4, 2, 3)
    hard = sharpness(hard)
    assert hard.excess == pytest.approx(1) and hard.entropy == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match="M >= 2"):
        sharpness(torch.ones(1, 1, 1, 3, 3))


def test_two_centres_by_the_closed_form():
    p = 0.8
    one = torch.tensor([p, 1 - p]).reshape(1, 1, 2, 1, 1)
    found = sharpness(torch.cat([one, one.flip(2)]))
    assert found.excess == pytest.approx(2 * p - 1)
    assert found.entropy == pytest.approx(-(p * math.log2(p) + (1 - p) * math.log2(1 - p)))
    assert found.spread == pytest.approx(math.log(p / (1 - p)) / 2)
    assert found.content == pytest.approx(1)  # the two images differ, their mean is uniform
    assert sharpness(torch.cat([one, one])).content == pytest.approx(0)  # the same in every image


def test_purity_counts_the_majority_of_each_cluster():
    labels = np.array([[0, 0, 0, 5], [5, 5, 7, 7]])
    classes = np.array([[1, 1, 2, 3], [3, 0, 255, 4]])
    assert purity(labels, classes) == pytest.approx((2 + 2 + 1) / 7)  # one pixel is ignored
    assert purity(classes, classes) == 1
    with pytest.raises(ValueError, match="ignored"):
        purity(labels, np.full_like(labels, 255))
    with pytest.raises(ValueError, match="the same shape"):
        purity(labels, classes[:1])


def test_grid_cells_quarter_each_window():
    index = (torch.arange(5) // 3).unsqueeze(1) * 2 + torch.arange(8) // 4
    cells = grid_labels(index, 2)
    assert cells[:, 0].tolist() == [0, 0, 2, 8, 10] and cells[0].tolist() == [
        0,
        0,
        1,
        1,
        4,
        4,
        5,
        5,
    ]
    assert len(np.unique(cells)) == 16


def test_clusters_along_an_edge_are_purer_than_cells_across_it():
    """Two classes meet in the middle of a cell; one centre for each follows the edge."""
    classes = np.repeat((np.arange(8) >= 3).astype(np.int64)[None], 8, axis=0)
    hard = torch.zeros(1, 2, 4, 8, 8)
    hard[0, :, 0], hard[0, :, 1] = (
        torch.from_numpy(classes == 0).float(),
        torch.from_numpy(classes == 1).float(),
    )
    assignment = ClusterAssignment(hard, torch.zeros(8, 8, dtype=torch.int64), None)
    mine, grid = cluster_purity(assignment, np.repeat(np.repeat(classes, 4, 0), 4, 1))
    assert mine == 1 and grid == pytest.approx((3 + 4) / 8)  # the left cells lose a column of four


def test_options_sharpen_a_network_before_training():
    """Centred features and a higher temperature: what the options are for."""
    torch.manual_seed(0)
    x = torch.randn(4, 3, 32, 32).cumsum(2).cumsum(3) / 32  # neighbours are alike, as in images
    arguments = dict(
        layers=(1, 1, 1, 1),
        img_size=32,
        patch_size=2,
        fold=(4, 2, 1, 1),
        prop=(2, 2, 4, 2),
        pad="minimal",
    )
    excess = []
    for options in ({}, dict(center=True), dict(center=True, alpha=4.0)):
        torch.manual_seed(0)
        model = timm.create_model("hcformer_nano", **arguments, **options).eval()
        found = model.forward_assignments(x)
        excess.append(np.mean([sharpness(entry.assignment.patch).excess for entry in found]))
    assert excess[0] < excess[1] < excess[2]

"""The softmax along a class tree, against every family by itself in float64."""

import json

import pytest
import torch
from references import segmentation as reference

from hypvision.io.errors import HypvisionError
from hypvision.losses.class_tree import ClassTree

TOY = {
    "organism": {"mammal": ["cat", "dog"], "fish": []},
    "vehicle": ["car", "train"],
}
NAMES = ("cat", "dog", "fish", "car", "train")


def test_nodes_are_numbered_as_published(tmp_path):
    (tmp_path / "toy.json").write_text(json.dumps(TOY))
    tree = ClassTree(NAMES, tmp_path / "toy.json")
    assert tree.names == (*NAMES, "organism", "vehicle", "mammal")
    assert tree.parents == [7, 7, 5, 6, 6, -1, -1, 5]
    assert ClassTree(NAMES[::-1], TOY).names[:5] == NAMES[::-1]
    assert not ClassTree(NAMES).state_dict()


@pytest.mark.parametrize("spread", [1.0, 60.0, 1e4])
@pytest.mark.parametrize("tree", [TOY, None])
def test_no_family_loses_its_mass(tree, spread):
    """The published code loses families whose logits lie 34 below the largest."""
    torch.manual_seed(0)
    made = ClassTree(NAMES, tree)
    logits = (spread * torch.randn(50, len(made.names))).requires_grad_()
    wide = logits.detach().double().requires_grad_()
    expected = reference.joints(wide, made.parents, 5)
    found = made(logits)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(50), rtol=1e-5, atol=1e-5)
    labels = torch.arange(50) % 5
    found[range(50), labels].sum().backward()
    expected[range(50), labels].sum().backward()
    torch.testing.assert_close(logits.grad.double(), wide.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("classes", "tree", "message"),
    [
        (NAMES[1:], TOY, "Missing: none; not a class: cat"),
        ((*NAMES, "bus"), TOY, "Missing: bus; not a class: none"),
        (("a", "a"), None, "should be the 2 classes, each once"),
        (NAMES, {"cat": ["dog"], "x": ["cat"]}, "has 'cat' twice"),
    ],
)
def test_trees_that_do_not_fit(classes, tree, message):
    with pytest.raises(HypvisionError, match=message):
        ClassTree(classes, tree)

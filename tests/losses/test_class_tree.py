"""The softmax along a class tree, against every family by itself in float64."""

import json

import pytest
import torch
from helpers.cases import each
from references import segmentation as reference

from hypvision.io.errors import HypvisionError
from hypvision.losses.class_tree import ClassTree

TOY = {"organism": {"mammal": ["cat", "dog"], "fish": []}, "vehicle": ["car", "train"]}
NAMES = ("cat", "dog", "fish", "car", "train")


def test_nodes_are_numbered_as_published(tmp_path):
    (tmp_path / "toy.json").write_text(json.dumps(TOY))
    tree = ClassTree(NAMES, tmp_path / "toy.json")
    assert tree.names == (*NAMES, "organism", "vehicle", "mammal")
    assert tree.parents == [7, 7, 5, 6, 6, -1, -1, 5]
    assert ClassTree(NAMES[::-1], TOY).names[:5] == NAMES[::-1]
    assert not ClassTree(NAMES).state_dict()


def test_the_official_files_name_the_root(tmp_path):
    (tmp_path / "toy.json").write_text(json.dumps({"root": TOY}))
    named = ClassTree(NAMES, tmp_path / "toy.json")
    plain = ClassTree(NAMES, TOY)
    assert (named.names, named.parents) == (plain.names, plain.parents)


@each("spread", [1.0, 60.0, 1e4])
@each("tree", [TOY, None])
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


def test_the_floors_of_the_official_code():
    """The sheet's pixel: a label below four families of two, all 60 below the largest node. Its
    loss is 60 + 4 log 2 = 62.8 and becomes 34.5 + 4 (60 - 34.5) = 136.4: the first probability and
    the sums of the four families are 1e-15. The four nodes get a gradient of -1, the largest, from
    which they are counted, that of all of them."""
    below = {"a": {"b": {"c": ["cat", "k"], "l": []}, "m": []}, "n": []}
    names = ("cat", "k", "l", "m", "n", "big")
    made, official = (
        ClassTree(names, {"big": [], "down": below}, which) for which in (False, True)
    )
    logits = torch.full((1, len(made.names)), -60.0)
    logits[0, names.index("big")] = 0.0
    logits.requires_grad_()
    assert -made(logits)[0, 0].item() == pytest.approx(62.8, abs=0.05)
    loss = -official.train()(logits)[0, 0]
    assert loss.item() == pytest.approx(136.38, abs=0.01)
    loss.backward()
    gradient = dict(zip(made.names, logits.grad[0].tolist()))
    assert gradient.pop("big") == 4
    assert [name for name, value in gradient.items() if value] == ["cat", "a", "b", "c"]
    assert {gradient[name] for name in ("cat", "a", "b", "c")} == {-1}
    # in evaluation each conditional probability is at least 1e-4
    joints = official.eval()(logits).exp()
    torch.testing.assert_close(joints[0, 0], torch.tensor(1e-20), rtol=1e-3, atol=0)
    torch.testing.assert_close(joints[0, 4], torch.tensor(1e-8), rtol=1e-3, atol=0)
    near = torch.randn(20, len(made.names))
    torch.testing.assert_close(official(near), made(near), rtol=1e-5, atol=1e-5)
    flat = ClassTree("ab", official=True).eval()(torch.tensor([0.0, -20.0])).exp()
    torch.testing.assert_close(flat, torch.tensor([1.0, 1e-4]))


@each(
    "classes, tree, message",
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

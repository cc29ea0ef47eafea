"""What work grows with: counts of comparisons, of looks at the disk and of large tensors, never
seconds."""

import gc
import os
import warnings

import numpy as np
import pytest
import torch
from helpers.cases import each
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("mmdet")
pytest.importorskip("mmseg")
from helpers.retrieval_layouts import write_cars, write_cub, write_inshop, write_sop
from PIL import Image

from hypvision.data.annotations import compare_names, name_difference
from hypvision.data.caption_folder import read_captions
from hypvision.data.closures import Closure
from hypvision.data.image_folder import ImageFolderDataset
from hypvision.data.multi_label import MultiLabelDataset
from hypvision.data.retrieval import CUB200, Cars196, InShop, StanfordOnlineProducts
from hypvision.geometry import Euclidean, Lorentz
from hypvision.io.files import many_objects
from hypvision.losses import SupConLoss, contrastive_loss
from hypvision.openmmlab.open_vocabulary.vocabulary import groups_of, held_out
from hypvision.tasks.closures import embed_closure
from hypvision.tasks.contrastive import distinct
from hypvision.tasks.metric_learning_metrics import GroupTree, lca_heights


class Name(str):
    """A text that counts how often it is compared with another object."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)


def with_columns(names, others):
    data = object.__new__(MultiLabelDataset)
    data._columns, data.table = None, "table.csv"
    data.labels, data.metainfo = np.zeros((1, len(names)), dtype=np.float32), dict(classes=names)
    data.use_classes(others)


LOOKUPS = {
    "captions of a contrastive step": lambda names, others: distinct([*names, *others]),
    "names of a file and a config": lambda names, others: compare_names(names, others, "The file"),
    "names of a model and its data": lambda names, others: name_difference(
        names, "The data", others, "the model"
    ),
    "classes of a group": lambda names, others: groups_of(names, dict(novel=others)),
    "classes left out": lambda names, others: held_out(names, others[: len(others) // 2]),
    "columns of a table": with_columns,
}


@each("name", LOOKUPS)
def test_names_are_not_searched_in_a_list(name):
    """A dict compares a name once or twice; a list of n names compares each n / 2 times."""
    counts = []
    for n in (200, 400):
        names, others = (
            [Name(f"class {i}") for i in range(n)],
            [Name(f"class {i}") for i in reversed(range(n))],
        )
        Name.compared = 0
        LOOKUPS[name](names, others)
        counts.append(Name.compared)
    assert counts[1] <= 2.2 * counts[0] + 20 and counts[1] < 20 * 400


def multi_label(root, count):
    for number in range(count):
        Image.new("L", (2, 2)).save(root / f"{number}.png")
    rows = "".join(f"{number}.png,a\n" for number in range(count))
    (root / "table.csv").write_text("image,labels\n" + rows)
    return lambda: MultiLabelDataset(str(root), str(root / "table.csv"), dict(input_size=8))


def captioned(root, count):
    (root / "images").mkdir()
    for number in range(count):
        Image.new("L", (2, 2)).save(root / "images" / f"{number}.png")
    rows = "".join(f"{number}.png,a cat\n" for number in range(count))
    (root / "captions.csv").write_text("image,caption\n" + rows)
    return lambda: read_captions(root)


def listed(root, count):
    for number in range(count):
        Image.new("L", (2, 2)).save(root / f"{number}.png")
    (root / "list.txt").write_text("".join(f"{number}.png 0\n" for number in range(count)))
    return lambda: ImageFolderDataset(
        str(root), dict(input_size=8), ann_file=str(root / "list.txt")
    )


def retrieval(kind, write):
    def make(root, count):
        write(root, images=count // 7)
        return lambda: kind(root, dict(input_size=8), "train")

    return make


LISTINGS = {
    "multi-label": multi_label, "captions": captioned, "list": listed,
    "cub": retrieval(CUB200, write_cub), "cars": retrieval(Cars196, write_cars),
    "sop": retrieval(StanfordOnlineProducts, write_sop), "inshop": retrieval(InShop, write_inshop),
}  # fmt: skip


@each("name", LISTINGS)
def test_files_are_listed_and_not_looked_at_one_by_one(name, tmp_path, monkeypatch):
    if name == "cars":
        pytest.importorskip("scipy")
    looks, stat = [], os.stat
    counts = []
    for count in (21, 42):
        (tmp_path / str(count)).mkdir()
        build = LISTINGS[name](tmp_path / str(count), count)
        looks.clear()
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            patch.setattr(
                os, "stat", lambda *args, **options: looks.append(args) or stat(*args, **options)
            )
            build()
        counts.append(len(looks))
    assert counts[1] <= counts[0] + 2


class Large(TorchDispatchMode):
    """Counts the results of at least so many numbers."""

    def __init__(self, size):
        super().__init__()
        self.size, self.found = size, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        made = out if isinstance(out, (tuple, list)) else (out,)
        tensors = [x for x in made if isinstance(x, torch.Tensor) and x.layout == torch.strided]
        # views and changes in place of the table itself make nothing
        old = {
            x.untyped_storage().data_ptr()
            for x in args
            if isinstance(x, torch.Tensor) and x.layout == torch.strided
        }
        self.found += sum(
            x.numel() >= self.size and x.untyped_storage().data_ptr() not in old for x in tensors
        )
        return out


@pytest.mark.parametrize("space", [Lorentz(1.0), Euclidean()])
def test_a_step_on_a_closure_makes_nothing_of_the_size_of_all_names(space):
    count = 3000
    closure = Closure(
        [str(n) for n in range(count)], np.stack([np.arange(1, count), np.arange(1, count) // 2], 1)
    )
    counts = []
    for steps in (1, 4):
        with Large(count) as large:
            embed_closure(closure, 2, space, steps=steps, batch=8, negatives=5)
        counts.append(large.found)
    assert counts[0] == counts[1]


class Written(TorchDispatchMode):
    """Counts the numbers that operations write."""

    found = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        made = out if isinstance(out, (tuple, list)) else (out,)
        self.found += sum(x.numel() for x in made if isinstance(x, torch.Tensor))
        return out


@pytest.mark.parametrize("loss", ["contrastive", "SupCon"])
def test_losses_of_all_pairs_write_some_tables_of_them(loss):
    counts = []
    for n in (128, 256, 512):
        x = torch.randn(n, 16, requires_grad=True)
        with Written() as written:
            if loss == "contrastive":
                sum(contrastive_loss(x @ x.T)).backward()
            else:
                SupConLoss()(x, torch.arange(n) // 2).backward()
        counts.append(written.found)
    assert counts[1] <= 4.1 * counts[0] and counts[2] <= 4.1 * counts[1]
    assert counts[2] < 46 * 512**2


def test_heights_of_pairs_need_no_table():
    ancestors = [(f"kind {i % 3}", f"group {i % 12}") for i in range(500)]
    table = lca_heights(ancestors)
    assert table.dtype == torch.int16
    one, other = torch.randint(500, (2, 300))
    with Large(500 * 20) as large:
        found = GroupTree(ancestors).heights(one, other)
    assert found.tolist() == table[one, other].tolist() and large.found == 0


def test_the_search_for_cycles_waits_while_a_file_is_read():
    with many_objects():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="x"), many_objects():
        raise ValueError("x")
    assert gc.isenabled()

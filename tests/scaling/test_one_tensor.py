"""One tensor of a large checkpoint comes as it is stored, and of the others no number is read."""

from pathlib import Path

import pytest
import torch
from helpers.cases import each
from safetensors.torch import save_file

from hypvision.io.errors import HypvisionError
from hypvision.scaling import one_tensor
from hypvision.scaling.one_tensor import read_tensor

HEAD = torch.arange(12, dtype=torch.bfloat16).view(4, 3)
WEIGHTS = {"head": HEAD, "body": torch.zeros(1000)}


def resident(tensor):
    """Bytes of a mapped tensor's file that are in this process's memory: 'Private_Clean' and the
    like of its map."""
    start = tensor.untyped_storage().data_ptr()
    inside, found = False, 0
    with open("/proc/self/smaps") as lines:
        for line in lines:
            first = line.split()[0]
            if "-" in first and not first.endswith(":"):
                low, high = (int(part, 16) for part in first.split("-"))
                inside = low <= start < high
            elif inside and first == "Rss:":
                found = int(line.split()[1]) * 1024
    return found


@each("kind", ["safetensors", "zip", "legacy"])
def test_a_tensor_comes_as_it_is_stored(tmp_path, kind):
    path = tmp_path / ("model.safetensors" if kind == "safetensors" else "pytorch_model.bin")
    if kind == "safetensors":
        save_file(WEIGHTS, path)
    else:
        torch.save({"model": WEIGHTS}, path, _use_new_zipfile_serialization=kind == "zip")
    for source in (path, tmp_path):
        name, found = read_tensor(source, lambda names: "head" if "head" in names else "")
        assert name == "head" and found.dtype == HEAD.dtype and torch.equal(found, HEAD)
    with pytest.raises(HypvisionError, match="no tensor 'tail'"):
        read_tensor(path, lambda names: "tail")


def test_numbers_of_the_others_stay_in_the_file(tmp_path, monkeypatch):
    size = 32 * 2**20
    torch.save(
        {"head": HEAD, "body": torch.ones(size, dtype=torch.uint8)}, tmp_path / "pytorch_model.bin"
    )
    kept = []
    monkeypatch.setattr(
        one_tensor,
        "read_file",
        lambda path, mapped: kept.append(_read(path, mapped=mapped)) or kept[0],
    )
    _, found = read_tensor(tmp_path, lambda names: "head")
    assert torch.equal(found, HEAD)
    if Path("/proc/self/smaps").exists():
        assert resident(kept[0]["body"]) < size / 2


_read = one_tensor.read_file

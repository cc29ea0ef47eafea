"""Files of which a few bytes ask for gigabytes, or for a depth that ends the process, are refused
unread."""

import sys
from pathlib import Path

import pytest
import torch
from helpers.cases import each

sys.path.insert(0, str(Path(__file__).parents[1]))
from hostile import files
from safetensors.torch import save_file

from hypvision.checkpoints import kinds, pickles, read, storage
from hypvision.checkpoints.match import load_into
from hypvision.io.errors import HypvisionError

WEIGHTS = {"a.weight": torch.ones(4, 4), "a.bias": torch.zeros(4)}


@each("write", [files.archive, files.legacy])
@each(
    "content, message",
    [
        (
            b"\x80\x02}N" + b"\x85" * 1_000_000 + b"Ns.",
            "nested",
        ),  # the hash of this key ended the process
        (b"\x80\x02" + (b"}" + files.text("a")) * 1000 + b"N" + b"s" * 1000 + b".", "nested"),
        (files.PICKLES["bytearray of 2 GiB"](), "builtins.bytearray"),
        (files.PICKLES["codecs that double, 30 times"](), "_codecs.encode"),
        (files.PICKLES["a storage beyond its record"](), "cannot be read|more numbers|damaged"),
        (b"\x80\x02}" + files.text("n" * 2000) + files.tensor() + b"s.", "name|damaged"),
    ],
)
def test_pickles(tmp_path, write, content, message):
    write(tmp_path / "a.pth", content)
    with pytest.raises(HypvisionError, match=message) as told:
        read.read_file(tmp_path / "a.pth")
    assert str(tmp_path / "a.pth") in str(told.value) and len(str(told.value)) < 1000


def test_instructions_are_counted(tmp_path, monkeypatch):
    torch.save(WEIGHTS, tmp_path / "a.pth")
    monkeypatch.setattr(pickles, "_MOST_STEPS", 100)
    assert len(read.read_file(tmp_path / "a.pth")) == 2
    torch.save({"a": list(range(2000))}, tmp_path / "a.pth")
    with pytest.raises(HypvisionError, match="instructions"):
        read.read_file(tmp_path / "a.pth")
    # a training's file is larger than its instructions, however many they are
    weights = [torch.nn.Parameter(torch.zeros(4)) for _ in range(60)]
    optimizer = torch.optim.AdamW([{"params": [weight]} for weight in weights])
    sum(weight.sum() for weight in weights).backward()
    optimizer.step()
    named = {str(number): weight for number, weight in enumerate(weights)}
    torch.save({"state_dict": named, "optimizer": optimizer.state_dict()}, tmp_path / "a.pth")
    assert len(read.read_file(tmp_path / "a.pth")["state_dict"]) == 60
    (tmp_path / "b.pkl").write_bytes(b"\x80\x02](" + b"]" * 200 + b"e.")
    with pytest.raises(HypvisionError, match="more than 100 instructions"):
        kinds.kind_of(tmp_path / "b.pkl")


def test_entries_are_counted_before_the_header_is_parsed(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    save_file(WEIGHTS, path, {"hypvision": "{}"})
    assert len(read.read_file(path)) == 2
    monkeypatch.setattr(storage, "MOST_ENTRIES", 3)
    monkeypatch.setattr(storage, "safe_open", None)
    with pytest.raises(HypvisionError, match="more than 3 entries"):
        read.read_file(path)


def test_parts_of_an_archive_are_counted_before_they_are_listed(tmp_path, monkeypatch):
    path = tmp_path / "a.pth"
    files.archive(path, b"\x80\x02}.", {f"data/{number}": b"" for number in range(1, 50)})
    assert pickles.open_zip(path).namelist()
    monkeypatch.setattr(pickles, "_LARGEST_DIRECTORY", 1000)
    monkeypatch.setattr(pickles.zipfile, "ZipFile", None)
    for changed in (path.read_bytes(), b"before" + path.read_bytes()):
        path.write_bytes(changed)
        with pytest.raises(HypvisionError, match="directory"):
            pickles.open_zip(path)


def test_the_second_pickle_of_a_name_is_not_read(tmp_path):
    files.archive(tmp_path / "a.pth", files.entry(b"K\x01"), {"DATA.pkl": files.entry(b"K\x02")})
    with pytest.raises(HypvisionError, match="two parts of the same name"):
        read.read_file(tmp_path / "a.pth")


def test_views_of_few_numbers(tmp_path):
    shared = torch.zeros(1000)
    torch.save({str(number): shared[:] for number in range(5)}, tmp_path / "a.pth")
    assert len(read.read_file(tmp_path / "a.pth")) == 5  # layers that share weights
    torch.save({str(number): shared for number in range(300)}, tmp_path / "a.pth")
    with pytest.raises(HypvisionError, match="more numbers than the file has bytes"):
        read.read_file(tmp_path / "a.pth")


def test_a_table_of_words_is_not_larger_than_the_file_suggests(tmp_path):
    files._table(tmp_path / "a.safetensors")
    with pytest.raises(HypvisionError, match="token embedding"):
        read.read_file(tmp_path / "a.safetensors")


@each("value", [[1], "x", None, torch.ones(3), 1.5])
def test_a_state_dict_is_a_dict(tmp_path, value):
    torch.save({"state_dict": value, "a": torch.ones(1)}, tmp_path / "a.pth")
    with pytest.raises(HypvisionError, match=f"a.pth' is a {type(value).__name__}, not a dict"):
        read.read_file(tmp_path / "a.pth")
    if isinstance(value, torch.Tensor):
        save_file({"state_dict": value}, tmp_path / "a.safetensors")
        with pytest.raises(HypvisionError, match="not a dict"):
            read.read_file(tmp_path / "a.safetensors")


def test_what_trainings_save_is_read(tmp_path):
    """Bytes and bytearrays are pickled by the functions that have stand-ins."""
    content = {
        "state_dict": WEIGHTS,
        "meta": {"a": b"\xffabc", "b": bytearray(b"abc"), "c": bytearray(), "d": [[[1]]]},
    }
    torch.save(content, tmp_path / "a.pth")
    found = read.read_file(tmp_path / "a.pth")
    assert found["meta"] == content["meta"]
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4)})
    load_into(model, read.network_weights(found), "a.pth", "it", "")
    assert torch.equal(model["a"].weight, WEIGHTS["a.weight"])


def test_tensors_of_more_dimensions_than_operations_take_are_refused(tmp_path):
    path = tmp_path / "deep.pth"
    torch.save({"weight": torch.zeros(1).as_strided((1,) * 70, (1,) * 70)}, path)
    with pytest.raises(HypvisionError, match="deep.pth.*70 dimensions"):
        read.read_file(path)

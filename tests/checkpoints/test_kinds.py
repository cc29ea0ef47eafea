"""Files of every kind: those that are read, those that are named for what they are, and those that
are damaged."""

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from helpers.cases import each
from PIL import Image
from safetensors.torch import save_file

from hypvision.checkpoints.kinds import kind_of
from hypvision.checkpoints.read import read_file
from hypvision.io.errors import HypvisionError

WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)}


def archive(path, *names):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name in names:
            target.writestr(name, b"0" * 10_000)


def tarred(path):
    with tarfile.open(path, "w") as target:
        target.addfile(tarfile.TarInfo("net.pth"), io.BytesIO())


def onnx(path):
    onnx = pytest.importorskip("onnx")
    onnx.save(
        onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []), producer_name="test"), path
    )


def exported(path):
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    torch.export.save(program, path.with_suffix(".pt2"))
    path.with_suffix(".pt2").rename(path)


def joblib(path):
    """Arrays lie among the instructions, as joblib and pickle's protocol 5 may have them."""
    path.write_bytes(pickle.dumps({"a": 1}, protocol=4)[:-1] + bytes(100) + b".")


def unknown_numbers(path):
    header = json.dumps({"a": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(3))


# What an intact file is -> (what writes it, what the message says).
INTACT = {
    "npz": (lambda path: path.write_bytes(saved(np.savez)), "an archive of NumPy arrays"),
    "npy": (lambda path: path.write_bytes(saved(np.save)), r"an array of NumPy \(.npy\)"),
    "HDF5": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100)),
    "an HDF5 file, as Keras"),
    "Keras": (lambda path: archive(path, "metadata.json", "config.json", "model.weights.h5"),
    "a Keras archive"),
    "ONNX": (onnx, "a protocol buffer, as ONNX"),
    "TensorFlow Lite": (lambda path: path.write_bytes(b"\x1c\0\0\0TFL3" + bytes(40)),
    "TensorFlow Lite"),
    "GGUF": (lambda path: path.write_bytes(b"GGUF" + bytes(100)), "a GGUF file"),
    "torch.export": (exported, "a program of torch.export.*model.state_dict"),
    "old TorchScript": (lambda path: archive(path, "net/model.json", "net/tensors/0"),
    "TorchScript.* 1.1 or older"),
    "zip": (lambda path: archive(path, "net/a.pth", "readme.txt"),
    "zip archive of 'net/a.pth', 'readme.txt'. Unpack"),
    "empty zip": (lambda path: archive(path), "a zip archive of nothing"),
    "tar": (tarred, "a tar archive"),
    "gzip": (lambda path: path.write_bytes(gzip.compress(b"0" * 100)), "a gzip archive. Unpack it"),
    "pickle 2": (lambda path: path.write_bytes(pickle.dumps({"a": [1]}, 2)),
    "pickle that torch.save did not write"),
    "pickle 5": (lambda path: path.write_bytes(pickle.dumps({"a": np.ones(3)}, 5)),
    "pickle that torch.save did not"),
    "joblib": (joblib, "a Python pickle"),
    "JSON": (lambda path: path.write_text('{"a": [1, 2]}'), "a JSON text"),
    "split weights": (lambda path: path.write_text('{"metadata": {}, "weight_map": {}}'),
    "in several files"),
    "text": (lambda path: path.write_text("nö checkpoint " * 1000), "a text"),
    "web page": (lambda path: path.write_text("<!DOCTYPE html><title>404</title>"),
    "a web page.*Download"),
    "LFS pointer": (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\nsize "
                                                 "1"), "git lfs pull"),
    "PNG": (lambda path: Image.new("RGB", (4, 4)).save(path, "PNG"), "a PNG image"),
    "another": (lambda path: path.write_bytes(bytes(range(200, 256)) * 100),
    "neither those of safetensors nor those"),
    "folder": (lambda path: path.mkdir(), "is a folder, which has none of .*Check the path"),
    "another protocol": (lambda path: torch.save(WEIGHTS, path, pickle_protocol=4),
    "is whole, but cannot be read"),
    "numbers of tomorrow": (unknown_numbers, "is whole, but cannot be read .*F6_E2M3"),
    "a tensor": (lambda path: torch.save(torch.ones(2), path), "holds a Tensor, not a dict"),
    "a network": (lambda path: torch.save(torch.nn.Linear(2, 2), path),
    "contains 'torch.nn.modules.linear.Linear'"),
}  # fmt: skip


def saved(write):
    content = io.BytesIO()
    write(content, np.arange(1000))
    return content.getvalue()


@each("name", INTACT)
@pytest.mark.filterwarnings("ignore")
def test_intact_files_of_another_kind_are_named(tmp_path, name):
    write, says = INTACT[name]
    write(tmp_path / "file.pth")
    for suffix in (".pth", ".safetensors"):
        path = (tmp_path / "file.pth").rename(tmp_path / f"file{suffix}")
        if suffix == ".safetensors" and name in ("another protocol", "a tensor", "a network"):
            says = (
                "not a safetensors file but a zip archive, as torch.save writes it. Rename it: its "
                "suffix"
            )
        with pytest.raises(HypvisionError, match=says) as caught:
            read_file(path)
        assert "damaged" not in str(caught.value) and str(path) in str(caught.value)


READ = {
    "torch.save": torch.save,
    "torch.save before zip files": lambda weights, path: torch.save(
        weights, path, _use_new_zipfile_serialization=False
    ),
    "safetensors": save_file,
}


@each("name", READ)
def test_truncated_or_changed_files_are_damaged(tmp_path, name):
    path = tmp_path / "file.pth"
    READ[name](WEIGHTS, path)
    assert read_file(path).keys() == WEIGHTS.keys()
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) * 2 // 3, len(whole) // 3, 20, 0):
        path.write_bytes(whole[:length])
        with pytest.raises(
            HypvisionError, match="is damaged|contains 'torch'"
        ):  # the latter: cut off within a name
            read_file(path)
    if name == "torch.save":
        place = whole.index(b"data.pkl") + 80
        path.write_bytes(whole[:place] + b"\xff\xff" + whole[place + 2 :])
        with pytest.raises(HypvisionError, match="is damaged"):
            read_file(path)


def test_a_pickle_is_looked_at_and_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'proof'}",)

    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Evil(), 2))
    assert "pickle" in kind_of(tmp_path / "a.pkl").name and not (tmp_path / "proof").exists()

"""Recognise, by its first bytes, the kind of a file that is not a checkpoint, so that an intact
file of another kind is not reported as a damaged checkpoint."""

from __future__ import annotations

import codecs
import zipfile
from pathlib import Path
from typing import NamedTuple

from hypvision.checkpoints.pickles import check_pickle, open_zip


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
        name: to complete "it is ...".
        advice: a sentence on what to do with it.
        read: whether :func:`hypvision.checkpoints.read.read_file` takes files of this kind.
    """

    name: str
    advice: str = "Give a safetensors file, or one of torch.save."
    read: bool = False


_UNPACK = "Unpack it, and give the checkpoint that is in it."
_CONVERT = (
    "Load it with the library that wrote it, and save its weights as a dict of tensors with "
    "torch.save."
)
_STATE = "Save the weights alone, with torch.save(model.state_dict(), path)."
# the magic number of torch.save before it wrote zip files
_TORCH_SAVE = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."

# (offset, bytes at this offset, kind of file)
_FIRST_BYTES = (
    (0, b"\x89HDF\r\n\x1a\n", Kind("an HDF5 file, as Keras writes them", _CONVERT)),
    (0, b"\x93NUMPY", Kind("an array of NumPy (.npy)", _CONVERT)),
    (0, b"GGUF", Kind("a GGUF file, as llama.cpp takes them", _CONVERT)),
    (4, b"TFL3", Kind("a model of TensorFlow Lite", _CONVERT)),
    (4, b"PTMF", Kind("a mobile model of PyTorch in flatbuffers", _STATE)),
    (0, b"PAR1", Kind("a Parquet table")),
    (0, b"ARROW1", Kind("an Arrow table")),
    (0, b"\x1f\x8b", Kind("a gzip archive", _UNPACK)),
    (0, b"BZh", Kind("a bzip2 archive", _UNPACK)),
    (0, b"\xfd7zXZ\x00", Kind("an xz archive", _UNPACK)),
    (0, b"\x28\xb5\x2f\xfd", Kind("a zstd archive", _UNPACK)),
    (0, b"7z\xbc\xaf\x27\x1c", Kind("a 7z archive", _UNPACK)),
    (0, b"Rar!", Kind("a rar archive", _UNPACK)),
    (257, b"ustar", Kind("a tar archive", _UNPACK)),
    (0, b"\x89PNG", Kind("a PNG image")),
    (0, b"\xff\xd8\xff", Kind("a JPEG image")),
    (0, b"GIF8", Kind("a GIF image")),
    (0, b"%PDF", Kind("a PDF document")),
    (0, _TORCH_SAVE, Kind("a Python pickle, as torch.save wrote it before PyTorch 1.6", read=True)),
)
# (entries of a zip archive, kind of file)
_SAVED = Kind("a zip archive, as torch.save writes it", read=True)
_PROGRAM = Kind("a program of torch.export", _STATE)
_ENTRIES = (
    (["/data.pkl", "/constants.pkl"], Kind("a TorchScript archive", read=True)),
    (["/data.pkl"], _SAVED),
    (["/archive_format"], _PROGRAM),
    (["/serialized_exported_program.json"], _PROGRAM),
    (["serialized_exported_program.json"], _PROGRAM),
    (["/model.json"], Kind("a TorchScript archive of PyTorch 1.1 or older", _STATE)),
    (["model.weights.h5"], Kind("a Keras archive (.keras)", _CONVERT)),
)
# (how a text begins, kind of file)
_LFS = Kind(
    "a Git LFS pointer instead of the file (run: git lfs pull)",
    "Run: git lfs pull, or download the file.",
)
_TEXTS = (
    ("version https://git-lfs", _LFS),
    ("<", Kind("a web page, such as the error page of a download", "Download the file again.")),
    (("{", "["), Kind("a JSON text")),
)


def kind_of(path: str | Path) -> Kind | None:
    """The kind of a file by its bytes, whatever its name; None if no known kind begins so."""
    with open(path, "rb") as file:
        start = file.read(4096)
    for place, magic, kind in _FIRST_BYTES:
        if start.startswith(magic, place):
            return kind
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip_kind(path)
    if len(start) > 1 and start[0] == 0x80 and start[1] <= 5:
        return _pickle_kind(path, start[1])
    # a protocol buffer whose first field is a number (the version) and whose second one is a text
    if len(start) > 2 and start[0] == 0x08 and start[2] == 0x12:
        return Kind("a protocol buffer, as ONNX and TensorFlow write them", _CONVERT)
    return _text_kind(start)


def _zip_kind(path: str | Path) -> Kind:
    if not zipfile.is_zipfile(path):  # the directory at the end of the zip file is missing
        return _SAVED
    with open_zip(path) as archive:
        names = archive.namelist()
    # PyTorch stores all entries below one folder
    entries = {f"/{name.partition('/')[2]}" for name in names}.union(names)
    for wanted, kind in _ENTRIES:
        if entries.issuperset(wanted):
            return kind
    if names and all(name.endswith(".npy") for name in names):
        return Kind("an archive of NumPy arrays (.npz)", _CONVERT)
    listed = ", ".join(f"'{name}'" for name in sorted(names)[:3]) or "nothing"
    return Kind(f"a zip archive of {listed}", _UNPACK)


def _pickle_kind(path: str | Path, protocol: int) -> Kind:
    try:
        with open(path, "rb") as file:
            check_pickle(file, path)  # reads the instructions without executing them
    except (ValueError, IndexError):
        # the bytes are cut off, or have arrays between the instructions
        return Kind("a Python pickle", _CONVERT, read=protocol <= 2)  # torch.save writes protocol 2
    return Kind("a Python pickle that torch.save did not write", _CONVERT)


def _text_kind(start: bytes) -> Kind | None:
    try:
        # a letter at the end may be cut off
        text = codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return None
    if not text or any(letter < " " and letter not in "\t\n\r\f" for letter in text):
        return None
    text = text.lstrip()
    if text.startswith("{") and '"weight_map"' in text:
        return Kind("the table of weights in several files", "Join them in one file.")
    return next((kind for beginning, kind in _TEXTS if text.startswith(beginning)), Kind("a text"))

"""Recognise by its first bytes the kind of a file that is not a checkpoint, so that an intact file
of another kind is not reported as a damaged checkpoint."""

from __future__ import annotations

import codecs
import re
import zipfile
from typing import NamedTuple

from hypvision.io import StrPath

from .pickles import check_pickle, open_zip

_GIVE = "Give a safetensors file, or one of torch.save."


class Kind(NamedTuple):
    """A kind of file, such as a gzip archive.

    Attributes:
        name: name of the kind, which completes "it is ...".
        advice: a sentence that says what to do with such a file.
        read: whether :func:`hypvision.checkpoints.read.read_file` reads files of this kind.
    """

    name: str
    advice: str = _GIVE
    read: bool = False


_UNPACK = "Unpack it, and give the checkpoint that is in it."
_CONVERT = (
    "Load it with the library that wrote it, and save its weights as a dict of tensors with "
    "torch.save."
)
_STATE = "Save the weights alone, with torch.save(model.state_dict(), path)."
# The magic number with which torch.save began a file before it wrote zip files.
_TORCH_SAVE = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."

# For each advice: patterns of the first bytes of files, each with the name of their kind.
_FIRST_BYTES = {
    _CONVERT: {
        rb"\x89HDF\r\n\x1a\n": "an HDF5 file, as Keras writes them",
        rb"\x93NUMPY": "an array of NumPy (.npy)",
        rb"GGUF": "a GGUF file, as llama.cpp takes them",
        rb".{4}TFL3": "a model of TensorFlow Lite",
        # The first field is a number (the version), the second one a text.
        rb"\x08.\x12": "a protocol buffer, as ONNX and TensorFlow write them",
    },
    _STATE: {rb".{4}PTMF": "a mobile model of PyTorch in flatbuffers"},
    _UNPACK: {
        rb"\x1f\x8b": "a gzip archive",
        rb"BZh": "a bzip2 archive",
        rb"\xfd7zXZ\x00": "an xz archive",
        rb"\x28\xb5\x2f\xfd": "a zstd archive",
        rb"7z\xbc\xaf\x27\x1c": "a 7z archive",
        rb"Rar!": "a rar archive",
        rb".{257}ustar": "a tar archive",
    },
    _GIVE: {
        rb"PAR1": "a Parquet table",
        rb"ARROW1": "an Arrow table",
        rb"\x89PNG": "a PNG image",
        rb"\xff\xd8\xff": "a JPEG image",
        rb"GIF8": "a GIF image",
        rb"%PDF": "a PDF document",
    },
}
# For entries that a zip archive must have: the kind of file.
_SAVED = Kind("a zip archive, as torch.save writes it", read=True)
_PROGRAM = Kind("a program of torch.export", _STATE)
_ENTRIES = {
    "/data.pkl /constants.pkl": Kind("a TorchScript archive", read=True),
    "/data.pkl": _SAVED,
    "/archive_format": _PROGRAM,
    "/serialized_exported_program.json": _PROGRAM,
    "serialized_exported_program.json": _PROGRAM,
    "/model.json": Kind("a TorchScript archive of PyTorch 1.1 or older", _STATE),
    "model.weights.h5": Kind("a Keras archive (.keras)", _CONVERT),
}
# For the beginning of a text: the kind of file.
_LFS = Kind(
    "a Git LFS pointer instead of the file (run: git lfs pull)",
    "Run: git lfs pull, or download the file.",
)
_TEXTS = {
    "version https://git-lfs": _LFS,
    "<": Kind("a web page, such as the error page of a download", "Download the file again."),
    "{": Kind("a JSON text"),
    "[": Kind("a JSON text"),
    "": Kind("a text"),
}


def kind_of(path: StrPath) -> Kind | None:
    """Return the kind of a file by its bytes, whatever its name is; None if its bytes fit no known
    kind."""
    with open(path, "rb") as file:
        start = file.read(4096)
    if start.startswith(_TORCH_SAVE):
        return Kind("a Python pickle, as torch.save wrote it before PyTorch 1.6", read=True)
    for advice, names in _FIRST_BYTES.items():
        for pattern, name in names.items():
            if re.match(pattern, start, re.DOTALL):
                return Kind(name, advice)
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip_kind(path)
    if len(start) > 1 and start[0] == 0x80 and start[1] <= 5:
        return _pickle_kind(path, start[1])
    return _text_kind(start)


def _zip_kind(path: StrPath) -> Kind:
    # The directory at the end of the zip file is missing, as of a file cut off.
    if not zipfile.is_zipfile(path):
        return _SAVED
    with open_zip(path) as archive:
        names = archive.namelist()
    # PyTorch stores all entries below one folder, whose name varies.
    entries = {f"/{name.partition('/')[2]}" for name in names}.union(names)
    for wanted, kind in _ENTRIES.items():
        if entries.issuperset(wanted.split()):
            return kind
    if names and all(name.endswith(".npy") for name in names):
        return Kind("an archive of NumPy arrays (.npz)", _CONVERT)
    listed = ", ".join(f"'{name}'" for name in sorted(names)[:3]) or "nothing"
    return Kind(f"a zip archive of {listed}", _UNPACK)


def _pickle_kind(path: StrPath, protocol: int) -> Kind:
    try:
        with open(path, "rb") as file:
            # This reads the instructions without executing them.
            check_pickle(file, path)
    except (ValueError, IndexError):
        # Either the file is cut off, or arrays lie between the instructions, as torch.save writes
        # them with protocol 2.
        return Kind("a Python pickle", _CONVERT, read=protocol <= 2)  # torch.save writes protocol 2
    return Kind("a Python pickle that torch.save did not write", _CONVERT)


def _text_kind(start: bytes) -> Kind | None:
    try:
        # The last letter may be cut off by the limit of bytes that were read.
        text = codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return None
    if not text or re.search(r"[^\t\n\r\f -\U0010ffff]", text):
        return None
    text = text.lstrip()
    if text.startswith("{") and '"weight_map"' in text:
        return Kind("the table of weights in several files", "Join them in one file.")
    return next(kind for beginning, kind in _TEXTS.items() if text.startswith(beginning))

"""Damaged and hostile checkpoint files: one table for every entry point that loads a checkpoint."""

import os
import zipfile
from collections import OrderedDict

import numpy as np
import torch


class Reduces:
    """Pickled as a call of ``function(*arguments)``, with a state for what it returns."""

    def __init__(self, function, *arguments, state=None):
        self.call = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.call


def command(folder):
    """Runs a shell command when it is unpickled, which leaves a file behind."""
    return Reduces(os.system, f"touch {folder / 'proof'}")


def dtype(name="f8", state=None):
    return Reduces(np.dtype, name, False, True, state=state)


def array(kind, data=bytes(8), shape=(1,)):
    """An array of one element, of a dtype that the file describes."""
    return Reduces(
        np.empty(0).__reduce__()[0], np.ndarray, (0,), b"b", state=(1, shape, kind, False, data)
    )


def object_at_an_address():
    """A void of 8 bytes whose field is an object, without the flag that would tell so: bytes become
    a pointer."""
    return array(
        dtype("V8", (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)), b"\x41" * 8
    )


def hidden_method(weights):
    """A dict of weights of which the file replaces a method."""
    return Reduces(OrderedDict, list(weights.items()), state={"items": 5, "_metadata": 7})


def _resized(weights):
    """A tensor of a million numbers over a storage of four."""
    storage = torch.storage.TypedStorage(
        wrap_storage=torch.ones(4).untyped_storage(), dtype=torch.float32, _internal=True
    )
    return Reduces(
        torch._utils._rebuild_tensor_v2, storage, 0, (1000000,), (1,), False, OrderedDict()
    )


# What a file may contain beside good weights, none of which may get in: name -> function of
# (weights, folder).
CONTENTS = {
    "code": lambda weights, folder: {**weights, "x": command(folder)},
    "code in the state": lambda weights, folder: {
        "state_dict": weights,
        "meta": {"x": command(folder)},
    },
    "attribute": lambda weights, folder: {**weights, "x": Reduces(getattr, np.ndarray, "tofile")},
    "object at an address": lambda weights, folder: {
        "state_dict": weights,
        "message_hub": object_at_an_address(),
    },
    "array of objects": lambda weights, folder: {
        "state_dict": weights,
        "x": np.array([weights, None], dtype=object),
    },
    "array too short": lambda weights, folder: {
        "state_dict": weights,
        "x": array(dtype(), bytes(8), (1000,)),
    },
    "array of negative shape": lambda weights, folder: {
        "state_dict": weights,
        "x": array(dtype(), b"", (-1, 0)),
    },
    "dates": lambda weights, folder: {
        "state_dict": weights,
        "x": np.array(["2020"], dtype="datetime64[D]"),
    },
    "sparse": lambda weights, folder: {name: value.to_sparse() for name, value in weights.items()},
    "meta": lambda weights, folder: {name: value.to("meta") for name, value in weights.items()},
    "quantised": lambda weights, folder: {
        name: torch.quantize_per_tensor(value.float(), 0.1, 0, torch.qint8)
        for name, value in weights.items()
    },
    "keys that are tensors": lambda weights, folder: {
        "state_dict": weights,
        "x": {torch.ones(1): 1},
    },
    "expanded": lambda weights, folder: {**weights, "x": torch.ones(1).expand(10**7)},
    "resized": lambda weights, folder: {**weights, "x": _resized(weights)},
    "a class": lambda weights, folder: {"state_dict": weights, "x": torch.Tensor},
    "a list": lambda weights, folder: list(weights.values()),
}
BYTES = {"empty": b"", "no pickle": b"\x80\x02garbage", "text": b"not a checkpoint"}


def write_damaged(name, weights, folder):
    """The path of the file of that name in one of the tables, or ``"cut off"`` or ``"bomb"``."""
    path = folder / "hostile.pth"
    if name in BYTES:
        path.write_bytes(BYTES[name])
    elif name == "cut off":
        torch.save(weights, path)
        path.write_bytes(path.read_bytes()[:-100])
    elif name == "bomb":
        torch.save(weights, folder / "good.pth")
        with (
            zipfile.ZipFile(folder / "good.pth") as source,
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target,
        ):
            for entry in source.infolist():
                target.writestr(entry.filename, source.read(entry))
            target.writestr("archive/data/9999", bytes(10**7))
    else:
        torch.save(CONTENTS[name](weights, folder), path)
    return path


DAMAGED = [*CONTENTS, *BYTES, "cut off", "bomb"]

"""Hostile checkpoint files of every format: what is in each, by its name."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from helpers.hostile_checkpoints import CONTENTS, Reduces

_TORCH_SAVE = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


def proof(folder: Path) -> Path:
    """The file that exists if code of one of the files was run."""
    return folder / "proof"


def text(value: str | bytes) -> bytes:
    """The instruction that pushes a text."""
    raw = value if isinstance(value, bytes) else value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def archive(
    path: Path,
    pickled: bytes,
    extra: dict[str, bytes] | None = None,
    kind: int = zipfile.ZIP_STORED,
) -> None:
    """A zip archive as torch.save writes it, around a pickle."""
    parts = {
        "data.pkl": pickled,
        "version": b"3\n",
        "byteorder": b"little",
        "data/0": bytes(4),
        **(extra or {}),
    }
    with zipfile.ZipFile(path, "w", kind) as target:
        for name, content in parts.items():
            target.writestr(f"archive/{name}", content)


def legacy(path: Path, pickled: bytes) -> None:
    """A file as torch.save wrote it before PyTorch 1.6, around a pickle."""
    begin = (
        _TORCH_SAVE
        + pickle.dumps(1001, 2)
        + pickle.dumps(dict(protocol_version=1001, little_endian=True), 2)
    )
    path.write_bytes(begin + pickled + pickle.dumps([], 2))


def entry(value: bytes) -> bytes:
    """A pickle of a dict with one entry."""
    return b"\x80\x02}" + text("weight") + value + b"s."


def storage(numel: bytes = b"K\x01", key: str = "0") -> bytes:
    """The instructions for a storage of float32."""
    return (
        b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + numel + b"tQ"
    )


def tensor(
    size: bytes = b"K\x01\x85", stride: bytes = b"K\x01\x85", offset: bytes = b"K\x00"
) -> bytes:
    """The instructions for a tensor of float32."""
    hooks = b"ccollections\nOrderedDict\n)R"
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + storage()
        + offset
        + size
        + stride
        + b"\x89"
        + hooks
        + b"tR"
    )


def long(number: int) -> bytes:
    """The instruction that pushes a whole number of any size."""
    raw = number.to_bytes(8, "little", signed=True)
    return b"\x8a\x08" + raw


def many_tensors(count: int) -> bytes:
    """A pickle of as many tensors, of a few bytes each."""
    hooks = b"ccollections\nOrderedDict\n)R"
    rebuild = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x000"
    arguments = b"(" + storage() + b"K\x00K\x00\x85K\x01\x85\x89" + hooks + b"tq\x010"
    each = b"".join(text(str(number)) + b"h\x00h\x01R" for number in range(count))
    return rebuild + arguments + b"}(" + each + b"u."


def script(path: Path, pickled: bytes, code: int = 0) -> None:
    """A TorchScript archive; ``code``: MiB of zeros as its code, which compress to a thousandth."""
    archive(path, pickled, {"constants.pkl": b"\x80\x02)."})
    bomb(path, "code/__torch__.py", code)


def bomb(path: Path, name: str, size: int, byte: bytes = b"\0") -> None:
    """Put a part of so many MiB, all the same byte, into a new archive or one that is there."""
    new = not path.exists()
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as target:
        if new and name != "data.pkl":
            target.writestr("archive/data.pkl", entry(tensor()))
        with target.open(f"archive/{name}", "w") as part:
            for _ in range(size):
                part.write(byte * (1 << 20))


def empty(count: int) -> bytes:
    """The header of a safetensors file of as many tensors without numbers."""
    each = ",".join(
        f'"{number}":{{"dtype":"F16","shape":[0],"data_offsets":[0,0]}}' for number in range(count)
    )
    return f"{{{each}}}".encode()


def module(attributes: bytes) -> bytes:
    """A pickle of a module of TorchScript."""
    return b"\x80\x02c__torch__\nM\n)\x81}" + text("weight") + attributes + b"sb."


def safetensors(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> None:
    """A safetensors file; ``header``: its text, or what becomes JSON; ``length``: what it says of
    its header."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)


def about(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return dict(dtype=dtype, shape=shape, data_offsets=offsets)


def stored_code(path: Path, raw: bytes, shape: list[int], rows: int) -> None:
    """A weight of our own storage: int8 in a zlib stream, with its shape and the scales of its
    rows."""
    tensors = {
        "w": torch.frombuffer(bytearray(raw), dtype=torch.uint8), "w.int8_scale": torch.ones(rows),
        "w.int8_shape": torch.tensor(shape),
    }  # fmt: skip
    _save(path, tensors)


def _save(
    path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None
) -> None:
    from safetensors.torch import save_file

    save_file(tensors, path, metadata)


def _table(path: Path) -> None:
    one = torch.zeros(1, dtype=torch.int64)
    parts = dict(rows=torch.zeros(1, 500), index=one, size=torch.tensor(2**20))
    _save(path, {f"token_embedding.{name}": value for name, value in parts.items()})


def _with_directory(path: Path, count: int) -> None:
    archive(path, b"\x80\x02}.", {f"data/{number}": b"" for number in range(1, count)})


def _twice(path: Path, folder: Path) -> None:
    archive(path, entry(b"K\x01"))
    with zipfile.ZipFile(path, "a") as target:
        target.writestr("archive/DATA.pkl", entry(_command(folder)))


def _command(folder: Path) -> bytes:
    return b"cposix\nsystem\n" + text(f"touch '{proof(folder)}'") + b"\x85R"


# What the hub, a mail or a colleague could send. name: function of (path, folder of the proof).
PICKLES: dict[str, Callable[[], bytes]] = {
    "3,000,000 lists": lambda: b"\x80\x02}" + text("a") + b"](" + b"]" * 3_000_000 + b"es.",
    "1,000,000 empty tensors": lambda: many_tensors(1_000_000),
    "100,000 dicts in dicts": lambda: (
        b"\x80\x02" + (b"}" + text("a")) * 100_000 + b"N" + b"s" * 100_000 + b"."
    ),
    "1,000,000 tuples in tuples as a key": lambda: b"\x80\x02}N" + b"\x85" * 1_000_000 + b"Ns.",
    "a dict in itself": lambda: b"\x80\x02}q\x00" + text("state_dict") + b"h\x00s.",
    "bytearray of 2 GiB": lambda: entry(b"cbuiltins\nbytearray\n" + long(2**31 - 1) + b"\x85R"),
    "codecs that double, 30 times": lambda: entry(
        b"c_codecs\nencode\n" * 31
        + text("a" * 200)
        + text("latin1")
        + b"\x86R"
        + (text("hex") + b"\x86R") * 30
    ),
    "torch.Tensor of 2**40 numbers": lambda: entry(b"ctorch\nTensor\n" + long(2**40) + b"\x85R"),
    "a shape of 2**62 x 2**62": lambda: entry(tensor(long(2**62) * 2 + b"\x86", b"K\x00K\x00\x86")),
    "a shape of -1": lambda: entry(tensor(long(-1) + b"\x85")),
    "a negative offset": lambda: entry(tensor(offset=long(-(2**40)))),
    "a storage beyond its record": lambda: entry(
        tensor(long(10**6) + b"\x85").replace(storage(), storage(long(10**6)))
    ),
    "a tensor of 10,000 dimensions": lambda: entry(
        tensor(b"(" + b"K\x01" * 10_000 + b"t", b"(" + b"K\x01" * 10_000 + b"t")
    ),
    "a memo of 2**31": lambda: b"\x80\x02}r\xff\xff\xff\x7f.",
    "a text that says 4 GiB": lambda: b"\x80\x02}X\xff\xff\xff\xffabc",
    "a name of 50 MB": lambda: b"\x80\x02}" + text(b"n" * 50_000_000) + tensor() + b"s.",
    "an empty pickle": lambda: b"\x80\x02.",
    "an unknown instruction": lambda: b"\x80\x02}\xff.",
}
VALUES = {
    "list": [1], "string": "x", "None": None, "tensor": torch.ones(3), "number": 1.5,
    "dict of a dict": {"a": {"b": 1}}, "empty dict": {}, "numbers for names": {1: torch.ones(1)},
}  # fmt: skip
DANGEROUS = ("posix.system", "builtins.eval", "builtins.exec", "subprocess.Popen", "runpy.run_path",
"torch.load",
             "torch.hub.load", "pickle.loads", "operator.attrgetter", "nt.system",
             "builtins.__import__")  # fmt: skip


def write_all(folder: Path) -> None:
    """Write the files, each as ``NUMBER/hostile.SUFFIX``, and ``names.json``, their names."""
    weights = {"a.weight": torch.ones(4, 4), "a.bias": torch.zeros(4)}
    makers: dict[str, tuple[str, Callable[[Path], object]]] = {}

    def add(name: str, make: Callable[[Path], object], suffix: str = ".pth") -> None:
        makers[name] = (suffix, make)

    for name, content in CONTENTS.items():
        add(
            f"torch.save: {name}",
            lambda path, content=content: torch.save(content(weights, folder), path),
        )
    for name, pickled in PICKLES.items():
        add(f"zip: {name}", lambda path, pickled=pickled: archive(path, pickled()))
        add(f"before 1.6: {name}", lambda path, pickled=pickled: legacy(path, pickled()))
    for dangerous in DANGEROUS:
        code = ".".join(dangerous.split(".")[:-1]) + "\n" + dangerous.split(".")[-1]
        call = b"c" + code.encode() + b"\n" + text(f"touch '{proof(folder)}'") + b"\x85R"
        add(f"zip: calls {dangerous}", lambda path, call=call: archive(path, entry(call)))
    add("before 1.6: code", lambda path: legacy(path, entry(_command(folder))))
    add("a plain pickle with code", lambda path: path.write_bytes(entry(_command(folder))))
    add("a pickle of protocol 4 with code", lambda path: path.write_bytes(
        pickle.dumps({"state_dict": Reduces(exec, f"open({str(proof(folder))!r}, 'w')")},
        4)))  # fmt: skip
    add(
        "a plain pickle of 3,000,000 lists",
        lambda path: path.write_bytes(PICKLES["3,000,000 lists"]()),
    )
    for key in ("state_dict", "model", "meta", "message_hub", "optimizer"):
        for kind, value in VALUES.items():
            content = {key: value} if key == "state_dict" else {"state_dict": weights, key: value}
            add(
                f"torch.save: '{key}' is a {kind}",
                lambda path, content=content: torch.save(content, path),
            )
    add("zip: two pickles of one name", lambda path: _twice(path, folder))
    add("zip: 200,000 parts", lambda path: _with_directory(path, 200_000))
    add("zip: bomb of 500 MiB", lambda path: bomb(path, "data/1", 500))
    add("zip: pickle that unpacks to 100 MiB", lambda path: bomb(path, "data.pkl", 100, b"]"))
    add("TorchScript: calls posix.system", lambda path: script(path, module(_command(folder))))
    add("TorchScript: a module in itself", lambda path: script(
        path, b"\x80\x02c__torch__\nM\n)\x81q\x00}" + text("m") + b"h\x00sb."))  # fmt: skip
    add(
        "TorchScript: code that unpacks to 200 MiB",
        lambda path: script(path, module(b"garbage"), code=200),
    )
    add(
        "TorchScript: 1,000,000 tuples in tuples",
        lambda path: script(path, module(b"N" + b"\x85" * 1_000_000)),
    )
    # safetensors
    ok = {"w": about()}
    for name, header, data, length in (
        ("header of 2**63 bytes", ok, b"", 2**63),
        ("header of 99 MB in a short file", ok, b"", 99_000_000),
        ("header of 0 bytes", b"", b"", 0), ("header cut off", b'{"w": {', b"", None),
        ("negative offset", {"w": about(offsets=(-4, 0))}, bytes(4), None),
        ("offset beyond the file", {"w": about(offsets=(0, 2**40), shape=(2**38,))}, bytes(4),
         None),
        ("shape that overflows", {"w": about(shape=(2**33, 2**33), offsets=(0, 0))}, b"", None),
        ("negative shape", {"w": about(shape=(-1,))}, bytes(4), None),
        ("NaN in the header", b'{"w":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', bytes(4),
         None),
        ("one key twice", b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
                          b'"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4), None),
        ("overlapping tensors", {"a": about(), "b": about(offsets=(0, 4))}, bytes(4), None),
        ("unknown type", {"w": about("F31")}, bytes(4), None),
        ("state_dict that is a tensor", {"state_dict": about()}, bytes(4), None),
        ("name of 50 MB", {"n" * 50_000_000: about()}, bytes(4), None),
        ("name with control characters", {"\x1b[2J\n\r\0": about()}, bytes(4), None),
        ("metadata of 50 MB", {"__metadata__": {"hypvision": "[" * 50_000_000}, "w": about()},
         bytes(4), None),
        ("metadata nested 100,000 deep",
         {"__metadata__": {"hypvision": "[" * 100_000}, "w": about()}, bytes(4), None),
        ("brackets 1,000,000 deep", b'{"w":' + b"[" * 1_000_000, b"", None),
    ):  # fmt: skip
        add(
            f"safetensors: {name}",
            lambda path, h=header, d=data, n=length: safetensors(path, h, d, n),
            ".safetensors",
        )
    for count in (300_000, 1_000_000):
        add(
            f"safetensors: {count:,} empty tensors",
            lambda path, n=count: safetensors(path, empty(n)),
            ".safetensors",
        )
    scaled = {"w": torch.zeros(2, 2, dtype=torch.int8), "w.int8_scale": torch.ones(3)}
    add("ours: scales of another size", lambda path: _save(path, scaled), ".safetensors")
    coder = zlib.compressobj(9)
    zeros = b"".join([coder.compress(bytes(1 << 20)) for _ in range(400)]) + coder.flush()
    add(
        "ours: zlib bomb of 400 MiB",
        lambda path: stored_code(path, zeros, [20480, 20480], 20480),
        ".safetensors",
    )
    add(
        "ours: zlib bomb, small shape",
        lambda path: stored_code(path, zeros, [2, 2], 2),
        ".safetensors",
    )
    add(
        "ours: shape that overflows",
        lambda path: stored_code(path, zeros, [2**62, 2**62], 2),
        ".safetensors",
    )
    add(
        "ours: negative shape",
        lambda path: stored_code(path, zeros[:99], [-2, -2], 2),
        ".safetensors",
    )
    add("ours: no stream", lambda path: stored_code(path, b"garbage", [2, 2], 2), ".safetensors")
    add("ours: table of words of 2 GiB", _table, ".safetensors")
    # other kinds
    add("a JSON text with NaN", lambda path: path.write_text('{"a": NaN}'))
    add("brackets in a text", lambda path: path.write_text("[" * 1_000_000))
    add("an empty file", lambda path: path.write_bytes(b""))
    add("zeros", lambda path: path.write_bytes(bytes(10**6)))
    add("a gzip archive", lambda path: path.write_bytes(b"\x1f\x8b\x08" + bytes(100)))
    names = {}
    for number, (name, (suffix, make)) in enumerate(makers.items()):
        path = folder / f"{number:03}" / f"hostile{suffix}"
        path.parent.mkdir()
        make(path)
        names[name] = str(path.relative_to(folder))
    (folder / "names.json").write_text(json.dumps(names))

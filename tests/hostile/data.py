"""Shards, archives, masks and annotations that are larger than they look, damaged, or pipes."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .table import Case

GROUP = "data"
DIGITS = "9" * 5000


def _png(width: int, height: int) -> bytes:
    """A grey picture of one colour, packed row by row."""
    packer = zlib.compressobj(9)
    row = bytes(width + 1)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", data),
        (b"IEND", b""),
    ]
    found = b"\x89PNG\r\n\x1a\n"
    for kind, body in parts:
        found += struct.pack(">I", len(body)) + kind + body
        found += struct.pack(">I", zlib.crc32(kind + body))
    return found


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _zeros(path: Path, megabytes: int, head: bytes = b"") -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(megabytes):
            file.write(bytes(2**20))


def _read_shards(folder: Path) -> str:
    from hypvision.data.shards import CaptionShards

    return f"{len(list(CaptionShards(folder, shuffle=0)))} samples"


def _shard(files: dict[str, bytes], name: str = "0.tar") -> Callable[[Path], str]:
    def run(folder: Path) -> str:
        (folder / name).write_bytes(_tar(files))
        return _read_shards(folder)

    return run


SMALL = {"a.png": _png(8, 8), "a.txt": b"words"}


def _packed_shard(folder: Path) -> str:
    info = tarfile.TarInfo("a.png")
    info.size = 2**32
    _zeros(folder / "0.tar.gz", 4096, info.tobuf())
    return _read_shards(folder)


def _huge_member(folder: Path) -> str:
    info = tarfile.TarInfo("a.png")
    info.size = 2**60
    (folder / "0.tar").write_bytes(info.tobuf() + b"x" * 1024)
    return _read_shards(folder)


def _links(folder: Path) -> str:
    with tarfile.open(folder / "0.tar", "w") as archive:
        for name, kind, target in (
            ("a.png", tarfile.SYMTYPE, "/etc/passwd"),
            ("a.txt", tarfile.LNKTYPE, "../../etc/passwd"),
            ("b.png", tarfile.CHRTYPE, ""),
            ("../../c.png", tarfile.FIFOTYPE, ""),
        ):
            info = tarfile.TarInfo(name)
            info.type = kind
            info.linkname = target
            archive.addfile(info)
    return _read_shards(folder)


def _counts(content: Any) -> Callable[[Path], str]:
    def run(folder: Path) -> str:
        (folder / "0.tar").write_bytes(_tar(SMALL))
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / "shards.json").write_text(text)
        return _read_shards(folder)

    return run


def _lying_counts(folder: Path) -> str:
    from hypvision.data.shards import CaptionShards
    from hypvision.io.errors import HypvisionError

    path = folder / "0.tar"
    path.write_bytes(_tar(SMALL))
    status = path.stat()
    lie = dict(bytes=status.st_size, modified=status.st_mtime_ns, samples=10**8, left_out=[])
    (folder / "shards.json").write_text(json.dumps({"CaptionShards": {"0.tar": lie}}))
    try:
        list(CaptionShards(folder, shuffle=0))
    except HypvisionError:
        assert len(CaptionShards(folder, shuffle=0)) == 1, "the lie stands"
        return "corrected"
    raise AssertionError("the lie was not seen")


def _archive(name: str, content: bytes) -> Callable[[Path], str]:
    def run(folder: Path) -> str:
        from hypvision.data.archives import Files

        (folder / name).write_bytes(content)
        files = Files(folder / name)
        return f"{sum(len(files.read(one)) for one in files.names)} bytes"

    return run


def _zip(data: bytes, flag: bytes = b"", repeat: int = 1) -> bytes:
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.jpg", "w", force_zip64=True) as file,
    ):
        for _ in range(repeat):
            file.write(data)
    content = bytearray(buffer.getvalue())
    for start, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = content.find(start) + place
        content[at : at + len(flag)] = flag
    return bytes(content)


def _packed_zeros(folder: Path) -> str:
    from hypvision.data.archives import Files

    info = tarfile.TarInfo("a.jpg")
    info.size = 2**32
    _zeros(folder / "a.tar.gz", 4096, info.tobuf())
    return f"{len(Files(folder / 'a.tar.gz').read('a.jpg'))} bytes"


def _zip_bomb(folder: Path) -> str:
    return _archive("a.zip", _zip(bytes(2**20), repeat=2048))(folder)


def _annotated(name: str, text: str, pictures: bool = True) -> Callable[[Path], str]:
    def run(folder: Path) -> str:
        from hypvision.data.convert import convert

        if pictures:
            (folder / "a.png").write_bytes(_png(8, 8))
        (folder / name).write_text(text)
        return f"{len(convert(folder, folder / 'out'))} files"

    return run


def _labelme(mask: bytes, **more: Any) -> Callable[[Path], str]:
    one = dict(label="cat", shape_type="mask", points=[[0, 0], [1, 1]])
    one["mask"] = base64.b64encode(mask).decode()
    content = dict(imagePath="a.png", imageHeight=8, imageWidth=8, shapes=[one | more])
    return _annotated("a.json", json.dumps(content))


def _pipe(name: str) -> Callable[[Path], str]:
    def run(folder: Path) -> str:
        from hypvision.data.convert import convert

        os.mkfifo(folder / name)
        return f"{len(convert(folder, folder / 'out'))} files"

    return run


# packed when the case runs: it takes seconds, and every import of this module would pay for it
def _large_picture(folder: Path) -> str:
    return _shard({**SMALL, "a.png": _png(40_000, 25_000)})(folder)


def _large_mask(folder: Path) -> str:
    return _labelme(_png(40_000, 25_000))(folder)


_ENTITIES = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
_XML = f'<!DOCTYPE x [<!ENTITY a0 "aaaaaaaaaa">{_ENTITIES}]><annotation>&a11;</annotation>'
_ALIASES = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)
)

CASES: dict[str, Callable[[Path], str]] = {
    "a shard whose file unpacks to 4 GiB": _packed_shard,
    "a shard with a file of 2**60 bytes": _huge_member,
    "a shard with links, a device and a pipe": _links,
    "a shard with a picture of 10**9 pixels": _large_picture,
    "a shard with brackets for JSON": _shard({"a.png": SMALL["a.png"], "a.json": b"[" * 10**6}),
    "a shard with a number of 5,000 digits": _shard(
        {"a.png": SMALL["a.png"], "a.json": f'{{"caption": {DIGITS}}}'.encode()}
    ),
    "a shard with a text that is not UTF-8": _shard({**SMALL, "a.txt": b"\xff\xfe"}),
    "a shard that is no tar": lambda folder: _archive("0.zip", b"PK")(folder),
    "counts that lie": _lying_counts,
    "counts that are brackets": _counts("[" * 10**6),
    "counts of another form": _counts({"CaptionShards": {"0.tar": [1, 2]}}),
    "counts below 0": _counts(
        {"CaptionShards": {"0.tar": dict(bytes=1, modified=1, samples=-5, left_out=[])}}
    ),
    "a zip with a password": _archive("a.zip", _zip(b"x", b"\1\0")),
    "a zip that unpacks to 2 GiB": _zip_bomb,
    "a tar that unpacks to 4 GiB": _packed_zeros,
    "a zip cut off": _archive("a.zip", _zip(b"x" * 999)[:-20]),
    "a tar cut off": _archive("a.tar", _tar(SMALL)[:700]),
    "a mask of 10**9 pixels": _large_mask,
    "a mask that is no picture": _labelme(b"GIF89a"),
    "a shape of a list": _labelme(_png(1, 1), shape_type=["x"]),
    "points of 400 digits": _labelme(_png(1, 1), shape_type="polygon", points=[[10**400, 1]]),
    "entities in XML": _annotated("a.xml", _XML),
    "aliases in YAML": _annotated("data.yaml", _ALIASES),
    "brackets in JSON": _annotated("a.json", "[" * 10**6),
    "key points of 5,000 digits": _annotated(
        "data.yaml", f"names: [cat]\ntrain: .\nkpt_shape: [{DIGITS}, 2]"
    ),
    "a pipe called .xml": _pipe("a.xml"),
    "a pipe called .json": _pipe("a.json"),
    "a pipe called data.yaml": _pipe("data.yaml"),
}


def _attack(run: Callable[[Path], str]) -> Callable[[Path], str]:
    def attack(folder: Path) -> str:
        from hypvision.io.errors import HypvisionError

        os.environ["HYPVISION_HOME"] = str(folder / "home")
        place = folder / "place"
        place.mkdir()
        try:
            said = run(place)
        except HypvisionError as error:
            said = str(error)
        return " ".join(said.split())[:300]

    return attack


def cases() -> list[Case]:
    return [Case(GROUP, name, _attack(run)) for name, run in CASES.items()]

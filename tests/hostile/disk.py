"""A real full disk: every command that writes, in a file system of memory with no space left, or
little.

The old files stand, nothing half-written remains, one sentence says that the disk is full, and the
status is not zero. The file system is mounted in a namespace of the case's own process, so that
nobody else sees it and it ends with it. Where mounting is not allowed, the system refuses every
file beyond a size instead, which it says in other words.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .table import Case, Skipped, shared

GROUP = "full disk"
FREE = (0, 16_000, 200_000)  # bytes
WRITERS = (
    "train", "test", "predict photos", "predict film", "export", "summary", "check", "browse",
    "zoo list", "zoo get", "zoo card", "zoo push", "zoo publish", "zoo convert", "fewshot base2new",
    "fewshot table", "clip segment", "clip make-chains", "metric embed", "metric hierarchy",
    "metric closure", "disk", "lm save", "scaling run", "scaling heads", "data make", "data shard",
)  # fmt: skip


def mounted(folder: Path, size: int) -> bool:
    """Mount an empty file system of so many bytes on a folder, for this process alone; False where
    it is forbidden."""
    folder.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x00020000) != 0:  # CLONE_NEWNS
        return False
    for words in (
        ["--make-rprivate", "/"],
        ["-t", "tmpfs", "-o", f"size={size}", "attack", str(folder)],
    ):
        if subprocess.run(["mount", *words], capture_output=True).returncode:
            return False
    return True


def fill(folder: Path, free: int) -> Path:
    """Leave so many bytes free in the file system of a folder; returns the file that takes the
    rest."""
    path = folder / "ballast"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for size in (2**20, 4096, 1):
        with contextlib.suppress(OSError):
            while True:
                os.write(file, bytes(size))
    os.close(file)
    os.truncate(path, max(0, path.stat().st_size - free))
    return path


def files(folder: Path) -> dict[str, bytes]:
    found = {path for path in folder.rglob("*") if path.is_file() and path.name != "ballast"}
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def call(words: list[str]) -> tuple[int, str]:
    """The exit status of a command, and what it wrote to standard error and output."""
    import hypvision_cli

    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            status = hypvision_cli.main(words)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
    return status, said.getvalue()


def _place(folder: Path, size: int) -> Path:
    place = folder / "disk"
    if not mounted(place, size):
        raise Skipped("mounting is not allowed here; the quick tests refuse by RLIMIT_FSIZE")
    return place


def _of(name: str) -> list[str]:
    from helpers import commands

    first, _, rest = name.partition(" ")
    for words in commands.lines():
        if words[0] == first and (
            not rest or any(word.partition(".")[0] == rest for word in words[1:2])
        ):
            return words
    raise AssertionError(f"there is no line {name}")


def _inputs(folder: Path) -> None:
    from helpers import commands

    commands.write_inputs(folder)


def _quiet() -> None:
    """Without what each run of mmengine does besides: the compiler and Git as processes."""
    import mmengine.runner.runner
    import mmengine.utils.version_utils

    mmengine.runner.runner.collect_env = dict
    mmengine.utils.version_utils._minimal_ext_cmd = lambda command: b"0" * 40


def _command(name: str) -> Callable[[Path], str]:
    def run(folder: Path) -> str:
        from helpers import commands

        made = shared("inputs", _inputs)
        place = _place(folder, 300 * 2**20)
        inputs = Path(shutil.copytree(made, place / "work"))
        words = _of(name)
        os.chdir(inputs)
        os.environ["HYPVISION_HOME"] = str(inputs / "home")
        os.environ["TMPDIR"] = str(place)
        commands.tiny(setattr)
        _quiet()
        before = files(made)
        failed, said = 0, "it needs less space"
        for free in FREE[: 1 if name == "export" else None]:
            ballast = fill(place, free)
            status, output = call(words)
            ballast.unlink()
            failed += _check(status, output, inputs, before, f"with {free} bytes")
            if status:
                said = output[output.rindex("hypvision: error:") :].strip().replace("\n", " ")[:200]
        assert failed, "the disk was never full"
        status, output = call(words)
        assert status == 0 or "is not empty" in output, f"with space again: {output[-1500:]}"
        results = files(place)
        ballast = fill(place, 0)
        status, output = call(words)
        ballast.unlink()
        if status:
            _check(status, output, inputs, before, "over earlier results")
        after = files(place)
        lost = [
            name
            for name, content in results.items()
            if content and not after.get(name) and "_00" not in name
        ]
        assert not lost, f"of earlier results it lost {lost}"
        return said

    return run


def _check(status: int, output: str, place: Path, before: dict[str, bytes], when: str) -> int:
    assert status in (0, 2), f"{when}: status {status}: {output[-2000:]}"
    assert "Traceback" not in output, f"{when}: {output[-3000:]}"
    if status:
        assert output.count("hypvision: error:") == 1, f"{when}: {output[-2000:]}"
        words = r"disk is full|No space left|No usable temporary|is not empty|is full"
        assert re.search(words, output), f"{when}: no word of the disk: {output[-1500:]}"
    now = files(place)
    changed = [name for name, content in before.items() if now.get(name) != content]
    assert not changed, f"{when}: it changed {changed}"
    left = [name for name in now if ".hyp-" in name or name.endswith(".tmp")]
    assert not left, f"{when}: it left {left}"
    return int(status == 2)


class _Greedy(threading.Thread):
    """Another program, which takes all space but so many bytes, again and again."""

    def __init__(self, folder: Path, free: int):
        super().__init__(daemon=True)
        self.folder, self.free, self.stopped = folder, free, threading.Event()

    def run(self) -> None:
        with open(self.folder / "ballast", "ab", buffering=0) as file:
            while not self.stopped.is_set():
                with contextlib.suppress(OSError):
                    left = shutil.disk_usage(self.folder).free - self.free
                    if left > 0:
                        file.write(bytes(left))

    def stop(self) -> None:
        self.stopped.set()
        self.join()
        (self.folder / "ballast").unlink()


def _checkpoints(keep: int) -> Callable[[Path], str]:
    """The disk fills up between two checkpoints of a training, of which the last ``keep`` are kept
    (-1: all)."""

    def run(folder: Path) -> str:
        from helpers.engine import make_images, write_config

        from hypvision.checkpoints.read import read

        place = _place(folder, 60 * 2**20)
        _quiet()
        data = make_images(folder / "images")
        config = write_config(folder / "config.py", data, epochs=4)
        more = (
            "\ndefault_hooks['checkpoint'] = dict(type='CheckpointHook', interval=1, "
            f"max_keep_ckpts={keep})\n"
        )
        config.write_text(config.read_text() + more)
        work = place / "work"
        words = ["train", str(config), "--work-dir", str(work)]
        status, output = call([*words, "--cfg-options", "train_cfg.max_epochs=2"])
        assert status == 0, output[-2000:]
        size = max(path.stat().st_size for path in work.glob("*.pth"))
        other = _Greedy(place, size // 2)
        other.start()
        status, output = call([*words, "--resume"])
        other.stop()
        assert status == 2 and "disk is full" in output and "Traceback" not in output, output[
            -2000:
        ]
        whole = sorted(work.glob("*.pth"))
        assert whole, "no checkpoint is left"
        for path in whole:
            assert read(path)["state_dict"], path
        assert not list(work.rglob("*.hyp-*")), "a half-written file is left"
        assert Path((work / "last_checkpoint").read_text().strip()).name in {
            path.name for path in whole
        }
        status, output = call([*words, "--resume"])
        assert status == 0, output[-2000:]
        return f"{whole[-1].name} stands after the disk was full, and the training goes on"

    return run


def _download(kind: str) -> Callable[[Path], str]:
    """``kind``: no space at all, or a disk that somebody else fills while the bytes arrive."""

    def run(folder: Path) -> str:
        import hypvision.checkpoints.download as module
        from hypvision.checkpoints.sources import resolve
        from hypvision.io.errors import HypvisionError

        from . import servers

        place = _place(folder, 8 * 2**20)
        servers._environment(folder, deadline=20)
        os.environ["HYPVISION_HOME"] = str(place / "home")
        big = folder / "big.safetensors"
        _big(big)
        server = servers.Server(servers.good, big.read_bytes(), folder / "secret")
        os.environ["HYPVISION_WEIGHTS"] = server.url
        record = servers._record(big)
        old = place / "home/weights/old.safetensors"
        old.parent.mkdir(parents=True)
        old.write_bytes(b"old")
        ballast = fill(place, 2**20)
        if kind == "fills up":
            module.shutil.disk_usage = lambda path: (
                _Usage()
            )  # another program takes the space later
        try:
            resolve(record)
        except HypvisionError as error:
            said = str(error)
        else:
            raise AssertionError("it gave a file")
        assert "disk is full" in said, said
        assert old.read_bytes() == b"old" and not (old.parent / record.filename).exists()
        ballast.unlink()
        assert resolve(record).read_bytes() == big.read_bytes()
        return " ".join(said.split())[:200]

    return run


class _Usage:
    free = 2**40


def _big(path: Path) -> None:
    import torch

    from hypvision.checkpoints.storage import write_weights

    write_weights({"w": torch.zeros(1_000_000)}, path)


def _function(write: Callable[[Path], Any], suffix: str) -> Callable[[Path], str]:
    """A function of Python that writes a file over an old one."""

    def run(folder: Path) -> str:
        from hypvision.io.errors import HypvisionError

        place = _place(folder, 8 * 2**20)
        path = place / f"out{suffix}"
        path.write_bytes(b"old")
        for free in (0, 4096, 40_000):
            ballast = fill(place, free)
            try:
                write(path)
            except HypvisionError as error:
                said = str(error)
            else:
                raise AssertionError(f"it was written with {free} bytes free")
            assert "disk is full" in said, said
            assert path.read_bytes() == b"old", "the old file is lost"
            assert {each.name for each in place.iterdir()} == {path.name, "ballast"}, list(
                place.iterdir()
            )
            ballast.unlink()
        write(path)
        assert path.stat().st_size > 3
        return " ".join(said.split())[:200]

    return run


def _adapter(path: Path) -> None:
    from helpers import clip_models

    from hypvision.clip import adapters

    adapters.save(
        adapters.inject(clip_models.openai_clip(), dict(type="hyperclip", block=16)), path
    )


def _checkpoint(path: Path) -> None:
    import torch

    from hypvision.io.files import replacing

    with replacing(path) as temporary:
        torch.save({"state_dict": {"w": torch.ones(100_000)}}, temporary)


def _table(path: Path) -> None:
    from hypvision.io.files import write_table

    write_table(path, [dict(a=number, b="x" * 100) for number in range(3000)])


def _picture(path: Path) -> None:
    import numpy as np
    from PIL import Image

    from hypvision.io.files import replacing
    from hypvision.io.images import write_image

    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    with replacing(path) as temporary:
        write_image(Image.fromarray(noise), temporary, "PNG" if path.suffix == ".png" else "JPEG")


FUNCTIONS = {
    "weights": (_big, ".safetensors"),
    "torch.save": (_checkpoint, ".pth"),
    "adapter": (_adapter, ".safetensors"),
    "table": (_table, ".csv"),
    "picture": (_picture, ".png"),
    "JPEG": (_picture, ".jpg"),
}


def _fallback(folder: Path) -> str:
    """What is tried where nothing can be mounted: the system refuses to make a file longer."""
    import resource

    from hypvision.io.errors import HypvisionError

    path = folder / "out.safetensors"
    path.write_bytes(b"old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    try:
        _big(path)
    except HypvisionError as error:
        said = str(error)
    else:
        raise AssertionError("it was written")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert path.read_bytes() == b"old" and [each.name for each in folder.iterdir()] == [path.name]
    return " ".join(said.split())[:200]


def cases() -> list[Case]:
    return [
        *(Case(GROUP, name, _command(name), seconds=240, megabytes=3000) for name in WRITERS),
        Case(
            GROUP,
            "between two checkpoints, all kept",
            _checkpoints(-1),
            seconds=120,
            megabytes=2000,
        ),
        Case(
            GROUP, "between two checkpoints, one kept", _checkpoints(1), seconds=120, megabytes=2000
        ),
        *(
            Case(GROUP, f"a download, when the disk {kind}", _download(kind))
            for kind in ("is full", "fills up")
        ),
        *(
            Case(GROUP, f"writing a {name}", _function(*about), seconds=60)
            for name, about in FUNCTIONS.items()
        ),
        Case(GROUP, "a limit of the system instead of a full disk", _fallback),
    ]

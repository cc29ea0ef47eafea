"""A lock on ``work_dir`` while a training runs, so that each folder has at most one."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from mmengine.dist import is_main_process

from hypvision.errors import HypvisionError
from hypvision.files import read_json, write_json


@contextmanager
def lock_work_dir(work_dir: str | Path) -> Iterator[None]:
    """Lock the folder of a training; the system releases the lock when the process ends in any way.

    In a distributed training the first process holds the lock.
    """
    if not is_main_process():
        yield
        return
    folder = Path(work_dir)
    holder = folder / ".training.json"
    lock = FileLock(folder / ".training.lock", timeout=0)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire()
    except Timeout as error:
        raise HypvisionError(
            f"Another training writes to '{folder}'{_who(holder)}. Two would overwrite each other's checkpoints: wait "
            "for its end, stop it, or choose another folder with --work-dir."
        ) from error
    try:
        facts = dict(pid=os.getpid(), host=socket.gethostname(), start=time.strftime("%Y-%m-%d %H:%M:%S"))
        write_json(holder, facts)
        yield
    finally:
        for path in (holder, folder / ".training.lock"):
            path.unlink(missing_ok=True)
        lock.release()


def _who(holder: Path) -> str:
    try:
        facts = read_json(holder)
        return f": process {facts['pid']} on {facts['host']}, since {facts['start']}"
    except (HypvisionError, KeyError, TypeError):  # its file is not complete yet, or gone again
        return ""

"""Lock ``work_dir`` while a training runs, so that each folder has at most one training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from mmengine.dist import is_main_process

from hypvision.io.errors import explaining
from hypvision.io.files import note_holder, who_holds


@contextmanager
def lock_work_dir(work_dir: str | Path) -> Iterator[None]:
    """Context in which the folder of a training is locked; the system releases the lock when the
    process ends, however it ends.

    In a distributed training the first process holds the lock.
    """
    if not is_main_process():
        yield
        return
    folder = Path(work_dir)
    holder = folder / ".training.json"
    lock = FileLock(folder / ".training.lock", timeout=0)
    folder.mkdir(parents=True, exist_ok=True)
    with explaining(
        lambda error: (
            f"Another training writes to '{folder}'{who_holds(holder)}. Two would overwrite each "
            "other's checkpoints: wait for its end, stop it, or choose another folder with "
            "--work-dir."
        ),
        Timeout,
    ):
        lock.acquire()
    try:
        note_holder(holder)
        yield
    finally:
        for path in (holder, folder / ".training.lock"):
            path.unlink(missing_ok=True)
        lock.release()

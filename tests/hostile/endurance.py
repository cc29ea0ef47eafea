"""2,000 steps of training and 2,000 predictions: memory, open files and threads do not grow.

They are compared between the 200th and the last. "Flat" is at most :data:`GROWTH` megabytes more,
and not one file or thread more.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .table import Case, Skipped

GROUP = "endurance"
TRIED = {
    GROUP: "2,000 steps of training and 2,000 predictions in one process; growth of memory, open "
    "files and threads"
}
COUNT, WARM = 2000, 200
GROWTH = 16.0  # megabytes


class Measured:
    """What this process holds: resident megabytes, open files, threads."""

    def __init__(self) -> None:
        gc.collect()
        self.megabytes = (
            int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        )
        self.files = len(os.listdir("/proc/self/fd"))
        self.threads = max(threading.active_count(), len(os.listdir("/proc/self/task")))


def compare(begin: Measured, end: Measured) -> str:
    growth = end.megabytes - begin.megabytes
    said = (
        f"{growth:+.1f} MB, {end.files - begin.files:+d} files, {end.threads - begin.threads:+d} "
        "threads"
    )
    assert growth <= GROWTH and end.files <= begin.files and end.threads <= begin.threads, said
    return f"{said} after the first {WARM}"


def repeat(work: Callable[[int], Any], count: int = COUNT, warm: int = WARM) -> str:
    begin = Measured()
    for number in range(count):
        if number == warm:
            begin = Measured()
        work(number)
    return compare(begin, Measured())


def _photos(folder: Path) -> Path:
    from helpers.engine import make_images

    return make_images(folder / "images")


def _steps(workers: int) -> Callable[[Path], str]:
    """A training by ``hypvision train``, with validation, checkpoints and a log."""

    def run(folder: Path) -> str:
        import mmengine.runner.runner
        from helpers.engine import write_config
        from mmengine.hooks import Hook
        from mmengine.registry import HOOKS

        from hypvision.cli import main

        found: list[Measured] = []

        @HOOKS.register_module()
        class Measuring(Hook):
            def after_train_iter(
                self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
            ) -> None:
                if runner.iter + 1 in (WARM, COUNT):
                    found.append(Measured())

        mmengine.runner.runner.collect_env = dict
        config = write_config(
            folder / "config.py",
            _photos(folder),
            batch=4,
            workers=workers,
            hooks=[dict(type="Measuring")],
        )
        config.write_text(
            config.read_text()
            + f"\ntrain_cfg = dict(by_epoch=False, max_iters={COUNT}, val_interval={COUNT // 10})\n"
            + "train_dataloader['sampler'] = dict(type='InfiniteSampler', shuffle=True)\n"
            + "param_scheduler = []\n"
            + "default_hooks['checkpoint'] = dict(type='CheckpointHook', by_epoch=False, "
            f"interval={COUNT // 10}," + " max_keep_ckpts=1)\n"
        )
        status = main(["train", str(config), "--work-dir", str(folder / "work")])
        assert status == 0 and len(found) == 2
        return compare(*found)

    return run


MODEL = "hcformer_nano.cifar10"


def _kept(folder: Path) -> str:
    """``hypvision.predict`` on one file after the other, by a model that is kept."""
    import hypvision
    from hypvision.inference.predictors import Request, load_predictor

    paths, model = sorted(_photos(folder).rglob("*.png")), load_predictor(Request(MODEL))
    return repeat(lambda number: hypvision.predict(paths[number % len(paths)], model))


def _loaded(folder: Path) -> str:
    """``hypvision.predict`` with the name of a model, which is read anew each time."""
    import hypvision

    paths = sorted(_photos(folder).rglob("*.png"))
    return repeat(lambda number: hypvision.predict(paths[number % len(paths)], MODEL), 300, 60)


def _many_images(folder: Path) -> str:
    """What ``hypvision.predict`` and the command do with a folder of 2,000 files."""
    from hypvision.inference.predictors import Request, load_predictor
    from hypvision.inference.running import results
    from hypvision.inference.sources import find_sources

    source = next(_photos(folder).rglob("*.png"))
    (folder / "many").mkdir()
    for number in range(COUNT):
        os.link(source, folder / f"many/{number:05d}.png")
    found = results(load_predictor(Request(MODEL)), find_sources(folder / "many"), 8)
    return repeat(lambda number: next(found))


def _searches(folder: Path) -> str:
    """Texts of a CLIP, which are kept in a memo."""
    import torch

    from hypvision.clip.models import create_clip

    bundle = create_clip("emoji-t8", "zoo:emoji-t8.scenes")

    def work(number: int) -> None:
        with torch.inference_mode():
            bundle.model.encode_text(bundle.tokenizer([f"a red disk {number}"]))

    return repeat(work)


def _app(folder: Path) -> str:
    """What the page of ``hypvision app`` computes for an uploaded photo; Gradio itself is not
    asked."""
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    try:
        from hypvision.app.answers import Answers
    except ImportError as error:
        raise Skipped(f"the app cannot be imported: {error}") from None
    paths, answers = sorted(_photos(folder).rglob("*.png")), Answers()
    return repeat(lambda number: answers.classify(str(paths[number % len(paths)]), MODEL), 500)


def _openings(folder: Path) -> str:
    """Reading a checkpoint, and one that is damaged."""
    import torch

    from hypvision.checkpoints.read import read
    from hypvision.io.errors import HypvisionError

    good, bad = folder / "good.pth", folder / "bad.pth"
    torch.save({"state_dict": {"w": torch.ones(1000)}}, good)
    bad.write_bytes(good.read_bytes()[:-200])

    def work(number: int) -> None:
        read(good)
        try:
            read(bad)
        except HypvisionError:
            return
        raise AssertionError("it read a damaged file")

    return repeat(work)


def cases() -> list[Case]:
    return [
        Case(GROUP, "2,000 steps", _steps(0), seconds=400, megabytes=2000),
        Case(GROUP, "2,000 steps with a worker", _steps(1), seconds=400, megabytes=2000),
        Case(GROUP, "2,000 predictions, one call each", _kept, seconds=400, megabytes=2000),
        Case(
            GROUP, "300 predictions that read the model anew", _loaded, seconds=400, megabytes=2000
        ),
        Case(GROUP, "2,000 predictions in one call", _many_images, seconds=400, megabytes=2000),
        Case(GROUP, "2,000 texts", _searches, seconds=200, megabytes=2000),
        Case(GROUP, "2,000 checkpoints, good and damaged", _openings, seconds=100, megabytes=1500),
        Case(GROUP, "500 answers of the app", _app, seconds=600, megabytes=2500),
    ]

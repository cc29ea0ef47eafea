"""`make demo`: HCFormer for classification, segmentation and detection, HyperCLIP for shapes that have no label.

All images are drawn on the spot. Each part runs tools/train.py and tools/test.py on a config of configs/demo, as a
user would. Ctrl-C stops at a checkpoint; the next call goes on from there. After a complete run the next call starts
anew (the images are kept).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mmengine.config import Config
from PIL import Image
from pycocotools.coco import COCO

import hypvision
from hypvision.clip.segmentation.segment import Segmentation, load_segmenter, segment
from hypvision.data.export import export
from hypvision.data.shapes import Scene, make_scene
from hypvision.errors import HypvisionError
from hypvision.images import open_image, read_labels
from hypvision.inference import Boxes
from hypvision.openmmlab.datasets.open_vocabulary_shapes import CLASSES, NOVEL
from hypvision.viz.segmentation import draw_segmentation
from hypvision.viz.sheet import contact_sheet, save_image

ROOT = Path("work_dirs/demo")
DATA = ROOT / "data"
FINISHED = ROOT / "finished.json"
RUNNING: set[subprocess.Popen] = set()


class Part(NamedTuple):
    """One training of the demo.

    Attributes:
        name: of its config.
        metric: the one to report.
        title: its name in words.
        scale: what to multiply it by.
        paints: the test draws its predictions; it needs images on disk.
    """

    name: str
    metric: str
    title: str
    scale: float
    paints: bool = True


PARTS = (
    Part("classification", "top1", "top-1 accuracy (16 shapes)", 0.01),
    Part("segmentation", "mIoU", "mIoU (4 kinds and ground)", 0.01),
    Part("detection", "coco/bbox_mAP_50", "box AP50 (4 kinds)", 1.0, paints=False),
    Part("open_vocabulary", "mIoU", "mIoU (12 + 4 shapes, ground)", 0.01, paints=False),
)


def main() -> int:
    if not Path("configs/demo").is_dir():
        print("Run this from the root of the repository: make demo", file=sys.stderr)
        return 2
    if FINISHED.exists():
        for part in PARTS:
            shutil.rmtree(ROOT / part.name, ignore_errors=True)
        FINISHED.unlink()
    # Half of the cores: two trainings run at a time, and OpenMP waits badly for a core that another process uses.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 2) // 2)))
    begin = time.time()
    try:
        print("Drawing the data set ...", flush=True)
        export(DATA / "imagefolder", "imagefolder", train=6400, val=640, size=64, level="shape", overwrite=True)
        export(DATA / "ade", "ade", train=800, val=100, size=96, level="kind", overwrite=True)
        export(DATA / "coco", "coco", train=800, val=100, size=96, level="kind", overwrite=True)
        rows = run_all()
        tuned, unseen = before_and_after()
        sheets = [*(sheet(part) for part in PARTS if part.paints), detections(), *clusters(), tuned]
    except HypvisionError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        said = f"{error.output}\n" if error.output else ""
        print(f"\n{said}The demo stopped in: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return error.returncode
    except KeyboardInterrupt:
        print("\nInterrupted. `make demo` goes on from the last checkpoint.", file=sys.stderr)
        return 130
    FINISHED.write_text(json.dumps({part.name: metric for part, metric, _ in rows}) + "\n")

    print(f"\n{'task':15} {'metric':28} {'result':>8} {'floor':>8} {'seconds':>8}")
    for part, metric, seconds in rows:
        print(f"{part.name:15} {part.title:28} {metric:8.3f} {floor(part):8.3f} {seconds:8.0f}")
    print("The floor is what a constant answer reaches.")
    print(f"Shapes that have no label in the last part: {unseen}")
    print(f"Total: {time.time() - begin:.0f} s. Images:")
    for path in sheets:
        print(f"  {path}")
    return 0


def run_all() -> list[tuple[Part, float, float]]:
    """All parts, two at a time where they do not need each other: (part, metric, seconds) of each.

    The classifier and then the detector are in the foreground. Beside them the tuning of CLIP and then the segmenter,
    which starts from the classifier, write to log files.
    """
    parts = {part.name: part for part in PARTS}
    with ThreadPoolExecutor(1) as background:
        try:
            results = {"open_vocabulary": background.submit(run, parts["open_vocabulary"], quiet=True)}
            done = {"classification": run(parts["classification"])}
            if results["open_vocabulary"].done():
                results["open_vocabulary"].result()  # a failure is told before the next part begins
            results["segmentation"] = background.submit(run, parts["segmentation"], quiet=True)
            done["detection"] = run(parts["detection"])
            done.update((name, result.result()) for name, result in results.items())
        except BaseException as error:
            background.shutdown(wait=False, cancel_futures=True)
            if not isinstance(error, KeyboardInterrupt):  # else the terminal has told them
                for process in list(RUNNING):
                    process.terminate()  # not SIGINT, which all ignore if the demo is a background job
            raise
    return [(part, *done[part.name]) for part in PARTS]


def run(part: Part, quiet: bool = False) -> tuple[float, float]:
    """Train (or go on training) and test one part; its metric, and the seconds that this call took.

    Args:
        part: which.
        quiet: write what the tools say to ``output.log`` in the part's folder.
    """
    begin = time.time()
    config, folder = f"configs/demo/{part.name}.py", ROOT / part.name
    log = folder / "output.log" if quiet else None
    folder.mkdir(parents=True, exist_ok=True)
    where = f" > {log}" if quiet else ""
    print(f"\n== {part.name}: tools/train.py {config}{where}", flush=True)
    call([sys.executable, "tools/train.py", config, "--work-dir", folder, "--resume"], log)
    weights = Path((folder / "last_checkpoint").read_text().strip())
    shutil.copyfile(weights, folder / "last.pth.tmp")
    (folder / "last.pth.tmp").replace(folder / "last.pth")  # the name that the next configs start from
    print(f"\n== {part.name}: tools/test.py {config} {folder / 'last.pth'}{where}", flush=True)
    show = folder / "shown"
    shutil.rmtree(show, ignore_errors=True)
    command = [sys.executable, "tools/test.py", config, folder / "last.pth", "--work-dir", folder / "test"]
    command += ["--show-dir", show] if part.paints else []
    metrics = json.loads(call(command, log, answer=True).strip().splitlines()[-1])
    return metrics[part.metric] * part.scale, time.time() - begin


def call(command: list, log: Path | None = None, answer: bool = False) -> str:
    """Run a command. After Ctrl-C wait until it has saved its state.

    Args:
        command: program and arguments.
        log: file that takes what it says; default: this terminal.
        answer: return what it prints on standard output.

    Raises:
        KeyboardInterrupt: it was interrupted.
        subprocess.CalledProcessError: it failed; ``output`` has the end of the log.
    """
    with open(log, "a") if log else nullcontext() as file:
        stdout = subprocess.PIPE if answer else file
        with subprocess.Popen(command, stdout=stdout, stderr=file, text=True) as process:
            RUNNING.add(process)
            try:
                output, _ = process.communicate()
            except KeyboardInterrupt:  # the terminal has sent it to the child as well
                process.wait()
                raise
            finally:
                RUNNING.discard(process)
    if process.returncode == 130:
        raise KeyboardInterrupt
    if process.returncode:
        end = "\n".join(log.read_text().splitlines()[-20:]) if log else None
        raise subprocess.CalledProcessError(process.returncode, command, output=end)
    return output or ""


def sheet(part: Part, count: int = 8) -> Path:
    """Some of the painted predictions of one part on one image."""
    found = sorted(path for path in (ROOT / part.name / "shown").rglob("*") if path.suffix in (".png", ".jpg"))
    chosen = [found[i] for i in np.linspace(0, len(found) - 1, min(count, len(found))).astype(int)]
    return save_image(contact_sheet([open_image(path) for path in chosen]), ROOT / "images" / f"{part.name}.png")


def detections(model: str = "configs/demo/detection.py", weights: Path | None = ROOT / "detection/last.pth") -> Path:
    """The objects of some test images beside those that the detector finds, on one image."""
    truth = _ground_truth()
    shown = truth.loadImgs(sorted(truth.imgs)[:: max(1, len(truth.imgs) // 8)][:8])
    files = [DATA / "coco/val2017" / image["file_name"] for image in shown]
    tiles = []
    for image, file, prediction in zip(shown, files, hypvision.predict(files, model, weights, expect=Boxes)):
        items = truth.loadAnns(truth.getAnnIds(image["id"]))
        corners = np.array([item["bbox"] for item in items], dtype=float).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        names = tuple(truth.cats[number]["name"] for number in sorted(truth.cats))
        labels = np.array([sorted(truth.cats).index(item["category_id"]) for item in items], dtype=int)
        masks = np.array([truth.annToMask(item) for item in items], dtype=bool).reshape(-1, *prediction.size[::-1])
        objects = Boxes(corners, np.ones(len(items)), labels, names, masks)
        tiles += [boxes_on_larger_image(open_image(file), boxes) for boxes in (objects, prediction.result)]
    return save_image(contact_sheet(tiles, cell=300), ROOT / "images/detection.png")


def boxes_on_larger_image(image: Image.Image, found: Boxes, factor: int = 3) -> Image.Image:
    """What was found, drawn on a larger image, so that there is room for the names."""
    masks = None if found.masks is None else found.masks.repeat(factor, 1).repeat(factor, 2)
    larger = image.resize((image.width * factor, image.height * factor), Image.Resampling.BICUBIC)
    return replace(found, boxes=found.boxes * factor, masks=masks).draw(larger)


def clusters() -> list[Path]:
    """Cluster maps of the classifier on a scene, by the command that users have."""
    scene = sorted((DATA / "ade/images/validation").glob("*.jpg"))[3]
    out = ROOT / "images"
    command = [sys.executable, "-m", "hypvision.cli", "explain", scene, "--out", out, "--size", "256"]
    model = {**Config.fromfile("configs/demo/classification.py").model.backbone}
    command += ["--model", model.pop("model_name"), "--weights", ROOT / "classification/last.pth"]
    command += ["--model-args", *(f"{name}={value!r}" for name, value in model.items())]
    call(command)
    return sorted(out.glob(f"{scene.stem}*"))


def before_and_after(shown: int = 4) -> tuple[Path, str]:
    """HyperCLIP and the frozen CLIP that it started from, side by side, by the functions that users have.

    Returns:
        An image: scenes, what the frozen CLIP makes of them, and what the tuned one does; and a line about the shapes
        that have no label in training.
    """
    scenes = open_vocabulary_scenes()
    unseen = [CLASSES["shape"].index(name) for name in NOVEL["shape"]]
    config = Config.fromfile("configs/demo/open_vocabulary.py").model.to_dict()
    models = [
        load_segmenter(clip="shapes-s8"),
        load_segmenter(ROOT / "open_vocabulary/last.pth", config),
    ]
    rows, scores = [[scene.image.resize((288, 288)) for scene in scenes[:shown]]], []
    for model in models:
        found = [segment(scene.image, CLASSES["shape"], model) for scene in scenes]
        rows.append([enlarged(result) for result in found[:shown]])
        scores.append(mean_iou([scene.semantic for scene in scenes], [result.labels for result in found], unseen))
    path = save_image(
        contact_sheet([image for row in rows for image in row], columns=shown, cell=300),
        ROOT / "images" / "open_vocabulary.png",
    )
    return path, f"{', '.join(NOVEL['shape'])}: mIoU {scores[1]:.3f}; the CLIP before tuning: {scores[0]:.3f}."


def enlarged(segmentation: Segmentation, factor: int = 3) -> Image.Image:
    """The segmentation drawn on a larger image, so that the legend fits beside it."""
    size = (segmentation.image.width * factor, segmentation.image.height * factor)
    labels = segmentation.labels.repeat(factor, 0).repeat(factor, 1)
    return draw_segmentation(segmentation.image.resize(size, Image.Resampling.BICUBIC), labels, segmentation.classes)


def open_vocabulary_scenes() -> list[Scene]:
    """Those that the last part is tested on."""
    data = Config.fromfile("configs/demo/open_vocabulary.py").test_dataloader.dataset
    return [make_scene(i, data.split, 96) for i in range(data.length)]


def mean_iou(truth: Sequence[np.ndarray], answer: Sequence[np.ndarray], classes: Sequence[int]) -> float:
    """Mean over classes of intersection over union, of label maps (H, W)."""
    pixels, found = np.stack(truth), np.stack(answer)
    ious = [((pixels == c) & (found == c)).sum() / ((pixels == c) | (found == c)).sum() for c in classes]
    return float(np.mean(ious))


def floor(part: Part) -> float:
    """What a constant answer reaches on the validation data."""
    if part.name == "classification":
        counts = [len(list(folder.iterdir())) for folder in (DATA / "imagefolder/val").iterdir()]
        return max(counts) / sum(counts)
    if part.name == "segmentation":  # everything is background
        maps = [read_labels(path) for path in (DATA / "ade/annotations/validation").glob("*.png")]
        return mean_iou(maps, [np.ones_like(truth) for truth in maps], np.unique(maps))
    if part.name == "open_vocabulary":
        maps = [scene.semantic for scene in open_vocabulary_scenes()]
        return mean_iou(maps, [np.zeros_like(truth) for truth in maps], np.unique(maps))
    return _detection_floor()


def _ground_truth() -> COCO:
    """The annotations that the detector is tested on."""
    with redirect_stdout(StringIO()):  # pycocotools talks
        return COCO(str(DATA / "coco/annotations/instances_val2017.json"))


def _detection_floor() -> float:
    """Box AP50 of the mean box of the most frequent class in every image."""
    from pycocotools.cocoeval import COCOeval

    truth = _ground_truth()
    with redirect_stdout(StringIO()):
        annotations = list(truth.anns.values())
        category = Counter(item["category_id"] for item in annotations).most_common(1)[0][0]
        box = np.mean([item["bbox"] for item in annotations], axis=0).tolist()
        answer = [dict(image_id=i, category_id=category, bbox=box, score=0.5) for i in truth.imgs]
        evaluation = COCOeval(truth, truth.loadRes(answer), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return max(0.0, float(evaluation.stats[1]))


if __name__ == "__main__":
    sys.exit(main())

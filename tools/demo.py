"""`make demo`: groceries on photos, emoji to segment and to detect, and words without labels.

Hi-Mapper on a backbone of ImageNet names groceries; HCFormer segments emoji on photos, and Faster
R-CNN boxes them; HyperCLIP finds emoji whose names had no label. All data and weights ship. Each
part runs tools/train.py and tools/test.py on a config of configs/demo, as a user would. Ctrl-C
stops at a checkpoint; the next call goes on from there. After a complete run the next call starts
anew (the data is kept). At the end there is a page with the results and pictures.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from html import escape
from io import StringIO
from pathlib import Path
from threading import Event
from typing import NamedTuple

import numpy as np
from mmengine.config import Config
from PIL import Image, ImageDraw
from pycocotools.coco import COCO

import hypvision
from hypvision.checkpoints.read import read_file
from hypvision.clip.segmentation.segment import load_segmenter, segment
from hypvision.data.emoji_export import export_emoji
from hypvision.engine.reports import BASELINE
from hypvision.inference import Boxes, Classes, Labels
from hypvision.io.errors import HypvisionError
from hypvision.io.files import write_text
from hypvision.io.images import images_in, open_image, read_labels
from hypvision.viz.overlay import add_legend, draw_boxes, font, paint
from hypvision.viz.palette import label_colours
from hypvision.viz.sheet import contact_sheet, save_image

SHIPPED = Path("tools/demo_data")
ROOT = Path("work_dirs/demo")
DATA = ROOT / "data"
FINISHED = ROOT / "finished.json"
RUNNING: set[subprocess.Popen] = set()
STOPPING = Event()  # set when a command was interrupted
RIGHT = (40, 150, 70)
WRONG = (210, 50, 40)
CELL = 288  # pixels, of an image on a sheet


class Part(NamedTuple):
    """One training of the demo.

    Attributes:
        name: of its config.
        metric: the one to report.
        title: its name in words.
        scale: what to multiply it by.
    """

    name: str
    metric: str
    title: str
    scale: float


HYPVISION = (sys.executable, "-m", "hypvision.cli")
WORDS = (
    "food > fruit > lemon, food > fruit > orange, food > fruit > melon, food > vegetable > carrot, "
    "food > vegetable > leek, animal > bird > owl, animal > mammal > tiger, animal > mammal > cow"
)
PARTS = (
    Part("photos", "top1", "top-1 accuracy (20 groceries)", 0.01),
    Part("emoji_segmentation", "mIoU", "mIoU (4 groups and photo)", 0.01),
    Part("emoji_detection", "coco/bbox_mAP_50", "box AP50 (4 groups)", 1.0),
    Part("open_vocabulary", "mIoU", "mIoU (16 + 5 classes, photo)", 0.01),
)


class Picture(NamedTuple):
    """A picture of the report, and what it shows."""

    path: Path
    title: str
    text: str


def main() -> int:
    if not Path("configs/demo").is_dir():
        print("Run this from the root of the repository: make demo", file=sys.stderr)
        return 2
    if FINISHED.exists():
        for part in PARTS:
            shutil.rmtree(ROOT / part.name, ignore_errors=True)
        FINISHED.unlink()
    # Half of the cores: two trainings run at a time, and OpenMP waits badly for a core that another
    # process uses.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 2) // 2)))
    warnings.simplefilter("ignore")  # of libraries about their own code
    begin = time.time()
    try:
        begun = [part.name for part in PARTS if (ROOT / part.name / "last_checkpoint").is_file()]
        if begun:
            print(f"Going on with the demo that was interrupted: {', '.join(begun)}.", flush=True)
        make_scenes()
        rows = [(part, metric, floor(part), seconds) for part, metric, seconds in run_all()]
        print("\nDrawing pictures ...", flush=True)
        report = write_report(rows, draw_all())
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
    FINISHED.write_text(json.dumps({part.name: metric for part, metric, *_ in rows}) + "\n")

    print(f"\n{'part':18} {'metric':30} {'result':>8} {'floor':>8} {'seconds':>8}")
    for part, metric, least, seconds in rows:
        print(f"{part.name:18} {part.title:30} {metric:8.3f} {least:8.3f} {seconds:8.0f}")
    print("The floor is the score of the same answer for every image.")
    print(f"Total: {time.time() - begin:.0f} s.")
    print(f"Results and pictures: {report.resolve()}")
    low = [part.name for part, metric, least, _ in rows if not metric > least]
    if low:
        print(f"Not above the floor: {', '.join(low)}", file=sys.stderr)
        return 1
    return 0


def make_scenes(train: int = 800, val: int = 100) -> None:
    """The emoji on photos that three parts learn from: label maps and boxes of the same scenes for
    four groups, and label maps of scenes for words, which name finer classes. A demo that goes on
    has them already."""
    made = DATA / "made.json"
    about = dict(train=train, val=val, version=hypvision.__version__)
    if made.is_file() and json.loads(made.read_text()) == about:
        return
    print("Putting emoji on photos, about a minute ...", flush=True)
    folders = SHIPPED / "emoji", SHIPPED / "photos"
    for layout in ("masks", "coco"):
        export_emoji(DATA / layout, *folders, layout, train, val, size=96, overwrite=True)
    words = dict(size=96, level="class", val_emoji="train", overwrite=True)
    export_emoji(DATA / "words", *folders, "masks", train, val, **words)
    made.write_text(json.dumps(about))


def run_all() -> list[tuple[Part, float, float]]:
    """All parts, two at a time: (part, metric, seconds) of each.

    The classifier and then the detector are in the foreground. Beside them the tuning of CLIP and
    then the segmenter write to log files.
    """
    parts = {part.name: part for part in PARTS}
    done = {}
    with ThreadPoolExecutor(1) as background:
        try:
            quiet = ("open_vocabulary", "emoji_segmentation")
            beside = {name: background.submit(run, parts[name], quiet=True) for name in quiet}
            for name in ("photos", "emoji_detection"):
                done[name] = run(parts[name])
                for result in beside.values():
                    if result.done():
                        result.result()  # a failure is told before the next part begins
            done.update((name, result.result()) for name, result in beside.items())
        except BaseException as error:
            background.shutdown(wait=False, cancel_futures=True)
            if not isinstance(error, KeyboardInterrupt):  # else the terminal has told them
                for process in list(RUNNING):
                    # not SIGINT, which all ignore if the demo is a background job
                    process.terminate()
            raise
    return [(part, *done[part.name]) for part in PARTS]


def run(part: Part, quiet: bool = False) -> tuple[float, float]:
    """Train (or go on training) and test one part; its metric, and the seconds that this call took.

    Args:
        part: which.
        quiet: write what the tools say to ``output.log`` in the part's folder.
    """
    begin = time.time()
    config = f"configs/demo/{part.name}.py"
    folder = ROOT / part.name
    log = folder / "output.log" if quiet else None
    folder.mkdir(parents=True, exist_ok=True)
    where = f" > {log}" if quiet else ""
    print(f"\n== {part.name}: tools/train.py {config}{where}", flush=True)
    call([sys.executable, "tools/train.py", config, "--work-dir", folder, "--resume"], log)
    weights = Path((folder / "last_checkpoint").read_text().strip())
    shutil.copyfile(weights, folder / "last.pth.tmp")
    (folder / "last.pth.tmp").replace(folder / "last.pth")
    print(f"\n== {part.name}: tools/test.py {config} {folder / 'last.pth'}{where}", flush=True)
    command = [
        sys.executable,
        "tools/test.py",
        config,
        folder / "last.pth",
        "--work-dir",
        folder / "test",
    ]
    metrics = json.loads(call(command, log, answer=True).strip().splitlines()[-1])
    return metrics[part.metric] * part.scale, time.time() - begin


def call(command: list, log: Path | None = None, answer: bool = False) -> str:
    """Run a command. After Ctrl-C wait until it has saved its state.

    Args:
        command: program and arguments.
        log: file that takes what it says; default: this terminal.
        answer: return what it prints on standard output.

    Raises:
        KeyboardInterrupt: it was interrupted, or another command was before it began.
        subprocess.CalledProcessError: it failed; ``output`` has the end of the log.
    """
    if STOPPING.is_set():  # the thread in the background would begin its next part
        raise KeyboardInterrupt
    with open(log, "a") if log else nullcontext() as file:
        stdout = subprocess.PIPE if answer else file
        with subprocess.Popen(command, stdout=stdout, stderr=file, text=True) as process:
            RUNNING.add(process)
            try:
                output, _ = process.communicate()
            except KeyboardInterrupt:  # the terminal has sent it to the child as well
                STOPPING.set()
                process.wait()
                raise
            finally:
                RUNNING.discard(process)
    if process.returncode == 130:
        STOPPING.set()
        raise KeyboardInterrupt
    if process.returncode:
        end = "\n".join(log.read_text().splitlines()[-20:]) if log else None
        raise subprocess.CalledProcessError(process.returncode, command, output=end)
    return output or ""


def draw_all() -> list[Picture]:
    """The pictures of all parts."""
    return [
        photos(), *tree(), search(), words(), segmentations(), detections(), before_and_after(),
        *clusters(),
    ]  # fmt: skip


def photos(shown: int = 12) -> Picture:
    """Test photos of the groceries with the classifier's answers."""
    found = images_in(SHIPPED / "photos/test")
    files = [found[i] for i in np.linspace(0, len(found) - 1, shown).astype(int)]
    tiles = []
    for file, prediction in zip(
        files, hypvision.predict(files, *trained("photos"), expect=Classes)
    ):
        result = prediction.result
        truth = file.parent.name
        answer = result.names[result.best]
        text = f"{answer} {result.scores[result.best]:.0%}" + (
            f" (is: {truth})" if answer != truth else ""
        )
        tiles.append(
            add_legend(
                larger(open_image(file)), [(text, RIGHT if answer == truth else WRONG)], width=CELL
            )
        )
    text = (
        "Test photos with the classifier's answer and its probability. Red: wrong, with the truth "
        "in brackets."
    )
    return Picture(sheet(tiles, "photos"), "Groceries", text)


def tree(photo: str = "Lemon/07") -> list[Picture]:
    """What the Hi-Mapper of the first part sees in a test photo."""
    config, weights = trained("photos")
    model = Config.fromfile(config).model.backbone
    options = ["--weights", weights, "--model-args", f"num_classes={model.num_classes}"]
    texts = {
        "tree": "The photo with the parts of the coarsest nodes; right of it each node, in "
        "colour in the patches where it is the strongest of its level, with its name and their "
        "number. Children stand right of their parents.",
        "disk": "The same nodes as points of the hyperbolic plane, joined to their parents by "
        "geodesics.",
    }
    drawn = explain(photo, model.model_name, *options)
    return [Picture(drawn[kind], f"A photo's parts: {kind}", text) for kind, text in texts.items()]


def clusters(photo: str = "Watermelon/07") -> list[Picture]:
    """What an HCFormer of the zoo groups together in a test photo."""
    texts = {
        "clusters": "Clusters of the third stage of an HCFormer that was trained on CIFAR-10.",
        "regions": "The clusters of all its stages, merged into eight regions.",
    }
    drawn = explain(photo, "zoo:hcformer_nano.cifar10", "--stage", "2", "--head", "0")
    return [Picture(drawn[kind], f"A photo's parts: {kind}", text) for kind, text in texts.items()]


def search(photo: str = "Banana/02") -> Picture:
    """The training photos that are nearest to a test photo, by the command that users have."""
    path = ROOT / "images/search.png"
    command = [*HYPVISION, "metric", "search", SHIPPED / f"photos/test/{photo}.jpg"]
    gallery = ["--gallery", SHIPPED / "photos/train", "--save", path]
    call([*command, "--model", "zoo:lhier_tf_efficientnet_lite0.grocery", *gallery], answer=True)
    text = (
        "A test photo, framed, and the nearest training photos by a metric learner of the zoo: the "
        "hyperbolic distance, folder and file of each."
    )
    return Picture(path, "Photos found by example", text)


def words(tree: str = WORDS) -> Picture:
    """Names that settle in the Poincare disk, by the command that users have."""
    path = ROOT / "images/words.gif"
    page = ROOT / "words.html"
    call([*HYPVISION, "disk", tree, "--out", page, "--gif", path], answer=True)
    text = (
        "Names of a tree settle in the Poincare disk, and a walk through it. words.html beside "
        "this page is the same to walk through with the mouse."
    )
    return Picture(path, "A tree of words", text)


def explain(photo: str, model: str, *options: str | Path) -> dict[str, Path]:
    """Drawings of a test photo, ``CLASS/NUMBER``, by the command that users have: their files, by
    kind."""
    name = photo.replace("/", "-").lower()
    image = open_image(SHIPPED / "photos/test" / f"{photo}.jpg").resize(
        (512, 512), Image.Resampling.BICUBIC
    )
    command = [*HYPVISION, "explain", save_image(image, DATA / f"{name}.png")]
    call(
        [*command, "--out", ROOT / "images", "--size", "256", "--model", model, *options],
        answer=True,
    )
    return {path.stem.rpartition("_")[2]: path for path in (ROOT / "images").glob(f"{name}_*.png")}


def segmentations(shown: int = 4) -> Picture:
    """Scenes of emoji, where the emoji are, and what the segmenter finds."""
    files = images_in(DATA / "masks/val/images")[:shown]
    images = [open_image(file) for file in files]
    maps = [DATA / "masks/val/masks" / f"{file.stem}.png" for file in files]
    found = [
        prediction.result
        for prediction in hypvision.predict(files, *trained("emoji_segmentation"), expect=Labels)
    ]
    tiles = [painted(image, read_labels(path), found[0].names) for image, path in zip(images, maps)]
    tiles += [painted(image, result.labels, result.names) for image, result in zip(images, found)]
    text = (
        "Scenes of the validation data: the truth, and what HCFormer with Semantic FPN finds, with "
        "the names of what covers a fiftieth of the scene."
    )
    return Picture(
        sheet(tiles, "emoji_segmentation", ("truth", "HCFormer with Semantic FPN")),
        "Emoji, segmented",
        text,
    )


def detections(shown: int = 4) -> Picture:
    """Scenes of emoji, where the emoji are, and what the detector finds."""
    truth = _ground_truth()
    chosen = truth.loadImgs(sorted(truth.imgs)[:shown])
    files = [DATA / "coco/val2017" / image["file_name"] for image in chosen]
    images = [larger(open_image(file)) for file in files]
    factor = CELL // chosen[0]["width"]
    names = [truth.cats[number]["name"] for number in sorted(truth.cats)]
    tiles = []
    for image, shown_image in zip(images, chosen):
        items = truth.loadAnns(truth.getAnnIds(shown_image["id"]))
        corners = factor * np.array([item["bbox"] for item in items], dtype=float).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        labels = [sorted(truth.cats).index(item["category_id"]) for item in items]
        tiles.append(
            draw_boxes(
                image,
                corners,
                [names[label] for label in labels],
                label_colours(len(names))[labels],
            )
        )
    for image, prediction in zip(
        images, hypvision.predict(files, *trained("emoji_detection"), expect=Boxes)
    ):
        found = prediction.result
        masks = None if found.masks is None else found.masks.repeat(factor, 1).repeat(factor, 2)
        tiles.append(replace(found, boxes=found.boxes * factor, masks=masks).draw(image))
    text = "Scenes of the validation data: the truth, and what Faster R-CNN finds."
    titles = ("truth", "Faster R-CNN on EfficientNet-Lite0")
    return Picture(sheet(tiles, "emoji_detection", titles), "Emoji, detected", text)


def before_and_after(shown: int = 4) -> Picture:
    """HyperCLIP and the frozen CLIP that it started from, by the functions that users have."""
    config, weights = trained("open_vocabulary")
    settings = Config.fromfile(config)
    names = settings.words
    novel = settings.novel_words
    unseen = [names.index(name) for name in novel]
    files = images_in(DATA / "words/val/images")
    truth = [read_labels(path) for path in word_maps()]
    chosen = [i for i, labels in enumerate(truth) if np.isin(labels, unseen).any()][:shown]
    models = [
        load_segmenter(clip="zoo:emoji-t8.scenes"),
        load_segmenter(weights, settings.model.to_dict()),
    ]
    found = [[segment(file, names, model) for file in files] for model in models]
    before, after = (
        mean_iou(truth, [result.labels for result in results], unseen) for results in found
    )
    maps = [[truth[i] for i in chosen], *([results[i].labels for i in chosen] for results in found)]
    tiles = [
        painted(open_image(files[i]), labels, names)
        for row in maps
        for i, labels in zip(chosen, row)
    ]
    line = f"{', '.join(novel)}: mIoU {after:.3f}; the CLIP before tuning: {before:.3f}."
    print(f"Emoji whose names had no label in training: {line}", flush=True)
    text = (
        "Scenes of the validation data with emoji whose names had no label in training: the truth, "
        "and what two models find, with the names of what covers a fiftieth of the scene. Only "
        f"these emoji: {line}"
    )
    titles = ("truth", "CLIP before tuning", "HyperCLIP")
    return Picture(sheet(tiles, "open_vocabulary", titles), "Words without labels", text)


def trained(name: str) -> tuple[str, Path]:
    """Config and weights of a part."""
    return f"configs/demo/{name}.py", ROOT / name / "last.pth"


def larger(image: Image.Image) -> Image.Image:
    """The image at the size of its place on a sheet, so that there is room for names."""
    return image.resize((CELL, CELL), Image.Resampling.BICUBIC)


def painted(image: Image.Image, labels: np.ndarray, classes: Sequence[str]) -> Image.Image:
    """The larger image with all classes but the first, the background, painted in, and below it the
    names of those that cover a fiftieth of it."""
    factor = CELL // image.width
    colours = label_colours(len(classes) - 1)
    shown = paint(
        larger(image), labels.astype(int).repeat(factor, 0).repeat(factor, 1) - 1, colours, 0.6
    )
    found, counts = np.unique(labels, return_counts=True)
    large = [label for label, count in zip(found, counts) if label and count >= labels.size / 50]
    return add_legend(shown, [(classes[label], colours[label - 1]) for label in large], width=CELL)


def sheet(tiles: Sequence[Image.Image], name: str, titles: Sequence[str] = ("",)) -> Path:
    """Tiles in rows of four as one picture, with a title above each row, or none at all; its
    file."""
    side = max(max(tile.size) for tile in tiles)
    equal = []
    for tile in tiles:
        equal.append(Image.new("RGB", (side, side), "white"))
        equal[-1].paste(tile)
    each = len(equal) // len(titles)
    rows = [
        contact_sheet(equal[start : start + each], cell=side)
        for start in range(0, len(equal), each)
    ]
    above = 28 if any(titles) else 0
    whole = Image.new("RGB", (rows[0].width, len(rows) * (rows[0].height + above)), "white")
    for i, (row, title) in enumerate(zip(rows, titles)):
        top = i * (row.height + above)
        whole.paste(row, (0, top + above))
        ImageDraw.Draw(whole).text((8, top + above // 2), title, "black", font(18), "lm")
    return save_image(whole, ROOT / f"images/{name}.png")


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>The demo of hypvision</title><style>
body {{ font-family: sans-serif; max-width: 1400px; margin: 2em auto; padding: 0 1em; color: #222 }}
table {{ border-collapse: collapse }} td, th {{ padding: .3em .8em; border-bottom: 1px solid #ccc; text-align: left }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums }} img {{ max-width: 100% }}
</style></head><body>
<h1>The demo of hypvision</h1>
<p>Trained and tested just now by <code>make demo</code>. The floor is the score of the same answer for every image.</p>
<table><tr><th>part</th><th>metric</th><th>result</th><th>floor</th><th>seconds</th></tr>
{rows}
</table>
{probe}
{pictures}
<h2>What to do next</h2>
<ol>
<li>Your own photos, in folders of classes: <code>hypvision train FOLDER --method probe</code> answers in seconds,
<code>hypvision train FOLDER</code> goes on from there (docs/own-data.md).</li>
<li>Your own words or photos in the disk: <code>hypvision disk FOLDER --out disk.html</code>.</li>
<li>All of it in the browser: <code>pip install -c constraints.txt -e '.[app]'</code>, then <code>hypvision app</code>
(docs/app.md).</li>
</ol>
</body></html>
"""  # noqa: E501


def write_report(
    rows: Sequence[tuple[Part, float, float, float]], pictures: Sequence[Picture]
) -> Path:
    """A page that holds the table and all pictures; its file."""
    lines = [
        f"<tr><td>{escape(part.name)}</td><td>{escape(part.title)}</td>"
        + "".join(
            f'<td class="number">{value}</td>'
            for value in (f"{metric:.3f}", f"{least:.3f}", f"{seconds:.0f}")
        )
        + "</tr>"
        for part, metric, least, seconds in rows
    ]
    found = probed()
    if found is not None:
        lines.append(
            "<tr><td>photos</td><td>the same before the training: linear probe</td>"
            f'<td class="number">{found / 100:.3f}</td><td></td><td></td></tr>'
        )
    figures = []
    for path, title, text in pictures:
        kind = path.suffix[1:]
        image = b64encode(path.read_bytes()).decode()
        figures.append(
            f"<h2>{escape(title)}</h2>\n<p>{escape(text)}</p>\n"
            f'<img alt="{escape(text)}" src="data:image/{kind};base64,{image}">'
        )
    out = ROOT / "report.html"
    probe = about_probe()
    print(probe)
    content = dict(rows="\n".join(lines), probe=f"<p>{probe}</p>", pictures="\n".join(figures))
    write_text(out, PAGE.format(**content))
    return out


def probed() -> float | None:
    """The accuracy of the linear probe with which the training of the photos begins, in percent,
    by its last checkpoint; None if nothing tells it."""
    path = ROOT / "photos/last.pth"
    checkpoint = read_file(path) if path.is_file() else {}
    hub = checkpoint.get("message_hub") or {}
    accuracy: float | None = hub.get("runtime_info", {}).get(BASELINE, {}).get("top1")
    return accuracy


def about_probe() -> str:
    """What :func:`probed` says, in words."""
    found = probed()
    if found is None:
        return "Nothing tells what the linear probe reaches."
    return (
        f"The photos by a linear probe of the new Hi-Mapper, with which their training begins: "
        f"{found / 100:.3f}. What the training adds to that is its own; one of 160 photos is 0.006."
    )


def word_maps() -> list[Path]:
    """The label maps that the last part is tested on."""
    return sorted((DATA / "words/val/masks").glob("*.png"))


def mean_iou(
    truth: Sequence[np.ndarray], answer: Sequence[np.ndarray], classes: Sequence[int]
) -> float:
    """Mean over classes of intersection over union, of label maps (H, W)."""
    pixels = np.stack(truth)
    found = np.stack(answer)
    ious = [
        ((pixels == c) & (found == c)).sum() / ((pixels == c) | (found == c)).sum() for c in classes
    ]
    return float(np.mean(ious))


def floor(part: Part) -> float:
    """The score on the validation data of a model that gives every image the same answer."""
    if part.name == "photos":
        counts = [len(list(folder.iterdir())) for folder in (SHIPPED / "photos/test").iterdir()]
        return max(counts) / sum(counts)
    if part.name == "emoji_segmentation":  # everything is photo
        maps = [read_labels(path) for path in (DATA / "masks/val/masks").glob("*.png")]
        return mean_iou(maps, [np.zeros_like(truth) for truth in maps], np.unique(maps))
    if part.name == "open_vocabulary":
        maps = [read_labels(path) for path in word_maps()]
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

"""Every ``hypvision ...`` of README, docs, configs and the zoo is a command that exists, with names
that exist."""

import re
import shutil
import subprocess
from glob import glob
from pathlib import Path

import numpy as np
import pytest
from helpers.cases import each
from PIL import Image

pytest.importorskip("mmengine")
import timm
from helpers.engine import make_images

from hypvision.checkpoints.index import builtin_index
from hypvision.cli import COMMANDS, _command, main, parser_of
from hypvision.clip.models import is_clip
from hypvision.clip.names import clip_options
from hypvision.engine.config import load_config, parse_options
from hypvision.io.shipped import find_config
from hypvision.zoo.cards import model_card

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "configs").glob("*/README.md")),
    ROOT / "model_zoo/README.md",
]

# The shell itself reads a block: variables, loops, comments. Nothing but hypvision is found, and
# that tells its words; so it is behind a launcher.
SHELL = r"""
hypvision() { printf "%s\\0" "$@"; printf "\\n\\0"; }
launched() {
    while [[ $# -gt 0 && $1 != hypvision* ]]; do shift; done
    [[ $# -gt 0 ]] && hypvision "${@:2}"
}
torchrun() { launched "$@"; }
srun() { launched "$@"; }
"""
PLACEHOLDER = re.compile(r"[A-Z_]+(\.py|\.pth)?|mine\.py|other\.py|data/mine|work_dirs/.*\.py")


def blocks(page):
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^[ >]*```(?:sh|bash|console)\n(.*?)^[ >]*```", text, re.M | re.S)


def commands_of(page, folder):
    """The words of each command in a page's blocks for a shell."""
    for block in blocks(page):
        shell = [shutil.which("bash"), "-r", "-c", SHELL + block]
        options = dict(cwd=folder, stdin=subprocess.DEVNULL, env=dict(PATH="/nowhere"), timeout=20)
        done = subprocess.run(shell, capture_output=True, text=True, **options)
        said = [words.split("\0")[:-1] for words in done.stdout.split("\n\0")]
        yield from (words for words in said if words)


def known_config(name):
    return (
        bool(PLACEHOLDER.fullmatch(name))
        or find_config(name) is not None
        or (ROOT / name).is_file()
    )


def known_model(name):
    return (
        known_config(name)
        or timm.is_model(name)
        or name in builtin_index().records
        or name == "ANY_TIMM_MODEL"
    )


def faults(words):
    """What is wrong with a command, beside what its parser refuses."""
    name = _command(words)
    args = vars(parser_of(name).parse_args(words[len(name.split()) :]))
    config, model, weights, clip = (args.get(key) for key in ("config", "model", "weights", "clip"))
    if isinstance(config, str) and not known_config(config):
        yield f"no config {config}"
    if (
        isinstance(model, str)
        and name != "lm generate"
        and name != "lm eval"
        and not known_model(model)
    ):
        yield f"no model {model}"
    if (
        isinstance(weights, str)
        and weights.startswith("zoo:")
        and weights[4:] not in builtin_index().records
    ):
        yield f"no weights {weights}"
    if (
        isinstance(clip, str)
        and not PLACEHOLDER.fullmatch(clip.partition(":")[0])
        and not is_clip(clip_options(clip)["name"])
    ):
        yield f"no CLIP {clip}"
    if isinstance(config, str) and not PLACEHOLDER.fullmatch(config) and args.get("cfg_options"):
        load_config(
            ROOT / config, parse_options(args["cfg_options"])
        )  # refuses what the config does not know


@each("page", PAGES)
def test_commands_are_read(page, tmp_path):
    found = list(commands_of(page, tmp_path))
    lines = [
        line
        for block in blocks(page)
        for line in block.splitlines()
        if re.match(r"\s*hypvision ", line)
    ]
    assert len(found) >= len(lines)
    wrong = [(" ".join(words), fault) for words in found for fault in faults(words)]
    assert not wrong


@each("record", builtin_index())
def test_the_commands_of_a_card_run_in_their_order(record, tmp_path):
    """They are read; and what draws the data draws them where the config looks for them."""
    card = tmp_path / "card.md"
    card.write_text(model_card(record))
    found = list(commands_of(card, tmp_path))
    assert [fault for words in found for fault in faults(words)] == []
    names = [_command(words) for words in found]
    assert names.count("test") == len({metric.command for metric in record.metrics})
    root = str(load_config(ROOT / record.config).get("data_root", "")).rstrip("/")
    drawn = [words[2] for words, name in zip(found, names) if name == "data make"]
    assert set(drawn) <= {root}
    # other data are published, as docs/data.md says, or drawn in memory
    published = ("data/cifar10", "data/camvid", "data/emoji", "data/grocery", "")
    assert drawn or root.removesuffix("/images") in published


def test_options_within_sentences_exist():
    """Of commands in the text, which may have brackets and dots."""
    wrong, count = [], 0
    for page in PAGES:
        for line in re.findall(r"`(hypvision [^`]*)`", page.read_text(encoding="utf-8")):
            words = line.split()[1:]
            name = next(
                (n for n in (" ".join(words[:2]), " ".join(words[:1])) if n in COMMANDS), None
            )
            if name:
                count += 1
                known = parser_of(name)._option_string_actions
                wrong += [
                    (page.name, line, o)
                    for o in re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)
                    if o not in known
                ]
    assert count > 50 and not wrong


# Commands of docs and configs that take seconds with what ships, and the files that they leave; and
# what takes longest, in the slow tests: other tests run it with less to do.
RUN = {
    "summary mine.py": [],
    "explain photo.jpg --model hcformer_nano --weights zoo:hcformer_nano.cifar10": [
        "explain/photo_clusters.png"
    ],
    "clip segment scene.png --classes groceries, mammal --clip emoji-t8": ["scene_overlay.png"],
    "metric closure tree.tsv --transitive --out out/drawn": ["out/drawn/disk.png"],
    "plot work_dirs/mine work_dirs/other --save out/curves.png": ["curves.png", "curves.csv"],
    "scaling fit losses.csv": [],
}
LONG = ("metric closure",)


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, marks=[pytest.mark.slow] if line.startswith(LONG) else []) for line in RUN],
)
def test_a_command_runs_as_it_stands(line, tmp_path, monkeypatch, capsys):
    [words] = {
        tuple(w) for page in PAGES for w in commands_of(page, tmp_path) if " ".join(w) == line
    }
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8)
    for name in ("photo.jpg", "scene.png"):
        Image.fromarray(pixels).save(name)
    Path("tree.tsv").write_text(
        "cat\tmammal\ndog\tmammal\nmammal\tanimal\nant\tinsect\ninsect\tanimal\n"
    )
    rows = [f"gpt,c4,{m},{3 + 40 / m}" for m in (64, 128, 256, 512)]
    Path("losses.csv").write_text("\n".join(["family,dataset,m,loss", *rows]) + "\n")
    model = "dict(type='ImageClassifier', backbone=dict(model_name='test_resnet', num_classes=2))"
    Path("mine.py").write_text(f"model = {model}\ntrain_dataloader = dict()\n")
    for run in ("mine", "other"):
        log = Path("work_dirs", run, "20260101_000000/vis_data/scalars.json")
        log.parent.mkdir(parents=True)
        log.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    assert main(list(words)) == 0
    for name in RUN[line]:
        assert list(tmp_path.rglob(Path(name).name)), sorted(map(str, tmp_path.rglob("*")))


MINE = """
_base_ = ["hypvision::_base_/own_photos.py"]
data_root = "data/mine"
backbone = dict(model_name="test_efficientnet", num_classes=3)
model = dict(_delete_=True, type="ImageClassifier", backbone=backbone)
view = dict(transform=dict(input_size=64))
train_dataloader = dict(num_workers=0, dataset=view)
val_dataloader = test_dataloader = dict(num_workers=0, persistent_workers=False, dataset=view)
"""


@pytest.mark.slow
def test_own_data_from_the_first_line_to_an_export(tmp_path, monkeypatch):
    """The first block of docs/own-data.md, in its order."""
    make_images(tmp_path / "data/mine", per_class=4)
    page = ROOT / "docs/own-data.md"
    count = len([line for line in blocks(page)[0].splitlines() if line.startswith("hypvision ")])
    lines = list(commands_of(page, tmp_path))[:count]
    assert [words[0] for words in lines] == [
        "check",
        "browse",
        "summary",
        "train",
        "test",
        "predict",
        "export",
    ]
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    shutil.copytree("data/mine/val/red", "photos")
    for line in lines:
        words = [path for word in line for path in sorted(glob(word)) or [word]]
        try:
            assert main(words) == 0, words
        except SystemExit as end:
            assert not end.code, words
    for name in ("out/report/report.html", "out/predicted/predictions.json"):
        assert Path(name).is_file(), name
    assert Path("work_dirs/mine/results.png").is_file()

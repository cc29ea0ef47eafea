"""docs/hyperbolic-clip.md does what it says: its Python and its commands, on small towers under the
published names. So do the sections of docs/data.md on captions and shards."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

pytest.importorskip("open_clip")
pytest.importorskip("mmengine")
pytest.importorskip("webdataset")
from mmengine.registry import DATASETS
from torch.distributed.run import get_args_parser

from hypvision.cli import COMMANDS, main, parser_of
from hypvision.clip import models
from hypvision.clip.hyperbolic_checkpoint import PUBLISHED, to_official
from hypvision.clip.models import ARCHITECTURES, create_clip
from hypvision.data.caption_folder import read_captions
from hypvision.data.chains import Chain, write_chains
from hypvision.data.shards import CaptionShards
from hypvision.engine.config import load_config
from hypvision.engine.run import train

ROOT = Path(__file__).parents[1]
PAGE, DATA = (
    (ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("hyperbolic-clip", "data")
)
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", f"{DATA}\n{PAGE}", flags=re.M | re.S))
WORDS = ("red", "blue", "green", "black")


def blocks(language, section=None):
    return re.findall(
        rf"^```{language}\n(.*?)^```",
        PAGE if section is None else SECTIONS[section],
        flags=re.M | re.S,
    )


def commands(section=None):
    """The commands as lists of words."""
    lines = re.sub(r"\\\n\s*", " ", "".join(blocks("sh", section))).splitlines()
    return [shlex.split(line, comments=True) for line in lines]


def name_and_rest(words):
    """``hypvision NAME ...``, of two words in a group."""
    count = 2 if " ".join(words[:2]) in COMMANDS else 1
    return " ".join(words[:count]), words[count:]


def test_commands_are_read():
    assert len(commands()) > 20
    for program, *words in commands():
        if program == "torchrun":
            started = get_args_parser().parse_args(words)
            assert started.module and started.training_script == "hypvision.cli"
            words = started.training_script_args
        elif program == "srun":
            words = words[words.index("hypvision") + 1 :]
        elif words[0] == "emoji-clip/rank.py":  # runs below
            continue
        else:
            assert program == "hypvision"
        name, rest = name_and_rest(words)
        args = parser_of(name).parse_args(rest)
        if name in ("train", "test") and args.config != "mine.py":
            assert (ROOT / args.config).is_file()


def test_the_table_of_tags_is_that_of_the_code():
    found = {}
    for names, tags in re.findall(
        r"^\| (`(?:clip|hyc|uncha).*?) \| (`.*) \|$", SECTIONS["Get a model"], flags=re.M
    ):
        for family, sizes in re.findall(r"`(\w+)-vit-\{?([sbl,]+)\}?-16`", names):
            for size in sizes.split(","):
                found[f"{family}-vit-{size}-16"] = re.findall(r"`(\w+)`", tags)
    assert found == {name: [*tags] for name, tags in PUBLISHED.items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what the page speaks of, in which the published files are those of small
    towers."""
    root = tmp_path_factory.mktemp("page")
    text = dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=1)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("meru-vit-s-16", "meru-vit-b-16", "hycoclip-vit-s-16"):
            vision = ARCHITECTURES["meru-vit-s-16"]["vision_cfg"] | dict(image_size=32)
            patch.setitem(
                ARCHITECTURES,
                name,
                ARCHITECTURES[name] | dict(vision_cfg=vision, text_cfg=text, vision_heads=12),
            )
        torch.manual_seed(0)
        weights = to_official(create_clip("meru-vit-s-16").model.state_dict())
        torch.save({"model": weights, "iteration": 1}, root / "meru_vit_s.pth")
        patch.setattr(
            models, "fetch_published", lambda place, name, needed: root / "meru_vit_s.pth"
        )
        for folder in (
            "photos",
            "captioned/images",
            "data/mine/train/images",
            "data/mine/val/images",
        ):
            (root / folder).mkdir(parents=True)
            for word in WORDS:
                Image.new("RGB", (40, 30), word).save(root / folder / f"{word}.jpg")
            if folder.endswith("images"):
                rows = [f"{word}.jpg,a {word} wall,0,0,20,20,{word}" for word in WORDS]
                table = "\n".join(["image,caption,left,top,right,bottom,words", *rows]) + "\n"
                (root / folder).with_name("captions.csv").write_text(table)
        Image.new("RGB", (50, 40), "orange").save(root / "photo.jpg")
        for folder in ("docs", "tools"):
            (root / folder).symlink_to(ROOT / folder)
        (root / "captions.txt").write_text("a wall\na red wall\na dog\n")
        write_chains(
            root / "chains.csv", [Chain(("thing", "wall", f"a {word} wall"), ()) for word in WORDS]
        )
        (root / "mine.py").write_text(blocks("python", "Train")[0])
        patch.chdir(root)
        patch.setenv("HYPVISION_OFFLINE", "1")
        yield root


def test_the_python_runs(place, capsys):
    names = ("Get a model", "Compare images and texts", "Convert and merge")
    exec("\n".join(block for name in names for block in blocks("python", name)), {})
    told = capsys.readouterr().out
    assert "Hyperboloid(c=1)" in told and "torch.Size([1, 513]) torch.Size([3, 513])" in told
    clip, merged = (
        create_clip("meru-vit-s-16", "redcaps"),
        create_clip("meru-vit-s-16", place / "merged.pth"),
    )
    assert torch.allclose(clip.embed_texts(["a dog"]), merged.embed_texts(["a dog"]), atol=1e-5)
    assert merged.model.textual_alpha.item() == 0 > clip.model.textual_alpha.item()


def test_a_loop_of_ones_own_runs(place, capsys):
    names = ("Compare images and texts", "In a training loop of your own")
    start = 'from hypvision.clip import create_clip\nclip = create_clip("meru-vit-s-16", "redcaps")'
    done = {}
    exec("\n".join([start, *(block for name in names for block in blocks("python", name))]), done)
    told = capsys.readouterr().out
    assert re.search(r"tensor\(\[[01], [01]\]\)", told) and "'text_to_image_r1': " in told
    again = create_clip("meru-vit-s-16", place / "mine.safetensors")
    found, trained = again.model.state_dict(), done["clip"].model.state_dict()
    assert found.keys() == trained.keys()
    begun = create_clip("meru-vit-s-16", "redcaps").model.state_dict()
    assert not torch.equal(found["text_projection"], begun["text_projection"])
    fixed = ("visual.trunk.pos_embed", "pixel_mean")
    assert all(torch.equal(found[name], begun[name]) for name in fixed)
    gradients = [p.grad for p in done["network"].parameters() if p.requires_grad]
    assert all(grad is not None and grad.isfinite().all() for grad in gradients)


@pytest.mark.slow
@pytest.mark.parametrize(
    "section",
    ["Compare images and texts", "From general to specific", "Other runtimes", "Convert and merge"],
)
def test_the_commands_run(place, section):
    pytest.importorskip("matplotlib")
    if section == "Other runtimes":
        pytest.importorskip("onnxruntime")
    for program, *words in commands(section):
        if program == "python":
            assert subprocess.run([sys.executable, *words], cwd=place).returncode == 0, words
        else:
            assert main(words) == 0, words
    for number, block in enumerate(
        blocks("python", section) if section == "Other runtimes" else ()
    ):
        torchless = 'import sys; sys.modules["torch"] = sys.modules["hypvision"] = None\n'
        (place / f"{number}.py").write_text(torchless + block)
        assert subprocess.run([sys.executable, f"{number}.py"], cwd=place).returncode == 0


@pytest.mark.slow
def test_the_lines_of_a_small_set_train_and_are_measured(place):
    config = load_config("mine.py")
    for loader in (config.train_dataloader, config.val_dataloader):
        loader.update(batch_size=2, num_workers=0, persistent_workers=False)
        loader.dataset.transform.input_size = 32
    config.train_cfg.update(max_iters=2, val_interval=2)
    config.model.classes, config.param_scheduler = ["red", "blue"], None  # the warm-up is longer
    runner = train(config, place / "work")
    scalars = runner.message_hub.log_scalars
    assert runner.iter == 2 and 0 <= scalars["val/text_to_image_r1"].current() <= 100
    assert len([name for name in scalars if "loss_entail" in name]) == 4
    assert main(["check", "mine.py", "--all", "--cfg-options", "model.classes=['red','blue']"]) == 0


def test_both_tables_of_captions_are_read(place, tmp_path):
    (tmp_path / "images").mkdir()
    for name in "ab":
        Image.new("RGB", (100, 90)).save(tmp_path / f"images/{name}.jpg")
    found = []
    for table, kind in zip(blocks("text", "Captions and boxes in a folder"), ("csv", "jsonl")):
        (tmp_path / f"captions.{kind}").write_text(table)
        found.append(read_captions(tmp_path))
        (tmp_path / f"captions.{kind}").unlink()
    assert [(row.caption, len(row.boxes)) for row in found[0]] == [
        ("a dog under a tree", 2),
        ("two cats", 0),
    ]
    assert [row.caption for row in found[1]] == [row.caption for row in found[0]]
    assert found[1][0].boxes == found[0][0].boxes[:1]
    exec(blocks("python", "Captions and boxes in a folder")[0], {})


def test_shards_are_written_and_read(place):
    words, images = commands("Shards")
    assert images[:3] == ["hypvision", "data", "shard"]
    assert main(words[1 : words.index("--workers")]) == 0
    settings = {}
    exec(blocks("python", "Shards")[0], settings)
    loader = settings["train_dataloader"]["dataset"]
    assert DATASETS.get(loader.pop("type")) is CaptionShards
    data = CaptionShards(**{**loader, "shards": words[4]}, boxes=True)
    samples = iter(data)
    assert len(data) == 4 and {next(samples)["box_caption"] for _ in range(4)} == {*WORDS}


def test_the_pictures_are_small():
    names = re.findall(r"^!\[.*\]\((\S+)\)$", PAGE, flags=re.M)
    assert len(names) == 2
    assert all((ROOT / "docs" / name).stat().st_size < 250_000 for name in names)

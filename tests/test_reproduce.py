"""docs/reproduce.md and the configs say the same: every config named exists, every published number
has its row, every row can be run or says why not."""

import re
import shlex
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path

import pytest
import torch
import yaml
from helpers.cases import each
from helpers.configs import braces, data, shipped, shrink  # noqa: F401 - a fixture
from mmengine.registry import MODELS, init_default_scope

from hypvision.cli import _command, main, parser_of
from hypvision.engine.config import import_extensions, load_config, parse_options
from hypvision.io.shipped import find_config

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/reproduce.md").read_text()
HEADER = ["table", "config or command", "data", "GPUs, hours", "published", "here"]
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith("|---")
]
RUNS = [row for row in ROWS if row != HEADER]
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def spans(row):
    return re.findall(r"`([^`]+)`", row[1])


def configs_of(row):
    """The configs that a row names, as paths from the root."""
    named = []
    for span in spans(row):
        if span.startswith("configs/"):
            for pattern in braces(span):
                found = shipped(pattern.removesuffix(".py") + ".py")
                assert found, f"{pattern} is no config"
                named += [path.relative_to(ROOT).as_posix() for path in found]
        elif span.startswith(("hypvision train ", "hypvision test ")):
            path = find_config(shlex.split(span)[2])
            assert path is not None, span
            named.append(path.relative_to(ROOT).as_posix())
    return named


COMMANDS = [span for row in RUNS for span in spans(row) if span.startswith("hypvision ")]
CHANGED = [
    command
    for command in COMMANDS
    if command.startswith("hypvision train ") and "--cfg-options" in command
]


def test_every_row_has_its_cells_and_can_be_run_or_says_why_not():
    assert len(RUNS) > 100
    for row in ROWS:
        assert len(row) == len(HEADER), row
    for row in RUNS:
        runs = [
            span
            for span in spans(row)
            if span.startswith(("configs/", "hypvision ", "python tools/", "python studies/"))
        ]
        assert bool(runs) != row[1].startswith("not here: "), row
        for span in runs:
            if span.startswith("python "):
                assert (ROOT / span.split()[1]).is_file(), span
        assert row[2] and row[3] and row[4], row
        configs_of(row)


@each("command", COMMANDS)
def test_every_command_is_one(command):
    words = shlex.split(command)[1:]
    name = _command(list(words))
    parser_of(name).parse_args(words[len(name.split()) :])


def test_every_training_has_a_folder_of_its_own():
    """Else a second one would replace the first's checkpoints, or be refused beside its
    seeds.json."""
    folders = []
    for command in set(COMMANDS):
        if command.startswith("hypvision train "):
            args = parser_of("train").parse_args(shlex.split(command)[2:])
            assert (args.work_dir is None) != bool(args.cfg_options), (
                command
            )  # the default is the bare config's
            folders.append(args.work_dir or f"work_dirs/{Path(args.config).stem}")
    assert len(set(folders)) == len(folders)


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if command.startswith("hypvision summary ")]
)
def test_summaries_run(command, capsys):
    assert main([*shlex.split(command)[1:], "--repeats", "0"]) == 0
    row = next(row for row in RUNS if command in spans(row))
    if row[5].endswith(" G"):
        counted = float(re.search(r"([\d.]+) M multiply-adds", capsys.readouterr().out)[1]) / 1000
        assert f"{counted:.2f}" == NUMBER.findall(row[5])[0]


def test_every_clip_says_which_weights():
    for command in COMMANDS:
        words = shlex.split(command)
        if "--clip" in words:
            assert ":" in words[words.index("--clip") + 1], command


def metafiles():
    for path in sorted(ROOT.glob("configs/*/metafile.yml")):
        for model in yaml.safe_load(path.read_text())["Models"]:
            yield path.parent.name, model


def test_every_published_number_of_the_configs_is_in_its_row():
    by_config = {}
    for row in RUNS:
        for config in configs_of(row):
            by_config.setdefault(config, set()).update(map(float, NUMBER.findall(row[4])))
    missing = []
    for _, model in metafiles():
        if model.get("Reported") in ("paper", "authors"):
            values = chain.from_iterable(result["Metrics"].values() for result in model["Results"])
            known = by_config.get(find_config(model["Name"]).relative_to(ROOT).as_posix())
            if known is None or not {float(value) for value in values} <= known:
                missing.append(model["Name"])
    assert not missing


# Trainings at the papers' size; the rest of a folder are trials of this repository.
FULL = ("*_in1k", "*_200e_*", "*_300e_*", "*2xb90*", "*80k_coco*", "*_wikipedia", "*_grit",
"*_redcaps", "*_hierarcaps",
        "*_b2n", "*_fs", "*_xd", "*-3e_coco*", "*-50e_coco*", "*1x_coco", "*ade20k*")  # fmt: skip
OURS = ("*-aux-*", "*-fuse-*", "upernet-sfp*", "*_himapper-resnet50_*", "mask-rcnn_himapper-swin*",
"mask-rcnn_lvit*",
"frozen-vit*",
        "ivlp_*", "cocoop_*", "zeroshot_*")  # fmt: skip


def test_every_published_training_has_a_row():
    named = set(chain.from_iterable(map(configs_of, RUNS)))
    for path in shipped():
        name = path.relative_to(ROOT).as_posix()
        wanted = any(fnmatch(path.stem, pattern) for pattern in FULL)
        if wanted and not any(fnmatch(path.stem, pattern) for pattern in OURS):
            assert name in named, f"{name} is in no row of docs/reproduce.md"


def test_every_folder_has_its_section():
    for folder in sorted(path.parent.name for path in ROOT.glob("configs/*/metafile.yml")):
        if folder not in ("baselines", "demo"):
            assert f"(../configs/{folder}/README.md)" in PAGE


FIRST = {command.split()[2]: command for command in reversed(CHANGED)}.values()  # of each config


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[] if command in FIRST else [pytest.mark.slow])
        for command in CHANGED
    ],
)
def test_options_fit_and_the_network_is_built(command):
    config = _config(command)
    import_extensions(config)
    init_default_scope(config.get("default_scope", "mmengine"))
    if "clip" in config.model:  # its weights are downloaded; what changes is the adapter
        from hypvision.clip.adapters import ADAPTERS

        options = dict(config.model.adapter)
        ADAPTERS[options.pop("type", "hyperclip")].Config.from_options(options)
        return
    config.model.backbone.pretrained = False
    with torch.device("meta"):
        model = MODELS.build(config.model)
    assert any(parameter.requires_grad for parameter in model.parameters())


def _config(command, **options):
    words = shlex.split(command)[1:]
    args = parser_of("train").parse_args(words[1:])
    return load_config(find_config(args.config), parse_options(args.cfg_options) | options)

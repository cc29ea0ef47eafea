"""The few-shot benchmark in one command, on tiny data: cells, resuming, settings, tables."""

import csv
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.configs import ROOT
from helpers.fewshot import bundle
from helpers.fewshot_layouts import coop, imagenet
from mmengine.registry import MODELS
from PIL import Image

from hypvision.cli import COMMANDS, main, parser_of
from hypvision.cli.fewshot import settings_of
from hypvision.clip.adapters.lathadapter import LatHAdapterConfig
from hypvision.clip.prompting import HOSTS, build_host
from hypvision.data.fewshot import FewShotDataset
from hypvision.data.fewshot.layouts import CROSS, DOMAINS, SETS
from hypvision.engine.config import load_config, parse_options
from hypvision.io.errors import HypvisionError
from hypvision.tasks import few_shot_published as published
from hypvision.tasks.few_shot_benchmark import (
    CellSpec,
    Result,
    Settings,
    cell_config,
    check_methods,
    check_settings,
    is_finished,
    plan,
    run_cell,
)
from hypvision.tasks.few_shot_figures import load_cell_model, places
from hypvision.tasks.few_shot_recipes import check_options, methods
from hypvision.tasks.few_shot_tables import (
    comma_separated,
    compared,
    draw_shots,
    harmonic,
    markdown,
    read_results,
    tables,
)

SMALL = ["--clip", "tiny:none", "--size", "64", "--steps", "2"]


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr("hypvision.tasks.few_shot.create_clip", lambda **options: bundle())
    monkeypatch.setattr(
        "hypvision.tasks.few_shot_benchmark.create_clip", lambda **options: bundle()
    )
    monkeypatch.setattr("hypvision.clip.prompting.promptkd.create_clip", lambda **options: bundle())


def run(*words):
    return main(["fewshot", *map(str, words)])


def test_base_to_new_and_its_table(tmp_path, capsys):
    coop(tmp_path)
    coop(tmp_path, "dtd")
    out = tmp_path / "results"
    command = [
        "base2new",
        "--method",
        "coop",
        "--datasets",
        "caltech101",
        "dtd",
        "eurosat",
        "--seeds",
        1,
        2,
    ]
    command += ["--shots", 2, "--root", tmp_path, "--out", out, "--host", "text_chunk=2", *SMALL]
    assert run(*command[:2], "promptkd", *command[2:]) == 2
    assert not out.exists()  # it has no teacher here
    assert run(*command) == 2  # its data is missing: its cells fail, the others run
    assert "2 of 6 cells failed" in capsys.readouterr().err
    cells = sorted(path.parent.relative_to(out).as_posix() for path in out.rglob("result.json"))
    assert cells == [
        f"base2new/coop/{d}/2shots-seed{s}" for d in ("caltech101", "dtd") for s in (1, 2)
    ]
    result = json.loads((out / cells[0] / "result.json").read_text())
    assert set(result["accuracy"]) == {"base", "new"}
    assert result["steps"] == 2
    assert not result["transductive"]
    assert all(0 <= value <= 100 for value in result["accuracy"].values())
    before = (out / cells[0] / "result.json").stat().st_mtime_ns
    command.remove("eurosat")
    assert run(*command) == 0
    assert (out / cells[0] / "result.json").stat().st_mtime_ns == before  # not again
    printed = capsys.readouterr().out
    assert "| coop | average | 2 | 2 |" in printed and "± " in printed  # two seeds, two steps
    assert run("table", out) == 0
    rows = list(csv.DictReader((out / "base2new.csv").open()))
    assert [row["dataset"] for row in rows] == ["average", "caltech101", "dtd"]
    mean = {key: float(rows[0][key]) for key in ("base", "new", "HM")}
    assert mean["HM"] == pytest.approx(harmonic(mean["base"], mean["new"]))
    assert rows[1]["base published"] == "98.0"
    assert rows[0]["base published"] == ""  # not all data sets
    command[command.index("--steps") + 1] = 3
    assert run(*command) == 2
    assert "have other settings (steps: 2 there, 3 here)" in capsys.readouterr().err


def test_options_go_to_the_methods_that_have_them(tmp_path, capsys):
    """To each of all methods, and an option that none has is refused before the first cell."""
    coop(tmp_path)
    given = dict(
        text_chunk=3,
        depth=2,
        alpha=2.5,
        ensemble=True,
        ratio=0.3,
        tokens=4,
        templates=2,
        words="a photo of a",
    )
    settings = Settings(
        {}, root=str(tmp_path), host=given, teacher=dict(clip={}, host={}, checkpoint="t.pth")
    )
    reached = set()
    for method in methods():
        protocol = (
            "shots" if method in ("linear-probe", "tip-adapter", "tip-adapter-f") else "base2new"
        )
        (cell,) = plan(protocol, [method], ["caltech101"], [1], [2])
        host = dict(cell_config(cell, settings).model.host)
        MODELS.build(
            dict(
                type="FewShotCLIP",
                clip={},
                host=host
                | ({"teacher": build_host(bundle(), "zeroshot")} if method == "promptkd" else {}),
            )
        )
        own = set(inspect.signature(HOSTS[host["name"]]).parameters)
        assert {key: host[key] for key in given if key in host} == {
            k: v for k, v in given.items() if k in own
        }
        reached |= own & set(given)
    assert reached == set(given)
    shared = [
        *f"--datasets caltech101 --seeds 1 --root {tmp_path} --out {tmp_path / 'no'}".split(),
        *SMALL,
    ]
    assert (
        run("shots", "--method", "coop", "tip-adapter", "--host", "alpha=2", "textchunk=3", *shared)
        == 2
    )
    told = capsys.readouterr().err
    assert "has an option 'textchunk'. Did you mean text_chunk?" in told
    assert "tip-adapter: keys, classes, alpha" in told
    assert "coop: tokens, words, position, per_class, classes, text_chunk;" in told
    assert run("shots", "--method", "coop", "--adapter", "beta=0.5", *shared) == 2
    assert "LatHAdapter (beta) have no effect" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
    # A row of a table has no name of an option that its method does not take.
    cell = plan("base2new", ["coop"], ["caltech101"], [1], [2])
    with pytest.raises(
        HypvisionError,
        match="coop with per_class recognises only the classes that it was trained on",
    ):
        cell_config(*cell, Settings({}, root=str(tmp_path), host=dict(per_class=True, classes=3)))
    cells = [
        result("zeroshot", epochs=0, host=dict(depth=4)),
        result("zeroshot", seed=2, epochs=0, host=dict(depth=5)),
    ]
    assert [(row.method, row.seeds) for row in tables(cells)["base2new"]] == [("zeroshot", 2)]


def test_a_cell_that_was_cut_goes_on(tmp_path, monkeypatch):
    coop(tmp_path)
    out = tmp_path / "results"
    command = [
        "base2new",
        "--method",
        "promptsrc+lath",
        "--datasets",
        "caltech101",
        "--seeds",
        1,
        "--shots",
        2,
    ]
    command += [
        *f"--root {tmp_path} --out {out} --host depth=2 templates=2".split(),
        *SMALL[:-2],
        "--epochs",
        2,
    ]
    read, calls = FewShotDataset.__getitem__, []

    def cut(self, index):
        calls.append(index)
        if len(calls) == 8:  # in the second epoch
            raise KeyboardInterrupt
        return read(self, index)

    monkeypatch.setattr(FewShotDataset, "__getitem__", cut)
    assert run(*command) == 130
    monkeypatch.setattr(FewShotDataset, "__getitem__", read)
    cell = out / "base2new/promptsrc+lath/caltech101/2shots-seed1"
    assert (cell / "epoch_1.pth").is_file() and not (cell / "result.json").exists()
    assert run(*command) == 0
    assert json.loads((cell / "result.json").read_text())["epochs"] == 2


def test_the_table_says_what_heads_were_trained_on(tmp_path, capsys):
    coop(tmp_path)
    notes = {}
    for views in ("none", 0, 2):
        out = tmp_path / f"results{views}"
        methods = ["tip-adapter-f", *(["zeroshot", "coop"] if views == 2 else [])]
        command = ["shots", "--method", *methods, "--datasets", "caltech101", "--seeds", 1]
        command += ["--shots", 1, "--root", tmp_path, "--out", out, *SMALL]
        assert run(*command, "--amp", "fp16", *([] if views == "none" else ["--views", views])) == 0
        ran = "fp16" if torch.cuda.is_available() else "fp32"
        assert {found.precision for found in read_results(out)} == {ran}
        rows = list(csv.DictReader((out / "shots.csv").open()))
        notes[views] = {row["method"]: row["note"] for row in rows}
    told = {"none": "new views", 0: "kept centre crops", 2: "2 kept views"}
    assert {views: found["tip-adapter-f"] for views, found in notes.items()} == told
    assert notes[2]["zeroshot"] == notes[2]["coop"] == ""
    assert "| tip-adapter-f (2 kept views) |" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:Left out")
def test_a_tip_adapter_refuses_broken_images(tmp_path):
    coop(tmp_path, train=2)
    (tmp_path / "caltech-101/101_ObjectCategories/cup/train1.png").write_bytes(b"no image")
    command = [
        "shots",
        "--method",
        "tip-adapter",
        "--datasets",
        "caltech101",
        "--seeds",
        1,
        "--shots",
        2,
    ]
    command += ["--root", tmp_path, "--out", tmp_path / "results", *SMALL]
    assert run(*command) == 2
    assert (
        run(*command[: -len(SMALL)], "--skip-broken", *SMALL, "--out", tmp_path / "skipping") == 0
    )
    saved = torch.load(next((tmp_path / "skipping").rglob("epoch_1.pth")), weights_only=False)[
        "state_dict"
    ]
    values = saved["host.learner.values"]
    assert values.shape == (9, 5) and values.sum(0).tolist() == [
        2,
        2,
        1,
        2,
        2,
    ]  # 10 images, one cup is broken


def test_other_data_sets(tmp_path):
    for name in ("imagenet", "imagenetv2", "imagenet_a"):
        imagenet(tmp_path, name)
    coop(tmp_path)
    out = tmp_path / "results"
    shared = [
        *f"--method maple --seeds 1 --root {tmp_path} --out {out} --host depth=2".split(),
        *SMALL,
    ]
    assert run("cross", "--datasets", "caltech101", *shared) == 0
    assert run("dg", "--datasets", "imagenetv2", "imagenet_a", *shared) == 0
    found = tables(read_results(out))
    assert {row.dataset for row in found["dg"]} == {
        "average",
        "imagenet (source)",
        "imagenetv2",
        "imagenet_a",
    }
    assert {row.dataset for row in found["cross"]} == {"imagenet (source)", "caltech101"}
    assert (
        run("dg", "--datasets", "imagenetv2", "imagenet_a", "imagenet_r", *shared) == 2
    )  # another target: not there


def test_further_targets_are_added_to_a_finished_cell(tmp_path):
    for name in ("one", "two", "three"):
        coop(tmp_path, name, classes=3, train=2, val=1, test=1)
    out = tmp_path / "results"
    command = f"cross --method coop --source one --seeds 1 --shots 1 --root {tmp_path}".split()
    command += ["--out", out, "--host", "tokens=2", *SMALL, "--datasets"]
    assert run(*command, "two") == 0
    cell = out / "cross/coop/one/1shots-seed1"
    known = json.loads((cell / "result.json").read_text())
    known["accuracy"]["two"] = 12.5  # to tell whether it is measured again
    (cell / "result.json").write_text(json.dumps(known))
    written = (cell / "epoch_2.pth").stat().st_mtime_ns
    assert run(*command, "three") == 0
    found = json.loads((cell / "result.json").read_text())
    assert list(found["accuracy"]) == ["one", "two", "three"] and found["accuracy"]["two"] == 12.5
    assert found["cell"]["targets"] == ["two", "three"] and found["steps"] == 2
    assert (cell / "epoch_2.pth").stat().st_mtime_ns == written  # not trained again
    (spec,) = plan("cross", ["coop"], ["two", "three"], [1], [1], "one")
    assert is_finished(out, spec)
    (cell / "epoch_2.pth").unlink()  # other weights: nothing of the former ones stays
    assert run(*command, "one", "three", "two") == 0  # finished
    coop(tmp_path, "four", classes=3, train=2, val=1, test=1)
    assert run(*command, "four") == 0
    again = json.loads((cell / "result.json").read_text())["accuracy"]
    assert set(again) == {"one", "two", "three", "four"} and again["two"] != 12.5


@pytest.mark.slow
def test_promptkd_takes_the_teacher_of_its_cell(tmp_path, capsys):
    coop(tmp_path)
    out = tmp_path / "results"
    small = ["--datasets", "caltech101", "--seeds", 1, "--root", tmp_path, "--shots", 2, *SMALL]
    host = ["depth=2", "templates=2"]
    assert run("base2new", "--method", "promptsrc", "--out", out, "--host", *host, *small) == 0
    teacher = f"{out}/base2new/promptsrc/{{dataset}}/{{shots}}shots-seed{{seed}}/epoch_2.pth"
    command = ["base2new", "--method", "promptkd", "promptkd+lath", "--host", "depth=2", *small]
    assert (
        run(*command, "--out", tmp_path / "kd", "--teacher", teacher, "--teacher-host", *host) == 0
    )
    cells = read_results(tmp_path / "kd")
    assert len(cells) == 2 and all(cell.transductive for cell in cells)
    assert {row.note for row in tables(cells)["base2new"]} == {"transductive, own teacher"}
    assert run(*command, "--out", tmp_path / "other") == 2  # no teacher
    wrong = ["--teacher", teacher, "--teacher-clip", "tiny:none", "--teacher-host", "depth=9"]
    assert run(*command, "--out", tmp_path / "third", *wrong) == 2
    told = capsys.readouterr().err
    assert "PromptKD's teacher: The text prompts have a depth of 9" in told and "Set depth=" in told


def test_a_training_of_other_settings_is_not_resumed(tmp_path):
    coop(tmp_path)
    (cell,) = plan("shots", ["zeroshot+lath"], ["caltech101"], [1], [2])
    first = Settings({}, 64, steps=1, root=str(tmp_path), adapter=dict(beta=0.1))
    found = run_cell(cell, first, tmp_path / "out")
    with pytest.raises(
        HypvisionError,
        match="have other settings .adapter: {'beta': 0.1} there, {'beta': 5.0} here",
    ):
        run_cell(cell, replace(first, adapter=dict(beta=5.0)), tmp_path / "out")
    (tmp_path / "out/settings.json").unlink()  # the result says them, too
    with pytest.raises(HypvisionError, match="have other settings"):
        run_cell(cell, replace(first, adapter=dict(beta=5.0)), tmp_path / "out")
    assert run_cell(cell, replace(first, workers=0, cache=str(tmp_path)), tmp_path / "out") == found


def test_all_settings_that_do_not_fit_are_reported_once(tmp_path, capsys):
    coop(tmp_path)
    grid = [
        "base2new",
        "--method",
        "maple",
        "maple+lath",
        "ivlp",
        "--datasets",
        "caltech101",
        "--seeds",
        1,
        2,
        3,
    ]
    grid += ["--root", tmp_path, "--out", tmp_path / "out", "--shots", 1, *SMALL]
    assert run(*grid, "--host", "depth=9") == 2
    out, err = capsys.readouterr()
    assert (out + err).count("depth of 9; the tower allows 1 to 3") == 1
    assert not (tmp_path / "out").exists()
    assert run(*grid[:3], *grid[5:8], *grid[10:]) == 0  # maple alone, one seed
    out, err = capsys.readouterr()
    assert (
        out.count(
            "The prompts have a depth of 3 instead of 9: a tower of this CLIP has 3 blocks.\n"
        )
        == 1
    )


def test_words_that_the_clip_was_never_taught_are_told_before_the_first_cell(tmp_path, monkeypatch):
    coop(tmp_path)
    monkeypatch.setattr(
        "hypvision.tasks.few_shot_benchmark.create_clip", lambda **options: unread()
    )
    (spec,) = plan("shots", ["zeroshot"], ["caltech101"], [1], [2])
    with pytest.warns(UserWarning, match="never taught . of the . classes of 'caltech101'"):
        check_methods([spec, spec._replace(dataset="dtd")], Settings({}, root=str(tmp_path)))


def unread():
    """A CLIP that has read nothing but the two ends of a text."""
    found = bundle()
    embedding = found.model.token_embedding.weight.data
    embedding[1:-2] = 0
    return found


def test_images_of_a_cell(tmp_path):
    coop(tmp_path)
    out = tmp_path / "results"
    small = ["--datasets", "caltech101", "--seeds", 1, "--root", tmp_path, "--shots", 2, *SMALL]
    assert (
        run(*f"shots --method coop+lath coop --out {out} --adapter attributes=3".split(), *small)
        == 0
    )
    cell = out / "shots/coop+lath/caltech101/2shots-seed1"
    assert run("explain", cell, "--root", tmp_path) == 0
    for name in ("attributes.png", "disk.png"):
        with Image.open(cell / name) as image:
            assert image.width > 300
    model, *_ = load_cell_model(cell, tmp_path)
    found = places(model, FewShotDataset(str(tmp_path), "caltech101", "test", size=64))
    assert found.attributes.shape == (3, 64)
    assert found.classes.shape == (5, 64)
    assert len(found.images) == 10
    data = FewShotDataset(str(tmp_path), "caltech101", "test", size=64)
    data.items.sort(key=lambda item: item.label)
    few = places(model, data, most=5)  # of all classes
    assert few.labels.tolist() == [0, 1, 2, 3, 4] == [data.items[i].label for i in few.numbers]
    assert len(few.images) == 5
    # What is drawn is the checkpoint that was measured.
    saved, result = (
        torch.load(cell / "epoch_2.pth", weights_only=False),
        json.loads((cell / "result.json").read_text()),
    )
    saved["state_dict"]["host.clip.lathadapter.attributes"] += 1
    torch.save(saved, cell / "best_top1_epoch_1.pth")
    result["settings"]["best_val"] = True
    (cell / "result.json").write_text(json.dumps(result))
    best, *_ = load_cell_model(cell, tmp_path)
    assert torch.equal(best.hierarchy.attributes, model.hierarchy.attributes + 1)
    assert run("explain", out, "--root", tmp_path) == 2  # no cell
    assert (
        run("explain", out / "shots/coop/caltech101/2shots-seed1", "--root", tmp_path) == 2
    )  # no adapter


def test_cells_go_to_slurm(tmp_path, monkeypatch):
    """By submitit's executor that runs jobs in this process."""
    submitit = pytest.importorskip("submitit")
    executor = submitit.AutoExecutor
    monkeypatch.setattr(
        submitit, "AutoExecutor", lambda folder, cluster: executor(folder=folder, cluster="debug")
    )
    coop(tmp_path)
    command = (
        f"base2new --method zeroshot --datasets caltech101 --seeds 1 --root {tmp_path}".split()
    )
    command += [
        *f"--out {tmp_path / 'out'} --submit slurm --submit-options slurm_partition=gpu".split(),
        *SMALL,
    ]
    assert run(*command) == 0
    (found,) = read_results(tmp_path / "out")
    assert found.cell.method == "zeroshot"
    elsewhere = tmp_path / "out" / found.cell.key
    elsewhere.rename(elsewhere.with_name("16shots-seed9"))
    with pytest.raises(
        HypvisionError, match="result of .*/zeroshot/.*, but its folder has another name"
    ):
        read_results(tmp_path / "out")


# The pages
# --------------------------------------------------------------------------------------------------


def commands(page, name):
    """The arguments of each ``hypvision NAME COMMAND`` in the blocks of a page."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT.parent / page).read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = [
        shlex.split(line, comments=True) for line in lines if line.startswith(f"hypvision {name} ")
    ]
    assert found
    names = [" ".join(words[1:3]) for words in found]
    names = [both if both in COMMANDS else name for both in names]
    return [
        parser_of(both).parse_args(words[1 + len(both.split()) :])
        for both, words in zip(names, found)
    ]


def test_commands_of_the_page_share_folders_of_results(tmp_path):
    """No command is refused because an earlier one of the page wrote other settings into its
    --out."""
    runs = [args for args in commands("docs/fewshot.md", "fewshot") if "protocol" in args]
    assert len(runs) == 6
    for args in runs:
        settings = settings_of(args)
        check_settings(tmp_path / args.out, settings)
        check_options(args.method, settings.host, settings.adapter)
    teacher = runs[-1].teacher.format(dataset="dtd", shots=16, seed=1)
    (cell,) = plan(runs[-2].protocol, runs[-2].method, runs[-2].datasets, seeds=[1])
    assert teacher == f"{runs[-2].out}/{cell.key}/epoch_20.pth"


FAKE = """#!/bin/sh
{ for word in "$@"; do printf '%s\\n' "$word"; done; echo; } >> "$RECORD"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="the script is one of bash")
def test_the_script_on_emoji_asks_for_cells_that_exist(tmp_path):
    """Every command of it is planned, in a folder of its settings, with data and teachers that are
    there."""
    data, results = tmp_path / "data", tmp_path / "results"
    coop(data, "grocery", classes=2, train=1, val=1, test=1, size=8)
    for style in (
        "noto",
        "noto-v1",
        "twemoji",
        "openmoji",
        "fluent",
        "fluent-flat",
        "fluent-mono",
        "fxemoji",
    ):
        split = data / f"emoji/splits/coop/split_{style}.json"
        split.parent.mkdir(parents=True, exist_ok=True)
        split.write_text((data / "grocery/split.json").read_text())
    shutil.copytree(data / "grocery/images", data / "emoji/images")
    fake = tmp_path / "bin/hypvision"
    fake.parent.mkdir()
    fake.write_text(FAKE)
    fake.chmod(0o755)
    path = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(ROOT / "fewshot/on_emoji.sh"), str(data), str(results)]
    subprocess.run(
        command, check=True, env={**os.environ, "PATH": path, "RECORD": str(tmp_path / "record")}
    )
    cells, trained = 0, set()
    for words in (tmp_path / "record").read_text().removesuffix("\n\n").split("\n\n"):
        group, protocol, *words = words.split("\n")
        args = parser_of(f"{group} {protocol}").parse_args(words)
        settings = settings_of(args)
        check_settings(args.out, settings)
        check_options(args.method, settings.host, settings.adapter)
        specs = plan(
            args.protocol,
            args.method,
            args.datasets,
            args.seeds,
            args.shots,
            vars(args).get("source", ""),
        )
        cells += len(specs)
        for spec in specs:
            config = cell_config(spec, settings)
            trained.add(f"{args.out}/{spec.key}/epoch_{config.train_cfg.max_epochs}.pth")
            assert (
                not spec.method.startswith("promptkd")
                or config.model.host.teacher.checkpoint in trained
            )
            assert {split.parent.name for split in data.glob("*/split.json")} >= {
                spec.dataset,
                *spec.targets,
            }
    assert cells > 100 and {path.name for path in results.iterdir()} >= {
        "prompts",
        "heads",
        "self-distillation",
    }


def test_commands_of_the_configs_train_and_test_one_data_set():
    (trained,), (tested,) = (
        commands("configs/fewshot/README.md", name) for name in ("train", "test")
    )
    options = parse_options(trained.cfg_options), parse_options(tested.cfg_options)
    a, b = (load_config(ROOT.parent / trained.config, own) for own in options)
    assert (
        a.train_dataloader.dataset.name
        == a.test_dataloader.dataset.name
        == b.test_dataloader.dataset.name
        == "dtd"
    )
    sizes = [LatHAdapterConfig(classes=config.model.adapter.classes).count for config in (a, b)]
    assert sizes == [8, 8]  # DTD has 47 classes
    assert (
        tested.weights
        == f"work_dirs/{Path(trained.config).stem}/epoch_{a.train_cfg.max_epochs}.pth"
    )


# Plans and tables
# --------------------------------------------------------------------------------------------------


def test_plans():
    assert len(plan("base2new", ["maple", "promptsrc+lath"])) == 2 * 11 * 3
    assert len(plan("shots", ["maple"], ["dtd"])) == 5 * 3
    assert (
        len(plan("shots", ["coop", "coop"], ["dtd", "dtd"], [1, 1], [4, 4])) == 1
    )  # said twice, run once
    assert plan("cross", ["maple"], ["dtd", "dtd"])[0].targets == ("dtd",)
    (cell,) = plan("cross", ["maple"], seeds=(1,))
    assert cell.dataset == "imagenet" and len(cell.targets) == 10
    assert cell.key == "cross/maple/imagenet/16shots-seed1"
    assert [c.dataset for c in plan("cross", ["promptkd"], seeds=(1,))] == list(cell.targets)
    assert len(plan("dg", ["promptkd"], ["own1", "own2"], seeds=(1,))) == 2
    assert plan("dg", ["zeroshot", "maple"])
    with pytest.raises(HypvisionError, match="'base2new' cannot test it"):
        plan("base2new", ["linear-probe"])
    for protocol, method, datasets in (
        ("dg", "promptkd+lath", None), ("cross", "promptkd", ["dtd", "imagenet_a"]),
        ("shots", "maple", ["imagenetv2"])
    ):  # fmt: skip
        with pytest.raises(
            HypvisionError, match="would train on 'imagenet.*', all of whose images are test images"
        ):
            plan(protocol, [method], datasets)


def test_the_harmonic_mean_of_averages_is_the_published_one():
    base, new = published.BASE_TO_NEW["maple"]["average"]
    sets = {
        name: pair for name, pair in published.BASE_TO_NEW["maple"].items() if name != "average"
    }
    assert len(sets) == 11
    assert sum(pair[0] for pair in sets.values()) / 11 == pytest.approx(base, abs=0.01)
    assert sum(pair[1] for pair in sets.values()) / 11 == pytest.approx(new, abs=0.01)
    assert harmonic(base, new) == pytest.approx(78.55, abs=0.01)
    assert sum(harmonic(*pair) for pair in sets.values()) / 11 == pytest.approx(78.27, abs=0.01)
    cells = [
        result("maple", name, seed, pair[0] + seed, pair[1] - seed)
        for name, pair in sets.items()
        for seed in (-1, 0, 1)
    ]
    rows = tables(cells)["base2new"]
    assert rows[0].dataset == "average" and rows[0].mean["HM"] == pytest.approx(78.55, abs=0.01)
    assert rows[0].known["HM"] == pytest.approx(78.55, abs=0.01) and rows[1].dataset == "imagenet"
    assert rows[1].std["base"] == pytest.approx(1.0)
    cells = [
        result(method, seed=seed, adapter=dict(beta=0.5))
        for seed in (1, 2, 3)
        for method in ("maple", "maple+lath")
    ]
    assert [row.method for row in tables(cells)["base2new"]] == ["maple", "maple+lath beta=0.5"]
    for table in (published.CROSS_DATASET, published.DOMAIN):
        for row in table.values():
            if len(row) > 1:
                own = [value for name, value in row.items() if name not in ("average", "imagenet")]
                assert sum(own) / len(own) == pytest.approx(row["average"], abs=0.02)


def result(method="maple", dataset="dtd", seed=1, base=60.0, new=40.0, epochs=5, **settings):
    cell = CellSpec("base2new", method, dataset, 16, seed)
    settings = Settings(**{"clip": {}, **settings})
    return Result(cell, dict(base=base, new=new), settings, steps=7, epochs=epochs)


def of_shots(method, dataset, shots, seed, accuracy):
    cell = CellSpec("shots", method, dataset, shots, seed)
    return Result(cell, dict(all=accuracy), Settings({}))


def test_cells_of_other_settings_are_no_seeds():
    clip = dict(clip=dict(name="ViT-B-16"))
    cells = [
        result(seed=1),
        result(seed=2, base=62.0),
        result(seed=1, steps=9, base=10.0),
        result(host=dict(depth=4)),
    ]
    rows = {row.method: row for row in tables(cells)["base2new"]}
    assert {name: row.seeds for name, row in rows.items()} == {
        "maple": 2,
        "maple steps=9": 1,
        "maple host.depth=4": 1,
    }
    assert rows["maple"].mean["base"] == 61 and rows["maple steps=9"].mean["base"] == 10
    assert rows["maple"].known["base"] == 80.36  # of DTD, beside the published recipe
    # What does not concern a cell makes no row: steps of what does not train, the teacher of
    # another method.
    cells = [
        result("zeroshot", epochs=0, steps=9, **clip),
        result("zeroshot", seed=2, epochs=0, **clip),
    ]
    assert [row.seeds for row in tables(cells)["base2new"]] == [2]
    assert [row.seeds for row in tables([result(), result(seed=2, teacher=clip)])["base2new"]] == [
        2
    ]
    names = {
        row.method
        for row in tables([result(**clip), result(clip=dict(name="ViT-L-14"))])["base2new"]
    }
    assert names == {"maple clip.name=ViT-B-16", "maple clip.name=ViT-L-14"}
    (row,) = tables([result(), result()])["base2new"]  # one result in two folders
    assert row.seeds == 1
    with pytest.raises(
        HypvisionError,
        match=r"two results of 'base2new/maple/dtd/16shots-seed1' .* \(base: 60.00 and 61.00\)",
    ):
        tables([result(), result(base=61.0)])


def test_results_chosen_on_test_images_are_marked():
    best, last = (
        replace(result("promptkd", best_val=kept), transductive=True, selection=selection)
        for kept, selection in ((True, "best_val"), (False, "last"))
    )
    notes = {row.method: row.note for row in tables([best, last])["base2new"]}
    assert notes == {
        "promptkd best_val=True": "transductive, chosen on test images",
        "promptkd best_val=False": "transductive"
    }  # fmt: skip


def test_averages_deviate_over_seeds():
    """Seeds that are right on one data set where they are wrong on the other make no deviation of
    the average."""
    found = {"dtd": (50.0, 60.0, 70.0), "eurosat": (70.0, 60.0, 44.0)}
    cells = [
        result(dataset=d, seed=s, base=b, new=b / 2)
        for d, own in found.items()
        for s, b in enumerate(own, 1)
    ]
    average = tables(cells)["base2new"][0]
    assert average.dataset == "average" and average.mean["base"] == pytest.approx(59)
    assert average.std["base"] == pytest.approx(3**0.5)  # of 60, 60 and 57
    assert average.std["HM"] == pytest.approx(3**0.5 * 2 / 3)  # of 2 b (b / 2) / (b + b / 2)
    other = tables([*cells[:-1], result(dataset="eurosat", seed=7, base=44.0, new=22.0)])[
        "base2new"
    ][0]
    assert other.std == {} and other.mean == average.mean
    shots = [of_shots("coop", "dtd", k, s, 50.0 + s) for k, s in ((1, 1), (1, 2), (16, 1))]
    found = tables(shots)["shots"]
    assert found[0].std.keys() == {"1 shots"}  # one seed of the other has no deviation
    assert "51.00 |" in markdown("shots", found) and "± 0.00" not in markdown("shots", found)
    assert comma_separated(found).count("0.0,") == 0


def test_methods_are_compared_with_what_they_must_beat():
    maple = result()
    assert compared(tables([maple])["base2new"]) == [
        "To know what a method gains on dtd run --method zeroshot linear-probe, too."
    ]
    others = [result("zeroshot", base=50.0, new=41.0), result("zeroshot", "eurosat", base=99.0)]
    assert compared(tables([maple, *others])["base2new"]) == [
        "Below a baseline:", "- maple on dtd: new 40.00 < 41.00, zeroshot."
    ]  # fmt: skip
    assert compared(tables(others)["base2new"]) == []
    elsewhere = compared(tables([maple, others[1]])["base2new"])
    assert len(elsewhere) == 1 and "gains on dtd run" in elsewhere[0]
    below = result("zeroshot", base=50.0, new=40.0)
    assert compared(tables([maple, below])["base2new"]) == ["No method is below its baselines."]
    shots = [
        of_shots(method, "dtd", k, 1, a)
        for method, k, a in (("zeroshot", 1, 51.0), ("coop", 1, 50.0), ("coop", 16, 60.0),
                             ("linear-probe", 16, 61.0))
    ]  # fmt: skip
    assert compared(tables(shots)["shots"]) == [
        "Below a baseline:",
        "- coop on dtd: 16 shots 60.00 < 61.00, linear-probe.",
        "- coop on dtd: 1 shots 50.00 < 51.00, zeroshot.",
    ]


def test_published_averages_stand_beside_the_same_data_alone():
    def known(protocol, targets, source="imagenet"):
        cell = CellSpec(protocol, "maple", source, 16, 1)
        found = Result(cell, dict.fromkeys([source, *targets], 50.0), Settings({}))
        rows = tables([found])[protocol]
        assert source == "imagenet" or not any(row.known for row in rows)
        return rows[0].known

    assert known("cross", CROSS) == {"accuracy": 66.30}
    assert known("dg", DOMAINS) == {"accuracy": 60.27}
    others = [f"own{i}" for i in range(10)]
    assert known("cross", others) == known("dg", others[:4]) == known("dg", CROSS[:4]) == {}
    assert known("cross", CROSS, "own") == known("dg", DOMAINS, "own") == {}
    cells = [result(dataset=name) for name in SETS]
    assert tables(cells)["base2new"][0].known["base"] == 82.28
    assert tables([*cells, result(dataset="own")])["base2new"][0].known == {}


@pytest.mark.parametrize(
    "path", ["/t/{method}/x.pth", "/t/{}/x.pth", "/t/{seed/x.pth", "/t/{seed.x}.pth"]
)
def test_teachers_of_unknown_fields_are_explained(path, tmp_path):
    coop(tmp_path, "dtd")
    (cell,) = plan("base2new", ["promptkd"], ["dtd"], [1])
    teacher = dict(clip={}, host={}, checkpoint=path)
    with pytest.raises(HypvisionError, match="cannot be filled in .*: dataset, shots, seed"):
        cell_config(cell, Settings({}, root=str(tmp_path), teacher=teacher))


def test_the_curve_of_data_sets_without_common_shots(tmp_path, monkeypatch):
    axes, drawn = pytest.importorskip("matplotlib.axes").Axes, []
    plot = axes.plot
    monkeypatch.setattr(
        axes,
        "plot",
        lambda *args, **options: drawn.append(options["label"]) or plot(*args, **options),
    )
    runs = dict(
        maple=[("dtd", 1), ("eurosat", 4)], coop=[("dtd", 2)], ivlp=[("dtd", 1), ("eurosat", 1)]
    )
    cells = [
        of_shots(method, dataset, shots, 1, 50.0)
        for method, own in runs.items()
        for dataset, shots in own
    ]
    rows = tables(cells)["shots"]
    assert [row.method for row in rows if row.dataset == "average"] == [
        "ivlp"
    ]  # the others have none
    draw_shots(rows, tmp_path / "shots.png")
    assert drawn == ["ivlp", "coop, dtd", "maple, dtd", "maple, eurosat"]


def test_mistakes_are_explained(tmp_path, capsys):
    for match, words in (
        (
            "'/shots' is one folder, but there are 2 data sets (dtd, eurosat)",
            f"shots --datasets dtd eurosat --pickles /shots --out {tmp_path / 'b'}".split(),
        ),
        ("no command 'base2old'. Did you mean base2new", ["base2old"]),
        ("required: RESULTS", ["table"]),
        ("no results (result.json)", ["table", tmp_path]),
        ("unrecognized arguments", ["shots", tmp_path]),
        ("no few-shot method 'mapel'", ["shots", "--method", "mapel", "--out", tmp_path / "a"]),
    ):
        assert run(*words) == 2
        assert match in capsys.readouterr().err
    (tmp_path / "result.json").write_text("{}")
    assert run("table", tmp_path) == 2
    assert "missing cell, accuracy, settings" in capsys.readouterr().err

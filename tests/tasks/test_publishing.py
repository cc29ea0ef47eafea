"""Publishing: what is stripped, what is measured, what is refused. Trains a tiny classifier
once."""

import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from helpers.cases import each
from helpers.commands import write_learner
from helpers.engine import ROOT, make_images, write_config
from mmengine.registry import MODELS
from PIL import Image
from timm.data import create_transform

import hypvision.tasks.publishing
from hypvision.checkpoints.index import builtin_index, read_index
from hypvision.checkpoints.read import read_weights
from hypvision.checkpoints.records import Input
from hypvision.checkpoints.storage import expand_tokens, read_header, write_weights
from hypvision.cli import main
from hypvision.cli.explain import _of_config
from hypvision.clip.models import ARCHITECTURES, MEAN
from hypvision.data.image_folder import unrecorded
from hypvision.engine.config import Run, load_config
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError
from hypvision.tasks import exporting
from hypvision.tasks.embedding import load_learner, named_embedder
from hypvision.tasks.metric_learning import build_model
from hypvision.tasks.publishing import (
    _classes,
    add_familiar,
    describe_config,
    image_input,
    normalisation_of,
    publish,
    read_about,
    stripped,
)
from hypvision.zoo.cards import readme
from hypvision.zoo.export import part_of
from hypvision.zoo.familiar import Familiar
from hypvision.zoo.loading import training_cfg
from hypvision.zoo.release import put_record

ABOUT = dict(
    description="Tiny.", intended_use="Tests.", data="Noise.", training="hypvision train x",
    limits=["Knows nothing."], licence="Apache-2.0", test_data="noise, 24 images",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A work dir with config and checkpoint of a short training, with its optimiser."""
    root = tmp_path_factory.mktemp("publish")
    config = write_config(root / "config.py", make_images(root / "data"), model="hcformer_nano")
    text = config.read_text().replace(
        'model_name="hcformer_nano"',
        'model_name="hcformer_nano", layers=(1, 1, 1, 1), dims=(8, 16, 24, 32), heads=(2, 2, 2, '
        "2), head_dim=4",
    )
    config.write_text(text)
    train(config, root / "work")
    return root, config, root / "work" / "epoch_1.pth"


@pytest.fixture
def where(trained, monkeypatch):
    monkeypatch.chdir(trained[0])
    return trained[0]


def processes_give(monkeypatch, measure):
    """``hypvision test`` in a fresh process gives ``measure(weights, environment)``, and any other
    ends well.

    The slow test starts them.
    """

    def run(command, env, **_):
        metrics = measure(command[command.index("test") + 2], env) if "test" in command else None
        return subprocess.CompletedProcess(command, 0, json.dumps(metrics), "")

    monkeypatch.setattr(subprocess, "run", run)


def test_a_published_file_is_small_measured_and_loads(trained, where, tmp_path, monkeypatch):
    _, _, checkpoint = trained
    before = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    calls = []

    def measure(weights, environment):
        calls.append(weights)
        if weights.startswith("zoo:"):  # what the other process would see
            index = read_index(environment["HYPVISION_INDEX"])
            path = index.root / index.get(weights[4:]).file.path
            assert environment["HYPVISION_OFFLINE"] == "1" and path.is_file()
        return {"top1": 40.0 if weights.startswith("zoo:") else 40.1, "top2": 70.0}

    processes_give(monkeypatch, measure)
    zoo = tmp_path / "zoo"
    record = publish(
        "config.py", checkpoint, "hcformer_nano.tiny", ABOUT, zoo, metrics=["top1", "top2"]
    )
    assert calls == [str(checkpoint), "zoo:hcformer_nano.tiny"]
    assert hashlib.sha256(checkpoint.read_bytes()).hexdigest() == before  # only read
    path = zoo / record.file.path
    assert path.stat().st_size < checkpoint.stat().st_size / 5
    assert (zoo / "README.md").read_text() == readme(read_index(zoo))
    assert read_index(zoo).get("hcformer_nano.tiny") == record
    assert record.metrics[0].value == 40.0 and record.metrics[0].full_precision == 40.1
    assert record.metrics[0].command == "hypvision test config.py zoo:hcformer_nano.tiny"
    assert record.arguments["dims"] == [8, 16, 24, 32] and "num_classes" not in record.arguments
    assert record.input.size == (3, 32, 32) and record.classes == ("blue", "green", "red")
    assert read_header(path)["classes"] == ["blue", "green", "red"]
    given = torch.load(checkpoint, weights_only=False)["state_dict"]
    assert {f"backbone.{name}" for name in read_weights(path)} == set(given)

    # Again, with other storage: the texts stay, the old file goes.
    again = publish("config.py", checkpoint, "hcformer_nano.tiny", {}, zoo, storage="float32")
    assert again.description == "Tiny." and again.metrics[0].data == ABOUT["test_data"]
    assert again.metrics[0].full_precision is None
    assert [p.name for p in (zoo / "weights").iterdir()] == [again.filename] != [record.filename]

    # What its images look like is measured again; the weights stay, to the bit.
    before = read_weights(zoo / again.file.path)
    told = add_familiar("hcformer_nano.tiny", zoo)
    assert told.familiar is not None and 0 <= told.familiar.limit <= 2
    assert told.familiar.data.startswith("24 images")
    weights = read_weights(zoo / told.file.path)
    assert weights.keys() == before.keys()
    assert all(torch.equal(weights[name], before[name]) for name in before)
    assert (zoo / "README.md").read_text() == readme(read_index(zoo))
    assert [p.name for p in (zoo / "weights").iterdir()] == [told.filename]


@pytest.mark.parametrize("command", ["publish", "add_familiar"])
def test_a_record_that_comes_during_the_measurement_stays(
    trained, where, tmp_path, monkeypatch, command
):
    zoo = tmp_path / "zoo"
    processes_give(monkeypatch, lambda *_: {"top1": 40.0})
    first = publish("config.py", trained[2], "hcformer_nano.tiny", ABOUT, zoo)
    old = zoo / first.file.path

    def another(*_):
        """What another command writes meanwhile: a record that names the same file."""
        seen = read_index(zoo).records.get("hcformer_nano.other")
        put_record(zoo, replace(first, name="hcformer_nano.other"), old, seen)
        return {"top1": 40.0}

    def measured(*_):
        another()
        return Familiar(torch.eye(3), 0.5, 0.0)

    processes_give(monkeypatch, another)
    monkeypatch.setattr(hypvision.tasks.publishing, "familiar_images", measured)
    if command == "publish":
        last = publish("config.py", trained[2], "hcformer_nano.tiny", {}, zoo, storage="float32")
    else:
        last = add_familiar("hcformer_nano.tiny", zoo)
    index = read_index(zoo)
    assert list(index.records) == ["hcformer_nano.tiny", "hcformer_nano.other"]
    assert index.get("hcformer_nano.tiny") == last != first
    assert all((zoo / record.file.path).is_file() for record in index)
    assert (zoo / "README.md").read_text() == readme(index)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(after=41.0), "more than the tolerance"),
        (dict(after=float("nan")), "more than the tolerance"),
        (dict(after=40.0, metrics=["coco/AP"]), "more than the tolerance of 0.002"),
        (dict(metrics=["mIoU"]), "measures no 'mIoU'"),
        (dict(about={"description": "x"}), "intended_use"),
        (dict(about={**ABOUT, "colour": "red"}), "unknown key 'colour'"),
        (dict(limit=1000), "is the limit"),
        (dict(storage="int3"), "storage must be one of"),
        (dict(name="no tag"), "MODEL.TAG"),
    ],
)
def test_nothing_is_published_when_something_is_wrong(
    trained, where, tmp_path, monkeypatch, change, message
):
    after = change.get("after", 40.0)
    left = [{"top1": after, "coco/AP": 0.4}, {"top1": 40.0, "coco/AP": 0.403}]
    processes_give(monkeypatch, lambda *_: left.pop())
    if "limit" in change:
        monkeypatch.setattr(hypvision.tasks.publishing, "PACKAGED_LIMIT", change["limit"])
    with pytest.raises(HypvisionError, match=message):
        publish(
            "config.py", trained[2], change.get("name", "hcformer_nano.tiny"),
            change.get("about", ABOUT), tmp_path / "zoo", change.get("storage", "int8"),
            metrics=change.get("metrics", ()),
        )  # fmt: skip
    assert not (tmp_path / "zoo").exists()
    assert len(left) == {"after": 0, "metrics": 1}.get(
        next(iter(change)), 2
    )  # nothing is measured in vain


@pytest.mark.parametrize(
    "text",
    [
        "description: [", "- a list", "training: 2026-02-30", b"\xff\xfe\xff", "a: " + "[" * 20_000,
        "data: one\ndata: two", "a: &x b\nc: *x",
    ],
)  # fmt: skip
def test_texts_that_cannot_be_read(tmp_path, text):
    (tmp_path / "about.yml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(HypvisionError, match="about.yml"):
        read_about(tmp_path / "about.yml")
    with pytest.raises(HypvisionError, match=r"none\.yml"):
        read_about(tmp_path / "none.yml")


@pytest.mark.slow
def test_the_command_measures_in_fresh_processes(trained, where, tmp_path):
    (tmp_path / "about.yml").write_text(yaml.safe_dump(ABOUT))
    command = [sys.executable, "-m", "hypvision.cli", "zoo", "publish", "config.py"]
    command += (
        f"{trained[2]} --name hcformer_nano.tiny --about {tmp_path / 'about.yml'} --tolerance 10"
    ).split()
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "zoo")], capture_output=True, text=True, cwd=where
    )
    assert done.returncode == 0, done.stderr[-2000:]
    record = read_index(tmp_path / "zoo").get("hcformer_nano.tiny")
    assert 0 <= record.metrics[0].value <= 100 and "Published" in done.stdout
    environment = {**os.environ, "HYPVISION_INDEX": str(tmp_path / "zoo")}
    command = [sys.executable, "-m", "hypvision.cli", *record.metrics[0].command.split()[1:]]
    again = subprocess.run(command, capture_output=True, text=True, cwd=where, env=environment)
    assert json.loads(again.stdout.splitlines()[-1])["top1"] == record.metrics[0].value


def test_stripping():
    inner = {"backbone.a": torch.ones(1), "backbone.b": torch.ones(1)}
    assert set(stripped({"state_dict": inner, "optimizer": {}}, "classification")) == {"a", "b"}
    assert set(stripped({"state_dict": inner}, "segmentation")) == set(inner)
    table = torch.zeros(9, 2)
    table[4] = 1.0  # the only word of the training
    on_clip = stripped(
        {"state_dict": {**inner, "clip.token_embedding.weight": table}}, "segmentation"
    )
    assert len(on_clip["clip.token_embedding.rows"]) == 1
    assert torch.equal(expand_tokens(on_clip)["clip.token_embedding.weight"], table)
    with pytest.raises(HypvisionError, match="outside the timm model: neck"):
        stripped({"state_dict": {**inner, "neck.a": torch.ones(1)}}, "classification")


def test_a_segmenter_on_clip_is_described():
    config = load_config(ROOT / "configs/hyperclip/emoji-words_hyperclip_150i.py")
    found = describe_config(config)
    assert (found["task"], found["model"], found["input"]["size"]) == (
        "segmentation",
        "emoji-t8",
        [3, 160, 160],
    )
    assert found["input"]["mean"] == pytest.approx([value / 255 for value in MEAN], abs=1e-6)
    assert found["model_config"]["clip"] == {"name": "emoji-t8"}  # not where its weights came from
    words = dict(classes=["groceries", "mammal"])  # of the training
    assert _classes(config, words) == config.words and len(config.words) == 22
    whole = load_config(ROOT / "tests/helpers/shapes/configs/hyperclip.py")
    assert describe_config(whole)["input"]["size"] == [3, 96, 96]
    with pytest.raises(HypvisionError, match=r"words that the model is tested with.* Add classes="):
        _classes(whole, words)
    with pytest.raises(HypvisionError, match="or on a CLIP of hypvision"):
        describe_config(
            load_config(ROOT / "configs/hyperclip/hyperclip-vitb16_4xb1-80k_coco-stuff164k.py")
        )


def test_a_classifier_of_several_labels_is_no_record():
    config = load_config(ROOT / "configs/hcformer/hcformer-nano_cifar10.py")
    config.model.multi_label = True
    with pytest.raises(HypvisionError, match="one class per image"):
        describe_config(config)


@pytest.fixture
def learner(tmp_path, monkeypatch):
    """A metric learner in a zoo of its own; the model that was published."""
    monkeypatch.chdir(tmp_path)
    make_images(tmp_path / "images")
    write_learner(tmp_path)
    weights = torch.load("learner.pth")
    torch.save(
        {**weights, "meta": dict(dataset_meta=dict(classes=("blue", "green", "red")))},
        "learner.pth",
    )
    processes_give(monkeypatch, lambda *_: {"recall@1": 50.0})
    publish("learner.py", "learner.pth", "learner.tiny", ABOUT, "zoo", storage="float32")
    monkeypatch.setenv("HYPVISION_INDEX", str(tmp_path / "zoo/index.yml"))
    return load_learner("learner.py", "learner.pth")[0]


def test_a_published_metric_learner_finds_images_everywhere(learner, capsys):
    record = builtin_index().get("learner.tiny")
    assert (record.task, record.model, record.input.size) == ("retrieval", "test_vit", (3, 32, 32))
    loaded = hypvision.load("learner.tiny")
    assert type(loaded) is type(learner) and not loaded.training
    for name, value in learner.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    photo = next(Path("images/val").rglob("*.png"))
    point = torch.as_tensor(
        hypvision.predict(photo, "learner.py", weights="learner.pth")[0].result.vector
    )
    assert torch.equal(
        torch.as_tensor(hypvision.predict(photo, "learner.tiny")[0].result.vector), point
    )
    embedder = named_embedder("learner.tiny")
    x = embedder.transform(Image.open(photo))[None]
    assert embedder.space == "lorentz" and torch.allclose(embedder.embed(x)[0], point, atol=1e-5)
    assert part_of(loaded, "retrieval", "features", (32, 32))[0] is loaded.backbone
    assert main(["summary", "learner.tiny"]) == 0 and "neck" in capsys.readouterr().out
    with pytest.raises(HypvisionError, match="takes no arguments"):
        hypvision.load("learner.tiny", num_classes=3)
    with pytest.raises(HypvisionError, match="classes"):
        hypvision.predict(photo, "learner.tiny", classes=["red"])


def test_a_file_of_another_model_is_no_metric_learner(learner, tmp_path):
    header = dict(
        model=dict(type="ImageClassifier", backbone=dict(model_name="test_vit", num_classes=2))
    )
    model = MODELS.build(header["model"])
    write_weights(model.state_dict(), tmp_path / "w.safetensors", header=header)
    with pytest.raises(HypvisionError, match="ImageClassifier, not a metric"):
        build_model(builtin_index().get("learner.tiny"), tmp_path / "w.safetensors", {})


def test_a_record_says_all_that_a_clip_is():
    for folder, kind in (
        ("hyperclip", "clip-*.py"),
        ("hierarcaps", "clip-*.py"),
        ("hyperbolic-clip", "*.py"),
    ):
        for path in (ROOT / "configs" / folder).glob(kind):
            config, hyperbolic = load_config(path), not path.name.startswith("clip-")
            known = describe_config(config)
            model, first = known["model"], known["input"]["mean"][0]
            assert first == (
                0.485 if "-vit-" in model else 0.481455
            )  # a checkpoint may have its own
            assert model == config.model.clip.name or (hyperbolic and model == "hycoclip-emoji-s16")
            curved = ARCHITECTURES[model].get("geometry") in ("lorentz", "product")
            assert curved == hyperbolic, path
    pixels = {name: torch.full((3, 1, 1), 0.229) for name in ("pixel_mean", "pixel_std")}
    assert normalisation_of({"a": torch.ones(2), **pixels}) == dict(
        mean=[0.229] * 3, std=[0.229] * 3
    )
    for more, said in (
        (dict(adapter=dict(type="hyperclip")), "without an adapter"),
        (
            dict(clip=dict(force_quick_gelu=True)),
            "none of these is a CLIP with model.clip={'force_quick_gelu': True}",
        ),
        (dict(clip=dict(force_image_size=96)), "'force_image_size': 96"),
        (dict(clip=dict(force_preprocess_cfg=dict(mean=(0, 0, 0)))), "'force_preprocess_cfg'"),
    ):
        with pytest.raises(HypvisionError, match=said):
            describe_config(
                load_config(ROOT / "tests/helpers/shapes/configs/clip.py", dict(model=more))
            )
    fine = {
        "model.clip.force_image_size": 64,
        "model.clip.force_quick_gelu": False,
        "model.clip.load_weights": False,
    }
    assert (
        describe_config(load_config(ROOT / "tests/helpers/shapes/configs/clip.py", fine))["model"]
        == "emoji-t8"
    )


@each(
    "config, task, size",
    [
        ("hcformer/hcformer-nano_8e_cifar10.py", "classification", [3, 32, 32]),
        ("hcformer/semantic-fpn_hcformer-nano_600i_camvid.py", "segmentation", [3, 192, 192]),
        ("baselines/faster-rcnn_tf-efficientnet-lite0_2e_emoji.py", "detection", [3, 128, 128]),
        ("lhier/lhier_efficientnet-lite0_20e_grocery.py", "retrieval", [3, 160, 160]),
    ],
)
def test_what_a_config_says(config, task, size):
    found = describe_config(load_config(ROOT / "configs" / config))
    model = "tf_efficientnet_lite0" if "lite0" in config else "hcformer_nano"
    assert (found["task"], found["model"], found["input"]["size"]) == (task, model, size)
    assert len(found["input"]["mean"]) == 3 and max(found["input"]["mean"]) < 1
    if task != "classification":
        assert "init_cfg" not in json.dumps(found["model_config"]["backbone"])


def test_every_field_of_a_test_transform_is_recorded_or_said(tmp_path, monkeypatch, caplog):
    """``meta.input``, read as timm's config of a model, gives the transform that the training
    tested with."""
    written = {}
    model = SimpleNamespace(backbone=None, dataset_meta={"classes": ["a"]})
    monkeypatch.setattr(exporting, "trained_model", lambda *_: model)
    monkeypatch.setattr(exporting, "part_of", lambda *_: (None, "logits"))
    monkeypatch.setattr(exporting, "export_network", lambda *given: written.update(given[7]))
    other = dict(input_size=64, interpolation="bicubic", mean=(0.1,) * 3, std=(0.2,) * 3,
    crop_pct=0.5,
                 crop_mode="squash", crop_border_pixels=2, is_training=True, use_prefetcher=True,
                 normalize=False,
                 naflex=True, patchify=True)  # fmt: skip
    untouched = {
        "separate",
        "patch_size",
        "max_seq_len",
        "patchify_channels_last",
        "patchify_flatten",
    }  # beside others
    said = {}
    for key in set(inspect.signature(create_transform).parameters) - untouched:
        transform = {"input_size": 32, key: other.get(key, 0.3)}
        config = Run(dict(
            model=dict(type="ImageClassifier", backbone=dict(model_name="test_vit")),
            test_dataloader=dict(dataset=dict(type="ImageFolderDataset", transform=transform)),
        ))  # fmt: skip
        cfg = training_cfg({"meta": {"input": image_input(config)}}, 3)
        given = {
            k: cfg[k]
            for k in ("input_size", "mean", "std", "crop_pct", "interpolation", "crop_mode")
            if k in cfg
        }
        if str(create_transform(**given)) != str(create_transform(**transform)):
            said[key] = unrecorded(transform)
            with pytest.raises(HypvisionError, match=re.escape(f"has {said[key]}, which a record")):
                describe_config(config)
            config.dump(tmp_path / "mine.py")
            with pytest.raises(HypvisionError, match=re.escape(f"has {said[key]}, but explain")):
                _of_config(tmp_path / "mine.py")
            exporting.export_trained(tmp_path / "mine.py", "mine.pth", "onnx", "mine.onnx")
            assert written == {"classes": ["a"]}
            assert f"has {said[key]}, which the exported file cannot record" in caplog.text
        else:
            Input(**image_input(config))
    assert said == {k: f"{k} = {v}" for k, v in other.items() if k in said} and len(said) == 6


def test_a_metric_may_move_by_just_the_tolerance(monkeypatch, tmp_path):
    left = [{"coco/AP": 0.6}, {"coco/AP": 0.602}]
    monkeypatch.setattr(hypvision.tasks.publishing, "_measure", lambda *_: left.pop())
    monkeypatch.setattr(hypvision.tasks.publishing, "load", lambda name: None)
    draft = [dict(name="coco/AP", value=0.0)]
    hypvision.tasks.publishing._measure_both(
        draft, "config.py", "a.pth", "a.b", tmp_path, "int8", 0.2, ()
    )
    assert draft == [dict(name="coco/AP", value=0.6, full_precision=0.602)]

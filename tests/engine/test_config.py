"""Reading configs."""

import ast
import json
from pathlib import Path

import pytest
import torch
from helpers.cases import each

pytest.importorskip("mmengine")
pytest.importorskip("mmdet")

import mmengine
from helpers.configs import shipped
from helpers.engine import ROOT, make_images, write_config
from helpers.syntax import tree_of_file
from mmengine.model import BaseDataPreprocessor
from mmengine.runner import activation_checkpointing
from torch import nn

from hypvision.cli import main
from hypvision.engine.config import (
    RUN_KEYS,
    Run,
    format_once,
    leave_out_pretrained,
    load_config,
    parse_options,
    prepare,
)
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError

ATTACK = "!!python/object/apply:os.system ['touch {target}']"


@pytest.mark.parametrize("suffix", [".yml", ".yaml"])
@pytest.mark.parametrize("as_base", [False, True])
def test_yaml_configs_run_nothing(tmp_path, suffix, as_base):
    target = tmp_path / "touched"
    path = tmp_path / f"config{suffix}"
    path.write_text("model: " + ATTACK.format(target=target))
    if as_base:
        (tmp_path / "config.py").write_text(f"_base_ = ['{path.name}']")
        path = tmp_path / "config.py"
    with pytest.raises(
        HypvisionError, match=f"config{suffix}' ends in '{suffix}', but configs are Python"
    ):
        load_config(path)
    assert not target.exists()


def test_json_configs_are_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(dict(model=dict(type="ImageClassifier"))))
    assert load_config(path).model.type == "ImageClassifier"


def test_a_config_without_env_cfg_trains_where_there_is_no_gpu(tmp_path):
    path = write_config(tmp_path / "config.py", make_images(tmp_path / "images", per_class=2))
    config = load_config(path)
    config._cfg_dict.pop("env_cfg")
    config.train_cfg.max_epochs = 1
    assert train(config, tmp_path / "run").iter == 1


def test_weights_that_a_checkpoint_replaces_are_not_fetched():
    model = dict(
        type="MaskRCNN",
        backbone=dict(
            type="TimmBackbone", pretrained=True, init_cfg=dict(type="Pretrained", checkpoint="x")
        ),
        neck=[dict(pretrained="torchvision://resnet50", checkpoint_path="zoo:x")],
        clip=dict(name="ViT-B-16", pretrained="openai"),
        distillation=dict(teacher=dict(pretrained=True)),
    )
    leave_out_pretrained(model)
    assert model == dict(
        type="MaskRCNN",
        backbone=dict(type="TimmBackbone", pretrained=False, init_cfg=None),
        neck=[dict(pretrained=None, checkpoint_path="")],
        clip=dict(name="ViT-B-16", pretrained="openai", load_weights=False),
        distillation=dict(teacher=dict(pretrained=True)),
    )


def test_an_option_of_a_variable_is_told(tmp_path, caplog):
    """It changes nothing: what the file made from the variable was made before."""
    path = tmp_path / "config.py"
    path.write_text("model = dict()\nbatch = 4\ntrain_dataloader = dict(batch_size=batch)\n")
    assert load_config(path, {"train_dataloader.batch_size": 8}).train_dataloader.batch_size == 8
    assert not caplog.text
    assert load_config(path, {"batch": 8}).train_dataloader.batch_size == 4
    assert "'batch' is a variable" in caplog.text
    assert "Change these keys instead: train_dataloader.batch_size." in caplog.text


def test_the_processes_of_gpus_are_joined_before_any_is_asked_for(tmp_path, monkeypatch):
    """Each would take itself for the first one, and the lock on the folder would stop the
    others."""
    joined = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        "hypvision.engine.config.init_dist", lambda launcher, **kw: joined.append((launcher, kw))
    )
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    path = tmp_path / "config.py"
    path.write_text("model = dict(type='ImageClassifier')\n")
    prepare(load_config(path), tmp_path, launcher="pytorch")
    prepare(load_config(path), tmp_path)
    assert joined == [("pytorch", dict(backend="nccl"))]


def test_circular_or_too_deep_bases_raise_a_readable_error(tmp_path):
    path = tmp_path / "circle.py"
    path.write_text("_base_ = ['circle.py']\n")
    with pytest.raises(HypvisionError, match=r"circle.py.*names itself in _base_"):
        load_config(path)
    for word in ("a=" + "[" * 1500 + "]" * 1500, ".".join("a" * 2000) + "=1"):
        with pytest.raises(HypvisionError, match="nested too deeply"):
            parse_options([word])


def test_every_key_of_a_run_can_be_an_option(tmp_path):
    path = write_config(tmp_path / "config.py", make_images(tmp_path / "images", per_class=2))
    wrapper = "model_wrapper_cfg.find_unused_parameters"
    assert load_config(path, {wrapper: True}).model_wrapper_cfg.find_unused_parameters
    with pytest.raises(HypvisionError, match="'cfg'"):
        load_config(path, {"cfg": 1})


def keys_that_mmengine_reads():
    """What the Runner and its hooks take from the config by name, by mmengine's source."""
    found = set()
    for path in (
        Path(mmengine.__file__).parent / "runner/runner.py",
        *Path(mmengine.__file__).parent.glob("hooks/*.py"),
    ):
        for node in ast.walk(tree_of_file(path)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "get"
            ):
                owner, key = node.func.value, node.args[0]
            elif isinstance(node, ast.Subscript):
                owner, key = node.value, node.slice
            else:
                continue
            named = ast.unparse(owner) in ("cfg", "self.cfg", "runner.cfg")
            if named and isinstance(key, ast.Constant) and isinstance(key.value, str):
                found.add(key.value)
    return found


def test_every_key_that_mmengine_reads_is_an_option():
    known = keys_that_mmengine_reads()
    assert {"compile", "activation_checkpointing", "efficient_conv_bn_eval", "sync_bn"} <= known
    assert known - {"type"} <= set(RUN_KEYS)
    options = {
        "compile": True,
        "activation_checkpointing": "backbone",
        "efficient_conv_bn_eval": ["backbone"],
    }
    options |= {"sync_bn": "torch", "auto_scale_lr.enable": True, "env_cfg.cudnn_benchmark": True}
    config = load_config(ROOT / "configs/hcformer/hcformer-medium_4xb256-310e_in1k.py", options)
    assert all(config.get(key.partition(".")[0]) is not None for key in options)
    with pytest.raises(HypvisionError, match="compile = 3, but True, False or a dict"):
        load_config(ROOT / "configs/hcformer/hcformer-medium_4xb256-310e_in1k.py", {"compile": 3})


def test_compile_and_checkpointing_take_effect(tmp_path, monkeypatch):
    compiled, recomputed = [], []
    wrap = activation_checkpointing.wrap_forward
    monkeypatch.setattr(nn.Module, "compile", lambda block, **options: compiled.append(options))
    monkeypatch.setattr(
        activation_checkpointing, "wrap_forward", lambda f: recomputed.append(f) or wrap(f)
    )
    config = write_config(tmp_path / "config.py", make_images(tmp_path / "data", per_class=2))
    options = [
        "compile.dynamic=False",
        "activation_checkpointing=backbone.blocks.1",
        "val_dataloader=None",
        "val_cfg=None",
    ]
    command = [
        *f"train {config} --work-dir {tmp_path / 'run'} --cfg-options".split(),
        *options,
        "val_evaluator=None",
    ]
    assert main(command) == 0
    assert compiled == [{"dynamic": False}] * 6 and len(recomputed) == 1  # six blocks


def loaders_of(name, on_gpu, monkeypatch):
    """The loaders of a shipped config, as a run on such a machine has them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    config = prepare(load_config(ROOT / name))
    return {
        phase: config[f"{phase}_dataloader"]
        for phase in ("train", "val", "test")
        if f"{phase}_dataloader" in config
    }


FIRST = {}  # of each folder
for _path in shipped():
    FIRST.setdefault(_path.parent.name, _path.relative_to(ROOT).as_posix())


@pytest.mark.slow
def test_all_configs_pin_their_batches(monkeypatch):
    names = [path.relative_to(ROOT).as_posix() for path in shipped()]
    for name in names:
        loaders = loaders_of(name, True, monkeypatch)
        wrong = [
            phase
            for phase, loader in loaders.items()
            if loader and loader.get("pin_memory") is not True
        ]
        assert not wrong, f"{name}: {wrong}"


@pytest.mark.parametrize("name", [FIRST["hyperclip"], FIRST["lhier"]])
def test_batches_are_pinned_where_there_is_a_gpu(name, monkeypatch):
    assert all(loader.pin_memory is True for loader in loaders_of(name, True, monkeypatch).values())
    assert not any(
        "pin_memory" in loader for loader in loaders_of(name, False, monkeypatch).values()
    )


def test_copies_to_the_device_do_not_wait(tmp_path, monkeypatch):
    copies = []
    move = torch.Tensor.to

    def recorded(tensor, *args, **options):
        copies.append(options.get("non_blocking"))
        return move(tensor, *args, **options)

    config = write_config(tmp_path / "config.py", make_images(tmp_path / "data", per_class=2))
    options = ["val_dataloader=None", "val_cfg=None", "val_evaluator=None"]
    preprocess = BaseDataPreprocessor.cast_data

    def watched(self, data):
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "to", recorded)
            return preprocess(self, data)

    monkeypatch.setattr(BaseDataPreprocessor, "cast_data", watched)
    assert (
        main(["train", str(config), "--work-dir", str(tmp_path / "run"), "--cfg-options", *options])
        == 0
    )
    assert copies and all(copies)


@each("folder", ["_base_", "hyperclip/_base_", "hyperbolic-clip/_base_"])
def test_pieces_that_name_workers_pin_their_batches(folder):
    """So that mmengine's own tools do, too."""
    for path in (ROOT / "configs" / folder).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert text.count("num_workers=") == text.count("pin_memory="), path


def test_a_text_of_the_data_is_no_code_of_the_config(tmp_path, monkeypatch):
    """mmengine replaces ``{{$NAME:VALUE}}`` in the text of a file: by a variable, or as code."""
    monkeypatch.setenv("SECRET", "value")
    mark = tmp_path / "mark"
    names = [
        "{{$SECRET:x}}",
        "{{$NOPE:\\',__import__('pathlib').Path('" + str(mark) + "').touch(),#|x}}",
        "{{fileDirname}}{{{",
    ]
    path = tmp_path / "config.py"
    path.write_text(Run(dict(names=names)).pretty_text)
    assert mmengine.Config.fromfile(path).names == names
    assert not mark.exists()


def test_the_text_of_a_config_has_no_secrets(tmp_path):
    """It goes into the work dir, into every checkpoint and into the log."""
    address = "https://me:hunter2@example.org/{000..009}.tar?sig=hunter2"
    run = Run(dict(shards=[address], load_from=f"{address}#sha256=ab"))
    texts = [run.pretty_text]
    for suffix in ("py", "json", "yml"):
        run.dump(tmp_path / f"a.{suffix}")
        texts.append((tmp_path / f"a.{suffix}").read_text())
    for text in texts:
        assert "hunter2" not in text and text.count("https://example.org/{000..009}.tar") == 2


@pytest.mark.parametrize("root", ["data", "data/own/inner", "elsewhere"])
def test_a_config_moves_the_data_of_its_bases(root, tmp_path):
    own = "_base_ = ['hypvision::_base_/datasets/own_folders.py']\nmodel = dict(type='x')\n"
    own += f"data_root = {root!r}\ntest_dataloader = dict(dataset=dict(root={root + '/mine'!r}))\n"
    (tmp_path / "mine.py").write_text(own)
    config = load_config(tmp_path / "mine.py")
    places = [config.dataset(part).root for part in ("train", "val", "test")]
    assert places == [f"{root}/{name}" for name in ("train", "val", "mine")]


def test_a_config_is_formatted_once_for_all_checkpoints():
    from yapf.yapflib.yapf_api import FormatCode

    text, style = (
        "model=dict(a = 1)\n",
        dict(based_on_style="pep8", blank_line_before_nested_class_or_def=True),
    )
    assert format_once(text, style_config=style) == FormatCode(text, style_config=style)
    assert format_once(text, style_config=style) is format_once(text, style_config=dict(style))

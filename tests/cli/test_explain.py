"""`hypvision explain`: label maps of hand-made assignments, the images it writes, the mistakes it
explains."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from helpers.cases import each
from helpers.shapes.images import make_scene
from PIL import Image

from hypvision.checkpoints.index import builtin_index
from hypvision.checkpoints.storage import read_header
from hypvision.cli import main
from hypvision.io.errors import HypvisionError
from hypvision.io.shipped import config_folder
from hypvision.models.hcformer import HCFormer, StageAssignments
from hypvision.nn import ClusterAssignment
from hypvision.viz.clusters import (
    cluster_map,
    confidence_map,
    draw_cluster_maps,
    explain_image,
    merge_regions,
)
from hypvision.viz.palette import palette
from hypvision.viz.sheet import contact_sheet, save_image
from hypvision.zoo import load, read_weights, resolve
from hypvision.zoo.backbones import build_model, explained_models, network_arguments

MICRO = ["layers=(1,1,1,1)", "dims=(8,16,24,32)", "heads=(2,2,2,2)", "head_dim=4"]


def assignment():
    """A 2 x 4 map in two windows side by side, two centres each: pixels alternate between the
    centres."""
    patch = torch.zeros(1, 1, 2, 2, 4)
    patch[:, :, 0, :, ::2] = 1
    patch[:, :, 1, :, 1::2] = 1
    index = torch.tensor([[0, 0, 1, 1]] * 2)
    return ClusterAssignment(patch, index, None)


def test_patch_labels_count_windows_and_centres():
    assert cluster_map(assignment(), 0).tolist() == [[0, 1, 2, 3]] * 2
    assert cluster_map(assignment(), 0, size=(4, 8))[0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(ValueError, match="window"):
        cluster_map(assignment(), 0, "window")


def test_confidence_is_0_for_uniform_and_1_for_hard_assignments():
    hard = assignment()
    assert (confidence_map(hard, 0) == 1).all()
    soft = hard._replace(patch=0.25 * hard.patch + 0.375, window=torch.full((1, 1, 4, 1, 2), 0.25))
    np.testing.assert_allclose(
        confidence_map(soft, 0, size=(4, 8)), 0.25, atol=1e-7
    )  # (0.625 - 0.5) / (1 - 0.5)
    assert confidence_map(soft, 0, "window").tolist() == [[0] * 4] * 2
    assert confidence_map(hard._replace(patch=torch.ones(1, 1, 1, 2, 4)), 0).max() == 0


def test_maps_have_the_resolution_of_the_photo_and_no_level_of_one_centre(monkeypatch):
    photo = Image.new("RGB", (123, 77))
    single = assignment()._replace(patch=torch.ones(1, 1, 1, 2, 4))
    entries = [StageAssignments(0, 0, assignment()), StageAssignments(1, 0, single)]
    grid = draw_cluster_maps(photo, entries)
    assert 2 * 123 < grid.width < 3 * 123
    assert 77 < grid.height < 2 * 77  # the photo and one map in one row
    with pytest.raises(HypvisionError, match=r"stage=1.*a single centre"):
        draw_cluster_maps(photo, entries, stage=1)
    monkeypatch.setattr(
        "hypvision.viz.clusters.LARGEST", 40_000
    )  # pixels: a grid of large photos is made smaller
    grid = draw_cluster_maps(Image.new("RGB", (800, 600)), entries)
    assert 2 * 160 < grid.width < 2 * 180  # two maps of 163 x 122


def test_nearly_uniform_assignments_are_told(caplog):
    model = build_model("hcformer_nano", None, dict(dims=(8, 16, 24, 32), heads=(2, 2, 2, 2),
    head_dim=4,
                                                    layers=(1, 1, 1, 1)))  # fmt: skip
    drawings = explain_image(model, make_scene(0, size=64).image, 64)
    assert "nearly uniform in stages.0.blocks.0, patch level (" in caplog.text
    assert drawings["regions"].size == (64, 64)


def test_the_nearly_uniform_maps_alone_are_named(caplog):
    model, image = build_model("hcformer_nano.cifar10"), make_scene(0, size=32).image
    explain_image(model, image, 32, regions=0)
    assert not caplog.records  # the shipped weights have none
    mixer = model.stages[2].blocks[5].mixer
    with torch.no_grad():
        for number in (mixer.alpha, mixer.locality, mixer.bias):
            number.zero_()
    explain_image(model, image, 32, regions=0)
    assert "in stages.2.blocks.5, patch level (" in caplog.text and "stages.1" not in caplog.text
    caplog.clear()
    explain_image(model, image, 32, regions=0, stage=1)  # the others are not drawn
    assert not caplog.records


def test_regions_are_few_and_cover_the_image():
    model = HCFormer(
        num_classes=0, layers=(1, 1, 1, 1), dims=(8, 16, 24, 32), heads=(2, 2, 2, 2), head_dim=4
    ).eval()
    labels = merge_regions(model, torch.randn(1, 3, 64, 96), 4)
    assert labels.shape[-2:] == (64, 96)
    assert len(np.unique(labels)) <= 4


def test_command_writes_images(tmp_path, capsys):
    make_scene(0, size=64).image.save(tmp_path / "scene.png")
    arguments = (
        f"explain {tmp_path / 'scene.png'} --model hcformer_nano --size 64 --out {tmp_path / 'out'}"
    ).split()
    assert main([*arguments, "--model-args", *MICRO]) == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["scene_clusters.png", "scene_regions.png"]
    assert all(name in capsys.readouterr().out for name in names[:1])
    assert Image.open(tmp_path / "out" / names[1]).size[0] >= 64


@pytest.mark.parametrize(
    ("name", "prefix", "size"),
    [
        pytest.param("hcformer_nano.cifar10", "", 32, marks=pytest.mark.slow),
        ("semantic-fpn_hcformer_nano.camvid", "backbone.timm_model.model.", 192),
    ],
)
def test_weights_of_the_zoo(tmp_path, monkeypatch, capsys, name, prefix, size):
    monkeypatch.setenv("HYPVISION_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    path = resolve(name)
    expected = read_weights(path)
    model = build_model("hcformer_nano", f"zoo:{name}")
    for key in (
        "stem.0.weight",
        "stages.2.blocks.1.mlp.fc1.weight",
        "stages.3.blocks.0.mixer.bias",
    ):
        assert torch.equal(model.state_dict()[key], expected[prefix + key]), key
    assert model.pretrained_cfg["input_size"][1:] == (size, size)
    if prefix:
        assert torch.equal(model.norm.weight, expected[f"{prefix}feature_norms.3.weight"])
    make_scene(0, size=size).image.save(tmp_path / "scene.png")
    command = (
        f"explain {tmp_path / 'scene.png'} --model hcformer_nano --out {tmp_path / 'out'}"
    ).split()
    assert main([*command, "--weights", f"zoo:{name}"]) == 0
    by_address = Image.open(tmp_path / "out" / "scene_clusters.png").tobytes()
    for own in (name, *([] if prefix else [f"zoo:{name}"])):  # the name of the weights alone
        (tmp_path / "out" / "scene_clusters.png").unlink()
        assert main([*command[:3], own, *command[4:]]) == 0
        assert Image.open(tmp_path / "out" / "scene_clusters.png").tobytes() == by_address
    # The file itself, with what its record says, draws the same.
    record = builtin_index().get(name)
    network = record.arguments or network_arguments(read_header(path)["model"]["backbone"])
    arguments = [
        "--model-args",
        *(f"{key}={value!r}" for key, value in network.items()),
        "--size",
        str(size),
    ]
    arguments += ["--mean", *map(str, record.input.mean), "--std", *map(str, record.input.std)]
    assert main([*command, "--weights", str(path), *arguments]) == 0
    assert Image.open(tmp_path / "out" / "scene_clusters.png").tobytes() == by_address
    assert "random" not in capsys.readouterr().out


@each(
    "words, mentioned",
    [
        ("scene.png --model hcformer_nano --weights zoo:hcformer_nano.cifar", "_nano.cifar10"),
        ("scene.png --model hcformer_tiny --weights zoo:hcformer_nano.cifar10", "hcformer_nano"),
        ("scene.png --model zoo:hcformer_nano.cifar10 --weights x.pth", "--weights"),
        ("scene.png --model zoo:hcformer_nano.cifar", "hcformer_nano.cifar10"),
        ("none.png --model hcformer_nano", "none.png"),
        ("broken.png --model hcformer_nano", "broken.png"),
        ("scene.png --model hcformer_nan", "hcformer_nano"),
        ("scene.png --model hcformer_nano.nope", "'nope'"),
        ("scene.png --model tf_efficientnet_lite0.imagenet --stage 1", "has none"),
        ("scene.png --model semantic-fpn_tf_efficientnet_lite0.camvid", "is not a classifier"),
        ("scene.png --model hcformer_nano --weights none.pth", "none.pth"),
    ],
)
def test_mistakes_are_explained(tmp_path, monkeypatch, capsys, words, mentioned):
    monkeypatch.chdir(tmp_path)
    make_scene(0, size=64).image.save("scene.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    size = "" if "tf_" in words else " --size 64"
    assert main(f"explain {words}{size}".split()) == 2
    error = capsys.readouterr().err
    assert mentioned in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("model", "drawn"),
    [("tf_efficientnet_lite0.imagenet", "class"), ("hcformer_nano.cifar10", "clusters")],
)
def test_the_class_comes_first(tmp_path, monkeypatch, capsys, model, drawn):
    monkeypatch.chdir(tmp_path)
    make_scene(0, size=64).image.save("scene.png")
    assert main(["explain", "scene.png", "--model", model]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert main(["predict", "scene.png", "--model", model, "--write", "csv"]) == 0
    found = (tmp_path / "predicted/predictions.csv").read_text().splitlines()
    name = first.removeprefix("scene.png: ").rpartition(" ")[0]
    assert name.partition(",")[0] in found[1]
    assert second == f"explain/scene_{drawn}.png" and (tmp_path / second).is_file()


@pytest.mark.parametrize(
    "model", ["tf_efficientnet_lite0.imagenet", "himapper_tf_efficientnet_lite0.grocery"]
)
def test_a_class_that_is_a_guess_is_doubted_as_predict_does(tmp_path, monkeypatch, capsys, model):
    def warned():
        said = capsys.readouterr().err.splitlines()
        return [line for line in said if line.startswith("warning")]

    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (64, 64), "gray").save("gray.png")
    assert main(["explain", "gray.png", "--model", model]) == 0
    doubts = warned()
    assert main(["predict", "gray.png", "--model", model, "--write", "csv"]) == 0
    assert doubts == warned() != []


def test_hyperbolic_pixels_say_where_they_are_uncertain(tmp_path, monkeypatch, capsys):
    pytest.importorskip("mmseg")
    from mmengine.registry import MODELS, init_default_scope

    import hypvision.engine.run  # noqa: F401 - mmengine's registries
    from hypvision.engine.config import import_extensions, load_config

    monkeypatch.chdir(tmp_path)
    make_scene(0, size=64).image.save("scene.png")
    config = load_config("hyperbolic-fpn-3d_600i_camvid")
    import_extensions(config)
    init_default_scope("mmseg")
    about = dict(dataset_meta=dict(classes=config.model.decode_head.classes))
    weights = MODELS.build(config.model).state_dict()
    torch.save(dict(state_dict=weights, meta=about), "pixels.pth")
    name = "hyperbolic-fpn-3d_600i_camvid"
    assert main(["explain", "scene.png", "--model", name, "--weights", "pixels.pth"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "explain/scene_pixels.png" and (tmp_path / said[-1]).is_file()
    assert said[-2].startswith("scene.png: uncertainty, mean 0.")
    assert main(["predict", "scene.png", "--model", name, "--weights", "pixels.pth"]) == 0


def test_contact_sheet_and_palette(tmp_path):
    sheet = contact_sheet([Image.new("RGB", (20, 10), "red")] * 5, columns=2, cell=40, gap=2)
    assert sheet.size == (86, 68)  # 2 columns of 40 and 3 gaps; 3 rows of 20 and 4 gaps
    assert sheet.getpixel((10, 10)) == (255, 0, 0) and sheet.getpixel((0, 0)) == (255, 255, 255)
    save_image(sheet, tmp_path / "new" / "sheet.png")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["sheet.png"]
    assert len({tuple(colour) for colour in palette(40)}) == 40


def test_a_training_is_explained_by_its_config(tmp_path, capsys):
    make_scene(0, size=64).image.save(tmp_path / "scene.png")
    config, weights = tmp_path / "mine.py", resolve("hcformer_nano.cifar10")
    config.write_text(
        "model = dict(backbone=dict(model_name='hcformer_nano.cifar10', num_classes=16))\n"
        "test_dataloader = dict(dataset=dict(transform=dict(input_size=64, mean=(0.5,) * 3, "
        "std=(0.5,) * 3)))\n"
    )
    command = ["explain", str(tmp_path / "scene.png"), "--regions", "0", "--stage", "2", "--out"]
    assert main([*command, str(tmp_path / "a"), "--model", str(config)]) == 2
    assert "With a config give --weights" in capsys.readouterr().err
    assert (
        main([*command, str(tmp_path / "a"), "--model", str(config), "--weights", str(weights)])
        == 0
    )
    by_hand = ["--model", "hcformer_nano.cifar10", "--size", "64", "--mean", "0.5", "--std", "0.5"]
    assert main([*command, str(tmp_path / "b"), *by_hand]) == 0
    first, second = ((tmp_path / name / "scene_clusters.png").read_bytes() for name in "ab")
    assert first == second


GROUPED = [
    record for record in builtin_index()
    if record.task == "classification" and record.model in explained_models()
]  # fmt: skip


@pytest.mark.parametrize("record", GROUPED, ids=lambda record: record.name)
def test_own_weights_print_the_class_as_a_record_does(record, tmp_path, monkeypatch, capsys):
    """With clusters or a tree: by a config and a checkpoint, and by a name and a checkpoint."""
    pytest.importorskip("mmengine")
    monkeypatch.chdir(tmp_path)
    make_scene(0, size=64).image.save("scene.png")
    weights = load(record.name).state_dict()
    meta = dict(
        dataset_meta=dict(classes=list(record.classes)),
        network=dict(model=record.model, arguments=dict(record.arguments)),
        input={**asdict(record.input), "size": list(record.input.size)},
    )
    state = {f"backbone.{name}": value for name, value in weights.items()}
    torch.save(dict(state_dict=state, meta=meta), "mine.pth")
    config = str(config_folder().parent / record.config)
    said = []
    for given in (
        [record.name],
        [config, "--weights", "mine.pth"],
        [record.model, "--weights", "mine.pth"],
        [record.model, "--weights", f"zoo:{record.name}"],
    ):
        assert main(["explain", "scene.png", "--model", *given]) == 0
        said.append(capsys.readouterr().out.splitlines()[0])
    assert said[0].startswith("scene.png: ") and said[0][-4:-2] == "0."
    assert said == 4 * said[:1]


def test_weights_of_another_task_print_no_class(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_scene(0, size=64).image.save("scene.png")
    network = build_model("hcformer_nano")
    torch.save(dict(state_dict=network.state_dict()), "features.pth")
    words = "explain scene.png --size 64 --model hcformer_nano --weights features.pth"
    assert main(words.split()) == 0
    assert capsys.readouterr().out.startswith("explain/scene_clusters.png")


@pytest.mark.parametrize(
    "record",
    [record for record in builtin_index() if record.model not in explained_models()],
    ids=lambda record: record.name,
)
def test_every_record_is_explained_or_says_what_to_use(record, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_scene(0, size=64).image.save("scene.png")
    status = main(["explain", "scene.png", "--model", record.name])
    said = capsys.readouterr()
    if record.task == "classification":
        assert status == 0 and said.out.startswith("scene.png: ")
        return
    wanted = dict(
        detection=f"hypvision predict scene.png --out DIR --model {record.name}`",
        segmentation=f"hypvision predict scene.png --out DIR --model {record.name}`",
        retrieval=f"hypvision metric search scene.png --gallery DIR --model {record.name}`",
    )
    wanted["zero-shot"] = "--clip"
    assert status == 2 and wanted[record.task] in said.err

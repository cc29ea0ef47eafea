"""Weights of the zoo in mmengine's configs and commands, and whole segmenters and detectors."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS
from mmengine.runner import CheckpointLoader
from PIL import Image

import hypvision
import hypvision.openmmlab
from hypvision.checkpoints.index import builtin_index
from hypvision.checkpoints.read import read_weights
from hypvision.checkpoints.sources import resolve
from hypvision.checkpoints.storage import read_header, write_weights
from hypvision.geometry import Lorentz
from hypvision.io.errors import HypvisionError

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HYPVISION_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    for name in ("HYPVISION_INDEX", "HYPVISION_WEIGHTS"):
        monkeypatch.delenv(name, raising=False)


def weights(name):
    return read_weights(resolve(name))


def test_the_loader_gives_the_names_of_the_engine():
    checkpoint = CheckpointLoader.load_checkpoint("zoo:hcformer_nano.cifar10")
    assert len(checkpoint["meta"]["dataset_meta"]["classes"]) == 10
    given = checkpoint["state_dict"]
    assert torch.equal(
        given["backbone.head.weight"], weights("hcformer_nano.cifar10")["head.weight"]
    )
    with pytest.raises(HypvisionError, match="hcformer_nano.cifar10"):
        CheckpointLoader.load_checkpoint("zoo:hcformer_nano.cifar")


@pytest.mark.parametrize("name", ["hcformer_nano.cifar10", "semantic-fpn_hcformer_nano.camvid"])
def test_init_cfg_takes_the_backbone_of_any_task(name):
    record = builtin_index().get(name)
    whole = read_header(resolve(name)).get("model") or {}
    network = whole.get("backbone") or dict(
        record.arguments, type="TimmBackbone", model_name=record.model
    )
    prefix = "backbone.timm_model.model." if whole else ""
    backbone = MODELS.build(
        dict(network, init_cfg=dict(type="Pretrained", checkpoint=f"zoo:{name}"))
    )
    backbone.init_weights()
    own = backbone.timm_model.model.state_dict()
    expected = weights(name)
    for key in (
        "stem.0.weight",
        "stages.2.blocks.1.mlp.fc1.weight",
        "stages.3.blocks.0.mixer.bias",
    ):
        assert torch.equal(own[key], expected[prefix + key]), key


def test_pretrained_true_takes_the_tag():
    backbone = MODELS.build(
        dict(type="TimmBackbone", model_name="hcformer_nano.cifar10", pretrained=True)
    )
    backbone.init_weights()
    expected = weights("hcformer_nano.cifar10")
    assert torch.equal(backbone.timm_model.model.stem[0].weight, expected["stem.0.weight"])
    with pytest.raises(HypvisionError, match="no weights for 'hcformer_small'"):
        MODELS.build(dict(type="TimmBackbone", model_name="hcformer_small", pretrained=True))


def test_a_classifier_of_the_engine_starts_from_a_tag():
    import hypvision.tasks

    config = dict(model_name="hcformer_nano.cifar10", pretrained=True, num_classes=3)
    model = hypvision.tasks.ImageClassifier(backbone=config)
    assert model.backbone.head.weight.shape[0] == 3
    assert torch.equal(model.backbone.norm.weight, weights("hcformer_nano.cifar10")["norm.weight"])


def test_a_segmenter_is_whole():
    pytest.importorskip("mmseg")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # mmseg's advice on its own code helps nobody
        model = hypvision.load("semantic-fpn_hcformer_nano.camvid")
    assert not model.training and model.dataset_meta["classes"][0] == "Sky"
    expected = weights("semantic-fpn_hcformer_nano.camvid")
    assert all(torch.equal(value, expected[key]) for key, value in model.state_dict().items())
    with torch.no_grad():
        logits = model(torch.randn(1, 3, 96, 96), mode="tensor")
    assert logits.shape[:2] == (1, 11) and logits.isfinite().all()
    with pytest.raises(HypvisionError, match="num_classes"):
        hypvision.load("semantic-fpn_hcformer_nano.camvid", num_classes=3)


def test_a_segmenter_by_words_finds_classes_that_had_no_label(tmp_path):
    pytest.importorskip("open_clip")
    from hypvision.clip import load_segmenter, segment
    from hypvision.clip.names import clip_options
    from hypvision.data.emoji_export import export_emoji
    from hypvision.zoo.backbones import build_model
    from hypvision.zoo.export import export_model

    shipped = REPOSITORY / "tools/demo_data"
    export_emoji(
        tmp_path / "scenes", shipped / "emoji", shipped / "photos", train=1, val=6, size=96,
        level="class", val_emoji="train",
    )  # fmt: skip
    name, files = "hyperclip_t8.emoji", sorted((tmp_path / "scenes/val/images").iterdir())
    truth = np.stack(
        [np.array(Image.open(tmp_path / "scenes/val/masks" / f"{file.stem}.png")) for file in files]
    )
    words = builtin_index().get(name).classes
    known = hypvision.load(name).train_classes
    found = np.stack([one.result.labels for one in hypvision.predict(files, name)])
    assert len(words) == 22 and len(known) == 17 and (found == truth).mean() > 0.7
    new = np.isin(truth, [k for k, word in enumerate(words) if word not in known])
    assert new.sum() > 100 and (found == truth)[new].mean() > 0.3  # 1 in 22 by chance

    # The same file by the functions for words, which take others, too.
    model = load_segmenter(f"zoo:{name}")
    assert (
        np.stack([segment(file, words, model).labels for file in files]) == found
    ).mean() > 0.999
    (fewer,) = hypvision.predict(files[:1], name, classes=["groceries", "bird"])
    assert fewer.result.names == ("groceries", "bird") and fewer.result.labels.max() <= 1
    with pytest.raises(
        HypvisionError, match="never taught any of the words 'zebra', 'dragonfruit'"
    ):
        hypvision.predict(files[:1], name, classes=["zebra", "dragonfruit"])
    assert (
        clip_options("emoji-t8")["pretrained"] == "zoo:emoji-t8.scenes"
    )  # the only CLIP of its kind
    with pytest.raises(
        HypvisionError, match="is based on the CLIP 'emoji-t8', which does not cluster"
    ):
        build_model(name)
    with pytest.raises(HypvisionError, match="is not one network"):
        export_model(name, "onnx", tmp_path / "never.onnx")


@pytest.mark.parametrize(
    "model", ["abc", {"type": "MaskRCNN"}, {"clip": "x"}, {"clip": {"name": "emoji-t8"}, "foo": 1}]
)
def test_headers_that_describe_no_segmenter_are_refused(model, tmp_path):
    pytest.importorskip("open_clip")
    from hypvision.clip import load_segmenter

    path = tmp_path / "a.safetensors"
    model = {"type": "HyperCLIPSegmentor", **model} if isinstance(model, dict) else model
    write_weights({"a": torch.ones(1)}, path, header={"model": model})
    with pytest.raises(
        HypvisionError,
        match=r"a\.safetensors' (or its config .* no HyperCLIPSegmentor|has a wrong value)",
    ):
        load_segmenter(path)


def test_a_detector_finds_an_emoji():
    pytest.importorskip("mmdet")
    from mmdet.structures import DetDataSample

    from hypvision.data.emoji_scenes import EmojiScenes

    name = "faster-rcnn_tf_efficientnet_lite0.emoji"
    model = hypvision.load(name)
    assert tuple(model.dataset_meta["classes"]) == builtin_index().get(name).classes
    shipped = REPOSITORY / "tools/demo_data"
    scene = EmojiScenes(
        shipped / "emoji", shipped / "photos/test", length=1, size=128, augmented=False
    ).scene(0)
    drawn = torch.from_numpy(scene.image[..., ::-1].copy()).permute(2, 0, 1)  # BGR, as mmdet reads
    sample = DetDataSample(
        metainfo=dict(img_shape=(128, 128), ori_shape=(128, 128), scale_factor=(1.0, 1.0), img_id=0)
    )
    with torch.no_grad():
        (result,) = model.test_step(dict(inputs=[drawn], data_samples=[sample]))
    found = result.pred_instances
    best = found.bboxes[found.scores.argmax()]
    assert found.scores.max() > 0.5

    def overlap(a, b):
        width = (torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])).clamp(min=0)
        inner = width.prod()
        return (inner / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - inner)).item()

    boxes = [torch.tensor(placed.box, dtype=torch.float32) for placed in scene.objects]
    assert max(overlap(best, box) for box in boxes) > 0.5


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("hcformer_nano.cifar10", "timm"),
        ("semantic-fpn_hcformer_nano.camvid", "mmseg"),
        ("hyperclip_t8.emoji", "open_clip"),
        ("semantic-fpn_tf_efficientnet_lite0.camvid", "mmseg"),
        ("faster-rcnn_tf_efficientnet_lite0.emoji", "mmdet"),
        ("lhier_tf_efficientnet_lite0.grocery", "timm"),
        ("emoji-t8.scenes", "open_clip"),
    ],
)
def test_the_code_on_a_card_runs(name, library, tmp_path, monkeypatch):
    """As a reader would paste it, with an image of the kind that the model knows."""
    pytest.importorskip(library)
    from hypvision.zoo.cards import model_card

    code = model_card(builtin_index().get(name)).split("```python\n")[1].split("```")[0]
    image = Image.open(REPOSITORY / "hypvision/app/examples/scene0.jpg").resize((96, 96))
    monkeypatch.chdir(tmp_path)
    image.save("picture.jpg")
    space = dict(image=image, images=torch.randn(2, 3, 64, 64))
    exec(code, space)
    array = np.asarray(image)[..., ::-1].copy()  # BGR, as OpenCV reads files
    image.save("picture.png")
    if "labels" in space:
        model, infer = space["model"], space["inference_model"]
        same = infer(model, "picture.png").pred_sem_seg.data, infer(model, array).pred_sem_seg.data
        assert torch.equal(*same)
        classes = builtin_index().get(name).classes
        assert space["labels"].shape == (96, 96) and tuple(space["names"]) == classes
        assert 1 < len(space["labels"].unique()) <= len(classes)
    elif "point" in space:
        Lorentz(1.0).check_point(torch.as_tensor(space["point"]))
    elif "found" in space:
        model, infer = space["model"], space["inference_detector"]
        same = (
            infer(model, "picture.png").pred_instances.bboxes,
            infer(model, array).pred_instances.bboxes,
        )
        assert torch.equal(*same)
        assert space["found"].scores.max() > 0.5 and space["found"].bboxes.shape[1] == 4
        assert tuple(space["names"]) == builtin_index().get(name).classes
    else:
        assert space["scores"].isfinite().all() and len(space["scores"]) in (1, 2)


def test_files_without_a_model_config_are_explained(tmp_path):
    from hypvision.checkpoints.storage import write_weights
    from hypvision.openmmlab.pretrained import build_model

    write_weights({"w": torch.ones(2)}, tmp_path / "w.safetensors")
    record = builtin_index().get("semantic-fpn_hcformer_nano.camvid")
    with pytest.raises(HypvisionError, match="does not hold the config"):
        build_model(record, tmp_path / "w.safetensors", {})


@pytest.mark.parametrize(
    "part",
    [
        dict(type="os.mkdir", path="PLACE"),
        dict(type="mmseg.os.mkdir", path="PLACE"),
        dict(type="EncoderDecoder", backbone=dict(type="os.mkdir", path="PLACE")),
        dict(type="EncoderDecoder", decode_head=[dict(nms=dict(type="os.mkdir", path="PLACE"))]),
        dict(type=["os.mkdir"]),
        dict(
            type="EncoderDecoder", backbone=dict(type="ResNet", _scope_="attack"), note="os.mkdir"
        ),
    ],
)
def test_a_weight_file_cannot_call_python(part, tmp_path, monkeypatch):
    """mmengine would call what a type names, if no registry has it."""
    from hypvision.checkpoints.storage import write_weights
    from hypvision.openmmlab.pretrained import build_model

    pytest.importorskip("mmseg")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "attack.py").write_text("import os\nos.mkdir('PLACE')\n")
    write_weights({"w": torch.ones(2)}, tmp_path / "w.safetensors", header={"model": part})
    record = builtin_index().get("semantic-fpn_hcformer_nano.camvid")
    with pytest.raises(HypvisionError, match=r"was refused.*(os\.mkdir|'attack')"):
        build_model(record, tmp_path / "w.safetensors", {})
    assert not (tmp_path / "PLACE").exists()


def test_shipped_configs_hold_no_paths():
    """A model must not ask for the checkpoint that its training started from."""
    for record in builtin_index():
        header = read_header(resolve(record, builtin_index()))
        assert "work_dirs" not in str(header) and "/" not in str(
            ConfigDict(header).get("model", "")
        )

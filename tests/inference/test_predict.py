"""`hypvision predict` and `hypvision.predict`: every task that trains here, every kind of source,
files for others."""

import csv
import json

import numpy as np
import pytest
import timm
import torch
from helpers.engine import ROOT, make_images, write_config
from helpers.shapes.images import make_scene
from PIL import Image
from timm.models import save_for_hf

import hypvision
from hypvision.checkpoints.index import builtin_index
from hypvision.cli import main
from hypvision.data.emoji_scenes import EmojiScenes
from hypvision.engine.config import load_config
from hypvision.engine.predicting import untrained_model
from hypvision.engine.run import test as measure
from hypvision.engine.run import train
from hypvision.inference import Boxes, Classes, Labels, Segments
from hypvision.inference.predictors import Predictor
from hypvision.inference.results import Writer
from hypvision.inference.running import results
from hypvision.inference.sources import find_sources, in_advance
from hypvision.io.errors import HypvisionError

DETECTOR = "faster-rcnn_tf_efficientnet_lite0.emoji"
RECIPE = "faster-rcnn_tf-efficientnet-lite0-s16_2e_emoji"  # of its training
SEGMENTER = "semantic-fpn_hcformer_nano.camvid"
CLASSIFIER = "hcformer_nano.cifar10"


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("HYPVISION_HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")


@pytest.fixture(scope="module")
def scenes():
    return [make_scene(number, "val", 96) for number in range(3)]


@pytest.fixture
def folder(tmp_path, scenes):
    place = tmp_path / "images"
    place.mkdir()
    for number, scene in enumerate(scenes):
        scene.image.save(place / f"s{number}.png")
    return place


def read(folder):
    return json.loads((folder / "predictions.json").read_text())


# What is found


def test_a_detector_finds_the_boxes_of_the_scenes():
    shipped = ROOT / "tools/demo_data"
    data = EmojiScenes(
        shipped / "emoji", shipped / "photos/test", length=6, size=128, augmented=False
    )
    scenes = [data.scene(number) for number in range(6)]
    images = [scene.image for scene in scenes]
    hits = []
    for scene, found in zip(
        scenes, hypvision.predict(images, DETECTOR, score=0.6, expect=Boxes), strict=True
    ):
        assert found.size == (128, 128) and found.result.masks is None
        assert len(found.result.boxes) and (np.diff(found.result.scores) <= 0).all()
        truth = np.array([placed.box for placed in scene.objects], dtype=float)
        for box in found.result.boxes:
            corner, end = np.maximum(truth[:, :2], box[:2]), np.minimum(truth[:, 2:], box[2:])
            common = (end - corner).clip(min=0).prod(-1)
            areas = (truth[:, 2:] - truth[:, :2]).prod(-1) + (box[2:] - box[:2]).prod() - common
            hits.append((common / areas).max() > 0.5)
    assert np.mean(hits) > 0.8


def test_a_segmenter_gives_what_mmseg_gives(scenes):
    from mmseg.apis import inference_model

    model = hypvision.load(SEGMENTER)
    pixels = np.array(scenes[0].image)
    expected = inference_model(model, pixels[..., ::-1].copy()).pred_sem_seg.data[0].numpy()
    with pytest.raises(HypvisionError, match="a whole model and takes no arguments, got img_size"):
        hypvision.predict(pixels, SEGMENTER, img_size=64)
    [found] = hypvision.predict(pixels, SEGMENTER)
    assert isinstance(found.result, Labels) and np.array_equal(found.result.labels, expected)


def test_a_classifier_gives_its_own_probabilities(scenes):
    model = hypvision.load(CLASSIFIER)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    images = [scene.image for scene in scenes]
    with torch.no_grad():
        expected = model(torch.stack([transform(image) for image in images])).softmax(-1)
    found = hypvision.predict(images, f"zoo:{CLASSIFIER}", batch=2)
    assert all(isinstance(item.result, Classes) for item in found)
    torch.testing.assert_close(
        torch.tensor(np.stack([item.result.scores for item in found])), expected
    )
    assert found[0].result.names == tuple(model.pretrained_cfg["label_names"])


def test_another_kind_of_result_than_expected_is_refused(scenes):
    with pytest.raises(
        HypvisionError,
        match=r"gives PlacedClasses \(classification\), not Boxes.*expect=PlacedClasses",
    ):
        hypvision.predict(scenes[0].image, CLASSIFIER, expect=Boxes)


def test_words_for_a_clip(scenes):
    [found] = hypvision.predict(
        scenes[0].image, "emoji-t8.scenes", classes=["fruit", "mammal", "bird"]
    )
    assert found.result.names == (
        "fruit",
        "mammal",
        "bird",
    ) and found.result.scores.sum() == pytest.approx(1, abs=1e-5)
    [found] = hypvision.predict(scenes[0].image, "emoji-t8.scenes")
    assert found.result.names == builtin_index().get("emoji-t8.scenes").classes
    with pytest.raises(HypvisionError, match="are fixed"):
        hypvision.predict(scenes[0].image, CLASSIFIER, classes=["a"])


def test_a_head_that_has_learned_nothing_is_refused(scenes):
    for name in (CLASSIFIER, f"zoo:{CLASSIFIER}"):
        with pytest.raises(HypvisionError, match=r"num_classes=5.*new head.*know 10 classes"):
            hypvision.predict(scenes[0].image, name, num_classes=5)


def test_folders_and_repositories_of_timm(tmp_path, scenes):
    model = hypvision.load(CLASSIFIER)
    save_for_hf(model, tmp_path / "hub", safe_serialization=True)
    [expected], [found] = (
        hypvision.predict(scenes[0].image, name)
        for name in (CLASSIFIER, f"local-dir:{tmp_path / 'hub'}")
    )
    assert found.result.names == expected.result.names
    np.testing.assert_allclose(found.result.scores, expected.result.scores, rtol=1e-5)
    with pytest.raises(HypvisionError, match="hf download USER/REPO.*local-dir:DIR"):
        hypvision.predict(scenes[0].image, "hf-hub:timm/test_vit.r160_in1k")


def test_a_training_of_ours(tmp_path):
    data = make_images(tmp_path / "data")
    config = write_config(tmp_path / "config.py", data)
    train(config, tmp_path / "work")
    weights = tmp_path / "work/epoch_1.pth"
    found = hypvision.predict(data / "val/*/*.png", config, weights)
    assert len(found) == 24 and found[0].result.names == ("blue", "green", "red")
    metrics = measure(config, weights, tmp_path / "test")
    right = sum(item.result.names[item.result.best] == item.file.split("/")[-2] for item in found)
    assert metrics["top1"] == pytest.approx(100 * right / 24, abs=1e-4)
    # The weights alone know the classes and the images of their training.
    again = hypvision.predict(data / "val/*/*.png", "test_vit", weights, img_size=32)
    assert again[0].result.names == ("blue", "green", "red")
    for one, other in zip(found, again):
        np.testing.assert_allclose(one.result.scores, other.result.scores, rtol=1e-5)
    model = hypvision.load(weights, model="test_vit", img_size=32)
    save_for_hf(model, tmp_path / "hub", safe_serialization=True)
    hub = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True).pretrained_cfg
    for cfg in (model.pretrained_cfg, hub):
        assert tuple(cfg["label_names"]) == ("blue", "green", "red") and cfg["num_classes"] == 3
        assert tuple(cfg["input_size"]) == (3, 32, 32) and cfg["crop_pct"] == 1.0
        assert tuple(cfg["mean"]) == timm.data.IMAGENET_DEFAULT_MEAN
        assert cfg["interpolation"] == "bilinear"
    for wrong, match in (
        (dict(weights=None), "add --weights"),
        (dict(weights=weights, classes=["a"]), "are fixed"),
        (
            dict(weights=weights, img_size=64),
            "contains the arguments of its model: leave out {'img_size': 64}",
        ),
    ):
        with pytest.raises(HypvisionError, match=match):
            hypvision.predict(data / "val/red", config, **wrong)


def test_a_metric_learner_gives_embeddings(tmp_path, scenes):
    from mmengine.registry import MODELS

    from hypvision.inference.sources import Sources
    from hypvision.tasks.embedding import embed_sources, load_embedder

    data = make_images(tmp_path / "data", 2)
    path = tmp_path / "learner.py"
    path.write_text(
        "custom_imports = dict(imports=['hypvision.tasks.metric_learning', "
        "'hypvision.data.image_folder'])\ndefault_scope = 'mmengine'\nmodel = "
        "dict(type='MetricLearner', backbone=dict(model_name='test_vit', img_size=32), "
        "num_classes=3,\n    neck=dict(dim=4, geometry='lorentz'))\ntest_dataloader = "
        f"dict(dataset=dict(type='ImageFolderDataset', root='{data}/val',\n    "
        "transform=dict(input_size=32, crop_pct=1.0)))\n"
    )
    model = MODELS.build(load_config(path).model)
    torch.save(dict(state_dict=model.state_dict()), tmp_path / "learner.pth")
    paths = sorted((data / "val").rglob("*.png"))
    found = hypvision.predict(paths, path, tmp_path / "learner.pth")
    expected = embed_sources(load_embedder(path, tmp_path / "learner.pth"), Sources(tuple(paths)))[
        1
    ]
    torch.testing.assert_close(
        torch.tensor(np.stack([item.result.vector for item in found])), expected
    )


def few_shot(tmp_path, meta):
    """The config of a few-shot training as the page of own data has it, and its checkpoint."""
    from mmengine.registry import MODELS

    path, weights = tmp_path / "clip.py", tmp_path / "clip.pth"
    path.write_text(
        "_base_ = []\nfrom hypvision.tasks.few_shot_recipes import few_shot_config\n"
        f"globals().update(few_shot_config('coop', 'shots', root={str(tmp_path)!r}, "
        "dataset='data', size=64,\n    clip=dict(name='emoji-t8', "
        "pretrained='zoo:emoji-t8.scenes'), host=dict(tokens=2)))\n"
    )
    model = MODELS.build(load_config(path).model).eval()
    torch.save(dict(state_dict=model.state_dict(), meta=dict(dataset_meta=meta)), weights)
    return path, weights, model


def test_a_clip_tuned_on_few_images_names_the_classes_of_its_training(tmp_path, capsys):
    import hypvision.tasks.few_shot
    from hypvision.data.preprocessing import Preprocessing

    data, names = make_images(tmp_path / "data", 2), ("blue_disk", "green ring", "red cross")
    path, weights, model = few_shot(tmp_path, dict(classes=names, template="a drawing of a {}."))
    files = sorted((data / "val").rglob("*.png"))
    out = tmp_path / "out"
    assert (
        main(
            [
                "predict",
                *map(str, files),
                *f"--model {path} --weights {weights} --out {out}".split(),
            ]
        )
        == 0
    )
    for given, words in ((None, names), (["disk", "ring"], ("disk", "ring"))):
        model.set_classes(words, "a drawing of a {}.")
        with torch.no_grad():
            expected = model(
                torch.stack([Preprocessing(64)(Image.open(file)) for file in files])
            ).softmax(-1)
        found = hypvision.predict(files, path, weights, classes=given)
        assert found[0].result.names == words
        torch.testing.assert_close(
            torch.tensor(np.stack([item.result.scores for item in found])), expected
        )
    torch.save(dict(state_dict=model.state_dict()), weights)
    with pytest.raises(HypvisionError, match="does not record its classes.*--classes"):
        hypvision.predict(files, path, weights)


def test_every_model_that_trains_here_predicts_or_says_what_uses_it(tmp_path):
    import importlib
    import pkgutil

    from mmengine.registry import MODELS

    import hypvision.tasks
    from hypvision.engine.extensions import PREDICTORS

    for module in pkgutil.iter_modules(hypvision.tasks.__path__, "hypvision.tasks."):
        importlib.import_module(module.name)
    own = {
        name
        for name, kind in MODELS.module_dict.items()
        if kind.__module__.startswith("hypvision.tasks.")
    }
    assert {"FewShotCLIP", "LanguageModel", "ImageClassifier"} <= own <= set(PREDICTORS)
    for kind, said in (
        ("LanguageModel", "hypvision lm generate"),
        ("RadialTuning", "hypvision clip chains CHAINS"),
    ):
        (tmp_path / "model.py").write_text(
            f"default_scope = 'mmengine'\nmodel = dict(type='{kind}')\n"
        )
        with pytest.raises(HypvisionError, match=f"finds nothing in images.*{said}"):
            hypvision.predict(Image.new("RGB", (8, 8)), tmp_path / "model.py")


def test_a_panoptic_map_counts_its_segments():
    from hypvision.openmmlab.predicting import _segments

    coded = np.array(
        [[1000, 1000, 2000], [1, 1, 2], [1, 2, 2]]
    )  # two objects of class 0, stuff 1; 2 is nothing
    found = _segments(coded, ("thing", "stuff"))
    assert found.labels.tolist() == [1, 0, 0]
    assert np.array_equal(found.segments, [[2, 2, 3], [1, 1, 0], [1, 0, 0]])
    items = found.annotations()
    assert [item["area"] for item in items] == [3, 2, 1] and items[0]["bbox"] == [0, 1, 2, 2]
    numbers = np.array(found.label_image()).astype(int) @ [1, 256, 65536]
    assert np.array_equal(numbers, found.segments)
    image = Image.new("RGB", (3, 3))
    assert found.draw(image, legend=False).size == (3, 3) and found.draw(image).height > 3


@pytest.mark.parametrize(
    ("name", "kind"),
    [("hyperclip", Labels), ("hyperclip-det", Boxes), ("hyperclip-panoptic", Segments)],
)
def test_open_vocabulary_models_look_for_other_words(tmp_path, scenes, name, kind):
    from mmengine.registry import MODELS, DefaultScope

    from hypvision.engine.config import import_extensions

    path = ROOT / f"tests/helpers/shapes/configs/{name}.py"
    config = load_config(path)
    import_extensions(config)
    with DefaultScope.overwrite_default_scope(config.default_scope):
        model = MODELS.build(config.model)
    torch.save(dict(state_dict=model.state_dict()), tmp_path / "model.pth")
    words = ["disk", "ring", "a thing that is not there"]
    [found] = hypvision.predict(
        scenes[0].image, path, tmp_path / "model.pth", classes=words, score=0.0
    )
    assert isinstance(found.result, kind) and found.result.names == tuple(words)
    labels = found.result.labels
    assert labels.size == 0 or (labels.min() >= 0 and labels.max() < 3)


# Files


def test_boxes_are_files_that_coco_reads(tmp_path, folder, capsys):
    """Masks, too: of a Mask R-CNN that has learned nothing."""
    out, weights = tmp_path / "out", tmp_path / "random.pth"
    config = ROOT / "tests/helpers/shapes/configs/detection.py"
    model = untrained_model(load_config(config))
    meta = dict(dataset_meta=dict(classes=("branched", "composite", "polygon", "round")))
    torch.save(dict(state_dict=model.state_dict(), meta=meta), weights)
    words = ["predict", str(folder), "--model", str(config), "--weights", str(weights)]
    assert main([*words, "--out", str(out), "--score", "0", "--max-boxes", "5"]) == 0
    assert "3 images in" in capsys.readouterr().out
    from pycocotools.coco import COCO

    coco = COCO(str(out / "predictions.json"))
    expected = hypvision.predict(folder, config, weights, score=0, max_boxes=5)
    assert len(coco.imgs) == 3
    assert [cat["name"] for cat in coco.cats.values()] == list(expected[0].result.names)
    for number, item in enumerate(expected):
        assert coco.imgs[number]["file_name"] == item.file
        own = coco.imgToAnns[number]
        assert len(own) == len(item.result.boxes)
        for annotation, box, mask in zip(own, item.result.boxes, item.result.masks):
            x, y, width, height = annotation["bbox"]
            assert np.allclose([x, y, x + width, y + height], box, atol=0.02)
            assert np.array_equal(coco.annToMask(annotation), mask)
    rows = list(csv.DictReader((out / "predictions.csv").open()))
    assert len(rows) == len(coco.anns) and float(rows[0]["score"]) == coco.anns[0]["score"]
    drawings = {image["file_name"]: image["drawing"] for image in coco.imgs.values()}
    assert {row["file"]: row["drawing"] for row in rows} == drawings
    assert sorted(drawings.values()) == sorted(path.name for path in out.glob("*.png"))
    assert sorted(path.name for path in out.glob("*.png")) == [
        "s0_overlay.png",
        "s1_overlay.png",
        "s2_overlay.png",
    ]


def test_labels_and_choice_of_files(tmp_path, folder):
    out = tmp_path / "out"
    assert (
        main(f"predict {folder / 's0.png'} --model {SEGMENTER} --write labels --out {out}".split())
        == 0
    )
    [found] = hypvision.predict(folder / "s0.png", SEGMENTER)
    assert [path.name for path in out.iterdir()] == ["s0_labels.png"]
    assert np.array_equal(np.array(Image.open(out / "s0_labels.png")), found.result.labels)
    assert sum(item["area"] for item in found.result.annotations()) == 96 * 96


def test_a_damaged_image_does_not_take_the_others_with_it(tmp_path, folder, capsys):
    (folder / "s1.png").write_bytes(b"no image")
    out = tmp_path / "out"
    assert main(["predict", str(folder), "--model", CLASSIFIER, "--out", str(out)]) == 2
    assert "1 of 3 images are left out" in (said := capsys.readouterr().err) and "s1.png" in said
    assert [image["file_name"] for image in read(out)["images"]] == [
        str(folder / f"s{i}.png") for i in (0, 2)
    ]
    assert len({row["file"] for row in csv.DictReader((out / "predictions.csv").open())}) == 2
    assert (
        main(f"predict {folder / 's1.png'} --model {CLASSIFIER} --out {tmp_path / 'none'}".split())
        == 2
    )
    assert not (tmp_path / "none").exists()


def test_videos(tmp_path, scenes):
    cv2 = pytest.importorskip("cv2")
    path = tmp_path / "clip.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 10, (96, 96))
    if not writer.isOpened():
        pytest.skip("OpenCV has no encoder here")
    for scene in [*scenes, *scenes[:2]]:
        writer.write(np.array(scene.image)[..., ::-1])
    writer.release()
    out = tmp_path / "out"
    assert (
        main(["predict", str(tmp_path), "--model", CLASSIFIER, "--every", "2", "--out", str(out)])
        == 0
    )
    assert [image["frame"] for image in read(out)["images"]] == [0, 2, 4]
    assert {image["drawing"] for image in read(out)["images"]} == {"clip_overlay.mp4"}
    reader = cv2.VideoCapture(str(out / "clip_overlay.mp4"))
    assert (reader.get(cv2.CAP_PROP_FRAME_COUNT), reader.get(cv2.CAP_PROP_FPS)) == (3, 5)
    (tmp_path / "broken.avi").write_bytes(b"no video")
    with pytest.raises(HypvisionError, match="cannot be read"):
        hypvision.predict(tmp_path / "broken.avi", CLASSIFIER)


# Sources


def test_lists_folders_patterns_and_images_in_memory(tmp_path, folder):
    (tmp_path / "list.txt").write_text(
        "# two scenes\nimages/s1.png\n\n  # images/none.png\nimages/s0.png\n"
    )
    assert [frame.name for frame in find_sources(tmp_path / "list.txt")] == ["s1", "s0"]
    assert [frame.name for frame in find_sources(folder)] == ["s0", "s1", "s2"]
    held = Image.new("RGB", (4, 4))
    frames = list(find_sources([str(folder / "s[12].png"), held]))
    assert [frame.name for frame in frames] == ["s1", "s2", "image"] and frames[-1].open().size == (
        4,
        4,
    )
    frames = find_sources([held, str(folder / "s2.png"), np.zeros((4, 4, 3), np.uint8), folder])
    assert [frame.name.partition("-")[0] for frame in frames][:2] == ["image", "s2"]
    assert [frame.name for frame in frames][3:] == ["s0", "s1"]
    (tmp_path / "empty.txt").write_text("\n")
    for wrong, match in (
        (tmp_path / "empty.txt", "names no images"),
        (tmp_path / "none.txt", "There is no '.*none.txt', the list of images"),
        ([], "No image is given"),
        (tmp_path / "none.png", "There is no image"),
    ):
        with pytest.raises(HypvisionError, match=match):
            find_sources(wrong)


def test_threads_keep_the_order_and_hand_errors_on():
    assert [result for _, result in in_advance(lambda x: x * x, range(50), ahead=3)] == [
        x * x for x in range(50)
    ]

    def fail(x):
        raise HypvisionError("damaged")

    with pytest.raises(HypvisionError, match="damaged"):
        list(in_advance(fail, range(50)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "hcformer_nanno"], "Did you mean hcformer_nano"),
        (["--model", "none.py"], "There is no config or folder 'none.py'"),
        (["--model", "hcformer_small"], "Train it (hypvision train)"),
        (["--model", CLASSIFIER, "--weights", "x.pth"], "leave out --weights"),
        (["--model", CLASSIFIER, "--score", "2"], "from 0 to 1"),
        (["--model", CLASSIFIER, "--write", "jsno"], "Did you mean json"),
        (["--model", DETECTOR, "--classes", "a"], "are fixed"),
        (["--model", DETECTOR, "--max-boxes", "0"], "--max-boxes"),
        (["--model", CLASSIFIER, "--cfg-options", "model.x=1"], "change a config, but"),
        (
            f"--model {RECIPE} --weights {DETECTOR} --cfg-options model.tset_cfg.x=1".split(),
            "test_cfg",
        ),
        *(
            (f"--model {RECIPE} --weights zoo:{DETECTOR} --cfg-options {option}".split(), said)
            for option, said in (
                (
                    "model.test_cfg.rcnn.score_thr=high",
                    "does not work with --cfg-options model.test_cfg.rcnn.score",
                ),
                (
                    "test_dataloader.dataset=3",
                    "does not work with --cfg-options test_dataloader.dataset=3",
                ),
                ("model.test_cfg", "takes KEY=VALUE"),
            )
        ),
    ],
)
def test_mistakes(capsys, folder, tmp_path, words, said):
    assert main(["predict", str(folder), "--out", str(tmp_path / "out"), *words]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), HypvisionError("a broken video")])
def test_what_is_done_is_kept_after_an_error(tmp_path, error):
    image = Image.new("RGB", (8, 8))
    frame = next(iter(find_sources(image)))
    with pytest.raises(type(error)), Writer(tmp_path, ("json", "csv")) as writer:
        writer.add(frame, image, Classes(np.array([0.25, 0.75]), ("a", "b")))
        raise error
    assert len(json.loads((tmp_path / "predictions.json").read_text())["images"]) == 1
    assert (tmp_path / "predictions.csv").read_text().count("\n") > 1


def test_an_image_that_the_model_refuses_costs_the_others_nothing(tmp_path):
    """Of a batch of two, and before that where it is prepared."""

    def prepare(image):
        if image.width == 1:
            raise HypvisionError("one pixel")
        return image

    def find(prepared):
        if any(image.width == 2 for image in prepared):
            raise HypvisionError("two pixels")
        return [Classes(np.array([0.25, 0.75]), ("a", "b"))] * len(prepared)

    paths = [tmp_path / f"{width}.png" for width in (1, 2, 3, 4)]
    for path in paths:
        Image.new("RGB", (int(path.stem), 4)).save(path)
    failed: list[str] = []
    picky = Predictor(prepare, find)
    found = [frame.name for frame, _, _ in results(picky, find_sources(paths), 3, failed)]
    assert found == ["3", "4"]
    assert ["1.png': one pixel" in failed[0], "2.png': two pixels" in failed[1]] == [True] * 2
    with pytest.raises(HypvisionError, match="two pixels"):
        list(results(picky, find_sources(paths[1:])))


@pytest.mark.parametrize("every", [0, -1, 1.5, "2", 2])
def test_frames_to_take_are_checked(every):
    with pytest.raises(
        HypvisionError,
        match=r"every must be a whole number|every \(--every\) is for the frames of videos",
    ):
        hypvision.predict(Image.new("RGB", (32, 32)), CLASSIFIER, every=every)

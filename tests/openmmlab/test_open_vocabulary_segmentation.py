"""The segmentor under mmengine's Runner, on a folder of images and masks; labels beyond 8 bits; the
official metric."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cases import each
from helpers.configs import shipped
from helpers.open_vocabulary import RIVALS
from helpers.open_vocabulary_segmentation import HEAD, SMALL, config, make_folder
from PIL import Image

pytest.importorskip("open_clip")

from hypvision.clip.models import CLIPBundle
from hypvision.clip.radius import text_radii
from hypvision.engine.run import test as run_test
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError
from hypvision.openmmlab.open_vocabulary.segmentation import (
    HyperCLIPSegmentor,
    Load16BitAnnotations,
    OpenVocabIoUMetric,
    OpenVocabPreProcessor,
    OpenVocabSegDataset,
    Resize16Bit,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("own"))


@pytest.mark.parametrize("amp", [pytest.param(False, marks=pytest.mark.slow), True])
def test_train_and_test(folder, tmp_path, amp):
    runner = train(config(folder), tmp_path, amp=amp)
    model = runner.model
    assert model.train_classes == ("cat", "dog", "grass") == model.test_classes
    assert runner.message_hub.get_scalar("train/loss").current() > 0
    assert not any(p.requires_grad for name, p in model.named_parameters()
                   if name.startswith("clip.") and ".hyperclip." not in name)  # fmt: skip
    metrics = run_test(
        config(folder), tmp_path / "iter_2.pth", tmp_path / "test", out=tmp_path / "report"
    )
    assert 0 <= metrics["mIoU"] <= 100 and np.isfinite(metrics["mIoU"])
    written = sorted((tmp_path / "report/label_maps").iterdir())
    assert [path.name for path in written] == ["0.png", "1.png"]
    assert all(set(np.unique(Image.open(path))) <= {0, 1, 2} for path in written)


TRAINED = RIVALS | {
    "hyperclip": ".hyperclip.",
    "hyperclip-paper": ".hyperclip.",
    "catseg": "weight",
}


@pytest.mark.quick("lora")
@pytest.mark.parametrize("kind", TRAINED)
def test_methods_of_the_paper_train_what_they_should(folder, tmp_path, kind):
    """The adapter and the optimiser of the published config on a small CLIP; test, too."""
    from hypvision.engine.config import load_config

    published = load_config(f"{kind}-vitb16_4xb1-80k_coco-stuff164k")
    adapter = published.model.get("adapter")
    if adapter is not None:
        adapter = dict(adapter)
        if "block" in adapter:
            adapter["block"] = 32
    content = config(folder, adapter=adapter, tune=published.model.tune)
    content.optim_wrapper = published.optim_wrapper
    runner = train(content, tmp_path)
    clip = runner.model.clip
    trained = {f".{name}" for name, p in clip.named_parameters() if p.requires_grad}
    assert trained and all(TRAINED[kind] in name for name in trained)
    first = next(p for p in clip.parameters() if p.requires_grad)
    rates = {
        id(p): group["lr"] for group in runner.optim_wrapper.param_groups for p in group["params"]
    }
    wanted = {"catseg": 2e-6, "hyperclip-paper": 1e-5}.get(kind, 1.5e-5)
    assert rates[id(first)] == pytest.approx(wanted)
    metrics = run_test(content, tmp_path / "iter_2.pth", tmp_path / "test")
    assert np.isfinite(metrics["mIoU"])


def test_radii_of_base_and_novel_texts_are_logged(folder, tmp_path):
    content = config(folder, head=dict(type="similarity"), train_classes=["cat", "dog", "grass"])
    content.val_dataloader.dataset.classes = ["cat", "zebra", "grass"]
    runner = train(content, tmp_path)
    text = next(tmp_path.glob("*/*.log")).read_text()
    lines = [line.partition("Radius of ")[2] for line in text.splitlines() if "Radius of " in line]
    assert [line.split(":")[0] for line in lines] == 2 * ["3 base texts", "1 novel texts"]
    assert lines[0] != lines[2]  # training has moved them
    clip = CLIPBundle(runner.model.clip, runner.model.tokenizer, (), ())
    for group, names in (("base", ["cat", "dog", "grass"]), ("novel", ["zebra"])):
        expected = text_radii(clip, names).mean()
        assert runner.message_hub.get_scalar(f"train/radius/{group}").current() == pytest.approx(
            float(expected)
        )


def test_pictures_of_different_sizes_in_a_batch():
    model = HyperCLIPSegmentor(
        **SMALL, train_classes=["cat", "dog"], test_classes=["a", "b", "c"], background_from=1
    )
    model.eval()
    data = dict(
        inputs=[
            torch.randint(0, 255, (3, *size), dtype=torch.uint8) for size in ((40, 60), (70, 30))
        ]
    )
    found = model.test_step(data)
    assert [tuple(sample.pred_sem_seg.data.shape) for sample in found] == [(1, 40, 60), (1, 70, 30)]
    assert max(int(sample.pred_sem_seg.data.max()) for sample in found) <= 1
    single = model.test_step(dict(inputs=data["inputs"][1:]))
    assert torch.equal(single[0].pred_sem_seg.data, found[1].pred_sem_seg.data)
    assert model.extract_feat(torch.rand(1, 3, 64, 64)).shape == (1, 64, 8, 8)
    assert model(torch.rand(1, 3, 64, 64), mode="tensor").shape == (1, 3, 32, 32)
    with torch.no_grad():
        model.clip.visual.conv1.weight.fill_(torch.nan)
    with pytest.raises(HypvisionError, match=r"A probability for the image '0' is not finite"):
        model.test_step(data)  # the best class of NaN is the first


def test_input_is_turned_to_rgb_and_padded():
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    images = [
        torch.arange(3)[:, None, None].expand(3, *size).to(torch.uint8) for size in ((4, 6), (5, 5))
    ]
    samples = [
        SegDataSample(gt_sem_seg=PixelData(data=torch.ones(1, *image.shape[1:])))
        for image in images
    ]
    batch = OpenVocabPreProcessor()(dict(inputs=images, data_samples=samples), training=True)
    assert batch["inputs"].shape == (2, 3, 5, 6) and batch["inputs"][0, :, 0, 0].tolist() == [
        2,
        1,
        0,
    ]
    assert (
        batch["inputs"][0, 0, 4, 0] == 128
        and batch["data_samples"][0].gt_sem_seg.data[0, 4, 0] == 255
    )


def test_labels_beyond_8_bits(tmp_path):
    labels = np.array([[0, 300], [846, 65535]], dtype=np.uint16)
    for name in ("a.tif", "a.png"):
        Image.fromarray(labels).save(tmp_path / name)
        results = dict(seg_map_path=str(tmp_path / name), seg_fields=[], reduce_zero_label=False)
        assert Load16BitAnnotations().transform(results)["gt_seg_map"].tolist() == labels.tolist()
    Image.fromarray(np.array([[0, 1], [2, 255]], dtype=np.uint8)).save(tmp_path / "b.png")
    results = dict(seg_map_path=str(tmp_path / "b.png"), seg_fields=[], reduce_zero_label=True)
    assert Load16BitAnnotations().transform(results)["gt_seg_map"].tolist() == [[255, 0], [1, 254]]
    results = dict(seg_map_path=str(tmp_path / "b.png"), seg_fields=[], label_map={1: 255, 2: 1})
    assert Load16BitAnnotations().transform(results)["gt_seg_map"].tolist() == [[0, 255], [1, 255]]
    # A negative label is none of 8 bits, and no map makes it right.
    Image.fromarray(np.array([[-2, 1]], dtype=np.int32)).save(tmp_path / "d.tif")
    results = dict(seg_map_path=str(tmp_path / "d.tif"), seg_fields=[], label_map={1: 0, 2: 255})
    assert Load16BitAnnotations().transform(results)["gt_seg_map"].tolist() == [[-2, 0]]
    Image.new("RGB", (4, 4)).save(tmp_path / "c.png")
    for name, match in (("c.png", "is a coloured image"), ("d.png", "There is no label map")):
        with pytest.raises(HypvisionError, match=match):
            Load16BitAnnotations().transform(dict(seg_map_path=str(tmp_path / name), seg_fields=[]))


@pytest.mark.parametrize("keep_ratio", [True, False])
def test_wide_labels_are_resized_as_narrow_ones(keep_ratio):
    labels = np.random.default_rng(0).integers(0, 255, (37, 53)).astype(np.uint8)
    found = []
    for offset, kind in ((0, np.uint8), (1000, np.int32)):
        results = dict(
            img=np.zeros((37, 53, 3), np.uint8), gt_seg_map=labels.astype(kind) + kind(offset)
        )
        resize = Resize16Bit((90, 60), keep_ratio=keep_ratio, backend="pillow")
        found.append(resize.transform(results)["gt_seg_map"].astype(np.int64) - offset)
    assert found[0].shape == ((60, 86) if keep_ratio else (60, 90)) and np.array_equal(*found)


def dataset(folder, **changes):
    arguments = dict(classes=["cat", "dog", "grass"], data_root=str(folder / "train"), pipeline=[],
                     data_prefix=dict(img_path="images", seg_map_path="masks"))  # fmt: skip
    return OpenVocabSegDataset(**{**arguments, **changes})


def test_data_set(folder, tmp_path):
    data = dataset(folder)
    assert len(data) == 4 and data.metainfo["classes"] == ("cat", "dog", "grass")
    held_out = dataset(folder, ignore_classes=["dog"])
    assert held_out.metainfo["classes"] == ("cat", "grass")
    assert held_out.get_data_info(0)["label_map"] == {0: 0, 1: 255, 2: 1}
    for match, changes in (
        ("is empty", dict(classes=[])),
        ("more than once", dict(classes=["cat", "cat"])),
        ("ignore_classes has 'cow'", dict(ignore_classes=["cow"])),
        ("ignore_index=2 is the label of 'grass'", dict(ignore_index=2)),
        ("There is no folder", dict(data_root=str(tmp_path))),
        ("has no label map; expected .*0.tif", dict(seg_map_suffix=".tif")),
    ):
        with pytest.raises(HypvisionError, match=match):
            dataset(folder, **changes)


def samples(pairs):
    return [dict(pred_sem_seg=dict(data=torch.tensor(p)[None]),
    gt_sem_seg=dict(data=torch.tensor(g)[None]),
                 img_path=f"{i}.jpg") for i, (p, g) in enumerate(pairs)]  # fmt: skip


def measure(pairs, classes="abcd", **options):
    metric = OpenVocabIoUMetric(**options)
    metric.dataset_meta = dict(classes=tuple(classes))
    metric.process({}, samples(pairs))
    return metric.evaluate(len(pairs))


def test_absent_classes_do_not_count():
    """Counted by hand: a: 3/3, b: 1/2; c is predicted but never there; d is there in ignored pixels
    only."""
    pairs = [([[0, 0], [1, 2]], [[0, 0], [1, 1]]), ([[0, 3]], [[0, 255]])]
    found = measure(pairs, groups=dict(first=["a"], rest=["b", "c"]))
    assert found["mIoU"] == 75.0  # a 3/3, b 1/2
    assert found["mIoU_first"] == 100.0 and found["mIoU_rest"] == 50.0
    assert measure(pairs, absent_classes="zero")["mIoU"] == 50.0  # c counts as 0


def test_metric_mistakes_and_files(tmp_path):
    with pytest.raises(HypvisionError, match="has the label 7, but there are 4 classes"):
        measure([([[0]], [[7]])])
    with pytest.raises(HypvisionError, match="absent_classes must be one of 'ignore', 'zero'"):
        OpenVocabIoUMetric(absent_classes="nan")
    with pytest.raises(HypvisionError, match="group 'x' has 'z'"):
        measure([([[0]], [[0]])], groups=dict(x=["z"]))
    measure(
        [([[0, 300]], [[0, 300]])],
        classes=[str(i) for i in range(400)],
        ignore_index=65535,
        output_dir=str(tmp_path),
    )
    assert np.array(Image.open(tmp_path / "0.png")).tolist() == [[0, 300]]


def test_classes_of_the_wrong_data_are_told(folder, tmp_path):
    content = config(folder)
    content.train_dataloader.dataset.classes = ["cat", "dog"]  # the maps have a third
    with pytest.raises(HypvisionError, match="has the label 2, .*2 classes"):
        train(content, tmp_path)


def test_drawn_scenes():
    from helpers.shapes.segmentation import BASE, CLASSES, NOVEL, ColourShapeDataset
    from mmseg.datasets.transforms import PackSegInputs

    for level, count in (("shape", 17), ("colour-shape", 97)):
        assert len(CLASSES[level]) == count == len(BASE[level]) + len(NOVEL[level])
        words = {word for name in BASE[level] for word in name.split()}
        if level == "colour-shape":  # every word of a held-out pair is seen in another one
            assert {word for name in NOVEL[level] for word in name.split()} <= words
    pipeline = [PackSegInputs()]
    every, base = (
        ColourShapeDataset("val", 20, 64, "shape", which, pipeline=pipeline)
        for which in ("all", "base")
    )
    for i in range(20):
        a, b = (data[i]["data_samples"].gt_sem_seg.data for data in (every, base))
        names = [CLASSES["shape"][int(label)] for label in a.unique()]
        assert ((b == 255).any().item()) == any(name in NOVEL["shape"] for name in names)
        assert (a[b != 255].unique().numel()) == sum(name not in NOVEL["shape"] for name in names)
    with pytest.raises(HypvisionError, match="level must be one of 'shape', 'colour-shape'"):
        ColourShapeDataset(level="kind", pipeline=[])


ROOT = Path(__file__).parents[2]


def test_own_data_in_ten_lines(folder, tmp_path, monkeypatch):
    """The lines of the documentation, saved and run as they stand, on a small CLIP."""
    page = (ROOT / "docs/open-vocabulary.md").read_text().split("<!-- own-data -->")[1]
    lines = page.split("```python\n")[1].split("```")[0]
    assert len(lines.strip().splitlines()) <= 10
    config = tmp_path / "mine.py"
    config.write_text(lines.replace('"configs/', f'"{ROOT}/configs/'))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/mine").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    options = {"train_cfg.max_iters": 2, "train_cfg.val_interval": 2, "model.head": HEAD,
    "model.upsample": (8, 8),
               "model.clip": dict(_delete_=True, name="emoji-t8"), "model.adapter.block": 32,
               "model.resolution": 64, "model.crop": 64, "model.slide": 96,
               "train_dataloader.num_workers": 0, "val_dataloader.num_workers": 0,
               "test_dataloader.num_workers": 0,
               "default_hooks.checkpoint.interval": 2}  # fmt: skip
    from hypvision.engine.config import load_config

    loaded = load_config(config)
    loaded.model.clip = dict(name="emoji-t8")
    options.pop("model.clip")
    loaded.merge_from_dict(options)
    runner = train(loaded, tmp_path / "work")
    assert runner.model.train_classes == ("cat", "dog", "grass")
    assert (tmp_path / "work/iter_2.pth").is_file()
    from hypvision.clip import load_segmenter, segment

    (tmp_path / "dumped.py").write_text(loaded.pretty_text)
    model = load_segmenter(tmp_path / "work/iter_2.pth", load_config(tmp_path / "dumped.py").model)
    assert segment(folder / "val/images/0.jpg", ["cat", "cow"], model).labels.shape == (60, 80)


OTHERS = ("-det", "-panoptic")  # tested in files of their own
CONFIGS = [
    path for path in shipped("hyperclip/*.py") if not any(key in path.stem for key in OTHERS)
]


@each("path", CONFIGS)
def test_configs_are_complete(path):
    """Every config names registered things and class lists that fit its labels; building is too
    large for here."""
    from hypvision.data.classes import load_classes
    from hypvision.engine.config import load_config

    config = load_config(path)
    if path.stem.startswith("clip-"):
        assert config.model.type == "CLIPContrast"
        assert (
            config.train_cfg.max_iters
            == int(path.stem.rpartition("_")[2].rstrip("i"))
            == config.param_scheduler[-1].end
        )
        return
    model = config.model
    assert model.type == "HyperCLIPSegmentor"
    assert ("test_dataloader" in config) == ("80k" not in path.stem)
    if "_test-" in path.stem:
        data = config.test_dataloader.dataset
        assert (
            model.clip.pretrained is None and f"_test-{path.stem.rpartition('-')[2]}" in path.stem
        )
        names = load_classes(data.classes if isinstance(data.get("classes"),
        str) else list(data.get("classes") or
                             load_classes("ade150")))  # fmt: skip
        assert config.test_evaluator.ignore_index == data.get("ignore_index", 255)
        assert config.test_evaluator.ignore_index >= len(names)
        if path.stem.endswith("voc20b"):
            assert (
                len(names) == 21
                and model.background_from == 20
                and len(load_classes(model.test_classes)) == 59
            )
    elif "80k" in path.stem:
        assert model.train_classes == "coco171" and config.train_cfg.max_iters == 80000
        expected = (
            0.05 if "-paper-" in path.stem else 0.01 if path.stem.startswith("catseg") else 0.075
        )
        assert config.optim_wrapper.paramwise_cfg.custom_keys["clip."].lr_mult == expected
        assert model.resolution == (336 if "vitl14" in path.stem else 384)

"""Counts of ``hypvision summary`` against closed forms and published tables."""

import csv
import json

import pytest
import torch
from helpers.cases import each
from PIL import Image
from torch import nn

from hypvision.cli import main
from hypvision.inference import summary
from hypvision.inference.summary import Subject, subject_of, summarise
from hypvision.io.errors import HypvisionError


def rows_of(network, *shape, depth=1):
    found = summarise(Subject(network.eval(), torch.randn(1, *shape)), depth, repeats=0)
    assert found.seconds == [] and found.rate is None
    return {row.module: row for row in found.rows}


def test_a_convolution_and_a_linear_layer():
    network = nn.Sequential(
        nn.Conv2d(6, 8, 3, stride=2, padding=1, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(160, 5),
    )
    rows = rows_of(network, 6, 8, 10)
    pixels = 4 * 5
    assert rows["0"][1:] == ("Conv2d", 8 * 3 * 9 + 8, pixels * 8 * 3 * 9, pixels * 8)
    assert rows["3"][1:] == ("Linear", 160 * 5 + 5, 160 * 5, 5)
    assert rows[""][2:] == tuple(a + b for a, b in zip(rows["0"][2:], rows["3"][2:]))
    assert list(rows) == ["", "0", "3"]  # without those that have nothing to count


class Encoder(nn.Module):
    """A layer whose fast path in evaluation is a single operation."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)])

    def forward(self, x):
        return self.layers[0](x)


def test_attention_on_a_cpu_counts_and_so_do_modules_that_are_never_called():
    length, width, hidden = 7, 16, 32
    rows = rows_of(Encoder(), length, width, depth=3)
    products = length * width * 4 * width  # queries, keys, values, output
    weighing = 2 * length * length * width  # the weights, and the sums that they weigh
    assert rows["layers.0.self_attn"].multiply_adds == products + weighing
    assert (
        rows["layers"].multiply_adds
        == rows[""].multiply_adds
        == products + weighing + 2 * length * width * hidden
    )
    assert rows["layers"].parameters == rows[""].parameters


def test_a_recurrent_layer():
    lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
    first, second = 4 * 5 * (6 + 5), 4 * 5 * (2 * 5 + 5)
    assert rows_of(lstm, 7, 6)[""].multiply_adds == 7 * 2 * (first + second)


# timm's table of DeiT-tiny has the products within attention, too: the weights of its heads, and
# what they weigh.
WITHIN = 12 * (3 * 197**2 + 197 * 192) / 1e6


@pytest.mark.quick("deit_tiny_patch16_224-5.717-1.26-4.118988")
@pytest.mark.parametrize(
    ("name", "parameters", "multiply_adds", "activations"),
    [("resnet50", 25.557, 4.09, 11.11), ("deit_tiny_patch16_224", 5.717, 1.26, 5.97 - WITHIN)],
)
def test_published_counts(name, parameters, multiply_adds, activations):
    whole = summarise(subject_of(name, {}), depth=0, repeats=0).rows[0]
    assert whole.parameters / 1e6 == pytest.approx(parameters, abs=5e-4)
    assert whole.multiply_adds / 1e9 == pytest.approx(
        multiply_adds, rel=0.01
    )  # some count the normalisation, too
    assert whole.activations / 1e6 == pytest.approx(activations, rel=0.005)


def test_shared_and_frozen_parameters():
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    network[1].weight = network[0].weight
    network[0].bias.requires_grad_(False)
    found = summarise(Subject(network, torch.randn(1, 4)), repeats=0)
    assert [row.parameters for row in found.rows] == [16 + 8, 20, 20] and found.trained == 16 + 4


def test_the_speed_is_that_of_the_median_call(monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 11.0, 20.0, 24.0, 30.0, 32.0])
    monkeypatch.setattr(summary.time, "perf_counter", lambda: next(clock))
    seen = []
    subject = Subject(nn.Identity(), torch.randn(1, 3, 8, 8), seen.append)
    found = summarise(subject, batch=6, repeats=3)
    assert found.seconds == [1.0, 4.0, 2.0]
    assert found.rate == 3.0  # the first call, of 9 s, does not count
    assert [len(images) for images in seen] == [1, 1, 1, 6, 6, 6, 6]


def test_sizes_and_mistakes():
    assert subject_of("resnet18", dict(in_chans=1), 64).inputs.shape == (1, 1, 64, 64)
    assert (
        summarise(subject_of("vit_tiny_patch16_224", {}, 64), repeats=0).rows[0].multiply_adds < 1e8
    )  # built for 64
    assert subject_of("hcformer_nano.cifar10", {}).inputs.shape == (1, 3, 32, 32)
    with pytest.raises(HypvisionError, match="no model 'resnet5O'. Did you mean resnet50"):
        subject_of("resnet5O", {})
    with pytest.raises(HypvisionError, match="does not accept --model-args"):
        subject_of("resnet18", dict(patch=3))
    with pytest.raises(
        HypvisionError, match=r"VisionTransformer takes no image of 3 x 64 x 64 .*img_size=N"
    ):
        summarise(
            Subject(subject_of("vit_tiny_patch16_224", {}).network, torch.randn(1, 3, 64, 64)),
            repeats=0,
        )


def summed(capsys, *words):
    assert main(["summary", *words, "--repeats", "0"]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_the_table_and_its_files(tmp_path, capsys):
    said = summed(capsys, "hcformer_nano.cifar10", "--save", str(tmp_path / "a.csv"))
    assert said.startswith("hcformer_nano.cifar10: 4.13 M parameters; one image of 3 x 32 x 32: ")
    assert "a multiply-add\nis two floating-point operations" in said and "speed" not in said
    table = list(csv.DictReader((tmp_path / "a.csv").open()))
    assert [row["module"] for row in table] == ["", "stem", "stages", "norm", "head"]
    assert table[-1] == dict(
        module="head", kind="Linear", parameters="2250", multiply_adds="2240", activations="10"
    )
    assert (
        main(
            (
                f"summary hcformer_nano.cifar10 --batch 2 --repeats 2 --save {tmp_path / 'a.json'}"
            ).split()
        )
        == 0
    )
    assert "images a second (median of 2 calls with 2 images, from" in capsys.readouterr().out
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["input"] == [3, 32, 32] and content["batch"] == 2 and content["per_second"] > 0
    assert [str(row["multiply_adds"]) for row in content["modules"]] == [
        row["multiply_adds"] for row in table
    ]


def test_the_towers_of_a_clip(capsys):
    assert (
        "one image of 3 x 64 x 64" in (said := summed(capsys, "--clip", "emoji-t8"))
        and "visual.transformer" in said
    )
    assert "one text of 77 tokens" in summed(capsys, "--clip", "emoji-t8", "--part", "text")
    whole = said.splitlines()[0].removeprefix("emoji-t8")
    assert (
        summed(capsys, "emoji-t8.scenes", "--depth", "0").splitlines()[0]
        == f"emoji-t8.scenes{whole}"
    )


@each(
    "words, error",
    [
        ([], "one of the arguments MODEL"),
        (["resnet18", "--clip", "emoji-t8"], "not allowed with argument MODEL"),
        (["resnet18", "--save", "a.txt"], "ends in .csv or .json"),
        (["deepseek-small_books"], "describes a LanguageModel, which learns from texts"),
        (["photos", "--model-args", "a=1"], "A config contains the arguments of its model"),
        (["semantic-fpn_hcformer_nano.camvid", "--model-args", "a=1"], "is a segmentation model"),
        (["emoji-t8.scenes", "--model-args", "a=1"], "is a zero-shot model"),
        (["emoji-t8.scenes", "--size", "99"], "takes images of one size"),
    ],
)
def test_mistakes_of_options(capsys, words, error):
    pytest.importorskip("mmengine")
    assert main(["summary", *words]) == 2
    assert error in capsys.readouterr().err


@each(
    "config, parts, size",
    [
        ("photos", ["backbone", "backbone.trunk", "backbone.mapper"], 128),
        (
            "hier_efficientnet-lite0_20e_grocery",
            ["backbone", "neck", "metric_loss", "hier_loss"],
            224,
        ),
        ("semantic-fpn_hcformer-nano_600i_camvid", ["backbone", "neck", "decode_head"], 192),
        ("emoji_detection", ["backbone", "neck", "rpn_head", "roi_head"], 96),
        ("camvid_hyperclip_600i", ["clip", "head"], 64),
        (
            "clip-emoji_1400i",
            ["visual", "visual.conv1", "visual.ln_pre", "visual.transformer", "visual.ln_post"],
            64,
        ),
    ],
)
def test_a_config_of_each_task(capsys, config, parts, size):
    """The parts of a model do all of its work, or nearly."""
    pytest.importorskip("mmdet")
    said = summed(capsys, config, "--size", str(size))
    head, _, table = said.partition("\n\n")
    assert f"one image of 3 x {size} x {size}: " in head
    assert [line.split()[0] for line in table.split("\n\n")[0].splitlines()[1:]] == parts


def test_weights_of_a_segmenter_and_fixed_classes(capsys):
    pytest.importorskip("mmseg")
    assert "decode_head" in summed(capsys, "semantic-fpn_hcformer_nano.camvid")


@pytest.mark.slow
def test_few_images_a_class(capsys):
    """Cached class embeddings count with none of the images; CoCoOp makes new ones for each."""
    pytest.importorskip("mmengine")
    whole = {}
    for config in ("clip-adapter_fs", "cocoop_b2n"):
        said = summed(capsys, config)
        assert "20 classes in place of the data's" in said
        whole[config] = float(said.split(" G multiply-adds")[0].split()[-1])
    assert whole["clip-adapter_fs"] == pytest.approx(17.56, abs=0.05) and whole["cocoop_b2n"] > 20


def test_a_folder_is_measured_by_its_recipe(tmp_path, capsys, monkeypatch):
    pytest.importorskip("mmengine")
    from helpers.engine import make_images

    monkeypatch.chdir(tmp_path)
    make_images(tmp_path / "mine", per_class=2, classes=("blue", "red"))
    assert main(["summary", "mine", "--repeats", "0"]) == 0
    assert "160" in capsys.readouterr().out
    assert main(["summary", "mine", "--repeats", "0", "--model-args", "num_classes=3"]) == 2
    assert "leave out --model-args" in capsys.readouterr().err


@each("command", ["predict mine --model", "explain mine --model", "metric embed mine --model"])
def test_a_folder_in_place_of_a_model_is_told(command, tmp_path, monkeypatch, capsys):
    """Wherever the name of a model is expected."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir(exist_ok=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "mine/a.png")
    (tmp_path / "photos1").mkdir(exist_ok=True)
    assert main([*command.split(), "photos1"]) == 2
    assert "`hypvision train photos1`" in capsys.readouterr().err

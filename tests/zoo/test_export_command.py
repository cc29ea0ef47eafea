"""Exported files compute what PyTorch computes, or there is no file."""

import json

import pytest
import timm
import torch
from helpers.cases import each
from helpers.zoo import NAME
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.pool2d_same import MaxPool2dSame
from torch import nn

import hypvision
import hypvision.zoo.export
from hypvision.cli import main
from hypvision.io.errors import HypvisionError
from hypvision.zoo.export import export_model, export_network


def runner(path, kind, outputs=("logits",)):
    """An exported file as a function of images; of ONNX the outputs have these names."""
    if kind == "torchexport":
        return torch.export.load(path).module()
    session = pytest.importorskip("onnxruntime").InferenceSession(
        path, providers=["CPUExecutionProvider"]
    )
    assert [i.name for i in session.get_inputs()] == ["images"]
    assert [o.name for o in session.get_outputs()] == list(outputs)

    def run(x):
        found = [torch.from_numpy(y) for y in session.run(None, {"images": x.numpy()})]
        return found if len(outputs) > 1 else found[0]

    return run


@pytest.mark.parametrize(
    ("kind", "dynamic"),
    [
        ("onnx", True),
        ("torchexport", True),
        ("torchexport", False),
        pytest.param("onnx", False, marks=pytest.mark.slow),
    ],
)
def test_a_small_network(tmp_path, kind, dynamic):
    if kind == "onnx":
        pytest.importorskip("onnxscript")
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    path = tmp_path / "model"
    assert export_network(model, (3, 32, 32), kind, path, dynamic).difference < 1e-5
    run = runner(path, kind)
    x = torch.randn(5, 3, 32, 32)
    torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
    x = torch.randn(1, 3, 64, 128)
    if dynamic:
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
    else:
        with pytest.raises(Exception, match="[Gg]uard|dimension"):
            run(x)


@pytest.mark.quick("<lambda>1")
@pytest.mark.timeout(
    120
)  # timm's own formula of the padding grows with every layer, until no tracer ends
@pytest.mark.parametrize("block", [lambda k: Conv2dSame(3, 3, k, 2), lambda k: MaxPool2dSame(k, 2)])
def test_same_padding_takes_any_size(tmp_path, block):
    model = nn.Sequential(*(block(kernel) for kernel in (3, 3, 5, 2, 5))).eval()
    assert export_network(model, (3, 64, 64), "torchexport", tmp_path / "model").difference < 1e-5


# Backbone, its arguments, and whether sizes are free.
HIMAPPERS = [
    (
        "deit_tiny_patch16_224",
        dict(img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=2),
        False,
    ),
    ("resnet10t", {}, True),
]


def himapper_file(path, backbone, arguments, **options):
    """A checkpoint as the engine writes it, and its network."""
    torch.manual_seed(0)
    model = timm.create_model(
        "himapper", backbone=backbone, num_classes=5, **arguments, **options
    ).eval()
    torch.save(
        {"state_dict": {f"backbone.{name}": value for name, value in model.state_dict().items()}},
        path,
    )
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torchexport", "onnx"])
@pytest.mark.parametrize(("backbone", "arguments", "free"), HIMAPPERS, ids=["deit", "resnet"])
def test_a_himapper_from_the_file_of_a_training(tmp_path, capsys, kind, backbone, arguments, free):
    model = himapper_file(tmp_path / "epoch_3.pth", backbone, arguments)
    command = ["export", str(tmp_path / "epoch_3.pth"), "--model", "himapper", "--format", kind]
    command += ["--save", str(tmp_path / "out")] + (["--size", "64"] if free else ["--fixed-size"])
    command += [
        "--model-args",
        f"backbone={backbone}",
        *(f"{key}={value}" for key, value in arguments.items()),
    ]
    assert main(command) == 0
    assert "Equal to eager PyTorch" in capsys.readouterr().out
    run = runner(tmp_path / "out", kind)
    for shape in [(5, 3, 96, 160), (1, 3, 64, 64)] if free else [(5, 3, 32, 32), (1, 3, 32, 32)]:
        x = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_a_himapper_that_draws_samples_is_refused(tmp_path):
    backbone, arguments, _ = HIMAPPERS[0]
    himapper_file(tmp_path / "w.pth", backbone, arguments, preset="official")
    given = dict(arguments, backbone=backbone, preset="official")
    with pytest.raises(HypvisionError, match=r"random numbers in eval mode.*eval_noise=mean"):
        export_model(
            tmp_path / "w.pth",
            "torchexport",
            tmp_path / "out.pt",
            False,
            model="himapper",
            arguments=given,
        )
    assert not (tmp_path / "out.pt").exists()
    given["eval_noise"] = "mean"
    export_model(
        tmp_path / "w.pth",
        "torchexport",
        tmp_path / "out.pt",
        False,
        model="himapper",
        arguments=given,
    )


def test_the_size_of_weights_of_the_zoo_is_known(zoo, tmp_path):
    for given in (dict(size=64), dict(arguments=dict(img_size=64))):
        with pytest.raises(HypvisionError, match=f"knows the arguments and the size of '{NAME}'"):
            export_model(NAME, "torchexport", tmp_path / "m.pt", **given)


class Pyramid(nn.Module):
    """A backbone of four convolutions, which takes sides that are multiples of 32."""

    def __init__(self):
        super().__init__()
        strides, channels = (4, 2, 2, 2), (3, 8, 8, 8, 8)
        self.stages = nn.ModuleList(
            nn.Conv2d(a, b, s, s)
            for a, b, s in zip(channels[:-1], channels[1:], strides, strict=True)
        )

    def forward(self, x):
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return tuple(maps)


@pytest.mark.parametrize("kind", ["onnx", "torchexport"])
def test_several_outputs(tmp_path, kind):
    if kind == "onnx":
        pytest.importorskip("onnxscript")
    model, path = Pyramid().eval(), tmp_path / "model"
    assert export_network(model, (3, 64, 64), kind, path, output="map").difference < 1e-5
    x = torch.randn(3, 3, 64, 128)
    got = runner(path, kind, ["map0", "map1", "map2", "map3"])(x)
    for a, b in zip(got, model(x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


class Drifting(nn.Module):
    """Computes something else after it has been exported."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3)) * self.weight


def stuck(y):
    raise AssertionError("Guard failed: x.size()[2] == 40")


@each(
    "wrong, message",
    [
        (lambda y: y * 1.01, "does not compute"),
        (lambda y: y * float("nan"), "does not compute"),
        (lambda y: [y, y], "instead of"),
        (lambda y: y[:1], "instead of"),
        (stuck, "Guard failed.*--fixed-size"),
    ],
)
def test_a_file_that_differs_is_not_kept(tmp_path, monkeypatch, wrong, message):
    model = Drifting().eval()
    assert export_network(model, (3, 32, 32), "torchexport", tmp_path / "good.pt").difference == 0
    write = hypvision.zoo.export._write_torchexport

    def drift(*args):
        run = write(*args)
        return lambda x: wrong(run(x))

    monkeypatch.setitem(hypvision.zoo.export._WRITERS, "torchexport", drift)
    with pytest.raises(HypvisionError, match=message):
        export_network(model, (3, 32, 32), "torchexport", tmp_path / "bad.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["good.pt"]


def test_a_network_that_diverged_is_not_blamed_for_random_numbers(tmp_path):
    model = Drifting().eval()
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    with pytest.raises(HypvisionError, match="diverged"):
        export_network(model, (3, 32, 32), "torchexport", tmp_path / "bad")


class DataDependent(nn.Module):
    def forward(self, x):
        return x.sum((1, 2, 3)) if x.max() > 0 else x.mean((1, 2, 3))


@each(
    "model, size, kind, message",
    [
        (Drifting(), (3, 32, 32), "tflite", "format must be one of"),
        (Drifting(), (3, 40, 40), "torchexport", "--fixed-size"),
        (DataDependent(), (3, 32, 32), "torchexport", "cannot be exported"),
    ],
)
def test_mistakes_are_explained(tmp_path, model, size, kind, message):
    with pytest.raises(HypvisionError, match=message):
        export_network(model, size, kind, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_found_before_the_work(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(
        type(tmp_path), "touch", refuse
    )  # root, as whom containers run tests, may write anywhere
    monkeypatch.setattr(torch.export, "export", lambda *_, **__: pytest.fail("the work began"))
    with pytest.raises(HypvisionError, match="was not written: Permission denied.*another place"):
        export_network(Drifting(), (3, 32, 32), "onnx", tmp_path / "model.onnx")


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(HypvisionError, match="onnxscript.*export"):
        export_network(Drifting(), (3, 32, 32), "onnx", tmp_path / "model")


ABOUT = dict(
    mean=(0.1, 0.2, 0.3),
    std=(0.4, 0.5, 0.6),
    interpolation="bicubic",
    crop_pct=0.9,
    classes=("a", "ü"),
)


@pytest.mark.parametrize(
    ("kind", "half"),
    [
        ("onnx", True),
        ("torchexport", True),
        ("torchexport", False),
        pytest.param("onnx", False, marks=pytest.mark.slow),
    ],
)
def test_a_file_says_what_it_takes_and_gives(tmp_path, kind, half):
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, 2, 1),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 2),
    )
    path, steps, x = tmp_path / "model", [], torch.randn(5, 3, 64, 32)
    export_network(model.eval(), (3, 32, 32), kind, path, tell=steps.append, about=ABOUT, half=half)
    if kind == "onnx":
        onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        said = {
            key: json.loads(value)
            for key, value in session.get_modelmeta().custom_metadata_map.items()
        }
        assert session.get_inputs()[0].shape == ["batch", 3, "height", "width"]
        assert session.get_outputs()[0].shape == ["batch", 2]
        (got,) = session.run(None, {"images": x.numpy()})
        sizes = {t.data_type for t in onnx.load(path).graph.initializer if len(t.dims) > 1}
        assert sizes == {onnx.TensorProto.FLOAT16 if half else onnx.TensorProto.FLOAT}
        assert not any(
            node.metadata_props for node in onnx.load(path).graph.node
        )  # such as paths of this machine
    else:
        files = {"hypvision.json": ""}
        loaded = torch.export.load(path, extra_files=files)
        said = json.loads(files["hypvision.json"])
        got = loaded.module()(x)[0] if half else loaded.module()(x)
        assert {value.dtype for value in loaded.state_dict.values()} == {
            torch.float16 if half else torch.float32
        }
    assert said == json.loads(
        json.dumps({"input_size": (3, 32, 32), "pixel_range": (0, 1), **ABOUT})
    )
    with torch.no_grad():
        torch.testing.assert_close(
            torch.as_tensor(got), model(x), rtol=2e-2, atol=2e-2 if half else 1e-5
        )
    assert next(model.parameters()).dtype == torch.float32  # the network itself stays
    assert all(any(word in step for step in steps) for word in ("Tracing", "Writing", "Comparing"))

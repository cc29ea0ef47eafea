"""What segmenters, detectors, adapted CLIPs, metric learners and language models keep: GPUs,
compilers, processes.

A kind of model is a row of ``helpers/task_models.py``; docs/everywhere.md has the table.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.cases import each

pytest.importorskip("mmdet")
pytest.importorskip("mmseg")
pytest.importorskip("open_clip")
from helpers.devices import any_batch, on_gpu
from helpers.task_models import CLASSES, HEADS, SIZE, TASKS, config_of, detector, segmenter
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import hypvision.openmmlab  # noqa: F401 - mmcv's operations, before mmdet
from hypvision.cli import main
from hypvision.io.errors import HypvisionError

every_task = pytest.mark.parametrize("name", TASKS)
LANGUAGE = ("helm_d", "helm_mice")


def several(value):
    return (value,) if isinstance(value, torch.Tensor) else value


# GPUs, without one


@pytest.fixture
def no_numbers(monkeypatch):
    """Fake tensors have none; these are the lists that may be waited for, see WAITS in
    test_contract.py."""
    monkeypatch.setattr(
        FakeTensor, "tolist", lambda self: [96 // len(self)] * len(self)
    )  # two experts of 48 tokens
    monkeypatch.setattr(
        torch.Tensor, "nonzero", lambda self: torch.arange(len(self), device=self.device)[:, None]
    )
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: pytest.fail("Tensor.cpu"))


# a detector, a language model, a learner on a curved space, both adapters
@pytest.mark.quick("faster_rcnn", "helm_d", "learner-lorentz", "hyperclip-image", "lathadapter")
@every_task
def test_nothing_is_left_on_the_cpu(no_numbers, name):
    model, inputs = TASKS[name].create(), TASKS[name].inputs()
    with FakeTensorMode(allow_non_fake_inputs=True):
        on_gpu(model)
        found = several(TASKS[name].run(model, torch.empty_like(inputs, device="cuda")))
        assert {value.device.type for value in found} == {"cuda"}


def test_the_loss_of_a_segmenter_does_not_wait_for_the_gpu(no_numbers, monkeypatch):
    """But for the accuracy that mmseg reports beside it, which counts the pixels that have a
    label."""
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    monkeypatch.setattr(
        "mmseg.models.decode_heads.decode_head.accuracy", lambda logits, *_, **__: logits.sum()
    )
    model = segmenter().train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        on_gpu(model)
        truth = torch.zeros(1, *SIZE, dtype=torch.long, device="cuda")
        samples = [SegDataSample(gt_sem_seg=PixelData(data=truth)) for _ in range(2)]
        losses = model.loss(torch.empty(2, 3, *SIZE, device="cuda"), samples)
        assert losses["decode.loss_ce"].device.type == "cuda"
        assert losses["decode.loss_ce"].requires_grad


@pytest.mark.parametrize("name", LANGUAGE)
def test_the_loss_of_a_language_model_does_not_wait_for_the_gpu(no_numbers, name):
    model, tokens = TASKS[name].create().train(), TASKS[name].inputs()
    with FakeTensorMode(allow_non_fake_inputs=True):
        on_gpu(model)
        tokens = torch.zeros_like(tokens, device="cuda")
        loss = model(tokens, labels=tokens).loss
        assert loss.device.type == "cuda" and loss.requires_grad


class Takers(TorchDispatchMode):
    """Who makes numbers, or lists of an unknown length, of tensors: what a GPU must be waited
    for."""

    NAMES = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "bincount")

    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        masks = function is torch.ops.aten.index.Tensor and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if masks or any(name in str(function) for name in self.NAMES):
            frame = sys._getframe(1)
            while f"{Path(torch.__file__).parent}/" in frame.f_code.co_filename:
                frame = frame.f_back
            self.found.add(frame.f_code.co_filename)
        return function(*args, **(kwargs or {}))


# Mask R-CNN's loss contains Faster R-CNN's
@each("name", [name for name in HEADS if name != "faster_rcnn"])
def test_in_the_loss_of_a_detector_nobody_but_mmdet_waits(name):
    """Its assigners make lists of the boxes of each image; backbone, neck and operators wait for
    nothing."""
    from mmdet.testing import demo_mm_inputs

    model = detector(name).train()
    data = demo_mm_inputs(2, [[3, *SIZE]] * 2, num_classes=CLASSES, with_mask=name == "mask_rcnn")
    data = model.data_preprocessor(data, True)
    maps = tuple(part.detach() for part in model.extract_feat(data["inputs"]))
    model.extract_feat = lambda x: (
        maps
    )  # what a backbone takes out of tensors on a CPU is test_contract.py's
    with Takers() as takers:
        model(**data, mode="loss")
    libraries = [
        Path(sys.modules[library].__file__).parent for library in ("mmdet", "mmengine", "mmcv")
    ]
    assert takers.found
    assert all(
        any(Path(path).is_relative_to(place) for place in libraries) for path in takers.found
    ), takers.found


# Compilers


@every_task
@pytest.mark.slow
def test_one_graph_forward_and_backward(name):
    if name == "helm_mice":
        pytest.skip(
            "the lengths of the experts' lists are numbers; a layer without experts is in "
            "tests/helm"
        )
    model, inputs = TASKS[name].create(), TASKS[name].inputs()
    expected = several(TASKS[name].run(model, inputs))
    sum(value.sum() for value in expected).backward()
    gradients = {
        key: value.grad.clone() for key, value in model.named_parameters() if value.grad is not None
    }
    model.zero_grad()
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(lambda x: TASKS[name].run(model, x), fullgraph=True, backend=counter)
    found = several(run(any_batch(inputs)))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    sum(value.sum() for value in found).backward()
    run(any_batch(torch.cat([inputs, inputs])))
    assert counter.frame_count == 1  # for all batch sizes
    with torch.no_grad():  # adapters keep what they computed without gradients
        torch.testing.assert_close(several(run(inputs)), expected, rtol=1e-3, atol=1e-4)
    own = dict(model.named_parameters())
    assert gradients
    for key, expected in gradients.items():
        scale = expected.abs().max().item()
        torch.testing.assert_close(
            own[key].grad, expected, rtol=1e-2, atol=1e-3 * scale + 1e-5, msg=key
        )


# Smaller


@each("name", TASKS)
def test_int8_works_on_linear_layers(name):
    """PyTorch's dynamic quantisation; weights that are joined, adapted or of rows of points stay as
    they are."""
    model, inputs = TASKS[name].create(), TASKS[name].inputs()
    with torch.no_grad():
        expected = several(TASKS[name].run(model, inputs))
        small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
        found = several(TASKS[name].run(small, inputs))
    exchanged = sum(
        isinstance(layer, torch.ao.nn.quantized.dynamic.Linear) for layer in small.modules()
    )
    assert (exchanged == 0) == name.startswith("helm")
    for got, wanted in zip(found, expected, strict=True):
        assert (got - wanted).norm() < 0.1 * wanted.norm()


# Exports, and the hub, of what has no record in the zoo


@pytest.mark.parametrize(
    ("name", "kind"), [("segmenter", "_Segmenter"), ("retinanet", "DetectorNetwork")]
)
def test_the_whole_of_a_training_is_exported_by_its_config(tmp_path, monkeypatch, name, kind):
    """What is exported; that the file computes the same is tested for records of the zoo."""
    model, config = TASKS[name].create(), config_of(name)
    config.default_scope = "mmseg" if name == "segmenter" else "mmdet"
    config.custom_imports = dict(imports=["hypvision.openmmlab"])
    config.dump(tmp_path / "mine.py")
    torch.save(dict(state_dict=model.state_dict()), tmp_path / "mine.pth")
    given = {}

    def export_network(network, size, *options):
        given.update(network=network, size=size, options=options)
        return "Done."

    monkeypatch.setattr("hypvision.tasks.exporting.export_network", export_network)
    (tmp_path / "out").touch()
    command = f"export {tmp_path / 'mine.pth'} --model {tmp_path / 'mine.py'} --format onnx".split()
    assert main([*command, "--save", str(tmp_path / "out"), "--size", "64"]) == 0
    assert type(given["network"]).__name__ == kind
    assert given["size"] == (3, 64, 64)
    assert not given["network"].training
    for key, value in given["network"].model.state_dict().items():
        assert torch.equal(value, model.state_dict()[key]), key


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens).logits


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGE)
def test_a_language_model_is_exported_with_any_batch_and_length(name):
    model, tokens = TASKS[name].create(), TASKS[name].inputs()
    free = {
        0: torch.export.Dim("batch", min=1),
        1: torch.export.Dim("length", min=2, max=model.config.max_seq_len),
    }
    with torch.no_grad():
        program = torch.export.export(
            Logits(model).eval(), (tokens,), dynamic_shapes=(free,)
        ).module()
        for shape in ((1, 2), (3, 17), (2, 100)):
            tokens = torch.randint(0, 259, shape)
            torch.testing.assert_close(program(tokens), model(tokens).logits, rtol=1e-4, atol=1e-4)


# Several processes


@pytest.mark.parametrize(
    "scope, kind", [("mmseg", "HyperCLIPSegmentor"), ("mmengine", "FewShotCLIP")]
)
def test_models_without_fixed_classes_are_not_exported(monkeypatch, tmp_path, scope, kind):
    """Whether or not its config says how large the images are."""
    from hypvision.tasks import exporting

    (tmp_path / "mine.py").write_text(f"default_scope = '{scope}'\nmodel = dict(type='{kind}')\n")
    monkeypatch.setattr(
        exporting, "trained_model", lambda *_: SimpleNamespace(open_vocabulary=True)
    )
    monkeypatch.setattr(exporting, "import_extensions", lambda *_: None)
    with pytest.raises(HypvisionError, match=f"describes a {kind}.*that have fixed classes"):
        exporting.export_trained(tmp_path / "mine.py", "mine.pth", "onnx", tmp_path / "mine.onnx")

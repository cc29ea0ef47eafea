"""What every family in timm's registry keeps: the hub, exports, GPUs, compilers, processes.

A property is a test here, a family a row of ``helpers/families.py``; docs/everywhere.md has the
table.
"""

import ast
import json
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from helpers.cases import each
from helpers.devices import any_batch, on_gpu
from helpers.families import FAMILIES
from helpers.processes import run_in_two
from helpers.syntax import tree_of_file
from timm.models import save_for_hf
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import hypvision
from hypvision.cli import main
from hypvision.optim import RiemannianAdamW, param_groups

every_family = pytest.mark.parametrize("name", FAMILIES)
# Fake tensors are slow: one of each code base in `make test`, all in `make test-all`.
FIRST = ("hcformer", "hecnn", "himapper-cnn")
fast_and_slow = [
    pytest.param(name, marks=[] if name in FIRST else pytest.mark.slow) for name in FAMILIES
]
every_family_in_time = pytest.mark.parametrize("name", fast_and_slow)
OWN = Path(hypvision.__file__).parent


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HYPVISION_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


# The hub


def head_of(model):
    names = model.pretrained_cfg["classifier"]
    return tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))


def is_same(model, weights, without=()):
    own = model.state_dict()
    kept = {name for name in weights if not name.startswith(without)} if without else set(weights)
    assert kept <= set(own), sorted(kept - set(own))[:3]
    wrong = [name for name in kept if not torch.equal(own[name], weights[name])]
    assert not wrong, wrong[:3]


# a network around timm's, and the classes of the networks of our own
@pytest.mark.quick("himapper-cnn", "hcformer", "hecnn", "hcnn")
@every_family
def test_the_hub_gives_back_exact_weights(tmp_path, monkeypatch, name):
    family = FAMILIES[name]
    model = family.create()
    weights, head = model.state_dict(), head_of(model)
    save_for_hf(model, tmp_path, safe_serialization=True)
    monkeypatch.setattr(
        "timm.models._hub.hf_hub_download", lambda repo_id, filename, **_: str(tmp_path / filename)
    )
    address = f"local-dir:{tmp_path}"
    for again in (
        timm.create_model(place, pretrained=True) for place in (address, "hf-hub:someone/something")
    ):
        is_same(again, weights)
        torch.testing.assert_close(again.eval()(family.images()), model(family.images()))
    tuned = timm.create_model(address, pretrained=True, num_classes=5)
    is_same(tuned, weights, head)
    assert tuned.eval()(family.images()).shape == (2, 5)
    # A learned curvature that only the head has goes with it.
    is_same(
        timm.create_model(address, pretrained=True, num_classes=0),
        weights,
        (*head, "head_manifold."),
    )
    maps = timm.create_model(address, pretrained=True, features_only=True)
    own = {key.removeprefix("model."): value for key, value in maps.state_dict().items()}
    shared = [key for key in own if key in weights]
    assert len(shared) > 0.3 * len(weights) and all(
        torch.equal(own[key], weights[key]) for key in shared
    )
    file = dict(file=str(tmp_path / "model.safetensors"), num_classes=7)
    for how in ("pretrained_cfg", "pretrained_cfg_overlay"):
        if "." in family.model and how == "pretrained_cfg":
            continue  # a tag is a config already
        again = timm.create_model(
            family.model, True, **{how: file}, **{"num_classes": 7, **family.arguments}
        )
        is_same(again, weights)
    written = json.loads((tmp_path / "config.json").read_text())
    assert {"classifier", "first_conv"} <= set(written["pretrained_cfg"])


def test_what_is_pushed_can_be_fine_tuned(tmp_path):
    from hypvision.checkpoints.index import builtin_index
    from hypvision.zoo.release import hub_folder

    index = builtin_index()
    name = "hcformer_nano.cifar10"
    for place in ("folder", "hub"):
        folder = tmp_path / place
        if place == "folder":
            assert main(["zoo", "push", name, "--out", str(folder)]) == 0
        else:
            folder.mkdir(parents=True)
            hub_folder(index, index.get(name), folder)
        expected = hypvision.load(name).state_dict()
        is_same(timm.create_model(f"local-dir:{folder}", pretrained=True), expected)
        is_same(
            timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=5),
            expected,
            ("head.",),
        )
        grey = timm.create_model(f"local-dir:{folder}", pretrained=True, in_chans=1)
        assert grey.get_parameter("stem.0.weight").shape[1] == 1


# The registry


@pytest.mark.slow
def test_every_registered_model_can_be_built_without_arguments():
    with torch.device("meta"):
        for name in timm.list_models(["hc*", "hec*", "*himapper*"]):
            assert timm.create_model(name).num_classes == 1000, name


def test_the_model_that_takes_any_backbone_has_one_of_its_own():
    with torch.device("meta"):
        assert timm.create_model("himapper").num_classes == 1000


# GPUs, without one


@pytest.mark.quick("hcformer")
@every_family_in_time
def test_nothing_is_left_on_the_cpu(monkeypatch, name):
    """In evaluation with fake tensors: one that meets another device raises, and so does a number
    that it waits for."""
    family = FAMILIES[name]
    model = family.create()
    with FakeTensorMode(allow_non_fake_inputs=True):
        images = torch.empty(2, 3, family.side, family.side, device="cuda")
        logits = on_gpu(model)(images)
        assert logits.device.type == "cuda" and logits.shape == (2, 7)


# Where what a training step is made of takes numbers out of tensors, and why that is no harm on a
# GPU. A file that is no part of a step stands as a whole.
WAITS = {
    "clip/adapters/base.py: Adapter.fingerprint": "of what is written with an adapter",
    "clip/features.py": "of features that are kept, before the training",
    "clip/open_vocabulary.py: equal_pairs": "of classes that are set, outside of training",
    "clip/prompting/heads.py: TipAdapter.search": "of evaluation",
    "clip/prompting/prompted.py: CoOp._places": "of the tokenizer's numbers, on the CPU",
    "clip/radial/measure.py": "of evaluation",
    "clip/radial/metrics.py": "of evaluation",
    "clip/radial/retrieval.py": "of evaluation",
    "clip/radial/traversal.py": "of evaluation",
    "clip/spaces.py: Hyperboloid.__repr__": "of what is printed",
    "clip/radial/weights.py": "of files",
    "clip/radius.py: radius_statistics": "of what is logged after an evaluation",
    "clip/segmentation/segment.py: segment": "of a prediction",
    "clip/towers.py: _batches": "the lengths of the texts, once a call",
    "clip/towers.py: encode_packed": "the lengths of the texts, in the host's memory",
    "geometry/manifold.py: Manifold._load_from_state_dict": "of weights that are loaded",
    "geometry/manifold.py: Manifold._value": "of what is shown and of evaluation",
    "geometry/manifolds.py: Lorentz.check_point": "of the reason that a check gives",
    "geometry/manifolds.py: PoincareBall.check_point": "of the reason that a check gives",
    "helm/experts.py: _sizes": "the tokens of each expert, once a layer with experts",
    "helm/experts.py: grouped_linear": "the tokens of each expert, once a layer with experts, "
    "compiled",
    "helm/experts.py: _backward": "the tokens of each expert, once a layer with experts, compiled",
    "helm/head.py: token_losses": "the positions that have a label, once a step",
    "helm/huggingface.py: _check_columns": "columns of a cache that a caller gives",
    "helm/model.py: document_lengths": "the lengths of packed documents, once a step",
    "losses/graph.py: graph_map": "a metric",
    "losses/graph.py: mean_rank": "a metric",
    "losses/graph.py: average_distortion": "a metric",
    "losses/hier.py: _Noise.__call__": "of numbers drawn on the CPU",
    "losses/hier.py: _TripletLoss.forward": "on a CPU",
    "losses/supcon.py: SupConLoss.forward": "the sizes of classes, once a step",
    "models/hcformer_checkpoint.py": "of files",
    "models/lorentz_resnet_checkpoint.py": "of files",
    "openmmlab/open_vocabulary/panoptic.py: merge_segments": "of a prediction",
    "openmmlab/open_vocabulary/panoptic.py: panoptic_counts": "a metric",
    "openmmlab/open_vocabulary/panoptic.py: OpenVocabPanopticMetric.process": "a metric",
    "openmmlab/label_maps.py: LabelMapIoUMetric.process": "a metric",
    "openmmlab/tree_metric.py: TreeIoUMetric.process": "a metric",
    "openmmlab/hyperbolic_head.py: PixelLogits.published": "of a file",
    "nn/residual.py: LorentzResidual._load_from_state_dict": "when weights are loaded",
    "openmmlab/open_vocabulary/segmentation.py: OpenVocabIoUMetric.compute_metrics": "a metric",
    "openmmlab/ops.py: _attend": "the sizes of the maps, twice a layer with deformable attention: "
    "mmcv's function asks",
    "openmmlab/predicting.py": "of predictions",
    "optim/adam.py: RiemannianAdam._foreign": "a counter that lies on the CPU, unless capturable",
    "optim/adam.py: RiemannianAdam._points": "a counter that lies on the CPU, unless capturable",
    "optim/base.py: check_options": "on a CPU",
    "optim/base.py: RiemannianOptimizer._sort": "a counter that lies on the CPU",
    "optim/clip.py: clip_grad_norm_": "in the message of an error",
    "tasks/class_hierarchy.py": "of evaluation",
    "tasks/familiar.py": "of features that were collected, when a checkpoint is written",
    "tasks/classification_metrics.py: MultiLabelAP._measure_classes": "a metric",
    "tasks/own_folder.py: _set_parts": "of labels, before a run",
    "tasks/word_disk.py": "of embeddings, after their training",
    "tasks/probe.py": "of features that were collected, before a training",
    "tasks/classification.py: ImageClassifier.forward": "of predictions",
    "tasks/classification.py: per_image": "metrics",
    "tasks/classification_metrics.py: TopKAccuracy.of_scores": "a metric",
    "tasks/classification_metrics.py: CalibrationError.of_scores": "a metric",
    "tasks/classification_metrics.py: GroupAccuracy.of_scores": "a metric",
    "tasks/classification_metrics.py: CalibrationError.compute_metrics": "a metric",
    "tasks/contrastive.py: CLIPContrast.forward": "of predictions",
    "tasks/contrastive.py: _boxes": "how many boxes of UNCHA count, once a step",
    "tasks/contrastive_metrics.py: HierarchicalErrors.compute_metrics": "a metric",
    "tasks/contrastive_metrics.py: cone_metrics": "a metric",
    "tasks/contrastive_metrics.py: HierarchicalErrors.of_scores": "a metric",
    "openmmlab/label_maps.py: LabelMapIoUMetric.intersect_and_union.count": "a metric",
    "tasks/contrastive_metrics.py: ImageTextRetrieval.process": "a metric",
    "tasks/classification_metrics.py: MultiLabelAP.of_scores": "a metric",
    "tasks/classification.py: PredictionPainterHook.after_test_iter": "of a prediction",
    "clip/hyperbolic.py: HyperbolicCLIP.normalisation": "after loading a file",
    "clip/hyperbolic_checkpoint.py: _check_pixels": "of files",
    "clip/segmentation/official.py: _check_constant": "of files",
    "models/himapper_checkpoint.py: _is_of_swin": "of files",
    "tasks/publishing.py: normalisation_of": "of files",
    "openmmlab/sample_checks.py: _labels_in_maps": "arrays of the data, before the first batch",
    "tasks/embedding.py": "of predictions",
    "tasks/few_shot.py: FewShotCLIP.forward": "of predictions",
    "tasks/frozen_features.py": "of features, before a training, and of metrics, after it",
    "tasks/few_shot.py: FitProbeHook.before_train": "of features that were collected, before a run",
    "tasks/few_shot.py: FitProbeHook._vectors": "of features that were collected, before a run",
    "tasks/few_shot.py: FixedLengthSampler.__iter__": "an order, drawn on the CPU",
    "tasks/few_shot.py: accuracy": "of evaluation",
    "tasks/few_shot_figures.py": "of figures",
    "tasks/language.py: LanguageModel.forward": "of predictions",
    "tasks/language.py: ExpertLoadHook._before_step": "which experts had tokens, once a step",
    "tasks/language.py: ExpertLoadHook.after_train_iter": "what is logged of all experts, once a "
    "step",
    "tasks/language_models.py: generate": "of generated text",
    "openmmlab/detection_report.py: curve_parts": "a report",
    "openmmlab/detection_report.py: match_boxes": "a report",
    "openmmlab/segmentation_report.py": "a report",
    "openmmlab/patch_probe.py: patches": "of features that are fitted, before the training",
    "tasks/classification_report.py: ClassificationReport.report": "a report",
    "tasks/classification_report.py: MultiLabelReport.process": "a report",
    "tasks/classification_report.py: curve_parts": "NumPy's arrays",
    "tasks/classification_report.py: class_part": "a report",
    "tasks/classification_report.py: confusion_parts": "a report",
    "tasks/classification_report.py: distance_part": "a report",
    "tasks/closures.py: draw_closure": "of results",
    "tasks/search.py: search": "of results",
    "tasks/zero_shot.py": "of evaluation",
    "tasks/metric_learning.py: MetricLearner.forward": "of predictions",
    "tasks/metric_learning.py: _predictor.find": "of predictions",
    "tasks/metric_learning_metrics.py": "metrics",
    "tasks/publishing.py: _used_words": "of files",
    "tasks/radial.py: RadialTuning.forward": "of predictions",
}
PACKAGES = (
    *("geometry", "compat", "nn", "losses", "optim", "helm", "models", "clip", "tasks"),
    "openmmlab",
)
NUMBERS = ("item", "cpu", "numpy", "tolist", "nonzero")


def takers(node, names=()):
    """Functions that call one of :data:`NUMBERS`, by their dotted names."""
    for child in ast.iter_child_nodes(node):
        inner = (
            (*names, child.name) if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else names
        )
        if (
            isinstance(child, ast.Call)
            and isinstance(child.func, ast.Attribute)
            and child.func.attr in NUMBERS
        ):
            yield ".".join(inner)
        yield from takers(child, inner)


def test_functions_that_read_values_of_tensors_are_listed():
    found = set()
    files = [file for package in PACKAGES for file in (OWN / package).rglob("*.py")]
    for path in [file for file in files if file.name != "checkpoint.py"]:
        where = path.relative_to(OWN).as_posix()
        names = set(takers(tree_of_file(path)))
        found |= {where} if names and where in WAITS else {f"{where}: {name}" for name in names}
    assert found == set(WAITS)


@pytest.mark.quick("hcformer")
@every_family_in_time
def test_a_training_step_does_not_wait_for_the_gpu(monkeypatch, name):
    """Forward, losses and the optimiser with fake tensors, which have no numbers to give."""
    monkeypatch.setattr(
        torch.Tensor, "cpu", lambda self: pytest.fail("Tensor.cpu in a training step")
    )
    family = FAMILIES[name]
    model = family.create().train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        images, labels = (
            torch.empty(2, 3, family.side, family.side, device="cuda"),
            torch.tensor([0, 1], device="cuda"),
        )
        on_gpu(model)
        if hasattr(model, "forward_with_hierarchy"):
            out = model.forward_with_hierarchy(images)
            loss = F.cross_entropy(out["logits"], labels) + sum(out["losses"].values())
        else:
            loss = F.cross_entropy(model(images), labels)
        assert loss.device.type == "cuda" and loss.requires_grad
        for parameter in model.parameters():  # autograd itself would look for the GPU
            parameter.grad = torch.empty_like(parameter)
        optimizer = RiemannianAdamW(
            param_groups(model, weight_decay=0.05), lr=1e-3, capturable=True
        )
        for _ in range(2):
            optimizer.step()


# Half precision


@torch.no_grad()
@each("dtype, close", [(torch.float16, 0.01), (torch.bfloat16, 0.08)])
@each("name", FAMILIES)
def test_whole_models_in_half_precision(name, dtype, close):
    """``model.half()`` and ``model.bfloat16()`` compute what the model does, but for rounding."""
    torch.manual_seed(0)
    model = FAMILIES[name].create()
    images = FAMILIES[name].images()
    expected = model(images)
    found = model.to(dtype)(images.to(dtype))
    assert found.dtype == dtype
    assert (found.float() - expected).norm() < close * expected.norm()


# Compilers and other runtimes


@every_family
@pytest.mark.slow
def test_one_graph_forward_and_backward(name):
    family = FAMILIES[name]
    model = family.create()
    expected = model(family.images())
    expected.sum().backward()
    gradients = {
        key: value.grad.clone() for key, value in model.named_parameters() if value.grad is not None
    }
    model.zero_grad()
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(model, fullgraph=True, backend=counter)
    got = run(any_batch(family.images()))
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
    got.sum().backward()
    for key, value in model.named_parameters():
        if key in gradients:
            scale = gradients[key].abs().max().item()
            torch.testing.assert_close(
                value.grad, gradients[key], rtol=1e-2, atol=1e-3 * scale + 1e-5, msg=key
            )
    run(any_batch(family.images(5)))
    assert counter.frame_count == 1  # for all batch sizes


@every_family
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["onnx", "torchexport"])
def test_exports_compute_the_same(tmp_path, name, kind):
    from hypvision.zoo.export import export_network

    if kind == "onnx":
        pytest.importorskip("onnxruntime")
    family = FAMILIES[name]
    free = name.startswith("hc") or name == "himapper-cnn"  # transformers' positions fix the size
    report = export_network(
        family.create(), (3, family.side, family.side), kind, tmp_path / "model", free
    )
    assert report.difference < 1e-3 and len(report.shapes) == (4 if free else 2)


# timm's own ViT of any size cannot take an empty batch.
@each("name", [name for name in FAMILIES if name != "himapper-vit"])
def test_an_empty_batch_has_empty_logits(name):
    """As the last batch of a loader that filters images may be."""
    model = FAMILIES[name].create()
    images = FAMILIES[name].images(1)[:0]
    for mode in (True, False):
        assert model.train(mode)(images).shape == (0, model.num_classes)


@each("name", FAMILIES)
def test_int8_works_on_linear_layers(name):
    """PyTorch's dynamic quantisation; layers on the hyperboloid have weights of their own and stay
    as they are."""
    family = FAMILIES[name]
    model = family.create()
    with torch.no_grad():
        expected = model(family.images())
        small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
        found = small(family.images())
    exchanged = sum(
        isinstance(layer, torch.ao.nn.quantized.dynamic.Linear) for layer in small.modules()
    )
    assert exchanged == sum(type(layer) is nn.Linear for layer in model.modules())
    assert (exchanged == 0) == name.startswith(("hcnn", "hecnn", "hexformer"))
    assert (found - expected).norm() < 0.1 * expected.norm()


# Several processes

TWO = """
import torch, torch.distributed as dist
import torch.nn.functional as F
from helpers.families import FAMILIES
from hypvision.optim import RiemannianAdamW, param_groups
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
for name, family in FAMILIES.items():
    model = DistributedDataParallel(family.create().train())
    optimizer = RiemannianAdamW(param_groups(model, weight_decay=0.05), lr=1e-3)
    for step in range(3):
        torch.manual_seed(10 * step + rank)
        images, labels = torch.randn(2, 3, family.side, family.side), torch.tensor([0, 1])
        logits = model(images)
        loss = F.cross_entropy(logits[0] if isinstance(logits, tuple) else logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for key, value in model.module.named_parameters():
        both = [torch.empty_like(value) for _ in range(2)]
        dist.all_gather(both, value.detach().contiguous())
        assert torch.equal(*both), (name, key)
"""


@pytest.mark.slow
def test_two_processes_train_every_family(tmp_path):
    run_in_two(TWO, tmp_path, __file__)

"""Layers, losses, adapters, hosts of prompts and methods of manifolds on a GPU that is not there.

Fake tensors have a device and no numbers: one that meets another device raises, and so does what
waits for a number.

The distances of points look for pairs too close to be told from round-off, the one list that a GPU
waits for (hypvision.geometry.lorentz.distances).
"""

import inspect
from functools import partial

import pytest
import torch
from helpers import clip_models
from helpers.cases import each
from helpers.devices import on_gpu
from helpers.fewshot import NAMES, bundle
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import hypvision.losses
import hypvision.nn as layers
from hypvision.clip import adapters
from hypvision.clip.prompting import HOSTS, Host, build_host
from hypvision.clip.towers import encode_text
from hypvision.geometry import Euclidean, Lorentz, PoincareBall, Product


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: pytest.fail("Tensor.cpu"))


def gpu(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="cuda")


def devices(value):
    """The devices of all tensors in what a function gave."""
    if isinstance(value, torch.Tensor):
        return {value.device.type}
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, (list, tuple)) or not isinstance(
        value, (str, float, int, bool, type(None))
    ):
        return set().union(*map(devices, value)) if value else set()
    return set()


# Layers

SPACE = Lorentz(1.0, learnable=True)
TOKENS, MAPS, LINE = (2, 5, 8), (2, 8, 6, 6), (2, 8, 6)
LAYERS = {
    "BusemannLinear": ((8, 4, SPACE), TOKENS),
    "BusemannMLR": ((8, 4, SPACE), TOKENS),
    "ChangeManifold": ((SPACE, Lorentz(2.0)), TOKENS),
    "ClusterMixer": ((8, 2, 4), (2, 8, 8, 8)),
    "EfficientLorentzConv1d": ((8, 4, 3, SPACE), LINE),
    "EfficientLorentzConv2d": ((8, 4, 3, SPACE), MAPS),
    "EfficientLorentzLinear": ((8, 4, SPACE), TOKENS),
    "HyperbolicEmbedding": ((10, 8, SPACE), None),
    "LorentzAttention": ((8, 2, SPACE), TOKENS),
    "LorentzAvgPool2d": ((2, SPACE), MAPS),
    "LorentzBatchNorm1d": ((8, SPACE), TOKENS),
    "LorentzBatchNorm2d": ((8, SPACE), MAPS),
    "LorentzConv1d": ((8, 4, 3, SPACE), LINE),
    "LorentzConv2d": ((8, 4, 3, SPACE), MAPS),
    "LorentzConvTranspose2d": ((8, 4, 3, SPACE), MAPS),
    "LorentzGlobalAvgPool2d": ((SPACE,), MAPS),
    "LorentzLayerNorm": ((8,), TOKENS),
    "LorentzLinear": ((8, 4, SPACE), TOKENS),
    "LorentzMLR": ((8, 4, SPACE), TOKENS),
    "LorentzRMSNorm": ((8,), TOKENS),
    "LorentzResidual": ((SPACE,), TOKENS),
    "OnSpace": ((nn.Linear(8, 4), SPACE), (2, 5, 9)),
    "OnTangent": ((nn.Linear(8, 4), SPACE), (2, 5, 9)),
    "ToLorentz": ((SPACE,), MAPS),
    "ToTangent": ((SPACE,), TOKENS),
}


def modules_of(package):
    public = {name: getattr(package, name) for name in package.__all__}
    return {
        name
        for name, value in public.items()
        if inspect.isclass(value) and issubclass(value, nn.Module)
    }


def test_every_layer_has_a_row():
    assert set(LAYERS) == modules_of(layers)


@each("name", LAYERS)
def test_layers(name):
    arguments, shape = LAYERS[name]
    layer = getattr(layers, name)(*arguments)
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.zeros(2, 5, dtype=torch.long, device="cuda") if shape is None else gpu(*shape)
        inputs = (x, x) if name == "LorentzResidual" else (x,)
        on_gpu(layer)
        for mode in (True, False):
            assert devices(layer.train(mode)(*inputs)) == {"cuda"}
    SPACE.log_c = Lorentz(1.0, learnable=True).log_c  # on_gpu moved the one that all rows share


# Losses

WAIT = {
    "MetricLoss": "the library's own losses and miners count pairs",
    "SupConLoss": "for the number of samples of each class, which is a size, once a step",
}
CHAINS = ((6, 8), (4, 3), (8,), (6, 8))


def losses():
    ball = PoincareBall(0.1)
    return {
        "EntailmentConeLoss": (hypvision.losses.EntailmentConeLoss(), CHAINS),
        "MERUEntailmentLoss": (hypvision.losses.MERUEntailmentLoss(), CHAINS),
        "RadialLoss": (hypvision.losses.RadialLoss(), CHAINS),
        "HIERLoss": (
            hypvision.losses.HIERLoss(ball, 8, num_proxies=5),
            ((6, 8), (6,), [(4, 3), (4, 3)]),
        ),
        "ProxyAnchorLoss": (hypvision.losses.ProxyAnchorLoss(3, 8), ((6, 8), (6,))),
        "BusemannPrototypeLoss": (hypvision.losses.BusemannPrototypeLoss(), ((6, 8), (6,), (3, 8))),
        "IdealPrototypes": (hypvision.losses.IdealPrototypes(3, 8), ((6, 8),)),
        "PrototypeHead": (hypvision.losses.PrototypeHead(4, 3, 8), ((6, 4),)),
        "PrototypeMetricLoss": (hypvision.losses.PrototypeMetricLoss(3, 8, ball), ((6, 8), (6,))),
        "ProxyNCALoss": (hypvision.losses.ProxyNCALoss(3, 8), ((6, 8), (6,))),
    }


def test_every_loss_has_a_row():
    assert set(losses()) | set(WAIT) == modules_of(hypvision.losses)


@each("name", list(losses()))
def test_losses(name):
    loss, shapes = losses()[name]
    with FakeTensorMode(allow_non_fake_inputs=True):
        on_gpu(loss)
        inputs = [
            tuple(gpu(*part, dtype=torch.long) for part in shape)
            if isinstance(shape, list)
            else gpu(*shape, dtype=torch.long if number == 1 else torch.float32)
            for number, shape in enumerate(shapes)
        ]
        assert devices(loss(*inputs)) == {"cuda"}


# Adapters


@pytest.mark.parametrize(
    "options",
    [dict(type="hyperclip", block=16), dict(type="lathadapter", attributes=3)],
    ids=lambda options: options["type"],
)
def test_adapters(options):
    model = adapters.inject(clip_models.openai_clip(), options)
    images, tokens = clip_models.random_images(model), clip_models.prompts()
    with FakeTensorMode(allow_non_fake_inputs=True):
        on_gpu(model)
        features = model.encode_image(gpu(*images.shape))
        # Otherwise it asks for the longest text, once.
        text = encode_text(model, gpu(*tokens.shape, dtype=torch.long), cut=False)
        found = [features, text]
        if adapters.is_injected(model, "lathadapter"):
            found.append(
                adapters.adapter_of(model, "lathadapter").module(features, text, 10.0).logits
            )
        assert devices(found) == {"cuda"}


# Hosts of prompts

HOST_OPTIONS = {
    "coop": dict(tokens=3),
    "cocoop": dict(tokens=2),
    "deep-vision": dict(tokens=3, depth=2),
    "deep-language": dict(tokens=2, depth=2),
    "ivlp": dict(text=2, vision=3, depth=2),
    "linear-probe": dict(classes=4),
    "maple": dict(tokens=2, depth=2),
    "promptkd": dict(tokens=2, depth=2),
    "promptsrc": dict(text=2, vision=3, depth=2, templates=2),
    "tip-adapter": dict(keys=8, classes=4, tune=True),
}


# tokens in both towers, and a teacher
@pytest.mark.quick("promptsrc", "promptkd")
@pytest.mark.parametrize("name", sorted(HOSTS))
def test_hosts_of_prompts(monkeypatch, name):
    # Otherwise it asks for the longest text, once.
    monkeypatch.setattr(
        "hypvision.clip.prompting.hosts.encode_text", partial(encode_text, cut=False)
    )
    teacher = dict(teacher=build_host(bundle(seed=5), "zeroshot")) if name == "promptkd" else {}
    host = build_host(bundle(), name, **HOST_OPTIONS.get(name, {}), **teacher)
    host.set_classes(NAMES)
    images = clip_models.random_images(host.clip)
    with FakeTensorMode(allow_non_fake_inputs=True):
        on_gpu(host)
        monkeypatch.setattr(
            Host, "tokens", lambda _, sentences: gpu(len(sentences), 20, dtype=torch.long)
        )
        for mode in (True, False):
            out = host.train(mode)(gpu(*images.shape), gpu(len(images), dtype=torch.long))
            assert devices([out.logits(), *out.losses.values()]) == {"cuda"}


# Manifolds

KINDS = {
    "Lorentz": lambda: Lorentz(1.0, learnable=True),
    "PoincareBall": lambda: PoincareBall(1.0, learnable=True),
    "Euclidean": Euclidean,
    "Product": lambda: Product((Lorentz(1.0, learnable=True), 2), (Euclidean(), 2)),
    "Product of equals": lambda: Product((Lorentz(1.0, learnable=True), 2), (Lorentz(2.0), 2)),
}
# Functions that give numbers, change the manifold, or take the name of another; checks wait for the
# device on purpose.
NO_TENSORS = {
    "check_point", "check_point_on_manifold", "check_vector_on_tangent",
    "assert_check_point_on_manifold", "assert_check_vector_on_tangent", "clamp_", "max_distance",
    "by_factor",
}  # fmt: skip
LACKING = {"Product": {"half_aperture"}}  # a Euclidean factor has no cones
JOINED = dict(
    boost="xy", unboost="xy", mobius_add="xy", mobius_sub="xy", logmap="xy", egrad2rgrad="xv",
    expmap="xu", retr="xu", proju="xv", projx="x", transp="xyv",
)  # fmt: skip


def arguments(manifold, name, key, point, vector):
    """A fake tensor, or a number, for an argument of this name; points and vectors have these
    widths."""
    planes, ball = name in ("hyperplane_logits", "ganea_logits"), isinstance(manifold, PoincareBall)
    if key == "a":
        return (
            gpu(2, vector)
            if name == "ganea_logits"
            else gpu(2)
            if planes
            else gpu(3, vector)
            if ball
            else gpu(3)
        )
    if key in ("x", "xs", "y", "mean") or (
        key == "p" and not planes and name not in ("busemann", "horosphere_dist")
    ):
        return gpu(3, point)
    if key in ("u", "v", "w", "z", "p"):
        return gpu(2, vector) if planes else gpu(3, vector)
    return dict(
        r=lambda: gpu(2) if planes else gpu(3, 1), weights=lambda: gpu(2, 3),
        matrix=lambda: gpu(4, 4), t=lambda: gpu(3, 1), fn=lambda: torch.tanh, tau=lambda: gpu(3),
        std=lambda: 1.0, c_new=lambda: gpu(), n=lambda: 4,
        points=lambda: [gpu(3, point), gpu(3, point)], sizes=lambda: [1, 3],
        space=lambda: gpu(3, 4),
    )[key]()  # fmt: skip


def call(manifold, name):
    """The devices of what a method gives; a vector may be as wide as a point or, at the origin, as
    the space."""
    method, wrong = getattr(manifold, name), []
    names = [
        key
        for key, value in inspect.signature(method).parameters.items()
        if value.default is value.empty and value.kind is value.POSITIONAL_OR_KEYWORD
    ]
    names = list(JOINED[name]) if isinstance(manifold, Product) and name in JOINED else names
    if name in ("origin", "random", "random_normal"):
        size = (
            ()
            if name == "origin" and isinstance(manifold, Product)
            else (4,)
            if name == "origin"
            else (3, 4)
        )
        return devices(method(*size, device="cuda"))
    product = isinstance(manifold, Product)
    extra = sum(each.extra for each in manifold.manifolds) if product else manifold.extra
    for point, vector in ((4 + extra, 4 + extra), (4 + extra, 4), (4, 4)):
        values = [arguments(manifold, name, key, point, vector) for key in names]
        if name.endswith("_transp"):
            values.append(gpu(3, vector))
        # Frechet means look after each further step whether they have arrived.
        options = dict(steps=1) if name == "frechet_mean" else {}
        try:
            return devices(method(*values, **options))
        except (ValueError, RuntimeError, IndexError, TypeError) as error:
            wrong.append(str(error))
    raise AssertionError(f"{name}({', '.join(names)}): {' | '.join(wrong)}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "Lorentz",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "Lorentz"),
    ],
)
def test_methods_of_manifolds(kind):
    manifold, wrong = KINDS[kind](), {}
    public = [
        name
        for name, value in inspect.getmembers(type(manifold), callable)
        if not name.startswith("_")
        and not hasattr(nn.Module, name)
        and name not in NO_TENSORS
        and name not in LACKING.get(kind, ())
    ]
    assert len(public) > 35
    with FakeTensorMode(allow_non_fake_inputs=True):
        on_gpu(manifold)
        for name in public:
            try:
                found = call(manifold, name)
            except Exception as error:
                wrong[name] = str(error)[:400]
                continue
            if found != {"cuda"}:
                wrong[name] = found
    assert not wrong, wrong

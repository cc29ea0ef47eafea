"""What ``torch.compile`` takes as one graph for any batch size, with the values and gradients of
eager execution: losses, adapters, CLIPs in all spaces, hyperbolic segmentation heads. A part of
every family by inductor, the compiler that users take. And no operation of the networks is one that
onnxruntime lacks, whoever exports them.

A member is a row here; a new one fails the first tests until it has a row, or a reason why it has
none. Backbones are rows of ``helpers/families.py`` (test_contract.py), task models of
``helpers/task_models.py`` (test_tasks.py), optimisers are in ``tests/optim/test_compiled.py``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

pytest.importorskip("mmseg")
pytest.importorskip("open_clip")
from helpers import clip_models
from helpers.cases import each
from helpers.exported import as_exported
from helpers.families import FAMILIES
from helpers.task_models import clip

import hypvision.losses as losses
import hypvision.models
from hypvision.clip import adapters, spaces
from hypvision.clip.towers import encode_text, find_towers
from hypvision.engine.compiling import blocks_of
from hypvision.geometry import Lorentz, PoincareBall, lorentz, poincare
from hypvision.helm import Helm, preset, rows
from hypvision.helm.attention import Context


class Row(NamedTuple):
    """What is compiled: a function of a batch's tensors, what it learns, and its batches of n
    samples."""

    call: Callable[..., Any]
    batch: Callable[[int], list[Tensor]]
    learned: nn.Module | None = None


@pytest.fixture(autouse=True)
def seeded():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    return [tensor for part in values for tensor in tensors(part)]


def outputs_and_gradients(row: Row, call: Callable[..., Any], batch: list[Tensor]) -> list[Tensor]:
    """What ``call`` gives for a batch, and the gradients of the batch and of what is learned."""
    inputs = [x.detach().requires_grad_(x.is_floating_point()) for x in batch]
    leaves = [x for x in inputs if x.requires_grad]
    leaves += [p for p in row.learned.parameters() if p.requires_grad] if row.learned else []
    outputs = [out for out in tensors(call(*inputs)) if out.is_floating_point()]
    torch.manual_seed(1)
    total = sum((out * torch.randn_like(out)).sum() for out in outputs)
    if not total.requires_grad:
        return outputs
    found = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return [*outputs, *found]


def check_same(row: Row, call: Callable[..., Any], batch: list[Tensor]) -> None:
    """``call`` gives the outputs and gradients of eager execution."""
    expected = outputs_and_gradients(row, row.call, batch)
    found = outputs_and_gradients(row, call, batch)
    for ours, theirs in zip(found, expected, strict=True):
        scale = theirs.detach().abs().max().item() if theirs.numel() else 0.0
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * scale + 1e-6)


def check(row: Row) -> None:
    """Compile one graph for batches of two sizes, with the numbers of eager execution."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(row.call, fullgraph=True, backend=counter)

    def any_size(*inputs: Tensor) -> Any:
        for x, other in zip(inputs, row.batch(6)):
            grown = [i for i in range(x.dim()) if x.shape[i] != other.shape[i]]
            torch._dynamo.mark_dynamic(x, grown)
        return compiled(*inputs)

    for size in (4, 8):
        check_same(row, any_size, row.batch(size))
    assert counter.frame_count == 1


# Losses


def ball_points(count: int, dim: int = 8) -> Tensor:
    return poincare.expmap0(0.3 * torch.randn(count, dim), 0.1)


def points(count: int, dim: int = 8) -> Tensor:
    return lorentz.expmap0(0.5 * torch.randn(count, dim), 1.0)


def labels(count: int) -> Tensor:
    """Two samples of each class."""
    return torch.arange(count) // 2 % 4


def embedded(count: int) -> list[Tensor]:
    return [torch.randn(count, 8), labels(count)]


def chains(count: int) -> list[Tensor]:
    given, original = (F.normalize(torch.randn(3 * count, 8), dim=-1) for _ in range(2))
    triples = torch.randint(3 * count, (count, 3))
    return [given, triples, F.normalize(torch.randn(8), dim=0), original]


def module_row(loss: nn.Module, batch: Callable[[int], list[Tensor]]) -> Row:
    return Row(loss, batch, loss)


def triplets(count: int) -> list[Tensor]:
    drawn, noise = torch.randint(count, (3 * count, 3)), torch.randn(2, 3 * count, 5)
    return [torch.rand(count, 5), drawn, noise]


def hier() -> Row:
    loss = losses.HIERLoss(PoincareBall(0.1), 8, num_proxies=5)

    def call(x: Tensor, numbers: Tensor, rows: Tensor, others: Tensor, *noise: Tensor) -> Tensor:
        return loss(x, numbers, (rows, others), noise)

    def batch(count: int) -> list[Tensor]:
        _, rows, noise = triplets(count)
        others = torch.randint(5, (6, 3))
        return [ball_points(count), labels(count), rows, others, noise, torch.randn(2, 6, 5)]

    return Row(call, batch, loss)


def pairs(count: int) -> list[Tensor]:
    return [points(count) for _ in range(4)]


def boxes(count: int) -> list[Tensor]:
    return [
        *(points(n) for n in (count, count, 2 * count, 2 * count)),
        torch.arange(2 * count) // 2,
    ]


def trees(count: int) -> list[Tensor]:
    return [lorentz.expmap0(0.5 * torch.randn(count, nodes, 8), 1.0) for nodes in (4, 2, 1)]


SPACE = Lorentz(0.8, learnable=True)
LOSSES: dict[str, Callable[[], Row]] = {
    **{
        name: partial(lambda name: module_row(getattr(losses, name)(), chains), name)
        for name in ("EntailmentConeLoss", "MERUEntailmentLoss", "RadialLoss")
    },
    "HIERLoss": hier,
    "ProxyAnchorLoss": lambda: module_row(losses.ProxyAnchorLoss(4, 8), embedded),
    "ProxyNCALoss": lambda: module_row(losses.ProxyNCALoss(4, 8), embedded),
    "BusemannPrototypeLoss": lambda: module_row(
        losses.BusemannPrototypeLoss(),
        lambda count: [*embedded(count), F.normalize(torch.randn(4, 8), dim=-1)],
    ),
    "IdealPrototypes": lambda: module_row(
        losses.IdealPrototypes(4, 8), lambda count: [torch.randn(count, 8)]
    ),
    "PrototypeHead": lambda: module_row(
        losses.PrototypeHead(5, 4, 8), lambda count: [torch.randn(count, 5)]
    ),
    "PrototypeMetricLoss": lambda: module_row(
        losses.PrototypeMetricLoss(4, 8, Lorentz(0.8)), embedded
    ),
    "SupConLoss": lambda: module_row(losses.SupConLoss(), embedded),
    "MetricLoss": lambda: module_row(  # Hyp-ViT's loss
        losses.MetricLoss(
            "SupConLoss", PoincareBall(0.1), 4, 8, distance="hyperbolic", reduction="sum"
        ),
        lambda count: [ball_points(count), labels(count)],
    ),
    "box_to_whole_contrast": lambda: Row(
        losses.box_to_whole_contrast, lambda count: [torch.randn(count, count), points(count)]
    ),
    "compositional_entailment": lambda: Row(
        lambda *given: losses.compositional_entailment(*given, SPACE), pairs, SPACE
    ),
    "contrastive_loss": lambda: Row(
        losses.contrastive_loss, lambda count: [torch.randn(count, count)]
    ),
    "entailment": lambda: Row(
        lambda x, y: losses.entailment(x, y, SPACE), lambda count: pairs(count)[:2], SPACE
    ),
    "gaussian_prior_kl": lambda: Row(
        losses.gaussian_prior_kl, lambda count: [torch.randn(count, 8) for _ in range(2)]
    ),
    "lca_triplet_loss": lambda: Row(
        lambda dist, drawn, noise: losses.lca_triplet_loss(dist, drawn, gumbel=noise), triplets
    ),
    "tree_contrastive_loss": lambda: Row(
        lambda *levels: losses.tree_contrastive_loss(levels, SPACE), trees, SPACE
    ),
    "uncertain_entailment": lambda: Row(
        lambda *given: losses.uncertain_entailment(*given, SPACE), boxes, SPACE
    ),
}  # fmt: skip
NO_LOSS = {
    "chain_triples": "numbers of a whole training",
    "clip_to_ball": "a part of HIERLoss",
    "cone_half_aperture": "a part of EntailmentConeLoss",
    "hyperbolic_distance": "a part of MetricLoss",
    "mutual_neighbours": "of drawing triplets",
    "radial_angle": "a part of RadialLoss",
    "rescale_radii": "a part of HIERLoss on the hyperboloid",
    "uncertainty": "a part of uncertain_entailment",
}


def slowly(names: Any, *quick: str) -> list[Any]:
    return [pytest.param(n, marks=[] if n in quick else pytest.mark.slow) for n in names]


def test_every_loss_has_a_row():
    assert set(LOSSES) | set(NO_LOSS) == set(losses.__all__)


@pytest.mark.parametrize("name", slowly(LOSSES, "contrastive_loss", "PrototypeHead"))
def test_losses(name):
    check(LOSSES[name]())


# Backbones


def family(name: str) -> str:
    """The code base of a name in timm's registry: ``hcformer`` of ``hcformer_nano.cifar10``."""
    return "himapper" if "himapper" in name else name.split("_")[0]


def test_every_registered_backbone_has_a_family():
    """Those of timm's registry that this package made."""
    own = {
        name
        for name in timm.list_models()
        if timm.model_entrypoint(name).__module__.startswith(hypvision.models.__name__)
    }
    assert {family(name) for name in own} == {family(row.model) for row in FAMILIES.values()}


# Adapters and models of CLIP

ADAPTERS = {
    "bottleneck": dict(width=8),
    "hyperclip": dict(block=16),
    "lathadapter": dict(attributes=3),
    "lora": dict(rank=4),
    "vpt": dict(tokens=3),
}
TEXTS = dict(context_length=20, vocab_size=100, width=32, heads=2, layers=1)
CLIPS = {
    "Sphere": None,
    "Hyperboloid": dict(geometry="lorentz", box_scales=True),  # UNCHA's, and without boxes MERU's
    "ExteriorAngles": dict(geometry="lorentz", angles=True),  # ATMG's
    "HyperboloidProduct": dict(geometry="product"),  # PHyCLIP's
}


def images_and_texts(count: int) -> list[Tensor]:
    return [torch.randn(count, 3, 64, 64), clip_models.prompts(count)]


def adapted(name: str) -> Row:
    model = clip(dict(type=name, **ADAPTERS[name]))

    def call(images: Tensor, tokens: Tensor) -> list[Tensor]:
        features = model.encode_image(images)
        texts = encode_text(model, tokens, cut=False)
        if name != "lathadapter":
            return [features, texts]
        return [adapters.adapter_of(model, name).module(features, texts, 10.0).logits]

    return Row(call, images_and_texts, model)


def test_every_adapter_has_a_row():
    assert set(ADAPTERS) == set(adapters.ADAPTERS)


@pytest.mark.parametrize("name", slowly(ADAPTERS))
def test_adapters(name):
    check(adapted(name))


def contrast(name: str) -> Row:
    """A CLIP's towers, space and loss."""
    options = CLIPS[name]
    if options is None:
        model = clip_models.openai_clip(text_layers=1, vision_layers=1)
    else:
        vision = dict(image_size=64, layers=1, width=32, patch_size=16, head_width=16)
        model = clip_models.HyperbolicCLIP(32, vision, TEXTS, **options)

    def call(images: Tensor, tokens: Tensor) -> list[Tensor]:
        space = spaces.space_of(model)
        x = space.embed(model.encode_image(images), "image")
        y = space.embed(encode_text(model, tokens, cut=False), "text")
        found = list(losses.contrastive_loss(space.logits(x, y, model.logit_scale.exp())))
        if options is not None:
            found.append(losses.entailment(y, x, space.manifold).mean())
        return found

    return Row(call, images_and_texts, model)


def test_every_space_of_clip_has_a_row():
    public = [value for value in vars(spaces).values() if isinstance(value, type)]
    kinds = [kind for kind in public if spaces.Space in kind.__mro__[1:]]
    assert set(CLIPS) == {kind.__name__ for kind in kinds if kind is not spaces.Lifted}


@pytest.mark.parametrize("name", slowly(CLIPS))
def test_models_of_clip(name):
    check(contrast(name))


# Hyperbolic segmentation heads

HEADS = {
    "FCNHead": dict(in_channels=6, num_convs=1),
    "FPNHead": dict(in_channels=[6, 6], in_index=[0, 1], feature_strides=[4, 8]),
    "DepthwiseSeparableASPPHead": dict(
        in_channels=6, in_index=1, dilations=(1, 2), c1_in_channels=6, c1_channels=4
    ),
    "SegformerHead": dict(in_channels=[6, 6], in_index=[0, 1]),
    "UPerHead": dict(in_channels=[6, 6], in_index=[0, 1], pool_scales=(1, 2)),
}


def hyperbolic_heads() -> dict[str, type[nn.Module]]:
    from hypvision.openmmlab.hyperbolic_head import HyperbolicHead

    return {kind.__mro__[2].__name__: kind for kind in HyperbolicHead.__subclasses__()}


def head(name: str) -> Row:
    """A head in evaluation, since statistics of two batches are no numbers to compare."""
    settings = dict(channels=8, num_classes=5, norm_cfg=dict(type="BN"), dim=3, learn_c=True)
    model = hyperbolic_heads()[name](**settings, **HEADS[name]).eval()

    def call(first: Tensor, second: Tensor) -> Tensor:
        return model([first] if name == "FCNHead" else [first, second])

    return Row(call, lambda n: [torch.randn(n, 6, 8, 8), torch.randn(n, 6, 4, 4)], model)


def test_every_hyperbolic_head_has_a_row():
    assert set(HEADS) == set(hyperbolic_heads())


@pytest.mark.parametrize("name", slowly(HEADS))
def test_hyperbolic_heads(name):
    check(head(name))


# By exporters


def network(name: str) -> Row:
    return Row(FAMILIES[name].create(), lambda count: [FAMILIES[name].images(count)])


NETWORKS: dict[str, Callable[[], Row]] = {
    **{name: partial(network, name) for name in FAMILIES},
    **{name: partial(adapted, name) for name in ADAPTERS},
    **{name: partial(contrast, name) for name in CLIPS},
    **{name: partial(head, name) for name in HEADS},
}


@each("name", NETWORKS)
def test_onnxruntime_has_the_operations(name):
    row = NETWORKS[name]()
    batch = row.batch(2)
    with as_exported():
        row.call(*batch)


# By inductor


def inside(name: str, part: Callable[[nn.Module], nn.Module], training: bool = True) -> Row:
    """A part of a network, on what it sees there."""
    network = FAMILIES[name].create().train(training)
    layer = part(network)
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, given: seen.extend(given))
    network(FAMILIES[name].images(4))
    hook.remove()
    inputs = [x.detach() for x in seen]
    return Row(layer, lambda _: inputs, layer)


def block(number: int) -> Callable[[nn.Module], nn.Module]:
    return lambda network: blocks_of(network)[number]


def lhier() -> Row:
    """LHIER, whose proxies are points of a hyperboloid with a learned curvature."""
    space = Lorentz(0.8, learnable=True)
    loss = losses.HIERLoss(space, 8, num_proxies=5)
    batch = hier().batch

    def call(x: Tensor, numbers: Tensor, rows: Tensor, others: Tensor, *noise: Tensor) -> Tensor:
        return loss(space.expmap0(x), numbers, (rows, others), noise)

    return Row(call, batch, loss)


def adapted_block() -> Row:
    """A block of CLIP whose weights HyperCLIP maps."""
    layer = find_towers(clip(dict(type="hyperclip", **ADAPTERS["hyperclip"])))[0].blocks[0]
    return Row(layer, lambda n: [torch.randn(n, 5, layer.attn.embed_dim)], layer)


def adapted_logits() -> Row:
    """LatHAdapter on the features of images and texts."""
    model = clip(dict(type="lathadapter", **ADAPTERS["lathadapter"]))
    adapter = adapters.adapter_of(model, "lathadapter").module
    width = model.text_projection.shape[1]

    def batch(count: int) -> list[Tensor]:
        return [F.normalize(torch.randn(n, width), dim=-1) for n in (count, 3)]

    return Row(lambda images, texts: adapter(images, texts, 10.0).logits, batch, adapter)


def decoder_layer() -> Row:
    """A layer of HELM-D."""
    layer = Helm(preset("helm_d_tiny")).layers[0]
    layout = layer.layout

    def batch(count: int) -> list[Tensor]:
        space = F.pad(torch.randn(count, 6, layout.size), (0, layout.width - layout.size))
        return [rows.lift(space, layout.n)]

    return Row(lambda x: layer(x, x, Context())[:2], batch, layer)


INDUCTOR: dict[str, Callable[[], Row]] = {
    "hcformer": lambda: inside("hcformer", block(0)),
    "hcnn": lambda: inside("hcnn", block(1)),
    "hecnn": lambda: inside("hecnn", block(1)),
    "lvit": lambda: inside("lvit", block(0)),
    "hexformer": lambda: inside("hexformer", block(0)),
    "himapper": lambda: inside("himapper-cnn", lambda network: network.mapper, training=False),
    "hyperclip": adapted_block,
    "lathadapter": adapted_logits,
    "radial": LOSSES["RadialLoss"],
    "meru": LOSSES["entailment"],
    "hycoclip": LOSSES["compositional_entailment"],
    "lhier": lhier,
    "helm": decoder_layer,
    "segmentation": lambda: head("FCNHead"),
}


def test_every_family_has_a_part():
    assert {family(row.model) for row in FAMILIES.values()} <= set(INDUCTOR)


@pytest.mark.slow
@pytest.mark.parametrize("name", INDUCTOR)
def test_inductor_computes_the_same(name):
    row = INDUCTOR[name]()
    check_same(row, torch.compile(row.call, fullgraph=True), row.batch(4))

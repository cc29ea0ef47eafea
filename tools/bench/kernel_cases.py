"""Steps whose kernels :mod:`bench.kernels` counts: Hi-Mapper, HELM, adapters of CLIP, losses and
further layers.

Each stands beside its Euclidean twin: the same step without the hyperbolic part, or with the flat
form of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import open_clip
import torch
from references.hier import reference_hier_loss
from torch import Tensor, nn

from bench.fewshot import CLASSES
from bench.kernels import Count, count, differentiated, layer, leaf, network
from hypvision import compat
from hypvision.clip import adapters
from hypvision.clip.models import CLIPBundle
from hypvision.clip.spaces import Hyperboloid, Sphere
from hypvision.clip.towers import encode_image, encode_text, find_towers
from hypvision.geometry import Euclidean, Lorentz, PoincareBall
from hypvision.helm import Helm, preset
from hypvision.helm.attention import Context
from hypvision.losses import (
    EntailmentConeLoss,
    HIERLoss,
    MERUEntailmentLoss,
    MetricLoss,
    RadialLoss,
    SupConLoss,
    clip_to_ball,
    compositional_entailment,
    contrastive_loss,
    entailment,
    tree_contrastive_loss,
)
from hypvision.models.timm_models import create_model
from hypvision.nn import (
    BusemannLinear,
    BusemannMLR,
    EfficientLorentzLinear,
    HyperbolicEmbedding,
    LorentzAttention,
    LorentzGlobalAvgPool2d,
    LorentzLayerNorm,
    LorentzLinear,
    LorentzResidual,
    ToLorentz,
    ToTangent,
)
from hypvision.tasks.few_shot import FewShotCLIP

Step = Callable[[], object]
Make = Callable[[], Step]
META = torch.device("meta")


class Case(NamedTuple):
    """A row of the table.

    Attributes:
        step, twin: make the step, and its Euclidean twin.
        added: count what the step has beyond its twin.
        most: largest number of kernels.
    """

    step: Make
    twin: Make | None = None
    added: bool = False
    most: int | None = None

    def counts(self) -> tuple[Count, Count | None]:
        """Of the step, and of the twin."""
        ours = count(self.step())
        if self.twin is None:
            return ours, None
        other = count(self.twin())
        if self.added:
            ours = Count(
                ours.kernels - other.kernels, ours.bytes - other.bytes, ours.waits - other.waits
            )
        return ours, other


def summed(loss: Callable[..., Any], *inputs: Tensor) -> Step:
    """A loss, or parts of one by name, of these inputs, forward and backward."""

    def step() -> None:
        parts = loss(*inputs)
        total = sum(parts.values()) if isinstance(parts, dict) else parts
        total.backward()

    return step


def on_meta(make: Callable[[], Any]) -> Any:
    """What is made, in training, without numbers."""
    with META:
        return make().train()


def whole(*shape: int) -> Tensor:
    """Whole numbers without values: labels, or rows of a table."""
    return torch.empty(shape, dtype=torch.long, device=META)


def curved() -> Lorentz:
    """A hyperboloid whose curvature is learned."""
    with META:
        return Lorentz(1.0, learnable=True)


# --------------------------------------------------------------------------------------------------
# Hi-Mapper

BACKBONES = ("resnet50", "deit_tiny_patch16_224", "swin_tiny_patch4_window7_224")


def mapped_with_losses(name: str) -> Step:
    """A step of a network with Hi-Mapper and the losses of its tree."""
    model = on_meta(lambda: create_model(f"himapper_{name}"))
    images = torch.empty(64, 3, 224, 224, device=META)

    def step() -> None:
        out = model.forward_with_hierarchy(images)
        (out["logits"].sum() + model.aux_loss(out)).backward()

    return step


HIMAPPER = {
    **{
        f"Hi-Mapper, added to {name}, 64 x 3 x 224 x 224": Case(
            lambda name=name: network(f"himapper_{name}", 224),
            lambda name=name: network(name, 224),
            added=True,
            most=300,
        )
        for name in BACKBONES
    },
    "Hi-Mapper with the losses of its tree, added to resnet50": Case(
        lambda: mapped_with_losses("resnet50"),
        lambda: network("resnet50", 224),
        added=True,
        most=517,
    ),
}

# --------------------------------------------------------------------------------------------------
# HELM


def helm_layer(name: str, **changes: Any) -> Step:
    """The last layer but one of a HELM, or of its Euclidean counterpart: all layers but the last
    are alike."""
    model = on_meta(lambda: Helm(preset(name, vocab_size=512, n_layers=2, **changes)))
    block = model.layers[0]
    x = leaf(1, 512, model.layout.width)
    h = leaf(1, 512, model.layout.width)
    block.attn.rotary(0, 512, META)  # its tables are kept

    def step() -> None:
        out, normed, routing = block(x, h, Context())
        total = out.sum() + normed.sum()
        (total if routing is None else total + routing.balance).backward()

    return step


def helm_loss(name: str) -> Step:
    """The loss of a small decoder on rows of packed documents, some of whose tokens have no
    label."""
    model = on_meta(lambda: Helm(preset(name, vocab_size=512)))
    tokens = whole(2, 64)
    model(tokens)  # the tables of its rotations are kept

    def step() -> None:
        model(tokens, labels=tokens, sequence_id=whole(2, 64)).loss.backward()

    return step


FLAT = dict(geometry="euclidean", pad=1, fused=False)
MIXED = dict(n_dense_layers=0)
HELM = {
    "HELM-D, a layer, 512 tokens": Case(
        lambda: helm_layer("helm_d_115m"), lambda: helm_layer("helm_d_115m", **FLAT), most=154
    ),
    "HELM-MiCE, a layer, 512 tokens": Case(
        lambda: helm_layer("helm_mice_120m", **MIXED),
        lambda: helm_layer("helm_mice_120m", **MIXED, **FLAT),
        most=479,
    ),
    "HELM-D and its loss, 3 layers, 2 rows of packed documents": Case(
        lambda: helm_loss("helm_d_tiny"), most=385
    ),
}

# --------------------------------------------------------------------------------------------------
# Adapters of CLIP

CLIP_NAME = "ViT-B-16-quickgelu"


def clip_model() -> nn.Module:
    """ViT-B/16 without numbers."""
    return open_clip.create_model(CLIP_NAME, None, device="meta")


def clip_step(adapter: str | None) -> Step:
    """A step of both towers of CLIP: their frozen projections get the gradient, or the adapter of
    them."""
    model = clip_model().train().requires_grad_(False)
    if adapter is None:
        for tower in find_towers(model):
            for block in tower.blocks:
                tower.frozen(block).requires_grad_(True)
    else:
        adapters.inject(model, adapter)
    images = torch.empty(4, 3, 224, 224, device=META)
    tokens = whole(171, 77)

    def step() -> None:
        image = encode_image(model, images)
        text = encode_text(model, tokens, cut=False)
        (image.sum() + text.sum()).backward()

    return step


def fewshot_step(host: str, lath: bool) -> Step:
    """A step of a few-shot method on 50 classes, maybe with LatHAdapter."""
    bundle = CLIPBundle(
        clip_model().eval(), open_clip.get_tokenizer(CLIP_NAME), (128.0,) * 3, (64.0,) * 3
    )
    classes = CLASSES[:50]
    adapter = dict(type="lathadapter", classes=len(classes)) if lath else None
    model = on_meta(lambda: FewShotCLIP(bundle, dict(name=host), adapter))
    model.set_classes(classes)
    if host == "promptsrc":
        model.host.frozen_texts()  # once in a training
    images = torch.empty(4, 3, 224, 224, dtype=torch.uint8, device=META)
    return summed(lambda: model(images, whole(4), mode="loss"))


HOSTS = ("coop", "maple", "promptsrc")
CLIP = {
    "HyperCLIP, added to ViT-B/16, 4 images and 171 texts": Case(
        lambda: clip_step("hyperclip"), lambda: clip_step(None), added=True, most=92
    ),
    **{
        f"LatHAdapter, added to {host}, 4 images and 50 classes": Case(
            lambda host=host: fewshot_step(host, True),
            lambda host=host: fewshot_step(host, False),
            added=True,
            most=352,
        )
        for host in HOSTS
    },
}

# --------------------------------------------------------------------------------------------------
# Losses

BATCH = 256
WIDTH = 512
CLASS_COUNT = 100


def contrast(space: Sphere | Hyperboloid, boxes: bool) -> dict[str, Tensor]:
    """CLIP's, MERU's or HyCoCLIP's loss, from the towers' outputs on."""
    image = leaf(BATCH, WIDTH)
    text = leaf(BATCH, WIDTH)
    images = space.embed(image, "image")
    texts = space.embed(text, "text")
    pairs = [(images, texts)]
    if boxes:
        box_images = space.embed(leaf(BATCH, WIDTH), "image")
        box_texts = space.embed(leaf(BATCH, WIDTH), "text")
        pairs += [(box_images, texts), (images, box_texts)]
    scale = leaf()
    losses = {}
    for number, (one, other) in enumerate(pairs):
        losses[f"image{number}"], losses[f"text{number}"] = contrastive_loss(
            space.logits(one, other, scale)
        )
    if isinstance(space, Hyperboloid):
        if boxes:
            losses |= compositional_entailment(images, texts, box_images, box_texts, space.manifold)
        else:
            losses["entail"] = entailment(texts, images, space.manifold).mean()
    return losses


def hier(manifold: PoincareBall | Lorentz) -> Step:
    """HIER or LHIER, from features on."""
    loss = on_meta(lambda: HIERLoss(manifold, WIDTH))
    features = leaf(BATCH, WIDTH)
    labels = whole(BATCH)

    def run() -> Tensor:
        if isinstance(manifold, PoincareBall):
            return loss(clip_to_ball(features, manifold), labels)
        return loss(manifold.rescale(manifold.expmap0(features)), labels)

    return summed(run)


def published_hier() -> Step:
    """HIER as its authors' code has it; triplets and noise are given."""
    rows = ((BATCH, BATCH), (512, 512))
    triplets = [whole(50 * nodes, 3) for nodes, _ in rows]
    noise = [torch.empty(2, len(part), 512, device=META) for part in triplets]
    return summed(lambda x, proxies: reference_hier_loss(x, proxies, triplets, noise), leaf(BATCH,
    WIDTH),
                  leaf(512, WIDTH))  # fmt: skip


def metric(name: str, manifold: Any, distance: str) -> Step:
    """A loss of metric learning."""
    with META:
        loss = MetricLoss(name, manifold, CLASS_COUNT, WIDTH, distance)
    points = leaf(BATCH, WIDTH + isinstance(manifold, Lorentz))
    return summed(loss, points, whole(BATCH))


def chains(loss: nn.Module) -> Step:
    """A loss of chains of texts."""
    return summed(
        loss,
        leaf(BATCH, WIDTH),
        whole(BATCH, 3),
        leaf(WIDTH),
        torch.empty(BATCH, WIDTH, device=META),
    )


def tree(manifold: Lorentz | Euclidean) -> Step:
    """The contrast of the levels of Hi-Mapper's tree."""
    width = 128 + isinstance(manifold, Lorentz)
    levels = [leaf(64, nodes, width) for nodes in (32, 16, 8, 4)]
    return summed(lambda *points: tree_contrastive_loss(points, manifold), *levels)


LOSSES = {
    "MERU's loss, 256 pairs (beside CLIP's)": Case(
        lambda: summed(lambda: contrast(Hyperboloid(leaf()), False)),
        lambda: summed(lambda: contrast(Sphere(), False))
    ),
    "HyCoCLIP's loss, 256 pairs (beside the same on the sphere)": Case(
        lambda: summed(lambda: contrast(Hyperboloid(leaf()), True)),
        lambda: summed(lambda: contrast(Sphere(), True)),
        most=775,
    ),
    "HIER, 256 samples, 512 proxies (beside the published form)": Case(
        lambda: hier(PoincareBall(0.1)), published_hier, most=429
    ),
    "LHIER, 256 samples, 512 proxies": Case(lambda: hier(curved())),
    "Proxy-Anchor on directions, 256 x 512": Case(
        lambda: metric("ProxyAnchorLoss", curved(), "angular"),
        lambda: metric("ProxyAnchorLoss", Euclidean(), "angular"),
    ),
    "Proxy-NCA on distances, 256 x 512": Case(
        lambda: metric("ProxyNCALoss", curved(), "hyperbolic"), lambda: metric("ProxyNCALoss",
        Euclidean(), "angular")
    ),
    "SupCon, 256 samples": Case(
        lambda: summed(SupConLoss(), leaf(BATCH, WIDTH), whole(BATCH)), most=74
    ),
    "contrast of Hi-Mapper's tree, 64 trees": Case(
        lambda: tree(curved()), lambda: tree(Euclidean()), most=106
    ),
    "radial loss, 256 triples": Case(lambda: chains(RadialLoss()), most=156),
    "MERU's cones on triples (beside flat cones)": Case(
        lambda: chains(MERUEntailmentLoss()), lambda: chains(EntailmentConeLoss()), most=210
    ),
}  # fmt: skip

# --------------------------------------------------------------------------------------------------
# Layers


def residual() -> Step:
    """The connection of two branches."""
    module = on_meta(lambda: LorentzResidual(curved(), "average"))
    return differentiated(module, leaf(4096, 64), leaf(4096, 64))


def embedded(make: Callable[[], nn.Module]) -> Step:
    """Rows of a table."""
    return differentiated(on_meta(make), whole(4096))


def ball() -> PoincareBall:
    """A ball whose curvature is learned."""
    with META:
        return PoincareBall(1.0, learnable=True)


def attention() -> Step:
    """PyTorch's attention of a sequence to itself."""
    module = on_meta(lambda: nn.MultiheadAttention(64, 4, batch_first=True))
    return differentiated(lambda x: module(x, x, x, need_weights=False), leaf(64, 49, 64))


LAYERS = {
    "LorentzLinear, 4096 x 64": Case(
        lambda: layer(lambda: LorentzLinear(64, 64, curved()), 4096, 64),
        lambda: layer(lambda: nn.Linear(64, 64), 4096, 64),
    ),
    "EfficientLorentzLinear, 4096 x 64": Case(
        lambda: layer(lambda: EfficientLorentzLinear(64, 64, curved()), 4096, 64),
        lambda: layer(lambda: nn.Linear(64, 64), 4096, 64),
    ),
    "LorentzAttention, 64 x 49 x 64": Case(
        lambda: layer(lambda: LorentzAttention(64, 4, curved()), 64, 49, 64),
        attention,
    ),
    "LorentzResidual by averages, 4096 x 64": Case(
        residual, lambda: differentiated(torch.add, leaf(4096, 64), leaf(4096, 64)), most=38
    ),
    "LorentzLayerNorm, 4096 x 64": Case(
        lambda: layer(lambda: LorentzLayerNorm(64), 4096, 64),
        lambda: layer(lambda: nn.LayerNorm(64), 4096, 64),
    ),
    "LorentzGlobalAvgPool2d, 64 x 64 x 8 x 8": Case(
        lambda: layer(lambda: LorentzGlobalAvgPool2d(curved()), 64, 64, 8, 8),
        lambda: layer(lambda: nn.AdaptiveAvgPool2d(1), 64, 64, 8, 8),
    ),
    "HyperbolicEmbedding, 4096 rows": Case(
        lambda: embedded(lambda: HyperbolicEmbedding(1000, 64, curved())),
        lambda: embedded(lambda: nn.Embedding(1000, 64)),
    ),
    "ToLorentz, 4096 x 64": Case(lambda: layer(lambda: ToLorentz(curved()), 4096, 64)),
    "ToTangent, 4096 x 64": Case(lambda: layer(lambda: ToTangent(curved()), 4096, 64)),
    "BusemannLinear, 4096 x 64": Case(
        lambda: layer(lambda: BusemannLinear(64, 64, curved()), 4096, 64),
        lambda: layer(lambda: nn.Linear(64, 64), 4096, 64),
        most=265,
    ),
    "BusemannMLR, 64 x 512 to 100": Case(
        lambda: layer(lambda: BusemannMLR(512, 100, curved()), 64, 512),
        lambda: layer(lambda: nn.Linear(512, 100), 64, 512),
        most=86,
    ),
    "PoincareLinear, 4096 x 64": Case(
        lambda: layer(lambda: compat.PoincareLinear(64, 64, ball()), 4096, 64),
        lambda: layer(lambda: nn.Linear(64, 64), 4096, 64),
    ),
    "PoincareMLR, 64 x 512 to 100": Case(
        lambda: layer(lambda: compat.PoincareMLR(512, 100, ball()), 64, 512),
        lambda: layer(lambda: nn.Linear(512, 100), 64, 512),
    ),
}


CASES: dict[str, Case] = {**HIMAPPER, **HELM, **CLIP, **LOSSES, **LAYERS}

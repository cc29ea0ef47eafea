"""Goldens of the layers, of the losses and of a step of the optimisers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import internals
import torch
from summaries import fill, gradients, numbers

C = 0.7


def _tokens():
    return numbers("tokens", 3, 5, 6)


def _maps():
    return numbers("maps", 3, 6, 7, 7)


def _sequences():
    return numbers("sequences", 3, 6, 9)


def _indices():
    return torch.tensor([[1, 2, 2], [0, 9, 4]])


def _ball():
    return internals.manifolds()[1](C).from_tangent0(numbers("ball", 5, 6))


def _ball_maps():
    return (
        internals.manifolds()[1](C).from_tangent0(numbers("ball maps", 3, 5, 4, 6)).movedim(-1, 1)
    )


def _points():
    return internals.manifolds()[0](C).from_tangent0(numbers("points", 5, 6))


# Name: class, its arguments before the manifold, those after it (a dict), input.
LAYERS: dict[str, tuple[str, tuple, dict[str, Any], Callable]] = {
    "linear": ("LorentzLinear", (6, 9), {}, _tokens),
    "linear normalized": ("LorentzLinear", (6, 9), dict(normalize=True), _tokens),
    "linear chen": ("LorentzLinear", (6, 9), dict(normalize="time", learn_scale=True), _tokens),
    "fgg": ("FGGLinear", (6, 9), {}, _tokens),
    "fgg weight norm": ("FGGLinear", (6, 9), dict(weight_norm=True), _tokens),
    "plfc": ("PLFCLinear", (6, 9), {}, _tokens),
    "conv1d": ("LorentzConv1d", (6, 8, 3), dict(stride=2, padding=1, dilation=2), _sequences),
    "conv2d": ("LorentzConv2d", (6, 8, 3), dict(padding=1), _maps),
    "conv2d strided": ("LorentzConv2d", (6, 8, 3), dict(stride=2, bias=False), _maps),
    "conv2d shortcut": ("LorentzConv2d", (6, 8, 1), dict(stride=2), _maps),
    "conv2d dilated": (
        "LorentzConv2d",
        (6, 8, (3, 2)),
        dict(padding=(2, 1), dilation=(2, 1)),
        _maps,
    ),
    "conv transpose": (
        "LorentzConvTranspose2d",
        (6, 8, 3),
        dict(stride=2, padding=1, output_padding=1),
        _maps,
    ),
    "patch embed": ("LorentzPatchEmbed", (6, 8, 3), {}, _maps),
    "efficient conv1d": (
        "EfficientLorentzConv1d",
        (6, 8, 3),
        dict(stride=2, padding=1),
        _sequences,
    ),
    "efficient conv2d": ("EfficientLorentzConv2d", (6, 8, 3), dict(padding=1), _maps),
    "efficient conv2d cayley": ("EfficientLorentzConv2d", (6, 16, 1), dict(stride=2), _maps),
    "efficient linear full": ("EfficientLorentzLinear", (6, 4), dict(boost="full"), _tokens),
    "efficient linear scale": (
        "EfficientLorentzLinear",
        (6, 8),
        dict(boost="scale", slope=3.0),
        _tokens,
    ),
    "batch norm2d": ("LorentzBatchNorm2d", (6,), {}, _maps),
    "batch norm2d rescaled": ("LorentzBatchNorm2d", (6,), dict(slope=2.0), _maps),
    "batch norm1d": ("LorentzBatchNorm1d", (6,), {}, _tokens),
    "gyro batch norm2d": ("GyroLorentzBatchNorm2d", (6,), {}, _maps),
    "gyro batch norm1d": ("GyroLorentzBatchNorm1d", (6,), {}, _tokens),
    "layer norm": ("LorentzLayerNorm", (6,), None, _tokens),
    "rms norm": ("LorentzRMSNorm", (6,), None, _tokens),
    "global pool": ("LorentzGlobalAvgPool2d", (), {}, _maps),
    "average pool": ("LorentzAvgPool2d", (3,), dict(stride=2, padding=1), _maps),
    "residual": ("LorentzResidual", (), {}, _tokens),
    "residual rescaled": ("LorentzResidual", (), dict(slope=2.0), _tokens),
    "residual average": ("LorentzResidual", (), dict(mode="average"), _tokens),
    "residual average scaled": (
        "LorentzResidual",
        (),
        dict(mode="average", scale="learned"),
        _tokens,
    ),
    "residual boost": ("LorentzResidual", (), dict(mode="boost"), _tokens),
    "to lorentz": ("ToLorentz", (), dict(clip=2.0), _tokens),
    "to lorentz rescaled": ("ToLorentz", (), dict(slope=2.0), _maps),
    "to tangent": ("ToTangent", (), {}, _maps),
    "embedding": ("HyperbolicEmbedding", (10, 6), {}, _indices),
    "mlr": ("LorentzMLR", (6, 9), {}, _tokens),
    "fgg mlr": ("FGGMLR", (6, 9), {}, _tokens),
    "attention": ("LorentzAttention", (6, 2), {}, _tokens),
    "attention points": ("LorentzAttention", (6, 2), dict(head_dim=2, join="points"), _tokens),
    "attention centroid": ("LorentzAttention", (6, 2), dict(head_dim=6, join="centroid"), _tokens),
    "linear attention": ("LorentzLinearAttention", (6, 2), {}, _tokens),
    "ball embedding": ("HyperbolicEmbedding", (10, 6), {}, _indices),
    "ball ganea mlr": ("GaneaMLR", (6, 9), {}, _ball),
    "ball mlr": ("PoincareMLR", (6, 9), {}, _ball),
    "ball fully connected": ("PoincareFullyConnected", (6, 9), {}, _ball),
    "ball linear": ("PoincareLinear", (6, 9), {}, _ball),
    "ball conv": ("PoincareConv2d", (6, 8, 3), dict(stride=2, padding=1), _ball_maps),
    "ball batch norm1d": ("PoincareBatchNorm1d", (6,), {}, _ball),
    "ball batch norm2d": ("PoincareBatchNorm2d", (6,), {}, _ball_maps),
}


def run_layer(layer: torch.nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """Training and evaluation, and gradients of the former."""
    fill(layer)
    inputs = [x.requires_grad_()] if x.is_floating_point() else []
    arguments = (x, 0.5 * x.flip(0)) if "Residual" in type(layer).__name__ else (x,)
    trained = layer.train()(*arguments)
    (trained * numbers("weights", *trained.shape)).sum().backward()
    out = dict(train=trained, **gradients([*inputs, *layer.parameters()], 4))
    if any("running" in name for name in layer.state_dict()):
        out["eval"] = layer.eval()(*arguments)
    return out


def layer(name: str) -> dict[str, Any]:
    kind, before, after, make_input = LAYERS[name]
    manifold = internals.manifolds()[name.startswith("ball")](C)
    made = getattr(internals.layers(), kind)
    return run_layer(
        made(*before) if after is None else made(*before, manifold, **after), make_input()
    )


def between_manifolds() -> dict[str, Any]:
    lorentz, hnn = internals.manifolds()[0], internals.layers()
    m, other = lorentz(C), lorentz(1.3)
    linear, gelu = torch.nn.Linear(6, 4), torch.nn.GELU()
    return dict(
        linear=run_layer(hnn.LorentzLinear(6, 9, m, manifold_out=other), _tokens()),
        change=run_layer(hnn.ChangeManifold(m, other), _tokens()),
        change_rescaled=run_layer(hnn.ChangeManifold(m, other, slope=2.0), _tokens()),
        on_space=run_layer(hnn.OnSpace(torch.nn.Sequential(linear, gelu), m), _points()),
        on_tangent=run_layer(hnn.OnTangent(torch.nn.Sequential(linear, gelu), m), _points()),
    )


def cluster_mixer(**options: Any) -> dict[str, Any]:
    sizes = dict(dim=12, heads=2, head_dim=6, fold=3, prop=2, win=2, nominal_size=9)
    mixer, x = (
        internals.layers().ClusterMixer(**{**sizes, **options}),
        numbers("mixer", 2, 8, 10, 12),
    )
    out = run_layer(mixer, x)
    with torch.no_grad():
        out["assignments"] = mixer.assignments(x)._asdict()
    return out


MIXERS = {
    "plain": {}, "minimal": dict(pad="minimal"), "patch level": dict(window_level=False),
    "space": dict(lift="space"), "curvature": dict(curvature=0.3, norm=True),
}  # fmt: skip

# Losses


def _labels(count: int = 12) -> torch.Tensor:
    return torch.arange(count) % 4


def _loss(loss: torch.Tensor, *inputs: torch.Tensor) -> dict[str, Any]:
    loss.backward()
    return dict(loss=loss, **gradients(list(inputs)))


def hier(kind: int, **options: Any) -> dict[str, Any]:
    """With given triplets and noise."""
    manifold = internals.manifolds()[kind](0.1 if kind else 1.0)
    module = fill(
        internals.losses()["HIERLoss"](
            manifold, 6, num_proxies=10, neighbours=4, draws=3, **options
        )
    )
    x = manifold.from_tangent0(numbers("embeddings", 12, 6)).requires_grad_()
    state = torch.arange(60)
    triplets = (
        torch.stack([state % 12, (state * 5 + 1) % 12, (state * 7 + 3) % 12], 1),
        torch.stack([state % 10, (state * 3 + 1) % 10, (state * 7 + 3) % 10], 1),
    )
    gumbel = tuple(numbers(f"gumbel {i}", 2, 60, 10) for i in range(2))
    loss = module(x, _labels(), triplets, gumbel)
    return dict(points=module.points(), **_loss(loss, x, *module.parameters()))


def hier_parts() -> dict[str, Any]:
    names, (lorentz, ball, _) = internals.losses(), internals.manifolds()
    x = (2 * numbers("vectors", 8, 6)).requires_grad_()
    clipped = names["clip_to_ball"](x, ball(0.1))
    out = dict(clipped=clipped, **_loss((clipped * numbers("w", 8, 6)).sum(), x))
    points = 3 * lorentz(1.0).from_tangent0(numbers("far", 8, 6))
    similarity = numbers("similarity", 12, 12) @ numbers("similarity", 12, 12).T
    out["rescaled"] = names["rescale_radii"](lorentz(1.0).projx(points), lorentz(1.0), limit=2.0)
    return dict(out, mutual=names["mutual_neighbours"](similarity, 5))


def tree(logit: str, kind: int) -> dict[str, Any]:
    manifold = internals.manifolds()[kind](0.6) if kind == 0 else internals.manifolds()[kind]()
    space = [numbers(f"level {n}", 2, n, 6).requires_grad_() for n in (8, 4, 2)]
    points = [manifold.from_tangent0(x) if kind == 0 else x for x in space]
    return _loss(internals.losses()["tree_contrastive_loss"](points, manifold, logit, 0.7), *space)


def gaussian_prior() -> dict[str, Any]:
    inputs = [numbers(name, 8, 6).requires_grad_() for name in ("mean", "log variance")]
    return _loss(internals.losses()["gaussian_prior_kl"](*inputs), *inputs)


def metric(name: str, distance: str, kind: int) -> dict[str, Any]:
    manifold = internals.manifolds()[kind](C)
    options = {} if name in ("MultiSimilarityLoss", "SupConLoss") else dict(num_classes=4, dim=6)
    loss = fill(internals.losses()["MetricLoss"](name, manifold, distance=distance, **options))
    x = numbers("embeddings", 12, 6).requires_grad_()
    return _loss(loss(manifold.from_tangent0(x), _labels()), x, *loss.parameters())


def graphs() -> dict[str, Any]:
    names = internals.losses()
    hops = names["tree_distances"](names["complete_tree"](2, 3))
    x = numbers("nodes", len(hops), 4).requires_grad_()
    distances = internals.manifolds()[0](1.0)
    points = distances.from_tangent0(x)
    distances = distances.cdist(points, points)
    measured = dict(
        map=names["graph_map"](distances, hops == 1),
        distortion=names["average_distortion"](distances, hops),
    )
    return dict(measured, hops=hops, **_loss(names["neighbour_loss"](distances, hops), x))


def radii() -> dict[str, Any]:
    """Hyperbolic radii in every convention; the loss of segmentation."""
    names = internals.losses()
    z = (3 * numbers("embeddings", 5, 8)).requires_grad_()
    out = {
        f"{convention} {kind}": names["hyperbolic_radius"](0.5 * z, 0.01, convention, kind)
        for convention in ("metric2", "half") for kind in ("tangent", "ball")
    }  # fmt: skip
    logits = numbers("logits", 2, 3, 6, 6).requires_grad_()
    labels = torch.arange(2 * 12 * 12).view(2, 12, 12) % 4
    labels[labels == 3] = 255
    for ignored in (False, True):
        out[f"segmentation {ignored}"] = names["segmentation_loss"](
            logits, labels, mask_ignored=ignored
        )
    return dict(out, **_loss(names["radius_penalty"](z, 1.5) + out["segmentation True"], z, logits))


def optimiser(name: str, kind: int) -> dict[str, Any]:
    """Five steps on points, a matrix and a learned curvature."""
    manifold = internals.manifolds()[kind](0.8, learnable=True)
    module = fill(internals.layers().HyperbolicEmbedding(10, 6, manifold))
    linear = fill(torch.nn.Linear(6, 4))
    parameters = [*module.parameters(), *linear.parameters()]
    options = dict(lr=0.05, weight_decay=0.01, **(dict(momentum=0.9) if name == "sgd" else {}))
    step = internals.optimisers()[name](parameters, **options)
    target = numbers("target", 10, 4)
    losses = []
    for _ in range(5):
        step.zero_grad()
        tangent = manifold.logmap0(module(torch.arange(10)))
        loss = (linear(tangent[..., -6:]) - target).square().mean()
        loss.backward()
        step.step()
        losses.append(loss.detach())
    return dict(losses=torch.stack(losses), parameters=parameters)


METRICS = ("ProxyAnchorLoss", "MultiSimilarityLoss", "SupConLoss", "SoftTripleLoss", "ProxyNCALoss")
CASES = {
    **{f"layer {name}": partial(layer, name) for name in LAYERS},
    "layer between manifolds": between_manifolds,
    **{f"layer cluster mixer {key}": partial(cluster_mixer, **options) for key,
    options in MIXERS.items()},
    "loss hier": partial(hier, 1), "loss lhier": partial(hier, 0), "loss hier parts": hier_parts,
    **{f"loss tree {logit} {kind}": partial(tree, logit, kind)
       for logit in ("neg_distance", "distance", "inner") for kind in (0, 2)},
    "loss gaussian prior": gaussian_prior,
    **{f"loss {name} {distance} {kind}": partial(metric, name, distance, kind)
       for name in METRICS for distance in ("angular", "hyperbolic") for kind in (0, 1)},
    "loss graph": graphs, "loss radius and segmentation": radii,
    **{f"optimiser {name} {kind}": partial(optimiser, name, kind) for name in ("adam",
    "sgd") for kind in (0, 1)},
}  # fmt: skip
FAST = set(CASES)

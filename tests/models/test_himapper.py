"""Hi-Mapper: against its reference implementation, moments, options, contract."""

import copy
import math

import pytest
import timm
import torch
import torch.nn.functional as F
from helpers.cases import each
from references.himapper import ReferenceHiMapper

import hypvision
from hypvision.io.errors import HypvisionError
from hypvision.models import HiMapper
from hypvision.models.hierarchy_mapper import (
    FEW,
    GaussianTree,
    HierarchyMapper,
    MapLayout,
    TreeLift,
)
from hypvision.models.himapper_checkpoint import (
    BACKBONES,
    checkpoint_filter_fn,
    himapper_from_official,
    himapper_to_official,
    start_filter_fn,
)
from hypvision.zoo.backbones import build_model

VIT = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=2, num_classes=5)
SWIN = dict(
    img_size=64,
    embed_dim=16,
    depths=(1, 1, 1, 1),
    num_heads=(1, 1, 2, 2),
    window_size=2,
    num_classes=5,
)


def vit(**kwargs):
    return timm.create_model("himapper", backbone="vit_tiny_patch16_224", **{**VIT, **kwargs})


def pair(name, arguments, dtype=torch.float64, **kwargs):
    """The reference implementation and ours with its weights, official preset."""
    torch.manual_seed(0)
    reference = ReferenceHiMapper(
        timm.create_model(name, **arguments), timm.create_model(name, **arguments).num_features
    )
    ours = timm.create_model("himapper", backbone=name, preset="official", **arguments, **kwargs)
    ours.load_state_dict(himapper_from_official(reference.official_state_dict()))
    return reference.to(dtype).eval(), ours.to(dtype).eval()


RESNET = dict(channels=(16, 16, 32, 32), num_classes=5)
CASES = [
    ("vit_tiny_patch16_224", VIT),
    ("swin_tiny_patch4_window7_224", SWIN),
    ("resnet10t", RESNET),
]


@pytest.mark.quick("vit_tiny_patch16_224-arguments0")
@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_outputs_losses_and_gradients_are_the_reference(name, arguments):
    reference, ours = pair(name, arguments)
    size = arguments.get("img_size", 64)
    x, labels = torch.randn(2, 3, size, size, dtype=torch.float64), torch.tensor([1, 4])
    noise = [eps.double() for eps in reference.draws()]
    features = reference.trunk.forward_features(x)
    levels = reference.last_l(reference.memory(features), noise)
    contrastive, kl = reference.auxiliary(levels)
    expected = reference(x, noise)
    out = ours.forward_with_hierarchy(x, noise=noise)
    torch.testing.assert_close(out["logits"], expected, rtol=1e-9, atol=1e-10)
    for mine, other in zip(out["nodes"], levels):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(out["losses"]["contrastive"], 0.1 * contrastive, rtol=1e-7, atol=0)
    torch.testing.assert_close(out["losses"]["kl"], 0.01 * kl, rtol=1e-7, atol=1e-12)

    (F.cross_entropy(expected, labels) + 0.1 * contrastive + 0.01 * kl).backward()
    (F.cross_entropy(out["logits"], labels) + ours.aux_loss(out)).backward()
    gradients = {n: p.grad for n, p in reference.named_parameters()}
    gradients = himapper_from_official({n.removeprefix("trunk."): g for n, g in gradients.items()})
    checked = 0
    for parameter_name, parameter in ours.named_parameters():
        wanted = gradients[parameter_name]
        if wanted is None:
            assert "memnorm" in parameter_name
        elif parameter.grad is None:
            assert wanted.abs().max() < 1e-12, parameter_name
        else:
            torch.testing.assert_close(
                parameter.grad, wanted, rtol=1e-6, atol=1e-8, msg=parameter_name
            )
            checked += 1
    assert checked > 60


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_three_training_steps_are_those_of_the_reference(name, arguments):
    """AdamW with new images, labels and noise at each step: losses before each, and all weights
    after the last."""
    reference, ours = pair(name, arguments)
    size = arguments.get("img_size", 64)
    networks = (reference, ours)
    optimizers = [
        torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0) for network in networks
    ]
    for step in range(3):
        torch.manual_seed(step)
        x, labels = torch.randn(2, 3, size, size, dtype=torch.float64), torch.randint(0, 5, (2,))
        noise = [eps.double() for eps in reference.draws()]
        levels = reference.last_l(reference.memory(reference.trunk.forward_features(x)), noise)
        contrastive, kl = reference.auxiliary(levels)
        expected = F.cross_entropy(reference(x, noise), labels) + 0.1 * contrastive + 0.01 * kl
        out = ours.forward_with_hierarchy(x, noise=noise)
        loss = F.cross_entropy(out["logits"], labels) + ours.aux_loss(out)
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
        for optimizer, value in zip(optimizers, (expected, loss)):
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    weights = himapper_from_official(reference.official_state_dict())
    for parameter_name, parameter in ours.named_parameters():
        if parameter.grad is not None:
            wanted = weights[parameter_name].double().reshape(parameter.shape)
            torch.testing.assert_close(
                parameter.detach(), wanted, rtol=1e-4, atol=1e-5, msg=parameter_name
            )


def test_float32_agrees_and_the_seed_gives_the_official_numbers():
    reference, ours = pair(*CASES[0], dtype=torch.float32)
    x = torch.randn(3, 3, 32, 32)
    torch.manual_seed(7)
    expected = reference(x)
    torch.manual_seed(7)
    torch.testing.assert_close(ours(x), expected, rtol=1e-5, atol=1e-5)


# The tree


def test_moments_are_those_of_the_mixture_of_the_leaves():
    tree = GaussianTree(3, leaves=8, levels=4).double()
    with torch.no_grad():
        tree.mean.normal_(std=2), tree.log_variance.normal_()
    for level, (mean, log_variance) in enumerate(tree.moments()):
        leaves = tree.mean.view(-1, 2**level, 3)
        variance = tree.log_variance.exp().view(-1, 2**level, 3).mean(1) + leaves.var(
            1, unbiased=False
        )
        torch.testing.assert_close(mean, leaves.mean(1))
        torch.testing.assert_close(log_variance.exp(), variance)


@pytest.mark.quick("moment")
@pytest.mark.parametrize("mixture", ["moment", "components"])
def test_samples_have_the_moments(mixture):
    tree = GaussianTree(1, leaves=4, levels=3, mixture=mixture)
    with torch.no_grad():
        tree.mean.copy_(torch.tensor([[-3.0], [-1.0], [1.0], [4.0]])), tree.log_variance.fill_(-2.0)
    generator = torch.Generator().manual_seed(0)
    moments = tree.moments()
    found = [tree.sample(tree.draw_noise(generator), generator).split(4) for _ in range(4000)]
    for level, (mean, log_variance) in enumerate(moments):
        drawn = torch.stack([tokens[level] for tokens in found]).view(4000, -1, 2**level).detach()
        drawn = drawn.transpose(1, 2).flatten(0, 1)
        torch.testing.assert_close(drawn.mean(0), mean.detach()[:, 0], rtol=0, atol=0.15)
        torch.testing.assert_close(
            drawn.var(0), log_variance.detach().exp()[:, 0], rtol=0.1, atol=0.02
        )
    kurtosis = ((drawn - drawn.mean(0)) / drawn.std(0)).pow(4).mean()
    assert (kurtosis < 2.6) == (mixture == "components")  # 3 for a Gaussian; the mixture has humps


def test_variances_neither_turn_negative_nor_collapse():
    tree = GaussianTree(2, leaves=8, levels=4)
    with torch.no_grad():
        (
            tree.mean.fill_(1e4),
            tree.log_variance.fill_(-200.0),
        )  # E[x^2] - E[x]^2 would be round-off here
    moments = tree.moments()
    for _, log_variance in moments:
        torch.testing.assert_close(log_variance, torch.full_like(log_variance, -13.8))
    sum(entry.log_variance.sum() for entry in moments).backward()
    assert torch.isfinite(tree.log_variance.grad).all() and (tree.log_variance.grad > 0).all()
    with torch.no_grad():
        tree.log_variance.fill_(300.0)
    assert all(torch.isfinite(torch.cat([*entry])).all() for entry in tree.moments())


def test_initial_siblings_are_near_and_cousins_far():
    tree = GaussianTree(192)
    siblings = (tree.mean[::2] - tree.mean[1::2]).norm(dim=1)
    assert siblings.mean().item() == pytest.approx(0.01 * math.sqrt(2 * 192), rel=0.1)
    assert (tree.mean[0] - tree.mean[2]).norm().item() == pytest.approx(
        1.5 * math.sqrt(2 * 192), rel=0.3
    )
    assert tree.log_variance.abs().max() <= math.sqrt(6 / (32 + 192))


def test_sampling_repeats_under_a_generator():
    model, x = vit().train(), torch.randn(2, 3, 32, 32)
    model.mapper.eval(), model.trunk.eval()  # without dropout
    model.mapper.eval_noise = "sample"
    first, second, other = (
        model.forward_with_hierarchy(x, generator=torch.Generator().manual_seed(s))["logits"]
        for s in (3, 3, 4)
    )
    assert torch.equal(first, second) and not torch.equal(first, other)


def test_noise_of_other_shapes_is_refused():
    with pytest.raises(ValueError, match="noise must have the shapes"):
        vit().forward_with_hierarchy(torch.randn(1, 3, 32, 32), noise=[torch.zeros(3, 64)] * 15)


# Decomposition and encoding


def mapper(**kwargs):
    return HierarchyMapper(24, 24, leaves=8, levels=3, width=32, **kwargs).eval()


def test_evaluation_by_means_equals_samples_without_noise():
    m, memory = mapper(), torch.randn(2, 10, 24)
    zero = [torch.zeros(2**level, 8 // 2**level, 24) for level in range(3)]
    short, maps = m.decompose(memory, maps=True)
    full, full_maps = m.decompose(memory, noise=zero, maps=True)
    torch.testing.assert_close(short, full, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(maps, full_maps, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 14))


def test_nodes_do_not_depend_on_order_or_company():
    m, memory = mapper(), torch.randn(3, 10, 24)
    nodes, _ = m.decompose(memory)
    torch.testing.assert_close(
        m.decompose(memory[:, torch.randperm(10)])[0], nodes, rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(m.decompose(memory[1:2])[0], nodes[1:2], rtol=1e-4, atol=1e-5)


def test_evaluation_modes():
    x = torch.randn(2, 3, 32, 32)
    for mode, repeats in (("mean", True), ("fixed", True), ("sample", False)):
        model = vit(eval_noise=mode).eval()
        assert torch.equal(model(x), model(x)) == repeats, mode
    assert (
        torch.equal(vit().train().eval()(x)[:1], vit().eval()(x)[:1]) is False
    )  # other random weights
    fixed = vit(eval_noise="fixed", mixture="components").eval()
    assert torch.equal(fixed(x), fixed(x))


@pytest.mark.parametrize("tokens", [1, 9])
def test_few_queries_attend_as_many_do(tokens):
    m = mapper()
    layer, x, memory = (
        m.encoder.layers[0].cross_attn,
        torch.randn(2, tokens, 32),
        torch.randn(2, 7, 32),
    )
    given = [x, memory]
    cross = layer.cross
    if tokens <= FEW:
        cross = m.encoder._joined()[0].cross
        given.append(memory)  # as keys, and as values
    q, k, v = (
        layer.split(p(t))
        for p, t in ((layer.q_proj, x), (layer.k_proj, memory), (layer.v_proj, memory))
    )
    expected = layer.proj(
        (torch.softmax(q @ k.mT / math.sqrt(8), -1) @ v).transpose(1, 2).flatten(2)
    )
    torch.testing.assert_close(cross(*given), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 9])
def test_dropout_of_the_encoder(tokens):
    """Beside the formulas, with the numbers that dropout draws: those of all branches first."""
    encoder = mapper(drop=0.4).double().train().encoder
    given = [torch.randn(2, n, 24, dtype=torch.float64, requires_grad=True) for n in (tokens, 14)]

    def expected(x, nodes):
        memory = encoder.memory_proj(nodes)
        x = encoder.node_proj(x)
        masks = F.dropout(torch.ones(3, 3, 2, tokens, 32, dtype=torch.float64), 0.4)
        for layer, level, mask in zip(encoder.layers, memory.split([8, 4, 2], 1), masks):
            x = x + mask[0] * layer.cross_attn.cross(layer.norm1(x), level)
            x = x + mask[1] * layer.self_attn.alone(layer.norm2(x))
            hidden = F.dropout(F.gelu(layer.fc1(layer.norm3(x))), 0.4)
            x = x + mask[2] * layer.fc2(hidden)
        return encoder.out_proj(x)

    leaves = [*given, *(p for p in encoder.layers.parameters())]
    found = []
    for function in (encoder, expected):
        torch.manual_seed(0)
        out = function(*given)
        gradients = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
        found.append([out, *(g for g in gradients if g is not None)])
    assert len(found[0]) > 40
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)


def test_residual_can_be_left_out():
    model, x = vit(), torch.randn(1, 3, 32, 32)
    model.eval()
    pooled = model.trunk.forward_head(model.forward_features(x), pre_logits=True)
    with_it = model.forward_head(model.forward_features(x), pre_logits=True)
    model.mapper.residual = False
    torch.testing.assert_close(
        with_it - pooled, model.forward_head(model.forward_features(x), pre_logits=True)
    )


# Lift


def test_official_lift_of_the_axes():
    lift = TreeLift(4, 4, lift="official").double()
    with torch.no_grad():
        lift.weight.copy_(torch.eye(4))
    a = 0.7
    along_space, along_time, far = lift(
        torch.tensor([[0, a, 0, 0], [a, 0, 0, 0], [0, 9.0, 0, 0]], dtype=torch.float64)
    )
    expected = torch.tensor([math.cosh(a), math.sinh(a), 0, 0], dtype=torch.float64)
    torch.testing.assert_close(along_space[1:], expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(
        along_time[1], torch.tensor(1 + a, dtype=torch.float64), rtol=0, atol=1e-8
    )
    torch.testing.assert_close(far[1], torch.tensor(math.cosh(1.5), dtype=torch.float64))
    for point in (along_space, along_time, far):
        assert (-(point[0] ** 2) + point[1:].square().sum()).item() == pytest.approx(-1, rel=1e-9)


def test_proper_lift_keeps_the_radius():
    lift = TreeLift(16, 8, curvature=0.5).double()
    nodes = torch.randn(5, 16, dtype=torch.float64)
    radius = torch.linalg.norm(nodes @ lift.weight, dim=-1) / math.sqrt(8)
    torch.testing.assert_close(lift.manifold.dist0(lift(nodes)), radius)
    assert vit().mapper.lift.scale.item() == pytest.approx(128**-0.5)


@pytest.mark.parametrize("presets", [("proper", "official"), ("official", "proper")])
def test_weights_of_another_lift_are_refused(presets):
    """The scale, which one of them lacks, would keep its start value or be lost."""
    saved, other = (vit(preset=preset) for preset in presets)
    weights, lift = saved.state_dict(), saved.mapper.lift.lift
    with pytest.raises(HypvisionError, match=f"lift='{lift}', but .*preset='{presets[0]}'"):
        other.load_state_dict(weights)
    vit(preset=presets[1], lift=lift).load_state_dict(weights)


def test_curvature_stays_in_its_bounds():
    model, x = vit(), torch.randn(1, 3, 32, 32)
    for value, bound in ((9.0, 10.0), (-9.0, 0.1)):
        torch.nn.init.constant_(model.mapper.lift.manifold.log_c, value)
        assert model.forward_with_hierarchy(x)["curvature"].item() == pytest.approx(bound, rel=1e-5)


# Options


@each(
    "options",
    [
        dict(geometry="euclidean"),
        dict(tree="deterministic"),
        dict(leaves=12, levels=3),
        dict(leaves=5, levels=1),
        dict(mixture="components"),
        dict(logit="inner", temperature=0.5),
        dict(kv="all"),
        dict(preset="official", logit="neg_distance"),
    ],
)
def test_options_train(options):
    model = vit(**options).train()
    out = model.forward_with_hierarchy(torch.randn(2, 3, 32, 32), maps=True)
    leaves, levels = options.get("leaves", 32), options.get("levels", 4)
    assert [len(t[0]) for t in out["nodes"]] == [leaves // 2**level for level in range(levels)]
    assert out["attention"][0].shape == (2, leaves, 17 if options.get("kv") == "all" else 16)
    assert ("kl" in out["losses"]) == (options.get("tree") != "deterministic")
    assert out["points"][0].shape[-1] == (128 if options.get("geometry") == "euclidean" else 129)
    (out["logits"].mean() + model.aux_loss(out)).backward()
    gradients = [p.grad for p in model.parameters()]
    assert all(g is not None and torch.isfinite(g).all() for g in gradients)


def test_deterministic_trees_do_not_sample():
    model, x = vit(tree="deterministic").train(), torch.randn(1, 3, 32, 32)
    means = [entry.mean for entry in model.mapper.tree.moments()]
    assert torch.equal(model.mapper.queries(), torch.cat(means))
    assert model(x).shape == (1, 5)


def test_key_value_rules():
    sequence, narrow = torch.randn(1, 9, 768), torch.randn(1, 9, 192)
    maps = torch.randn(1, 192, 2, 3)
    layout = MapLayout(prefix=1)
    assert torch.equal(layout.memory(sequence), sequence[:, 1:])
    assert torch.equal(layout.memory(maps), maps.flatten(2).mT)
    official = layout._replace(kv="official")
    assert torch.equal(official.memory(sequence), sequence) and torch.equal(
        official.memory(narrow), narrow[:, 1:]
    )
    assert official.memory(maps).shape == (1, 5, 192)  # the top left position is lost
    both = MapLayout(prefix=2, distilled=True, kv="official")
    assert torch.equal(both.memory(sequence), torch.cat([sequence[:, :1], sequence[:, 2:]], 1))
    assert torch.equal(MapLayout(True).memory(torch.ones(1, 2, 3, 4)), torch.ones(1, 6, 4))


@each(
    "options, message",
    [
        (dict(preset="best"), "preset must be one of 'proper', 'official'"),
        (dict(leaves=20, levels=4), "2\\^3 divides, got 20"),
        (dict(lift="poincare"), "lift must be"),
        (dict(temperature=0.0), "temperature"),
        (dict(width=100, heads=3), "multiple of heads"),
        (dict(backbone="resnett50"), "no backbone 'resnett50'"),
        (dict(backbone="crossvit_9_240"), "needs one feature map"),
        (dict(backbone="lvit_tiny", class_token=True), "class token before those of the map"),
        (dict(backbone="pit_ti_224"), "without a map"),
        (dict(dense="both"), "dense"),
    ],
)
def test_mistakes_are_explained(options, message):
    arguments = {} if "backbone" in options else VIT
    with pytest.raises(HypvisionError, match=message):
        timm.create_model(
            "himapper", **{"backbone": "vit_tiny_patch16_224", **arguments, **options}
        )


def test_weights_that_cannot_be_fetched(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no route to host")

    for name in ("HYPVISION_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("hypvision.models.timm_models.fetch_from_hub", lambda *_: None)
    monkeypatch.setattr(timm.models._builder, "load_pretrained", offline)
    with pytest.raises(
        HypvisionError, match="cannot be fetched .OSError: no route to host.*pretrained=False"
    ):
        timm.create_model("himapper_deit_tiny_patch16_224", pretrained=True)


# Numerics


@pytest.mark.parametrize(
    ("dtype", "preset"), [(torch.bfloat16, "proper"), (torch.float16, "official")]
)
def test_autocast(dtype, preset):
    model = vit(preset=preset).train()
    with torch.autocast("cpu", dtype=dtype):
        out = model.forward_with_hierarchy(torch.randn(2, 3, 32, 32))
        loss = out["logits"].float().mean() + model.aux_loss(out)
    assert (
        all(points.dtype == torch.float32 for points in out["points"])
        and loss.dtype == torch.float32
    )
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_half_precision_weights():
    model = vit().to(torch.bfloat16)
    assert model.mapper.lift.manifold.log_c.dtype == torch.float32
    out = model.forward_with_hierarchy(torch.randn(1, 3, 32, 32, dtype=torch.bfloat16))
    assert out["logits"].dtype == torch.bfloat16 and torch.isfinite(model.aux_loss(out))


# timm's contract


@pytest.mark.quick("resnet50-1454465-1853696-28865193")
@pytest.mark.parametrize(
    ("backbone", "tree", "encoder", "total"),
    [
        ("deit_tiny_patch16_224", 376_129, 1_131_712, 7_225_257),
        pytest.param(
            "deit_small_patch16_224", 487_681, 1_206_400, 23_744_745, marks=pytest.mark.slow
        ),
        pytest.param(
            "deit_base_patch16_224", 710_785, 1_355_776, 88_634_217, marks=pytest.mark.slow
        ),
        ("swin_tiny_patch4_window7_224", 710_785, 1_355_776, 30_354_915),
        pytest.param(
            "swin_small_patch4_window7_224", 710_785, 1_355_776, 51_672_819, marks=pytest.mark.slow
        ),
        ("resnet50", 1_454_465, 1_853_696, 28_865_193),
        ("efficientnet_b4", 1_305_729, 1_754_112, 22_401_457),
    ],
)
def test_parameters_are_those_of_the_sheet(backbone, tree, encoder, total):
    def count(module):
        return sum(p.numel() for p in module.parameters())

    model = timm.create_model(f"himapper_{backbone}", preset="official", device="meta")
    assert count(model.mapper) - count(model.mapper.encoder) == tree
    assert (count(model.mapper.encoder), count(model)) == (encoder, total)
    assert (
        count(timm.create_model(f"{backbone}_himapper", device="meta")) == total + 1
    )  # the scale of the lift


@pytest.mark.quick("proper-True")
@pytest.mark.parametrize(("preset", "training"), [("proper", True), ("official", False)])
def test_shapes_without_data(preset, training):
    """On the meta device, which has no autocast."""
    found = []
    for device in ("cpu", "meta"):
        model = vit(preset=preset, device=device).train(training)
        out = model.forward_with_hierarchy(
            torch.empty(2, 3, 32, 32, device=device).fill_(0.5), maps=True
        )
        out["losses"]["contrastive"].backward()
        gradients = [name for name, p in model.named_parameters() if p.grad is not None]
        tensors = [
            out["logits"],
            *out["nodes"],
            *out["points"],
            *out["attention"],
            *out["losses"].values(),
        ]
        assert all(tensor.device.type == device for tensor in tensors)
        found.append(([tuple(tensor.shape) for tensor in tensors], gradients))
    assert found[0] == found[1] and found[0][0][0] == (2, 5) and found[0][1]


def test_all_backbones_are_registered_under_both_names():
    assert len(BACKBONES) == 8
    assert {f"himapper_{name}" for name in BACKBONES} | {"himapper"} == set(
        timm.list_models("himapper*")
    )
    assert {f"{name}_himapper" for name in BACKBONES} == set(timm.list_models("*_himapper"))
    # The others' backbones alone have weights.
    assert timm.list_models("*himapper*", pretrained=True) == [
        "himapper_tf_efficientnet_lite0.grocery"
    ]
    model = timm.create_model("himapper_resnet50.tv_in1k", device="meta")
    assert (
        model.pretrained_cfg["classifier"] == "trunk.fc"
        and model.pretrained_cfg["first_conv"] == "trunk.conv1"
    )


def test_timm_creates_the_whole_network_of_the_zoo_by_its_name():
    name = "himapper_tf_efficientnet_lite0.grocery"
    found, truth = (
        timm.create_model(name, pretrained=True).state_dict(),
        hypvision.load(name).state_dict(),
    )
    assert found.keys() == truth.keys() and all(found[key].equal(truth[key]) for key in truth)
    assert timm.create_model(name, pretrained=True, num_classes=3).num_classes == 3


WRAPPED = [
    ("resnet10t", {}, 64),
    ("convnext_atto", {}, 64),
    ("mobilenetv3_small_050", {}, 64),  # a wider feature than the map
    ("swin_tiny_patch4_window7_224", SWIN, 64),  # NHWC
    (
        "deit_tiny_distilled_patch16_224",
        dict(img_size=32, patch_size=8, embed_dim=48, depth=1, num_heads=2),
        32,
    ),
    (
        "resnetv2_50",
        dict(layers=(1, 1, 1, 1), channels=(16, 32, 64, 128), stem_chs=16),
        64,
    ),  # 1x1 convolution as head
    ("levit_128s", {}, 224),  # two heads, one feature
    ("hiera_tiny_224", dict(embed_dim=24, stages=(1, 1, 1, 1)), 224),  # no class token
    pytest.param(
        "volo_d1_224", dict(img_size=64), 64, marks=pytest.mark.slow
    ),  # a class token of its own
    (
        "coat_lite_tiny",
        dict(img_size=64, embed_dims=(16, 16, 32, 32), serial_depths=(1, 1, 1, 1)),
        64,
    ),  # likewise
    pytest.param("hieradet_small", dict(stages=(1, 1, 1, 1)), 224, marks=pytest.mark.slow),
    (
        "samvit_base_patch16",
        dict(depth=1, embed_dim=48, num_heads=2, img_size=64),
        64,
    ),  # a head with its pooling
    ("repvit_m0_9", {}, 64),  # a classifier of its own kind
]


@pytest.mark.parametrize("name, arguments, size", WRAPPED)
def test_backbones_of_many_kinds(name, arguments, size):
    arguments = {**arguments, "num_classes": 5}
    model = timm.create_model("himapper", backbone=name, **arguments)
    x = torch.randn(2, 3, size, size)
    out = model.train().forward_with_hierarchy(x, maps=True)
    assert out["logits"].shape == (2, 5) and out["feature"].shape == (2, model.head_hidden_size)
    positions = out["tokens"].shape[1]
    assert (
        out["attention"][3].shape == (2, 4, positions) and math.isqrt(positions) ** 2 == positions
    )
    (out["logits"].mean() + model.aux_loss(out)).backward()
    assert model.mapper.tree.mean.grad.abs().sum() > 0
    model.eval()
    torch.testing.assert_close(model(x), model.forward_with_hierarchy(x)["logits"])
    model.reset_classifier(3)
    assert model(x).shape == (2, 3) and model.num_classes == 3


def _families():
    """The model of the shortest name of each of timm's modules, without the very large."""
    found = {}
    for name in sorted(timm.list_models(), key=lambda name: (len(name), name)):
        module = timm.models._registry._model_to_module[name]
        if module not in found or (_is_huge(found[module]) and not _is_huge(name)):
            found[module] = name
    return found


def _is_huge(name):
    return any(word in name for word in ("large", "huge", "giant", "_xl"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_family_of_timm_works_or_is_refused():
    refused, failed = set(), {}
    ours = ("hcformer", "himapper", "lorentz_resnet")
    for module, name in _families().items():
        if module in ours:
            continue
        try:
            model = timm.create_model(
                "himapper", backbone=name, num_classes=7, device="meta"
            ).eval()
            x = torch.empty(2, *model.pretrained_cfg["input_size"], device="meta")
            if tuple(model(x).shape) != (2, 7):
                failed[module] = tuple(model(x).shape)
        except HypvisionError:
            refused.add(module)
        except Exception as error:
            failed[module] = repr(error)[:100]
    assert not failed
    assert refused == {"coat", "crossvit", "efficientvim", "hexformer", "pit"}


def test_backbones_with_several_maps_are_refused():
    model = timm.create_model("himapper", backbone="efficientvim_m1", num_classes=5)
    with pytest.raises(HypvisionError, match="several maps"):
        model(torch.randn(2, 3, 224, 224))


def test_without_classifier_and_without_pooling():
    model = timm.create_model("himapper", backbone="resnet10t", num_classes=0).eval()
    x = torch.randn(1, 3, 64, 96)
    features = model.forward_features(x)
    torch.testing.assert_close(model(x), model.forward_head(features, pre_logits=True))
    model.reset_classifier(0, "")
    assert torch.equal(model(x), features)
    model.reset_classifier(4, "avg")
    assert model(x).shape == (1, 4)


def test_a_network_without_a_head_gets_one():
    trunk = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=1, num_heads=2
    )
    trunk.reset_classifier(0)
    trunk.reset_classifier = lambda *args: None  # an encoder that is never a classifier
    model = HiMapper(trunk, num_classes=7)
    assert (
        model(torch.randn(1, 3, 32, 32)).shape == (1, 7)
        and model.get_classifier().out_features == 7
    )
    with pytest.raises(HypvisionError, match="takes no further arguments"):
        HiMapper(trunk, depth=3)
    with pytest.raises(
        HypvisionError, match="in_chans=1, but the given backbone takes images of 3 channels"
    ):
        HiMapper(trunk, in_chans=1)
    assert HiMapper(timm.create_model("resnet10t", in_chans=1)).in_chans == 1


def test_distilled_training_gives_both_logits():
    arguments = WRAPPED[4][1]
    model = timm.create_model("himapper", backbone=WRAPPED[4][0], **arguments, num_classes=5)
    x = torch.randn(2, 3, 32, 32)
    model.set_distilled_training()
    first, second = model.train()(x)
    assert first.shape == second.shape == (2, 5)
    model.eval()
    features = model.forward_features(x)
    nodes, _ = model.mapper.decompose(features[:, 2:])
    logits = [
        head(model.mapper.encode(features[:, i], nodes))
        for i, head in enumerate((model.trunk.head, model.trunk.head_dist))
    ]
    torch.testing.assert_close(model(x), (logits[0] + logits[1]) / 2)


def test_inputs_of_any_size():
    model = vit(dynamic_img_size=True).eval()
    for height, width in ((32, 32), (64, 40), (24, 88)):
        out = model.forward_with_hierarchy(torch.randn(1, 3, height, width), maps=True)
        assert out["attention"][0].shape == (1, 32, height * width // 64)


def test_features_only_enriches_the_last_map_from_zero():
    x = torch.randn(2, 3, 64, 96)
    for name, arguments in (
        ("resnet10t", {}),
        ("efficientnet_b0", {}),
        ("swin_tiny_patch4_window7_224", SWIN),
    ):
        arguments = {k: v for k, v in arguments.items() if k != "num_classes"}
        if "swin" in name:
            arguments["strict_img_size"] = False
        model = timm.create_model("himapper", backbone=name, features_only=True, **arguments).eval()
        plain = timm.create_model(
            name, features_only=True, feature_cls="getter", **arguments
        ).eval()
        plain.model.load_state_dict(model.model.trunk.state_dict(), strict=False)
        before = model(x)
        for mine, bare in zip(before, plain(x)):
            torch.testing.assert_close(
                mine if mine.shape == bare.shape else mine.permute(0, 2, 3, 1), bare
            )
        torch.nn.init.normal_(model.model.mapper.dense.out_proj[1].weight)
        after = model(x)
        assert all(torch.equal(a, b) for a, b in zip(before[:-1], after[:-1]))
        assert not torch.allclose(before[-1], after[-1])
        assert [level.shape[1] for level in after] == model.feature_info.channels()
        sum(level.sum() for level in model.train()(x)).backward()
        missing = [n for n, p in model.model.mapper.named_parameters() if p.grad is None]
        assert all(n.startswith("lift.") for n in missing), missing


def test_dense_modes():
    x = torch.randn(1, 3, 32, 32)
    small = {k: v for k, v in VIT.items() if k != "num_classes"}
    build = lambda **kw: timm.create_model(  # noqa: E731
        "himapper", backbone="vit_tiny_patch16_224", features_only=True, **{**small, **kw}
    )
    assert build(dense="init").model.mapper is None
    assert build(out_indices=(0,)).model.mapper is None
    assert build(feature_cls="getter", out_indices=(0, 1))(x)[1].shape == (1, 64, 4, 4)
    model = build(dense="aux").train()
    model(x)
    losses = model.model.pop_losses()
    assert set(losses) == {"contrastive", "kl"} and model.model.pop_losses() == {}
    sum(losses.values()).backward()
    assert model.model.mapper.lift.weight.grad.abs().sum() > 0
    model.eval()(x)
    assert model.model.pop_losses() == {}
    final, maps = vit(dense="fuse").forward_intermediates(
        x, norm=True, output_fmt="NLC", return_prefix_tokens=True
    )
    assert final.shape == (1, 17, 64) and maps[1][0].shape == (1, 16, 64)


def test_parameter_groups():
    model = vit()
    names = dict(model.named_parameters())
    skipped = model.no_weight_decay()
    assert {name for name in skipped if name.startswith("mapper.")} <= set(names)
    assert {
        "mapper.tree.mean",
        "mapper.tree.log_variance",
        "mapper.lift.manifold.log_c",
        "trunk.pos_embed",
    } <= skipped
    groups = timm.models._manipulate.group_parameters(model, model.group_matcher(), reverse=True)
    bare = timm.models._manipulate.group_parameters(
        model.trunk, model.trunk.group_matcher(), reverse=True
    )
    assert {
        name.removeprefix("trunk."): g for name, g in groups.items() if name.startswith("trunk.")
    } == bare
    assert {g for name, g in groups.items() if name.startswith("mapper.")} == {max(bare.values())}


def test_freezing():
    model = vit()
    model.freeze("attention")
    free = {n for n, p in model.named_parameters() if p.requires_grad}
    assert {
        "trunk.blocks.0.attn.qkv.weight",
        "trunk.pos_embed",
        "trunk.head.weight",
        "mapper.tree.mean",
    } <= free
    assert not any("mlp" in n and n.startswith("trunk") for n in free)
    model.freeze("patch_embed")
    assert {n for n, p in model.named_parameters() if not p.requires_grad} == {
        "trunk.patch_embed.proj.weight",
        "trunk.patch_embed.proj.bias",
    }
    model.freeze("none")
    assert all(p.requires_grad for p in model.parameters())
    model.freeze("backbone")
    assert {n for n, p in model.trunk.named_parameters() if p.requires_grad} == {
        "head.weight",
        "head.bias",
    }
    with pytest.raises(HypvisionError, match="does not fit the backbone ResNet"):
        timm.create_model("himapper", backbone="resnet10t").freeze("attention")


def test_copies_and_state_dicts():
    model, x = vit().eval(), torch.randn(1, 3, 32, 32)
    copied = copy.deepcopy(model)
    assert torch.equal(copied(x), model(x)) and copied.trunk is not model.trunk
    if hasattr(copied, "set_input_size"):
        assert copied.set_input_size.__self__ is copied
    other = vit()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(x), model(x))


@each("change", [dict(levels=3), dict(geometry="euclidean"), dict(tree="deterministic")])
def test_a_mapper_with_parts_that_the_model_lacks_is_refused(change):
    with pytest.raises(RuntimeError, match=r"Unexpected key.*mapper\."):
        vit(**change).load_state_dict(vit().state_dict())
    backbone = vit(dense="init", features_only=True)  # has no mapper at all
    backbone.load_state_dict(vit(**change).state_dict())


def test_weights_from_elsewhere(tmp_path):
    reference, _ = pair(*CASES[0], dtype=torch.float32)
    torch.save({"model": reference.official_state_dict(), "epoch": 3}, tmp_path / "official.pth")
    trunk = timm.create_model("vit_tiny_patch16_224", **VIT)
    torch.save(trunk.state_dict(), tmp_path / "trunk.pth")
    build = dict(backbone="vit_tiny_patch16_224", pretrained=True, **VIT)
    overlay = dict(file=str(tmp_path / "official.pth"), num_classes=5)
    model = timm.create_model(
        "himapper", pretrained_cfg_overlay=overlay, preset="official", **build
    )
    assert torch.equal(model.mapper.tree.mean, reference.last_l.node_mean)
    assert torch.equal(model.trunk.pos_embed, reference.trunk.pos_embed)
    overlay = dict(file=str(tmp_path / "trunk.pth"), num_classes=5)
    model = timm.create_model("himapper", pretrained_cfg_overlay=overlay, **build)
    assert torch.equal(model.trunk.blocks[0].mlp.fc1.weight, trunk.blocks[0].mlp.fc1.weight)
    own = model.state_dict()
    assert set(start_filter_fn(trunk.state_dict(), model)) == set(own)
    inside = {f"trunk.{name}" for name in trunk.state_dict()}
    assert set(checkpoint_filter_fn(trunk.state_dict(), model)) == inside


def test_a_backbone_alone_is_no_trained_network(tmp_path):
    """Its mapper would be random, so that only a training may begin with it."""
    trunk = timm.create_model("vit_tiny_patch16_224", **VIT)
    other = timm.create_model("resnet10t", num_classes=5)
    torch.save(trunk.state_dict(), tmp_path / "trunk.pth")
    torch.save(other.state_dict(), tmp_path / "other.pth")
    arguments = dict(backbone="vit_tiny_patch16_224", **VIT)
    mapper = sum(name.startswith("mapper.") for name in vit().state_dict())
    ways = (
        lambda path: hypvision.load(path, model="himapper", **arguments),
        lambda path: build_model("himapper", path, arguments),
    )
    for load in ways:
        with pytest.raises(HypvisionError, match=rf" {mapper} missing in the file: mapper\.t"):
            load(tmp_path / "trunk.pth")
        with pytest.raises(HypvisionError, match=r" 0 of .* to the model: conv1\.0\.weight"):
            load(tmp_path / "other.pth")
    started = timm.create_model("himapper", checkpoint_path=tmp_path / "trunk.pth", **arguments)
    assert torch.equal(started.trunk.pos_embed, trunk.pos_embed)


@pytest.mark.slow
def test_compiled_training():
    model, x = vit(depth=1).train(), torch.randn(2, 3, 32, 32)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    noise = model.mapper.tree.draw_noise()

    def step(network):
        out = network.forward_with_hierarchy(x, noise)
        return out["logits"].square().mean() + network.aux_loss(out)

    expected = torch.autograd.grad(step(model), model.mapper.tree.mean)[0]
    compiled = torch.compile(step, backend="aot_eager")
    found = torch.autograd.grad(compiled(model), model.mapper.tree.mean)[0]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


def test_files_of_the_backbone_fill_levels_that_were_taken_away():
    trunk = timm.create_model("resnet18").state_dict()
    model = timm.create_model("himapper", backbone="resnet18", features_only=True, out_indices=[0])
    model.load_state_dict(trunk)
    loaded = [value for name, value in model.state_dict().items() if name.endswith("conv1.weight")]
    assert torch.equal(loaded[0], trunk["conv1.weight"])


def test_a_damaged_official_file_is_refused():
    """Its backbone has the most names, but it is no file of the backbone alone."""
    model = timm.create_model("himapper", backbone="resnet18", num_classes=3, preset="official")
    official = himapper_to_official(model.state_dict())
    lost = next(name for name in official if "mix_l" in name)
    official.pop(lost)
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(official)

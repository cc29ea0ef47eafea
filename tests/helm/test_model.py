"""Both models against the published formulation, their options, and what the published code cannot
do."""

import pytest
import torch
import torch.nn.functional as F
from helpers.cases import each
from helpers.helm import MODELS, pair, published_logits, tokens
from references.helm import HelmMiCE, frequencies, initial_points

from hypvision.helm import Helm, LatentCache, preset, rows
from hypvision.helm.attention import Context
from hypvision.helm.layers import PointEmbedding
from hypvision.helm.model import document_mask
from hypvision.helm.rope import Rotary, angles
from hypvision.io.errors import HypvisionError

PLAIN = (
    "D",
    "MiCE",
    "MiCE, centroid",
    "DeepSeek-like",
)  # their plain forms run every line that is not by hand


def forms(models):
    """Every model with backwards by hand, and some in plain operations."""
    named = [(name, fused) for fused in (True, False) for name in models if fused or name in PLAIN]
    ids = [f"{name}, {'by hand' if fused else 'plain'}" for name, fused in named]
    return pytest.mark.parametrize("name, fused", named, ids=ids)


@forms(MODELS)
def test_logits_and_gradients_are_the_published(name, fused):
    preset_name, options = MODELS[name]
    official, ours = pair(preset_name, fused=fused, **options)
    ids = tokens()
    expected = published_logits(official, ids)
    found = ours(ids)
    assert (found.logits - expected).abs().max() < 2e-5
    F.cross_entropy(expected[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    ours.config.aux_alpha = 0.0
    loss = ours(ids, labels=ids)
    loss.loss.backward()
    table = official.token_embed.embedding if name == "D" else next(official.embed.parameters())
    torch.testing.assert_close(ours.embed.weight.grad, table.grad, rtol=1e-3, atol=1e-6)
    last = official.final_proj.linear
    assert torch.isclose(ours.final_proj.weight.grad.norm(), last.weight.grad.norm(), rtol=1e-3)
    first = (
        official.resblocks[0].attn.scale if name == "D" else official.layers[0].attn.softmax_scale
    ).grad
    torch.testing.assert_close(ours.layers[0].attn.scale.grad, first, rtol=2e-3, atol=1e-7)
    if name != "D":
        curvature = official.layers[1].ffn.experts[1].manifold.k.grad
        if curvature is not None:
            torch.testing.assert_close(
                ours.layers[1].ffn.experts[1].c.grad.squeeze(), curvature, rtol=2e-3, atol=1e-7
            )
        for a, b in (
            zip(ours.layers[1].ffn.shared, official.layers[1].ffn.shared_experts)
            if "centroid" in name
            else ()
        ):
            torch.testing.assert_close(a.c.grad.squeeze(), b.manifold.k.grad, rtol=2e-3, atol=1e-7)
        counts = official(ids)[1]
        assert all(torch.equal(a, way.counts) for a, way in zip(counts, found.routing))
    # nothing has come where there are no coordinates
    gate_up = ours.layers[0].ffn.gate_up
    free = sorted(set(range(gate_up.out_features)) - set(gate_up.live_out))
    assert not gate_up.weight.grad[free].any() and not gate_up.bias.grad[free].any()


@pytest.mark.parametrize("name", ["helm_d_tiny", "helm_mice_tiny"])
def test_float64(name):
    official, ours = pair(name)
    official.double()
    ids = tokens()
    # RoPE is in float32 in both
    assert (ours.double()(ids).logits - published_logits(official, ids)).abs().max() < 1e-6


def test_documents_see_themselves_alone():
    ids = tokens(2, 30)
    sequence = torch.tensor([[0] * 9 + [1] * 14 + [2] * 7, [0] * 25 + [-1] * 5])
    for name in ("helm_d_tiny", "helm_mice_tiny"):
        official, ours = pair(name)
        blocked = sequence[:, :, None] != sequence[:, None]
        found = ours(ids, sequence_id=sequence).logits
        assert (found - published_logits(official, ids, blocked)).abs().max() < 2e-5
        masked = ours(
            ids, sequence_id=sequence.clamp(min=0), attention_mask=(sequence >= 0).long()
        ).logits
        assert torch.equal(masked, found)
        alone = ours(ids[:1, 9:23]).logits
        assert (found[:1, 9:23] - alone).abs().max() < 2e-5
        loss = ours(ids, labels=ids, sequence_id=sequence).cross_entropy
        parts = [(0, 0, 9), (0, 9, 23), (0, 23, 30), (1, 0, 25)]
        losses = [
            F.cross_entropy(found[b, i : j - 1], ids[b, i + 1 : j], reduction="sum")
            for b, i, j in parts
        ]
        assert torch.isclose(loss, sum(losses) / sum(j - i - 1 for _, i, j in parts), atol=1e-5)


@pytest.mark.parametrize("name", ["helm_d_tiny", "helm_mice_tiny"])
def test_a_mask_of_documents_computes_the_same_as_their_lengths(name):
    """A GPU takes the mask: it need not wait for the lengths."""
    torch.manual_seed(0)
    model = Helm(preset(name, vocab_size=20)).double().eval()
    ids = torch.randint(20, (2, 12))
    # the last document has the number of the first one
    numbers = torch.tensor([[0] * 5 + [1] * 4 + [0] * 3, [2] * 12])
    context = model.context(ids, sequence_id=numbers)
    masked = context._replace(mask=document_mask(numbers), lengths=None)
    assert context.mask is None and context.lengths == [5, 4, 3, 12]
    torch.testing.assert_close(model.hidden(ids, masked)[0], model.hidden(ids, context)[0])


def test_initial_state_is_the_published():
    torch.manual_seed(0)
    ours = PointEmbedding(4000, 390).weight.detach()
    theirs = initial_points(4000, 390)
    torch.testing.assert_close(ours[:, 0] ** 2, 1 + ours[:, 1:].square().sum(-1))
    for statistic in (lambda x: x[:, 1:].norm(dim=-1).mean(), lambda x: x[:, 1:].std()):
        assert torch.isclose(statistic(ours), statistic(theirs), rtol=1e-2)
    assert ours[:, 1:].norm(dim=-1).mean() == pytest.approx(1.17, abs=0.01)
    assert (Helm(preset("helm_mice_tiny")).layers[1].ffn.scale.exp() - 2).abs() < 1e-6


def test_joined_matrices_start_as_the_published_ones():
    """Xavier, gain sqrt(2), by the shape of each published matrix; HELM-D's states then grow as the
    sheet has it."""
    torch.manual_seed(0)
    mice = Helm(preset("helm_mice_120m", vocab_size=64, n_layers=2))
    latent, dense, expert = (
        mice.layers[0].attn.down,
        mice.layers[0].ffn.gate_up,
        mice.layers[1].ffn.experts[0].gate_up,
    )
    for layer, outputs in ((dense, (1559, 1559)), (expert, (779, 779)), (latent, (6 * 49, 81))):
        published = layer.weight.detach()[layer.live_out][:, layer.live_in].split(outputs)
        for weight in published:
            std = 2**0.5 * (2 / (390 + len(weight))) ** 0.5
            assert weight.std().item() == pytest.approx(std, rel=0.01), (outputs, len(weight))
    decoder = Helm(preset("helm_d_115m", vocab_size=500)).eval()
    with torch.no_grad():
        x = decoder.points(torch.randint(0, 500, (1, 64)))
        h, norms = decoder.first_norm(x), []
        for block in decoder.layers:
            x, h, _ = block(x, h, Context())
            norms.append(x[..., :389].norm(dim=-1).mean().item())
    assert norms[0] == pytest.approx(82, rel=0.08) and norms[-1] == pytest.approx(133, rel=0.08)


# Published counts have three curvatures of the model and, in the small ones, two numbers of a layer
# never used.
COUNTS = {
    "helm_d_115m": 114_770_253 - 5,
    "helm_mice_120m": 126_357_123 - 5,
    "helm_mice_1b": 966_829_461 - 3,
    "helm_mice_1b_eval": 924_854_259 - 3,
}


@each("name", COUNTS)
def test_parameter_counts(name):
    with torch.device("meta"):
        model = Helm(preset(name))
    buffers = sum(
        b.numel() for n, b in model.named_buffers() if n.endswith("bias")
    )  # parameters there
    assert model.num_parameters() + buffers == COUNTS[name]


def test_yarn(monkeypatch):
    """Slow pairs turn 40 times slower, fast ones as ever; the published class cannot be built with
    it."""
    config = preset(
        "helm_mice_tiny",
        max_seq_len=512,
        original_seq_len=256,
        qk_rope_head_dim=33,
        qk_nope_head_dim=8,
    )
    table = frequencies(32, 512, yarn=dict(original=256, fast=32, slow=1, factor=40.0))
    torch.testing.assert_close(angles(config, 32), table[1].angle())
    plain = 10000 ** (-torch.arange(0, 32, 2) / 32)
    ratio = angles(config, 32) / plain
    assert ratio[0] == 1 and ratio[-1] == pytest.approx(1 / 40)
    model = Helm(config).eval()
    factor = model.layers[0].attn.rotary.attention_factor
    assert factor == pytest.approx(
        (0.1 * torch.log(torch.tensor(40.0)).item() + 1) ** 2
    )  # multiplies, as DeepSeek's
    assert model(tokens(1, 300)).logits.isfinite().all()
    # a factor of the logits is as a scale that is divided by it
    found = model(tokens(1, 40)).logits
    with torch.no_grad():
        for block in model.layers:
            block.attn.scale /= factor
    monkeypatch.setattr(Rotary, "attention_factor", 1.0)
    torch.testing.assert_close(model(tokens(1, 40)).logits, found, rtol=1e-4, atol=1e-4)


def test_long_contexts_of_the_dense_model_are_not_stretched():
    """The published one has no YaRN, whatever its context."""
    official, ours = pair("helm_d_tiny", max_seq_len=2304)
    ids = tokens(1, 64)
    assert (ours(ids).logits - published_logits(official, ids)).abs().max() < 2e-5


def test_what_the_published_code_crashes_on():
    config = preset("helm_mice_tiny")
    with pytest.raises(ValueError, match="not enough values"):
        HelmMiCE(config).eval()(tokens())  # defect 1: no inference
    ours = Helm(config).eval()
    assert ours(tokens(1, 1)).logits.shape == (1, 1, 259)  # 5: one token, with an odd rank
    assert preset("helm_mice_120m").kv_lora_rank % 2 == 1
    for shared, active in ((0, 2), (2, 1), (3, 4)):  # 4
        model = Helm(preset("helm_mice_tiny", n_shared_experts=shared, n_activated_experts=active))
        model(tokens(1, 3), labels=tokens(1, 3)).loss.backward()
        # 12: nothing is without a gradient but experts without tokens
        assert all(
            p.grad is not None or ".experts." in name for name, p in model.named_parameters()
        )
    assert not any(name.endswith("attn_mask") or "freqs" in name for name in ours.state_dict())  # 7
    assert (
        preset("helm_mice_tiny", max_seq_len=100_000, original_seq_len=100_000).max_seq_len
        == 100_000
    )


def test_curvatures_cannot_become_negative():
    model = Helm(preset("helm_mice_tiny")).eval()
    for layer in model.layers[1:]:
        for expert in layer.ffn.experts:
            expert.c.data.fill_(-0.5)  # defect 10: what weight decay may do
    assert model(tokens()).logits.isfinite().all()


def test_options_by_their_other_names():
    """Later official code says moe_inter_dim, and ones are what is released."""
    named = preset("helm_mice_tiny", moe_inter_dim=70, expert_c_init="ones")
    assert named == preset("helm_mice_tiny", mice_inter_dim=70)
    model = Helm(preset("helm_mice_tiny", expert_c_init=[0.5, 1.0, 2.0, 10.0]))
    assert [expert.c.item() for expert in model.layers[1].ffn.experts] == [0.5, 1.0, 2.0, 10.0]
    with pytest.raises(
        HypvisionError, match="another name of mice_inter_dim, but they are 70 and 60"
    ):
        preset("helm_mice_tiny", moe_inter_dim=70, mice_inter_dim=60)
    with pytest.raises(
        HypvisionError, match="must be a finite number or a list or one of 'ones', got 'twos'"
    ):
        preset("helm_mice_tiny", expert_c_init="twos")
    with pytest.raises(HypvisionError, match="route_scale must be a finite number above 0, got -1"):
        preset("helm_mice_tiny", route_scale=-1.0)


@pytest.mark.parametrize("rule", ["proportional", "sign"])
def test_router_bias_follows_the_loads(rule):
    model = Helm(preset("helm_mice_tiny", bias_rule=rule))
    gate = model.layers[1].ffn.gate
    gate.follow(torch.tensor([6, 2, 0, 0]))
    step = torch.tensor([-0.5, 0.0, 0.25, 0.25])
    torch.testing.assert_close(gate.bias, 0.005 * (step.sign() if rule == "sign" else step))
    gate.bias[0], gate.bias[1] = -9.0, -9.0
    found = model(tokens()).routing[0]
    assert found.counts[:2].sum() == 0 and found.counts.sum() == 2 * tokens().numel()


@pytest.mark.parametrize("k", [2, 3])
def test_balance_loss_is_one_for_even_loads(k):
    """The published one divides by two experts a token whatever their number (defect 9)."""
    model = Helm(preset("helm_mice_tiny", n_activated_experts=k)).eval()
    ways = model(tokens()).routing
    counts, e, n = ways[0].counts, 4, tokens().numel()
    assert ways[0].balance >= (counts * e / (k * n)).min() * 0.99
    model.layers[1].ffn.gate.weight.data.zero_()  # even scores
    assert model(tokens()).routing[0].balance.item() == pytest.approx(1.0, abs=1e-5)


COMPILED = {
    "D": ("helm_d_tiny", {}),
    "MiCE": ("helm_mice_tiny", {}),
    "MiCE, centroid": ("helm_mice_tiny", dict(moe_combine="centroid", n_shared_experts=2)),
    "DeepSeek-like": ("helm_mice_tiny", dict(geometry="euclidean")),
}


@pytest.mark.quick("D-eager")
@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", COMPILED)
def test_compiles_to_one_graph(name, backend):
    """In plain operations, which a compiler fuses; the published mixture of two layers has 12
    breaks."""
    preset_name, options = COMPILED[name]
    block = (
        Helm(preset(preset_name, **options)).layers[1].double()
    )  # the compiler sums in another order
    found = []
    for run in (block, torch.compile(block, fullgraph=True, backend=backend)):
        x = made_points(block).double().requires_grad_()
        block.zero_grad()
        out, h, _ = run(x, x, Context())
        (out.square().mean() + (h if h is not None else out).sin().mean()).backward()
        found.append([out, x.grad, *(p.grad for p in block.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1])
    for eager, compiled in zip(*found):
        torch.testing.assert_close(compiled, eager, rtol=1e-8, atol=1e-10)


def made_points(block):
    """Points that the gate sends to all experts, ``(2, 24, width)``."""
    space = torch.randn(2, 24, block.layout.size, generator=torch.Generator().manual_seed(2))
    rest = F.pad(space, (0, block.layout.width - block.layout.size))
    return rest if block.layout.n is None else rows.lift(rest, block.layout.n)


def test_mistakes_are_sentences():
    cases = {
        "must be even": dict(dim=64, n_heads=2),
        "n_heads must divide": dict(n_heads=5),
        "geometry must be": dict(geometry="lorenz"),
        "expert_c_init": dict(n_routed_experts=4, expert_c_init=[1.0, -1.0]),
        "n_activated_experts": dict(n_routed_experts=2, n_activated_experts=3),
        "Did you mean n_layers": dict(n_layer=3),
        "v_head_dim must be at most": dict(attention="latent", v_head_dim=60),
        "qk_rope_head_dim = 16. Take an odd one, such as 17": dict(
            attention="latent", qk_rope_head_dim=16
        ),
    }
    for text, options in cases.items():
        with pytest.raises(HypvisionError, match=text):
            preset("helm_d_tiny", **options)
    with pytest.raises(HypvisionError, match="Did you mean helm_d_tiny"):
        preset("helm_d_tinny")
    model = Helm(preset("helm_d_tiny", max_seq_len=16))
    with pytest.raises(HypvisionError, match="more than the context of 16"):
        model(tokens(1, 17))
    with pytest.raises(HypvisionError, match="tokenizer that the model was trained with"):
        model(tokens(1, 8) + 259)
    for shape in (
        (8, 8),
        (2, 8, 8),
        (2, 1, 8, 8),
    ):  # defect 8: some of them are read as None, without a word
        with pytest.raises(HypvisionError, match="attention_mask must be"):
            model(tokens(2, 8), attention_mask=torch.ones(shape))


def test_tokens_on_another_device_are_checked_in_prompts_alone(monkeypatch):
    looked = []
    monkeypatch.setattr(
        "hypvision.helm.model.check_tokens", lambda ids, count: looked.append(ids.shape[1])
    )
    model, cache, ids = Helm(preset("helm_d_tiny")), LatentCache(), tokens(1, 8).to("meta")
    model.context(ids)
    model.context(ids, cache=cache)
    cache.update(torch.zeros(1, 2, 8, 32), torch.zeros(1, 2, 8, 32), 0)
    model.context(ids[:, :1], cache=cache)
    assert looked == [8]


def test_a_square_mask_is_one_of_tokens():
    """Defect 8: a mask of as many rows as tokens is read as one of pairs of tokens."""
    model, ids = Helm(preset("helm_d_tiny")).eval(), tokens(8, 8)
    mask = (torch.arange(8) >= torch.arange(8)[:, None] // 2).long()
    found = model(ids, attention_mask=mask).logits
    for row in range(8):
        alone = model(ids[row : row + 1, row // 2 :]).logits
        assert (found[row, row // 2 :] - alone[0]).abs().max() < 1e-4


FAR = MODELS | {
    "LLaMA-like": ("helm_d_tiny", dict(geometry="euclidean")),
    "DeepSeek-like": ("helm_mice_tiny", dict(geometry="euclidean", q_lora_rank=24)),
    "D, deep": ("helm_d_tiny", dict(n_layers=6)),
}


def of_length(model, length):
    """The model with embeddings of this length, in float64."""
    table = model.double().embed.weight
    with torch.no_grad():
        space = table[:, 1:] if isinstance(model.embed, PointEmbedding) else table
        space.copy_(F.normalize(space, dim=-1) * length)
        if isinstance(model.embed, PointEmbedding):
            table[:, 0] = torch.sqrt(1 + space.square().sum(-1))
    return model


@forms(FAR)
def test_far_embeddings(name, fused):
    """The loss is that of float64, and so are the gradients of the layers."""
    kind, options = FAR[name]
    ids = tokens(2, 12)
    for length in (1e6, 1e12):
        torch.manual_seed(0)
        model, found = of_length(Helm(preset(kind, fused=fused, **options)), length), []
        for dtype in (torch.float64, torch.float32):
            model = model.to(dtype)
            model.zero_grad()
            loss = model(ids, labels=ids).cross_entropy
            loss.backward()
            grads = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}
            assert all(grad.isfinite().all() for grad in grads.values())
            found.append((loss.item(), grads))
        (exact, wanted), (loss, grads) = found
        assert loss == pytest.approx(exact, rel=1e-2)
        for key in ("head.weight", "norm.weight"):
            assert (grads[key] - wanted[key]).norm() < 0.05 * wanted[key].norm(), (key, length)


# Of these all attentions, means and experts differ.
KINDS = {
    name: FAR[name]
    for name in ("D", "MiCE, latent queries", "MiCE, centroid", "DeepSeek-like", "LLaMA-like")
}


@forms(KINDS)
@torch.no_grad()
def test_a_broken_embedding_affects_only_tokens_that_attend_to_it(name, fused):
    kind, options = FAR[name]
    model, place = Helm(preset(kind, fused=fused, **options)).eval(), torch.arange(12)
    ids = tokens(3, 12, 258)
    ids[0, 5], ids[1, 1] = 258, 258
    numbers, mask = (place // 4).expand(3, 12), (place >= 2).long().expand(3, 12)
    later = torch.stack([place >= 5, place >= 1, place < 0])
    cases = {
        "whole": ({}, later),
        "documents": (
            dict(sequence_id=numbers),
            later & torch.stack([place < 8, place < 4, place < 0]),
        ),
        "padding": (
            dict(attention_mask=mask),
            later & torch.stack([place >= 5, place == 1, place < 0]),
        ),
    }
    clean = {case: model(ids, **given).logits for case, (given, _) in cases.items()}
    model.embed.weight[258] = float("nan")
    for case, (given, seen) in cases.items():
        found = model(ids, **given).logits
        assert torch.equal(found.isnan().all(-1), seen) and torch.equal(
            found.isnan().any(-1), seen
        ), case
        torch.testing.assert_close(found[~seen], clean[case][~seen], rtol=1e-4, atol=1e-4)
        if case == "documents":
            continue
        cache, parts = LatentCache(), []
        for i, j in ((0, 3), (3, 4), (4, 9), (9, 12)):
            part = {key: value[:, :j] for key, value in given.items()}
            parts.append(model(ids[:, i:j], cache=cache, **part).logits)
        parts = torch.cat(parts, 1)
        assert torch.equal(parts.isnan().any(-1), seen), case
        torch.testing.assert_close(parts[~seen], clean[case][~seen], rtol=1e-4, atol=1e-4)
    model.embed.weight[258] = float("inf")
    assert torch.equal(model(ids).logits.isnan().any(-1), later)


@forms(KINDS)
def test_no_tokens(name, fused):
    kind, options = FAR[name]
    model = Helm(preset(kind, fused=fused, **options))
    for batch, length in ((0, 8), (2, 0)):
        ids = torch.zeros(batch, length, dtype=torch.long)
        some = torch.zeros(batch, 1, dtype=torch.long)
        for given in (
            {},
            dict(position_ids=ids, attention_mask=torch.ones_like(ids)),
            dict(position_ids=ids, sequence_id=ids),
        ):
            model.zero_grad()
            assert model(ids, **given).logits.shape == (batch, length, 259)
            out = model(ids, labels=ids, **given)
            out.loss.backward()
            assert out.loss == 0 and all(
                p.grad is None or not p.grad.any() for p in model.parameters()
            )
        cache = LatentCache()
        with torch.no_grad():
            assert model(ids, cache=cache).logits.shape == (batch, length, 259)
            assert model(some, cache=cache).logits.shape == (batch, 1, 259)
            assert cache.get_seq_length() == length + 1


LARGE = {
    "helm_d_115m": {},
    "helm_mice_120m": {},
    # all layers with experts are of one size: the first dense one and two of them
    "helm_mice_1b": dict(n_layers=3, vocab_size=4096),
    "helm_mice_1b_eval": dict(n_layers=3, vocab_size=4096),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
@torch.no_grad()
def test_logits_at_full_size(name):
    """Random weights through the converter, at the published widths; of the 1B models three
    layers."""
    official, ours = pair(name, **LARGE[name])
    ids = tokens(1, 96, ours.config.vocab_size)
    expected, found = published_logits(official, ids), ours.eval()(ids)
    assert (found.logits - expected).abs().max() < 1e-4


@each("name", ["helm_d_tiny", "helm_mice_tiny"])
@each("geometry", ["lorentz", "euclidean"])
def test_learned_positions(name, geometry):
    """Without them a layer does not see the order of earlier tokens; with them it does, also from a
    cache."""
    torch.manual_seed(0)
    options = dict(n_layers=1, n_dense_layers=1) if name == "helm_mice_tiny" else dict(n_layers=1)
    model = Helm(preset(name, positions="learned", geometry=geometry, **options)).eval()
    ids = tokens(1, 12)
    turned = torch.cat([ids[:, :-1].flip(1), ids[:, -1:]], 1)
    with torch.no_grad():
        table = model.positions.weight.clone()
        model.positions.weight.zero_()
        torch.testing.assert_close(
            model(ids).logits[:, -1], model(turned).logits[:, -1], rtol=1e-4, atol=1e-4
        )
        model.positions.weight.copy_(20 * table)
        whole = model(ids).logits[:, -1]
        assert (whole - model(turned).logits[:, -1]).abs().max() > 1e-2
        cache = LatentCache()
        model(ids[:, :7], cache=cache)
        torch.testing.assert_close(
            model(ids[:, 7:], cache=cache).logits[:, -1], whole, rtol=1e-4, atol=1e-4
        )
    model(ids, labels=ids).loss.backward()
    used = model.positions.weight.grad.abs().sum(1) > 0
    assert used[:11].all() and not used[12:].any()


def positioned(name, positions):
    """A model whose learned positions are as large as its tokens."""
    torch.manual_seed(0)
    model = Helm(preset(name, positions=positions)).eval()
    if positions == "learned":
        with torch.no_grad():
            model.positions.weight.mul_(20)
    return model


@each("name", ["helm_d_tiny", "helm_mice_tiny"])
@each("positions", ["rotary", "learned"])
@torch.no_grad()
def test_packed_and_padded_documents_are_as_alone(name, positions):
    model, ids = positioned(name, positions), tokens(2, 20)
    ends = (0, 7, 16, 20)
    parts = list(zip(ends, ends[1:]))
    numbers = torch.cat([torch.full((2, j - i), n) for n, (i, j) in enumerate(parts)], 1)
    anew = torch.cat([torch.arange(j - i) for i, j in parts])[None]
    padded = numbers.masked_fill(numbers == 2, -1)
    packed = {
        "numbers": (parts, dict(sequence_id=numbers)),
        "positions": (parts, dict(position_ids=anew)),
        "both": (parts, dict(sequence_id=numbers, position_ids=anew)),
        "padding behind": (parts[:2], dict(sequence_id=padded)),
        "padding in front": (
            parts[1:],
            dict(sequence_id=numbers, attention_mask=(numbers > 0).long()),
        ),
    }
    for way, (documents, given) in packed.items():
        found = model(ids, **given).logits
        for i, j in documents:
            torch.testing.assert_close(
                found[:, i:j], model(ids[:, i:j]).logits, rtol=1e-4, atol=1e-4, msg=way
            )
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[0, :7] = 0
    alone = [model(ids[:1, 7:]).logits[0], model(ids[1:]).logits[0]]
    after = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)
    for ahead in (None, after):
        cache, found = LatentCache(), []
        for i, j in ((0, 12), (12, 13), (13, 20)):  # the prompt, one token and several
            own = None if ahead is None else ahead[:, i:j]
            found.append(
                model(ids[:, i:j], attention_mask=mask[:, :j], position_ids=own, cache=cache).logits
            )
        whole = model(ids, attention_mask=mask, position_ids=ahead).logits
        for logits in (whole, torch.cat(found, 1)):
            torch.testing.assert_close(logits[0, 7:], alone[0], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(logits[1], alone[1], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_given_positions_are_those_that_were_learned():
    model, ids = positioned("helm_d_tiny", "learned"), tokens(1, 6)
    limit, place = model.config.max_seq_len, torch.arange(6)[None]
    shifted = model(ids, position_ids=place + 3).logits
    model.positions.weight.copy_(model.positions.weight.roll(-3, 0))
    torch.testing.assert_close(model(ids).logits, shifted)
    for wrong in (place + limit - 5, place - 1):
        with pytest.raises(HypvisionError, match=f"position_ids must be from 0 to {limit - 1}"):
            model(ids, position_ids=wrong)
    assert model(ids[:, :0], position_ids=place[:, :0]).logits.shape[1] == 0

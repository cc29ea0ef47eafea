"""HELM as transformers' models: generating, saving, half precision, adapters."""

import inspect
import json

import pytest
import torch
from helpers.helm import tokens

from hypvision.checkpoints import sources
from hypvision.helm import Helm, LatentCache, preset
from hypvision.io.errors import HypvisionError
from hypvision.optim import RiemannianAdam, RiemannianAdamW, param_groups

transformers = pytest.importorskip("transformers")
from hypvision.helm.huggingface import HelmConfig, HelmForCausalLM  # noqa: E402

KINDS = {
    "D": ("helm_d_tiny", {}),
    "MiCE": ("helm_mice_tiny", dict(vocab_size=259)),
    "latent queries": ("helm_mice_tiny", dict(q_lora_rank=24, n_layers=2)),
    "LLaMA-like": ("helm_d_tiny", dict(geometry="euclidean")),
    "DeepSeek-like": ("helm_mice_tiny", dict(geometry="euclidean")),
}
OPTIONS = dict(max_new_tokens=8, pad_token_id=0, eos_token_id=258)


def model_of(kind: str) -> HelmForCausalLM:
    """A random model that is sure of itself, so that its greedy choice hangs on no last digit."""
    torch.manual_seed(0)
    name, options = KINDS[kind]
    model = HelmForCausalLM(HelmConfig.of(preset(name, **options))).eval()
    model.model.head.weight.data.mul_(8)
    return model


@pytest.fixture(scope="module", params=KINDS)
def model(request):
    return model_of(request.param)


@pytest.fixture(scope="module", params=["D", "MiCE"])
def published(request):
    """Both attentions, where the others differ in nothing that a test sees: their caches are
    compared for all kinds."""
    return model_of(request.param)


@torch.no_grad()
def test_cache_changes_nothing(model):
    ids = tokens(2, 14)
    full = model(ids, use_cache=False).logits
    for cache in (transformers.DynamicCache(), LatentCache()):
        parts = [
            model.model(ids[:, a:b], cache=cache).logits
            for a, b in ((0, 5), (5, 6), (6, 7), (7, 11), (11, 14))
        ]
        assert (torch.cat(parts, 1) - full).abs().max() < 1e-5 * full.abs().max()
    cache.crop(6)
    assert (
        model.model(ids[:, 6:9], cache=cache).logits - full[:, 6:9]
    ).abs().max() < 1e-5 * full.abs().max()
    cache.reorder(torch.tensor([1, 0]))
    again = model.model(ids[[1, 0], 9:10], cache=cache).logits
    assert (again - full[[1, 0], 9:10]).abs().max() < 1e-5 * full.abs().max()


@torch.no_grad()
def test_absorption_in_float64():
    model = Helm(preset("helm_mice_tiny", max_seq_len=64)).double().eval()
    ids, cache = tokens(2, 12), LatentCache()
    parts = [model(ids[:, a:b], cache=cache).logits for a, b in ((0, 6), (6, 7), (7, 12))]
    assert (torch.cat(parts, 1) - model(ids).logits).abs().max() < 1e-11
    config = model.config
    held = cache.layers[0].keys.shape[-1] + cache.layers[0].values.shape[-1]
    assert held == config.kv_lora_rank + config.qk_rope_head_dim - 1 + 2 * config.n_heads


@pytest.mark.parametrize("way", [dict(num_beams=1), dict(num_beams=3)], ids=["greedy", "beams"])
def test_generation(published, way):
    model, ids = published, tokens(2, 9)
    with_cache = model.generate(ids, do_sample=False, **way, **OPTIONS)
    assert torch.equal(
        with_cache, model.generate(ids, do_sample=False, use_cache=False, **way, **OPTIONS)
    )
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), ids], 1)
    mask = (torch.arange(12) >= 3).long().expand(2, 12)
    shifted = model.generate(padded, attention_mask=mask, do_sample=False, **way, **OPTIONS)
    assert torch.equal(shifted[:, 3:], with_cache)
    torch.manual_seed(0)
    assert model.generate(ids, do_sample=True, **OPTIONS).shape[1] <= 17


def test_a_pad_token_inside_of_a_prompt_is_named(published):
    """The error says what generate() makes of it, and the remedy that it names works."""
    ids = tokens(2, 9)
    ids[0, 4] = 0
    with pytest.raises(HypvisionError, match="if the pad token is among the tokens"):
        published.generate(ids, do_sample=False, **OPTIONS)
    found = published.generate(ids, attention_mask=torch.ones_like(ids), **OPTIONS)
    assert found.shape[1] > 9


def test_generation_in_training_mode_sees_the_whole_prompt(published):
    model = published
    prompt = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(4))
    found = model.eval().generate(prompt, max_new_tokens=5, do_sample=False)
    try:
        assert torch.equal(model.train().generate(prompt, max_new_tokens=5, do_sample=False), found)
    finally:
        model.eval()


def test_padding_on_either_side_changes_no_loss(model):
    text = torch.randint(0, 256, (1, 9), generator=torch.Generator().manual_seed(5))
    padding, there = torch.zeros(1, 3, dtype=text.dtype), torch.ones_like(text)
    alone = model(text, labels=text).loss
    for joined in (lambda a, b: torch.cat([b, a], 1), lambda a, b: torch.cat([a, b], 1)):
        ids = joined(text, padding)
        loss = model(ids, labels=ids, attention_mask=joined(there, padding)).loss
        torch.testing.assert_close(loss, alone, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_logits_of_positions(model):
    ids = tokens(2, 9)
    every = model(ids).logits
    for kept, expected in ((3, every[:, -3:]), (torch.tensor([1, 4]), every[:, [1, 4]])):
        for labels in (None, ids):
            torch.testing.assert_close(
                model(ids, labels=labels, logits_to_keep=kept).logits, expected
            )
    assert (
        HelmConfig(n_routed_experts=4, moe_inter_dim=70, expert_c_init="ones")
        .architecture()
        .mice_inter_dim
        == 70
    )


@torch.no_grad()
def test_auto_classes_and_half_precision(published, tmp_path):
    model, ids = published, tokens(2, 9)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    expected = model(ids).logits
    assert torch.equal(again(ids).logits, expected)
    assert (
        transformers.AutoConfig.from_pretrained(tmp_path).architecture()
        == model.config.architecture()
    )
    spread = expected.std()
    half = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert half.model.head.weight.dtype == torch.bfloat16
    assert (half(ids).logits - expected).abs().mean() < 0.05 * spread
    half.generate(ids, do_sample=False, **OPTIONS)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            assert (model(ids).logits - expected).abs().mean() < 0.05 * spread
        cast = again.to(dtype)  # .bfloat16() and .half()
        assert (cast(ids).logits - expected).abs().mean() < 0.05 * spread
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("options", [{}, dict(output_loading_info=True)])
def test_points_that_are_loaded_stay_on_the_hyperboloid(options, tmp_path):
    model_of("D").save_pretrained(tmp_path)
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, **options)
    model, ids = (found[0] if options else found).train(), tokens(2, 9)
    optimizer = RiemannianAdam(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    x = model.model.embed.weight.detach().double()[ids.unique()]
    inner = x[:, 1:].square().sum(-1) - x[:, 0] ** 2
    torch.testing.assert_close(inner, -torch.ones_like(inner), rtol=1e-5, atol=1e-5)


def test_half_precision_keeps_centroids():
    """Far values, whose norms bfloat16 as it comes misses by up to 80 %."""
    from hypvision.helm import rows
    from hypvision.helm.attention import Context, _attend_half

    g = torch.Generator().manual_seed(0)
    spaces = [torch.randn(1, 2, 64, 16, generator=g) * 2 for _ in range(3)]
    q, k, v = (rows.lift(torch.cat([space, torch.zeros(1, 2, 64, 1)], -1), 16) for space in spaces)
    q = torch.cat([q[..., :16], -q[..., 16:]], -1)
    exact = _attend_half(q, k, v, 16, 16, 1.0, Context(), torch.float32)
    half = _attend_half(q, k, v, 16, 16, 1.0, Context(), torch.bfloat16)
    norms = [x[..., 16] ** 2 - x[..., :16].square().sum(-1) for x in (exact, half)]
    assert norms[0].min() > 0.999
    assert ((norms[1] - norms[0]).abs() / norms[0]).quantile(0.99) < 0.25


@pytest.mark.parametrize("kind", ["D", "MiCE"])
def test_training(kind):
    model, ids = model_of(kind).train(), tokens(2, 9)
    model.model.config.aux_alpha = 0.0
    model(ids, labels=ids).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(ids, labels=ids).loss.backward()
    for name, p in model.named_parameters():
        if name in expected:
            torch.testing.assert_close(p.grad, expected[name], rtol=1e-4, atol=1e-6)
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(ids, labels=ids).loss
    half.backward()
    model.eval()
    full = model(ids, labels=ids)
    assert abs(half - full.loss) < 0.02 * full.loss and full.logits.shape == (2, 9, 259)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    "kind, targets", [("D", ["qkv", "out", "head"]), ("MiCE", ["down", "up", "gate_up", "out"])]
)
def test_lora(kind, targets):
    peft = pytest.importorskip("peft")
    ids, model = tokens(2, 9), model_of(kind)
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(target_modules=targets, task_type="CAUSAL_LM")
    )
    trained = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = adapted(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    adapted.eval()
    found = adapted.generate(input_ids=ids, do_sample=False, **OPTIONS)
    assert torch.equal(
        found, adapted.generate(input_ids=ids, do_sample=False, use_cache=False, **OPTIONS)
    )
    assert torch.equal(found, adapted.merge_and_unload().generate(ids, do_sample=False, **OPTIONS))


def test_trainer(tmp_path):
    """Of transformers, as docs/helm.md shows it: the points of the embedding stay on their
    hyperboloid."""
    pytest.importorskip("accelerate")
    model = model_of("MiCE")
    model.model.head.weight.data.div_(8)
    before = model.model.embed.weight.detach().clone()
    rows = [dict(input_ids=row, labels=row) for row in tokens(8, 12)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=12, per_device_train_batch_size=4, use_cpu=True, report_to=[],
        save_strategy="no", logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    optimizer = RiemannianAdamW(param_groups(model, lr=1e-2, weight_decay=0.1))
    trainer = transformers.Trainer(
        model, arguments, train_dataset=rows, optimizers=(optimizer, None)
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.5
    points = model.model.embed.weight.detach().double()
    assert (points - before).abs().amax() > 0.01
    space, time = points[:, 1:], points[:, 0]
    torch.testing.assert_close(time, (1 + space.square().sum(1)).sqrt(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("way", [{}, dict(num_beams=3)])
def test_padded_prompts_with_learned_positions_go_on_as_alone(way):
    torch.manual_seed(0)
    model = HelmForCausalLM(HelmConfig.of(preset("helm_d_tiny", positions="learned"))).eval()
    with torch.no_grad():
        model.model.head.weight.mul_(8)
        model.model.positions.weight.mul_(20)
    ids, mask = tokens(2, 14), torch.ones(2, 14, dtype=torch.long)
    mask[0, :5] = 0
    options = dict(max_new_tokens=8, pad_token_id=0, do_sample=False, **way)
    found = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(found[:1, 5:], model.generate(ids[:1, 5:], **options))
    assert torch.equal(found[1:], model.generate(ids[1:], **options))


def packed():
    """Three documents in a row, alone and packed, by positions that begin anew."""
    ids, ends = tokens(1, 30), (0, 9, 23, 30)
    parts = list(zip(ends, ends[1:]))
    positions = torch.cat([torch.arange(j - i) for i, j in parts])[None]
    return ids, parts, positions


@torch.no_grad()
def test_positions_that_begin_anew_tell_documents_apart(model):
    ids, parts, positions = packed()
    both, labels = ids.expand(2, -1), ids.clone()
    found = model(both, position_ids=positions).logits  # one row of positions for all
    for i, j in parts:
        alone = model(ids[:, i:j]).logits
        assert (found[:, i:j] - alone).abs().max() < 1e-5 * alone.abs().max()
    losses = [model(ids[:, i:j], labels=labels[:, i:j]).loss * (j - i - 1) for i, j in parts]
    loss = model(ids, labels=labels, position_ids=positions).loss
    torch.testing.assert_close(loss, sum(losses) / (30 - 3), rtol=1e-5, atol=1e-5)
    numbers = torch.cat([torch.full((1, j - i), n) for n, (i, j) in enumerate(parts)], 1)
    named = model(ids, position_ids=positions, sequence_id=numbers).logits
    assert (named - found[:1]).abs().max() < 1e-5 * found.abs().max()
    assert torch.equal(model(ids, position_ids=torch.arange(5, 35)[None]).logits, model(ids).logits)


@torch.no_grad()
def test_positions_with_padding_and_cache(model):
    ids, padding = tokens(2, 9), torch.zeros(2, 3, dtype=torch.long)
    mask = torch.tensor([[0] * 3 + [1] * 9, [1] * 12])
    padded = torch.cat([padding, ids], 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    expected = model(padded, attention_mask=mask).logits
    cache, parts = LatentCache(), []
    for i, j in ((0, 6), (6, 7), (7, 12)):
        given = dict(
            attention_mask=mask[:, :j],
            position_ids=positions[:, i:j],
            cache_position=torch.arange(i, j),
        )
        parts.append(model(padded[:, i:j], past_key_values=cache, **given).logits)
    found = torch.cat(parts, 1)
    assert ((found - expected) * mask[..., None]).abs().max() < 1e-5 * expected.abs().max()
    for mistake in (
        dict(attention_mask=mask, position_ids=positions + torch.tensor([[0] * 11 + [1]])),
        dict(position_ids=torch.arange(10)[None]),
        dict(position_ids=torch.arange(12)),
        dict(attention_mask=torch.ones_like(mask), position_ids=torch.arange(12)[None] % 5),
        dict(sequence_id=torch.zeros_like(padded), position_ids=torch.arange(12)[None] % 5),
        dict(
            attention_mask=torch.tensor([[1, 1, 0, 1] * 3] * 2),
            position_ids=torch.tensor([[0, 1, 1, 2] * 3]),
        ),
        dict(cache_position=torch.arange(1, 13)),
    ):
        with pytest.raises(HypvisionError, match="position"):
            model(padded, **mistake)
    for mistake in (dict(position_ids=torch.tensor([[0]])), dict(cache_position=torch.tensor([0]))):
        with pytest.raises(HypvisionError, match="position"):
            model(padded[:, :1], past_key_values=cache, **mistake)


# Every argument of forward(), and what it does to the model's answer; True: it is refused.
ARGUMENTS = {
    "input_ids": lambda model, ids: model(input_ids=ids.flip(1)).logits,
    "attention_mask": lambda model, ids: (
        model(ids, attention_mask=(torch.arange(9) > 2).expand(2, 9)).logits
    ),
    "position_ids": lambda model, ids: model(ids, position_ids=torch.arange(9)[None] % 4).logits,
    "sequence_id": lambda model, ids: (
        model(ids, sequence_id=torch.arange(9).expand(2, 9) // 4).logits
    ),
    "labels": lambda model, ids: model(ids, labels=ids.flip(1)).loss,
    "num_items_in_batch": lambda model, ids: model(ids, labels=ids, num_items_in_batch=5).loss,
    "cache": lambda model, ids: model(ids, cache=model(ids, use_cache=True)[1]).logits,
    "past_key_values": lambda model, ids: (
        model(ids, past_key_values=model(ids, use_cache=True)[1]).logits
    ),
    "cache_position": True,
    "use_cache": lambda model, ids: torch.tensor(len(model(ids, use_cache=False).keys())),
    "logits_to_keep": lambda model, ids: model(ids, logits_to_keep=2).logits,
    "inputs_embeds": True,
    "output_attentions": True,
    "output_hidden_states": lambda model, ids: torch.tensor(
        len(model(ids, output_hidden_states=True).keys())
    ),
    "return_dict": lambda model, ids: torch.tensor(
        isinstance(model(ids, return_dict=False), tuple)
    ),
}


def test_every_argument_is_honoured_or_refused():
    model, ids = model_of("MiCE"), tokens(2, 9)
    taken = inspect.signature(model.forward).parameters
    assert taken.keys() == ARGUMENTS.keys()
    assert not any(argument.kind is argument.VAR_KEYWORD for argument in taken.values())
    plain = model(ids, labels=ids, use_cache=True)
    for name, effect in ARGUMENTS.items():
        if effect is True:
            with pytest.raises(HypvisionError):
                model(ids, **{name: torch.ones(1)})
            continue
        found = effect(model, ids)
        expected = plain.loss if found.dim() == 0 and found.is_floating_point() else plain.logits
        expected = (
            expected
            if found.dim() or found.is_floating_point()
            else torch.tensor(len(plain.keys()) - 1)
        )
        assert found.shape != expected.shape or not torch.allclose(
            found.to(expected.dtype), expected
        ), name
    for misspelt in ("label", "attention_masks", "position_id"):
        with pytest.raises(TypeError, match=misspelt):
            model(ids, **{misspelt: ids})
        with pytest.raises((TypeError, ValueError), match=misspelt):
            model.generate(ids, max_new_tokens=2, pad_token_id=0, **{misspelt: ids})


def test_labels_belong_to_the_tokens():
    for network in (model_of("MiCE"), model_of("D").model.train()):
        ids = tokens(2, 9)
        for labels in (ids[:, :-1], ids[:1], torch.cat([ids, ids], 1), ids[0]):
            with pytest.raises(HypvisionError, match="labels must have the shape of the tokens"):
                network(ids, labels=labels)
        for wrong in (-1, 259):
            with pytest.raises(HypvisionError, match="The tokens go from"):
                network(ids, labels=ids.clone().fill_(wrong))
        cache = LatentCache()
        inner = getattr(network, "model", network)
        inner(ids, cache=cache)
        with pytest.raises(HypvisionError, match="no tokens may be in a cache"):
            inner(ids, labels=ids, cache=cache)


def trainer_gradients(kind, folder, batch, accumulated):
    """Gradients of one step of the Trainer over four rows of unequal numbers of labels."""
    model, found = model_of(kind), {}
    model.model.head.weight.data.div_(8)
    model.model.config.aux_alpha = (
        0.0  # of the loads in a batch: the mean of products is no product of means
    )
    ids = tokens(4, 12)
    rows = [
        dict(input_ids=row, labels=torch.where(torch.arange(12) < 3 * i, -100, row))
        for i, row in enumerate(ids)
    ]

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            found.update(
                {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
            )

    arguments = transformers.TrainingArguments(
        str(folder), max_steps=1, per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulated, use_cpu=True, report_to=[], save_strategy="no",
        disable_tqdm=True, max_grad_norm=0.0,
    )  # fmt: skip
    optimizers = (Optimizer(model.parameters(), lr=1e-3), None)
    transformers.Trainer(model, arguments, train_dataset=rows, optimizers=optimizers).train()
    return found


@pytest.mark.parametrize("kind", ["D", "MiCE"])
def test_the_trainer_accumulates_to_the_whole_batch(kind, tmp_path):
    """The mean over the labels of all micro-batches, not the mean of their means."""
    pytest.importorskip("accelerate")
    whole, parts = trainer_gradients(kind, tmp_path, 4, 1), trainer_gradients(kind, tmp_path, 1, 4)
    assert whole.keys() == parts.keys()
    whole, parts = (
        torch.cat([grad.flatten() for grad in found.values()]) for found in (whole, parts)
    )
    assert (parts - whole).norm() < 1e-4 * whole.norm()


def test_mistakes_are_sentences():
    model = model_of("D")
    cache = LatentCache()
    model.model(tokens(2, 4), cache=cache)
    with pytest.raises(HypvisionError, match="The cache holds 2 sequences"):
        model.model(tokens(1, 1), cache=cache)
    stock = model(tokens(3, 4), use_cache=True).past_key_values
    with pytest.raises(HypvisionError, match="The cache holds 3 sequences"):
        model(tokens(2, 1), past_key_values=stock)
    fixed = transformers.StaticCache(config=model.config, max_cache_len=20)
    for mistake in (
        lambda: model(tokens(2, 4), past_key_values=fixed),
        lambda: model.generate(
            tokens(2, 4), max_new_tokens=2, cache_implementation="static", pad_token_id=0
        ),
    ):
        with pytest.raises(
            HypvisionError, match="A StaticCache has empty places .* Give a DynamicCache"
        ):
            mistake()
    with pytest.raises(HypvisionError, match="tokenizer that the model was trained with"):
        model.generate(tokens(1, 4) + 259, max_new_tokens=2, do_sample=False, pad_token_id=0)
    with pytest.raises(HypvisionError, match="more than the context of 256"):
        model.generate(tokens(1, 250), max_new_tokens=20, do_sample=False, pad_token_id=0)
    for empty in ((0, 3), (2, 0)):
        with pytest.raises(HypvisionError, match="at least one prompt of at least one token"):
            model.generate(torch.zeros(empty, dtype=torch.long), max_new_tokens=2)
    with pytest.raises(HypvisionError, match="inputs_embeds"):
        model(inputs_embeds=torch.zeros(1, 2, 66))
    with pytest.raises(HypvisionError, match="vocabulary"):
        model.resize_token_embeddings(300)


def test_weights_by_a_name_of_the_zoo(tmp_path, monkeypatch):
    """Not a path: an address keeps its two slashes."""
    asked = []
    path = tmp_path / "helm.pth"
    torch.save(Helm(preset("helm_d_tiny", n_layers=1)).state_dict(), path)
    monkeypatch.setattr(sources, "resolve", lambda name: asked.append(name) or path)
    HelmForCausalLM.from_official("file:///folder#helm")
    assert asked == ["file:///folder#helm"]


def test_weights_that_are_not_there_are_an_error(tmp_path):
    """transformers itself draws what a file lacks, and runs on it."""
    from safetensors.torch import load_file, save_file

    model_of("D").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    name = next(iter(whole))
    for weights, words in (
        ({}, "do not fit the model"),
        (dict(list(whole.items())[::2]), "are missing or of another shape"),
        ({**whole, name: whole[name].int()}, f"are not real numbers .I32: {name}"),
        (
            {**whole, name: torch.full_like(whole[name], torch.nan)},
            f"NaN or infinite values in 1 tensors .{name}",
        ),
    ):
        save_file(weights, path, metadata={"format": "pt"})
        with pytest.raises(HypvisionError, match=words):
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    save_file(whole, tmp_path.with_suffix(".safetensors"), metadata={"format": "pt"})
    path.unlink()
    places = dict.fromkeys(whole, f"../{tmp_path.name}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps(dict(metadata={}, weight_map=places))
    )
    with pytest.raises(HypvisionError, match="must be the name of a file below this folder"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)

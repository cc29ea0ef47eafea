"""HELM as transformers' models: generating, saving, half precision, adapters."""

import pytest
import torch
from helpers.helm import tokens

from hypvision.checkpoints import sources
from hypvision.errors import HypvisionError
from hypvision.helm import Helm, LatentCache, preset
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


@torch.no_grad()
def test_cache_changes_nothing(model):
    ids = tokens(2, 14)
    full = model(ids, use_cache=False).logits
    for cache in (transformers.DynamicCache(), LatentCache()):
        parts = [model.model(ids[:, a:b], cache=cache).logits for a, b in ((0, 5), (5, 6), (6, 7), (7, 11), (11, 14))]
        assert (torch.cat(parts, 1) - full).abs().max() < 1e-5 * full.abs().max()
    cache.crop(6)
    assert (model.model(ids[:, 6:9], cache=cache).logits - full[:, 6:9]).abs().max() < 1e-5 * full.abs().max()
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
def test_generation(model, way):
    ids = tokens(2, 9)
    with_cache = model.generate(ids, do_sample=False, **way, **OPTIONS)
    assert torch.equal(with_cache, model.generate(ids, do_sample=False, use_cache=False, **way, **OPTIONS))
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), ids], 1)
    mask = (torch.arange(12) >= 3).long().expand(2, 12)
    shifted = model.generate(padded, attention_mask=mask, do_sample=False, **way, **OPTIONS)
    assert torch.equal(shifted[:, 3:], with_cache)
    torch.manual_seed(0)
    assert model.generate(ids, do_sample=True, **OPTIONS).shape[1] <= 17


def test_generation_in_training_mode_sees_the_whole_prompt(model):
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
            torch.testing.assert_close(model(ids, labels=labels, logits_to_keep=kept).logits, expected)
    assert HelmConfig(n_routed_experts=4, moe_inter_dim=70, expert_c_init="ones").architecture().mice_inter_dim == 70


@torch.no_grad()
def test_auto_classes_and_half_precision(model, tmp_path):
    ids = tokens(2, 9)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    expected = model(ids).logits
    assert torch.equal(again(ids).logits, expected)
    assert transformers.AutoConfig.from_pretrained(tmp_path).architecture() == model.config.architecture()
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
    q, k, v = (rows._with_time(torch.cat([space, torch.zeros(1, 2, 64, 1)], -1), 16) for space in spaces)
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


@pytest.mark.parametrize("kind, targets", [("D", ["qkv", "out", "head"]), ("MiCE", ["down", "up", "gate_up", "out"])])
def test_lora(kind, targets):
    peft = pytest.importorskip("peft")
    ids, model = tokens(2, 9), model_of(kind)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, task_type="CAUSAL_LM"))
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
    assert torch.equal(found, adapted.generate(input_ids=ids, do_sample=False, use_cache=False, **OPTIONS))
    assert torch.equal(found, adapted.merge_and_unload().generate(ids, do_sample=False, **OPTIONS))


def test_trainer(tmp_path):
    """Of transformers, as docs/helm.md shows it: the points of the embedding stay on their hyperboloid."""
    pytest.importorskip("accelerate")
    model = model_of("MiCE")
    model.model.head.weight.data.div_(8)
    before = model.model.embed.weight.detach().clone()
    rows = [dict(input_ids=row, labels=row) for row in tokens(8, 12)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=12, per_device_train_batch_size=4, use_cpu=True, report_to=[], save_strategy="no",
        logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    optimizer = RiemannianAdamW(param_groups(model, lr=1e-2, weight_decay=0.1))
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, optimizers=(optimizer, None))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.5
    points = model.model.embed.weight.detach().double()
    assert (points - before).abs().amax() > 0.01
    space, time = points[:, 1:], points[:, 0]
    torch.testing.assert_close(time, (1 + space.square().sum(1)).sqrt(), rtol=1e-5, atol=0)


def test_mistakes_are_sentences():
    model = model_of("D")
    cache = LatentCache()
    model.model(tokens(2, 4), cache=cache)
    with pytest.raises(HypvisionError, match="The cache is of a batch of 2"):
        model.model(tokens(1, 1), cache=cache)
    stock = model(tokens(3, 4), use_cache=True).past_key_values
    with pytest.raises(HypvisionError, match="The cache is of a batch of 3"):
        model(tokens(2, 1), past_key_values=stock)
    fixed = transformers.StaticCache(config=model.config, max_cache_len=20)
    for mistake in (
        lambda: model(tokens(2, 4), past_key_values=fixed),
        lambda: model.generate(tokens(2, 4), max_new_tokens=2, cache_implementation="static", pad_token_id=0),
    ):
        with pytest.raises(HypvisionError, match="A StaticCache has room .* Give a DynamicCache"):
            mistake()
    with pytest.raises(HypvisionError, match="attention_mask must be"):
        model(tokens(2, 4), attention_mask=torch.ones(2, 1, 4, 4))
    with pytest.raises(HypvisionError, match="tokenizer that the model was trained with"):
        model.generate(tokens(1, 4) + 259, max_new_tokens=2, do_sample=False, pad_token_id=0)
    with pytest.raises(HypvisionError, match="more than the context of 256"):
        model.generate(tokens(1, 250), max_new_tokens=20, do_sample=False, pad_token_id=0)
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

"""What every adapter of CLIP does, whatever the method: a new one joins by a row of
:data:`METHODS`."""

import copy
import json
import math
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import clip_models
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from hypvision.checkpoints.match import ADAPTER_NAMES
from hypvision.clip import adapters
from hypvision.clip.adapters.base import _Base, _check_base
from hypvision.clip.towers import encode_dense, encode_text
from hypvision.io.errors import HypvisionError

MODELS = {
    "openai": clip_models.openai_clip,
    "siglip": clip_models.siglip,
    "custom": clip_models.custom_blocks,
}


@dataclass
class Method:
    """A config of a method that is tested.

    Attributes:
        options: of ``inject``, with ``type``.
        identity: the outputs are the base model's until something is learned.
        merges: plain weights can express it.
        models: which of :data:`MODELS` it is for.
    """

    options: dict[str, Any]
    identity: bool = True
    merges: bool = True
    models: tuple[str, ...] = ("openai",)


METHODS = {
    "hyperclip": Method(dict(type="hyperclip", block=16), models=tuple(MODELS)),
    "hyperclip-feature": Method(dict(type="hyperclip", block=16, form="feature"), merges=False,
                                models=("openai", "siglip")),
    "lathadapter": Method(dict(type="lathadapter", attributes=3), identity=False, merges=False),
    "lora": Method(dict(type="lora", rank=2, projections="qkv"), models=tuple(MODELS)),
    "vpt": Method(dict(type="vpt", tokens=3), identity=False, merges=False),
    "bottleneck": Method(dict(type="bottleneck", width=4), merges=False, models=tuple(MODELS)),
    "hyperclip-official": Method(dict(type="hyperclip", block=16, official_dense_only=True),
    merges=False),
}  # fmt: skip
assert (
    {method.options["type"] for method in METHODS.values()}
    == {*adapters.ADAPTERS}
    == {*ADAPTER_NAMES}
)
EVERY = [(name, kind) for name, method in METHODS.items() for kind in method.models]
FIRST = [(name, method.models[0]) for name, method in METHODS.items()]


@pytest.fixture(params=EVERY, ids="-".join)
def case(request):
    """A method, how to make its base model, and such a model with the adapter."""
    name, kind = request.param
    method, make = METHODS[name], MODELS[kind]
    return method, make, adapters.inject(make(), method.options)


@pytest.fixture(params=FIRST, ids="-".join)
def first_case(request):
    """The same for one kind of model."""
    name, kind = request.param
    method, make = METHODS[name], MODELS[kind]
    return method, make, adapters.inject(make(), method.options)


def embed(model, images):
    """What a method makes of images: their embeddings, or logits where it works behind the
    towers."""
    features = model.encode_image(images)
    if adapters.is_injected(model, "lathadapter"):
        text = encode_text(model, clip_models.prompts().to(images.device))
        return adapters.adapter_of(model, "lathadapter").module(features, text, 10.0).logits
    return features


def outputs(model, seed=0):
    images, tokens = clip_models.random_images(model, seed=seed), clip_models.prompts(seed=seed)
    model.eval()
    with torch.no_grad():
        return [embed(model, images), encode_text(model, tokens), encode_dense(model, images)[0]]


def difference(a, b):
    return max(float((x - y).abs().max()) for x, y in zip(a, b))


def learn(model, noise=0.1):
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in adapters.trainable_parameters(model):
            parameter.add_(noise * torch.randn_like(parameter))
    return model


def backward(model):
    images, tokens = clip_models.random_images(model), clip_models.prompts()
    if adapters.is_injected(model, "lathadapter"):
        module = adapters.adapter_of(model, "lathadapter").module
        text = F.normalize(encode_text(model, tokens), dim=-1).float()
        loss = module.ball.cdist(module.lift(text), module.lift(module.nodes())).mean()
        loss.backward()
        return loss.detach()
    dense = encode_dense(model, images)[0].mean((-1, -2))
    image, text = model.encode_image(images), encode_text(model, tokens)
    loss = (
        F.mse_loss(F.normalize(image, dim=-1), F.normalize(text[:2], dim=-1))
        + dense.square().mean()
    )
    loss.backward()
    return loss.detach()


def test_every_method_is_tested():
    assert {method.options["type"] for method in METHODS.values()} == set(adapters.ADAPTERS)


def test_config_is_a_frozen_documented_dataclass():
    for name, method in adapters.ADAPTERS.items():
        assert is_dataclass(method.Config) and method.name == name
        config = method.Config()
        documented = method.Config.__doc__.partition("Attributes:")[2]
        for field in fields(config):
            assert field.name in documented, field.name
        with pytest.raises(AttributeError):
            setattr(config, fields(config)[0].name, None)
        assert method.Config.from_options(asdict(config)) == config
        with pytest.raises(HypvisionError, match="has no option ranks?x"):
            method.Config.from_options(dict(rankx=1))


def test_ways_to_inject(first_case):
    method, make, model = first_case
    own = adapters.adapter_of(model)
    options = {key: value for key, value in method.options.items() if key != "type"}
    for other in (
        adapters.inject(make(), own.config),
        adapters.inject(make(), method.options["type"], **options),
        adapters.inject(make(), options, type=own.name),
    ):
        assert adapters.adapter_of(other).config == own.config and adapters.is_injected(
            other, own.name
        )
        assert list(other.state_dict()) == list(model.state_dict())
    with pytest.raises(HypvisionError, match="config or its fields"):
        adapters.inject(make(), own.config, **options)


def test_outputs_begin_as_those_of_the_base_model_and_change_by_learning(case):
    method, make, model = case
    base, before = outputs(make()), outputs(model)
    assert not method.identity or difference(base, before) <= 1e-5
    tuned = outputs(learn(model))
    assert difference(before, tuned) > 1e-3 and all(x.isfinite().all() for x in tuned)


def test_names_are_those_of_the_base_model_and_its_own(case):
    method, make, model = case
    plain, given = make().state_dict(), model.state_dict()
    own = adapters.adapter_state_dict(model)
    assert set(given) == set(plain) | set(own) and not set(plain) & set(own)
    assert all(method.options["type"] in name.split(".") for name in own)
    assert all(torch.equal(given[name], plain[name]) for name in plain)
    parameters = dict(model.named_parameters())
    learned = adapters.trainable_parameters(model)
    assert {id(parameters[name]) for name in own} == {id(parameter) for parameter in learned}
    # Weights of a plain model go in under their names, and all of it comes out again.
    other = adapters.inject(make(), method.options)
    changed = {
        name: torch.randn_like(value) if value.is_floating_point() else value
        for name, value in given.items()
    }
    found = other.load_state_dict(changed)
    assert not found.missing_keys and not found.unexpected_keys
    assert all(torch.equal(value, changed[name]) for name, value in other.state_dict().items())
    found = other.load_state_dict(plain, strict=False)
    assert set(found.missing_keys) == set(own) and not found.unexpected_keys


def test_only_the_adapter_trains(case):
    _, make, model = case
    model.train()
    names = [name for name, _ in model.named_parameters()]
    backward(learn(model))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == set(adapters.adapter_state_dict(model))
    gradients = [parameter.grad for parameter in adapters.trainable_parameters(model)]
    assert all(grad is None or grad.isfinite().all() for grad in gradients)
    assert (
        sum(float(grad.abs().max()) > 0 for grad in gradients if grad is not None)
        > len(gradients) / 2
    )
    assert [name for name, _ in model.named_parameters()] == names  # optimisers number them
    assert all(
        torch.equal(value, model.state_dict()[name]) for name, value in make().state_dict().items()
    )


def test_a_training_step_is_seen_at_once(first_case):
    _, _, model = first_case
    model.train()
    optimizer = torch.optim.AdamW(adapters.trainable_parameters(model), lr=1e-2)
    losses = []
    for _ in range(6):
        losses.append(float(backward(model)))
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.9 * losses[0]
    found = outputs(model)
    assert (
        difference(found, outputs(copy.deepcopy(model))) < 1e-5
    )  # a copy computes everything anew


def test_gradients_do_not_depend_on_how_often_a_model_is_called(first_case):
    """Two passes in one graph, two backwards, activations computed again: the sum of what each
    gives."""
    method, make, _ = first_case
    found = []
    for checkpointing, together in ((False, False), (False, True), (True, True)):
        model = learn(adapters.inject(make(), method.options)).train()
        model.set_grad_checkpointing(checkpointing)
        losses = [
            embed(model, clip_models.random_images(model, seed=seed)).square().sum()
            for seed in (0, 1)
        ]
        if together:
            sum(losses).backward()
        else:
            for loss in losses:
                loss.backward()
        found.append([parameter.grad for parameter in adapters.trainable_parameters(model)])
    for other in found[1:]:
        for a, b in zip(found[0], other):
            assert (a is None) == (b is None) and (
                a is None or torch.allclose(a, b, rtol=1e-4, atol=1e-5)
            )


def test_precisions(first_case):
    method, make, model = first_case
    expected = outputs(learn(model))
    half = learn(adapters.inject(make().bfloat16(), method.options)).eval()
    assert all(
        parameter.dtype == torch.float32 for parameter in adapters.trainable_parameters(half)
    )
    with torch.no_grad():
        text = encode_text(half, clip_models.prompts())
    assert text.dtype == torch.bfloat16
    assert F.cosine_similarity(text.float(), expected[1]).min() > 0.99
    model.train()
    with torch.autocast("cpu", torch.bfloat16):
        backward(model)
    for parameter in adapters.trainable_parameters(model):
        assert parameter.grad is None or (
            parameter.grad.dtype == torch.float32 and parameter.grad.isfinite().all()
        )
    model.eval().double()
    with torch.no_grad():
        double = embed(model, clip_models.random_images(model).double())
    assert double.dtype == torch.double and (double - expected[0]).abs().max() < 1e-4


def test_copies_are_independent(first_case):
    _, make, model = first_case
    model.train()
    graph = embed(model, clip_models.random_images(model))
    before = outputs(learn(model))
    other = copy.deepcopy(model)
    assert graph.requires_grad and difference(outputs(other), before) < 1e-5
    learn(other)
    assert difference(outputs(other), before) > 1e-4 and difference(outputs(model), before) < 1e-5
    adapters.remove(other)
    assert difference(outputs(other), outputs(make())) < 1e-5
    assert adapters.is_injected(model) and difference(outputs(model), before) < 1e-5
    adapters.remove(model)
    assert difference(outputs(model), outputs(make())) < 1e-5


def test_merged_it_is_a_plain_model(case):
    method, make, model = case
    tuned = outputs(learn(model))
    if not method.merges:
        with pytest.raises(HypvisionError, match="cannot be merged"):
            adapters.merge(model)
        assert difference(outputs(model), tuned) < 1e-5
        return
    assert adapters.merge(model) is model and not adapters.is_injected(model)
    assert list(model.state_dict()) == list(make().state_dict())
    assert difference(outputs(model), tuned) <= 1e-5
    plain = make()
    plain.load_state_dict(model.state_dict())
    assert difference(outputs(plain), outputs(model)) < 1e-5


def test_removed_it_is_the_base_model(case):
    method, make, model = case
    learn(model)
    backward(model.train())
    assert adapters.remove(model) is model and not adapters.is_injected(model)
    plain = make()
    assert [name for name, _ in model.named_parameters()] == [
        name for name, _ in plain.named_parameters()
    ]
    assert all(
        torch.equal(value, plain.state_dict()[name]) for name, value in model.state_dict().items()
    )
    for module, other in zip(model.modules(), plain.modules(), strict=True):
        assert type(module) is type(other) and module.__dict__.keys() == other.__dict__.keys()
        assert all(not value for name, value in vars(module).items() if name.endswith("_hooks"))
    assert difference(outputs(model), outputs(plain)) < 1e-5
    adapters.inject(model, method.options)  # and can be adapted again
    with pytest.raises(HypvisionError, match="already"):
        adapters.inject(model, method.options)


def test_saved_and_loaded(case, tmp_path):
    _, make, model = case
    learn(model)
    path = adapters.save(model, tmp_path / "new" / "adapter.safetensors")
    assert [file.name for file in path.parent.iterdir()] == ["adapter.safetensors"]
    count = sum(parameter.numel() for parameter in adapters.trainable_parameters(model))
    assert path.stat().st_size < 1.2 * 4 * count + 15_000
    with safe_open(path, framework="pt") as file:
        assert set(file.keys()) == set(adapters.adapter_state_dict(model))
    fresh = adapters.load(make(), path)
    assert adapters.adapter_of(fresh).config == adapters.adapter_of(model).config
    assert difference(outputs(fresh), outputs(model)) < 1e-5
    text = adapters.summary(model)
    assert text.startswith(f"{count:,} of ") and "\n" not in text and "train, too" not in text
    model.logit_scale.requires_grad_()
    assert adapters.summary(model).endswith("; 1 others train, too")


# Files of other models, and mistakes; the same code for all methods


HEADERS = [
    None, "{}", "[1]", '{"config": {"rank": 1}, "base": {}}',
    '{"type": "dora", "config": {}, "base": {}}',
    '{"type": "hyperclip", "config": {"text_layers": 1.5}, "base": {}}',
]  # fmt: skip


def test_adapters_of_other_models_are_refused(tmp_path):
    make = clip_models.openai_clip
    model = adapters.inject(make(), block=16)
    path = adapters.save(model, tmp_path / "a.safetensors")

    def fails(mentioned, target, file=path, **options):
        with pytest.raises(HypvisionError, match=mentioned):
            adapters.load(target, file, **options)
        assert not adapters.is_injected(target) or target is model

    fails("text tower has 3 blocks of width 32, .* 2 ", make(2))
    other = make()
    for parameter in other.parameters():
        parameter.data.mul_(1.5)
    fails("other weights", other)
    adapters.load(other, path, strict=False)
    fails("There is no adapter", make(), tmp_path / "none.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"x" * 100)
    fails("broken.safetensors", make(), tmp_path / "broken.safetensors")
    torch.save({}, tmp_path / "training.pth")
    fails("training.pth.*load_segmenter", make(), tmp_path / "training.pth")
    fails("'hyperclip' already", model)
    plain = tmp_path / "plain.safetensors"
    for content in HEADERS:
        save_file({"a": torch.ones(1)}, plain, metadata=content and {"adapter": content})
        fails("adapters.save", make(), plain)
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    save_file({"hyperclip.q": torch.ones(1)}, plain, metadata=header)
    fails("does not fit", make(), plain)
    # As two random initialisations: of the same sizes, with nothing else in common.
    half = adapters.save(adapters.inject(make().bfloat16(), block=16), tmp_path / "b.safetensors")
    adapters.load(make(), half)
    other = make()
    for parameter in other.parameters():
        parameter.data.neg_()
    fails("begin differently", other, half)


def test_how_alike_a_base_model_must_be():
    """As bfloat16 is: one in a hundred, of the mean size, and of each number and of the mean size
    together."""
    own = {"text": dict(mean_abs=1.0, sample=[1.0, 0.0])}
    for mean, first, same in (
        (1.009, 1.0, True),
        (1.011, 1.0, False),
        (1.0, 1.019, True),
        (1.0, 1.022, False),
    ):
        base = {"text": _Base(1, 1, mean, [first, 0.0])}
        with (
            nullcontext()
            if same
            else pytest.raises(HypvisionError, match="trained on other weights")
        ):
            _check_base(own, base, Path("adapter.safetensors"))


def test_an_interrupted_save_leaves_the_old_file(tmp_path, monkeypatch):
    model = adapters.inject(clip_models.openai_clip(), block=16)
    path = tmp_path / "adapter.safetensors"
    path.write_text("old")

    def full(*args, **kwargs):  # as safetensors words it
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr("hypvision.checkpoints.storage.save_file", full)
    with pytest.raises(HypvisionError, match="was not written: the disk is full"):
        adapters.save(model, path)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


OPTIONS = [  # of HyperCLIP, and what the error mentions
    (dict(blocks=16), "blocks.*block"),
    (dict(block=64), "32"),
    (dict(block=16, vision_layers=(4,)), "0 to 3"),
    (dict(block=16, text_layers=(1, 1)), "0 to 2"),
    (dict(projections="qo"), "letters"),
    (dict(form="both"), "'weight', 'feature'.*'both'"),
    (dict(text=False, vision=False), "nothing"),
    (dict(text_layers=(), vision_layers=()), "no transformer tower"),
    (dict(c_text=0), "c_text"),
]


def test_mistakes_are_explained(tmp_path):
    def fails(mentioned, function, *args, **options):
        with pytest.raises(HypvisionError, match=mentioned) as caught:
            function(*args, **options)
        assert "\n" not in str(caught.value)

    model = clip_models.openai_clip()
    for name in ("trainable_parameters", "merge", "remove", "summary"):
        fails("no adapter", getattr(adapters, name), model)
    fails("'dora'.*bottleneck", adapters.inject, model, "dora")
    fails("no transformer tower", adapters.inject, torch.nn.Linear(2, 2))
    for options, mentioned in OPTIONS:
        fails(mentioned, adapters.inject, model, **options)
    assert not adapters.is_injected(model) and all(p.requires_grad for p in model.parameters())
    adapters.inject(model, block=16)
    fails(".safetensors", adapters.save, model, tmp_path / "a.pth")
    fails(r"\(hyperclip\), got 'prompts'", adapters.merge, model, "prompts")


# Two methods on one model


@dataclass(frozen=True)
class ScaleConfig(adapters.AdapterConfig):
    """Of a method that this file needs: the logit scale of a model is multiplied."""

    start: float = 0.0


class Scale(adapters.Adapter):
    name, Config = "scale", ScaleConfig

    def attach(self):
        self.model.scale = torch.nn.Linear(1, 1)

    def detach(self):
        del self.model.scale

    def describe(self):
        return "a scale"


def test_two_methods_on_one_model(monkeypatch, tmp_path):
    monkeypatch.setitem(adapters.ADAPTERS, "scale", Scale)
    make = clip_models.openai_clip
    model = adapters.inject(adapters.inject(make(), block=16), "scale")
    both, own = adapters.trainable_parameters(model), adapters.trainable_parameters(model, "scale")
    assert len(own) == 2 and len(both) == len(own) + len(
        adapters.trainable_parameters(model, "hyperclip")
    )
    assert all(parameter.requires_grad for parameter in both)
    with pytest.raises(
        HypvisionError, match=r"one of the model's adapters \(hyperclip, scale\), got None"
    ):
        adapters.save(model, tmp_path / "a.safetensors")
    with pytest.raises(
        HypvisionError, match="'scale' cannot be merged, because weights of a plain CLIP cannot"
    ):
        adapters.merge(model, "scale")
    path = adapters.save(model, tmp_path / "a.safetensors", "scale")
    other = adapters.load(make(), path)
    assert torch.equal(other.scale.weight, model.scale.weight)
    adapters.remove(model, "scale")
    assert adapters.adapter_of(model).name == "hyperclip" and not hasattr(model, "scale")


def test_parameters_have_one_order():
    """Optimisers number parameters: the blocks come after everything else of their transformer
    block, as q, k, v."""
    model = adapters.inject(clip_models.openai_clip(), block=16)
    names = [name for name, _ in model.named_parameters()]
    for stem in ("transformer.resblocks.1.", "visual.transformer.resblocks.2."):
        within = [name.removeprefix(stem) for name in names if name.startswith(stem)]
        assert within[-3:] == ["hyperclip.q", "hyperclip.k", "hyperclip.v"] and len(within) == 15


HEADERS = {
    "brackets without end": lambda about: "[" * 200_000,
    "no width": lambda about: [tower.pop("width") for tower in about["base"].values()] and None,
    "a size in words": lambda about: (
        [tower.update(mean_abs="x") for tower in about["base"].values()] and None
    ),
    "a sample of words": lambda about: (
        [tower.update(sample="x") for tower in about["base"].values()] and None
    ),
    "a sample of another length": lambda about: (
        [tower.update(sample=[1]) for tower in about["base"].values()] and None
    ),
}


def test_damaged_headers_are_refused(tmp_path):
    target = clip_models.openai_clip()
    path = adapters.save(
        adapters.inject(clip_models.openai_clip(), block=16), tmp_path / "a.safetensors"
    )
    with safe_open(path, framework="pt") as file:
        header = file.metadata()["adapter"]
    for damage in HEADERS.values():
        about = json.loads(header)
        text = damage(about) or json.dumps(about)
        save_file(load_file(path), tmp_path / "bad.safetensors", metadata={"adapter": text})
        with pytest.raises(HypvisionError, match="bad.safetensors'"):
            adapters.load(target, tmp_path / "bad.safetensors")
        assert not adapters.is_injected(target)


def test_weights_of_another_kind_do_not_get_in(tmp_path, caplog):
    make = clip_models.openai_clip
    path = adapters.save(adapters.inject(make(), block=16), tmp_path / "a.safetensors")
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    for change in (torch.Tensor.long, torch.Tensor.bool, lambda value: value.to(torch.complex64)):
        save_file(
            {name: change(value) for name, value in load_file(path).items()},
            tmp_path / "b.safetensors",
            header,
        )
        with pytest.raises(
            HypvisionError, match="does not fit this model.*instead of real numbers"
        ):
            adapters.load(make(), tmp_path / "b.safetensors")
    save_file(
        {name: value * math.nan for name, value in load_file(path).items()},
        tmp_path / "c.safetensors",
        header,
    )
    adapters.load(make(), tmp_path / "c.safetensors")
    assert "has NaN or infinite values" in caplog.text

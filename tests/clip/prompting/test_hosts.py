"""Hosts against the official formulation, sequence by sequence, and their invariants."""

import copy
import inspect
from unittest import mock

import open_clip
import pytest
import torch
import torch.nn.functional as F
from helpers import clip_models
from helpers.cases import each
from helpers.fewshot import NAMES, OTHERS, bundle, shaken, tokenize
from references import fewshot as reference

from hypvision.clip import prompting
from hypvision.clip.models import CLIPBundle
from hypvision.clip.prompting import HOSTS, build_host, load_learned
from hypvision.clip.prompting import hosts as module
from hypvision.clip.towers import encode_text, text_part
from hypvision.data.classes import SELECTED, imagenet_templates
from hypvision.data.fewshot import LAYOUTS
from hypvision.io.errors import HypvisionError

PROMPTED = {
    "coop": dict(tokens=3),
    "cocoop": dict(tokens=2),
    "deep-vision": dict(tokens=3, depth=3),
    "deep-language": dict(tokens=2, depth=3),
    "ivlp": dict(text=2, vision=3, depth=3),
    "maple": dict(tokens=2, depth=3),
    "promptsrc": dict(text=2, vision=3, depth=3, templates=4),
}
LABELS = torch.tensor([2, 0, 1])


def make(name, clip=None, **options):
    host = build_host(clip or bundle(), name, **{**PROMPTED.get(name, {}), **options})
    host.set_classes(NAMES)
    return shaken(host)


def host_images(host, count=3):
    return clip_models.random_images(host.clip, count)


def close(a, b, tolerance=2e-5):
    a, b = a.detach(), b.detach()
    assert (a - b).abs().max() < tolerance * max(1.0, float(b.abs().max())), float(
        (a - b).abs().max()
    )


def gradients(loss, host):
    parameters = list(host.learner.parameters())
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found)]


def expected_maple(host, images, emulate=False):
    learner = host.learner
    pairs = [(p.weight, p.bias) for p in learner.projections]
    return reference.maple(
        host.clip,
        tokenize,
        NAMES,
        images,
        learner.ctx,
        list(learner.deep_text),
        pairs,
        emulate=emulate,
    )


@pytest.mark.parametrize("emulate", [False, True])
def test_maple(emulate):
    host = make("maple", emulate_half=emulate)
    images = host_images(host)
    found, expected = host(images).logits(), expected_maple(host, images, emulate)
    close(found, expected)
    a, b = (gradients(F.cross_entropy(x, LABELS), host) for x in (found, expected))
    for x, y in zip(a, b):
        close(x, y, 1e-4)
    if emulate:  # what rounding changes
        host.learner.emulate_half = False
        assert 1e-6 < (host(images).logits() - found).abs().max() < 1e-1


def test_promptsrc():
    host = make("promptsrc").train()
    images, learner = host_images(host), host.learner
    out = host(images, LABELS)
    expected, prompted = reference.promptsrc(
        host.clip, tokenize, NAMES, images, LABELS, learner.ctx, list(learner.deep_text),
        [learner.visual, *learner.deep_visual], imagenet_templates(4),
    )  # fmt: skip
    found = dict(ce=out.fit(out.logits(), LABELS), **out.losses)
    close(out.logits(), prompted)
    for name, value in expected.items():
        close(found[name], value, 1e-4)
        for x, y in zip(gradients(found[name], host), gradients(value, host)):
            close(x, y, 1e-4)
    assert not host.eval()(images).losses


@each("position, per_class", [("end", False), ("end", True), ("middle", True), ("front", False)])
def test_coop(position, per_class):
    host = make("coop", tokens=4, position=position, per_class=per_class, classes=len(NAMES))
    images, prefix = host_images(host), "X X X X"
    texts = reference.class_texts(
        host.clip, tokenize, prefix, NAMES, host.learner.ctx, position=position
    )
    expected = reference.logits(host.clip, reference.image_features(host.clip, images), texts)
    found = host(images).logits()
    close(found, expected)
    a, b = (gradients(F.cross_entropy(x, LABELS), host)[0] for x in (found, expected))
    assert a.shape == ((4, 4, 32) if per_class else (4, 32))
    close(a, b, 1e-4)


@pytest.mark.parametrize("position", ["middle", "front"])
def test_words_behind_the_learned_tokens_stay_in_the_context(position):
    """Untrained, the prompt is the sentence itself."""
    host = build_host(bundle(), "coop", tokens=2, words="a photo of a", position=position)
    host.set_classes(NAMES)
    told = "{} a photo of a." if position == "front" else "a photo {} of a."
    expected = encode_text(
        host.clip, tokenize([told.format(name) for name in NAMES]), normalize=True
    )
    close(host.texts(), expected)


@pytest.mark.parametrize("position", ["middle", "front"])
def test_a_name_that_fills_the_text_is_cut_off(position):
    host = build_host(bundle(), "coop", tokens=2, words="a photo", position=position)
    host.set_classes(["cat", "cat " * 100])
    length = len(text_part(host.clip).positional_embedding)
    names = "cat " * (length - 4)  # what the start token, the context and the end token leave
    told = f"{names} a photo" if position == "front" else f"a {names} photo"
    close(host.texts()[1:], encode_text(host.clip, tokenize([told]), normalize=True))


def test_cocoop():
    host = make("cocoop", tokens=4)
    images = host_images(host)
    expected = reference.cocoop(
        host.clip, tokenize, NAMES, images, host.learner.ctx, host.learner.meta
    )
    found = host(images).logits()
    close(found, expected)
    for x, y in zip(*(gradients(F.cross_entropy(x, LABELS), host) for x in (found, expected))):
        close(x, y, 1e-4)


@each("name", ["deep-vision", "deep-language", "ivlp"])
def test_prompts_of_one_tower_or_both(name):
    host = make(name)
    images, learner = host_images(host), host.learner
    vision = [learner.visual, *learner.deep_visual] if hasattr(learner, "visual") else []
    if learner.text_tokens:
        texts = reference.class_texts(
            host.clip, tokenize, "a photo of a", NAMES, learner.ctx, list(learner.deep_text)
        )
    else:
        texts = reference.plain_texts(host.clip, tokenize, "a photo of a {}.", NAMES)
    expected = reference.logits(
        host.clip, reference.image_features(host.clip, images, vision), texts
    )
    close(host(images).logits(), expected)


def test_zero_shot_is_clip_and_its_ensemble_a_mean():
    host = make("zeroshot")
    images = host_images(host)
    host.set_classes(NAMES, "{} texture.")
    texts = host.clip.encode_text(tokenize([f"{name} texture." for name in NAMES]))
    close(host(images).logits(), reference.logits(host.clip, host.clip.encode_image(images), texts))
    many = make("zeroshot", ensemble=True)
    many.set_classes(NAMES, "{} texture.")
    templates = [*SELECTED, "{} texture."]
    each = [reference.unit(reference.plain_texts(host.clip, tokenize, t, NAMES)) for t in templates]
    close(many.texts(), reference.unit(torch.stack(each).mean(0)))


def kd(**options):
    teacher = build_host(bundle(seed=5), "promptsrc", **PROMPTED["promptsrc"])
    host = build_host(
        bundle(), "promptkd", teacher=shaken(teacher, seed=8), tokens=2, depth=3, **options
    )
    host.set_classes(NAMES)
    return shaken(host)


@pytest.mark.parametrize(("training", "temperature"), [(True, 2.0), (False, 1.0)])
def test_promptkd(training, temperature):
    host = kd(weight=200.0, temperature=temperature).train(training)
    images, teacher, prompts = host_images(host, 4), host.teacher, host.learner["prompts"]
    texts = reference.unit(reference.class_texts(teacher.clip, tokenize, "a photo of a", NAMES,
    teacher.learner.ctx,
                                                 list(teacher.learner.deep_text)))  # fmt: skip
    tuned = [teacher.learner.visual, *teacher.learner.deep_visual]
    of_teacher = reference.unit(reference.image_features(teacher.clip, images, tuned))
    x = reference.image_features(host.clip, images, [prompts.visual, *prompts.deep_visual])
    first, norm, _, last = host.learner["projector"]
    x = x @ first.weight.T + first.bias
    mean, var = (
        (x.mean(0), x.var(0, unbiased=False)) if training else (norm.running_mean, norm.running_var)
    )
    x = (x - mean) / (var + norm.eps).sqrt() * norm.weight + norm.bias
    x = reference.unit(x.relu() @ last.weight.T + last.bias)
    scales = teacher.clip.logit_scale.exp(), host.clip.logit_scale.exp()
    loss, logits = reference.promptkd(
        of_teacher, texts, scales[0], x, scales[1], 200.0, temperature
    )
    out = host(images)
    close(out.logits(), logits, 1e-4)
    assert (out.teacher is not None) == training
    if training:
        found = out.fit(out.logits(), None)
        close(found, loss, 1e-4)
        for a, b in zip(gradients(found, host), gradients(loss, host)):
            close(a, b, 1e-4)
    assert not any(p.requires_grad for p in teacher.parameters())


def any_host(name):
    """A host of any method, ready for images of the classes."""
    if name == "promptkd":
        return kd()
    sizes = {"linear-probe": dict(classes=4), "tip-adapter": dict(keys=8, classes=4, tune=True)}
    host = make(name, **sizes.get(name, {}))
    if name == "tip-adapter":
        host.learner.values.copy_(torch.eye(4).repeat(2, 1))
    return host


@each("name", sorted(HOSTS))
def test_under_autocast_logits_and_losses_are_float32(name):
    """And near those without it, in training and evaluation, with a gradient for all that
    learns."""
    host = any_host(name)
    images, labels = host_images(host, 4), torch.tensor([2, 0, 1, 3])
    for training in (False, True):
        host.train(training)

        def run():
            out = host(images, labels)
            logits = out.logits()
            return (
                logits,
                out.fit(logits, labels),
                *out.losses.values(),
                *([] if out.text is None else [out.text]),
            )

        wanted = run()
        with torch.autocast("cpu", torch.bfloat16):
            found = run()
            out = host(images, labels)
            if (
                out.text is not None and out.text.dim() == 2 and out.extra is None
            ):  # only the towers are rounded
                unrounded = out.scale * (out.image[:, None] * out.text).sum(-1)
                assert (out.logits() - unrounded).abs().max() < 1e-4
        for given, exact in zip(found, wanted, strict=True):
            assert given.dtype == torch.float32
            close(given, exact, 0.06)
    if name not in ("zeroshot", "linear-probe"):  # which take no steps
        found[1].backward()
        gradients = [parameter.grad for parameter in host.learner.parameters()]
        assert all(grad is not None and grad.isfinite().all() for grad in gradients)


def test_clip_adapter():
    host = make("clip-adapter")
    x, (down, _, up, _) = host.clip.encode_image(host_images(host)), host.learner
    adapted = 0.2 * ((x @ down.weight.T).relu() @ up.weight.T).relu() + 0.8 * x
    texts = reference.plain_texts(host.clip, tokenize, "a photo of a {}.", NAMES)
    close(host(host_images(host)).logits(), reference.logits(host.clip, adapted, texts))
    assert torch.equal(
        host(x.detach()).logits(), host(host_images(host)).logits()
    )  # from features that were kept


def test_tip_adapter():
    host = build_host(bundle(), "tip-adapter", keys=8, classes=4, alpha=1.7, beta=3.0)
    host.set_classes(NAMES)
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.randn(8, 64, generator=generator), torch.arange(8) % 4
    host.fill(features, labels)
    images = host_images(host)
    image = reference.unit(host.clip.encode_image(images))
    values = torch.eye(4)[labels]
    host.clip.logit_scale.data.fill_(torch.tensor(100.0).log())
    expected = reference.tip_adapter(
        image, host.texts(), reference.unit(features), values, 1.7, 3.0
    )
    close(host(images).logits(), expected, 1e-4)
    assert not [p for p in host.learner.parameters() if p.requires_grad]
    with pytest.raises(
        HypvisionError,
        match="for 8 images of 4 classes, but the data has 7 of 4.*images=7 of few_shot_config or "
        "keys=7",
    ):
        host.fill(features[:7], torch.tensor([0, 1, 2, 3, 0, 1, 2]))
    host.set_classes(OTHERS)
    with pytest.raises(HypvisionError, match="cannot recognise 2 others"):
        host(images)


def published_search(image, text, keys, values, labels, ends, steps):
    """Beta and alpha as Tip-Adapter's code looks for them (``search_scale``, ``search_step``), on
    unit features."""
    betas = [i * (ends[0] - 0.1) / steps[0] + 0.1 for i in range(steps[0])]
    alphas = [i * (ends[1] - 0.1) / steps[1] + 0.1 for i in range(steps[1])]
    best = 0.0, None, None
    for beta in betas:
        for alpha in alphas:
            logits = reference.tip_adapter(image, text, keys, values, alpha, beta)
            accuracy = float((logits.argmax(1) == labels).float().mean())
            if accuracy > best[0]:
                best = accuracy, beta, alpha
    return best


@each("ends, rows", [((7.0, 3.0), 4096), ((12.0, 5.0), 13), ((50.0, 50.0), 13)])
def test_tip_adapter_searches_as_its_code_does(ends, rows, monkeypatch):
    """On labels that CLIP and the cache know in part each, so that the choice matters; in blocks of
    images, too."""
    monkeypatch.setattr(prompting.heads, "ROWS", rows)
    host = build_host(bundle(), "tip-adapter", keys=40, classes=4)
    host.set_classes(NAMES)
    host.clip.logit_scale.data.fill_(torch.tensor(100.0).log())
    generator = torch.Generator().manual_seed(1)
    text = host.texts()
    truth = torch.randint(4, (60,), generator=generator)
    cached = torch.arange(40) % 4
    centres = torch.randn(4, 64, generator=generator)
    keys, held = (
        centres[own] + 1.2 * torch.randn(len(own), 64, generator=generator) + 3 * text[own]
        for own in (cached, truth)
    )
    host.fill(keys, cached)
    best = host.search(held, truth, alphas=6, betas=9, ends=ends)
    unit = reference.unit
    accuracy, beta, alpha = published_search(
        unit(held), text, unit(keys), torch.eye(4)[cached], truth, ends, (9, 6)
    )
    assert (float(host.learner.beta), float(host.learner.alpha)) == pytest.approx(
        (beta, alpha), rel=1e-5
    )
    assert (
        best == pytest.approx(100 * accuracy)
        and 100 * accuracy > 30
        and (beta, alpha) != (0.1, 0.1)
    )
    steps = inspect.signature(host.search).parameters
    assert (steps["betas"].default, steps["alphas"].default) == (200, 20)  # search_step


@pytest.mark.parametrize("name", ["zeroshot", "tip-adapter"])
def test_several_templates_are_those_of_the_data(name):
    """CLIP's seven and the data set's own; on ImageNet the seven alone (Zhou et al., IJCV 2022;
    Tip-Adapter)."""
    seven = ("itap of a {}.", "a bad photo of the {}.", "a origami {}.", "a photo of the large {}.",
             "a {} in a video game.", "art of the {}.", "a photo of the small {}.")  # fmt: skip
    assert LAYOUTS["imagenet"].templates == seven
    assert LAYOUTS["dtd"].templates == (*seven, "{} texture.")
    assert LAYOUTS["imagenetv2"].templates == (*seven, "a photo of a {}.")
    options = dict(keys=8, classes=4) if name == "tip-adapter" else {}
    host = build_host(bundle(), name, ensemble=True, **options)
    for layout in (LAYOUTS["imagenet"], LAYOUTS["dtd"]):
        host.set_classes(NAMES, layout.template, layout.templates)
        each = [
            reference.unit(reference.plain_texts(host.clip, tokenize, t, NAMES))
            for t in layout.templates
        ]
        close(host.texts(), reference.unit(torch.stack(each).mean(0)))
    with pytest.raises(HypvisionError, match="needs one {}.*'a photo'"):
        host.set_classes(NAMES, "a {}", ["a photo"])


def test_linear_probe():
    host = build_host(bundle(), "linear-probe", classes=4)
    host.set_classes(NAMES)
    images = host_images(host)
    assert not host(images).logits().any()
    shaken(host)
    image = reference.unit(host.clip.encode_image(images))
    close(host(images).logits(), image @ host.learner.weight.T + host.learner.bias)
    host.set_classes(OTHERS)
    with pytest.raises(
        HypvisionError, match="was trained on 4 classes, so it cannot recognise 2 others"
    ):
        host(images)


def test_state_dicts_hold_what_was_learned(tmp_path):
    for host, other in (
        (make("promptsrc"), build_host(bundle(), "promptsrc", **PROMPTED["promptsrc"])),
        (kd(), kd()),
    ):
        state = host.state_dict()
        assert state and all(name.startswith("learner.") for name in state)
        torch.save(
            dict(state_dict={f"host.{name}": value for name, value in state.items()}),
            tmp_path / "a.pth",
        )
        with torch.no_grad():
            for parameter in other.learner.parameters():
                parameter.zero_()
        load_learned(other, tmp_path / "a.pth")
        other.set_classes(NAMES)
        images = host_images(host)
        assert torch.equal(host.eval()(images).logits(), other.eval()(images).logits())
        found = other.load_state_dict(state)
        assert not found.missing_keys and not found.unexpected_keys
    with pytest.raises(HypvisionError, match="does not fit the few-shot method"):
        load_learned(make("maple"), tmp_path / "a.pth")
    torch.save(make("promptsrc").state_dict(), tmp_path / "b.pth")
    wider = build_host(bundle(width=96, head_width=32), "promptsrc", **PROMPTED["promptsrc"])
    with pytest.raises(
        HypvisionError, match="does not fit the few-shot method .PromptSRC.* Give the CLIP model"
    ):
        load_learned(wider, tmp_path / "b.pth")


# Invariants
# --------------------------------------------------------------------------------------------------


def test_depth_one_is_shallow():
    """The tokens enter at the first layer and run on: the same as an independent set of them
    alone."""
    host = make("ivlp", depth=1)
    assert len(host.learner.deep_text) == len(host.learner.deep_visual) == 0
    deep = make("ivlp", depth=2)
    deep.learner.ctx.data.copy_(host.learner.ctx)
    deep.learner.visual.data.copy_(host.learner.visual)
    images = host_images(host)
    assert (deep(images).logits() - host(images).logits()).abs().max() > 1e-3
    coop = make("coop", tokens=2, words="a photo")
    coop.learner.ctx.data.copy_(host.learner.ctx)
    host.learner.words = "a photo"
    close(coop.texts(), host.texts())


def test_tokens_begin_as_words():
    host = build_host(bundle(), "cocoop")
    rows = tokenize(["a photo of a"])[0, 1:5]
    assert torch.equal(host.learner.ctx.data, host.clip.token_embedding.weight[rows])
    host.set_classes(NAMES)  # so the texts are those of plain CLIP
    close(
        host.texts(),
        reference.unit(reference.plain_texts(host.clip, tokenize, "a photo of a {}.", NAMES)),
    )


@each("name", ["coop", "cocoop", "maple"])
def test_new_classes_do_not_depend_on_old_ones(name):
    host, fresh = make(name), make(name)
    images = host_images(host)
    host.eval(), fresh.eval()
    with torch.no_grad():
        host(images)
        host.set_classes(OTHERS)
        fresh.names = ()
        fresh.set_classes(OTHERS)
        assert torch.equal(host(images).logits(), fresh(images).logits())
        host.set_classes(NAMES)
        assert torch.equal(host(images).logits(), make(name).eval()(images).logits())


@pytest.mark.parametrize("name", ["maple", "zeroshot"])
def test_texts_are_encoded_once_in_evaluation(name):
    host = make(name).eval()
    images = host_images(host)
    with (
        mock.patch.object(module, "encode_text", wraps=module.encode_text) as encode,
        torch.no_grad(),
    ):
        for _ in range(3):
            host(images)
        assert encode.call_count == 1
        if name != "zeroshot":
            next(host.learner.parameters()).add_(0.1)  # as an optimiser does
            host(images)
            assert encode.call_count == 2
        other = copy.deepcopy(host)
        other(images)
    assert (other(images).logits() - host(images).logits()).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["deep-vision", "clip-adapter"])
def test_texts_that_do_not_depend_on_learned_weights_are_encoded_once_in_training(name):
    host = make(name).train()
    images = host_images(host)
    with mock.patch.object(module, "encode_text", wraps=module.encode_text) as encode:
        for _ in range(3):
            F.cross_entropy(host(images).logits(), LABELS).backward()
            with torch.no_grad():
                for parameter in host.learner.parameters():
                    parameter.sub_(0.1 * parameter.grad)
        assert encode.call_count == 1


def test_frozen_texts_are_kept_by_their_content(tmp_path):
    host = make("promptsrc", cache=tmp_path)
    found = host.frozen_texts()
    assert len(list(tmp_path.iterdir())) == 1
    with mock.patch.object(module, "encode_text") as encode:
        assert torch.equal(make("promptsrc", cache=tmp_path, text=1).frozen_texts(), found)
        encode.assert_not_called()
    for other in (
        make("promptsrc", bundle(2), cache=tmp_path),
        make("promptsrc", cache=tmp_path, templates=3),
    ):
        assert not torch.equal(other.frozen_texts(), found)
    host.set_classes(OTHERS)
    host.frozen_texts()
    assert len(list(tmp_path.iterdir())) == 4


@each("name, chunk", [("maple", 3), ("cocoop", 3), ("coop", 1)])
def test_parts_of_the_classes_at_a_time(name, chunk):
    images = None
    found = []
    for size in (None, chunk):
        host = make(name, text_chunk=size).train()
        images = host_images(host) if images is None else images
        loss = F.cross_entropy(host(images).logits(), LABELS)
        found.append([loss, *gradients(loss, host)])
    for a, b in zip(*found):
        close(a, b, 1e-4)


def test_only_the_learner_trains():
    for name in PROMPTED:
        host = make(name).train()
        trained = {n for n, p in host.named_parameters() if p.requires_grad}
        assert trained and all(n.startswith("learner.") for n in trained)
        out = host(host_images(host), LABELS)
        (out.fit(out.logits(), LABELS) + sum(out.losses.values())).backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in host.learner.parameters())
        assert not host.clip.training


@each(
    "name, kind",
    [
        ("coop", "siglip"),
        ("promptsrc", "siglip"),
        ("maple", "custom_blocks"),
        ("ivlp", "custom_blocks"),
    ],
)
def test_other_towers(name, kind):
    """SigLIP's (timm, text of full length) and open_clip's own attention: tokens enter, learn, and
    classes change."""
    model = getattr(clip_models, kind)()
    host = build_host(
        CLIPBundle(model, tokenize, (0.0,) * 3, (1.0,) * 3), name, **PROMPTED[name]
    ).train()
    host.set_classes(NAMES)
    images = host_images(host)
    out = host(images, LABELS)
    (out.fit(out.logits(), LABELS) + sum(out.losses.values())).backward()
    assert all(
        p.grad.isfinite().all() and p.grad.abs().max() > 0 for p in host.learner.parameters()
    )
    host.set_classes(OTHERS)
    assert host.eval()(images).logits().shape == (3, 2)


def test_numbers_of_parameters_on_vit_b16():
    with torch.device("meta"):
        model = open_clip.model.CLIP(**open_clip.get_model_config("ViT-B-16-quickgelu"))
    model.token_embedding.to_empty(device="cpu")
    clip = CLIPBundle(model, open_clip.SimpleTokenizer(), (), ())
    for name, count in dict(maple=3_555_072, promptsrc=46_080, ivlp=46_080, coop=8192).items():
        assert sum(p.numel() for p in build_host(clip, name).learner.parameters()) == count, name


def test_the_batched_reference_is_the_one_by_sequences():
    host = make("ivlp")
    images, learner, model = host_images(host), host.learner, host.clip
    vision = [learner.visual, *learner.deep_visual]
    tokens = tokenize([f"a photo of a {name}." for name in NAMES])
    texts = reference.batched_texts(model, tokens, learner.ctx, list(learner.deep_text))
    close(
        reference.logits(model, reference.batched_images(model, images, vision), texts),
        host(images).logits(),
    )


# Averaging
# --------------------------------------------------------------------------------------------------


def test_gaussian_weights():
    weights = prompting.promptsrc.gaussian_weights(20, 15, 1)
    assert abs(sum(weights) - 1) < 1e-12 and len(weights) == 20
    assert (
        abs(weights[14] - 0.3989422804) < 1e-4
        and abs(weights[13] / weights[14] - 0.6065306597) < 1e-9
    )
    assert sum(weights[12:17]) > 0.98  # only a few epochs matter
    flat = prompting.promptsrc.gaussian_weights(3, 1e3, 1e-3)  # densities that underflow
    assert flat == pytest.approx([0, 0, 1])


# Mistakes
# --------------------------------------------------------------------------------------------------


OPTIONS = [  # of a method, and what the error mentions
    ("mapple", {}, "'mapple'.*maple"),
    ("maple", dict(depths=3), "'depths'.*depth"),
    ("maple", dict(depth=4), "4.* 1 to 3"),
    ("maple", dict(tokens=0), "tokens.*0"),
    ("promptkd", {}, "teacher"),
    ("ivlp", dict(text=6, depth=1), "6 text tokens.*4 words"),
    ("ivlp", dict(emulate_half="yes"), "true or false"),
    ("coop", dict(position="back"), "position.*'back'"),
    ("coop", dict(per_class=True), "number of classes"),
    ("coop", dict(text_chunk=0), "text_chunk"),
    ("coop", dict(tokens=2.0), "whole number"),
    ("coop", dict(words=3), "words.*3"),
    ("clip-adapter", dict(reduction=0), "reduction.*0"),
    ("clip-adapter", dict(ratio=float("nan")), "ratio"),
]


@each("name, options, mentioned", OPTIONS)
def test_options_that_do_not_fit_are_named(name, options, mentioned):
    with pytest.raises(HypvisionError, match=mentioned) as caught:
        build_host(bundle(), name, **options)
    assert "\n" not in str(caught.value)


def test_mistakes_are_explained():
    def fails(mentioned, function, *args):
        with pytest.raises(HypvisionError, match=mentioned) as caught:
            function(*args)
        assert "\n" not in str(caught.value)

    fails("80, got 100", make("promptsrc", templates=100).frozen_texts)
    for name in ("zeroshot", "maple"):
        fails("40x64.*--size 64", make(name), torch.zeros(1, 3, 40, 64))
    host = build_host(bundle(), "zeroshot")
    fails("no classes", host.texts)
    fails("empty", host.set_classes, [])
    fails("{}", host.set_classes, NAMES, "a photo")
    own = make("coop", per_class=True, classes=4)
    own.set_classes(OTHERS)
    fails("2 others", own.texts)
    resnet = bundle()
    resnet.model.visual = torch.nn.Linear(1, 1)
    fails("zeroshot", build_host, resnet, "maple")
    assert set(PROMPTED) < set(HOSTS)


def test_defaults_follow_the_clip():
    big = bundle()._replace(model=clip_models.openai_clip(text_layers=10, vision_layers=12))
    for name in ("maple", "promptsrc", "ivlp"):
        assert len(build_host(big, name).learner.deep_text) == 8  # the published depth of 9
    assert len(build_host(big, "deep-vision").learner.deep_visual) == 11
    with pytest.warns(
        UserWarning, match="depth of 3 instead of 9: a tower of this CLIP has 3 blocks"
    ):
        host = build_host(bundle(), "maple")
    assert len(host.learner.deep_text) == 2
    with pytest.warns(
        UserWarning, match="depth of 4 instead of 12"
    ):  # its own tower has more than that of the texts
        assert len(build_host(bundle(), "deep-vision").learner.deep_visual) == 3
    with pytest.warns(UserWarning, match="10 tokens instead of 16: texts of this CLIP have 20"):
        assert len(build_host(bundle(), "coop").learner.ctx) == 10
    with pytest.raises(HypvisionError, match="depth of 9; the tower allows 1 to 3. Set depth=3"):
        build_host(bundle(), "maple", depth=9)

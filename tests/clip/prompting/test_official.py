"""Official checkpoints of the few-shot methods: told apart by their names, converted both ways,
equal in logits.

The names are written out as the official codes save them; every method of ``FEW_SHOT`` goes through
the same test.
"""

import contextlib
import itertools

import pytest
import torch
from helpers import clip_models
from helpers.cases import each
from helpers.fewshot import NAMES, bundle, shaken, tokenize
from references import fewshot as reference

from hypvision.clip.prompting import build_host, load_learned
from hypvision.clip.prompting.official import FEW_SHOT
from hypvision.io.errors import HypvisionError
from hypvision.zoo.convert import CONVERTERS, convert_file

N = 2  # tokens of the checkpoints below, of depth 3


def frozen(model):
    """The frozen entries that those methods save which save the whole model."""
    found = {f"image_encoder.{name}": value for name, value in model.visual.state_dict().items()}
    found |= {
        f"text_encoder.transformer.{name}": value
        for name, value in model.transformer.state_dict().items()
    }
    found |= {
        f"prompt_learner.ZS_image_encoder.{name}": v
        for name, v in model.visual.state_dict().items()
    }
    return {**found, "logit_scale": model.logit_scale.detach()}


# What each code learns, by its names, with the shapes of the tiny model.
LEARNED = {
    "coop": {"ctx": (N, 32)},
    "cocoop": {
        "ctx": (N, 32),
        "meta_net.linear1.weight": (4, 64),
        "meta_net.linear1.bias": (4,),
        "meta_net.linear2.weight": (32, 4),
        "meta_net.linear2.bias": (32,),
    },
    "clip-adapter": {"fc.0.weight": (16, 64), "fc.2.weight": (64, 16)},
    "maple": {
        "prompt_learner.ctx": (N, 32),
        "prompt_learner.compound_prompts_text.0": (N, 32),
        "prompt_learner.compound_prompts_text.1": (N, 32),
        "prompt_learner.proj.weight": (64, 32),
        "prompt_learner.proj.bias": (64,),
        "prompt_learner.compound_prompt_projections.0.weight": (64, 32),
        "prompt_learner.compound_prompt_projections.0.bias": (64,),
        "prompt_learner.compound_prompt_projections.1.weight": (64, 32),
        "prompt_learner.compound_prompt_projections.1.bias": (64,),
    },
    "promptsrc": {
        "prompt_learner.ctx": (N, 32),
        "text_encoder.transformer.resblocks.1.VPT_shallow": (N, 32),
        "text_encoder.transformer.resblocks.2.VPT_shallow": (N, 32),
        "image_encoder.VPT": (N, 64),
        "image_encoder.transformer.resblocks.1.VPT_shallow": (N, 64),
        "image_encoder.transformer.resblocks.2.VPT_shallow": (N, 64),
    },
    "promptkd": {
        "image_encoder.VPT": (N, 64),
        "image_encoder.transformer.resblocks.1.VPT_shallow": (N, 64),
        "image_encoder.transformer.resblocks.2.VPT_shallow": (N, 64),
        "VPT_image_trans.conv1.0.weight": (64, 64, 1, 1),
        "VPT_image_trans.conv1.0.bias": (64,),
        "VPT_image_trans.conv1.1.weight": (64,),
        "VPT_image_trans.conv1.1.bias": (64,),
        "VPT_image_trans.conv1.1.running_mean": (64,),
        "VPT_image_trans.conv1.1.running_var": (64,),
        "VPT_image_trans.conv1.1.num_batches_tracked": (),
        "VPT_image_trans.conv1.3.weight": (64, 64, 1, 1),
        "VPT_image_trans.conv1.3.bias": (64,),
    },
    "tip-adapter": {"keys": (64, 8), "values": (8, 4)},
}
# What stands beside that, of the training's classes.
BESIDE = {
    "coop": ("token_prefix", "token_suffix"),
    "cocoop": ("token_prefix", "token_suffix"),
    "clip-adapter": (),
    "tip-adapter": (),
    **dict.fromkeys(
        ("maple", "promptsrc", "promptkd"),
        ("prompt_learner.token_prefix", "prompt_learner.token_suffix"),
    ),
}
VARIANTS = [
    *((method, {}) for method in LEARNED),
    ("coop", dict(position="middle", per_class=True)),
]


def official(method, per_class=False, seed=7):
    """What a training of the official code has learned."""
    generator = torch.Generator().manual_seed(seed)
    found = {
        name: torch.randn(shape, generator=generator) for name, shape in LEARNED[method].items()
    }
    if per_class:
        found["ctx"] = torch.randn(len(NAMES), N, 32, generator=generator)
    if method == "promptkd":
        found["VPT_image_trans.conv1.1.running_var"] = (
            found["VPT_image_trans.conv1.1.running_var"].abs() + 0.5
        )
        found["VPT_image_trans.conv1.1.num_batches_tracked"] = torch.tensor(5)
    if method == "tip-adapter":
        found = dict(keys=reference.unit(found["keys"].T).T, values=torch.eye(4).repeat(2, 1))
    return found


def saved(method, weights, model):
    """What the official code writes into its file."""
    beside = {
        name: torch.zeros(len(NAMES), 1 if "prefix" in name else 10, 32) for name in BESIDE[method]
    }
    whole = frozen(model) if any(name.startswith("prompt_learner.") for name in beside) else {}
    return {
        "state_dict": {**whole, **beside, **weights},
        "epoch": 5,
        "optimizer": {},
        "val_result": 1.0,
    }


def expected(method, w, model, images, position="end"):
    """The logits of the official code's formulation, from weights by its names."""

    def own(name):
        return w[f"prompt_learner.{name}"]

    def affine(name, x):
        return x @ w[f"{name}.weight"].flatten(1).T + w[f"{name}.bias"]

    x, base = reference.image_features(model, images), "transformer.resblocks"
    if method == "coop":
        texts = reference.class_texts(model, tokenize, "X X", NAMES, w["ctx"], position=position)
        return reference.logits(model, x, texts)
    if method == "cocoop":

        def meta(feature):
            return affine("meta_net.linear2", affine("meta_net.linear1", feature).relu())

        return reference.cocoop(model, tokenize, NAMES, images, w["ctx"], meta, prefix="X X")
    plain = reference.plain_texts(model, tokenize, "a photo of a {}.", NAMES)
    if method == "clip-adapter":
        adapted = ((x @ w["fc.0.weight"].T).relu() @ w["fc.2.weight"].T).relu()
        return reference.logits(model, 0.2 * adapted + 0.8 * x, plain)
    if method == "tip-adapter":
        cached = 1.7 * (-3.0 * (1 - reference.unit(x) @ w["keys"])).exp() @ w["values"]
        return reference.logits(model, x, plain) + cached
    if method == "maple":
        names = ("proj", "compound_prompt_projections.0", "compound_prompt_projections.1")
        pairs = [(own(f"{name}.weight"), own(f"{name}.bias")) for name in names]
        deep = [own(f"compound_prompts_text.{i}") for i in range(2)]
        return reference.maple(model, tokenize, NAMES, images, own("ctx"), deep, pairs)
    vision = [w["image_encoder.VPT"], *(w[f"image_encoder.{base}.{i}.VPT_shallow"] for i in (1, 2))]
    x = reference.image_features(model, images, vision)
    if method == "promptsrc":
        deep = [w[f"text_encoder.{base}.{i}.VPT_shallow"] for i in (1, 2)]
        texts = reference.class_texts(model, tokenize, "a photo of a", NAMES, own("ctx"), deep)
        return reference.logits(model, x, texts)
    norm = {name.rpartition(".")[2]: value for name, value in w.items() if ".conv1.1." in name}
    x = affine("VPT_image_trans.conv1.0", x)
    x = (x - norm["running_mean"]) / (norm["running_var"] + 1e-5).sqrt() * norm["weight"] + norm[
        "bias"
    ]
    return reference.logits(model, affine("VPT_image_trans.conv1.3", x.relu()), plain)


def written(method, weights, folder, model):
    """An official file; of a Tip-Adapter, which has two, the first."""
    if method != "tip-adapter":
        torch.save(saved(method, weights, model), folder / "model.pth.tar-5")
        return folder / "model.pth.tar-5"
    for name, value in weights.items():
        torch.save(value.half(), folder / f"{name}_2shots.pt")
    return folder / "keys_2shots.pt"


def host_of(found, **options):
    """A host with converted weights."""
    options = {**found.arguments, **options}
    if found.model == "promptkd":
        options["teacher"] = build_host(bundle(), "zeroshot")
    if found.model == "tip-adapter":
        options |= dict(alpha=1.7, beta=3.0)  # of the official config
    host = build_host(bundle(), found.model, **options)
    load_learned(host, found.path)
    host.set_classes(NAMES)
    return host.eval()


@each("method, options", VARIANTS)
def test_converted_checkpoints_give_the_official_logits(method, options, tmp_path):
    clip, weights = bundle(), official(method, options.get("per_class", False))
    if method == "tip-adapter":
        weights["keys"] = weights["keys"].half().float()  # as its file has them
    source = written(method, weights, tmp_path, clip.model)
    found = convert_file(method, source, tmp_path / "ours.safetensors")
    assert found.model == method and method in found.usage()
    host = host_of(found, **({"position": options["position"]} if options else {}))
    images = clip_models.random_images(host.clip, 3)
    with torch.no_grad():
        logits = host(images).logits()
        wanted = expected(method, weights, host.clip, images, options.get("position", "end"))
        other = expected(
            method, official(method, options.get("per_class", False), 8), host.clip, images
        )
    close = 5e-6 * max(1, float(wanted.abs().max()))
    assert (logits - wanted).abs().max() < close < 1e-2 < (wanted - other).abs().max()
    # Back: the same names, and what the official code's loader takes, which passes over names that
    # it does not know.
    if method == "tip-adapter":
        back = convert_file(method, found.path, tmp_path / "keys_back.pt", to_official=True).path
        again = {name: torch.load(back.with_name(f"{name}_back.pt")) for name in weights}
        best = convert_file(method, found.path, tmp_path / "best_F_back.pt", to_official=True).path
        assert torch.equal(torch.load(best), weights["keys"].T)
        assert torch.equal(torch.load(convert_file(method, best,
        tmp_path / "x.pth").path)["host.learner.keys"],
                           weights["keys"].T)  # fmt: skip
    else:
        back = convert_file(method, found.path, tmp_path / "back.pth", to_official=True).path
        file = torch.load(back)
        assert file.keys() == {
            "state_dict",
            "epoch",
            "val_result",
        }  # what the official code asks for
        again = file["state_dict"]
    assert again.keys() == LEARNED[method].keys()
    assert all(torch.equal(again[name], weights[name]) for name in weights)
    # A file of another method is refused by its names.
    if method != "tip-adapter":
        other = "coop" if method != "coop" else "maple"
        with pytest.raises(
            HypvisionError, match=f"not a checkpoint of an official few-shot method {other}"
        ):
            convert_file(other, source, tmp_path / "x.safetensors")
    # Without a conversion, too.
    if method != "tip-adapter":
        direct = host_of(
            found._replace(path=source), **({"position": options["position"]} if options else {})
        )
        with torch.no_grad():
            assert torch.equal(direct(images).logits(), logits)


@each("method", ["coop", "cocoop", "clip-adapter"])
def test_names_with_the_module_before_them_are_read_and_not_written(method, tmp_path):
    """As a state dict of the official code's whole model has them."""
    clip, weights = bundle(), official(method)
    module = "adapter" if method == "clip-adapter" else "prompt_learner"
    whole = {f"{module}.{name}": value for name, value in weights.items()}
    whole |= (
        {} if method == "clip-adapter" else {"prompt_learner.token_prefix": torch.zeros(4, 1, 32)}
    )
    torch.save({**frozen(clip.model), **whole}, tmp_path / "a.pth")
    found = convert_file(method, tmp_path / "a.pth", tmp_path / "b.pth")
    back = convert_file(method, found.path, tmp_path / "c.pth", to_official=True)
    assert torch.load(back.path)["state_dict"].keys() == weights.keys()


@pytest.mark.quick("coop", "maple")
@pytest.mark.parametrize("method", LEARNED)
def test_files_that_lack_a_weight_or_have_another_prefix_are_explained(method, tmp_path):
    """Both ways, whatever the method that the user names; a weight of one depth of several may be
    missing."""
    weights = official(method)
    for number, prefix in enumerate(("", "prompt_learner.", "adapter.", "model.", "host.learner.")):
        for lost in (None, *weights) if number == 0 else (None,):
            torch.save(
                {prefix + name: value for name, value in weights.items() if name != lost},
                tmp_path / "a.pth",
            )
            for family, back in itertools.product(FEW_SHOT, (False, True)):
                target = tmp_path / ("keys_1shots.pt" if family == "tip-adapter" else "b.pth")
                with contextlib.suppress(HypvisionError):
                    convert_file(family, tmp_path / "a.pth", target, to_official=back)
    torch.save(
        {name: value for name, value in weights.items() if name != next(iter(weights))},
        tmp_path / "a.pth",
    )
    with pytest.raises(HypvisionError, match="lacks|not a checkpoint"):
        convert_file(method, tmp_path / "a.pth", tmp_path / "b.pth")


def test_another_clip_beside_the_learned_weights_is_named(tmp_path):
    clip = bundle()
    weights = {**frozen(clip.model), **official("maple")}
    host = build_host(clip, "maple", tokens=N, depth=3)
    torch.save(weights, tmp_path / "a.pth")
    load_learned(host, tmp_path / "a.pth")
    for entry in (
        "image_encoder.conv1.weight",
        "text_encoder.transformer.resblocks.0.ln_1.weight",
        "logit_scale",
    ):
        torch.save({**weights, entry: weights[entry] + 0.1}, tmp_path / "a.pth")
        with pytest.raises(HypvisionError, match=entry):
            load_learned(host, tmp_path / "a.pth")


def test_files_of_a_tip_adapter_are_found_by_their_names(tmp_path):
    weights = official("tip-adapter")
    path = written("tip-adapter", weights, tmp_path, None)
    ours = convert_file("tip-adapter", path, tmp_path / "ours.pth").path
    with pytest.raises(
        HypvisionError,
        match="'.*/back.pth' could not be read again.*keys_16shots.pt.*values_16shots.pt",
    ):
        convert_file("tip-adapter", ours, tmp_path / "back.pth", to_official=True)
    odd = path.rename(tmp_path / "cache.pt")
    with pytest.raises(
        HypvisionError, match="holds one tensor, and the name of the file.*keys_16shots.pt"
    ):
        convert_file("tip-adapter", odd, tmp_path / "x.pth")
    alone = odd.rename(tmp_path / "keys_9shots.pt")
    with pytest.raises(HypvisionError, match="no checkpoint '.*values_9shots.pt'"):
        convert_file("tip-adapter", alone, tmp_path / "x.pth")
    torch.save(torch.eye(4), tmp_path / "values_9shots.pt")
    with pytest.raises(
        HypvisionError,
        match=r"not the cache of a Tip-Adapter: their shapes are \[\(64, 8\), \(4, 4\)\]",
    ):
        convert_file("tip-adapter", alone, tmp_path / "x.pth")
    # What the official files have no place for is told.
    host = build_host(bundle(), "tip-adapter", keys=8, classes=4, alpha=1.25, beta=4.5)
    torch.save(
        {f"host.{name}": value for name, value in host.state_dict().items()},
        tmp_path / "trained.pth",
    )
    done = convert_file(
        "tip-adapter", tmp_path / "trained.pth", tmp_path / "keys_1shots.pt", to_official=True
    )
    assert "init_alpha: 1.25 and init_beta: 4.5" in done.note(to_official=True)
    load_learned(host, ours)
    assert (
        float(host.learner.alpha) == 1.25 and float(host.learner.beta) == 4.5
    )  # stay as they were


def test_maple_of_one_layer_goes_both_ways(tmp_path):
    """Without deep prompts it is told by its projection."""
    host = shaken(build_host(bundle(), "maple", depth=1))
    torch.save(
        {f"host.{name}": value for name, value in host.state_dict().items()}, tmp_path / "ours.pth"
    )
    back = convert_file("maple", tmp_path / "ours.pth", tmp_path / "official.pth", to_official=True)
    assert "prompt_learner.proj.weight" in torch.load(back.path)["state_dict"]
    found = convert_file("maple", back.path, tmp_path / "again.safetensors")
    again = build_host(bundle(), "maple", **found.arguments)
    load_learned(again, found.path)
    assert all(
        torch.equal(value, host.state_dict()[name]) for name, value in again.state_dict().items()
    )


def test_towers_of_other_depths(tmp_path):
    """The official configs have a depth of each tower; more tokens than words begin at random."""
    weights = official("promptsrc")
    weights.pop("text_encoder.transformer.resblocks.2.VPT_shallow")
    torch.save({"state_dict": weights, "meta": {"epoch": 3}}, tmp_path / "a.pth")
    found = convert_file("promptsrc", tmp_path / "a.pth", tmp_path / "b.pth")
    assert found.arguments == dict(text=2, vision=2, text_depth=2, vision_depth=3)
    for method in ("promptsrc", "ivlp"):
        host = build_host(bundle(), method, **found.arguments)
        load_learned(host, found.path)
        assert [len(host.learner.deep_text), len(host.learner.deep_visual)] == [1, 2]
    assert torch.equal(
        host.learner.deep_visual[1], weights["image_encoder.transformer.resblocks.2.VPT_shallow"]
    )
    torch.save({"state_dict": torch.load(found.path), "meta": {"epoch": 3}}, tmp_path / "c.pth")
    back = convert_file("promptsrc", tmp_path / "c.pth", tmp_path / "d.pth", to_official=True)
    assert torch.load(back.path)["epoch"] == 3
    for name in ("prompt_learner.ctx", "text_encoder.transformer.resblocks.1.VPT_shallow"):
        weights[name] = torch.randn(5, 32)
    torch.save(weights, tmp_path / "a.pth")
    found = convert_file("promptsrc", tmp_path / "a.pth", tmp_path / "b.pth")
    load_learned(build_host(bundle(), "promptsrc", **found.arguments), found.path)
    assert found.arguments["words"] == ""


@each(
    "entry",
    [
        "image_encoder.transformer.resblocks.1.VPT_shallow",
        "text_encoder.transformer.resblocks.1.VPT_shallow",
        "prompt_learner.meta_bias",
        "meta_bias",
    ],
)
def test_no_learned_entry_is_dropped(entry, tmp_path):
    """A context with deep prompts of a tower is no CoOp."""
    context = "ctx" if entry == "meta_bias" else "prompt_learner.ctx"
    torch.save({context: torch.zeros(2, 32), entry: torch.zeros(2, 64)}, tmp_path / "a.pth")
    with pytest.raises(
        HypvisionError, match=f"looks like one of coop, but has a learned entry '{entry}'"
    ):
        convert_file("coop", tmp_path / "a.pth", tmp_path / "b.pth")


def test_every_method_has_a_converter_and_attributes_stay_ours(tmp_path):
    assert set(FEW_SHOT) == set(LEARNED) < set(CONVERTERS)
    host = shaken(build_host(bundle(), "maple", depth=2))
    weights = {f"host.{name}": value for name, value in host.state_dict().items()}
    weights["host.clip.lathadapter.attributes"] = torch.zeros(3, 64)
    torch.save(weights, tmp_path / "a.pth")
    with pytest.raises(HypvisionError, match="LatHAdapter is not part of it"):
        convert_file("maple", tmp_path / "a.pth", tmp_path / "b.pth", to_official=True)

"""Official checkpoints of the prompt methods: told apart by their keys, converted both ways, equal in logits."""

import pytest
import torch
from helpers import clip_models
from helpers.fewshot import NAMES, bundle, shaken, tokenize
from references import fewshot as reference

from hypvision.clip.prompting import build_host, load_learned
from hypvision.clip.prompting.official import FEW_SHOT
from hypvision.errors import HypvisionError
from hypvision.zoo.convert import CONVERTERS, convert_file


def frozen(model):
    """The frozen entries of every official checkpoint."""
    found = {f"image_encoder.{name}": value for name, value in model.visual.state_dict().items()}
    found |= {f"text_encoder.transformer.{name}": value for name, value in model.transformer.state_dict().items()}
    return {**found, "logit_scale": model.logit_scale.detach(), "prompt_learner.token_prefix": torch.zeros(4, 1, 32),
            "prompt_learner.token_suffix": torch.zeros(4, 10, 32)}  # fmt: skip


def official(method, model):
    """A checkpoint with the published key set (sizes of the tiny model, depth 3, two tokens), in half precision."""
    torch.manual_seed(7)
    base, n = "transformer.resblocks", 2
    text, image = {i: torch.randn(n, 32) for i in range(3)}, {i: torch.randn(n, 64) for i in range(3)}
    found = {"prompt_learner.ctx": text[0]}
    if method == "maple":
        found |= {f"prompt_learner.compound_prompts_text.{i}": text[i + 1] for i in range(2)}
        for name in ("proj", "compound_prompt_projections.0", "compound_prompt_projections.1"):
            found |= {
                f"prompt_learner.{name}.weight": torch.randn(64, 32),
                f"prompt_learner.{name}.bias": torch.randn(64),
            }
    if method == "promptsrc":
        found |= {f"text_encoder.{base}.{i}.VPT_shallow": text[i] for i in (1, 2)}
        found |= {f"prompt_learner.ZS_image_encoder.{name}": v for name, v in model.visual.state_dict().items()}
    if method in ("promptsrc", "promptkd"):
        found |= {"image_encoder.VPT": image[0], **{f"image_encoder.{base}.{i}.VPT_shallow": image[i] for i in (1, 2)}}
    if method == "promptkd":
        del found["prompt_learner.ctx"]
        for i in (0, 3):
            found |= {f"VPT_image_trans.conv1.{i}.weight": torch.randn(64, 64, 1, 1),
                      f"VPT_image_trans.conv1.{i}.bias": torch.randn(64)}  # fmt: skip
        found |= {f"VPT_image_trans.conv1.1.{k}": torch.rand(64) + 0.5
                  for k in ("weight", "bias", "running_mean", "running_var")}  # fmt: skip
        found["VPT_image_trans.conv1.1.num_batches_tracked"] = torch.tensor(5)
    if method == "cocoop":
        found |= {"prompt_learner.meta_net.linear1.weight": torch.randn(4, 64), "prompt_learner.meta_net.linear1.bias":
                  torch.randn(4), "prompt_learner.meta_net.linear2.weight": torch.randn(32, 4),
                  "prompt_learner.meta_net.linear2.bias": torch.randn(32)}  # fmt: skip
    return found


def expected(method, w, model, images):
    def own(name):
        return w[f"prompt_learner.{name}"]

    if method == "maple":
        names = ("proj", "compound_prompt_projections.0", "compound_prompt_projections.1")
        pairs = [(own(f"{name}.weight"), own(f"{name}.bias")) for name in names]
        deep = [own(f"compound_prompts_text.{i}") for i in range(2)]
        return reference.maple(model, tokenize, NAMES, images, own("ctx"), deep, pairs)
    if method == "coop":
        texts = reference.class_texts(model, tokenize, "X X", NAMES, own("ctx"))
        return reference.logits(model, reference.image_features(model, images), texts)
    if method == "cocoop":

        def meta(x):
            x = (own("meta_net.linear1.weight") @ x + own("meta_net.linear1.bias")).relu()
            return own("meta_net.linear2.weight") @ x + own("meta_net.linear2.bias")

        return reference.cocoop(model, tokenize, NAMES, images, own("ctx"), meta)
    base = "transformer.resblocks"
    vision = [w["image_encoder.VPT"], *(w[f"image_encoder.{base}.{i}.VPT_shallow"] for i in (1, 2))]
    x = reference.image_features(model, images, vision)
    if method == "promptsrc":
        deep = [w[f"text_encoder.{base}.{i}.VPT_shallow"] for i in (1, 2)]
        return reference.logits(
            model, x, reference.class_texts(model, tokenize, "a photo of a", NAMES, own("ctx"), deep)
        )
    conv = {name.removeprefix("VPT_image_trans.conv1."): value for name, value in w.items() if "conv1." in name}
    x = x @ conv["0.weight"][:, :, 0, 0].T + conv["0.bias"]
    x = (x - conv["1.running_mean"]) / (conv["1.running_var"] + 1e-5).sqrt() * conv["1.weight"] + conv["1.bias"]
    x = x.relu() @ conv["3.weight"][:, :, 0, 0].T + conv["3.bias"]
    teacher = reference.plain_texts(model, tokenize, "a photo of a {}.", NAMES)
    return reference.logits(model, x, teacher)


@pytest.mark.parametrize("method", FEW_SHOT)
def test_converted_checkpoints_give_the_official_logits(method, tmp_path):
    clip = bundle()
    weights = official(method, clip.model)
    torch.save(
        {"state_dict": {**frozen(clip.model), **weights}, "epoch": 5, "val_result": 1.0}, tmp_path / "model.pth.tar-5"
    )
    found = convert_file(method, tmp_path / "model.pth.tar-5", tmp_path / "ours.safetensors")
    assert found.model == method and method in found.usage()
    options = dict(found.arguments)
    if method == "promptkd":
        options["teacher"] = build_host(bundle(), "zeroshot")
    host = build_host(bundle(), method, **options)
    load_learned(host, found.path)
    host.set_classes(NAMES)
    images = clip_models.random_images(host.clip, 3)
    with torch.no_grad():
        logits = host.eval()(images).logits()
        wanted = expected(method, weights, host.clip, images)
    assert (logits - wanted).abs().max() < 1e-4 * max(1, float(wanted.abs().max()))
    # Back: the same entries, and a file of another method is refused by its keys.
    back = convert_file(method, found.path, tmp_path / "back.pth", to_official=True)
    saved = torch.load(back.path)
    assert saved.keys() == {"state_dict", "epoch", "val_result"}  # what the official code asks for
    again = saved["state_dict"]
    learned = {name: value for name, value in weights.items() if ".ZS_image_encoder." not in name}
    assert again.keys() == learned.keys() and all(torch.equal(again[name], learned[name]) for name in learned)
    other = "coop" if method != "coop" else "maple"
    with pytest.raises(HypvisionError, match=f"not a checkpoint of an official few-shot method {other}"):
        convert_file(other, tmp_path / "model.pth.tar-5", tmp_path / "x.safetensors")


def test_maple_of_one_layer_goes_both_ways(tmp_path):
    """Without deep prompts it is told by its projection."""
    host = shaken(build_host(bundle(), "maple", depth=1))
    torch.save({f"host.{name}": value for name, value in host.state_dict().items()}, tmp_path / "ours.pth")
    back = convert_file("maple", tmp_path / "ours.pth", tmp_path / "official.pth", to_official=True)
    assert "prompt_learner.proj.weight" in torch.load(back.path)["state_dict"]
    found = convert_file("maple", back.path, tmp_path / "again.safetensors")
    again = build_host(bundle(), "maple", **found.arguments)
    load_learned(again, found.path)
    assert all(torch.equal(value, host.state_dict()[name]) for name, value in again.state_dict().items())


def test_towers_of_other_depths(tmp_path):
    """The official configs have a depth of each tower; more tokens than words begin at random."""
    clip = bundle()
    weights = official("promptsrc", clip.model)
    weights.pop("text_encoder.transformer.resblocks.2.VPT_shallow")
    torch.save({"state_dict": weights, "meta": {"epoch": 3}}, tmp_path / "a.pth")
    found = convert_file("promptsrc", tmp_path / "a.pth", tmp_path / "b.pth")
    assert found.arguments == dict(text=2, vision=2, text_depth=2, vision_depth=3)
    for method in ("promptsrc", "ivlp"):
        host = build_host(bundle(), method, **found.arguments)
        load_learned(host, found.path)
        assert [len(host.learner.deep_text), len(host.learner.deep_visual)] == [1, 2]
    assert torch.equal(host.learner.deep_visual[1], weights["image_encoder.transformer.resblocks.2.VPT_shallow"])
    torch.save({"state_dict": torch.load(found.path), "meta": {"epoch": 3}}, tmp_path / "c.pth")
    back = convert_file("promptsrc", tmp_path / "c.pth", tmp_path / "d.pth", to_official=True)
    assert torch.load(back.path)["epoch"] == 3
    for name in ("prompt_learner.ctx", "text_encoder.transformer.resblocks.1.VPT_shallow"):
        weights[name] = torch.randn(5, 32)
    torch.save(weights, tmp_path / "a.pth")
    found = convert_file("promptsrc", tmp_path / "a.pth", tmp_path / "b.pth")
    load_learned(build_host(bundle(), "promptsrc", **found.arguments), found.path)
    assert found.arguments["words"] == ""


@pytest.mark.parametrize(
    "entry",
    [
        "image_encoder.transformer.resblocks.1.VPT_shallow",
        "text_encoder.transformer.resblocks.1.VPT_shallow",
        "prompt_learner.meta_bias",
    ],
)
def test_no_learned_entry_is_dropped(entry, tmp_path):
    """A context with deep prompts of a tower is no CoOp."""
    torch.save({"prompt_learner.ctx": torch.zeros(2, 32), entry: torch.zeros(2, 64)}, tmp_path / "a.pth")
    with pytest.raises(HypvisionError, match=f"looks like one of coop, but has a learned entry '{entry}'"):
        convert_file("coop", tmp_path / "a.pth", tmp_path / "b.pth")


def test_every_method_has_a_converter_and_attributes_stay_ours(tmp_path):
    assert set(FEW_SHOT) < set(CONVERTERS)
    host = shaken(build_host(bundle(), "maple", depth=2))
    weights = {f"host.{name}": value for name, value in host.state_dict().items()}
    weights["host.clip.lathadapter.attributes"] = torch.zeros(3, 64)
    torch.save(weights, tmp_path / "a.pth")
    with pytest.raises(HypvisionError, match="LatHAdapter is not part of it"):
        convert_file("maple", tmp_path / "a.pth", tmp_path / "b.pth", to_official=True)

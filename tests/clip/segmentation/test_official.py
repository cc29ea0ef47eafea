"""Official segmenter checkpoints: HyperCLIP's and CAT-Seg's layouts, against a reference of
everything."""

import pytest
import torch
import torch.nn.functional as F
from helpers.cases import each
from references.hyperclip import ReferenceHead, reference_packed

pytest.importorskip("open_clip")

from helpers import clip_models
from helpers.families import swin_mask
from helpers.segmenter import HEAD, build, random_image
from references.clip import reference_dense

from hypvision.clip.towers import find_towers
from hypvision.io.errors import HypvisionError
from hypvision.zoo.convert import convert_file

P = "sem_seg_head.predictor."


def official(blocks=True, vision_layers=4):
    """A checkpoint of the official code with random adapters; and its parts for the reference."""
    model = build(make=lambda: clip_models.openai_clip(vision_layers=vision_layers))
    torch.manual_seed(3)
    weights = {}
    for name, value in model.state_dict().items():
        value = value.clone()
        if ".hyperclip." in name:
            if not blocks:
                continue
            value += 0.1 * torch.randn_like(value)
            stem, _, letter = name.rpartition(".hyperclip.")
            name = f"{stem}.hyperbolic_attn.adapter_attn_{letter}.weights"
        if name.startswith("clip."):
            name = P + "clip_model." + name[5:]
        elif name.startswith("head."):
            name = P + "transformer." + name[5:]
        weights[name] = value
    for i in range(2):
        weights[P + f"transformer.layers.{i}.swin_block.block_2.attn_mask"] = swin_mask(24, 12, 6)
    return weights


def reference_segmenter(weights, image, text):
    """Logits of one normalised image by the reference; adapters written into a plain CLIP row by
    row."""
    depth = 1 + max(
        int(n.split("resblocks.")[1].split(".")[0]) for n in weights if "visual.transformer" in n
    )
    plain = clip_models.openai_clip(vision_layers=depth)
    ours = {
        n.removeprefix(P + "clip_model."): v
        for n, v in weights.items()
        if n.startswith(P + "clip_model.")
    }
    plain.load_state_dict({n: v for n, v in ours.items() if "hyperbolic" not in n})
    for tower, prefix in zip(find_towers(plain), ("transformer", "visual.transformer")):
        for number, block in enumerate(tower.blocks):
            stem = f"{prefix}.resblocks.{number}.hyperbolic_attn.adapter_attn_"
            found = {
                letter: ours[f"{stem}{letter}.weights"]
                for letter in "qkv"
                if f"{stem}{letter}.weights" in ours
            }
            if found and not (tower.modality == "vision" and 11 <= number < depth - 1):
                block.attn.in_proj_weight.data = reference_packed(
                    block.attn.in_proj_weight.data, found, 0.01
                )
    with torch.no_grad():
        features, maps, _ = reference_dense(plain, image)
        first, second = max(0, depth // 3 - 1), max(0, 2 * depth // 3 - 1)
        guides = [
            F.conv_transpose2d(
                maps[i][None], weights[f"{n}.weight"], weights[f"{n}.bias"], stride=s
            )
            for i, n, s in ((first, "upsample1", 2), (second, "upsample2", 4))
        ]
        tokens = build(classes=["a"]).tokenizer(text)
        words = F.normalize(plain.encode_text(tokens), dim=-1)[:, None]  # all 20 tokens
        head = {
            n.removeprefix(P + "transformer."): v
            for n, v in weights.items()
            if n.startswith(P + "transformer.")
        }
        reference = ReferenceHead(head, HEAD["heads"], HEAD["window"], pad_len=HEAD["pad_len"])
        return reference(features[None], words, guides)


@each("family, layers", [("hyperclip", 4), ("hyperclip", 14), ("catseg", 4)])
def test_converted_segmenter_is_the_reference(tmp_path, family, layers):
    weights = official(family == "hyperclip", layers)
    stored = dict(weights)
    if family == "catseg":
        for name in [name for name in stored if name.endswith("in_proj_weight")]:
            for letter, part in zip("qkv", stored.pop(name).chunk(3)):
                stored[name.replace("in_proj_weight", f"{letter}_proj_weight")] = part.clone()
    torch.save({"model": stored, "iteration": 3}, tmp_path / "in.pth")
    done = convert_file(family, tmp_path / "in.pth", tmp_path / "out.safetensors")
    assert done.model == f"{family}-width64-patch16" and f"{done.path}" in done.usage()

    make = dict(make=lambda: clip_models.openai_clip(vision_layers=layers))
    model = (
        build(**make) if family == "hyperclip" else build(adapter=None, tune="attention", **make)
    )
    from safetensors.torch import load_file

    model.load_state_dict(load_file(done.path))
    model.set_classes(["cat", "old dog", "grass"])
    image = random_image(64, 64)
    with torch.no_grad():
        found = model.logits(image[None])
    names = [f"A photo of a {name} in the scene" for name in model.classes]
    expected = reference_segmenter(weights, (image - 120) / 60, names)
    assert (found - expected).abs().max() <= 5e-6 * expected.abs().max()

    back = convert_file(family, done.path, tmp_path / "back.pth", to_official=True)
    again = torch.load(back.path, weights_only=True)
    assert set(again) == set(stored)
    unused = [n for n in stored if layers > 12 and "hyperbolic_attn" in n and "visual" in n]
    assert all(
        torch.equal(again[n], stored[n]) for n in stored if "attn_mask" not in n and n not in unused
    )


def test_mistakes_are_explained(tmp_path):
    def fails(match, family, weights, **options):
        torch.save(weights, tmp_path / "in.pth")
        with pytest.raises(HypvisionError, match=match):
            convert_file(family, tmp_path / "in.pth", tmp_path / "out.pth", **options)

    weights = official()
    fails("entry 'backbone2.weight'", "hyperclip", {**weights, "backbone2.weight": torch.ones(1)})
    fails(
        "'clip_pixel_mean'",
        "hyperclip",
        {**weights, "clip_pixel_mean": torch.full((3, 1, 1), 123.0)},
    )
    fails("not a checkpoint of an official CAT-Seg", "catseg", weights)
    fails("not a checkpoint of an official HyperCLIP", "hyperclip", {"a": torch.ones(1)})
    fails("call adapters.merge", "catseg", build().state_dict(), to_official=True)
    split = {n.replace("in_proj_weight", "q_proj_weight"): v for n, v in official(False).items()}
    fails("only q of the projection", "catseg", split)
    fails(
        "only a part",
        "catseg",
        {n: v for n, v in official(False).items() if "transformer.conv1" in n or "logit" in n},
    )

"""The methods that HyperCLIP is compared with, against other implementations and closed forms."""

import copy

import pytest
import torch
import torch.nn.functional as F
from helpers import clip_models
from helpers.cases import each
from torch import nn

from hypvision.clip import adapters
from hypvision.clip.open_vocabulary import set_tuning
from hypvision.clip.towers import encode_dense, encode_image, encode_text
from hypvision.io.errors import HypvisionError


def randomised(model, scale=0.2):
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in adapters.trainable_parameters(model):
            parameter.normal_(0, scale)
    return model.eval()


def test_lora_is_that_of_peft():
    """On q, k and v, which peft's changes all at once."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(12, 2, batch_first=True)
    base = copy.deepcopy(attention).eval()
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=["0"])
    wrapped = peft.inject_adapter_in_model(config, nn.Sequential(attention)).eval()
    from hypvision.clip.adapters.lora import LoRAConfig, LowRankMap

    ours = LowRankMap(12, LoRAConfig(rank=3, alpha=5, projections="qkv"))
    theirs = dict(wrapped.named_parameters())
    up_name = next(name for name, value in theirs.items() if "lora_B" in name and len(value) == 36)
    up, down = (
        theirs[up_name],
        theirs[up_name.replace("lora_B", "lora_A")],
    )  # the others are of the output
    with torch.no_grad():
        up.normal_()
        for letter, part in zip("qkv", up.chunk(3)):
            getattr(ours, f"{letter}_down").copy_(down)
            getattr(ours, f"{letter}_up").copy_(part)
        x = torch.randn(2, 5, 12)
        expected = wrapped[0](x, x, x)[0]
        base.in_proj_weight.copy_(ours.adapted(base.in_proj_weight))
        torch.testing.assert_close(base(x, x, x)[0], expected, rtol=1e-5, atol=1e-5)


def test_lora_reaches_the_dense_path_and_leaves_other_projections():
    model = adapters.inject(clip_models.openai_clip(), "lora", rank=2, projections="v", text=False)
    images, tokens = clip_models.random_images(model), clip_models.prompts()
    with torch.no_grad():
        before, text = encode_dense(model, images)[0], encode_text(model, tokens)
        last = model.visual.transformer.resblocks[-1]
        frozen = last.attn.parametrizations.in_proj_weight.original.clone()
        last.lora.v_up.normal_()
        d = frozen.shape[1]
        assert torch.equal(last.attn.in_proj_weight[: 2 * d], frozen[: 2 * d])
        assert (encode_dense(model, images)[0] - before).abs().max() > 1e-3
        assert torch.equal(encode_text(model, tokens), text)


@pytest.mark.parametrize("deep", [True, False])
def test_vpt_against_blocks_by_hand(deep):
    model = randomised(adapters.inject(clip_models.openai_clip(), "vpt", tokens=3, deep=deep))
    visual, images = model.visual, clip_models.random_images(model)
    learned = visual.vpt.tokens
    assert learned.shape[0] == (len(visual.transformer.resblocks) if deep else 1)
    found = encode_image(model, images)
    base = adapters.remove(model)
    x = base.visual.conv1(images).flatten(2).transpose(1, 2)
    first = base.visual.class_embedding.expand(len(x), 1, -1)
    x = torch.cat([first, x], 1) + base.visual.positional_embedding
    own = [tokens.expand(len(x), -1, -1) for tokens in learned]
    x = base.visual.ln_pre(torch.cat([x[:, :1], own[0], x[:, 1:]], 1))
    for number, block in enumerate(base.visual.transformer.resblocks):
        if deep and number:
            x = torch.cat([x[:, :1], own[number], x[:, 4:]], 1)
        x = block(x)
    expected = base.visual.ln_post(x[:, 0]) @ base.visual.proj
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_vpt_needs_a_class_token():
    with pytest.raises(HypvisionError, match="class token"):
        adapters.inject(clip_models.siglip(), "vpt")


def test_bottleneck_is_a_small_mlp_behind_the_mlp():
    model = randomised(adapters.inject(clip_models.openai_clip(), "bottleneck", width=5))
    block = model.visual.transformer.resblocks[0]
    own, x = block.bottleneck, torch.randn(2, 7, model.visual.conv1.out_channels)
    with torch.no_grad():
        y = x + block.attention(block.ln_1(x))
        hidden = block.mlp.c_proj(block.mlp.gelu(block.mlp.c_fc(block.ln_2(y))))
        change = F.linear(
            F.gelu(F.linear(hidden, own.down.weight, own.down.bias)), own.up.weight, own.up.bias
        )
        torch.testing.assert_close(block(x), y + hidden + change, rtol=1e-5, atol=1e-5)


def test_bitfit_trains_biases_alone():
    model = clip_models.openai_clip()
    model.logit_bias = nn.Parameter(torch.tensor(-10.0))  # SigLIP's, of the loss and not of a layer
    set_tuning(model, "bias")
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    biases = {
        name for name, _ in model.named_parameters() if name.endswith((".bias", "_proj_bias"))
    }
    assert trained == biases and "logit_bias" not in biases
    assert (
        "visual.transformer.resblocks.0.attn.in_proj_bias" in trained and "ln_final.bias" in trained
    )


@each("first, second", [("hyperclip", "lora"), ("lora", "hyperclip")])
@each("make", [clip_models.openai_clip, clip_models.siglip])
def test_a_second_adapter_of_the_projections_is_told_of_the_first(make, first, second):
    options = dict(hyperclip=dict(block=16), lora=dict(rank=2))
    model = adapters.inject(make(), first, **options[first])
    with pytest.raises(HypvisionError, match=f"have an adapter already: {first}.*adapters.remove"):
        adapters.inject(model, second, **options[second])
    assert not adapters.is_injected(model, second)
    adapters.inject(adapters.remove(model), second, **options[second])

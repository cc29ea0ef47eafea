"""Text and dense image embeddings against open_clip's own and against a plain transformer written
here."""

import warnings

import pytest
import torch
from helpers import clip_models
from helpers.cases import each
from helpers.fewshot import bundle
from hypothesis import given
from hypothesis import strategies as st
from references.clip import reference_dense

from hypvision.clip import adapters
from hypvision.clip.spaces import space_of
from hypvision.clip.towers import (
    _batches,
    encode_by_length,
    encode_dense,
    encode_image,
    encode_text,
    find_towers,
    fixed_size,
    patch_size,
    resize_positions,
    text_part,
)
from hypvision.io.errors import HypvisionError


@each("make", [clip_models.openai_clip, clip_models.siglip, clip_models.custom_blocks])
def test_text_is_that_of_the_model_in_less_tokens(make):
    model = make()
    adapters.inject(model, block=16)
    tokens = clip_models.prompts(5)
    lengths = []
    hook = find_towers(model)[0].trunk.register_forward_pre_hook(
        lambda _, args: lengths.append(args[0].shape[1])
    )
    for normalize in (False, True):
        assert (
            encode_text(model, tokens, normalize) - model.encode_text(tokens, normalize)
        ).abs().max() < 2e-6
    hook.remove()
    assert lengths[0] == (
        20 if make is clip_models.siglip else 11
    )  # bidirectional text cannot be cut
    assert (encode_text(model, tokens, cut=False) == model.encode_text(tokens)).all()


@each("make", [clip_models.openai_clip, clip_models.siglip, clip_models.meru])
def test_texts_in_parts_give_the_table_of_words_one_gradient(make):
    """The points and gradients of all texts at once; words that are looked up in parts would give
    one each."""
    model, tokens, found = make().train(), clip_models.prompts(9), []
    for encode in (encode_text, encode_by_length):
        table, calls = text_part(model).token_embedding, []
        hook = table.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        points = encode(model, tokens, normalize=True)
        hook.remove()
        weights = torch.linspace(0, 1, points.numel()).view_as(points)
        found.append([points, *torch.autograd.grad((points * weights).sum(), [table.weight])])
    assert len(calls) == (3 if make is clip_models.siglip else 1)
    for x, y in zip(*found, strict=True):
        assert (x - y).abs().max() <= 2e-6 * y.abs().max()


def test_text_that_ends_with_a_given_token():
    model = clip_models.openai_clip()
    model.text_pool_type, model.text_eos_id = "eos", 50
    tokens = clip_models.prompts(3).clamp(max=49)
    for row, end in enumerate((3, 9, 6)):
        tokens[row, end] = 50
    assert (encode_text(model, tokens) - model.encode_text(tokens)).abs().max() < 2e-6


@each("size", [(64, 64), (96, 48), (16, 16)])
def test_dense_embeddings_are_the_reference(size):
    model = clip_models.openai_clip()
    for block in model.visual.transformer.resblocks:  # biases are zero at first
        torch.nn.init.normal_(block.attn.in_proj_bias)
        torch.nn.init.normal_(block.attn.out_proj.bias)
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        dense, maps, token = encode_dense(model, images, (1, 2))
        for i in range(2):
            expected = reference_dense(model, images[i])
            assert (dense[i] - expected[0]).abs().max() <= 5e-6 * expected[0].abs().max()
            assert (token[i] - expected[2]).abs().max() <= 5e-6 * expected[2].abs().max()
            for found, number in zip(maps, (1, 2)):
                assert (found[i] - expected[1][number]).abs().max() <= 5e-6 * expected[1][
                    number
                ].abs().max()


def test_dense_siglip_pools_each_patch_alone():
    model = clip_models.siglip()
    images = clip_models.random_images(model)
    trunk = model.visual.trunk
    with torch.no_grad():
        dense, maps, token = encode_dense(model, images, (8,))
        tokens = trunk.forward_features(images)[:, trunk.num_prefix_tokens :]
        assert token is None and dense.shape == (2, 96, 10, 10)
        for place in (0, 37, 99):
            expected = model.visual.head(trunk.forward_head(tokens[:, place : place + 1]))
            assert torch.allclose(dense.flatten(2)[..., place], expected, atol=1e-5)
        assert encode_dense(model, torch.randn(1, 3, 32, 64))[0].shape == (1, 96, 2, 4)


def test_dense_gradients_with_and_without_checkpointing():
    gradients = []
    for checkpointing in (False, True):
        model = adapters.inject(clip_models.openai_clip(), block=16, text=False).train()
        dense, maps, _ = encode_dense(model, clip_models.random_images(model), (1,), checkpointing)
        (dense.square().mean() + maps[0].square().mean()).backward()
        gradients.append([parameter.grad for parameter in adapters.trainable_parameters(model)])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*gradients))
    *_, q, k, v = gradients[0]
    assert (
        (q == 0).all() and (k == 0).all() and (v != 0).any()
    )  # the last block has no attention here


def test_feature_form_in_dense_mode():
    models = [
        adapters.inject(clip_models.openai_clip(), block=16, form=form)
        for form in ("weight", "feature")
    ]
    with torch.no_grad():
        for parameter in adapters.trainable_parameters(models[0]):
            parameter.add_(0.1 * torch.randn_like(parameter))
        turned = {
            name: value.mT.contiguous()
            for name, value in adapters.adapter_state_dict(models[0]).items()
        }
        models[1].load_state_dict(turned, strict=False)
        dense = [encode_dense(model, clip_models.random_images(model))[0] for model in models]
    assert torch.allclose(*dense, atol=1e-5)


def test_positions_are_left_alone_on_their_own_grid():
    table = torch.randn(1 + 16, 8)
    assert resize_positions(table, (4, 4), (4, 4)) is table
    assert resize_positions(table, (6, 3), (4, 4)).shape == (19, 8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_images_take_the_dtype_of_the_tower(dtype):
    model = clip_models.openai_clip().to(dtype)
    assert encode_image(model, clip_models.random_images(model).float()).dtype == dtype


@each("dtype", [torch.bfloat16, torch.float16])
@each("make", [clip_models.openai_clip, clip_models.siglip, clip_models.meru])
def test_points_of_half_precision_networks_are_compared(make, dtype):
    """Whether their texts can be cut or not."""
    model = make().to(dtype)
    images = encode_image(model, clip_models.random_images(model).float(), normalize=True)
    texts = encode_text(model, clip_models.prompts(5), normalize=True)
    assert images.dtype == texts.dtype == torch.float32
    assert space_of(model).similarity(images, texts).isfinite().all()


def test_a_tower_takes_the_size_that_it_was_set_to():
    model = clip_models.siglip()
    size = 2 * model.visual.trunk.patch_embed.img_size[0]
    model.visual.trunk.set_input_size(img_size=size)
    assert fixed_size(model) == (size, size)


def test_mistakes_are_explained():
    model = clip_models.openai_clip()
    assert patch_size(model) == (16, 16) and patch_size(clip_models.siglip()) == (16, 16)
    for size, match in (
        ((8, 32), "8 x 32 pixels, less than one patch"),
        ((40, 64), "not a multiple of the patch"),
    ):
        with pytest.raises(HypvisionError, match=match):
            encode_dense(model, torch.randn(1, 3, *size))
    with pytest.raises(HypvisionError, match="no image block 4"):
        encode_dense(model, torch.randn(1, 3, 64, 64), (4,))
    model.visual = torch.nn.Identity()
    with pytest.raises(HypvisionError, match="is not a ViT"):
        encode_dense(model, torch.randn(1, 3, 64, 64))


def test_images_that_do_not_fit_the_model_are_told():
    clip = bundle()
    good = torch.full((2, 3, 64, 64), 200, dtype=torch.uint8)
    assert clip.embed_images(good).shape == (2, 64)
    for shape, said in (
        ((3, 64, 64), "the shape"),
        ((0, 3, 64, 64), "the shape"),
        ((2, 1, 64, 64), "RGB"),
        ((2, 4, 64, 64), "RGB"),
        ((2, 3, 48, 80), "48x80 pixels, and this CLIP takes 64x64.*preprocessing_of"),
    ):
        with pytest.raises(HypvisionError, match=said):
            clip.embed_images(torch.zeros(shape, dtype=torch.uint8))
    for images in (good.float() / 255, good.float() / 255 - 0.5):
        with pytest.warns(UserWarning, match="Give RGB from 0 to 255"):
            clip.embed_images(images)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for images in (good, good.float(), good // 255, torch.zeros(2, 3, 64, 64)):
            clip.embed_images(images)


@given(st.lists(st.integers(1, 77), max_size=60).map(sorted), st.integers(50, 300))
def test_batches_of_texts_hold_the_budget_and_no_text_twice(lengths, budget):
    counts = _batches(torch.tensor(lengths, dtype=torch.int64), budget)
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    assert sum(counts) == len(lengths) and all(counts)
    for count, end in zip(counts, ends):
        assert count == 1 or count * lengths[end - 1] <= budget
        if end < len(lengths):  # one more would not fit
            assert (count + 1) * lengths[end] > budget

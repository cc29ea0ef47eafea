"""Learned tokens in both towers, against a reference that takes one sequence at a time."""

import pytest
import torch
from helpers import clip_models
from helpers.cases import each
from references.clip import prompted_image, prompted_text

from hypvision.clip import adapters
from hypvision.clip.towers import PromptTokens, encode_dense, encode_image, encode_text, find_towers
from hypvision.io.errors import HypvisionError

# Blocks with tokens of their own: CoOp and shallow prompts, deep ones, some that join later, sets
# of unequal length.
LAYERS = [{0: 2}, {0: 3, 1: 3, 2: 3}, {0: 2, 2: 4}, {1: 4, 2: 1}]


def clip(trained=False):
    model = clip_models.openai_clip().requires_grad_(trained)
    for block in [
        *model.visual.transformer.resblocks,
        *model.transformer.resblocks,
    ]:  # biases are zero at first
        torch.nn.init.normal_(block.attn.in_proj_bias, std=0.3)
    return model


def tokens(layers, width, *batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        number: torch.randn(*batch, n, width, generator=generator) for number, n in layers.items()
    }


@each("layers", LAYERS)
def test_text_is_that_of_the_reference(layers):
    model, ids = clip(), clip_models.prompts(4)
    given = tokens(layers, 32)
    found = encode_text(model, ids, prompts=PromptTokens(given))
    for row, text in zip(ids.tolist(), found):
        expected = prompted_text(model, row[: row.index(max(row)) + 1], given)
        assert (text - expected).abs().max() < 5e-6
    assert (found - encode_text(model, ids)).abs().max() > 1e-2


@pytest.mark.parametrize("layers", [{0: 2}, {0: 3, 1: 3}], ids=str)
def test_text_with_placeholders(layers):
    """CoOp's way: words that stand for the context are overwritten, and the text is as long as
    before."""
    model, ids = clip(), clip_models.prompts(4)
    given = tokens(layers, 32)
    found = encode_text(model, ids, prompts=PromptTokens(given, overwrite=True))
    for row, text in zip(ids.tolist(), found):
        expected = prompted_text(model, row[: row.index(max(row)) + 1], given, overwrite=True)
        assert (text - expected).abs().max() < 5e-6
    # Without placeholders, the same tokens inserted give the same text.
    n = layers[0]
    shorter = torch.cat(
        [ids[:, :1], ids[:, 1 + n :], torch.zeros(len(ids), n, dtype=ids.dtype)], dim=1
    )
    assert (encode_text(model, shorter, prompts=PromptTokens(given)) - found).abs().max() < 5e-6


@each("layers", LAYERS)
def test_image_is_that_of_the_reference(layers):
    model = clip()
    images, given = clip_models.random_images(model), tokens(layers, 64)
    found = encode_image(model, images, prompts=PromptTokens(given))
    for image, embedding in zip(images, found):
        assert (embedding - prompted_image(model, image, given)).abs().max() < 5e-6
    assert (found - encode_image(model, images)).abs().max() > 1e-2


def test_the_last_block_is_run_for_all_tokens_where_somebody_listens():
    """Else for the pooled place alone; with the same outcome."""
    model, heard = clip(), []
    ids, images = clip_models.prompts(3), clip_models.random_images(model, 2)

    def embed():
        text = encode_text(model, ids, prompts=PromptTokens(tokens({0: 2}, 32)))
        return text, encode_image(model, images, prompts=PromptTokens(tokens({0: 2}, 64)))

    before = embed()
    for tower in find_towers(model):
        tower.blocks[-1].register_forward_hook(
            lambda block, inputs, out: heard.append(out.shape[1])
        )
    for a, b in zip(before, embed()):
        assert (a - b).abs().max() < 5e-6
    assert len(heard) == 2 and min(heard) > 2


def test_each_sequence_can_have_its_own():
    model = clip()
    images, ids = clip_models.random_images(model), clip_models.prompts(3)
    own = [tokens({0: 2, 1: 2}, 32, 3), tokens({0: 2, 1: 2}, 64, 2)]
    found = [
        encode_text(model, ids, prompts=PromptTokens(own[0])),
        encode_image(model, images, prompts=PromptTokens(own[1])),
    ]
    for i in range(2):
        alone = [
            PromptTokens({number: value[i] for number, value in given.items()}) for given in own
        ]
        one = [
            encode_text(model, ids[i : i + 1], prompts=alone[0]),
            encode_image(model, images[i : i + 1], prompts=alone[1]),
        ]
        assert all((a[i] - b[0]).abs().max() < 5e-6 for a, b in zip(found, one))


def test_learned_words_anywhere():
    """Embeddings in place of those of the tokens, for contexts around or behind a class name."""
    model, ids = clip(), clip_models.prompts(2)
    embedded = model.token_embedding(ids)
    assert (
        encode_text(model, ids, embeddings=embedded) - encode_text(model, ids)
    ).abs().max() < 5e-6
    learned = torch.randn(2, 32)
    embedded[:, 1:3] = learned
    expected = encode_text(model, ids, prompts=PromptTokens({0: learned}, overwrite=True))
    assert (encode_text(model, ids, embeddings=embedded) - expected).abs().max() < 5e-6


@each("make", [clip_models.openai_clip, clip_models.siglip, clip_models.custom_blocks])
def test_without_tokens_the_outputs_are_those_of_open_clip(make):
    model = make()
    images, ids = clip_models.random_images(model), clip_models.prompts()
    with torch.no_grad():
        expected = [
            model.encode_image(images),
            model.encode_text(ids),
            encode_dense(model, images)[0],
        ]
        none = PromptTokens({})
        found = [
            encode_image(model, images, prompts=none),
            encode_text(model, ids, prompts=none),
            encode_dense(model, images, prompts=none)[0],
        ]
        assert all((a - b).abs().max() < 5e-6 for a, b in zip(found, expected))
        assert (
            encode_image(model, images, normalize=True, prompts=none).norm(dim=-1) - 1
        ).abs().max() < 1e-5
        assert torch.equal(encode_image(model, images), expected[0])


@pytest.mark.parametrize("make", [clip_models.siglip, clip_models.custom_blocks])
def test_other_towers(make):
    """timm's ViT with attention pooling, bidirectional text, open_clip's own attention module."""
    model = make()
    images, ids = clip_models.random_images(model), clip_models.prompts()
    width = {tower.modality: tower.width for tower in find_towers(model)}
    with torch.no_grad():
        plain = encode_image(model, images), encode_text(model, ids)
        for layers in ({0: 2}, {1: 2}, {0: 1, 1: 2}):
            text, image = (
                PromptTokens(tokens(layers, width["text"])),
                PromptTokens(tokens(layers, width["vision"])),
            )
            found = (
                encode_image(model, images, prompts=image),
                encode_text(model, ids, prompts=text),
            )
            assert all(
                a.shape == b.shape and (a - b).abs().max() > 1e-3 for a, b in zip(found, plain)
            )
            dense, maps, _ = encode_dense(model, images, (1,), prompts=image)
            before, maps_before, _ = encode_dense(model, images, (1,))
            assert dense.shape == before.shape and maps[0].shape == maps_before[0].shape
            assert (dense - before).abs().max() > 1e-4


def test_dense_embeddings():
    """The class token of the dense path has seen the prompts up to the last block but one."""
    model = clip()
    images, given = clip_models.random_images(model), PromptTokens(tokens({0: 2, 2: 2}, 64))
    dense, maps, _ = encode_dense(model, images, (1, 3), prompts=given)
    sequence = []
    hook = model.visual.transformer.resblocks[1].register_forward_hook(
        lambda *args: sequence.append(args[2])
    )
    encode_image(model, images, prompts=given)
    hook.remove()
    expected = sequence[0][:, 1:17].transpose(1, 2).unflatten(2, (4, 4))
    assert (maps[0] - expected).abs().max() < 5e-6 and maps[1].shape == maps[0].shape
    last = PromptTokens({**given.layers, 3: torch.randn(2, 64)})  # there tokens do not mix any more
    assert torch.equal(encode_dense(model, images, prompts=last)[0], dense)


def test_gradients_reach_the_tokens():
    found = []
    for again in (False, True):
        model = clip().train()
        model.set_grad_checkpointing(again)
        given = [
            {n: t.requires_grad_() for n, t in tokens({0: 2, 2: 2}, width).items()}
            for width in (32, 64)
        ]
        text = encode_text(model, clip_models.prompts(), prompts=PromptTokens(given[0]))
        image = encode_image(
            model, clip_models.random_images(model), prompts=PromptTokens(given[1])
        )
        (text.square().sum() + image.square().sum()).backward()
        found.append([t.grad for layers in given for t in layers.values()])
    assert all(torch.allclose(a, b, atol=1e-5) and a.abs().max() > 0 for a, b in zip(*found))


def test_tokens_get_gradients_beside_an_adapter():
    """Those of the text tower directly, those of the image tower through the map from which they
    come."""
    model = adapters.inject(clip(), block=16)
    images, ids = clip_models.random_images(model), clip_models.prompts()
    context, project = torch.nn.Parameter(torch.randn(2, 32)), torch.nn.Linear(32, 64)
    text, image = PromptTokens({0: context}), PromptTokens({0: project(context)})
    found = [encode_text(model, ids, prompts=text), encode_image(model, images, prompts=image)]
    sum(x.square().sum() for x in found).backward()
    assert all(p.grad.abs().max() > 0 for p in (context, *project.parameters()))


def test_mistakes_are_explained():
    model = clip()
    images, ids = clip_models.random_images(model), clip_models.prompts()

    def fails(match, function, given, layers, **options):
        with pytest.raises(HypvisionError, match=match):
            function(model, given, prompts=PromptTokens(layers, **options))

    fails(
        "vision block 4: the tower has blocks 0 to 3", encode_image, images, {4: torch.zeros(1, 64)}
    )
    fails(r"shape \(1, 32\) instead of \(n, 64\)", encode_image, images, {0: torch.zeros(1, 32)})
    fails(r"shape \(32,\) instead of", encode_text, ids, {0: torch.zeros(32)})
    fails("Texts of 11 tokens and 10 prompt tokens do not fit into the 20 positions", encode_text,
          clip_models.prompts(4), {0: torch.zeros(10, 32)})  # fmt: skip
    fails(
        "12 prompt tokens cannot replace",
        encode_text,
        ids,
        {0: torch.zeros(12, 32)},
        overwrite=True,
    )
    model.visual = torch.nn.Identity()
    fails("is not a ViT", encode_image, images, {0: torch.zeros(1, 64)})
    model.cls_emb = torch.nn.Parameter(torch.zeros(32))
    fails("takes no prompt tokens", encode_text, ids, {0: torch.zeros(1, 32)})

"""CLIP as OpenAI published it: a TorchScript archive in half precision, which says itself that it
needs QuickGELU."""

import open_clip
import pytest
import torch
from helpers import clip_repository

from hypvision.clip.models import create_clip
from hypvision.clip.names import clip_options

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit", "ignore::torch.jit.TracerWarning")


def publish(path, quick_gelu=True, half=True):
    """An archive with OpenAI's names and its three numbers beside them, traced as theirs are; and
    the network."""
    torch.manual_seed(0)
    model = open_clip.CLIP(**clip_repository.config(quick_gelu=quick_gelu)).eval()
    for name, number in (("input_resolution", 32), ("context_length", 16), ("vocab_size", 49408)):
        vars(model).pop(name, None)
        model.register_buffer(name, torch.tensor(number))
    images, tokens = (
        torch.randn(2, 3, 32, 32),
        open_clip.SimpleTokenizer(context_length=16)(["a cat", "a red dog"]),
    )
    traced = torch.jit.trace(model, (images, tokens), check_trace=False)
    (traced.half() if half else traced).save(str(path))
    return model, images, tokens


@pytest.fixture
def archive(tmp_path, monkeypatch):
    clip_repository.register(monkeypatch)
    clip_repository.register(monkeypatch, "tiny-clip-quickgelu", quick_gelu=True)
    return tmp_path / "ViT-tiny.pt"


def is_quick(model):
    blocks = [*model.transformer.resblocks, *model.visual.transformer.resblocks]
    (kind,) = {type(block.mlp.gelu).__name__ for block in blocks}
    return kind == "QuickGELU"


@pytest.mark.parametrize("half", [True, False])
def test_it_computes_what_the_archive_does(archive, half):
    model, images, tokens = publish(archive, half=half)
    clip = create_clip("tiny-clip", archive)
    assert is_quick(clip.model) and next(clip.model.parameters()).dtype == torch.float32
    for name, value in clip.model.state_dict().items():
        expected = model.state_dict()[name]
        assert torch.equal(value, expected.half().float() if half else expected)
    with torch.no_grad():
        found = (
            clip.model.encode_image(images, normalize=True),
            clip.model.encode_text(tokens, normalize=True),
        )
        if not half:  # as PyTorch runs it
            for ours, theirs in zip(found, torch.jit.load(str(archive))(images, tokens)):
                assert torch.allclose(ours, theirs, atol=1e-6)
    assert torch.equal(clip.tokenizer(["a cat", "a red dog"]), tokens)


def test_the_activation_is_that_of_the_archive_unless_asked_otherwise(archive):
    publish(archive)
    resized = create_clip("tiny-clip", archive, force_image_size=48).model
    assert is_quick(resized) and resized.visual.positional_embedding.shape == (10, 32)
    assert not is_quick(create_clip("tiny-clip", archive, force_quick_gelu=False).model)
    assert is_quick(create_clip("tiny-clip", archive, load_weights=False).model)
    assert is_quick(create_clip(**clip_options(f"tiny-clip:{archive}")).model)
    torch.save(create_clip("tiny-clip").model.state_dict(), archive.with_name("plain.pt"))
    assert not is_quick(create_clip("tiny-clip", archive.with_name("plain.pt")).model)
    publish(archive, quick_gelu=False)
    assert not is_quick(create_clip("tiny-clip", archive).model)


def test_a_file_that_is_not_here_cannot_say_it(archive):
    """A network for a checkpoint, on a machine without the file that its training began with."""
    with pytest.warns(
        UserWarning, match="ViT-tiny.pt' are not here.* name the model 'tiny-clip-quickgelu'"
    ):
        create_clip("tiny-clip", archive, load_weights=False)
    for name, options in (("tiny-clip-quickgelu", {}), ("tiny-clip", dict(force_quick_gelu=True))):
        assert is_quick(create_clip(name, archive, load_weights=False, **options).model)

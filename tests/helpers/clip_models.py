"""Tiny open_clip models of every kind, with random weights, for the tests of this folder."""

import torch
from open_clip.model import CLIP, CustomTextCLIP

from hypvision.clip.hyperbolic import HyperbolicCLIP
from hypvision.clip.models import CLIPBundle, create_clip

TEXT = dict(context_length=20, vocab_size=100, width=32, heads=2, layers=3)
VISION = dict(image_size=64, layers=4, width=64, patch_size=16, head_width=16)
VOCABULARY = 100


def openai_clip(text_layers=3, vision_layers=4, **vision):
    """OpenAI's architecture: QuickGELU, causal text, class token."""
    torch.manual_seed(1)
    text = dict(TEXT, layers=text_layers)
    return CLIP(64, dict(VISION, layers=vision_layers, **vision), text, quick_gelu=True).eval()


def siglip():
    """SigLIP's: timm ViT with attention pooling and no class token, text without a causal mask."""
    torch.manual_seed(2)
    vision = dict(image_size=160, timm_model_name="test_vit3", timm_pool="map", timm_proj="none")
    text = dict(TEXT, no_causal_mask=True, proj_bias=True, pool_type="last", width=96, heads=2)
    model = CustomTextCLIP(96, vision, text).eval()
    for block in model.visual.trunk.blocks:  # 1e-5 at first, which would hide what a block does
        block.ls1.gamma.data.fill_(1.0)
        block.ls2.gamma.data.fill_(1.0)
    return model


def custom_blocks():
    """open_clip's own attention module in the text tower (query and key norms)."""
    torch.manual_seed(3)
    return CLIP(64, VISION, dict(TEXT, qk_norm=True)).eval()


def random_images(model, count=2, seed=0):
    size = model.visual.image_size
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(
        count, 3, *((size, size) if isinstance(size, int) else size), generator=generator
    )


def prompts(count=3, length=20, seed=0):
    """Token numbers of texts of different lengths; the largest number ends each."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, VOCABULARY - 1, (count, length), generator=generator)
    for i in range(count):
        end = 4 + 2 * (i % 4)
        tokens[i, end], tokens[i, end + 1 :] = VOCABULARY - 1, 0
    return tokens


def meru(seed=4):
    """MERU's architecture; curvature and factors are not those of the start."""
    from hypvision.clip.hyperbolic import HyperbolicCLIP

    torch.manual_seed(seed)
    vision = dict(image_size=32, timm_model_name="test_vit", timm_pool="token", timm_proj="linear")
    model = HyperbolicCLIP(24, vision, TEXT, vision_heads=2).eval()
    with torch.no_grad():
        model.curv.fill_(0.4)
        model.visual_alpha.fill_(0.3)
        model.textual_alpha.fill_(-0.2)
    return model


def tiny(**options):
    """A CLIP of the hyperbolic families with towers of a few thousand weights."""
    torch.manual_seed(0)
    vision = dict(image_size=32, layers=1, width=32, patch_size=16, head_width=16)
    text = dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=1)
    return HyperbolicCLIP(32, vision, text, **options)


def bundle_of(model):
    return CLIPBundle(model, create_clip("emoji-t8").tokenizer, (0.0,) * 3, (255.0,) * 3)

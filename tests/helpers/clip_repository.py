"""A tiny CLIP of open_clip's form: its config, its weights, its files as they lie in the hub's
cache or in a folder."""

import json
from pathlib import Path

import huggingface_hub.constants
import open_clip
import torch
from safetensors.torch import save_file

TOWER = dict(layers=2, width=32)
CONFIG = dict(
    embed_dim=16,
    vision_cfg=dict(image_size=32, patch_size=16, head_width=16, **TOWER),
    text_cfg=dict(context_length=16, vocab_size=49408, heads=2, **TOWER),
)
ABOUT = dict(
    mean=[0.4, 0.5, 0.6], std=[0.2, 0.25, 0.3], interpolation="bilinear", resize_mode="squash"
)


def config(quick_gelu=False, timm=False, **text):
    """A config of its own; ``timm``: with an image tower of timm's, as SigLIP has it."""
    found = json.loads(json.dumps(CONFIG))
    found["text_cfg"].update(text)
    if quick_gelu:
        found["quick_gelu"] = True
    if timm:
        found["vision_cfg"] = dict(
            image_size=160, timm_model_name="test_vit3", timm_pool="map", timm_proj="none"
        )
        found |= dict(embed_dim=96, custom_text=True)
    return found


def register(monkeypatch, name="tiny-clip", tag=None, **options):
    """Let open_clip know the config by a name, and a tag of weights in the repository ``me/tiny``,
    for one test."""
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, name, config(**options))
    if tag is not None:
        tags = {"odd": dict(url="", hf_hub="me/tiny/", **ABOUT, **tag)}
        monkeypatch.setitem(open_clip.pretrained._PRETRAINED, name, tags)


def weights(**options):
    """Random weights of such a model, not all zeros and ones."""
    torch.manual_seed(0)
    arguments = config(**options)
    custom = arguments.pop("custom_text", False)
    model = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**arguments)
    return {
        name: value + 0.02 * torch.randn(value.shape) for name, value in model.state_dict().items()
    }


def folder(path, model=None, preprocess=ABOUT, tensors=None, name="open_clip_model.safetensors"):
    """A folder with config and weights, for ``local-dir:``."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    about = dict(model_cfg=model or config(), preprocess_cfg=preprocess)
    (path / "open_clip_config.json").write_text(json.dumps(about))
    if name is not None:
        save_file(tensors or weights(), path / name)
    return path


def cached(monkeypatch, root, repository="me/tiny", **options):
    """The same in the hub's cache, and the network switched off."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(root))
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    place = Path(root) / f"models--{repository.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text("abc")
    return folder(place / "snapshots/abc", **options)

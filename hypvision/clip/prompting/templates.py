"""Sentences for class names, as CLIP's authors published them for ImageNet."""

from __future__ import annotations

from hypvision.errors import HypvisionError, require

SELECTED = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
"""Seven templates that CLIP's authors chose by sequential forward selection."""


def imagenet_templates(count: int = 60) -> tuple[str, ...]:
    """The first of CLIP's 80 templates; PromptSRC takes 60."""
    known = require("open_clip", "clip").OPENAI_IMAGENET_TEMPLATES
    if not 1 <= count <= len(known):
        raise HypvisionError(f"The number of templates must be from 1 to {len(known)}, got {count}.")
    return tuple(template("{}") for template in known[:count])

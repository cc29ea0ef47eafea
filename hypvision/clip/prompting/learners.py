"""Learned prompt tokens: independent ones at the first layers of one tower or both (:class:`PromptLearner`), or tied
together (:class:`MaPLeLearner`, :class:`CoCoOpLearner`).

Depth counts the first layer: ``depth=9`` are the tokens that enter at block 0 and the eight sets that replace them at
blocks 1 to 8; later blocks process the last set. Depth 1 is shallow prompting.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hypvision.clip.models import CLIPBundle
from hypvision.clip.towers import embedding_size, find_towers, text_part
from hypvision.errors import HypvisionError


def tower_width(clip: nn.Module, modality: str, depth: int) -> int:
    """Width of the tower ``"text"`` or ``"vision"``.

    Raises:
        HypvisionError: the tower is not a transformer, or has fewer blocks than the depth of the prompts.
    """
    tower = next((tower for tower in find_towers(clip) if tower.modality == modality), None)
    if tower is None:
        methods = "zeroshot, linear-probe, coop, cocoop, clip-adapter and tip-adapter"
        raise HypvisionError(
            f"The {modality} tower of {type(clip).__name__} is not a transformer, so no prompts can enter it. Methods "
            f"for it: {methods if modality == 'vision' else 'none of ours'}; or use a model such as ViT-B-16."
        )
    blocks = len(tower.blocks)
    if not 1 <= depth <= blocks:
        raise HypvisionError(
            f"The {modality} prompts have a depth of {depth}; the tower allows 1 to {blocks}. Set depth={blocks}."
        )
    return tower.width


def depth_for(clip: nn.Module, depth: int | None, usual: int, *modalities: str) -> int:
    """The depth of prompts: the given depth, else ``usual``. If a tower has fewer blocks than that, all of them, with a
    warning."""
    fewest = min([usual, *(len(tower.blocks) for tower in find_towers(clip) if tower.modality in modalities)])
    if depth is None and fewest < usual:
        warnings.warn(
            f"The prompts have a depth of {fewest} instead of {usual}: a tower of this CLIP has {fewest} blocks.",
            stacklevel=2,
        )
    return fewest if depth is None else depth


def tokens_for(clip: nn.Module, tokens: int | None, usual: int) -> int:
    """The number of text tokens: the given number, else ``usual``. If texts of the model are too short for that, half
    of their positions, with a warning."""
    most = min(usual, len(text_part(clip).positional_embedding) // 2)
    if tokens is None and most < usual:
        warnings.warn(
            f"The prompts have {most} tokens instead of {usual}: texts of this CLIP have {2 * most} places.",
            stacklevel=2,
        )
    return most if tokens is None else tokens


@torch.no_grad()
def word_embeddings(clip: CLIPBundle, words: str, count: int) -> Tensor:
    """Token embeddings (count, width) of the first words of a sentence, one token a word."""
    embedding = text_part(clip.model).token_embedding
    return embedding(clip.tokenizer([words]).to(embedding.weight.device))[0, 1 : 1 + count].detach().float().clone()


class PromptLearner(nn.Module):
    """Independent tokens for the towers.

    CoOp (Zhou et al., IJCV 2022) has text tokens alone, of depth 1; deep language and deep vision prompting those of
    one tower; independent prompting (IVLP) and PromptSRC (Khattak et al., ICCV 2023) both.

    Args:
        clip: the model with its tokenizer.
        text, vision: number of tokens of each layer; 0 for none.
        text_depth, vision_depth: layers with tokens of their own.
        words: the text tokens of the first layer start as the embeddings of its first words; empty: at random.
        emulate_half: round all tokens but those of the first text layer to float16, as the official code of MaPLe and
            PromptSRC does.
    """

    def __init__(
        self,
        clip: CLIPBundle,
        text: int = 0,
        vision: int = 0,
        text_depth: int = 1,
        vision_depth: int = 1,
        words: str = "",
        emulate_half: bool = False,
    ):
        super().__init__()
        self.text_tokens, self.words, self.emulate_half = text, words, emulate_half
        if text:
            width = tower_width(clip.model, "text", text_depth)
            if words and len(words.split()) < text:
                raise HypvisionError(
                    f"{text} text tokens cannot start from the {len(words.split())} words '{words}'. Give more."
                )
            self.ctx = nn.Parameter(word_embeddings(clip, words, text) if words else _random(text, width))
            self.deep_text = nn.ParameterList(_random(text, width) for _ in range(text_depth - 1))
        if vision:
            width = tower_width(clip.model, "vision", vision_depth)
            self.visual = nn.Parameter(_random(vision, width))
            self.deep_visual = nn.ParameterList(_random(vision, width) for _ in range(vision_depth - 1))

    @property
    def prefix(self) -> str:
        """The words in front of a class name; the tokens replace some of them."""
        return self.words or " ".join(["X"] * self.text_tokens)

    def rounded(self, tokens: Tensor) -> Tensor:
        """Round tokens as the official code does (with ``emulate_half``)."""
        return tokens.half().to(tokens.dtype) if self.emulate_half else tokens

    def text(self) -> Mapping[int, Tensor]:
        """Text tokens (n, width) by block number."""
        if not self.text_tokens:
            return {}
        return {0: self.ctx, **{i: self.rounded(tokens) for i, tokens in enumerate(self.deep_text, 1)}}

    def vision(self) -> Mapping[int, Tensor]:
        """Image tokens (n, width) by block number."""
        if not hasattr(self, "visual"):
            return {}
        return {i: self.rounded(tokens) for i, tokens in enumerate([self.visual, *self.deep_visual])}


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape) * 0.02


class MaPLeLearner(PromptLearner):
    """MaPLe (Khattak et al., CVPR 2023): ``tokens`` for each of ``depth`` layers of both towers; those of the images
    are projected from those of the texts, layer by layer."""

    def __init__(self, clip: CLIPBundle, tokens: int, depth: int, words: str, emulate_half: bool):
        super().__init__(clip, text=tokens, text_depth=depth, words=words, emulate_half=emulate_half)
        width = tower_width(clip.model, "vision", depth)
        self.projections = nn.ModuleList(nn.Linear(self.ctx.shape[1], width) for _ in range(depth))

    def vision(self) -> Mapping[int, Tensor]:
        texts = [self.ctx, *self.deep_text]
        return {i: self.rounded(project(tokens)) for i, (project, tokens) in enumerate(zip(self.projections, texts))}


class CoCoOpLearner(PromptLearner):
    """CoCoOp (Zhou et al., CVPR 2022): a small network maps each image's feature to a shift of the context."""

    def __init__(self, clip: CLIPBundle, tokens: int, words: str):
        super().__init__(clip, text=tokens, words=words)
        dim = embedding_size(clip.model)
        hidden = max(1, dim // 16)
        self.meta = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, self.ctx.shape[1]))

    def context(self, image: Tensor) -> Tensor:
        """(B, d) unit image features -> (B, n, width)."""
        return self.ctx + self.meta(image)[:, None]

"""What prompt tuning learns: tokens of one tower or both, at the first layers (:class:`PromptLearner`), and the ways in
which they are tied together (:class:`MaPLeLearner`, :class:`CoCoOpLearner`).

Depth counts the first layer: ``depth=9`` are the tokens that enter at block 0 and the eight sets that replace them at
blocks 1 to 8, behind which they run on. Depth 1 is shallow prompting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from hypvision.clip.towers import embedding_size, find_towers
from hypvision.errors import HypvisionError

_STD = 0.02  # of prompts that do not start from words


def tower_shape(clip: nn.Module, modality: str) -> tuple[int, int]:
    """Width and number of blocks of the tower ``"text"`` or ``"vision"``.

    Raises:
        HypvisionError: it is no transformer.
    """
    for tower in find_towers(clip):
        if tower.modality == modality:
            return tower.width, len(tower.blocks)
    methods = (
        "zeroshot, linear-probe, coop, cocoop, clip-adapter and tip-adapter" if modality == "vision" else "none of ours"
    )
    raise HypvisionError(
        f"The {modality} tower of {type(clip).__name__} is not a transformer, so no prompts can enter it. Methods for "
        f"it: {methods}; or use a model such as ViT-B-16."
    )


@torch.no_grad()
def word_embeddings(clip: nn.Module, tokenizer: Callable[[list[str]], Tensor], words: str, count: int) -> Tensor:
    """Token embeddings (count, width) of the first words of a sentence, one token a word."""
    text = getattr(clip, "text", clip)
    device = text.token_embedding.weight.device
    return text.token_embedding(tokenizer([words]).to(device))[0, 1 : 1 + count].detach().float().clone()


def _check_depth(modality: str, depth: int, blocks: int) -> None:
    if not 1 <= depth <= blocks:
        raise HypvisionError(
            f"The {modality} prompts have a depth of {depth}; the tower allows 1 to {blocks}. Set depth={blocks}."
        )


class PromptLearner(nn.Module):
    """Independent tokens for the towers.

    CoOp (Zhou et al., IJCV 2022) has text tokens alone, of depth 1; deep language and deep vision prompting those of
    one tower; independent prompting (IVLP) and PromptSRC (Khattak et al., ICCV 2023) both.

    Args:
        clip: an open_clip model.
        tokenizer: of the model.
        text: number of text tokens; 0 for none.
        vision: number of image tokens; 0 for none.
        text_depth, vision_depth: layers with tokens of their own.
        words: the text tokens of the first layer start as the embeddings of its first words; empty: at random.
        emulate_half: round all tokens but those of the first text layer to float16, as the official code of MaPLe and
            PromptSRC does.

    Raises:
        HypvisionError: a tower that is no transformer, or has fewer layers.
    """

    def __init__(
        self,
        clip: nn.Module,
        tokenizer: Callable[[list[str]], Tensor],
        text: int = 4,
        vision: int = 4,
        text_depth: int = 9,
        vision_depth: int = 9,
        words: str = "a photo of a",
        emulate_half: bool = False,
    ):
        super().__init__()
        self.text_tokens, self.words, self.emulate_half = text, words, emulate_half
        if text:
            self.text_width, blocks = tower_shape(clip, "text")
            _check_depth("text", text_depth, blocks)
            if words and len(words.split()) < text:
                raise HypvisionError(
                    f"{text} text tokens cannot start from the {len(words.split())} words '{words}'. Give more words, "
                    "or none."
                )
            start = word_embeddings(clip, tokenizer, words, text) if words else _random(text, self.text_width)
            self.ctx = nn.Parameter(start)
            self.deep_text = nn.ParameterList(_random(text, self.text_width) for _ in range(text_depth - 1))
        if vision:
            width, blocks = tower_shape(clip, "vision")
            _check_depth("vision", vision_depth, blocks)
            self.visual = nn.Parameter(_random(vision, width))
            self.deep_visual = nn.ParameterList(_random(vision, width) for _ in range(vision_depth - 1))

    @property
    def prefix(self) -> str:
        """The words in front of a class name, some of which the tokens replace."""
        return self.words or " ".join(["X"] * self.text_tokens)

    def rounded(self, tokens: Tensor) -> Tensor:
        """As the official code passes them on."""
        return tokens.half().to(tokens.dtype) if self.emulate_half else tokens

    def text(self) -> Mapping[int, Tensor]:
        """Text tokens by the number of their block; (n, width) each."""
        if not self.text_tokens:
            return {}
        return {0: self.ctx, **{i: self.rounded(tokens) for i, tokens in enumerate(self.deep_text, 1)}}

    def vision(self) -> Mapping[int, Tensor]:
        """Image tokens by the number of their block; (n, width) each."""
        if not hasattr(self, "visual"):
            return {}
        return {i: self.rounded(tokens) for i, tokens in enumerate([self.visual, *self.deep_visual])}


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape) * _STD


class MaPLeLearner(PromptLearner):
    """MaPLe (Khattak et al., CVPR 2023): the image tokens are projected from the text tokens, layer by layer.

    Args:
        clip, tokenizer, words, emulate_half: see :class:`PromptLearner`.
        tokens: number of tokens of each tower.
        depth: layers with tokens of their own, of both towers.
    """

    def __init__(
        self,
        clip: nn.Module,
        tokenizer: Callable[[list[str]], Tensor],
        tokens: int = 2,
        depth: int = 9,
        words: str = "a photo of a",
        emulate_half: bool = False,
    ):
        super().__init__(clip, tokenizer, tokens, 0, depth, words=words, emulate_half=emulate_half)
        width, blocks = tower_shape(clip, "vision")
        _check_depth("vision", depth, blocks)
        self.projections = nn.ModuleList(nn.Linear(self.text_width, width) for _ in range(depth))

    def vision(self) -> Mapping[int, Tensor]:
        texts = [self.ctx, *self.deep_text]
        return {i: self.rounded(project(tokens)) for i, (project, tokens) in enumerate(zip(self.projections, texts))}


class CoCoOpLearner(PromptLearner):
    """CoCoOp (Zhou et al., CVPR 2022): each image shifts the context by what a small network makes of its feature.

    Args:
        clip, tokenizer, words: see :class:`PromptLearner`.
        tokens: of the context.
    """

    def __init__(
        self, clip: nn.Module, tokenizer: Callable[[list[str]], Tensor], tokens: int = 4, words: str = "a photo of a"
    ):
        super().__init__(clip, tokenizer, tokens, 0, 1, words=words)
        dim = embedding_size(clip)
        hidden = max(1, dim // 16)
        self.meta = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, self.text_width))

    def context(self, image: Tensor) -> Tensor:
        """(B, d) unit image features -> (B, n, width)."""
        return self.ctx + self.meta(image)[:, None]

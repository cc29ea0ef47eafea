"""Train a small CLIP from scratch on the embedded shapes and their captions, under mmengine's Runner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, METRICS, MODELS
from torch import Tensor
from torch.utils.data import Dataset

from hypvision.clip.classes import load_classes
from hypvision.clip.models import create_clip
from hypvision.clip.towers import encode_text
from hypvision.data.captions import _NOUNS
from hypvision.data.shapes import TAXONOMY, make_object, make_scene
from hypvision.data.taxonomy import KINDS
from hypvision.errors import HypvisionError

__all__ = ["CaptionContrast", "ShapeCaptions", "ZeroShotAccuracy", "vocabulary"]

TEMPLATE = "A photo of a {} in the scene"


@DATASETS.register_module()
class ShapeCaptions(Dataset):
    """Pictures of shapes with a sentence each: even samples show one object, odd ones a scene.

    A single object is called by its kind, its shape, colour and shape, or all that is said of it; a scene by one of its
    four captions, mostly the most specific.

    Args:
        split: ``train``, ``val`` or ``test``.
        length: number of samples.
        size: side in pixels.
        scenes: False: single objects only, with their shape's number as ``label``.
    """

    def __init__(self, split: str = "train", length: int = 100_000, size: int = 64, scenes: bool = True):
        self.split, self.length, self.size, self.scenes = split, length, size, scenes
        self.metainfo = dict(classes=TAXONOMY.classes["shape"])

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        """``inputs``: uint8 (3, size, size); ``caption``; ``label``: number of the shape, -1 for scenes."""
        rng = np.random.default_rng([index, 7])
        if self.scenes and index % 2:
            scene = make_scene(index // 2, self.split, self.size)
            image, label = np.asarray(scene.image), -1
            caption = scene.captions[int(rng.choice(4, p=(0.02, 0.08, 0.2, 0.7)))]
        else:
            image, instance = make_object(index // 2 if self.scenes else index, self.split, self.size)
            label = int(TAXONOMY.ancestors("shape", of="instance")[instance])
            texture, colour, shape = TAXONOMY.instances[instance]
            kind = next(kind for kind, shapes in KINDS.items() if shape in shapes)
            words = (_NOUNS[kind], shape, f"{colour} {shape}", f"{texture} {colour} {shape}")
            caption = words[int(rng.choice(4, p=(0.05, 0.25, 0.4, 0.3)))]
            if rng.random() < 0.5:
                caption = TEMPLATE.format(caption)
            else:
                caption = f"{'an' if caption[0] in 'aeiou' else 'a'} {caption}"
        return dict(inputs=torch.from_numpy(np.array(image)).permute(2, 0, 1), caption=caption, label=label)


@MODELS.register_module()
class CaptionContrast(BaseModel):
    """CLIP's symmetric contrastive loss; pictures with the same sentence are not told apart.

    Args:
        clip: arguments of :func:`hypvision.clip.models.create_clip`.
        classes: names that test pictures are compared with, in the order of their labels; anything that
            :func:`hypvision.clip.classes.load_classes` takes. None: the shapes.
    """

    def __init__(
        self,
        clip: dict[str, Any],
        classes: str | Path | Sequence[str] | None = None,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ):
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        bundle = create_clip(**clip)
        self.clip, self.tokenizer = bundle.model, bundle.tokenizer
        self.register_buffer("mean", torch.tensor(bundle.mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(bundle.std)[:, None, None], persistent=False)
        self._classes: tuple[str, ...] = TAXONOMY.classes["shape"] if classes is None else load_classes(classes)

    def forward(self, inputs: Tensor, caption: list[str], label: Tensor | None = None, mode: str = "tensor") -> Any:
        """mmengine's modes; ``inputs`` uint8 (B, 3, H, W).

        Returns:
            ``"tensor"``: unit embeddings (B, E); ``"loss"``: the two halves of the loss; ``"predict"``: for each image
            a dict with ``scores`` over the classes and ``label``.
        """
        images = self.clip.encode_image((inputs.float() - self.mean) / self.std, normalize=True)
        if mode == "tensor":
            return images
        if mode == "predict":
            text = self._encode([TEMPLATE.format(name) for name in self._classes])
            scores = (images.float() @ text.float().T).cpu()
            return [dict(scores=s, label=int(y)) for s, y in zip(scores, label)]
        if mode != "loss":
            raise ValueError(f"mode must be 'tensor', 'loss' or 'predict', got '{mode}'.")
        sentences = sorted(set(caption))
        number = torch.tensor([sentences.index(text) for text in caption], device=images.device)
        scale = self.clip.logit_scale.exp().clamp(max=100)
        logits = scale.float() * images.float() @ self._encode(sentences).float().T  # (B, sentences)
        same = torch.zeros_like(logits).scatter_(1, number[:, None], 1.0)
        of_image = torch.nn.functional.cross_entropy(logits, number)
        of_text = -(logits.log_softmax(0) * same / same.sum(0)).sum(0).mean()
        return dict(loss_image=of_image / 2, loss_text=of_text / 2)

    def _encode(self, sentences: list[str]) -> Tensor:
        tokens = self.tokenizer(sentences).to(self.mean.device)
        return encode_text(self.clip, tokens, normalize=True)


@METRICS.register_module()
class ZeroShotAccuracy(BaseMetric):
    """Share of single objects, in percent, whose most similar prompt is that of their shape."""

    default_prefix = ""

    def process(self, data_batch: Any, data_samples: list[dict[str, Any]]) -> None:
        """Keep whether each picture was named rightly."""
        for sample in data_samples:
            if sample["label"] < 0:
                raise HypvisionError("ZeroShotAccuracy needs single objects: set scenes=False in its data set.")
            self.results.append(int(sample["scores"].argmax()) == sample["label"])

    def compute_metrics(self, results: list[bool]) -> dict[str, float]:
        """The mean."""
        return dict(top1=100.0 * sum(results) / len(results))


def vocabulary(samples: int = 8_000) -> Tensor:
    """Numbers of the tokens in the captions of so many samples and in the prompts of the test, int64, rising."""
    tokenizer = create_clip("shapes-s8").tokenizer
    data = ShapeCaptions(length=samples)
    sentences = {data[i]["caption"] for i in range(samples)} | {TEMPLATE.format(w) for w in ("a", "grey ground")}
    return tokenizer(sorted(sentences)).unique()

r"""PromptKD: a prompted student learns a teacher's predictions on images without labels (Li et al.,
CVPR 2024).

The class features are those of the teacher, a tuned host on a larger CLIP; the student has prompts
in its image tower and a projector into the teacher's space. It learns by :math:`w\,T^2\, KL(q_T
\,\|\, p_T)`. The images of all classes are used, also those of new classes, so the method is
transductive.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from hypvision.clip.models import CLIPBundle, create_clip
from hypvision.clip.towers import PromptTokens, embedding_size, encode_image
from hypvision.data.preprocessing import preprocessing_of
from hypvision.geometry.numerics import exact
from hypvision.io import HypvisionError, Plain

from .hosts import Host, HostOutput, build_host, feature_size, load_learned
from .prompted import PromptLearner, depth_for


class PromptKD(Host, name="promptkd"):
    """The student of PromptKD with its teacher.

    Args:
        teacher: a frozen host, or a dict that describes it: ``dict(clip=dict(name="ViT-L-14",
            pretrained="openai"), host=dict(name="promptsrc"), checkpoint="teacher.pth")``.
        tokens, depth, emulate_half: options of the image prompts, see
            :class:`.prompted.PromptLearner`.
        weight, temperature: weight w and temperature T of the loss (w is 1000; 200 for
            FGVCAircraft, Flowers102 and DTD).
    """

    learner: nn.ModuleDict

    reads_names = False  # the teacher reads the class names, not the student

    def __init__(
        self,
        clip: CLIPBundle,
        teacher: Host | Plain | None = None,
        tokens: int = 4,
        depth: int | None = None,
        weight: float = 1000.0,
        temperature: float = 1.0,
        emulate_half: bool = False,
    ):
        super().__init__(clip)
        if teacher is None:
            raise HypvisionError(
                "PromptKD needs a teacher: dict(clip=dict(name=..., pretrained=...), "
                "host=dict(name='promptsrc'), checkpoint=FILE), with the checkpoint of a PromptSRC "
                "training on the same classes."
            )
        self.teacher = (
            (teacher if isinstance(teacher, Host) else _teacher(**teacher))
            .requires_grad_(False)
            .eval()
        )
        theirs = preprocessing_of(self.teacher.clip)
        ours = preprocessing_of(clip.model)
        if theirs != ours:
            warnings.warn(
                f"PromptKD's teacher was trained on images of {theirs}, and is shown those of its "
                f"student, {ours}.",
                stacklevel=2,
            )
        self.weight = weight
        self.temperature = temperature
        self.dim = feature_size(self.teacher)
        depth = depth_for(clip.model, depth, 9, "vision")
        prompts = PromptLearner(clip, vision=tokens, vision_depth=depth, emulate_half=emulate_half)
        projector = nn.Sequential(
            nn.Linear(embedding_size(clip.model), self.dim),
            nn.BatchNorm1d(self.dim),
            nn.ReLU(),
            nn.Linear(self.dim, self.dim),
        )
        self.learner = nn.ModuleDict(dict(prompts=prompts, projector=projector))

    def set_classes(self, *names: Any, **templates: Any) -> None:
        super().set_classes(*names, **templates)
        self.teacher.set_classes(*names, **templates)

    def class_features(self) -> tuple[Tensor, Tensor]:
        """Return the class features of the teacher, ``(C, d)``, with the teacher's length d."""
        with torch.no_grad():
            return self.teacher.class_features()

    def features(self, images: Tensor) -> Tensor:
        if self.training and len(images) < 2:
            raise HypvisionError(
                "PromptKD needs at least two images in a batch, because its projector has batch "
                "norm; this batch has one. Set --batch 2 or more (train_dataloader.batch_size of a "
                "config), and drop_last if the last batch has one image."
            )
        prompts: Any = self.learner["prompts"]
        tokens = PromptTokens(prompts.vision())
        x = encode_image(self.clip, self.normalised(images), prompts=tokens).float()
        with exact(x.device):  # the projector computes in float32
            return self.learner["projector"](x)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> HostOutput:
        out = super().forward(images)
        if self.training:
            with torch.no_grad():
                out.teacher = self.teacher(images).logits()
            out.distillation = self.weight
            out.temperature = self.temperature
        return out

    def train(self, mode: bool = True) -> PromptKD:
        super().train(mode)
        self.teacher.eval()
        return self


def _teacher(clip: Plain, host: Plain, checkpoint: str | None = None) -> Host:
    options = dict(host)
    try:
        found = build_host(create_clip(**clip), options.pop("name"), **options)
        if checkpoint is not None:
            load_learned(found, checkpoint)
    except HypvisionError as error:
        raise HypvisionError(f"PromptKD's teacher: {error}") from error
    return found

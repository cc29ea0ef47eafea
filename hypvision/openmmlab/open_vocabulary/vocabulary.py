"""Class names of open-vocabulary models in mmengine, which come from config or data and can always
be changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, Registry
from mmengine.runner import Runner
from torch import Tensor, nn

from hypvision.checkpoints.language import Language
from hypvision.clip.models import CLIPBundle
from hypvision.clip.open_vocabulary import OpenVocabularyCLIP
from hypvision.clip.radius import radius_statistics, text_radii
from hypvision.clip.regions import fuse_scores, region_logits
from hypvision.clip.towers import encode_dense, patch_size, vision_tower
from hypvision.data.classes import load_classes, numbered
from hypvision.engine.hooks import network_of
from hypvision.io import (
    HypvisionError,
    Metrics,
    NameList,
    Names,
    Plain,
    Values,
    ensure,
    require_finite,
)


class OpenVocabMaps(tuple):
    """The feature maps of a pyramid, as a tuple, with further inputs of the heads as attributes."""

    dense: Tensor  # dense CLIP embeddings (B, E, h, w)
    text: Tensor  # embeddings of the classes (T, P, E)
    seen: Tensor  # bool (T,): whether the training had this class
    scale: float  # number of patches of ``dense`` for a pixel of the image
    temperature: Tensor  # factor of the cosines in CLIP's own training
    trains_clip: bool  # whether any parameter of CLIP is trained

    def check(self, metas: Sequence[Any], *more: Tensor) -> None:
        """Raise an error if the maps, or the features ``more``, of an image in ``metas`` are not
        finite, because later filters drop NaN and would return an image without detections.
        """
        for values in (self.dense, *self, *more):
            require_finite(values, lambda row: f"A feature of {_image(metas[row])}")


class Vocabulary(OpenVocabularyCLIP):
    """A mix-in for models with one class list for training and one for testing."""

    open_vocabulary = True
    """Whether the model's heads have no number of classes of their own."""

    mean: Tensor
    std: Tensor
    backbone: nn.Module | None
    neck: nn.Module | None
    # A method of mmengine's BaseModel, which every class with this mix-in extends.
    test_step: Callable[..., list[Any]]

    def set_vocabularies(
        self,
        train_classes: NameList | None = None,
        test_classes: NameList | None = None,
    ) -> None:
        """Set both class lists, in the order of the labels, to anything that
        :func:`hypvision.data.classes.load_classes` takes. Without ``train_classes`` the list comes
        from the data (:class:`DatasetClassesHook`); so does that for testing without
        ``test_classes``, and until then it equals that for training. Constructors call this
        once."""
        self.fixed = dict(train=train_classes is not None, test=test_classes is not None)
        self.train_classes = () if train_classes is None else load_classes(train_classes)
        self.test_classes = (
            self.train_classes if test_classes is None else load_classes(test_classes)
        )
        self.data_things: Names | None = None  # names of things in panoptic data

    @property
    def language(self) -> Language:
        """The prompt templates and the training's class names, which are saved in checkpoints."""
        return Language(self.templates, self.train_classes)

    def set_test_classes(self, classes: NameList, things: NameList | None = None) -> None:
        """Look for these classes from now on, whether the training had them or not, and no longer
        for those of the data."""
        if things is not None:
            raise HypvisionError(f"A {type(self).__name__} counts no objects: leave out --things.")
        self.test_classes = load_classes(classes)
        self.fixed["test"] = True

    def seen(self, names: Sequence[str]) -> Tensor:
        """Return, as bool ``(T,)``, which of the T class names the training had."""
        ensure(
            self.train_classes,
            "The model does not know which classes it was trained on, so it cannot tell base "
            "from novel ones. Set model.train_classes in the config: a list, a file, or one of "
            "the lists that ship, such as 'coco48'.",
        )
        known = set(self.train_classes)
        return torch.tensor([name in known for name in names], device=self.mean.device)

    def build_detector(
        self,
        clip: CLIPBundle,
        registry: Registry,
        train_classes: NameList | None = None,
        test_classes: NameList | None = None,
        backbone: dict | None = None,
        neck: dict | None = None,
        hooks: Sequence[int] | None = None,
        checkpointing: bool = False,
        adapter: Plain | None = None,
        tune: str = "adapter",
        templates: str | Sequence[str] | None = None,
        synonyms: str = "first",
    ) -> None:
        """Make CLIP, both class lists, and the maps that the heads look at: a pyramid on CLIP's own
        blocks, or on a separate backbone. Constructors call this once.

        Args:
            clip: the CLIP model.
            registry: the registry that builds ``backbone`` and ``neck``.
            train_classes, test_classes: see :meth:`set_vocabularies`. A test class is a base class
                if the training had its name.
            backbone: config of a detection backbone; None: CLIP's image tower is the backbone.
            neck: config of a neck; for a neck on CLIP, ``in_channels`` are filled in.
            hooks: numbers of CLIP's blocks whose maps the neck gets; None: four blocks, evenly
                spaced, up to the last.
            checkpointing: save memory by computing activations again in the backward pass, which
                costs time.
            adapter, tune, templates, synonyms: see
                :meth:`hypvision.clip.open_vocabulary.OpenVocabularyCLIP.build_clip`.
        """
        self.build_clip(clip, adapter, tune, templates=templates, synonyms=synonyms)
        self.set_vocabularies(train_classes, test_classes)
        tower = vision_tower(self.clip)
        depth = len(tower.blocks)
        self.checkpointing = checkpointing
        self.hooks: tuple[int, ...] = ()
        if backbone is None:
            self.backbone = None
            self.hooks = (
                tuple(hooks)
                if hooks is not None
                else tuple(max(0, depth * k // 4 - 1) for k in (1, 2, 3, 4))
            )
            neck = dict(neck or dict(type="BlockPyramid"))
            neck.setdefault("in_channels", [tower.width] * len(self.hooks))
        else:
            self.backbone = registry.build(backbone)
        self.neck = None if neck is None else registry.build(neck)

    def extract_feat(self, images: Tensor) -> Any:
        """Return the inputs of the heads for normalised images ``(B, 3, H, W)``, with the classes
        of training in training mode, else with those of testing."""
        dense, hooked, _ = encode_dense(self.clip, images, self.hooks, self.checkpointing)
        found = tuple(hooked) if self.backbone is None else self.backbone(images)
        names = self.train_classes if self.training else self.test_classes
        maps = OpenVocabMaps(found if self.neck is None else self.neck(found))
        maps.dense = dense
        maps.scale = 1 / patch_size(self.clip)[0]
        maps.text = self.encode_classes(names)
        maps.seen = self.seen(names)
        maps.temperature = self.clip.get_parameter("logit_scale").detach().exp()
        maps.trains_clip = self.training and self.trains_clip
        return maps


class ClipScores:
    """A mix-in for models that compare regions with texts twice, by a trained head and by CLIP's
    own embeddings."""

    def set_weights(
        self, clip_temperature: float | None, alpha: float, beta: float, region_weight: float
    ) -> None:
        """Set the factor of CLIP's cosines (None: the factor of its training), CLIP's weights for
        base and for novel classes, and the weight of ``loss_region``. Constructors call this
        once."""
        fuse_scores(torch.ones(1), torch.ones(1), torch.ones(1, dtype=torch.bool), alpha, beta)
        self.clip_temperature = clip_temperature
        self.alpha = alpha
        self.beta = beta
        self.region_weight = region_weight

    def text_logits(self, x: OpenVocabMaps, regions: Tensor) -> Tensor:
        """Return CLIP's logits ``(K, T)`` for embeddings of regions ``(K, E)``."""
        return region_logits(
            regions,
            x.text,
            x.temperature if self.clip_temperature is None else self.clip_temperature,
        )

    def region_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the weighted cross-entropy of CLIP's logits ``(K, T)`` of regions with an object,
        for their class numbers ``labels`` ``(K,)``."""
        return (
            self.region_weight
            * F.cross_entropy(logits, labels, reduction="sum")
            / max(len(labels), 1)
        )


def _image(meta: Any) -> str:
    path = meta.get("img_path")
    return f"the image {meta.get('img_id')} of the data" if path is None else f"the image '{path}'"


def preprocessing(clip: CLIPBundle, options: Values | None) -> Plain:
    """Return a config of mmdet's ``DetDataPreprocessor``, with CLIP's normalisation, padding to
    whole patches, and further ``options``."""
    patch = patch_size(clip.model)[0]
    found: Plain = dict(
        type="DetDataPreprocessor",
        mean=clip.mean,
        std=clip.std,
        bgr_to_rgb=True,
        pad_size_divisor=patch,
    )
    found.update(options or {})
    if found["pad_size_divisor"] % patch:
        raise HypvisionError(
            f"data_preprocessor.pad_size_divisor={found['pad_size_divisor']} is not a multiple of "
            f"CLIP's patch of {patch} pixels. Use {2 * patch}."
        )
    return found


@HOOKS.register_module()
class DatasetClassesHook(Hook):
    """Gives an open-vocabulary model the class names of its data sets, unless its config has
    them."""

    def before_train(self, runner: Runner) -> None:
        self._set(runner, "train", runner.train_dataloader)

    def before_val(self, runner: Runner) -> None:
        self._set(runner, "test", runner.val_dataloader)

    def before_test(self, runner: Runner) -> None:
        self._set(runner, "test", runner.test_dataloader)

    @staticmethod
    def _set(runner: Runner, phase: str, loader: Any) -> None:
        model = network_of(runner)
        if not isinstance(model, Vocabulary):
            return
        names = tuple(loader.dataset.metainfo["classes"])
        if not model.fixed[phase]:
            setattr(model, f"{phase}_classes", load_classes(names))
        own = getattr(model, f"{phase}_classes")
        if own != names and set(own) == set(names):
            raise HypvisionError(
                f"model.{phase}_classes has the names of the {phase} data in another order, "
                f"{', '.join(own[:3])}, ... for {', '.join(names[:3])}, ..., so that labels would "
                "get wrong names. Give them in the order of the data, or leave the setting out."
            )
        if phase == "test":
            model.data_things = loader.dataset.metainfo.get("thing_classes")
        # The names may differ from the data's, but each label needs a name. Only a segmentor that
        # maps several classes to the background may have another number.
        if len(own) != len(names) and getattr(model, "background_from", None) is None:
            raise HypvisionError(
                f"The {phase} data have {len(names)} classes, but model.{phase}_classes has "
                f"{len(own)} names. Give a name for each class of the data, in their order, or "
                "leave the setting out."
            )


@HOOKS.register_module()
class TextRadiusHook(Hook):
    """Logs the hyperbolic radii of the class texts before the training and after each validation.

    ``radius/base`` and ``radius/novel`` (test classes that the training does not have) are means;
    the log line also has standard deviations and quantiles. See
    :func:`hypvision.clip.radius.hyperbolic_radius`.
    """

    priority = "LOW"  # this hook must run after DatasetClassesHook

    def __init__(self, c: float = 0.01, convention: str = "metric2"):
        self.how = dict(c=c, convention=convention)

    def before_train(self, runner: Runner) -> None:
        self._log(runner)

    def after_val_epoch(self, runner: Runner, metrics: Metrics | None = None) -> None:
        self._log(runner)

    def _log(self, runner: Runner) -> None:
        model = network_of(runner)
        if not isinstance(model, Vocabulary) or not is_main_process():
            return
        known = set(model.train_classes)
        tested = model.test_classes
        # This runs before the first validation, so the names are not set yet.
        if not model.fixed["test"] and runner.val_loop is not None:
            tested = load_classes(list(runner.val_dataloader.dataset.metainfo["classes"]))
        lists = {
            "base": model.train_classes,
            "novel": [name for name in tested if name not in known],
        }
        clip = CLIPBundle(model.clip, model.tokenizer, (), ())
        for group, names in lists.items():
            if not names:
                continue
            radii = text_radii(clip, names, model.templates, **self.how)
            found = radius_statistics(radii)
            runner.message_hub.update_scalar(f"train/radius/{group}", found["mean"])
            values = ", ".join(f"{key} {value:.4g}" for key, value in found.items())
            runner.logger.info(f"Radius of {len(names)} {group} texts: {values}")


def groups_of(
    classes: Sequence[str], groups: Mapping[str, NameList] | None
) -> dict[str, list[int]]:
    """Return the class numbers of each group, such as of ``dict(base="coco48", novel=["cat"])``."""
    found = {}
    place = numbered(classes)
    for group, wanted in (groups or {}).items():
        names = load_classes(wanted)
        missing = [name for name in names if name not in place]
        if missing:
            raise HypvisionError(
                f"The group '{group}' has {missing[0]!r}, which is not in the class list of the "
                f"test data ({', '.join(list(classes)[:5])}, ...). Correct the group or the list."
            )
        found[group] = [place[name] for name in names]
    return found


def held_out(classes: NameList, ignore: NameList) -> Names:
    """Return the class list without the names in ``ignore``."""
    names = load_classes(classes)
    out = load_classes(ignore) if ignore else ()
    unknown = set(out) - set(names)
    if unknown:
        raise HypvisionError(
            f"ignore_classes has {min(unknown)!r}, which is not in the class list. Correct it."
        )
    left_out = set(out)
    return load_classes([name for name in names if name not in left_out])


def mean_percent(values: np.ndarray) -> float:
    """Return the mean of shares in percent, without NaN (classes that do not occur)."""
    return round(100 * float(np.nanmean(values)), 2) if np.isfinite(values).any() else float("nan")

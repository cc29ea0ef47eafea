"""Hooks that check data sets before the first batch, above all their classes."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import filterfalse
from operator import ne
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor

from hypvision.data.annotations import name_difference
from hypvision.data.samplers import BalancedSampler, class_numbers
from hypvision.data.usage import classes_of, composed, usages
from hypvision.engine.extensions import MODEL_HOOKS
from hypvision.io import HypvisionError, Names, Plain, Values, at_least, ensure, one_of, some

from .repeat import network_of


class DatasetHook(Hook, ABC):
    """Base class of hooks that check each data set before its first batch; validation data are
    checked before the training begins."""

    def before_train(self, runner: Runner) -> None:
        self.check(runner, runner.train_dataloader.dataset)
        if runner.val_loop is not None:
            self.check(runner, runner.val_dataloader.dataset)

    def before_test(self, runner: Runner) -> None:
        self.check(runner, runner.test_dataloader.dataset)

    @abstractmethod
    def check(self, runner: Runner, dataset: Any) -> None:
        """Raise a HypvisionError if the data do not fit the model."""


class KnownClasses(NamedTuple):
    """The class names of a model's outputs, where they come from, and whether they are only
    numbers."""

    names: Names
    source: str
    numbered: bool

    def has_no_names(self, names: Names) -> bool:
        """Return whether these classes have only numbers where other classes, ``names``, have
        names."""
        return self.numbered and not all(map(str.isdecimal, names))


def classes_in(checkpoint: Values) -> Names:
    """Return the class names in a checkpoint, also those under earlier keys of OpenMMLab; () if
    there are none."""
    meta = checkpoint.get("meta")
    about = meta.get("dataset_meta", meta) if isinstance(meta, Mapping) else None
    if not isinstance(about, Mapping):
        return ()
    names = next((about[key] for key in ("classes", "CLASSES") if about.get(key)), ())
    return (
        tuple(names)
        if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
        else ()
    )


def has_fixed_classes(model: Any, dataset: Any) -> bool:
    """Return whether a model has one head with the classes of a data set. Open-vocabulary models do
    not: they get the names at run time. Panoptic models do not: they have one head for things and
    one for stuff."""
    free = getattr(model, "open_vocabulary", False) or getattr(dataset, "return_classes", False)
    return not free and "thing_classes" not in (getattr(dataset, "metainfo", None) or {})


def class_heads(model: Any) -> Iterator[Any]:
    """Yield the parts of a model that have a number of classes: a classifier itself, or its
    heads."""
    decode = getattr(model, "decode_head", None)
    boxes = getattr(getattr(model, "roi_head", None), "bbox_head", None) or getattr(
        model, "bbox_head", None
    )
    for part in (model, decode, boxes):
        for single in part if isinstance(part, (list, tuple, torch.nn.ModuleList)) else [part]:
            if isinstance(getattr(single, "num_classes", None), int):
                yield single


@HOOKS.register_module()
class CheckClassesHook(DatasetHook):
    """Compare the class names of all data with those of the checkpoint before the first batch.

    Labels are numbered as in the checkpoint, else as in the training data. Data sets of class
    folders are relabelled by these names, and may lack classes. A training that starts from weights
    for other classes uses the classes of its data. If a model compares images with words, test data
    are compared with its words (``tested_words``).

    Args:
        by_name: if False, only the numbers of classes are compared.
    """

    def __init__(self, by_name: bool = True) -> None:
        self.by_name = by_name
        self.known: KnownClasses | None = None
        self._of_training = False  # whether the next data set to be checked is the training data

    def after_load_checkpoint(self, runner: Runner, checkpoint: Plain) -> None:
        self._take(classes_in(checkpoint), network_of(runner), runner._load_from)

    def _take(self, names: Names, model: Any, path: Any) -> None:
        counts = [
            getattr(model, "train_classes", None),
            *(head.num_classes for head in class_heads(model)),
        ]
        if names and len(names) in counts:
            numbered = names == tuple(map(str, range(len(names))))
            self.known = KnownClasses(names, f"the checkpoint '{path}'", numbered)

    def before_train(self, runner: Runner) -> None:
        self._of_training = True
        model = network_of(runner)
        # The head may come from the weights in model.checkpoint.
        if self.known is None and not runner._resume:
            self._take(
                getattr(model, "start_classes", ()), model, getattr(model, "checkpoint", None)
            )
        super().before_train(runner)

    def check(self, runner: Runner, dataset: Any) -> None:
        of_training = self._of_training
        self._of_training = False
        model = network_of(runner)
        names = classes_of(dataset)
        words = getattr(model, "tested_words", None)
        if names and words is not None and not of_training:
            self._match_words(runner, model, dataset, names, words)
        heads = list(class_heads(model))
        # A metric learner has fixed classes in training alone.
        fixed = heads or (of_training and hasattr(model, "train_classes"))
        if fixed and names and has_fixed_classes(model, dataset):
            self._compare(runner, model, dataset, names, of_training)
            if model in heads[:1]:
                self._count(runner, model, dataset)

    def _compare(
        self, runner: Runner, model: Any, dataset: Any, names: Names, of_training: bool
    ) -> None:
        """Compare the class names of data with the known ones; if none are known, these become the
        known ones."""
        place = _called(dataset)
        if self.known is None or not self.by_name:
            self.known = KnownClasses(names, place, getattr(dataset, "numbered", False))
            return
        # Names of an older checkpoint may be decomposed; they are spelled as in the data here.
        own = {composed(name): name for name in names}
        words = tuple(own.get(composed(name), name) for name in self.known.names)
        if len(set(words)) == len(words):
            self.known = self.known._replace(names=words)
        if names != self.known.names:
            starting = of_training and not runner._resume
            self._match(runner, dataset, names, self.known, starting)
            weights: Any = getattr(model, "class_weights", None)
            if of_training and weights is not None:
                weights.follow(names, dataset.metainfo["classes"])

    def _match(
        self,
        runner: Runner,
        dataset: Any,
        names: Names,
        known: KnownClasses,
        starting: bool,
    ) -> None:
        """Relabel the data by the known class names if possible. A new training may have other
        classes; in all other cases raise an error."""
        place = _called(dataset)
        numbered = getattr(dataset, "numbered", False)
        if numbered or known.has_no_names(names):
            if not (numbered and known.numbered):
                runner.logger.warning(
                    f"{place} and {known.source} are compared by the numbers of their labels, "
                    "since one of them has no class names."
                )
            return
        if set(names) <= set(known.names) and _can_relabel(dataset):
            lacking = list(filterfalse(set(names).__contains__, known.names))
            dataset.use_classes(known.names)
            about = f"; it has no images of {some(lacking, 20)}" if lacking else ""
            runner.logger.warning(f"{place}: its labels follow the names of {known.source}{about}.")
            return
        difference = name_difference(names, place, known.names, known.source)
        if starting and set(names) != set(known.names):
            runner.logger.warning(f"{difference} The training takes the classes of its data.")
            self.known = KnownClasses(names, place, numbered)
            return
        raise HypvisionError(
            f"{difference} Give the same classes the same names (the order of class folders does "
            "not matter, and some may be missing). If only the names differ, "
            "custom_hooks=[dict(type='CheckClassesHook', by_name=False)] in the config compares "
            "the numbers alone."
        )

    def _match_words(
        self,
        runner: Runner,
        model: Any,
        dataset: Any,
        names: Names,
        words: Names,
    ) -> None:
        """Let a model use its words for test data in the order of the data's labels. Words that are
        not class names are right if the config gives one for each class, such as for folders named
        by numbers of WordNet."""
        place = _called(dataset)
        source = "the model (model.classes)"
        by_name = self.by_name and not getattr(dataset, "numbered", False)
        if names == words or len(names) == len(words) and not by_name:
            return
        if by_name:
            if sorted(names) == sorted(words):
                model.set_classes(names)
                runner.logger.warning(f"The model's classes follow the order of {place}.")
                return
            if _is_part(names, words) and hasattr(dataset, "use_classes"):
                known = KnownClasses(words, source, False)
                self._match(runner, dataset, names, known, False)
                return
        ensure(
            model.gives_words and _can_follow(names, words),
            f"{name_difference(names, place, words, source)} Set model.classes in the config to "
            "the classes of the data, or to a word for each of them in the order of their labels.",
        )
        number = list(map(ne, names, words)).index(True)
        runner.logger.warning(
            f"{place} and {source} have other names, and are compared by the numbers of their "
            f"labels: label {number} is '{names[number]}' in the data and '{words[number]}' in the "
            "model."
        )

    @staticmethod
    def _count(runner: Runner, model: Any, dataset: Any) -> None:
        """Compare the number of classes of a classifier with that of the data's labels: more
        classes in the data are an error, fewer a warning."""
        if getattr(dataset, "labels", None) is None:
            return
        classes = classes_of(dataset)
        known = model.num_classes
        where = _place(dataset)
        if len(classes) > known:
            raise HypvisionError(
                f"The data in '{where}' has {len(classes)} classes, but the model predicts "
                f"{known}: label {len(classes) - 1} ('{classes[-1]}') is out of range. Set "
                f"--cfg-options model.backbone.num_classes={len(classes)}, or correct the data."
            )
        if len(classes) < known:
            runner.logger.warning(
                f"The data in '{where}' has {len(classes)} classes, the model predicts {known}."
            )


def _can_relabel(dataset: Any) -> bool:
    """Return whether the labels of a data set can be renumbered by other names."""
    return hasattr(dataset, "use_classes") and "ancestors" not in dataset.metainfo


def _is_part(names: Names, words: Names) -> bool:
    """Return whether the names are a part of the words, and no word occurs twice."""
    return len(set(words)) == len(words) and set(names) < set(words)


def _can_follow(names: Names, words: Names) -> bool:
    """Return whether words can stand for class names by their order: there are as many, and no
    class name is the word of another class."""
    pairs = zip(names, words)
    return len(names) == len(words) and all(
        name == word or name not in words for name, word in pairs
    )


def _called(dataset: Any) -> str:
    return f"{type(dataset).__name__} in '{_place(dataset)}'"


def _place(dataset: Any) -> str:
    """Return the path of a data set; the name of its class if it has no path."""
    found = (
        str(getattr(dataset, name, None) or "")
        for name in ("root", "place", "data_root", "ann_file")
    )
    return next(filter(None, found), type(dataset).__name__)


@HOOKS.register_module()
class DataUsageHook(DatasetHook):
    """Log once for each data set which files it uses, which it leaves out and why, and its
    notes."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def check(self, runner: Runner, dataset: Any) -> None:
        for usage in usages(dataset):
            level = logging.WARNING if usage.left_out() else logging.INFO
            for rank, sentence in (
                (level, f"Data {usage}"),
                *((logging.WARNING, note) for note in usage.notes),
            ):
                if sentence not in self._told:
                    self._told.add(sentence)
                    runner.logger.log(rank, sentence)


class ClassWeights:
    """The weights of the classes in a loss. This object is not a module, so checkpoints and
    averages of weights do not contain it.

    ``given`` is a number for each class, ``"balanced"`` or None for no weights. Balanced, a class
    of N_c among N images has the weight N / (C N_c), so that all classes count alike. With several
    labels an image the weight of a class is that of an image with the label relative to an image
    without it; balanced: (N - N_c) / N_c.
    """

    def __init__(self, given: str | Sequence[float] | None):
        self.given = given
        self.values = None
        if isinstance(given, str):
            one_of(("balanced",), class_weights=given)
        elif given is not None:
            for value in given:
                at_least(0, class_weights=value)
            if not any(given):
                raise HypvisionError(f"One of the class_weights must be above 0, got {given!r}.")
            self.values = torch.tensor(given, dtype=torch.float32)

    def follow(self, names: Sequence[str], order: Sequence[str]) -> None:
        """Reorder weights that were given in the order of the classes ``names`` to the classes
        ``order``; classes of ``order`` that are not in ``names`` get the weight 1."""
        if self.values is not None and self.given != "balanced" and len(self.values) == len(names):
            by_name = dict(zip(names, self.values))
            other = torch.tensor(1.0)
            self.values = torch.stack([by_name.get(name, other) for name in order])

    def fit(self, dataset: Any, device: torch.device) -> None:
        """Compute balanced weights from the training data, or check that it has as many classes as
        there are weights; then move the weights to ``device``."""
        names = dataset.metainfo["classes"]
        if self.given == "balanced":
            labels = dataset.labels if np.ndim(getattr(dataset, "labels", ())) == 2 else None
            counts = (
                np.bincount(class_numbers(dataset), minlength=len(names))
                if labels is None
                else labels.sum(0)
            )
            shares = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
            if labels is not None:
                shares = (len(labels) - counts) / np.maximum(counts, 1)
            self.values = torch.from_numpy(np.where(counts > 0, shares, 1.0)).float()
        if self.values is None:
            return
        if len(self.values) != len(names):
            raise HypvisionError(
                f"There are {len(self.values)} class_weights, but the training data has "
                f"{len(names)} classes: "
                f"{', '.join(map(str, names[:10]))}{', ...' if len(names) > 10 else ''}. Give "
                "model.class_weights a number for each, in this order, or 'balanced'."
            )
        self.values = self.values.to(device)

    def __call__(self) -> Tensor | None:
        """Return the weights of the classes (C,), or None if the loss has no weights."""
        if self.given is not None and self.values is None:
            raise HypvisionError(
                "class_weights='balanced' needs counts of the training data: train with "
                "`hypvision train`."
            )
        return self.values


@HOOKS.register_module()
class ClassWeightsHook(Hook):
    """Gives the training data to the ``class_weights`` of the model, if the model has some."""

    def before_train(self, runner: Runner) -> None:
        model = network_of(runner)
        weights = getattr(model, "class_weights", None)
        if isinstance(weights, ClassWeights):
            weights.fit(runner.train_dataloader.dataset, next(model.parameters()).device)
            sampler = getattr(runner.train_dataloader, "sampler", None)
            uneven = weights.values is not None and len(weights.values.unique()) > 1
            if (
                weights.given == "balanced"
                and uneven
                and isinstance(sampler, BalancedSampler)
                and sampler.power
            ):
                runner.logger.warning(
                    "Rare classes count twice over: BalancedSampler draws them more often, and "
                    "class_weights='balanced' weighs each of their images more. Leave out one of "
                    "the two."
                )


MODEL_HOOKS["class_weights"] = "ClassWeightsHook"

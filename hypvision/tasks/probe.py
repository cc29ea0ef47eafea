"""A linear probe: logistic regression on the features of a network that is not trained.

It takes seconds, gives a first result on your own data, and is what a fine-tuning must beat.
:class:`LinearProbeHook` puts the probe into the head before a training
(``model.head_init="probe"``), so that fine-tuning begins where the probe ends.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.dist import broadcast, is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, default_collate

from hypvision.checkpoints.types import Weights
from hypvision.engine.extensions import MODEL_HOOKS
from hypvision.engine.hooks import network_of
from hypvision.engine.hooks.repeat import steps_done
from hypvision.engine.reports import BASELINE, CHOSEN
from hypvision.inference.progress import say
from hypvision.io import HypvisionError, Metrics
from hypvision.zoo.familiar import NoLevels, level_features, levels_of

from .classification_metrics import mean_average_precision

#: Weight decays that are tried, the strongest first, for features with standard deviation 1.
DECAYS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)


FILE = "probe.pth"  # the checkpoint of the model with the probe as its head
_NAME = "linear probe"


class Probe(NamedTuple):
    """A fitted head: ``weight`` (C, D) and ``bias`` (C,), the ``decay`` that was chosen, and the
    ``score`` in percent on the held-out images by which it was chosen: the accuracy, or with
    several labels an image the mean average precision."""

    weight: Tensor
    bias: Tensor
    decay: float
    score: float


def linear_head(network: Any) -> nn.Linear:
    """Return the classifier of a timm model.

    Raises:
        HypvisionError: the classifier is not one linear layer.
    """
    head = network.get_classifier()
    if not isinstance(head, nn.Linear):
        raise HypvisionError(
            "A linear probe needs a model whose head is one linear layer, but the head of "
            f"{type(network).__name__} is {type(head).__name__}. Take another model, or "
            "model.head_init='zero'."
        )
    return head


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Context in which a model is in evaluation mode; then each module has its mode of before, as
    some, such as frozen norms, were not training."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def head_inputs(network: Any, batches: Iterable[Tensor], weights: Weights | None = None) -> Tensor:
    """Return the features ``(N, D)`` that enter the head of a network, in float32 on the CPU, for
    batches of images ``(B, 3, H, W)``; of points on a hyperboloid the space part. ``weights``
    replace those of the network."""
    found: list[Tensor] = []
    head: Any = network.get_classifier()
    hook = head.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0].float().cpu()))
    with hook:
        _look(network, batches, weights)
    return torch.cat(found)


def level_inputs(network: Any, batches: Iterable[Tensor], weights: Weights | None = None) -> Tensor:
    """Return the features ``(N, D)`` of all levels of a network
    (:func:`~hypvision.zoo.familiar.level_features`), on the CPU; otherwise as
    :func:`head_inputs`.

    Raises:
        NoLevels: the levels give no maps or tokens of the channels that ``feature_info`` names.
    """
    with level_features(network) as found:
        _look(network, batches, weights)
    width = sum(channels for _, channels in levels_of(network))
    if any(features.shape[1] != width for features in found) or not found:
        raise NoLevels(
            f"The levels of {type(network).__name__} give no maps or tokens of the channels that "
            "its feature_info names, so images cannot be compared by them."
        )
    return torch.cat([features.cpu() for features in found])


@torch.no_grad()
def _look(network: Any, batches: Iterable[Tensor], weights: Weights | None = None) -> None:
    """Call a network for each batch, in evaluation mode."""
    with evaluating(network):
        for images in batches:
            functional_call(network, dict(weights or {}), (images,))


def fit_path(
    features: Tensor,
    labels: Tensor,
    classes: int,
    decays: Sequence[float] = DECAYS,
    class_weights: Tensor | None = None,
    steps: int = 100,
) -> list[tuple[Tensor, Tensor]]:
    """Fit logistic regressions by L-BFGS, one for each decay; each begins at the one before it.

    They minimise the mean cross-entropy plus ``decay / 2`` times the squared norm of the weights,
    for features that are centred and divided by one number, the root of their mean variance. With
    several labels an image there is one regression of each class against all others.

    Args:
        features: ``(N, D)``.
        labels: ``(N,)``, from 0 to ``classes - 1``; or ones and zeros ``(N, classes)`` for several
            labels an image.
        classes: number of classes.
        decays: weight decays, the strongest first.
        class_weights: ``(classes,)``, see :func:`torch.nn.functional.cross_entropy`; for several
            labels those of the images that show a class.
        steps: largest number of iterations of L-BFGS for each decay.

    Returns:
        For each decay the weight ``(classes, D)`` and the bias ``(classes,)``, for features that
        are neither centred nor divided.
    """
    mean = features.mean(dim=0)
    scale = (features - mean).square().mean().sqrt().clamp_min(1e-12)
    x = (features - mean) / scale
    weight = torch.zeros(classes, x.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    found = []
    for decay in decays:
        optimizer = torch.optim.LBFGS([weight, bias], max_iter=steps, line_search_fn="strong_wolfe")

        def loss(decay: float = decay, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            value = _loss(F.linear(x, weight, bias), labels, class_weights)
            value = value + decay / 2 * weight.square().sum()
            value.backward()
            return value

        with torch.enable_grad():
            optimizer.step(loss)
        own = weight.detach() / scale
        found.append((own, bias.detach() - own @ mean))
    return found


def _loss(logits: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy of the images; for several labels an image that of each class,
    summed over the classes."""
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels, class_weights)
    every = F.binary_cross_entropy_with_logits(
        logits, labels, pos_weight=class_weights, reduction="none"
    )
    return every.sum(dim=1).mean()


def fit_probe(
    features: Tensor,
    labels: Tensor,
    classes: int,
    held_out: tuple[Tensor, Tensor] | None = None,
    class_weights: Tensor | None = None,
) -> Probe:
    """Return the logistic regression with the decay that is best on held-out images: by its score
    (:class:`Probe`), and among equal scores by cross-entropy.

    Args:
        features: ``(N, D)``.
        labels: ``(N,)``, or ``(N, classes)``, see :func:`fit_path`.
        classes: number of classes.
        held_out: features and labels of the validation data. None: every fifth image of a class is
            held out to choose the decay, and the regression is then fitted to all images.
        class_weights: ``(classes,)``.
    """
    fitted = (features, labels)
    wanted = held_out or fitted
    apart = every_fifth(labels)
    if held_out is None and apart.any():
        fitted = (features[~apart], labels[~apart])
        wanted = (features[apart], labels[apart])
    path = fit_path(*fitted, classes, class_weights=class_weights)
    best = choose(path, DECAYS, wanted)
    if held_out is None:
        decays = DECAYS[: DECAYS.index(best.decay) + 1]
        path = fit_path(features, labels, classes, decays, class_weights)
        best = Probe(*path[-1], best.decay, best.score)
    return best


def choose(
    path: Sequence[tuple[Tensor, Tensor]], decays: Sequence[float], wanted: tuple[Tensor, Tensor]
) -> Probe:
    """Return the regression of a path that is best on other features ``(N, D)`` and labels
    ``(N,)`` or ``(N, C)``: by its score, and among equal scores by cross-entropy."""
    best = max(range(len(path)), key=lambda i: _quality(*path[i], *wanted))
    return Probe(*path[best], decays[best], 100 * _quality(*path[best], *wanted)[0])


def every_fifth(labels: Tensor) -> Tensor:
    """Return which images are held out, bool ``(N,)``: of each class with at least two images the
    second of every five; with several labels an image ``(N, C)`` the second of every five
    images."""
    apart = torch.zeros(len(labels), dtype=torch.bool)
    if labels.ndim == 2:
        apart[1::5] = True
        return apart
    for label in labels.unique():
        apart[(labels == label).nonzero().flatten()[1::5]] = True
    return apart


def _quality(weight: Tensor, bias: Tensor, features: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the score from 0 to 1, and minus the mean cross-entropy."""
    logits = F.linear(features, weight, bias)
    if labels.ndim == 1:
        score = (logits.argmax(dim=1) == labels).double().mean().item()
    else:
        score = mean_average_precision(logits.numpy(), labels.numpy() > 0)
    return score, -_loss(logits, labels).item()


def labelled_features(
    model: Any,
    dataset: Any,
    batch_size: int = 32,
    workers: int = 0,
    weights: Weights | None = None,
    of_levels: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the features ``(N, D)`` and labels ``(N,)``, or ``(N, C)`` for several labels an
    image, of a data set.

    Args:
        model: an :class:`~hypvision.tasks.ImageClassifier`.
        dataset: gives samples with images and labels.
        batch_size: number of images in a batch.
        workers: number of processes that load images.
        weights: weights of the model, from a checkpoint; None: those that it has.
        of_levels: features of all levels, not those that enter the head.
    """
    apart = torch.Generator()  # leaves the training's own random numbers as they are
    loader = DataLoader(
        dataset, batch_size, num_workers=workers, collate_fn=default_collate, generator=apart
    )
    labels: list[Tensor] = []
    device = next(model.parameters()).device
    start = "backbone."
    given = {
        name.removeprefix(start): v.to(device)
        for name, v in (weights or {}).items()
        if name.startswith(start)
    }

    def images() -> Iterable[Tensor]:
        for batch in loader:
            labels.append(batch["label"])
            yield model.data_preprocessor(batch)["inputs"]

    look = level_inputs if of_levels else head_inputs
    features = look(model.backbone, images(), given)
    return features, torch.cat(labels)


def as_tested(train: Any, held_out: Any, transform: str = "transform") -> Any:
    """Return the training data with the transform of the validation data, so without
    augmentation, also where data sets are joined or repeated by mmengine's wrappers; ``transform``
    is the name of the attribute that holds it."""
    while not hasattr(held_out, transform):
        held_out = held_out.datasets[0] if hasattr(held_out, "datasets") else held_out.dataset
    found = copy.copy(train)
    if hasattr(train, transform):
        setattr(found, transform, getattr(held_out, transform))
    elif hasattr(train, "datasets"):
        found.datasets = [as_tested(part, held_out, transform) for part in train.datasets]
    else:
        found.dataset = as_tested(train.dataset, held_out, transform)
    return found


def probe_of(
    model: Any, train: Any, held_out: Any = None, batch_size: int = 32, workers: int = 0
) -> Probe:
    """Return the probe of an :class:`~hypvision.tasks.ImageClassifier` for its data sets.

    Args:
        model: the classifier.
        train: the training data.
        held_out: the validation data, or None.
        batch_size: number of images in a batch.
        workers: number of processes that load images.
    """
    linear_head(model.backbone)
    weights = model.class_weights()
    weights = None if weights is None else weights.cpu()
    chosen_by = None
    if held_out is not None:
        train = as_tested(train, held_out)
        chosen_by = labelled_features(model, held_out, batch_size, workers)
    features, labels = labelled_features(model, train, batch_size, workers)
    return fit_probe(features, labels, model.num_classes, chosen_by, weights)


@HOOKS.register_module()
class LinearProbeHook(Hook):
    """With ``model.head_init="probe"``: fits the linear probe before the first step, puts it into
    the head, validates it as epoch 0 and saves it as ``probe.pth``. At the end it says which
    checkpoint to take: the last one, or the probe if the probe was better.

    A resumed training continues with its own head, and knows what the probe reached.
    """

    # The hook runs after classes have been compared; the first validation is that of the probe.
    priority = "LOWEST"
    counted = "images"  # what the accuracy of the probe counts
    metric: str | None = None  # the metric that is compared, where the validation has it
    poor: tuple[str, ...] = ()  # metrics that are compared only where there is no other

    def __init__(self) -> None:
        self._of_probe: Metrics | None = None
        self._of_training: list[tuple[int, Metrics]] = []
        self._measuring = False
        self._fitted = False

    def before_train(self, runner: Runner) -> None:
        model = network_of(runner)
        if not self._wanted(model):
            return
        if runner._resume:
            known = dict(runner.message_hub.get_info(BASELINE, {}))
            self._of_probe = known if known.pop("name", "") == _NAME else None
            return
        if runner._load_from:
            if is_main_process():
                say(f"probe   not fitted: the head is that of {runner._load_from}")
            return
        begin = time.monotonic()
        probe = self._fit(runner, model)
        self._fill(runner, model, probe)
        seconds = time.monotonic() - begin
        if is_main_process():
            self._tell(model, probe, seconds)
        if runner.val_loop is not None:
            self._measuring = True
            runner.val_loop.run()
            self._measuring = False
            baseline = dict(self._of_probe or {}, name=_NAME)
            runner.message_hub.update_info(BASELINE, baseline)
        self._fitted = True
        about = dict(epoch=0, iter=0)
        runner.save_checkpoint(
            runner.work_dir, FILE, save_optimizer=False, save_param_scheduler=False, meta=about
        )

    def _tell(self, model: Any, probe: Probe, seconds: float) -> None:
        found = f"{probe.score:.1f} % of the held-out {self.counted} right"
        if getattr(model, "multi_label", False):
            found = f"mAP {probe.score:.1f} on the held-out {self.counted}"
        say(
            f"probe   {found} by logistic regression on the features (decay {probe.decay:g}, "
            f"{seconds:.0f} s)"
        )

    def _wanted(self, model: Any) -> bool:
        return getattr(model, "head_init", None) == "probe"

    def _fit(self, runner: Runner, model: Any) -> Probe:
        loader = runner.train_dataloader
        held_out = None if runner.val_loop is None else runner.val_dataloader.dataset
        return probe_of(model, loader.dataset, held_out, loader.batch_size, loader.num_workers)

    def _head(self, model: Any) -> nn.Linear | nn.Conv2d:
        return linear_head(model.backbone)

    def _fill(self, runner: Runner, model: Any, probe: Probe) -> None:
        """Put the probe of the first process into the head of the model in all processes, and into
        the head of each average of its weights."""
        averages = (getattr(hook, "ema_model", None) for hook in runner.hooks)
        models = [model, *(average.module for average in averages if average is not None)]
        for part in models:
            head: Any = self._head(part)
            with torch.no_grad():
                head.weight.copy_(probe.weight.reshape(head.weight.shape))
                head.bias.copy_(probe.bias)
            for parameter in head.parameters():
                broadcast(parameter.data)

    def after_val_epoch(self, runner: Runner, metrics: Metrics | None = None) -> None:
        if self._measuring:
            self._of_probe = dict(metrics or {})
        elif self._of_probe is not None:
            self._of_training.append((steps_done(runner), dict(metrics or {})))

    def _key(self, metrics: Mapping[str, float]) -> str:
        """Return the name of the metric that is compared, with the evaluator's prefix."""
        ends = {name: name.rpartition("/")[2] for name in metrics}
        wanted = [name for name, end in ends.items() if end == self.metric]
        good = [name for name, end in ends.items() if end not in self.poor]
        return next(iter([*wanted, *good, *metrics]))

    def after_train(self, runner: Runner) -> None:
        """Print what the probe and the training reached, and which checkpoint to take."""
        if not is_main_process():
            return
        if self._of_probe and self._of_training:
            self._compare(runner, self._of_probe)
        elif self._fitted and not self._of_training:
            runner.message_hub.update_info(CHOSEN, str(Path(runner.work_dir, FILE)))

    def _compare(self, runner: Runner, of_probe: Metrics) -> None:
        """Choose the last checkpoint or the probe, by what both reached, and print it."""
        key = self._key(of_probe)
        probe = of_probe[key]
        step, best = max(
            ((at, found[key]) for at, found in self._of_training), key=lambda pair: pair[1]
        )
        last = self._of_training[-1][1][key]
        # The last epoch counts, not the best one: where few images choose the best epoch, the last
        # one was better (docs/studies/photos.md).
        better = str(Path(runner.work_dir, FILE))
        if last >= probe:
            better = runner.message_hub.get_info("last_ckpt", "")
        if better:
            runner.message_hub.update_info(CHOSEN, better)
        about = f"{_NAME} {probe:.4g}, fine-tuned {last:.4g} at the end"
        if best > last:
            about += f" ({best:.4g} after {_unit(runner)} {step}, perhaps by chance)"
        say(f"result  {key}: {about}; take {Path(better or 'the last').name}")


def _unit(runner: Runner) -> str:
    return "epoch" if isinstance(runner.train_loop, EpochBasedTrainLoop) else "step"


def only_probe(config: Config) -> Config:
    """Change the config of a classifier so that its training is only the linear probe, without a
    step, and return it.

    Raises:
        HypvisionError: the config describes another model.
    """
    if config.model.get("type") not in ("ImageClassifier", "HierarchyClassifier"):
        raise HypvisionError(
            "A linear probe is for classifiers (ImageClassifier, HierarchyClassifier), but the "
            f"model of '{config.filename}' is another. Leave out --method probe."
        )
    config.model.head_init = "probe"
    schedule = config.get("train_cfg") or {}
    schedule["max_iters" if "max_iters" in schedule else "max_epochs"] = 0
    config.param_scheduler = None
    hooks = config.get("default_hooks") or {}
    (hooks.get("checkpoint") or {}).update(save_best=None)
    hooks.pop("early_stopping", None)
    return config


MODEL_HOOKS["head_init"] = "LinearProbeHook"

"""The published recipes of the few-shot methods, and configs of trainings that follow them.

If a recipe does not say otherwise, the optimiser is SGD with momentum 0.9 and weight decay 5e-4,
and the schedule is :class:`hypvision.tasks.few_shot.CoOpCosineLR`.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hypvision.clip.prompting import HOSTS
from hypvision.io import HypvisionError, Plain, Values, did_you_mean, one_of, refuse

PROTOCOLS = ("base2new", "shots", "cross", "dg")
# Data sets for which PromptSRC's few-shot trainings average the weights of later epochs (of 50).
_LATE = ("stanford_cars", "oxford_flowers", "fgvc_aircraft", "dtd", "eurosat")
# Data sets for which the weight of PromptKD's loss is 200 instead of 1000.
_LIGHT = ("fgvc_aircraft", "oxford_flowers", "dtd")
# Least and largest part of an image in the random crops whose mean feature is a Tip-Adapter's key.
TIP_ADAPTER_SCALE = (0.5, 1.0)


# The settings of each data set in Tip-Adapter's code (Zhang et al., ECCV 2022); other data use
# those of ImageNet. First the upper ends of the search for beta and alpha (``search_scale``), then
# alpha before the search and in the training of Tip-Adapter-F (``init_alpha``), where beta is 1.
TIP_ADAPTER: dict[str, tuple[tuple[float, float], float]] = {
    "caltech101": ((12, 5), 3.0),
    "dtd": ((13, 13), 2.0),
    "eurosat": ((12, 10), 2.0),
    "fgvc_aircraft": ((30, 30), 5.0),
    "food101": ((10, 10), 1.17),
    "imagenet": ((7, 3), 1.17),
    "oxford_flowers": ((50, 50), 10.0),
    "oxford_pets": ((7, 3), 1.17),
    "stanford_cars": ((20, 10), 3.0),
    "sun397": ((12, 10), 1.17),
    "ucf101": ((7, 3), 3.0),
}


@dataclass(frozen=True)
class Recipe:
    """The settings with which a method is trained.

    Attributes:
        host: ``name`` and options of the host.
        lr: largest learning rate.
        epochs: number of epochs; 0 for methods without training.
        batch: number of images in a batch.
        average: mean and standard deviation of PromptSRC's average over epochs, or None.
        features: whether the method works behind the frozen image tower, so that image features can
            be stored.
        optimizer: arguments of the optimiser that replace or extend the default ones.
        scheduler: replaces the default schedule, if given.
        unlabelled: train on all images of all classes, without labels.
        search: upper ends of a Tip-Adapter's search for beta and alpha. Like its code, such a
            training also repeats images of classes that have fewer images than shots, and keeps the
            last batch of an epoch, however small. None: the method is no Tip-Adapter.
    """

    host: Plain
    lr: float = 0.002
    epochs: int = 0
    batch: int = 32
    average: tuple[float, float] | None = None
    features: bool = False
    optimizer: Plain = field(default_factory=dict)
    scheduler: Plain | None = None
    unlabelled: bool = False
    search: tuple[float, float] | None = None


def methods() -> tuple[str, ...]:
    """Return the names of methods that the command line takes, those that registered themselves
    included; each can be followed by ``+lath``."""
    return *sorted(HOSTS), "tip-adapter-f"


def split_method(method: str) -> tuple[str, bool]:
    """Return the name of a method's host, and whether the method has LatHAdapter (``+lath``)."""
    name, plus, adapter = method.partition("+")
    refuse(
        (
            name not in methods() or (plus and adapter != "lath"),
            f"There is no few-shot method '{method}'.{did_you_mean(name, methods())} The methods "
            f"are {', '.join(methods())}, each also with +lath.",
        ),
        (
            plus and name == "linear-probe",
            "LatHAdapter refines class features, which a linear probe does not have. Leave out "
            "+lath.",
        ),
    )
    return name, bool(plus)


def host_options(method: str) -> tuple[str, ...]:
    """Return the options that the host of a method takes, apart from the models ``clip`` and
    ``teacher``."""
    known = inspect.signature(HOSTS[split_method(method)[0].removesuffix("-f")]).parameters
    return tuple(option for option in known if option not in ("clip", "teacher"))


def check_options(
    methods: Sequence[str],
    host: Values | None = None,
    adapter: Values | None = None,
) -> None:
    """Raise an error if an option of hosts or of LatHAdapter belongs to none of the methods; an
    option is passed only to the methods that have it."""
    split = [split_method(method) for method in methods]
    taken = {name: host_options(name) for name, _ in split}
    known = list(itertools.chain(*taken.values()))
    lost = sorted({*(host or ())} - {*known})
    if lost:
        options = "; ".join(f"{name}: {', '.join(own) or 'none'}" for name, own in taken.items())
        raise HypvisionError(
            f"None of the methods has an option '{lost[0]}'.{did_you_mean(lost[0], known)} The "
            f"methods have these options: {options}."
        )
    if adapter and not any(lath for _, lath in split):
        raise HypvisionError(
            f"The options of LatHAdapter ({', '.join(adapter)}) have no effect, because no method "
            f"uses it. Write the method {next(iter(taken))}+lath, or leave out the options."
        )


def recipe(
    method: str, protocol: str, dataset: str, shots: int | None, classes: int, images: int
) -> Recipe:
    """Return the published recipe of one of the :func:`methods`, without ``+lath``; if none is
    published, the recipe of the nearest method, which is ``ivlp`` for one that is not of this
    package. ``shots`` is the number of images of a class, None for all; ``classes`` and ``images``
    are those of the training data."""
    coop = 50 if shots == 1 or dataset == "imagenet" else 100 if shots in (2, 4) else 200
    task = _Task(protocol, dataset, coop, classes, images)
    if method not in _RECIPES:
        return Recipe(dict(name=method), *_IVLP)
    return _RECIPES[method](task)


class _Task(NamedTuple):
    """The facts that a recipe depends on; ``coop`` is the number of epochs of CoOp's trainings."""

    protocol: str
    dataset: str
    coop: int
    classes: int
    images: int

    @property
    def few(self) -> bool:
        return self.protocol == "shots"

    @property
    def depth(self) -> dict[str, int]:
        """Return the option for the depth of prompts, where it is not the default, 9."""
        return dict(depth=3) if self.protocol in ("cross", "dg") else {}


def _maple(task: _Task) -> Recipe:
    epochs = 2 if task.depth else 50 if task.few else 5
    return Recipe(dict(name="maple", **task.depth), 0.0026 if task.depth else 0.0035, epochs, 4)


def _promptsrc(task: _Task) -> Recipe:
    average = (6.0, 10.0) if task.depth else (15.0, 1.0)
    if task.few:
        average = (45.0, 5.0) if task.dataset in _LATE else (30.0, 30.0)
    return Recipe(dict(name="promptsrc", **task.depth), 0.0025, 50 if task.few else 20, 4, average)


def _promptkd(task: _Task) -> Recipe:
    weight = 200.0 if task.dataset in _LIGHT else 1000.0
    host = dict(name="promptkd", **task.depth, weight=weight)
    return Recipe(host, 0.005, 20, 8, unlabelled=True)


def _linear_probe(task: _Task) -> Recipe:
    return Recipe(dict(name="linear-probe", classes=task.classes), features=True)


def _tip_adapter(task: _Task, tune: bool = False) -> Recipe:
    ends, alpha = TIP_ADAPTER.get(task.dataset, TIP_ADAPTER["imagenet"])
    host = dict(
        name="tip-adapter",
        keys=task.images,
        classes=task.classes,
        tune=tune,
        alpha=alpha,
        beta=1.0,
        ensemble=task.dataset == "imagenet",
    )
    return Recipe(host, features=True, search=ends)


def _tip_adapter_f(task: _Task) -> Recipe:
    return replace(
        _tip_adapter(task, tune=True),
        lr=1e-3,
        epochs=100 if task.dataset == "eurosat" else 20,
        batch=256,
        optimizer=dict(type="AdamW", eps=1e-4, weight_decay=0.01),
        scheduler=dict(type="CosineAnnealingLR", convert_to_iter_based=True),
    )


def _coop(task: _Task) -> Recipe:
    # The published few-shot results use 16 random tokens, those of other protocols the four words.
    context = {} if task.few else dict(tokens=4, words="a photo of a")
    return Recipe(dict(name="coop", **context), 0.002, task.coop, 32)


_IVLP = (0.0025, 20, 4)  # rate, epochs, batch

_RECIPES: dict[str, Callable[[_Task], Recipe]] = {
    "maple": _maple,
    "promptsrc": _promptsrc,
    "promptkd": _promptkd,
    "linear-probe": _linear_probe,
    "tip-adapter": _tip_adapter,
    "tip-adapter-f": _tip_adapter_f,
    "coop": _coop,
    "zeroshot": lambda task: Recipe(dict(name="zeroshot"), features=True),
    "cocoop": lambda task: Recipe(dict(name="cocoop"), 0.002, 10, 1),
    "clip-adapter": lambda task: Recipe(
        dict(name="clip-adapter"), 0.002, task.coop, 32, features=True
    ),
    "deep-vision": lambda task: Recipe(dict(name="deep-vision"), 0.0025, 5, 4),
    "deep-language": lambda task: Recipe(dict(name="deep-language"), 0.0025, 5, 4),
    "ivlp": lambda task: Recipe(dict(name="ivlp"), *_IVLP),
}


def with_steps(recipe: Recipe, steps: int | None, epochs: int | None) -> tuple[Recipe, int | None]:
    """Return the recipe with another number of epochs, and the number of images in an epoch with
    which all epochs together take ``steps`` steps (None: all images).

    Without ``epochs``, their number is the largest divisor of ``steps`` that is at most the
    recipe's number.
    """
    if epochs is not None and recipe.epochs:
        recipe = _with_epochs(recipe, epochs)
    if steps is None or not recipe.epochs:
        return recipe, None
    most = recipe.epochs
    count = next(number for number in range(min(steps, most), 0, -1) if steps % number == 0)
    # One epoch is not enough, because the schedules begin with an epoch of almost zero rate.
    if count < most and (epochs is not None or count == 1 < steps):
        raise _not_divided(steps, f"2 to {most}" if epochs is None else str(most), most)
    return _with_epochs(recipe, count), steps // count * recipe.batch


def _not_divided(steps: int, possible: str, most: int) -> HypvisionError:
    below = steps - steps % most
    near = f"{below} or " if below else ""
    return HypvisionError(
        f"{steps} steps cannot be divided into {possible} epochs of equal length. Give --steps "
        f"{near}{below + most}."
    )


def _with_epochs(recipe: Recipe, epochs: int) -> Recipe:
    """Return the recipe with another number of epochs; mean and deviation of its average scale with
    this number."""
    if epochs == recipe.epochs:
        return recipe
    average = recipe.average
    if average is not None:
        share = epochs / recipe.epochs
        average = (average[0] * share, max(average[1] * share, 1e-3))
    return replace(recipe, epochs=epochs, average=average)


def few_shot_config(
    method: str,
    protocol: str = "base2new",
    root: str = "data",
    dataset: str = "caltech101",
    shots: int | None = 16,
    seed: int = 1,
    clip: Plain | None = None,
    size: int | None = None,
    subset: str | None = None,
    classes: int = 100,
    images: int = 800,
    total_classes: int | None = None,
    adapter: Plain | None = None,
    host: Plain | None = None,
    amp: str | None = None,
    workers: int = 0,
    steps: int | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    views: int | None = None,
    cache: str | None = None,
    skip_broken: bool = False,
    pickles: str | None = None,
    best_val: bool = False,
    class_weights: str | Sequence[float] | None = None,
    balanced: bool = False,
) -> Plain:
    """Return a config that ``hypvision train`` runs; for a method that learns nothing, one epoch
    without an update.

    Args:
        method: one of the :func:`methods`, optionally with ``+lath``.
        protocol: one of :data:`PROTOCOLS`.
        root, dataset, shots, seed, size, pickles, skip_broken: see
            :class:`~hypvision.data.fewshot.FewShotDataset`.
        clip: arguments of :func:`hypvision.clip.models.create_clip`; default OpenAI's ViT-B/16.
        subset: subset of the training classes; default: that of the protocol.
        classes, images: numbers in the training data, for methods whose size depends on them.
        total_classes: number of classes of the data set, by which LatHAdapter chooses its number of
            attributes; default ``classes``.
        adapter, host: further options of LatHAdapter and of the host.
        amp: mixed precision: ``"bf16"``, ``"fp16"`` or None.
        steps: number of steps of the whole training, instead of the recipe's; see
            :func:`with_steps`.
        epochs, batch: replace the recipe's numbers.
        views: number of augmented views that are stored as features, 0 for the centre crop; None:
            images are augmented anew in each epoch.
        cache: folder of stored features: of images for methods behind the frozen towers, of texts
            for PromptSRC.
        best_val: keep the checkpoint that is best on test images, as PromptKD's code does; this
            selects on test data.
        class_weights: ``"balanced"``, or a number for each class, see
            :class:`~hypvision.tasks.few_shot.FewShotCLIP`.
        balanced: draw all classes equally often, see
            :class:`~hypvision.data.samplers.BalancedSampler`.
    """
    name, lath = split_method(method)
    one_of(PROTOCOLS, protocol=protocol)
    published = recipe(name, protocol, dataset, shots, classes, images)
    # With LatHAdapter on a method without training only its attributes train, as in PromptSRC.
    if lath and not published.epochs:
        published = replace(published, lr=0.0025, epochs=20, batch=4)
    if batch is not None:
        published = replace(published, batch=batch)
    found, length = with_steps(published, steps, epochs)
    data = dict(
        type="FewShotDataset",
        root=root,
        name=dataset,
        seed=seed,
        size=size,
        skip_broken=skip_broken,
    )
    tested = "base" if protocol == "base2new" else "all"
    train_data = _train_data(
        found, dict(data, part="train", pickles=pickles), subset, tested, shots
    )
    loader = dict(num_workers=workers, collate_fn=dict(type="default_collate"))
    model = dict(
        type="FewShotCLIP",
        clip=clip or dict(name="ViT-B-16", pretrained="openai"),
        host=_host(found, cache, host),
        class_weights=class_weights,
        adapter=None,
    )
    if lath:
        adapter = dict(classes=total_classes or classes, **(adapter or {}))
        model["adapter"] = dict(type="lathadapter", **adapter)
    return dict(
        **_tests(dict(loader, dataset=dict(data, part="test", subset=tested)), best_val),
        data_root=root,
        model=model,
        **_training(found, dict(loader, dataset=train_data), length, images, balanced),
        **_optimisation(found, amp),
        **_hooks(found, length or images, views, cache, best_val),
        randomness=dict(seed=seed),
        experiment_name=f"{protocol}-{method}-{dataset}-{shots}-{seed}",
        **deepcopy(_EVERY_CONFIG),
    )


def _host(found: Recipe, cache: str | None, given: Plain | None) -> Plain:
    """Return the host of a recipe with further options; with ``cache`` PromptSRC stores its
    features of texts."""
    stored = dict(cache=cache) if cache and found.host["name"] == "promptsrc" else {}
    return {**found.host, **stored, **(given or {})}


def _train_data(
    found: Recipe, data: Plain, subset: str | None, tested: str, shots: int | None
) -> Plain:
    """Return the training data: shots of the tested classes, or for methods without labels all
    images of all classes."""
    seen: Plain = dict(subset=subset or tested, shots=shots)
    if found.unlabelled:
        seen = dict(subset=subset or "all", shots=None)
    repeated = {} if found.search is None else dict(scale=TIP_ADAPTER_SCALE, repeat=True)
    return dict(data, **seen, **repeated)


def _tests(loader: Plain, best_val: bool) -> Plain:
    """Return the settings of the test, and with ``best_val`` of a validation on the same data."""
    sampler = dict(type="DefaultSampler", shuffle=False)
    parts = dict(
        dataloader=dict(loader, batch_size=100, sampler=sampler),
        evaluator=dict(type="TopKAccuracy", topk=(1,)),
        cfg=dict(),
    )
    phases = ("test", "val") if best_val else ("test",)
    return {f"{phase}_{part}": value for phase in phases for part, value in parts.items()}


_EVERY_CONFIG: Plain = dict(
    custom_imports=dict(
        imports=["hypvision.tasks", "hypvision.tasks.few_shot", "hypvision.data.fewshot"]
    ),
    default_scope="mmengine",
    log_level="WARNING",
    env_cfg=dict(dist_cfg=dict(backend="nccl")),
)


def _training(
    found: Recipe, loader: Plain, length: int | None, images: int, balanced: bool
) -> Plain:
    """Return the settings of the training loop, with ``length`` images an epoch, or with all images
    once."""
    sampler = dict(type="DefaultSampler", shuffle=True, round_up=False)
    if length is not None or balanced:
        sampler = dict(type="BalancedSampler" if balanced else "FixedLengthSampler", length=length)
    whole = length is None and images >= found.batch and found.search is None
    return dict(
        train_dataloader=dict(loader, batch_size=found.batch, sampler=sampler, drop_last=whole),
        train_cfg=dict(by_epoch=True, max_epochs=max(found.epochs, 1)),
    )


def _optimisation(found: Recipe, amp: str | None) -> Plain:
    wrappers: dict[str | None, Plain] = {
        None: dict(type="OptimWrapper"),
        "bf16": dict(type="BFloat16OptimWrapper"),
        "fp16": dict(type="AmpOptimWrapper", dtype="float16", loss_scale="dynamic"),
    }
    one_of(wrappers, amp=amp)
    optimizer = dict(type="SGD", lr=found.lr, momentum=0.9, weight_decay=5e-4)
    if found.optimizer.get("type", "SGD") != "SGD":
        optimizer = dict(lr=found.lr)
    scheduler = dict(type="CoOpCosineLR", epochs=found.epochs)
    if found.scheduler is not None:
        scheduler = dict(found.scheduler, T_max=found.epochs)
    return dict(
        optim_wrapper=dict(optimizer={**optimizer, **found.optimizer}, **wrappers[amp]),
        param_scheduler=[scheduler] if found.epochs else [],
    )


def _hooks(
    found: Recipe, images: int, views: int | None, cache: str | None, best_val: bool
) -> Plain:
    """Return the hooks of a training with ``images`` images an epoch."""
    # Writing a checkpoint takes as long as a step: one is written each epoch, but at most once in
    # ten steps.
    interval = max(1, min(max(found.epochs, 1) // 10, 10 // max(images // found.batch, 1)))
    best = dict(save_best="top1", rule="greater") if best_val else {}
    checkpoint = dict(type="CheckpointHook", interval=interval, max_keep_ckpts=2, **best)
    hooks: list[Plain] = [dict(type="ClassNamesHook")]
    if found.average is not None:
        hooks.append(dict(type="GaussianAverageHook", mean=found.average[0], std=found.average[1]))
    if found.features and views is not None:
        hooks.append(dict(type="FeatureCacheHook", views=views, folder=cache))
    if found.host["name"] == "linear-probe":
        hooks.append(dict(type="FitProbeHook", folder=cache))
    if found.search is not None:
        hooks.append(dict(type="TipAdapterHook", folder=cache, ends=found.search))
    return dict(
        default_hooks=dict(logger=dict(type="LoggerHook", interval=50), checkpoint=checkpoint),
        custom_hooks=hooks,
    )

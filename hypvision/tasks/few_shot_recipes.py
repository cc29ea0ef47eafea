"""The published recipes of the few-shot methods, and the config of a training that follows one.

Rates are SGD's with momentum 0.9 and weight decay 5e-4, and the schedule is
:class:`hypvision.tasks.few_shot.CoOpCosineLR`, but for Tip-Adapter-F.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from hypvision.clip.prompting import HOSTS
from hypvision.io.checks import one_of
from hypvision.io.errors import HypvisionError, did_you_mean

PROTOCOLS = ("base2new", "shots", "cross", "dg")
# Data sets for which PromptSRC's few-shot trainings average the weights of later epochs (of 50).
_LATE = ("stanford_cars", "oxford_flowers", "fgvc_aircraft", "dtd", "eurosat")
_LIGHT = ("fgvc_aircraft", "oxford_flowers", "dtd")  # where PromptKD's loss weighs less
# Least and largest part of an image in the crops whose mean feature is a key of a Tip-Adapter
TIP_ADAPTER_SCALE = (0.5, 1.0)


# The settings of data sets in Tip-Adapter's code (Zhang et al., ECCV 2022), ImageNet's for other
# data: the ends of the search of beta and of alpha (``search_scale``), and alpha before it and in
# the training of Tip-Adapter-F (``init_alpha``), where beta is 1.
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
    """How a method is trained.

    Attributes:
        host: its ``name`` and options.
        lr: largest rate.
        epochs: 0 for methods without training.
        batch: images.
        average: mean and deviation of PromptSRC's average over epochs, or None.
        features: whether it works behind the frozen image tower, so that features can be cached.
        optimizer: other arguments of the optimiser than those above.
        scheduler: instead of the schedule above.
        unlabelled: train on all images of all classes, without labels.
        search: ends of a Tip-Adapter's search of beta and alpha. Its code also repeats images of
            classes that have fewer than the shots, and keeps the last batch of an epoch, however
            small. None: another method.
    """

    host: dict[str, Any]
    lr: float = 0.002
    epochs: int = 0
    batch: int = 32
    average: tuple[float, float] | None = None
    features: bool = False
    optimizer: dict[str, Any] = field(default_factory=dict)
    scheduler: dict[str, Any] | None = None
    unlabelled: bool = False
    search: tuple[float, float] | None = None


METHODS = (*sorted(HOSTS), "tip-adapter-f")
"""Names that the command line takes; each also with ``+lath``."""


def split_method(method: str) -> tuple[str, bool]:
    """The host's name, and whether LatHAdapter is on it."""
    name, plus, adapter = method.partition("+")
    if name not in METHODS or (plus and adapter != "lath"):
        raise HypvisionError(
            f"There is no few-shot method '{method}'.{did_you_mean(name, METHODS)} There are: "
            f"{', '.join(METHODS)}, each also with +lath."
        )
    if plus and name == "linear-probe":
        raise HypvisionError(
            "LatHAdapter refines class features, which a linear probe does not have. Leave out "
            "+lath."
        )
    return name, bool(plus)


def host_options(method: str) -> tuple[str, ...]:
    """The options that the host of a method takes, beside the models."""
    known = inspect.signature(HOSTS[split_method(method)[0].removesuffix("-f")]).parameters
    return tuple(option for option in known if option not in ("clip", "teacher"))


def check_options(
    methods: Sequence[str],
    host: Mapping[str, Any] | None = None,
    adapter: Mapping[str, Any] | None = None,
) -> None:
    """Check that each option of hosts and of LatHAdapter belongs to at least one method; it is
    passed only to the methods that have it."""
    taken = {name: host_options(name) for name in (split_method(method)[0] for method in methods)}
    known = [option for own in taken.values() for option in own]
    lost = [option for option in host or {} if option not in known]
    if lost:
        options = "; ".join(f"{name}: {', '.join(own) or 'none'}" for name, own in taken.items())
        raise HypvisionError(
            f"None of the methods has an option '{lost[0]}'.{did_you_mean(lost[0], known)} Their "
            f"options: {options}."
        )
    if adapter and not any(split_method(method)[1] for method in methods):
        raise HypvisionError(
            f"The options of LatHAdapter ({', '.join(adapter)}) have no effect, because no method "
            f"uses it. Write the method {next(iter(taken))}+lath, or leave them out."
        )


def recipe(
    method: str, protocol: str, dataset: str, shots: int | None, classes: int, images: int
) -> Recipe:
    """The published recipe of a method of :data:`METHODS`, without ``+lath``; where none is
    published, that of the nearest method. ``shots`` are images of a class, None for all,
    ``classes`` and ``images`` those of the training data."""
    few = protocol == "shots"
    cross_dataset = protocol in ("cross", "dg")
    coop = 50 if shots == 1 or dataset == "imagenet" else 100 if shots in (2, 4) else 200
    if method in ("maple", "promptsrc", "promptkd"):
        depth = dict(depth=3) if cross_dataset else {}  # otherwise the default depth, 9
        if method == "maple":
            lr, epochs = (0.0026, 2) if cross_dataset else (0.0035, 50 if few else 5)
            return Recipe(dict(name="maple", **depth), lr, epochs, 4)
        if method == "promptkd":
            weight = 200.0 if dataset in _LIGHT else 1000.0
            return Recipe(
                dict(name="promptkd", **depth, weight=weight), 0.005, 20, 8, unlabelled=True
            )
        average = (6.0, 10.0) if cross_dataset else (15.0, 1.0)
        if few:
            average = (45.0, 5.0) if dataset in _LATE else (30.0, 30.0)
        return Recipe(dict(name="promptsrc", **depth), 0.0025, 50 if few else 20, 4, average)
    if method == "linear-probe":
        return Recipe(
            dict(name=method, classes=classes),
            10.0,
            coop,
            32,
            features=True,
            optimizer=dict(weight_decay=0),
        )
    if method in ("tip-adapter", "tip-adapter-f"):
        ends, alpha = TIP_ADAPTER.get(dataset, TIP_ADAPTER["imagenet"])
        tune = method == "tip-adapter-f"
        host = dict(
            name="tip-adapter", keys=images, classes=classes, tune=tune, alpha=alpha, beta=1.0
        )
        cached = Recipe({**host, "ensemble": dataset == "imagenet"}, features=True, search=ends)
        if not tune:
            return cached
        optimizer = dict(type="AdamW", eps=1e-4, weight_decay=0.01)
        cosine = dict(type="CosineAnnealingLR", convert_to_iter_based=True)
        epochs = 100 if dataset == "eurosat" else 20
        return replace(
            cached, lr=1e-3, epochs=epochs, batch=256, optimizer=optimizer, scheduler=cosine
        )
    # CoOp's published few-shot results use 16 random tokens, those of other protocols four words.
    context = {} if few else dict(tokens=4, words="a photo of a")
    return {
        "zeroshot": Recipe(dict(name="zeroshot"), features=True),
        "coop": Recipe(dict(name="coop", **context), 0.002, coop, 32),
        "cocoop": Recipe(dict(name="cocoop"), 0.002, 10, 1),
        "clip-adapter": Recipe(dict(name="clip-adapter"), 0.002, coop, 32, features=True),
        "deep-vision": Recipe(dict(name="deep-vision"), 0.0025, 5, 4),
        "deep-language": Recipe(dict(name="deep-language"), 0.0025, 5, 4),
        "ivlp": Recipe(dict(name="ivlp"), 0.0025, 20, 4),
    }[method]


def with_steps(recipe: Recipe, steps: int | None, epochs: int | None) -> tuple[Recipe, int | None]:
    """The recipe with other epochs, and how many images an epoch has if all epochs together take
    ``steps`` steps.

    Without ``epochs``, their number is the largest divisor of ``steps`` that is at most the
    recipe's.
    """
    if epochs is not None and recipe.epochs:
        share = epochs / recipe.epochs
        average = recipe.average
        if average is not None:  # scale mean and std with the number of epochs
            average = (average[0] * share, max(average[1] * share, 1e-3))
        recipe = replace(recipe, epochs=epochs, average=average)
    if steps is None or not recipe.epochs:
        return recipe, None
    most = recipe.epochs
    count = next(number for number in range(min(steps, most), 0, -1) if steps % number == 0)
    if count < most:
        # the schedules begin with one epoch of almost zero rate
        if epochs is not None or count == 1 < steps:
            below = steps - steps % most
            raise HypvisionError(
                f"{steps} steps cannot be divided into "
                f"{f'2 to {most}' if epochs is None else most} epochs of one length. Give --steps "
                f"{f'{below} or ' if below else ''}{below + most}."
            )
        recipe, _ = with_steps(recipe, None, count)
    return recipe, steps // count * recipe.batch


def few_shot_config(
    method: str,
    protocol: str = "base2new",
    root: str = "data",
    dataset: str = "caltech101",
    shots: int | None = 16,
    seed: int = 1,
    clip: dict[str, Any] | None = None,
    size: int | None = None,
    subset: str | None = None,
    classes: int = 100,
    images: int = 800,
    total_classes: int | None = None,
    adapter: dict[str, Any] | None = None,
    host: dict[str, Any] | None = None,
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
) -> dict[str, Any]:
    """A config that ``hypvision train`` runs; of a method that learns nothing, one epoch without an
    update.

    Args:
        method, protocol: of :data:`METHODS`, maybe with ``+lath``; of :data:`PROTOCOLS`.
        root, dataset, shots, seed, size, pickles, skip_broken: see
            :class:`~hypvision.data.fewshot.FewShotDataset`.
        clip: arguments of :func:`hypvision.clip.models.create_clip`; default OpenAI's ViT-B/16.
        subset: of the training classes; default that of the protocol.
        classes, images: of the training data, for methods whose size depends on them.
        total_classes: of the data set, by which LatHAdapter chooses its number of attributes;
            default ``classes``.
        adapter, host: further options of LatHAdapter and of the host.
        amp: ``"bf16"``, ``"fp16"`` or None.
        steps: of the whole training, instead of the recipe's number; see :func:`with_steps`.
        epochs, batch: instead of the recipe's.
        views: augmented views that are stored as features, 0 for the centre crop; None: images are
            augmented anew.
        cache: folder of stored features: of images for methods behind the towers, PromptSRC's of
            texts.
        best_val: keep the checkpoint that is best on test images, which selects on test data, as
            PromptKD's code does.
        class_weights: ``"balanced"``, or a number for each class, see
            :class:`~hypvision.tasks.few_shot.FewShotCLIP`.
        balanced: draw each class alike often, see
            :class:`~hypvision.data.samplers.BalancedSampler`.
    """
    name, lath = split_method(method)
    one_of(PROTOCOLS, protocol=protocol)
    published = recipe(name, protocol, dataset, shots, classes, images)
    # with LatHAdapter only its attributes train, with PromptSRC's settings
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
    own = subset or ("all" if found.unlabelled else tested)
    train_data = dict(
        data, part="train", pickles=pickles, subset=own, shots=None if found.unlabelled else shots
    )
    if found.search is not None:
        train_data |= dict(scale=TIP_ADAPTER_SCALE, repeat=True)
    loader = dict(num_workers=workers, collate_fn=dict(type="default_collate"))
    tests = dict(loader, batch_size=100, sampler=dict(type="DefaultSampler", shuffle=False))
    tests["dataset"] = dict(data, part="test", subset=tested)
    test = dict(dataloader=tests, evaluator=dict(type="TopKAccuracy", topk=(1,)), cfg=dict())
    return dict(
        {
            f"{phase}_{part}": value
            for phase in ("test", "val")[: 1 + best_val]
            for part, value in test.items()
        },
        data_root=root,
        model=dict(
            type="FewShotCLIP",
            clip=clip or dict(name="ViT-B-16", pretrained="openai"),
            host={
                **found.host,
                **(dict(cache=cache) if name == "promptsrc" and cache else {}),
                **(host or {}),
            },
            class_weights=class_weights,
            adapter=dict(type="lathadapter", classes=total_classes or classes, **(adapter or {}))
            if lath
            else None,
        ),
        **_training(
            found,
            dict(loader, dataset=train_data),
            length,
            images,
            balanced,
            amp,
            views,
            cache,
            best_val,
        ),
        randomness=dict(seed=seed),
        experiment_name=f"{protocol}-{method}-{dataset}-{shots}-{seed}",
        **deepcopy(_EVERY_CONFIG),
    )


_EVERY_CONFIG: dict[str, Any] = dict(
    custom_imports=dict(
        imports=["hypvision.tasks", "hypvision.tasks.few_shot", "hypvision.data.fewshot"]
    ),
    default_scope="mmengine",
    log_level="WARNING",
    env_cfg=dict(dist_cfg=dict(backend="nccl")),
)


def _training(
    found: Recipe, loader: dict[str, Any], length: int | None, images: int, balanced: bool,
    amp: str | None, views: int | None, cache: str | None, best_val: bool,
) -> dict[str, Any]:  # fmt: skip
    """Batches, optimiser, schedule and hooks of a training of ``length`` images an epoch, or of all
    images once."""
    sampler = dict(type="DefaultSampler", shuffle=True, round_up=False)
    if length is not None or balanced:
        sampler = dict(type="BalancedSampler" if balanced else "FixedLengthSampler", length=length)
    optimizer = dict(type="SGD", lr=found.lr, momentum=0.9, weight_decay=5e-4)
    if found.optimizer.get("type", "SGD") != "SGD":
        optimizer = dict(lr=found.lr)
    epochs = max(found.epochs, 1)
    scheduler = dict(type="CoOpCosineLR", epochs=epochs)
    if found.scheduler is not None:
        scheduler = dict(found.scheduler, T_max=found.epochs)
    # To write a checkpoint takes as long as a step: one is written an epoch, but at most once in
    # ten steps.
    interval = max(1, min(epochs // 10, 10 // max((length or images) // found.batch, 1)))
    best = dict(save_best="top1", rule="greater") if best_val else {}
    checkpoint = dict(type="CheckpointHook", interval=interval, max_keep_ckpts=2, **best)
    hooks: list[dict[str, Any]] = [dict(type="ClassNamesHook")]
    if found.average is not None:
        hooks.append(dict(type="GaussianAverageHook", mean=found.average[0], std=found.average[1]))
    if found.features and views is not None:
        hooks.append(dict(type="FeatureCacheHook", views=views, folder=cache))
    if found.search is not None:
        hooks.append(dict(type="TipAdapterHook", folder=cache, ends=found.search))
    wrappers: dict[str | None, dict[str, Any]] = {
        None: dict(type="OptimWrapper"),
        "bf16": dict(type="BFloat16OptimWrapper"),
        "fp16": dict(type="AmpOptimWrapper", dtype="float16", loss_scale="dynamic"),
    }
    one_of(wrappers, amp=amp)
    whole = length is None and images >= found.batch and found.search is None
    return dict(
        train_dataloader=dict(loader, batch_size=found.batch, sampler=sampler, drop_last=whole),
        train_cfg=dict(by_epoch=True, max_epochs=epochs),
        default_hooks=dict(logger=dict(type="LoggerHook", interval=50), checkpoint=checkpoint),
        optim_wrapper=dict(optimizer={**optimizer, **found.optimizer}, **wrappers[amp]),
        param_scheduler=[scheduler] if found.epochs else [],
        custom_hooks=hooks,
    )

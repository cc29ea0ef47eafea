"""Few-shot recognition with a frozen CLIP under mmengine's Runner: any few-shot method (a host),
optionally with LatHAdapter on its features.

>>> clip = dict(name="ViT-B-16", pretrained="openai")
>>> adapter = dict(type="lathadapter", classes=100)
>>> model = dict(type="FewShotCLIP", clip=clip, host=dict(name="promptsrc"), adapter=adapter)

Classes come from the data (:class:`ClassNamesHook`), so a model that was trained on base classes is
tested on new ones by exchanging the data set. Checkpoints contain only the learned parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.dist import broadcast, get_dist_info, sync_random_seed
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler
from mmengine.registry import DATA_SAMPLERS, HOOKS, MODELS, PARAM_SCHEDULERS
from mmengine.runner import Runner
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from hypvision.checkpoints.language import Language
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.clip import adapters
from hypvision.clip.adapters.lathadapter import LatentHierarchy
from hypvision.clip.features import image_features
from hypvision.clip.models import CLIPBundle, create_clip
from hypvision.clip.prompting import HostOutput, build_host, feature_size
from hypvision.clip.prompting.heads import LinearProbe, TipAdapter
from hypvision.clip.prompting.hosts import is_hyperbolic
from hypvision.clip.prompting.official import learned_names
from hypvision.clip.prompting.promptsrc import gaussian_weights
from hypvision.data.annotations import name_difference
from hypvision.data.classes import checked_templates, load_classes
from hypvision.data.fewshot import FewShotDataset
from hypvision.data.preprocessing import preprocessing_of, set_preprocessing
from hypvision.engine.extensions import PREDICTORS
from hypvision.engine.hooks import CheckClassesHook, ClassWeights, classes_in, network_of
from hypvision.inference.knowledge import Known
from hypvision.inference.predictors import Predictor, Request, classifier
from hypvision.io import (
    HypvisionError,
    Names,
    Plain,
    StrPath,
    Values,
    ensure,
    one_of,
    refuse,
    require_finite,
)

from .classification import per_image
from .probe import fit_probe


@MODELS.register_module()
class FewShotCLIP(BaseModel):
    """A few-shot method (``host``) on a frozen CLIP, optionally with LatHAdapter on its features.

    The losses are the host's. With the adapter the classification loss becomes that of the cosines
    with refined classes (``loss_ecls``), and the losses of the hyperbolic distances (``loss_hcls``)
    and of the two hierarchies (``loss_va``, ``loss_at``) are added; the host's other losses stay,
    on features that are not refined.

    Args:
        clip: arguments of :func:`hypvision.clip.models.create_clip`, or the bundle that it returns.
        host: ``name`` and options of :func:`hypvision.clip.prompting.build_host`.
        adapter: ``dict(type="lathadapter", ...)``, see
            :class:`~hypvision.clip.adapters.lathadapter.LatHAdapterConfig`; None: no adapter.
        class_weights: see :class:`~hypvision.engine.hooks.classes.ClassWeights`; only for methods
            that learn from labels.
        templates: sentences for class names, used if the data has none; methods with a single
            template use the first. None: the templates recorded with the CLIP's weights.
    """

    checkpoint_is_partial = True
    amp_on_cpu = False
    takes_templates = True
    words: Names = ()

    def __init__(
        self,
        clip: Plain | CLIPBundle,
        host: Plain,
        adapter: Plain | None = None,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
        class_weights: str | Sequence[float] | None = None,
        templates: str | Sequence[str] | None = None,
    ):
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        options = dict(host)
        if class_weights is not None and options.get("name") == "promptkd":
            raise HypvisionError(
                "PromptKD learns from its teacher, without labels: leave out class_weights."
            )
        self.class_weights = ClassWeights(class_weights)
        bundle = clip if isinstance(clip, CLIPBundle) else create_clip(**clip)
        if templates is not None:
            bundle = bundle._replace(templates=checked_templates(templates))
        self.host = build_host(bundle, options.pop("name", "promptsrc"), **options)
        if adapter is not None:
            size = feature_size(self.host)
            refuse(
                (
                    adapter.get("type") != "lathadapter",
                    "A few-shot method takes the adapter 'lathadapter', not "
                    f"{adapter.get('type')!r}.",
                ),
                (
                    is_hyperbolic(bundle.model),
                    "LatHAdapter (+lath) works on a sphere, but this CLIP embeds on a hyperboloid: "
                    "leave out the adapter.",
                ),
                (
                    adapter.get("dim", 0) not in (0, size),
                    f"LatHAdapter: dim is {adapter.get('dim')!r}, but the method's features have "
                    f"{size} dimensions. Leave out dim.",
                ),
            )
            adapters.inject(self.host.clip, {**adapter, "dim": size})

    @property
    def language(self) -> Language:
        """Return the templates, first the one that single-template methods use, and the class
        names, as its checkpoints record them."""
        host = self.host
        return Language(tuple(dict.fromkeys((host.template, *host.mean_templates))), host.names)

    @property
    def hierarchy(self) -> LatentHierarchy | None:
        """Return the module of LatHAdapter; None without the adapter."""
        return getattr(self.host.clip, "lathadapter", None)

    def checkpoint_filter(self, weights: Weights) -> StateDict:
        """Return weights under this model's names; ``weights`` may also come from the official code
        of the methods."""
        unsaid = {f"host.{name}": value for name, value in self.host.unsaid().items()}
        return {**unsaid, **learned_names(weights, self.host.clip)}

    def set_classes(self, *names: Any, **templates: Any) -> None:
        """Change the classes and templates, see
        :meth:`hypvision.clip.prompting.Host.set_classes`."""
        self.host.set_classes(*names, **templates)

    def set_data(self, meta: Values) -> None:
        """Change the classes and templates to those in the ``metainfo`` of a data set."""
        self.set_classes(meta["classes"], meta.get("template"), meta.get("templates"))

    def learned(self) -> Iterator[tuple[str, Tensor]]:
        """Return names and values of the parameters that train."""
        return ((name, value) for name, value in self.named_parameters() if value.requires_grad)

    def averaged(self) -> Iterator[tuple[str, Tensor]]:
        """Return names and values of the parameters that PromptSRC averages: those of
        :meth:`learned`, without the adapter's attributes if its config says so."""
        hierarchy = self.hierarchy
        left_out = None if hierarchy is None or hierarchy.config.average else hierarchy.attributes
        return ((name, value) for name, value in self.learned() if value is not left_out)

    def train(self, mode: bool = True) -> FewShotCLIP:
        super().train(mode)
        if self.hierarchy is not None:
            # The adapter contains the frozen CLIP, which stays in evaluation mode.
            self.hierarchy.train(mode)
        return self

    def train_step(self, data: Any, optim_wrapper: Any) -> dict[str, Tensor]:
        """Make a training step as mmengine's models do; a method without parameters only computes
        its losses."""
        if any(value.requires_grad for value in self.parameters()):
            return super().train_step(data, optim_wrapper)
        with torch.no_grad():
            losses = self._run_forward(self.data_preprocessor(data, True), mode="loss")
        return self.parse_losses(losses)[1]

    def forward(
        self,
        inputs: Tensor,
        label: Tensor | None = None,
        index: Tensor | None = None,
        mode: str = "tensor",
    ) -> Any:
        """Compute what mmengine's ``mode`` asks for. Inputs are uint8 (B, 3, H, W), or features
        (B, d) of the frozen image tower if the host takes features; ``label`` (B,) may be None,
        also in PromptKD's loss.

        Returns:
            ``"tensor"``: logits (B, C); ``"loss"``: the losses by name; ``"predict"``: for each
            image a dict with ``scores`` over the classes, ``label`` and ``index``.
        """
        one_of(("tensor", "loss", "predict"), mode=mode)
        out = self.host(inputs, label)
        if mode == "loss":
            return self._loss(out, label)
        logits = self._logits(out)
        return (
            logits if mode == "tensor" else per_image(label, index, scores=logits.softmax(-1).cpu())
        )

    def _logits(self, out: HostOutput) -> Tensor:
        if self.hierarchy is None:
            return out.logits()
        found: Tensor = self.hierarchy(*self.adapter_features(out), out.scale, losses=False).logits
        return found if out.extra is None else found + out.extra

    def _loss(self, out: HostOutput, label: Tensor | None) -> dict[str, Tensor]:
        weights = self.class_weights()
        if self.hierarchy is None:
            return dict(loss_ce=out.fit(out.logits(), label, weights), **out.losses)
        # Images for which a teacher predicts the same class are neighbours, too.
        target = label if out.teacher is None else out.teacher.argmax(-1)
        found = self.hierarchy(*self.adapter_features(out), out.scale, target)
        cosine = found.cosine if out.extra is None else found.cosine + out.extra
        losses = dict(loss_ecls=out.fit(cosine, label, weights), **found.losses, **out.losses)
        if found.distance is not None:
            losses |= _distance_loss(-found.distance, out, label, weights)
        return losses

    def adapter_features(self, out: HostOutput) -> tuple[Tensor, Tensor]:
        """Return the features of images and of classes that LatHAdapter works on: of unit length,
        or with ``feature_norm="none"`` as the host computes them."""
        if out.text is None or out.raw is None:
            raise HypvisionError(
                "LatHAdapter refines class features, which a linear probe does not have. Leave out "
                "the adapter (+lath)."
            )
        raw = cast(LatentHierarchy, self.hierarchy).config.raw
        return out.raw if raw else (out.image, out.text)


def _distance_loss(
    logits: Tensor, out: HostOutput, label: Tensor | None, weights: Tensor | None
) -> dict[str, Tensor]:
    """Return the loss of negated hyperbolic distances, taken as logits (B, C): against the
    teacher's distribution, or against class labels."""
    if out.teacher is not None:
        shares = logits.log_softmax(-1)
        wanted = out.teacher.log_softmax(-1)
        loss = F.kl_div(shares, wanted, reduction="batchmean", log_target=True)
        return dict(loss_hcls=loss)
    return {} if label is None else dict(loss_hcls=F.cross_entropy(logits, label, weights))


def _model(runner: Runner) -> FewShotCLIP:
    return cast(FewShotCLIP, network_of(runner))


class _StartHook(Hook):
    """Base of hooks that initialise parameters at the start of a training, except those that
    ``load_from`` has loaded."""

    _loaded: frozenset[str] = frozenset()

    def after_load_checkpoint(self, runner: Runner, checkpoint: Plain) -> None:
        self._loaded = frozenset(
            _model(runner).checkpoint_filter(checkpoint.get("state_dict", checkpoint))
        )


@HOOKS.register_module()
class ClassNamesHook(_StartHook):
    """Gives the model the class names and templates of the next data set, and the data set the
    model's image transform.

    Raises:
        HypvisionError: a method that learns each class by itself gets a data set with as many
            classes as it has learned, but with other names (unless the config has a
            :class:`~hypvision.engine.hooks.CheckClassesHook` that only compares their numbers).
    """

    priority = "VERY_HIGH"
    _names: Names = ()  # the classes that the model has learned

    def after_load_checkpoint(self, runner: Runner, checkpoint: Plain) -> None:
        super().after_load_checkpoint(runner, checkpoint)
        self._names = classes_in(checkpoint)

    def before_train(self, runner: Runner) -> None:
        difference = self._difference(runner, runner.train_dataloader)
        if difference and not runner._resume:
            runner.logger.warning(
                f"{difference} The training goes on with the classes of the training data."
            )
            self._names = ()
        self._set(runner, runner.train_dataloader)
        self._names = self._names or tuple(runner.train_dataloader.dataset.metainfo["classes"])
        model = _model(runner)
        loaded = any(name.endswith("lathadapter.attributes") for name in self._loaded)
        if model.hierarchy is not None and runner.iter == 0 and not loaded:
            with torch.no_grad():
                model.hierarchy.begin(model.host.class_features()[1])

    def _difference(self, runner: Runner, loader: DataLoader) -> str:
        """Return how the class names of a data set differ from the learned ones, for a method that
        learns each class by itself and as many classes; otherwise the empty string."""
        names = cast(FewShotDataset, loader.dataset).metainfo["classes"]
        fixed = _model(runner).host.fixed_classes
        mine, own = ([name.replace("_", " ") for name in part] for part in (names, self._names))
        if not len(mine) == len(own) == fixed or mine == own:
            return ""
        if not all(
            hook.by_name
            for hook in getattr(runner, "hooks", ())
            if isinstance(hook, CheckClassesHook)
        ):
            return ""
        return name_difference(mine, "The data", own, "the training")

    def _before_epoch(self, runner: Runner, mode: str = "train") -> None:
        self._set(runner, getattr(runner, f"{mode}_dataloader"))

    def _set(self, runner: Runner, loader: DataLoader) -> None:
        model = _model(runner)
        dataset = cast(FewShotDataset, loader.dataset)
        difference = self._difference(runner, loader)
        ensure(
            not difference,
            f"{difference} This method ({type(model.host).__name__}) recognises only the "
            "classes of its training. If only the names differ, add "
            "dict(type='CheckClassesHook', by_name=False) to custom_hooks in the config; it "
            "only compares the numbers of classes.",
        )
        model.set_data(dataset.metainfo)
        set_preprocessing(dataset, model.host.clip)


@HOOKS.register_module()
class GaussianAverageHook(Hook):
    """PromptSRC's weighted average of the parameters over the epochs, which replaces them after the
    last epoch; ``mean`` and ``std`` are those of
    :func:`hypvision.clip.prompting.promptsrc.gaussian_weights`. Checkpoints contain the running
    average, so a resumed training ends like an uninterrupted one."""

    key = "gaussian_average"

    def __init__(self, mean: float, std: float):
        self.mean = mean
        self.std = std
        self.seen = 0
        self.total = dict[str, Tensor]()
        # Epochs, mean and std of the training that a resumed training continues.
        self.begun: tuple[int, float, float] | None = None

    def after_load_checkpoint(self, runner: Runner, checkpoint: Plain) -> None:
        device = next(_model(runner).parameters()).device
        state = checkpoint.get(self.key, {})
        self.seen = state.get("seen", 0)
        self.total = {name: value.to(device) for name, value in state.get("total", {}).items()}
        self.begun = state.get("weights")

    def before_train(self, runner: Runner) -> None:
        if not runner.epoch:
            self.seen = 0
            self.total = {}
        elif self.seen != runner.epoch < runner.max_epochs:
            # After the last epoch the parameters are the average already.
            raise HypvisionError(
                f"The checkpoint is of epoch {runner.epoch}, but its average has {self.seen} "
                "epochs, so the training cannot go on from it. Start it again without --resume."
            )
        elif self.begun and self.total:
            epochs, *shape = self.begun
            if shape != [self.mean, self.std]:
                raise HypvisionError(
                    f"The average in the checkpoint has mean and std {shape}, the config has "
                    f"{[self.mean, self.std]}, so the training cannot go on from it. Set mean and "
                    "std of GaussianAverageHook as in the checkpoint, or start again."
                )
            # In a longer training the epochs so far have a smaller total weight: rescale their sum.
            old, new = (
                gaussian_weights(e, *shape)[: self.seen] for e in (epochs, runner.max_epochs)
            )
            self.total = {name: value * (sum(new) / sum(old)) for name, value in self.total.items()}

    @torch.no_grad()
    def after_train_epoch(self, runner: Runner) -> None:
        weight = gaussian_weights(runner.max_epochs, self.mean, self.std)[runner.epoch]
        named = _model(runner).averaged()
        for name, value in dict(named).items():
            part = value.to(torch.promote_types(value.dtype, torch.float32)) * weight
            self.total[name] = self.total[name] + part if name in self.total else part
            if runner.epoch + 1 == runner.max_epochs:
                value.copy_(self.total[name])
        self.seen = runner.epoch + 1

    def before_save_checkpoint(self, runner: Runner, checkpoint: Plain) -> None:
        if 0 < self.seen < runner.max_epochs:
            weights = (runner.max_epochs, self.mean, self.std)
            checkpoint[self.key] = dict(seen=self.seen, total=dict(self.total), weights=weights)


@HOOKS.register_module()
class FeatureCacheHook(Hook):
    """Trains a method behind the frozen image tower on image features that are computed once.

    Args:
        views: number of augmented views of each training image, one of which is drawn for every
            sample; 0: the centre crop. The official codes augment anew in each epoch, as trainings
            without this hook do.
        folder: folder for the features, which are found by the content of the images and of the
            model; None: features stay in memory.
    """

    priority = "HIGH"

    def __init__(self, views: int = 0, folder: StrPath | None = None):
        self.folder = folder
        self.views = views

    def before_train(self, runner: Runner) -> None:
        model = _model(runner)
        dataset = runner.train_dataloader.dataset
        ensure(
            model.host.feature_inputs,
            f"{type(model.host).__name__} changes the image tower, so it needs images: leave "
            "out FeatureCacheHook.",
        )
        dataset.use_features(image_features(model.host, dataset, self.views, self.folder))


@HOOKS.register_module()
class FitProbeHook(_StartHook):
    """Fits the logistic regression of a linear probe to the training images' centre crops, before
    a training that takes no steps (:func:`~hypvision.tasks.probe.fit_probe`). The decay is the best
    one on the validation images that were drawn, up to 4 of each class, or else on every fifth
    training image.

    Args:
        folder: see :class:`FeatureCacheHook`.
    """

    priority = "BELOW_NORMAL"  # after the class weights were counted

    def __init__(self, folder: StrPath | None = None):
        self.folder = folder

    def before_train(self, runner: Runner) -> None:
        if runner.iter or "host.learner.weight" in self._loaded:
            return
        model = _model(runner)
        host = cast(LinearProbe, model.host)
        dataset = runner.train_dataloader.dataset
        val = dataset.drawn_val()
        weights = model.class_weights()
        probe = fit_probe(
            *self._vectors(host, dataset),
            host.fixed_classes,
            None if val is None else self._vectors(host, val),
            None if weights is None else weights.cpu(),
        )
        with torch.no_grad():
            host.learner.weight.copy_(probe.weight)
            host.learner.bias.copy_(probe.bias)
        for parameter in host.learner.parameters():
            broadcast(parameter.data)

    def _vectors(self, host: LinearProbe, dataset: FewShotDataset) -> tuple[Tensor, Tensor]:
        """Return what the probe reads of the images of a data set, ``(N, d)`` on the CPU, and
        their labels ``(N,)``."""
        features = image_features(host, dataset, folder=self.folder)[0]
        with torch.no_grad():
            vectors = host.vectors(features.to(host.scale.device))
        return vectors.cpu(), torch.tensor(dataset.labels)


@HOOKS.register_module()
class TipAdapterHook(_StartHook):
    """Fills the cache of a Tip-Adapter before its training, and chooses its alpha and beta after
    the last epoch on all validation images, if there are any. Both steps give the same result
    whether the training uses images or stored features.

    Args:
        views: number of augmented views of each training image, whose mean feature is the image's
            key in the cache (10, as in the official code).
        folder: see :class:`FeatureCacheHook`.
        ends: see :meth:`hypvision.clip.prompting.heads.TipAdapter.search`.
    """

    priority = "HIGH"

    def __init__(
        self,
        views: int = 10,
        folder: StrPath | None = None,
        ends: tuple[float, float] = (7.0, 3.0),
    ):
        self.folder = folder
        self.views = views
        self.ends = (ends[0], ends[1])

    def before_train(self, runner: Runner) -> None:
        host = cast(TipAdapter, _model(runner).host)
        dataset = runner.train_dataloader.dataset
        # A resumed training has loaded the keys of its cache from the checkpoint.
        if runner.iter or "host.learner.keys" in self._loaded:
            if runner.iter and runner.epoch < runner.max_epochs:
                host.restart()
            return
        features = image_features(host, dataset, self.views, self.folder).mean(0)
        broadcast(features)  # every process uses the features of the first one's random views
        device = next(host.parameters()).device
        host.fill(features.to(device), torch.tensor(dataset.labels, device=device))

    def after_train_epoch(self, runner: Runner) -> None:
        if runner.epoch + 1 < runner.max_epochs:
            return
        val = runner.train_dataloader.dataset.whole_part("val")
        if val is None:
            return
        model = _model(runner)
        device = next(model.parameters()).device
        host = cast(TipAdapter, model.host)
        plain = None
        features = image_features(host, val, folder=self.folder)[0].to(device)
        if model.hierarchy is not None:
            with torch.no_grad():
                plain = model._logits(host.output(host.features(features), host.class_features()))
        host.search(features, torch.tensor(val.labels, device=device), plain=plain, ends=self.ends)


@PARAM_SCHEDULERS.register_module()
class CoOpCosineLR(LRSchedulerMixin, _ParamScheduler):
    """The learning rate schedule of CoOp's code and all that follow it, changed once an epoch: 1e-5
    (``first``) in epoch 0, then ``lr (1 + cos(pi (e - 1) / E)) / 2`` in epoch e of E, which never
    reaches 0."""

    def __init__(self, optimizer: Any, epochs: int, first: float = 1e-5, **kwargs: Any):
        self.epochs = epochs
        self.first = first
        super().__init__(optimizer, **kwargs)

    def _get_value(self) -> list[float]:
        if self.last_step == 0:
            return [self.first] * len(self.base_values)
        share = (1 + math.cos(math.pi * (self.last_step - 1) / self.epochs)) / 2
        return [base * share for base in self.base_values]


@DATA_SAMPLERS.register_module()
class FixedLengthSampler(Sampler):
    """A sampler that gives a fixed number of images in each epoch, counted over all processes: one
    random order of the data after the other. ``seed`` is as for mmengine's ``DefaultSampler``;
    None: a random seed that all processes share."""

    def __init__(self, dataset: Any, length: int, seed: int | None = None):
        self.rank, self.world_size = get_dist_info()
        self.size = len(dataset)
        self.length = length
        self.epoch = 0
        self.seed = sync_random_seed() if seed is None else seed

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order: list[int] = []
        while len(order) < self.length:
            order += torch.randperm(self.size, generator=generator).tolist()
        return iter(order[self.rank : self.length : self.world_size])

    def __len__(self) -> int:
        return len(range(self.rank, self.length, self.world_size))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@torch.no_grad()
def accuracy(
    model: FewShotCLIP,
    dataset: FewShotDataset,
    batch: int = 100,
    workers: int = 0,
    amp: torch.dtype | None = None,
    features: Tensor | None = None,
) -> float:
    """Return the top-1 accuracy in percent over a data set; the model gets the classes of the data
    set. ``amp`` is the dtype of autocast, which is only used on GPUs, as in training; ``features``
    (N, d) replace the images."""
    device = next(model.parameters()).device
    model.eval()
    model.set_data(dataset.metainfo)
    set_preprocessing(dataset, model.host.clip)
    right = seen = 0
    loader = DataLoader(dataset, batch, num_workers=workers, pin_memory=device.type == "cuda")
    batches: Iterable[tuple[Tensor, Tensor]] = (
        (sample["inputs"], sample["label"]) for sample in loader
    )
    if features is not None:
        batches = zip(features.split(batch), torch.tensor(dataset.labels).split(batch))
    mixed = amp is not None and device.type == "cuda"
    with torch.autocast(device.type, dtype=amp or torch.bfloat16, enabled=mixed):
        for inputs, labels in batches:
            logits = model(inputs.to(device, non_blocking=True))
            names = [
                f"A logit of the image '{item.path}'"
                for item in dataset.items[seen : seen + len(labels)]
            ]
            require_finite(logits, names.__getitem__)
            seen += len(labels)
            right += int((logits.argmax(-1).cpu() == labels).sum())
    return 100.0 * right / len(dataset)


def _predictor(model: FewShotCLIP, config: Config, request: Request) -> Predictor:
    """Return the predictor with the image size of the test data, the classes of the request or of
    the training, and the templates of the training."""
    trained = model.dataset_meta or {}
    if request.things is not None:
        raise HypvisionError(
            f"'{request.model}' is a classifier, which does not count things: leave out --things."
        )
    if request.classes is None and not trained and model.words:
        trained = {"classes": model.words}
    names = _asked_classes(model, trained, request)
    model.set_data({**trained, "classes": names})
    view = preprocessing_of(model.host.clip)
    size = config.dataset("test").get("size")
    view = view if size is None else replace(view, size=size)
    source = "the checkpoint"
    if request.classes is not None:
        source = "the words given, by the CLIP of the checkpoint"
    known = Known(names, f"{source} {request.weights}", view.size)
    return classifier(lambda x: model(x, mode="tensor"), view, known, request.device)


def _asked_classes(model: FewShotCLIP, trained: Values, request: Request) -> Names:
    """Return the classes of the request, or those of the training if the request names none; a
    method that recognises only the classes of its training refuses other names."""
    own = tuple(trained.get("classes") or ())
    if request.classes is None:
        ensure(
            trained,
            f"The checkpoint '{request.weights}' does not record its classes: give "
            '--classes "cat, dog, ...".',
        )
        return own
    names = tuple(load_classes(request.classes))
    if not own or model.host.fixed_classes is None:
        return names
    given, learned = ([name.replace("_", " ") for name in part] for part in (names, own))
    if sorted(given) != sorted(learned):
        checkpoint = f"the checkpoint {request.weights}"
        raise HypvisionError(
            f"{name_difference(given, '--classes', learned, checkpoint)} "
            f"This method ({type(model.host).__name__}) recognises only the classes of its "
            "training: leave out --classes."
        )
    return own  # the order of the model's outputs


PREDICTORS["FewShotCLIP"] = _predictor

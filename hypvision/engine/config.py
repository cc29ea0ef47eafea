"""Read a config file as a :class:`Run`, and adapt it to this machine.

:func:`load_config` reads a config; the properties and methods of :class:`Run` say what a run needs
to know of it. :func:`prepare` adds the standard hooks: a seed for each epoch so that a resumed run
repeats itself, averaged losses, a stop on NaN, a clean Ctrl-C. On a machine without a GPU it
selects gloo and bfloat16.
"""

from __future__ import annotations

import copy
import inspect
import logging
import os
import re
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from mmengine.config import Config, ConfigDict, DictAction
from mmengine.config import config as mmengine_config
from mmengine.dist import init_dist, is_distributed
from mmengine.registry import MODELS
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings

from hypvision.io import (
    HypvisionError,
    Plain,
    StrPath,
    did_you_mean,
    ensure,
    explain_machine,
    explaining,
    one_line,
    without_secrets,
)
from hypvision.io.files import check_regular, replacing, why_no_file
from hypvision.io.plugins import PLUGINS
from hypvision.io.shipped import Recipe, config_folder, find_config, recipe_of

from . import precision
from .checks import as_list, close_configs, datasets_of, inner_dataset, walk
from .extensions import MODEL_HOOKS, PREPARATIONS, RUN_HOOKS

_logger = logging.getLogger(__name__)

PHASES = ("train", "val", "test")
# The keys that mmengine's Runner or hypvision reads; a config may have other keys for its own use.
RUN_KEYS = (
    *(key for key in inspect.signature(Runner).parameters if key != "cfg"),
    "activation_checkpointing", "compile", "custom_imports", "efficient_conv_bn_eval",
    "find_unused_parameters", "model_wrapper_cfg", "runner_type", "sync_bn", "tta_model",
    "tta_pipeline", "vis_backends",
)  # fmt: skip
# The types that mmengine accepts for each key; a value of another type would cause an error far
# from the config.
KINDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "a dict": (dict, (
        "model", *(f"{phase}_{part}" for phase in PHASES for part in ("dataloader", "cfg")),
        "optim_wrapper", "auto_scale_lr", "default_hooks", "env_cfg", "log_processor", "randomness",
        "model_wrapper_cfg", "visualizer", "custom_imports", "env_cfg.dist_cfg", "env_cfg.mp_cfg",
    )),
    "a dict or a list of dicts": ((dict, list, tuple), ("val_evaluator", "test_evaluator",
    "param_scheduler")),
    "a list of dicts": ((list, tuple), ("custom_hooks", "vis_backends")),
    "True, False or a dict": ((bool, dict), ("compile",)),
    "a string": ((str, os.PathLike), ("work_dir", "load_from", "default_scope", "experiment_name")),
    "a whole number": (int, (
        "log_processor.window_size", "train_cfg.val_interval", "default_hooks.checkpoint.interval",
        "default_hooks.logger.interval",
    )),
}  # fmt: skip

OWN = (
    "hypvision::"  # prefix in _base_ for configs that come with hypvision, as "mmdet::" for mmdet's
)


_LARGEST = 2**22  # limit in bytes for a config; mmengine needs minutes for ten times as many


_format_code = mmengine_config.FormatCode


@lru_cache(maxsize=4)
def _format(text: str, style: tuple[tuple[str, Any], ...]) -> Any:
    return _format_code(text, style_config=dict(style))


def format_once(text: str, style_config: Plain, **kwargs: Any) -> Any:
    """Return the formatted text of a config from a cache: mmengine would format it anew for each
    checkpoint, which takes half a second or more."""
    return _format(text, tuple(style_config.items()))


mmengine_config.FormatCode = format_once


class Schedule(NamedTuple):
    """The length of a training, and the schedules of its learning rate.

    Attributes:
        unit: the key of the length in ``train_cfg``: ``"max_epochs"`` or ``"max_iters"``.
        length: length of the training in this unit.
        parts: the parts of ``param_scheduler`` that count in the same unit.
    """

    unit: str
    length: int
    parts: list[Plain]


class Run(Config):
    """The config of a run: a config of mmengine, which its Runner takes, with names for what
    follows from the keys.

    Attributes:
        files: the config file and its bases, bases before those that name them.
        roots: every ``data_root`` that one of these files has.
    """

    files: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()

    model: ConfigDict
    work_dir: str
    custom_hooks: list[Plain]

    @property
    def pretty_text(self) -> str:
        """Return the config as the text of a config file. mmengine replaces ``{{NAME:VALUE}}`` in
        the text of a file, so the braces in a string, such as the name of a class, are written
        escaped. Secrets are removed from addresses, since the text goes into files, checkpoints and
        logs."""
        text: str = super().pretty_text
        return without_secrets(text.replace("{{", "{\\x7b"))

    def dump(self, file: StrPath | None = None) -> str | None:
        """Write the config to ``file``, or return its text without one, as mmengine does; here a
        killed process leaves the old file intact."""
        if file is None:
            return without_secrets(super().dump())
        with replacing(file) as temporary:
            super().dump(temporary)
            # mmengine takes the text of a .py alone from pretty_text
            text = Path(temporary).read_text(encoding="utf-8")
            Path(temporary).write_text(without_secrets(text), encoding="utf-8")
        return None

    @classmethod
    def of(cls, config: Config) -> Run:
        """Return a copy of a config as a run."""
        if isinstance(config, cls):
            return config.copy()
        return cls(config.copy()._cfg_dict, cfg_text=config.text, filename=config.filename)

    @classmethod
    def from_path(cls, path: Path) -> Run:
        """Read a config file and its bases and return them as a run."""
        with _own_bases() as read:
            # mmengine would open the file to look for lazy imports, but a config that is a row of a
            # table has no file.
            lazy = None if recipe_of(path) is None else False
            config = Config.fromfile(path, import_custom_modules=False, lazy_import=lazy)
        run = cls.of(config)
        roots = dict.fromkeys(root for root in read.values() if isinstance(root, str))
        object.__setattr__(run, "files", tuple(read))
        object.__setattr__(run, "roots", tuple(roots))
        return run

    @property
    def stem(self) -> str:
        """Return the name of the config file without its suffix."""
        return Path(self.filename or "run").stem

    @property
    def scope(self) -> str:
        """Return the library of the model: ``"mmengine"`` if the model is hypvision's own."""
        return self.get("default_scope") or "mmengine"

    @property
    def kind(self) -> str:
        """Return the ``type`` of the model."""
        return self.model.get("type")

    @property
    def schedule(self) -> Schedule:
        """Return length and schedules of a run with a ``train_cfg``."""
        unit = "max_epochs" if "max_epochs" in self.train_cfg else "max_iters"
        found = self.get("param_scheduler") or []
        # Several optimisers have a dict of schedules, by name.
        if isinstance(found, dict) and "type" not in found:
            found = [part for own in found.values() for part in as_list(own)]
        by_epoch = unit == "max_epochs"
        parts = [
            part
            for part in as_list(found)
            if isinstance(part, dict) and part.get("by_epoch", True) == by_epoch
        ]
        return Schedule(unit, self.train_cfg.get(unit) or 0, parts)

    def dataset(self, phase: str) -> Any:
        """Return the data set of a phase (train, val, test), without its wrappers; an empty dict if
        there is none."""
        return inner_dataset(self.get(f"{phase}_dataloader") or {})

    def datasets(self, *phases: str) -> list[Plain]:
        """Return the data sets of some phases (by default all), also those inside wrappers."""
        loaders = [self.get(f"{phase}_dataloader") for phase in phases or PHASES]
        return [dataset for loader in loaders for dataset in datasets_of(loader)]

    def evaluators(self, phase: str) -> list[Plain]:
        """Return the metrics of a phase."""
        return as_list(self.get(f"{phase}_evaluator") or [])

    def add_hook(self, **hook: Any) -> None:
        """Add a hook after the other custom hooks; ``hook``: its ``type`` and arguments."""
        self.custom_hooks = [*(self.get("custom_hooks") or []), hook]

    def inputs(self) -> list[str]:
        """Return the files that the config consists of or names, which a run must not overwrite."""
        named = [value for _, value in walk(self.to_dict()) if isinstance(value, str)]
        for dataset in self.datasets():
            if isinstance(dataset.get("ann_file"), str):
                root = str(dataset.get("data_root") or "")
                named.append(str(Path(root, dataset["ann_file"]).expanduser()))
        return list(filter(os.path.isfile, [*self.files, self.filename or "", *named]))

    def move_data(self, old: str, new: str, keep: bool = False) -> None:
        """Replace the folder ``old`` by ``new`` in the paths of data sets and evaluators; with
        ``keep``, paths that already lie below ``new`` stay as they are."""
        old = str(old).rstrip("/")
        new = str(new).rstrip("/")

        def is_below(path: str, root: str) -> bool:
            return path.rstrip("/") == root or path.startswith(root + "/")

        keep = keep and is_below(new, old)  # from data/own to data everything moves

        def moved(node: Any) -> Any:
            if isinstance(node, dict):
                return type(node)({key: moved_value(node, key) for key in node})
            if isinstance(node, (list, tuple)):
                return type(node)(moved(value) for value in node)
            if isinstance(node, str) and is_below(node, old) and not (keep and is_below(node, new)):
                return new + node[len(old) :]
            return node

        def moved_value(node: Any, key: str) -> Any:
            value = node[key]
            # A class may be called like the folder.
            if key in ("classes", "ancestors", "ignored") and not isinstance(value, str):
                return value
            # Relative paths start from the data set's own data_root.
            inside = key in ("ann_file", "data_prefix") and node.get("data_root")
            return value if inside and not old.startswith("/") else moved(value)

        for phase in PHASES:
            for part in ("dataloader", "evaluator"):
                if f"{phase}_{part}" in self:
                    self[f"{phase}_{part}"] = moved(self[f"{phase}_{part}"])


def load_config(source: StrPath | Config, options: Plain | None = None) -> Run:
    """Read a config file and apply changes to it.

    A config can have shipped configs as bases: ``_base_ = ["hypvision::_base_/det_runtime.py"]``.
    If it sets another ``data_root`` than its bases, the paths of data sets and evaluators below the
    old one change with it.

    Args:
        source: path of a Python config, the name of a shipped config, or a config (which is
            copied).
        options: changes, with dotted keys (``"optim_wrapper.optimizer.lr"``). ``"data_root"`` moves
            all data sets and evaluators below the config's ``data_root`` to the new place.
    """
    # Nested settings are changed later, too, so a given config is copied with all of them.
    config = copy.deepcopy(Run.of(source)) if isinstance(source, Config) else _read(source)
    ensure(
        "model" in config,
        f"The config '{source}' has no 'model': it is a part that other configs name in "
        "_base_. Give one of these configs.",
    )
    _check_kinds(config, source)
    root = config.get("data_root")
    for old in config.roots if root else ():
        if old.rstrip("/") != str(root).rstrip("/"):
            config.move_data(old, root, keep=True)
    if options:
        _change(config, options, source)
    return config


def _read(source: StrPath) -> Run:
    """Read a config by its path or name, and import the modules in its ``custom_imports``."""
    path = Path(source).expanduser()
    if not path.is_file():
        path = find_config(source) or path
    recipe = recipe_of(path)
    if not path.is_file() and recipe is None:
        hint = close_configs(source)
        if path.is_dir():
            hint = (
                f" Photos or boxes in that folder train without a config: hypvision train {source}."
                " It can also be the `data_root` of a config (docs/own-data.md)."
            )
        raise HypvisionError(
            f"{why_no_file(source, 'config or folder')}{hint} Give the path of a config file, or a "
            "name of `hypvision configs`."
        )
    _check_suffix(path)
    if recipe is None:
        check_regular(path, _LARGEST)
    # A config is code, so reading it can raise any error.
    with explaining(lambda error: f"The config '{path}' {_why_unreadable(error)}"):
        with warnings.catch_warnings():
            # mmengine looks for the packages of stock configs by a module that setuptools drops.
            warnings.filterwarnings("ignore", "pkg_resources is deprecated")
            config = Run.from_path(path)
        _import_modules(config)
    return config


def _change(config: Run, options: Plain, source: StrPath | Config) -> None:
    """Merge ``options`` into a config, and check keys and types."""
    if "data_root" in options and config.get("data_root"):
        config.move_data(config.data_root, options["data_root"])
    _check_keys(config, options)
    with explaining(
        lambda error: f"The options {options} do not fit the config: {error}. Correct them.",
        KeyError,
        TypeError,
        AssertionError,
        IndexError,
    ):
        config.merge_from_dict(options)
    _check_kinds(config, source)
    if any(option.partition(".")[0] == "custom_imports" for option in options):
        with explaining(
            lambda error: (
                f"The options {options} name a module that cannot be imported: {error}. Correct "
                "its name, or install it."
            ),
            ImportError,
        ):
            _import_modules(config)


def _why_unreadable(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"is not valid Python: {error}."
    if isinstance(error, FileNotFoundError):
        return f"has a _base_ that does not exist: {error}."
    if isinstance(error, RecursionError):
        return "names itself in _base_, or is nested too deeply."
    reason = f"{type(error).__name__}: {error}."
    if isinstance(error, UnboundLocalError) and isinstance(error.__context__, OSError):
        # mmengine copies a config into the temporary folder, which may be missing or full.
        reason = (
            f"{one_line(error.__context__)}. Free some space, or set TMPDIR to a folder that can "
            "be written."
        )
    elif isinstance(error, OSError):
        reason = explain_machine(error) or reason
    return f"cannot be read: {reason}"


def _check_kinds(config: Run, source: StrPath | Config) -> None:
    for expected, (kinds, keys) in KINDS.items():
        for key in keys:
            value: Any = config
            for part in key.split("."):
                value = value.get(part) if hasattr(value, "get") else None
            if value is not None and not (isinstance(value, kinds) and _holds_dicts(value)):
                raise HypvisionError(
                    f"The config '{source}' has {key} = {value!r}, but {expected} is expected for "
                    "this key. Correct the config."
                )


def _holds_dicts(value: Any) -> bool:
    """Return whether no entry of a list is None, a string or a number: lists in a config hold
    dicts, or hooks as objects. Other values count as fitting."""
    parts = value if isinstance(value, (list, tuple)) else ()
    return not any(part is None or isinstance(part, (str, int, float)) for part in parts)


def _check_suffix(path: Path) -> None:
    if path.suffix not in (".py", ".json"):
        raise HypvisionError(
            f"The config '{path}' ends in '{path.suffix}', but configs are Python (.py) or JSON "
            "(.json). Both can run any code, so take them only from people whom you trust."
        )


@cache
def _find_external(
    find: Callable[[str, str], tuple[str, str | None]], name: str
) -> tuple[str, str | None]:
    """Return the file of ``mmdet::NAME`` from a cache, since mmengine reads a hundred metafiles for
    it (0.7 s)."""
    return find(name, "")


@contextmanager
def _own_bases() -> Iterator[Plain]:
    """Context in which mmengine finds ``_base_`` names that begin with :data:`OWN` and accepts only
    Python and JSON bases. It yields a dict with each file that was read and its ``data_root``."""
    find = Config._get_cfg_path
    read = Config._file2dict
    found: Plain = {}

    def find_own(name: str, filename: str) -> tuple[str, str | None]:
        if name.startswith(OWN):
            return str(config_folder() / name.removeprefix(OWN)), None
        return _find_external(find, name) if "::" in name else find(name, filename)

    def read_own(filename: str, *args: Any, **options: Any) -> tuple[dict, str, dict]:
        _check_suffix(Path(filename))
        recipe = recipe_of(filename)
        content = read_recipe(recipe) if recipe else read(filename, *args, **options)
        found[str(filename)] = content[0].get("data_root")
        return content

    def read_recipe(recipe: Recipe) -> tuple[dict, str, dict]:
        """Return a config that is a row of a table as mmengine would read its file."""
        merged: dict = {}
        for piece in recipe.pieces.split():
            content = read_own(str(config_folder() / f"{piece}.py"))
            merged = Config._merge_a_into_b(content[0], merged)
        config = Config(merged)
        config.merge_from_dict(parse_options(recipe.options.split()))
        return config._cfg_dict, f"# {', '.join(recipe)}\n", {}

    with (
        patch.object(Config, "_get_cfg_path", staticmethod(find_own)),
        patch.object(Config, "_file2dict", staticmethod(read_own)),
    ):
        yield found


def _import_modules(config: Run) -> None:
    """Import the modules in ``custom_imports``."""
    imports = config.get("custom_imports")
    if imports:
        import_modules_from_strings(**imports)


def _check_keys(config: Run, options: Plain) -> None:
    """Raise an error for options without effect: mmengine would add a key that no code reads."""
    for option in options:
        key = option.partition(".")[0]
        if key in config or key in RUN_KEYS:
            _check_path(config, option)
            if key not in (*RUN_KEYS, "data_root", "test_pipeline"):
                _tell_variable(config, key)
            continue
        close = [path for path, _ in walk(config.to_dict()) if path.rpartition(".")[2] == key][:3]
        known = [] if close else [*config.keys(), *RUN_KEYS]
        hint = did_you_mean(key, known, cutoff=0.6, also=close)
        raise HypvisionError(
            f"The config has no '{key}', so the option '{option}' would change nothing.{hint} "
            "Options are dotted keys of the config, such as optim_wrapper.optimizer.lr=0.01; put "
            "new keys into your own config file."
        )


def _tell_variable(config: Run, key: str) -> None:
    """Warn of an option that sets a variable of the config file: its value has already been
    used."""
    value = config[key]
    same = [path for path, other in walk(config.to_dict()) if path != key and other == value]
    hint = f" Change these keys instead: {', '.join(same[:3])}." if same and value else ""
    _logger.warning(
        "'%s' is a variable of the config file: the option does not change the values that were "
        "made from it.%s",
        key,
        hint,
    )


def _check_path(config: Run, option: str) -> None:
    """Raise an error for an option whose key is missing but resembles another key in its dict,
    which is probably a misspelling. Names that differ only in digits are not suggested."""
    node = config.to_dict()
    parts = option.split(".")
    for number, part in enumerate(parts):
        if isinstance(node, (list, tuple)):
            node = node[int(part)] if part.isdecimal() and int(part) < len(node) else None
        elif not isinstance(node, dict):
            return
        elif part in node:
            node = node[part]
        else:
            place = ".".join(parts[:number])
            known = [key for key in node if re.sub(r"\d", "", key) != re.sub(r"\d", "", part)]
            hint = did_you_mean(part, known, cutoff=0.9, show=f"{place}.{{}}".format)
            if hint:
                raise HypvisionError(
                    f"{place} of the config has no '{part}', so the option '{option}' would change "
                    f"nothing.{hint} If it really is a new key, put it into your own config file."
                )
            return


def _norm_apart(config: Run) -> None:
    """Replace SyncBatchNorm, which PyTorch has for GPUs only, by batch norms with statistics of one
    process."""
    nodes = [node for _, node in walk(config.model) if isinstance(node, dict)]
    synchronised = [node for node in nodes if node.get("type") == "SyncBN"]
    if config.pop("sync_bn", None) or synchronised:
        _logger.warning(
            "PyTorch synchronises batch norms between GPUs only: on CPUs each process uses the "
            "statistics of its own images."
        )
    for node in synchronised:
        node["type"] = "BN"


def import_extensions(config: Config) -> None:
    """Import the modules that register extensions of hypvision's tasks and of the config's
    ``default_scope``."""
    for role in ("tasks", f"scope {config.get('default_scope')}"):
        if role in PLUGINS:
            resolve_name(PLUGINS[role])


def prepare(
    config: Run, work_dir: StrPath | None = None, amp: bool = False, launcher: str = "none"
) -> Run:
    """Adapt a config to this machine and add the standard hooks; ``config`` is changed and
    returned."""
    import_extensions(config)
    config.work_dir = str(work_dir or config.get("work_dir") or Path("work_dirs", config.stem))
    config.launcher = launcher
    config.setdefault("randomness", dict(seed=0))
    _use_amp(config, amp)
    if config.scope in PREPARATIONS:
        PREPARATIONS[config.scope](config)
    if config.get("visualizer") is not None:
        # With a fixed name, as in OpenMMLab's configs, a second run in this process would write
        # into the folder of the first run.
        config.visualizer.name = f"{config.stem}-{uuid.uuid4().hex[:8]}"
    _join_processes(config, launcher)
    _adapt_loaders(config)
    hooks = config.get("custom_hooks") or []
    present = {hook.get("type") for hook in hooks if isinstance(hook, dict)}
    asked = [hook for argument, hook in MODEL_HOOKS.items() if config.model.get(argument)]
    for name in (*RUN_HOOKS, *asked):
        if name not in present:
            config.add_hook(type=name)
    return config


def _join_processes(config: Run, launcher: str) -> None:
    """Choose the backend that processes communicate by, and join the processes that the launcher
    has started."""
    environment = dict(config.get("env_cfg") or {})
    distribution = {"backend": "nccl", **(environment.get("dist_cfg") or {})}
    on_cpu = not torch.cuda.is_available()
    if on_cpu and distribution["backend"] == "nccl":
        distribution["backend"] = "gloo"
    config.env_cfg = dict(environment, dist_cfg=distribution)
    if launcher == "pytorch":
        _check_started_by_torchrun()
    if launcher != "none" and on_cpu:
        _join_cpu_processes(config, launcher)
        _norm_apart(config)
    elif launcher != "none" and not is_distributed():
        # Processes are joined here, before any code asks for the rank (see run.lock_work_dir).
        init_dist(launcher, **distribution)


def _adapt_loaders(config: Run) -> None:
    """Adapt data loaders to the machine, and let the workers of the training get new seeds in each
    epoch."""
    on_gpu = torch.cuda.is_available()
    for loader in filter(None, (config.get(f"{phase}_dataloader") for phase in PHASES)):
        if loader.get("num_workers", 0) == 0:
            loader.persistent_workers = False
            loader.pop("prefetch_factor", None)
        if on_gpu:
            loader.setdefault("pin_memory", True)
        # Without a GPU PyTorch would warn of pin_memory.
        else:
            loader.pop("pin_memory", None)
    if config.get("train_dataloader") is None:
        return
    # The main process gives the workers new seeds in each epoch, by RepeatableSeedHook or
    # SeekingIterTrainLoop, so workers must start anew.
    config.train_dataloader.setdefault("worker_init_fn", dict(type="seed_worker"))
    config.train_dataloader.persistent_workers = False
    loop: Any = config.get("train_cfg") or {}
    if loop.get("type") == "IterBasedTrainLoop" or loop.get("by_epoch") is False:
        loop.pop("by_epoch", None)
        loop.type = "SeekingIterTrainLoop"
        checkpoint = config.get("default_hooks", {}).get("checkpoint") or {}
        loop.restart_interval = max(0, checkpoint.get("interval", 0))


def leave_out_pretrained(model: Any, whole: bool = False) -> None:
    """Change the ``model`` of a config so that building it fetches no pretrained weights, since a
    checkpoint will replace them.

    A class with ``checkpoint_is_partial = True`` still loads its pretrained weights, because its
    checkpoints lack the frozen ones; with ``whole`` it does not, either.
    """
    parts = [model]
    while parts:
        node = parts.pop()
        if isinstance(node, (list, tuple)):
            parts += node
        if not isinstance(node, dict):
            continue
        kind = MODELS.module_dict.get(str(node.get("type")))
        if whole or not getattr(kind, "checkpoint_is_partial", False):
            _without_weights(node)
            # Checkpoints do not contain the weights of a teacher, so these are still fetched.
            parts += (part for key, part in node.items() if key not in ("clip", "distillation"))


_UNFETCHED = {"checkpoint": None, "checkpoint_path": "", "pretrained": None}


def _without_weights(node: Plain) -> None:
    """Remove the keys that name weights from one part of a model, in place."""
    if isinstance(node.get("clip"), dict):
        node["clip"]["load_weights"] = False
    start = node.get("init_cfg")
    if isinstance(start, dict) and str(start.get("type")) == "Pretrained":
        node["init_cfg"] = None
    for key, nothing in _UNFETCHED.items():
        if node.get(key):
            node[key] = False if node[key] is True else nothing


def _use_amp(config: Run, amp: bool) -> None:
    """Set up mixed precision for --amp: float16 with loss scaling on GPUs, bfloat16 on CPUs, and
    float32 with a warning on CPUs that are slow in bfloat16. On CPUs a model class with
    ``amp_on_cpu = False`` runs in float32."""
    wrapper = config.get("optim_wrapper")
    if wrapper is None:
        return
    kind = wrapper.get("type", "OptimWrapper")
    ensure(
        not amp or kind in ("OptimWrapper", *_MIXED),
        f"--amp works with OptimWrapper, but the config has '{kind}'. Leave out --amp.",
    )
    if amp and kind == "OptimWrapper":
        wrapper.type = kind = "AmpOptimWrapper"
        wrapper.setdefault("loss_scale", "dynamic")
    if kind in _MIXED and not torch.cuda.is_available():
        _without_gpu(wrapper, kind, MODELS.module_dict.get(str(config.kind)))


_MIXED = ("AmpOptimWrapper", "BFloat16OptimWrapper")


def _without_gpu(wrapper: Plain, kind: str, model: Any) -> None:
    """Replace float16 in the ``optim_wrapper`` by bfloat16 or float32, for a machine without a
    GPU."""
    allowed = getattr(model, "amp_on_cpu", True)
    if kind == "BFloat16OptimWrapper" and allowed:
        return
    for key in ("loss_scale", "dtype", "use_fsdp"):
        wrapper.pop(key, None)
    wrapper["type"] = "OptimWrapper"
    if not allowed:
        _logger.warning(
            "Mixed precision of %s is for GPUs: on this CPU it runs in float32.", model.__name__
        )
    elif precision.has_fast_bfloat16():
        wrapper["type"] = "BFloat16OptimWrapper"
    else:
        _logger.warning(
            "This CPU takes %.0f times longer for bfloat16 than for float32: the training runs "
            "in float32.",
            precision.slowness_of_bfloat16(),
        )


def _join_cpu_processes(config: Run, launcher: str) -> None:
    """Set up the processes of a run without GPUs: mmengine would select a CUDA device for each."""
    ensure(
        launcher == "pytorch",
        f"--launcher {launcher} needs GPUs. Without them use tools/dist_train.sh.",
    )
    if not dist.is_initialized():
        dist.init_process_group(config.env_cfg.dist_cfg.backend)
    # mmengine's own wrapper works on CUDA devices only, so it is replaced on CPUs.
    if config.get("model_wrapper_cfg") is None:
        unused = config.get("find_unused_parameters", False)
        options = dict(device_ids=None, broadcast_buffers=False, find_unused_parameters=unused)
        config.model_wrapper_cfg = dict(type="MMDistributedDataParallel", **options)


def _check_started_by_torchrun() -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise HypvisionError(
            "--launcher pytorch is for processes that torchrun started, which sets "
            f"{', '.join(missing)}. Use tools/dist_train.sh CONFIG PROCESSES, or torchrun "
            "--nproc_per_node=PROCESSES tools/train.py CONFIG --launcher pytorch, or leave out "
            "--launcher."
        )


def leave_processes() -> None:
    """Wait for the other processes at the end of a run, since gloo aborts a process that still
    communicates with one that has exited."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def parse_options(items: list[str]) -> Plain:
    """Return words ``KEY=VALUE`` as a dict of numbers, booleans, lists or strings, parsed as by
    mmengine.

    mmengine drops all spaces; here spaces within a string stay, since paths and prompts contain
    them.
    """
    wrong = [item for item in items if "=" not in item]
    if wrong:
        raise HypvisionError(
            f"--cfg-options takes KEY=VALUE, got '{wrong[0]}'. Add the key or the value."
        )
    called = [item for item in items if _DICT.search(item)]
    if called:
        raise HypvisionError(
            f"--cfg-options '{called[0]}' has a dict, but a value is a number, True, False, None, "
            "a text, or a list of these. Change one entry at a time (KEY.NAME=VALUE, of a list "
            "KEY.0.NAME=VALUE), or write a config that names this one in _base_."
        )
    nested = HypvisionError(
        "--cfg-options has brackets or keys that are nested too deeply. Correct them."
    )
    options: Plain = {}
    try:
        for key, _, text in (item.partition("=") for item in items):
            word = re.sub(r"\s*([][(),])\s*", r"\1", text.strip()).replace(" ", _SPACE)
            options[key.strip()] = _with_spaces(DictAction._parse_iterable(word))
    except RecursionError as error:
        raise nested from error
    if any(key.count(".") > 50 for key in options):
        raise nested
    return options


_DICT = re.compile(r"[=\[(,]\s*(dict\s*\(|\{[^{}]*:)")
_SPACE = "\ue000"  # a private character that stands for spaces within strings


def _with_spaces(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(_SPACE, " ")
    if isinstance(value, dict):
        return {key: _with_spaces(item) for key, item in value.items()}
    return (
        type(value)(_with_spaces(item) for item in value)
        if isinstance(value, (list, tuple))
        else value
    )

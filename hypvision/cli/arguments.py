"""Parts shared by the parsers of all commands: errors that suggest a similar name, numbers with
limits, checks of outputs."""

from __future__ import annotations

import math
import os
import re
import sys
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace, _ActionsContainer
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from hypvision.io import HypvisionError, Plain, did_you_mean, ensure
from hypvision.io.files import check_output, check_output_folder

if TYPE_CHECKING:
    from hypvision.clip.models import CLIPBundle


class _Rule(NamedTuple):
    """The conditions of an argument: it has an effect only with one of ``needs``, and none with any
    of ``without``; both name options, or words of an argument with choices."""

    action: Action
    needs: Sequence[str]
    without: Sequence[str]


class Parser(ArgumentParser):
    """A parser that suggests similar names in its errors, and knows which arguments are outputs and
    which have an effect only together with others."""

    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, **options)
        self._outputs: dict[str, str] = {}
        self._rules: list[_Rule] = []
        self._words: Sequence[str] = ()

    def add(
        self,
        name: str,
        help: str,
        type: Callable[[str], Any] | None = None,
        default: Any = None,
        *,
        group: _ActionsContainer | None = None,
        output: str | None = None,
        needs: Sequence[str] = (),
        without: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """Add an argument.

        Args:
            name: a flag or the name of a positional argument, with a placeholder for its value:
                ``"--steps N"``; ``"--keys NAME..."`` takes one or more values, ``"--amp"`` none.
            help: what the argument is; a default that is a number or a word is added, unless the
                help mentions a default, and so are the conditions ``needs`` and ``without``.
            type: converts a word of the command line.
            default: the value if the argument is not given; for ``...`` an empty list.
            group: a group of the parser.
            output: ``"file"`` or ``"folder"`` if the command writes to this path. By convention
                ``--out`` is a folder and ``--save`` a file, in every command.
            needs: the argument has an effect only with one of these options or chosen words.
            without: the argument has no effect with any of these.
            options: further ones of :meth:`add_argument`.
        """
        flag, _, shown = name.partition(" ")
        metavar = shown.removesuffix("...")
        if metavar != shown:
            options["nargs"] = "+"
            default = [] if default is None else default
        elif not (metavar or type or "choices" in options):
            options["action"] = "store_true"
        if output:
            type = _path
            self._outputs[flag.lstrip("-").replace("-", "_")] = output
        given = dict(
            metavar=metavar,
            type=type,
            default=default,
            help=_with_default(_with_rules(help, needs, without), default),
        )
        options |= {key: value for key, value in given.items() if value not in (None, "")}
        action = (group or self).add_argument(flag, **options)
        if {*needs, *without}:
            self._rules.append(_Rule(action, needs, without))

    def inputs(self, args: Namespace) -> Iterator[str]:
        """Yield the arguments that may be files which the command reads: all strings that are not
        outputs, and what follows ``KEY=`` and ``NAME:`` in them."""
        for name, value in vars(args).items():
            if name not in self._outputs:
                for text in value if isinstance(value, list) else [value]:
                    if isinstance(text, str):
                        yield from {text, text.partition("=")[2], text.partition(":")[2]} - {""}

    def check_outputs(self, args: Namespace) -> None:
        """Refuse outputs that cannot be written, before the work begins
        (:mod:`hypvision.io.files`)."""
        for name, what in self._outputs.items():
            path = getattr(args, name)
            if path is None:
                continue
            if not path:
                raise HypvisionError(
                    f"--{name.replace('_', '-')} is empty. Give the name of a file or folder."
                )
            check_output_folder(path) if what == "folder" else check_output(path)

    def parse_known_args(self, args=None, namespace=None):
        self._words = list(sys.argv[1:] if args is None else args)
        found, others = super().parse_known_args(args, namespace)
        self._check_effects(found)
        return found, others

    def _is_given(self, action: Action, args: Namespace) -> bool:
        if not action.option_strings:
            return bool(getattr(args, action.dest, action.default) != action.default)
        return any(word.partition("=")[0] in action.option_strings for word in self._words)

    def _check_effects(self, args: Namespace) -> None:
        """Refuse a given argument that would have no effect."""
        given = [action for action in self._actions if self._is_given(action, args)]
        named = {_name(action) for action in given}
        named |= {str(getattr(args, action.dest, "")) for action in given if action.choices}
        for action, needs, without in self._rules:
            if action not in given:
                continue
            if needs and not named & {*needs}:
                self.error(f"{_name(action)} has an effect only with {' or '.join(needs)}")
            for other in named & {*without}:
                self.error(f"{_name(action)} has no effect with {other}: leave one of them out")

    def _check_value(self, action: Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            hint = did_you_mean(str(value), known, 1)
            name = action.metavar or "/".join(action.option_strings) or action.dest
            what = "command" if name == "COMMAND" else name
            self.error(f"there is no {what} '{value}'.{hint} There are: {', '.join(known)}")

    def error(self, message: str) -> NoReturn:
        known = [option for option in self._option_string_actions if option.startswith("--")]
        hints = ""
        for word in self._words:
            option = word.partition("=")[0]
            if option.startswith("--") and len(option) > 2 and option not in known:
                hints += (
                    f" There is no option '{option}'.{did_you_mean(option, known, 1, cutoff=0.6)}"
                )
        message = message.rstrip(".")
        raise HypvisionError(f"{self.prog}: {message}.{hints} See: {self.prog} --help")


def _name(action: Action) -> str:
    """Return the name of an argument that a user types or sees in help."""
    return action.option_strings[0] if action.option_strings else str(action.metavar or action.dest)


def _with_rules(help: str, needs: Sequence[str], without: Sequence[str]) -> str:
    """Return a help text, with what its argument needs and what leaves it without effect."""
    begin = f"with {' or '.join(needs)}: " if needs else ""
    end = f"; not with {' or '.join(without)}" if without else ""
    return f"{begin}{help}{end}"


def _with_default(help: str, default: Any) -> str:
    """Return a help text, with the default if this is a number or a word and the help does not
    mention it yet."""
    if not isinstance(default, str | int | float) or "default" in help:
        return help
    shown = f"{default:g}" if isinstance(default, float) else str(default)
    return f"{help} (default: {shown})"


def _path(text: str) -> str:
    try:
        return str(Path(text).expanduser()) if text else text
    except RuntimeError as error:
        raise ArgumentTypeError(f"'{text}': {error}") from error


def _device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", text, re.ASCII):
        raise ArgumentTypeError(f"takes cpu, cuda or cuda:N, got '{text}'")
    return text


def whole(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """Return a type of arguments: whole numbers from ``least`` to ``most``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ArgumentTypeError(f"takes a whole number, got '{text}'") from None
        if value < least:
            raise ArgumentTypeError(f"must be at least {least}, got {text}")
        if value > most:
            raise ArgumentTypeError(f"must be at most {most}, got {text}")
        return value

    return parse


def number(text: str) -> float:
    """Convert a word of the command line to a finite number, as a type of arguments."""
    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"takes a number, got '{text}'") from None
    if not math.isfinite(value):
        raise ArgumentTypeError(f"takes a finite number, got '{text}'")
    return value


def refuse(args: Namespace, names: Iterable[str], because: str) -> None:
    """Raise an error for the first of these options that was given, because the command would not
    read it; the error begins with its name. Their defaults are None, False or an empty list."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value is not False and value != []:
            raise HypvisionError(f"--{name.replace('_', '-')} {because}")


def add_model_args(parser: Parser, **options: Any) -> None:
    """Add ``--model-args``, the arguments of a timm model, to a parser."""
    parser.add(
        "--model-args KEY=VALUE...",
        "arguments of a timm model, as in model.backbone of a config, e.g. patch_size=2 "
        "img_size=32",
        **options,
    )


def add_cfg_options(parser: Parser, what: str, **options: Any) -> None:
    """Add ``--cfg-options`` with the help ``what`` to a parser;
    :func:`hypvision.engine.config.parse_options` reads its values."""
    parser.add("--cfg-options KEY=VALUE...", what, **options)


CLIP_HELP = (
    "NAME: a model of open_clip (ViT-B-16), a hyperbolic one (meru-vit-s-16, hycoclip-vit-b-16), "
    "weights of `hypvision zoo list --task zero-shot` (emoji-s16, emoji-t8, "
    "hycoclip-emoji-s16 ship), hf-hub:USER/REPO, local-dir:PATH, or a file; WEIGHTS: a tag "
    "(openai, redcaps, grit), a file, zoo:NAME, or the word none for random weights; may be left "
    "out if NAME has only one; OPTION: force_image_size, force_context_length, force_quick_gelu, "
    "or lora, a folder of peft"
)


def add_clip_argument(
    parser: Parser, what: str, default: str | None = None, **options: Any
) -> None:
    """Add ``--clip NAME[:WEIGHTS][,OPTION=VALUE]`` to a parser; its help begins with ``what``. See
    :func:`hypvision.clip.names.clip_options`."""
    shown = f" (default: {default})" if default else ""
    name = "--clip NAME[:WEIGHTS][,OPTION=VALUE]"
    parser.add(name, f"{what}{shown}. {CLIP_HELP}", default=default, **options)


def clip_of(name: str, device: str = "cpu") -> CLIPBundle:
    """Return the model that the value of ``--clip`` names, on a device."""
    from hypvision.clip.models import create_clip
    from hypvision.clip.names import clip_options

    clip = create_clip(**clip_options(name))
    clip.model.to(device)
    return clip


def add_sources_arguments(
    parser: Parser,
    metavar: str = "SOURCE",
    group: _ActionsContainer | None = None,
    more: str = "",
) -> None:
    """Add the arguments that name images and videos, shared by several commands; in a ``group``
    they are optional; ``more`` is added to their help."""
    text = (
        "image, folder of images (with its sub-folders), glob pattern, list of paths (.txt), or "
        f"video{more}"
    )
    how: Plain = dict(nargs="+") if group is None else dict(nargs="*", default=[])
    parser.add(f"images {metavar}", text, group=group, **how)
    parser.add("--every N", "take every N-th frame of a video", whole(1), 1)


def add_texts_argument(parser: Parser, what: str, **options: Any) -> None:
    """Add ``--texts``: texts, or a file of texts; see :func:`texts_of`."""
    parser.add(
        "--texts TEXT|FILE...",
        f"{what}: texts in quotes, or a .txt file with one text a line",
        needs=["--clip"],
        **options,
    )


def texts_of(args: Namespace, once: bool = True) -> list[str]:
    """Return the texts that ``--texts`` names, each once; with ``once=False`` every line of the
    files, also empty and repeated ones."""
    from hypvision.io.files import names_file, read_lines

    every: list[str] = []
    for given in args.texts:
        if not names_file(given, [".txt"]):
            every.append(given.strip())
        elif given.lower().endswith(".txt") or not os.path.isfile(given):
            every += read_lines(given, "the list of texts", blank=not once)
        else:
            raise HypvisionError(
                f"--texts: '{given}' is a file, but a file of texts must end in .txt. Rename it."
            )
    found = list(dict.fromkeys(text for text in every if text)) if once else every
    ensure(
        not args.texts or any(found),
        "--texts has no text. Give texts in quotes, or a .txt file with one text a line.",
    )
    return found


def add_device_argument(parser: Parser, **options: Any) -> None:
    parser.add(
        "--device DEVICE",
        "cpu, cuda or cuda:N; default: a GPU, if there is one",
        _device,
        **options,
    )


def device_of(args: Namespace) -> str:
    """Return the device that ``--device`` names; without the option a GPU, if there is one."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if args.device in (None, "cpu"):
        return args.device or ("cuda" if count else "cpu")
    ensure(
        count,
        f"--device {args.device}: PyTorch finds no GPU here. Leave the option out to use the CPU.",
    )
    if int(args.device.partition(":")[2] or 0) >= count:
        raise HypvisionError(
            f"--device {args.device}: this machine has {count} GPUs, counted from 0. Choose one of "
            "them."
        )
    return args.device


CLUSTERS = ("local", "slurm")


def add_submit_arguments(parser: Parser, cells: bool = True) -> None:
    """Add ``--jobs``, ``--submit`` and ``--submit-options`` to a parser; for a command of a single
    call (``cells=False``) without ``--jobs``."""
    text = (
        "number of cells at a time, each in its own process (default: 1, in this process; with "
        "--submit slurm: all)"
    )
    if cells:
        parser.add("--jobs N", text, whole(1, 4096))
    parser.add(
        "--submit",
        f"hand {'the cells' if cells else 'the training'} to submitit: on this machine, or to "
        "SLURM",
        choices=CLUSTERS,
    )
    parser.add(
        "--submit-options KEY=VALUE...",
        "parameters of submitit, such as slurm_partition=gpu gpus_per_node=1 timeout_min=240",
        _option,
        needs=["--submit"],
    )


def _option(text: str) -> tuple[str, int | str]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier() or not value:
        raise ArgumentTypeError(f"takes KEY=VALUE, such as timeout_min=240; got '{text}'")
    return key, int(value) if value.isascii() and value.isdigit() and len(value) < 10 else value

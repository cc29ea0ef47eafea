"""``hypvision lm save``, ``lm generate`` and ``lm eval``; language models are trained by ``hypvision train``."""

from __future__ import annotations

import json
from argparse import Namespace

from hypvision.cli.arguments import Parser, add_cfg_options, add_device_argument, device_of, number, whole
from hypvision.errors import HypvisionError


def add_lm_save_arguments(parser: Parser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="the config that trained the model")
    parser.add_argument("weights", metavar="WEIGHTS", help="checkpoint of the training")
    parser.add_output("folder", what="folder", metavar="FOLDER", help="folder for transformers, with the tokenizer")
    add_cfg_options(parser, "changes of the config that it was trained with")


def run_lm_save(args: Namespace) -> None:
    from hypvision.engine.checks import readable_errors
    from hypvision.engine.config import parse_options
    from hypvision.tasks.language_models import save_folder

    with readable_errors():
        folder = save_folder(args.config, args.weights, args.folder, parse_options(args.cfg_options))
    print(f"Wrote {folder}\nUse: hypvision lm generate {folder} 'The sea'")


def _add_model(parser: Parser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="a language model, as hypvision lm save writes it")
    add_device_argument(parser)


def add_lm_generate_arguments(parser: Parser) -> None:
    _add_model(parser)
    parser.add_argument("prompts", nargs="+", metavar="PROMPT", help="texts to continue")
    parser.add_argument("--tokens", type=whole(1), default=200, metavar="N", help="new tokens (default: 200)")
    parser.add_argument("--temperature", type=number, default=1.0, metavar="X", help="0: the likeliest (default: 1)")
    parser.add_argument("--top-p", type=number, default=1.0, metavar="X", help="sample from this share (default: 1)")
    parser.add_argument("--beams", type=whole(1, 64), default=1, metavar="N", help="beam search in place of sampling")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="default: 0")


def run_lm_generate(args: Namespace) -> None:
    """``lm generate`` from parsed arguments; prints each prompt with its continuation."""
    if args.temperature < 0 or not 0 < args.top_p <= 1:
        raise HypvisionError("--temperature must not be negative, and --top-p be above 0 and at most 1.")
    from hypvision.tasks.language_models import generate

    found = generate(
        args.folder, args.prompts, args.tokens, args.temperature, args.top_p, args.beams, args.seed, device_of(args)
    )
    print("\n\n".join(prompt + text for prompt, text in zip(args.prompts, found)))


def add_lm_eval_arguments(parser: Parser) -> None:
    _add_model(parser)
    parser.add_argument("--tasks", nargs="+", default=[], metavar="TASK", help="of the harness (default: the paper's)")
    parser.add_argument("--shots", type=whole(0), metavar="N", help="examples in a prompt (default: the paper's)")
    parser.add_argument("--limit", type=whole(1), metavar="N", help="items of each task at most")
    parser.add_argument("--batch-size", type=whole(1), default=8, metavar="N", help="default: 8")
    text = "official: as the published adapter"
    parser.add_argument("--prompt-style", choices=["harness", "official"], default="harness", help=text)
    parser.add_argument("--include", metavar="DIR", help="folder with further tasks of the harness")


def run_lm_eval(args: Namespace) -> None:
    """``lm eval`` from parsed arguments; prints the results as one line of JSON."""
    from hypvision.tasks.language_models import TASKS, evaluate

    results = evaluate(
        args.folder, args.tasks or tuple(TASKS), args.shots, args.limit, args.batch_size, args.prompt_style,
        args.include, device_of(args),
    )  # fmt: skip
    kept = {
        task: {name: round(value, 4) for name, value in values.items() if isinstance(value, float)}
        for task, values in results.items()
    }
    print(json.dumps(kept))

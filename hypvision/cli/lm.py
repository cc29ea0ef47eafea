"""``hypvision lm save``, ``lm generate`` and ``lm eval``: commands for language models that
``hypvision train`` has trained."""

from __future__ import annotations

import json
from argparse import Namespace

from hypvision.io import HypvisionError

from .arguments import Parser, add_cfg_options, add_device_argument, device_of, number, whole


def add_lm_save_arguments(parser: Parser) -> None:
    parser.add("config CONFIG", "the config that trained the model")
    parser.add("weights WEIGHTS", "checkpoint of the training")
    parser.add("folder FOLDER", "folder for transformers, with the tokenizer", output="folder")
    add_cfg_options(parser, "changes of the config, as they were in the training")


def run_lm_save(args: Namespace) -> None:
    from hypvision.engine.checks import readable_errors
    from hypvision.engine.config import parse_options
    from hypvision.tasks.language_models import save_folder

    with readable_errors():
        folder = save_folder(
            args.config, args.weights, args.folder, parse_options(args.cfg_options)
        )
    print(f"Wrote {folder}\nUse: hypvision lm generate {folder} 'The sea'")


def _add_model(parser: Parser) -> None:
    parser.add("folder FOLDER", "folder of a language model, as hypvision lm save writes it")
    add_device_argument(parser)


def add_lm_generate_arguments(parser: Parser) -> None:
    _add_model(parser)
    parser.add("prompts PROMPT...", "texts to continue")
    parser.add("--tokens N", "number of new tokens", whole(1), 200)
    parser.add("--temperature X", "sampling temperature; 0: the likeliest token", number, 1.0)
    parser.add(
        "--top-p X", "sample from the likeliest tokens with this share of probability", number, 1.0
    )
    parser.add(
        "--beams N", "number of beams; above 1 a beam search replaces sampling", whole(1, 64), 1
    )
    parser.add("--seed N", "seed of the sampling", whole(0), 0)


def run_lm_generate(args: Namespace) -> None:
    """Run ``lm generate``: print each prompt with its continuation."""
    if args.temperature < 0 or not 0 < args.top_p <= 1:
        raise HypvisionError(
            "--temperature must be 0 or more, and --top-p must be above 0 and at most 1."
        )
    from hypvision.tasks.language_models import generate

    found = generate(
        args.folder,
        args.prompts,
        args.tokens,
        args.temperature,
        args.top_p,
        args.beams,
        args.seed,
        device_of(args),
    )
    print("\n\n".join(prompt + text for prompt, text in zip(args.prompts, found)))


def add_lm_eval_arguments(parser: Parser) -> None:
    _add_model(parser)
    parser.add("--tasks TASK...", "tasks of the harness (default: the paper's)")
    parser.add("--shots N", "number of examples in a prompt (default: the paper's)", whole(0))
    parser.add("--limit N", "largest number of items of each task", whole(1))
    parser.add("--batch-size N", "number of requests at a time", whole(1), 8)
    parser.add(
        "--prompt-style",
        "form of the prompts; official: as in the published adapter",
        default="harness",
        choices=["harness", "official"],
    )
    parser.add("--include DIR", "folder with further tasks of the harness")


def run_lm_eval(args: Namespace) -> None:
    """Run ``lm eval``: print the results as one line of JSON."""
    from hypvision.tasks.language_models import TASKS, evaluate

    results = evaluate(
        args.folder, args.tasks or tuple(TASKS), args.shots, args.limit, args.batch_size,
        args.prompt_style, args.include, device_of(args),
    )  # fmt: skip
    kept = {
        task: {name: round(value, 4) for name, value in values.items() if isinstance(value, float)}
        for task, values in results.items()
    }
    print(json.dumps(kept))

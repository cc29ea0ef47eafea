"""Golden outputs: summaries of what models, layers, losses, adapters and converters compute,
frozen.

    python tests/goldens/cases.py # old against new, case by case python tests/goldens/cases.py
    --write # freeze what the code computes now; or only --only TEXT

A case is a function without arguments that returns tensors and texts in nested dicts and lists.
What it takes from hypvision comes through ``internals.py``. Weights and inputs are those of
``summaries.py``; no case depends on the state of random generators, on names of parameters or on
the order in which modules are made.
"""

import argparse
import os
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in the tests

import golden_clip
import golden_images
import golden_layers
import golden_weights
import numpy
import timm
import torch
from summaries import difference, flatten, read, summary, write

TOLERANCE, GRADIENT_TOLERANCE = 1e-4, 1e-3
# More where round-off grows on its way: sharp assignments, the choice of classes, gradients of deep
# "+" networks. Set by what differs between CPU capabilities (ATEN_CPU_CAPABILITY=default against
# AVX-512): up to 5e-3 and 4e-2.
SENSITIVE = {"hcformer nano": 10, "catseg head many classes": 10}
RESNET_GRADIENT_TOLERANCE = 0.1


class Case(NamedTuple):
    make: Callable[[], dict[str, Any]]
    slow: bool = False


MODULES = (golden_layers, golden_images, golden_clip, golden_weights)
CASES = {
    name: Case(make, slow=name not in module.FAST)
    for module in MODULES
    for name, make in module.CASES.items()
}


def tolerance(name: str) -> float:
    """The largest relative difference allowed for an output: gradients lose more digits than
    outputs."""
    if name.startswith("resnet ") and "grad." in name:
        return RESNET_GRADIENT_TOLERANCE
    factor = next((factor for prefix, factor in SENSITIVE.items() if name.startswith(prefix)), 1)
    return factor * (GRADIENT_TOLERANCE if "grad." in name or "optimiser" in name else TOLERANCE)


def compute(case: str) -> dict[str, Any]:
    """Summaries of what a case gives today, by name."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = flatten(CASES[case].make())
    found = {}
    for name, value in outputs.items():
        try:
            found[name] = summary(value)
        except ValueError as error:
            raise ValueError(f"{case}, {name}: {error}") from error
    return found


def compare(case: str, old: dict[str, Any], new: dict[str, Any]) -> dict[str, float]:
    """Relative differences by name; infinite where one of the two has no such output."""
    names = [*old, *(name for name in new if name not in old)]
    return {n: difference(old[n], new[n]) if n in old and n in new else float("inf") for n in names}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help="freeze what the code computes now")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only cases with this in their name"
    )
    parser.add_argument("--fast", action="store_true", help="without the slow cases")
    options = parser.parse_args(arguments)
    chosen = [
        name for name in CASES if options.only in name and not (options.fast and CASES[name].slow)
    ]
    goldens, about = read() if not options.write or len(chosen) < len(CASES) else ({}, {})
    if options.write:
        about = {"torch": torch.__version__, "timm": timm.__version__, "numpy": numpy.__version__}
    else:
        print(f"Frozen with {', '.join(f'{key} {value}' for key, value in about.items())}.")
        print(
            f"| {'case':42} | outputs | largest relative difference | where | "
            "|\n|---|---|---|---|---|"
        )
    failed = 0
    for name in chosen:
        start = time.perf_counter()
        try:
            found = compute(name)
        except Exception as error:  # one broken case must not hide the others
            if options.write:
                raise
            print(
                f"| {name:42} | - | - | {type(error).__name__}: "
                f"{' '.join(str(error).split())[:120]} | FAILED |"
            )
            failed += 1
            continue
        seconds = time.perf_counter() - start
        if options.write:
            goldens[name] = found
            print(
                f"{name:42} {len(found):4} outputs {seconds:6.2f} "
                f"s{'  slow' if CASES[name].slow else ''}",
                flush=True,
            )
            continue
        apart = compare(name, goldens.get(name, {}), found)
        worst = max(apart, key=lambda key: apart[key] / tolerance(f"{name} {key}"))
        bad = sum(value > tolerance(f"{name} {key}") for key, value in apart.items())
        failed += bad > 0
        verdict = f"{bad} DIFFER" if bad else "equal"
        print(
            f"| {name:42} | {len(apart)} | {apart[worst]:.1e} | {worst} | {verdict} |", flush=True
        )
    if options.write:
        write({name: goldens[name] for name in CASES if name in goldens}, about)
    else:
        print(f"{len(chosen) - failed} of {len(chosen)} cases are equal.")
    return failed > 0


if __name__ == "__main__":
    raise SystemExit(main())

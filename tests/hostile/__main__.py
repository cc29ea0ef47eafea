"""``python -m tests.hostile``: attack hypvision in every way that this folder knows, and print the
table.

The exit status is 1 if code was run or another promise was broken.
"""

import argparse
import importlib
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
sys.path[:0] = [str(ROOT), str(TESTS), str(ROOT / "tools")]  # of `helpers` and `bench`

from bench.common import write_section  # noqa: E402

from tests.hostile import table  # noqa: E402

PRELOADED = ("hypvision", "huggingface_hub.file_download", "transformers.dynamic_module_utils",
"open_clip", "mmengine",
             "hypvision.helm.huggingface")  # fmt: skip


def main(words=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument(
        "--only",
        metavar="GROUP",
        nargs="+",
        help="these groups, or cases whose name contains the word",
    )
    parser.add_argument("--list", action="store_true", help="name the cases, and run none")
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="cases at a time (default: one a core)",
    )
    parser.add_argument(
        "--details", metavar="FILE", type=Path, help="add what every case did, a line each"
    )
    parser.add_argument(
        "--write", metavar="FILE", type=Path, help="put the table between the marks of this file"
    )
    options = parser.parse_args(words)
    found = table.modules()
    cases = table.all_cases(found)
    if options.only:
        asked = options.only
        cases = [
            case
            for case in cases
            if case.group in asked or any(word in case.name for word in asked)
        ]
    if options.list or not cases:
        print("\n".join(f"{case.group}: {case.name}" for case in cases) or "No such case.")
        return 0 if cases else 2
    for name in PRELOADED:  # once, so that no case waits for it
        if find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    begun = time.monotonic()
    outcomes = table.run_all(cases, options.jobs, log=options.details)
    text = table.render(outcomes, table.tried(found))
    minutes = (time.monotonic() - begun) / 60
    broken = [outcome for outcome in outcomes if outcome.verdict == "broken"]
    print(f"\n{text}\n\n{len(outcomes)} cases in {minutes:.1f} minutes.")
    for outcome in broken:
        print(f"BROKEN {outcome.case.group}: {outcome.case.name}: {outcome.said.splitlines()[0]}")
    if options.write:
        write_section(options.write, table.MARKS, text)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

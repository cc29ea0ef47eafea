#!/usr/bin/env python
"""Measure speed, memory and round-off: ``python tools/benchmark.py hcformer --write docs/benchmarks.md``.

Several in one call, each with its own options: ``python tools/benchmark.py geometry --repeats 5 numerics``.
"""

import importlib
import sys
from argparse import ArgumentParser

from hypvision.errors import guard

# Sub-command -> module in tools/bench with add_arguments(parser) and run(args), and what it measures.
BENCHMARKS = {
    "hcformer": ("hcformer", "HCFormer against its reference implementation and timm's models"),
    "lorentz-cnn": ("lorentz_cnn", "Lorentz ResNets against Euclidean counterparts and the published form"),
    "himapper": ("himapper", "Hi-Mapper on the backbones of the paper, and against a loop over its levels"),
    "geometry": ("geometry", "Geometry, layers and optimisers against geoopt, HypLL and Euclidean counterparts"),
    "numerics": ("numerics", "Round-off of the geometry against mpmath, beside geoopt, HypLL and MERU's forms"),
    "hyperclip": ("hyperclip", "HyperCLIP's adapter: training step, inference, and prompts that are cut"),
    "open-vocabulary": ("open_vocabulary", "HyperCLIP's segmenter, detector and panoptic model: whole training steps"),
    "radial": ("radial", "Radial embeddings: metrics of chains, a tuning step, embedding captions"),
    "fewshot": ("fewshot", "Few-shot methods of CLIP: steps, evaluation and heads against the official formulation"),
    "helm": ("helm", "HELM language models against Euclidean counterparts and the published form"),
    "hier": ("hier", "HIER's and LHIER's loss against the published form"),
    "scaling": ("scaling", "A step of the toy model of superposition against the published one"),
    "backward": ("backward", "Backward functions written by hand against plain operations, in real steps"),
}

if __name__ == "__main__":
    parser = ArgumentParser(description="Measure speed, memory and round-off.")
    commands = parser.add_subparsers(dest="benchmark", required=True)
    modules = {}
    for name, (module, text) in BENCHMARKS.items():
        modules[name] = importlib.import_module(f"bench.{module}")
        modules[name].add_arguments(commands.add_parser(name, help=text, description=f"{text}."))
    calls: list[list[str]] = []
    for word in sys.argv[1:]:
        if word in BENCHMARKS or not calls:
            calls.append([])
        calls[-1].append(word)
    asked = [parser.parse_args(call) for call in calls or [[]]]
    sys.exit(max(guard(modules[args.benchmark].run, args) or 0 for args in asked))

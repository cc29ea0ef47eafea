#!/usr/bin/env python
"""Put a trained checkpoint into the model zoo; run it from the root of the repository.

    python tools/publish_weights.py CONFIG CHECKPOINT --name hcformer_nano.cifar10 --about about.yml

Strips the optimiser, stores the weights as safetensors, measures checkpoint and file in fresh processes, and adds the
record to model_zoo/index.yml (and renders model_zoo/README.md) if the metric is repeated. docs/model-zoo.md tells more.
"""

import argparse
import sys

from hypvision.checkpoints.storage import STORAGES
from hypvision.cli.publish import publish, read_about
from hypvision.errors import guard


def run(args: argparse.Namespace) -> None:
    about = read_about(args.about) if args.about else {}
    record = publish(
        args.config,
        args.checkpoint,
        args.name,
        about,
        args.zoo,
        args.storage,
        args.tolerance,
        args.metrics,
        args.cfg_options,
    )
    print(f"Published {record.name}: {args.zoo}/{record.file.path}, {record.file.bytes} bytes.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", metavar="CONFIG", help="the config that trained it")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="checkpoint of the training; it is only read")
    parser.add_argument("--name", required=True, metavar="MODEL.TAG", help="name in the zoo")
    parser.add_argument("--about", metavar="FILE", help="YAML with the texts of the record (default: the old record's)")
    parser.add_argument("--storage", choices=STORAGES, default="int8", help="how weights are stored (default: int8)")
    parser.add_argument(
        "--tolerance", type=float, default=0.2, help="allowed change of a metric, in its own unit (default: 0.2)"
    )
    parser.add_argument("--metrics", nargs="+", default=[], metavar="NAME", help="metrics to record, main one first")
    parser.add_argument("--zoo", default="model_zoo", metavar="DIR", help="folder of the zoo (default: model_zoo)")
    parser.add_argument(
        "--cfg-options", nargs="+", default=[], metavar="KEY=VALUE", help="changes of the config for this machine"
    )
    return guard(run, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())

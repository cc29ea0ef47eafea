"""``hypvision zoo publish``: put a trained checkpoint into a model zoo; run it from the root of the repository.

Strips the optimiser, stores the weights as safetensors, measures checkpoint and file in fresh processes, and adds the
record to ``model_zoo/index.yml`` (and renders ``model_zoo/README.md``) if the metric is repeated. ``docs/model-zoo.md``
tells more.
"""

from __future__ import annotations

from argparse import Namespace

from hypvision.cli.arguments import Parser, add_cfg_options, number

# Copied from hypvision.checkpoints.storage, because importing it imports PyTorch.
STORAGES = ("float32", "float16", "bfloat16", "int8")


def add_zoo_publish_arguments(parser: Parser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="the config that trained it")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="checkpoint of the training; it is only read")
    parser.add_argument("--name", required=True, metavar="MODEL.TAG", help="name in the zoo")
    parser.add_argument("--about", metavar="FILE", help="YAML with the texts of the record (default: the old record's)")
    parser.add_argument("--storage", choices=STORAGES, default="int8", help="how weights are stored (default: int8)")
    text = "allowed change of a metric, in its own unit (default: 0.2)"
    parser.add_argument("--tolerance", type=number, default=0.2, help=text)
    parser.add_argument("--metrics", nargs="+", default=[], metavar="NAME", help="metrics to record, main one first")
    text = "folder of the zoo (default: model_zoo)"
    parser.add_output("--out", what="folder", default="model_zoo", metavar="DIR", help=text)
    add_cfg_options(parser, "changes of the config for this machine")


def run_zoo_publish(args: Namespace) -> None:
    from hypvision.tasks.publishing import publish, read_about

    about = read_about(args.about) if args.about else {}
    options = (args.storage, args.tolerance, args.metrics, args.cfg_options)
    record = publish(args.config, args.checkpoint, args.name, about, args.out, *options)
    print(f"Published {record.name}: {args.out}/{record.file.path}, {record.file.bytes} bytes.")

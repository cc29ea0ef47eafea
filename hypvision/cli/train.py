"""``hypvision train`` and ``hypvision test``."""

from __future__ import annotations

import json
from argparse import Namespace

from hypvision.cli.arguments import Parser, add_cfg_options


def _add_common_arguments(parser: Parser) -> None:
    text = "folder of checkpoints and logs (default: work_dirs/CONFIG)"
    parser.add_output("--work-dir", what="folder", metavar="DIR", help=text)
    text = "changes of the config, e.g. train_dataloader.batch_size=64; data_root=DIR moves all data sets"
    add_cfg_options(parser, text)
    text = "the whole log on the console too, not in its file alone"
    parser.add_argument("--verbose", action="store_true", help=text)
    text = "what started the processes"
    parser.add_argument("--launcher", choices=["none", "pytorch", "slurm", "mpi"], default="none", help=text)
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0, help="set by some launchers; not used")


def add_train_arguments(parser: Parser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="config file")
    text = "go on from this checkpoint, or from the newest complete one in the work dir"
    parser.add_argument("--resume", nargs="?", const="auto", metavar="CHECKPOINT", help=text)
    parser.add_argument("--amp", action="store_true", help="mixed precision")
    text = "send the log there, too, with the package of this name"
    parser.add_argument("--log", choices=["tensorboard", "wandb", "mlflow"], help=text)
    _add_common_arguments(parser)


def run_train(args: Namespace) -> None:
    from hypvision.engine.checks import readable_errors
    from hypvision.engine.config import leave_processes, parse_options
    from hypvision.engine.run import train

    with readable_errors():
        options = parse_options(args.cfg_options)
        train(args.config, args.work_dir, args.resume, args.amp, options, args.launcher, args.verbose, args.log)
        leave_processes()


def add_test_arguments(parser: Parser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="config file")
    text = "checkpoint file, or zoo:NAME (hypvision zoo list lists them)"
    parser.add_argument("weights", metavar="WEIGHTS", help=text)
    text = (
        "write a report into this folder: report.html with the confusion matrix, a table of the classes, curves of "
        "precision and recall (boxes), the worst mistakes; of a segmenter also its label maps"
    )
    parser.add_output("--out", what="folder", metavar="DIR", help=text)
    text = "write the predictions into this file (.json; of a metric learner the embeddings, .npz)"
    parser.add_output("--save", metavar="FILE", help=text)
    text = (
        "write images with the predictions painted in, of segmenters and detectors beside the truth (of a classifier "
        "200 images, taken evenly from the data)"
    )
    parser.add_output("--show-dir", what="folder", metavar="DIR", help=text)
    text = "test-time augmentation: the config's views, or mirror images"
    parser.add_argument("--tta", action="store_true", help=text)
    text = "measure weights with NaN or infinite values all the same"
    parser.add_argument("--allow-nonfinite", action="store_true", help=text)
    _add_common_arguments(parser)


def run_test(args: Namespace) -> None:
    """``test`` from parsed arguments; prints the metrics as one line of JSON."""
    from hypvision.engine.checks import readable_errors
    from hypvision.engine.config import leave_processes, parse_options
    from hypvision.engine.run import test

    with readable_errors():
        options = parse_options(args.cfg_options)
        metrics = test(
            args.config, args.weights, args.work_dir, args.out, args.show_dir, args.tta, options, args.launcher,
            args.allow_nonfinite, args.verbose, args.save,
        )  # fmt: skip
        from mmengine.dist import is_main_process

        if is_main_process():
            print(json.dumps({name: round(float(value), 4) for name, value in metrics.items()}))
        leave_processes()

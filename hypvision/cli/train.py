"""``hypvision train``, ``test`` and ``plot``: trainings, tests of checkpoints, and curves of
trainings."""

from __future__ import annotations

import json
import shlex
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from hypvision.io import Plain, ensure
from hypvision.io.files import check_output

from .arguments import Parser, add_cfg_options, add_submit_arguments, number, whole
from .submit import Cell, run_cells


def _add_common_arguments(parser: Parser) -> None:
    parser.add(
        "--work-dir DIR",
        "folder of checkpoints and logs (default: work_dirs/CONFIG)",
        output="folder",
    )
    add_cfg_options(
        parser,
        "changes of the config, e.g. train_dataloader.batch_size=64; data_root=DIR moves all data "
        "sets",
    )
    parser.add("--verbose", "print the whole log on the console, not only into its file")
    parser.add(
        "--launcher",
        "launcher that started the processes",
        default="none",
        choices=["none", "pytorch", "slurm", "mpi"],
    )
    parser.add_argument(
        "--local_rank", "--local-rank", type=int, default=0, help="set by some launchers; not used"
    )


def add_train_arguments(parser: Parser) -> None:
    parser.add(
        "config CONFIG|FOLDER",
        "config file, name of a shipped config, or a folder: class folders, also below train and "
        "val, or a table train.csv; images with boxes or masks of COCO, or YOLO's data.yaml",
    )
    not_probe = partial(parser.add, without=["probe"])  # --method probe takes no training step
    not_probe(
        "--epochs N",
        "number of epochs; the schedule is adapted to it (default: that of the config, 12 for a "
        "folder; with boxes at least 300 steps)",
        whole(1),
    )
    parser.add(
        "--batch-size N",
        "for a folder: images in a batch (default: 16, with boxes 4)",
        whole(1),
    )
    not_probe("--lr X", "for a folder: learning rate (default: 1e-4, with boxes 1.5e-3)", number)
    parser.add(
        "--image-size N",
        "for a folder: side of the images in pixels (default: 160, with boxes 640)",
        whole(16, 4096),
    )
    parser.add(
        "--method",
        "finetune (default), or probe: only logistic regression on the features of the model as it "
        "begins, in seconds; its checkpoint is probe.pth",
        default="finetune",
        choices=["finetune", "probe"],
    )
    not_probe(
        "--resume CHECKPOINT",
        "go on from this checkpoint; without CHECKPOINT from the newest complete one in the work "
        "dir",
        const="auto",
        nargs="?",
    )
    parser.add("--amp", "mixed precision")
    parser.add(
        "--compile",
        "compile the network's blocks with torch.compile; compile=dict(...) in the config sets its "
        "options",
    )
    not_probe(
        "--seeds N",
        "train with the seeds 0 to N - 1, one after the other, and print mean and deviation of the "
        "last metrics",
        whole(1, 1000),
    )
    parser.add(
        "--log",
        "also send the log to this service, with the Python package of its name",
        choices=["tensorboard", "wandb", "mlflow"],
    )
    _add_common_arguments(parser)
    add_submit_arguments(parser, cells=False)


def run_train(args: Namespace) -> None:
    """Run ``train``: train on this machine, or where ``--submit`` sends the training."""
    if args.submit is None and not args.submit_options:
        _train(args)
        return
    folder = Path(args.work_dir or Path("work_dirs", Path(args.config).stem))
    options = dict(args.submit_options)
    submit = args.submit
    args.submit = None
    args.submit_options = []
    cell = Cell("train", run_train, (args,))
    print(f"The logs of the job are in '{folder / 'jobs'}'; Ctrl-C cancels it.")
    run_cells([cell], submit=submit, folder=folder / "jobs", options=options, unit="job").check()


def _train(args: Namespace) -> None:
    from mmengine.config import Config

    from hypvision.engine.checks import readable_errors
    from hypvision.engine.config import leave_processes, load_config
    from hypvision.engine.lengths import processes_of, with_epochs
    from hypvision.engine.reports import weights_to_use
    from hypvision.engine.run import train
    from hypvision.inference.progress import say
    from hypvision.tasks.own_folder import Choices, config_of
    from hypvision.tasks.probe import only_probe

    with readable_errors():
        options = _options(args)
        common = dict(amp=args.amp, launcher=args.launcher, verbose=args.verbose, log=args.log)
        choices = Choices(args.epochs, args.batch_size, args.lr, args.image_size)
        args.config = _recipe(config_of(args.config, choices, processes_of(args.launcher)), args)
        of_folder = isinstance(args.config, Config)
        if args.epochs is not None and not of_folder:
            args.config = load_config(args.config, options)
            for sentence in with_epochs(args.config, args.epochs, args.launcher):
                say(sentence)
            options = {}
        if args.method == "probe":
            found = train(only_probe(load_config(args.config, options)), args.work_dir, **common)
            weights = weights_to_use(found)
        elif args.seeds is None:
            found = train(args.config, args.work_dir, args.resume, cfg_options=options, **common)
            weights = weights_to_use(found)
        else:
            _train_seeds(args, options, common)
            weights = None  # each seed has its own, which were told
        if of_folder:
            _say_use(args, weights, bool(options))
        leave_processes()


def _options(args: Namespace) -> Plain:
    from hypvision.engine.config import parse_options

    options = parse_options(args.cfg_options)
    if args.compile and not any(key.partition(".")[0] == "compile" for key in options):
        options["compile"] = True
    return options


def _say_use(args: Namespace, weights: str | None, with_options: bool) -> None:
    """Print the command that uses what was trained on a folder; ``weights`` is the checkpoint to
    take, None for one of several seeds."""
    from mmengine.dist import is_main_process

    from hypvision.inference.progress import say

    # mmengine writes the config with the options beside that of the folder.
    name = Path(args.config.filename).name if with_options else "config.py"
    if is_main_process():
        model = shlex.quote(str(Path(args.work_dir, name)))
        given = "FILE (of a seed, as told above)"
        if weights is not None:
            path = Path(weights)
            here = Path.cwd()
            given = shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
        say(f"use     hypvision predict IMAGES --model {model} --weights {given}")


def _recipe(config: Any, args: Namespace) -> Any:
    """Return a config or its path. A config that was made for a folder is described and written to
    a file, from which the trainings with several seeds read it."""
    from mmengine.config import Config
    from mmengine.dist import is_main_process

    from hypvision.tasks.own_folder import described, save_config

    if not isinstance(config, Config):
        return config
    args.work_dir = args.work_dir or config.work_dir
    path = Path(args.work_dir, "config.py")
    if is_main_process():
        print(described(config))
        print(f"config: {save_config(config, args.work_dir)}")
    return config if args.seeds is None else path


def _train_seeds(args: Namespace, options: Plain, common: Plain) -> None:
    from mmengine.dist import is_main_process

    from hypvision.engine.seeds import table_of_seeds, train_seeds

    ensure(
        args.resume in (None, "auto"),
        "With --seeds each seed goes on from its own checkpoint: give --resume without a file.",
    )
    found = train_seeds(
        args.config, args.seeds, args.work_dir, options, resume=args.resume, **common
    )
    if is_main_process():
        print(table_of_seeds(found))


def add_test_arguments(parser: Parser) -> None:
    parser.add(
        "config CONFIG|FOLDER", "config file, name of a shipped config, or a folder as for train"
    )
    parser.add("weights WEIGHTS", "checkpoint file, or zoo:NAME (hypvision zoo list lists them)")
    parser.add(
        "--out DIR",
        "write a report into this folder: report.html with the confusion matrix, a table of the "
        "classes, curves of precision and recall (for boxes) and the worst mistakes; for a "
        "segmenter also its label maps",
        output="folder",
    )
    parser.add(
        "--save FILE",
        "write the predictions into this file (.json; for a metric learner the embeddings, .npz)",
        output="file",
    )
    parser.add(
        "--show-dir DIR",
        "write images with the predictions painted in, for segmenters and detectors beside the "
        "truth (for a classifier 200 images, taken evenly from the data)",
        output="folder",
    )
    parser.add("--tta", "test-time augmentation: views of the config, or else mirror images")
    parser.add("--allow-nonfinite", "also measure weights with NaN or infinite values")
    _add_common_arguments(parser)


def run_test(args: Namespace) -> None:
    """Run ``test``: print the metrics as one line of JSON."""
    from hypvision.engine.checks import readable_errors
    from hypvision.engine.config import leave_processes, parse_options
    from hypvision.engine.run import test
    from hypvision.inference.progress import say
    from hypvision.tasks.own_folder import config_of_weights

    with readable_errors():
        options = parse_options(args.cfg_options)
        metrics = test(
            config_of_weights(args.config, args.weights), args.weights, args.work_dir, args.out,
            args.show_dir, args.tta, options, args.launcher, args.allow_nonfinite, args.verbose,
            args.save,
        )  # fmt: skip
        from mmengine.dist import is_main_process

        if is_main_process():
            if args.out is not None:
                say(f"report  {Path(args.out, 'report.html')}")
            print(json.dumps({name: round(float(value), 4) for name, value in metrics.items()}))
        leave_processes()


def add_plot_arguments(parser: Parser) -> None:
    parser.add(
        "runs RUN...",
        "work dir of a training (work_dirs/CONFIG), one of the time-stamped folders in it, or a "
        "file scalars.json",
    )
    parser.add(
        "--keys NAME...",
        "quantities of the logs to draw, e.g. 'loss*' lr top1 (default: loss, learning rate and "
        "the metrics of the validation)",
    )
    parser.add(
        "--save FILE",
        "figure to write: .png, .svg or .pdf (default: curves.png); a .csv beside it has every "
        "value of the logs",
        default="curves.png",
        output="file",
    )


def run_plot(args: Namespace) -> None:
    """Run ``plot``: draw the curves of trainings, and print the names of the files written."""
    from hypvision.viz.curves import MOST, choose, draw_curves, read_runs, write_curves

    figure = Path(args.save)
    table = Path(args.save).with_suffix(".csv")
    ensure(
        figure.suffix.lower() in (".png", ".svg", ".pdf"),
        f"--save takes a file that ends in .png, .svg or .pdf, got '{args.save}'.",
    )
    check_output(table)
    curves = read_runs(args.runs)
    panels = choose(curves, args.keys)
    names = list(panels) if args.keys else list(panels)[:MOST]
    draw_curves({name: panels[name] for name in names}, figure)
    write_curves(curves, table)
    left = list(panels)[len(names) :]
    if left:
        print(
            f"Not drawn, but in the table: {', '.join(left)}. Choose quantities with --keys.",
            file=sys.stderr,
        )
    print(figure, table, sep="\n")

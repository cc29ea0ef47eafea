"""Train and test models of every task from config files, with mmengine and without mmcv.

Importing the package makes mmengine read and write checkpoints safely
(:mod:`~hypvision.engine.checkpoint`) and registers hooks, loops, optimisers and parameter groups
for configs.

A config passes through ``hypvision train`` in these steps:

1. ``cli.train.run_train`` takes the arguments, and ``config.parse_options`` the words of
   ``--cfg-options``;
2. ``run.train`` redirects mmengine's log to a file (``console.quiet``);
3. ``config.load_config`` reads the file and its bases, checks the types of the values and merges
   the options: the result is a ``config.Run``, whose attributes the later steps use;
4. ``config.prepare`` imports the extensions of the task and the ``default_scope``, adapts the run
   to the machine and adds hypvision's hooks; functions in ``PREPARATIONS`` do so for a library;
5. ``checks.check_data`` looks for the files of the data;
6. ``checkpoint.newest_checkpoint`` finds, reads and checks the checkpoint for ``--resume``;
7. ``config.leave_out_pretrained`` skips pretrained weights that the checkpoint replaces;
8. ``run.lock_work_dir`` locks the folder;
9. mmengine's Runner builds model, data, optimiser and hooks, and ``checks.check_channels``
   compares neck and backbone;
10. ``run._check_weights`` compares the checkpoint with the model, and passes it to the Runner;
11. the Runner loads it (``checkpoint.load`` returns what was read) and trains.
"""

from .mmengine_import import require_mmengine

require_mmengine()

from . import checkpoint, config, hooks, loops, optim_wrappers, param_groups  # noqa: E402 - after the check

checkpoint.install()

__all__ = [
    "checkpoint",
    "config",
    "hooks",
    "loops",
    "optim_wrappers",
    "param_groups",
]

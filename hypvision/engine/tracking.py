"""Send the log of a training to a tracker besides its files (``hypvision train --log``), by
mmengine's own backends."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from mmengine.config import Config

from hypvision.io import HypvisionError, Plain, ensure, one_of

TRACKERS = {
    "tensorboard": "TensorboardVisBackend",
    "wandb": "WandbVisBackend",
    "mlflow": "MLflowVisBackend",
}
"""The name of mmengine's backend for each package of a tracker."""

# mlflow refuses long values, so it gets these parts of the config as parameters and the whole
# config as a file.
_PARAMETERS = ("optim_wrapper", "train_cfg", "param_scheduler", "randomness")


def track(config: Config, name: str) -> None:
    """Change a config so that its training sends its log also to the tracker ``name``, one of
    :data:`TRACKERS`; call it after :func:`hypvision.engine.config.prepare`."""
    one_of(TRACKERS, **{"--log": name})
    if find_spec(name) is None:
        raise HypvisionError(
            f"--log {name}: the package '{name}' is not installed. Run: pip install {name}"
        )
    visualizer = config.get("visualizer") or dict(type="Visualizer")
    backends = list(visualizer.get("vis_backends") or [dict(type="LocalVisBackend")])
    if all(backend.get("type") != TRACKERS[name] for backend in backends):
        backends.append(dict(type=TRACKERS[name], **_settings(config, name)))
    config.visualizer = dict(visualizer, vis_backends=backends)


def _settings(config: Config, name: str) -> Plain:
    run = Path(config.work_dir).name
    if name == "wandb":
        ensure(
            os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun") or _logged_in(),
            "--log wandb: nobody is logged in at Weights & Biases. Run `wandb login` once, or "
            "set WANDB_MODE=offline to write the log to this machine.",
        )
        project = os.environ.get("WANDB_PROJECT", "hypvision")
        return dict(init_kwargs=dict(project=project, name=os.environ.get("WANDB_NAME", run)))
    if name == "mlflow":
        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path('mlflow.db').absolute()}"
        return dict(
            exp_name=os.environ.get("MLFLOW_EXPERIMENT_NAME", "hypvision"),
            run_name=run,
            tracking_uri=place,
            tracked_config_keys=[key for key in _PARAMETERS if config.get(key) is not None],
        )
    return {}


def _logged_in() -> bool:
    wandb = import_module("wandb")
    try:
        return bool(wandb.login(prompt=False))
    # Older versions of wandb have no argument "prompt".
    except TypeError:
        return bool(wandb.api.api_key)

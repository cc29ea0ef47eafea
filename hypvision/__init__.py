"""hypvision: hyperbolic vision models for PyTorch.

Importing the package registers its backbones and optimisers in timm, so that
``timm.create_model("hcformer_tiny")`` and
``timm.optim.create_optimizer_v2(model, "riemannianadamw")`` work. It imports torch and timm only;
the libraries for segmentation, detection and CLIP are imported when they are used.
"""

import sys

try:
    from .io import errors  # noqa: F401, I001 - first, because it names the user for PyTorch
    from . import geometry, models, nn, optim
    from .inference import predict
    from .zoo import load
except KeyboardInterrupt:
    if "hypvision.cli" not in sys.orig_argv:
        raise
    # Python imports the package before the command's own code runs
    print("\nInterrupted.", file=sys.stderr)
    raise SystemExit(130) from None
from .io.plugins import PLUGINS
from .version import __version__

PLUGINS |= {
    "predictor of a config": "hypvision.engine.predicting:predictor_of",
    "model of a config": "hypvision.engine.predicting:trained_model",
    "predictor of segmentation": "hypvision.openmmlab.predicting:predictor_of_model",
    "predictor of detection": "hypvision.openmmlab.predicting:predictor_of_model",
    "predictor of retrieval": "hypvision.tasks.metric_learning:predictor_of_model",
    "model of segmentation": "hypvision.openmmlab.pretrained:build_model",
    "model of detection": "hypvision.openmmlab.pretrained:build_model",
    "model of retrieval": "hypvision.tasks.metric_learning:build_model",
    "model of zero-shot": "hypvision.clip.models:build_model",
    "subject of a config": "hypvision.tasks.summary:subject_of_config",
    "subject of segmentation": "hypvision.openmmlab.predicting:subject_of_model",
    "subject of detection": "hypvision.openmmlab.predicting:subject_of_model",
    "tasks": "hypvision.tasks",
    "scope mmseg": "hypvision.openmmlab",
    "scope mmdet": "hypvision.openmmlab",
}

__all__ = ["__version__", "geometry", "load", "models", "nn", "optim", "predict"]

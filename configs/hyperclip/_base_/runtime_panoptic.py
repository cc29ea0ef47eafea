# What every open-vocabulary panoptic run shares; the best checkpoint is told by PQ.
_base_ = ["./runtime_det.py"]
custom_imports = dict(
    imports=[
        "hypvision.mm", "hypvision.tasks", "hypvision.mm.pyramid", "hypvision.mm.openvocab_pan",
        "hypvision.mm.openvocab_scenes",
    ]
)  # fmt: skip
default_hooks = dict(checkpoint=dict(save_best="ov/PQ"))
visualizer = dict(type="PanopticVisualizer")

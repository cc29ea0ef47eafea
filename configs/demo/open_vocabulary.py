# The fourth part of `make demo`: HyperCLIP on the small CLIP that ships; cross, house, pentagon and ring have no label
# in training. All rows of the table that this is one of: docs/studies/hyperclip.md.
_base_ = ["../hyperclip/shapes_hyperclip_450i.py"]
val_dataloader = dict(dataset=dict(length=100))
test_dataloader = val_dataloader
default_hooks = dict(checkpoint=dict(interval=150))

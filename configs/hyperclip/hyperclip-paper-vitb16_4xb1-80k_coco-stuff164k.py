# The optimiser and rate of the paper's text, Adam and 1e-5 for the blocks; the official code has
# AdamW and 1.5e-5, as in hyperclip-vitb16_4xb1-80k_coco-stuff164k.py. The text gives neither the
# head's rate nor a decay. Adam adds a decay to the gradient, after its clipping to a norm of 0.01,
# and would shrink the blocks, which start as the identity: none here.
_base_ = ["./hyperclip-vitb16_4xb1-80k_coco-stuff164k.py"]
optim_wrapper = dict(
    optimizer=dict(type="Adam", weight_decay=0.0),
    paramwise_cfg=dict(custom_keys={"clip.": dict(lr_mult=0.05)}),
)

# The optimiser and rate of the paper's text, Adam and 1e-5 for the blocks; the official code has AdamW and 1.5e-5, as
# in hyperclip-vitb16_4xb1-80k_coco-stuff164k.py. The text gives no rate of the head.
_base_ = ["./hyperclip-vitb16_4xb1-80k_coco-stuff164k.py"]
optim_wrapper = dict(optimizer=dict(type="Adam"), paramwise_cfg=dict(custom_keys={"clip.": dict(lr_mult=0.05)}))

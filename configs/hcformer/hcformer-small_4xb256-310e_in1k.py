# As hcformer-tiny_4xb256-310e_in1k.py, of the size small.
_base_ = ["./hcformer-tiny_4xb256-310e_in1k.py"]
model = dict(backbone=dict(model_name="hcformer_small"))

# As lvit-tiny_4xb256-310e_in1k.py, of the size small.
_base_ = ["./lvit-tiny_4xb256-310e_in1k.py"]
model = dict(backbone=dict(model_name="lvit_small"))

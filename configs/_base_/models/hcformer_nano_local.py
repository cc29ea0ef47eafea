# hcformer_nano_clusters.py with a depthwise convolution before each block in place of locality.
_base_ = ["./hcformer_nano_clusters.py"]
model = dict(backbone=dict(locality=0.0, local_conv=True))

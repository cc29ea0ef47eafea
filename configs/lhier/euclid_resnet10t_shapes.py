# As hier_resnet10t_shapes.py, with Euclidean embeddings compared by cosine and Proxy-Anchor alone.
_base_ = ["./hier_resnet10t_shapes.py"]
model = dict(neck=dict(_delete_=True, dim=64, geometry="euclidean"), hier_loss=None)

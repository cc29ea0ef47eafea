# As hier_resnet10t_cifar10.py, with Euclidean embeddings compared by cosine and Proxy-Anchor alone.
_base_ = ["./hier_resnet10t_cifar10.py"]
model = dict(neck=dict(_delete_=True, dim=64, geometry="euclidean"), hier_loss=None)

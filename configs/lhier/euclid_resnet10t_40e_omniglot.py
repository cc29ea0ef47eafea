# As hier_resnet10t_40e_omniglot.py, with Euclidean embeddings compared by cosine and Proxy-Anchor
# alone.
_base_ = ["./hier_resnet10t_40e_omniglot.py"]
model = dict(neck=dict(_delete_=True, dim=128, geometry="euclidean"), hier_loss=None)

# As hier_efficientnet-lite0_20e_grocery.py, with Euclidean embeddings compared by cosine and
# Proxy-Anchor alone.
_base_ = ["./hier_efficientnet-lite0_20e_grocery.py"]
model = dict(neck=dict(_delete_=True, dim=128, geometry="euclidean"), hier_loss=None)

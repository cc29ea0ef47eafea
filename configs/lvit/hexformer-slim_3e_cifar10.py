# HexFormer of as many blocks, heads and dimensions as lvit-slim_3e_cifar10.py, under the same
# recipe. Its class token is read, as published.
_base_ = ["./lvit-slim_3e_cifar10.py"]
model = dict(backbone=dict(model_name="hexformer_tiny", hidden_dim=256))

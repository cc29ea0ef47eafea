# The Euclidean counterpart of helm-d-tiny_books.py; its wider layers stand in for HELM's biases and last projection.
_base_ = ["./helm-d-tiny_books.py"]
model = dict(geometry="euclidean", inter_dim=141)

# The Euclidean counterpart of helm-d-small_books.py; its wider layers stand in for HELM's biases
# and last projection.
_base_ = ["./helm-d-small_books.py"]
model = dict(geometry="euclidean", inter_dim=271)

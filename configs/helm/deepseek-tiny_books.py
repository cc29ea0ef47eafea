# The Euclidean counterpart of helm-mice-tiny_books.py; wider layers stand in for HELM's biases and last projection.
_base_ = ["./helm-mice-tiny_books.py"]
model = dict(geometry="euclidean", inter_dim=139, mice_inter_dim=70)

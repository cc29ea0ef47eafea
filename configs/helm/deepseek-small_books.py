# The Euclidean counterpart of helm-mice-small_books.py; wider layers stand in for HELM's biases and
# last projection.
_base_ = ["./helm-d-small_books.py"]
model = dict(preset="helm_mice_tiny", geometry="euclidean", inter_dim=270, mice_inter_dim=134)

# The Euclidean counterpart of helm-mice-small_books.py; wider layers stand in for HELM's biases and
# last projection.
_base_ = ["./helm-mice-small_books.py"]
model = dict(geometry="euclidean", inter_dim=270, mice_inter_dim=134)
optim_wrapper = dict(optimizer=dict(lr=8e-3))

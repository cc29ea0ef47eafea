# As helm-mice-small_books.py, with all curvatures fixed at -1.
_base_ = ["./helm-d-small_books.py"]
model = dict(preset="helm_mice_tiny", train_curv=False)
optim_wrapper = dict(optimizer=dict(lr=4e-3))

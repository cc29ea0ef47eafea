# As helm-mice-small_books.py, with all curvatures fixed at -1.
_base_ = ["./helm-mice-small_books.py"]
model = dict(train_curv=False)

# The Euclidean twin of helm-mice-small_books.py.
_base_ = ["./helm-mice-small_books.py"]
model = dict(geometry="euclidean")

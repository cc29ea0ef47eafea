# The Euclidean twin of helm-d-small_books.py.
_base_ = ["./helm-d-small_books.py"]
model = dict(geometry="euclidean")

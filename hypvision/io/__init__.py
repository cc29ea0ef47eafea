"""The base of all other packages: errors, checks of arguments, files, images, records, web
addresses and the names of shipped configs.

This package imports nothing else of hypvision. Its submodules are imported by their names, so that
the command line starts without PyTorch.
"""

"""Syntax trees of source files, for tests that read the code itself."""

import ast
import gc


def syntax_tree(code):
    """The tree of a text, made without garbage collection: a finalizer that runs meanwhile may let
    another thread parse, and CPython 3.11 counts the depth of both in one number ("AST constructor
    recursion depth mismatch", https://github.com/python/cpython/issues/106905)."""
    gc.disable()
    try:
        return ast.parse(code)
    finally:
        gc.enable()


def tree_of_file(path):
    return syntax_tree(path.read_text(encoding="utf-8"))

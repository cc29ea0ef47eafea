"""Functions by their roles, for modules that may not import the modules that have them, such as
"predictor of segmentation".

Imports point one way (see ``CONTRIBUTING.md``). :data:`PLUGINS`, filled in
``hypvision/__init__.py``, names a function for each role, and :func:`pkgutil.resolve_name` imports
it when it is needed. So reading weights alone does not need mmengine, for example.
"""

PLUGINS: dict[str, str] = {}
"""For each role ``"module:function"``; or a module that enters itself into tables when it is
imported."""

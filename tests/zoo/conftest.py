"""A tiny model in a zoo of its own, a cache of its own, and a server that misbehaves."""

from helpers.zoo_fixtures import home, item, micro, record, server, zoo  # noqa: F401 - fixtures

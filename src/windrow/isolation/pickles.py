"""Objects on their way to another process and back.

Promises: what has an address (a module that both can import) travels as its address; what has none (a lambda, a class
of a script) goes by value, with cloudpickle, and comes back as what it was. What cannot travel at all is an
`Unsendable` that says what and why.

Not sendable: open files, sockets, locks, generators, running tasks, and whatever holds one of them.
"""

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import cloudpickle

PROTOCOL = 5


class Unsendable(Exception):
    """Something cannot be pickled, or not be read again."""


def dump(thing: object, by_value: Sequence[ModuleType] = ()) -> bytes:
    """Something as bytes, for a process that has our path but not our script; `by_value`: modules it cannot import."""
    with _sending(thing), _registered(by_value):
        return bytes(cloudpickle.dumps(thing, PROTOCOL))


def dump_back(thing: object) -> bytes:
    """Something as bytes, for whoever sent us all that we know."""
    with _sending(thing):
        try:
            return pickle.dumps(thing, PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError, ImportError):  # what came by value goes back like that
            return bytes(cloudpickle.dumps(thing, PROTOCOL))


def load(data: bytes) -> Any:  # noqa: ANN401 -- whatever was dumped
    """What `dump` made bytes of."""
    try:
        return pickle.loads(data)  # noqa: S301 -- both ends are ours
    except MemoryError:
        raise
    except Exception as error:
        raise Unsendable(f"cannot be unpickled: {type(error).__name__}: {error}") from error


@contextmanager
def _sending(thing: object) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise Unsendable(f"a {type(thing).__name__} cannot be pickled: {type(error).__name__}: {error}") from error


@contextmanager
def _registered(modules: Sequence[ModuleType]) -> Iterator[None]:
    """Let cloudpickle take these by value, without a trace afterwards."""
    new = [module for module in modules if module.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in new:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in new:
            cloudpickle.unregister_pickle_by_value(module)

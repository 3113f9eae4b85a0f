"""Somebody's own code, by file or module: `path.py:Name` or `package.module:Name`.

Promises: whatever cannot be loaded or found is a `ConfigError` of one line that says what would do. A file is loaded
once, under its own name, and what lies beside it can be imported, as when it is run.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from windrow.errors import ConfigError, WindrowError, blame
from windrow.loading import places
from windrow.loading.words import said
from windrow.nearest import did_you_mean

T = TypeVar("T")


def is_own(target: str) -> bool:
    """It names a file or a module, not something of ours."""
    return ":" in target or target.endswith(".py")


def find(target: str) -> tuple[ModuleType, Any]:
    """What stands behind `file:Name`."""
    where, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    module = _module_of_file(Path(where), name) if where.endswith(".py") else _module(where)
    public = [each for each in vars(module) if not each.startswith("_")]
    own = [each for each in public if inspect.getmodule(vars(module)[each]) is module]
    if not name:
        raise ConfigError(f"{where} may hold several things; write {where}:NAME{did_you_mean('', own)}")
    if name not in vars(module):
        raise ConfigError(f"{where} has no {name!r}{did_you_mean(name, own or public)}")
    return module, vars(module)[name]


def _module_of_file(path: Path, name: str) -> ModuleType:
    if not path.is_file():
        beside = sorted(str(path.with_name(each.name)) for each in path.parent.glob("*.py"))
        raise ConfigError(f"{path}: no such file{did_you_mean(str(path), beside)}")
    known = sys.modules.get(path.stem)
    if known is not None and vars(known).get("__file__") == str(path.resolve()):
        return known
    if known is not None or path.stem in sys.stdlib_module_names:
        raise ConfigError(f"{path} hides the module {path.stem}; give the file another name")
    reach(path.parent)
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: this is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        _run(lambda: spec.loader.exec_module(module) if spec.loader else None, str(path))
    except ConfigError as error:
        del sys.modules[path.stem]
        if "relative import" in str(error) and path.with_name("__init__.py").is_file():
            raise ConfigError(f"{error}; {_as_module(path.resolve(), name)}") from error
        raise
    return module


def _as_module(path: Path, name: str) -> str:
    """How to name what is in a file of a package."""
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        folder, parts = folder.parent, [folder.name, *parts]
    here = "" if folder == Path.cwd() else f" in {folder}"
    return f"it belongs to a package, so write {'.'.join(parts)}:{name or 'NAME'}{here}"


def _module(name: str) -> ModuleType:
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{name!r} is neither a file nor a module; write path.py:Class or package.module:Class")
    reach(Path())
    return _run(lambda: importlib.import_module(name), f"module {name}")


def reach(folder: Path) -> None:
    """What is in a folder can be imported, as when a file of it is run."""
    if str(folder.resolve()) not in sys.path:
        sys.path.insert(0, str(folder.resolve()))


def _run(load_it: Callable[[], T], what: str) -> T:
    """Load somebody's code; whatever it raises is told in one line."""
    try:
        with filed(ConfigError, f"{what} cannot be loaded"):
            return load_it()
    except ConfigError as error:
        if isinstance(error.__cause__, SystemExit):
            raise ConfigError(
                f'{what} ends the program while it is loaded; put what it does under if __name__ == "__main__"'
            ) from error
        place = places.of_error(error.__cause__ or error)
        raise ConfigError(f"{error}{f' ({place})' if place else ''}") from error.__cause__


@contextmanager
def filed(kind: type[WindrowError], words: str) -> Iterator[None]:
    """As `blame` does, and for what is no ordinary exception too; Ctrl-C is left to whoever pressed it."""
    try:
        with blame(kind, words):
            yield
    except (WindrowError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise kind(f"{words}: {type(error).__name__}: {said(error)}") from error

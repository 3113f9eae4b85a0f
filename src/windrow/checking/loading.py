"""What is to be checked or played: a shipped environment by its name, or somebody's own by file or module.

Promises: whatever cannot be loaded, found or made is a `ConfigError` of one line that says what would do. A class with
`start`, `step` and `close` is taken as it is, one with `reset` and `step` and an `async def rollout(task, policy)` are
adapted, and anything else that can be called is taken for what makes an environment.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from windrow.checking import places
from windrow.checking.words import said, shown
from windrow.envs.protocol import EnvFactory
from windrow.errors import ConfigError, WindrowError, blame
from windrow.nearest import did_you_mean
from windrow.types import Value

Form = Literal["shipped", "env", "plain", "agent", "factory"]
"""What it is written as: one of ours; the protocol; `reset` and `step`; a rollout function; what makes one."""

T = TypeVar("T")

PROTOCOL = ("start", "step", "close")


class Subject(Value, frozen=True, kw_only=True, gc=True):
    """An environment that can be made."""

    name: str
    form: Form
    make: EnvFactory
    reward: Any = None  # whatever has `score`; none: the sum of the environment's own rewards
    module: str = ""
    """Of somebody's own: where it was defined."""


def load(target: str, args: Mapping[str, object], reward: str = "") -> Subject:
    """The environment of a name, of `path.py:Name` or of `package.module:Name`, and the reward it is scored with."""
    subject = _own(target, args) if ":" in target or target.endswith(".py") else _shipped(target, args)
    if not reward:
        return subject
    return Subject(
        name=subject.name, form=subject.form, make=subject.make, module=subject.module, reward=_reward(reward)
    )


def _shipped(name: str, args: Mapping[str, object]) -> Subject:
    from windrow.envs.shipped import SHIPPED, describe, find

    if name not in SHIPPED and Path(name).suffix:
        raise ConfigError(f"there is no environment {name!r}; one of your own is path.py:Class or package.module:Class")
    shipped = describe(name)
    with blame(ConfigError, f"environment {name} cannot be loaded"):
        make = find(name, **args)
    _try(make, name)
    return Subject(name=name, form="shipped", make=make, reward=_reward(shipped.reward) if shipped.reward else None)


def _own(target: str, args: Mapping[str, object]) -> Subject:
    module, found = _find(target)
    make, form = _adapted(found, target, args)
    _try(make, target)
    return Subject(name=target, form=form, make=make, module=module.__name__)


def _find(target: str) -> tuple[ModuleType, Any]:
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
    _reach(path.parent)
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
    _reach(Path())
    return _run(lambda: importlib.import_module(name), f"module {name}")


def _reach(folder: Path) -> None:
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


def _adapted(found: Any, target: str, args: Mapping[str, object]) -> tuple[EnvFactory, Form]:  # noqa: ANN401 -- unknown yet
    given = dict(args)
    if isinstance(found, type):
        return _of_class(found, target, given)
    if inspect.isasyncgenfunction(found) or inspect.isgeneratorfunction(found):
        raise ConfigError(f"{target} is a generator; write `async def rollout(task, policy)` that returns its reward")
    if inspect.iscoroutinefunction(found):
        from windrow.envs.agents import agent

        return agent(found, **given), "agent"
    if not callable(found):
        raise ConfigError(
            f"{target} is {shown(found)}; name a class with start, step and close or with reset and step, "
            f"an `async def rollout(task, policy)`, or a function that makes an environment"
        )
    return (partial(found, **given) if given else found), "factory"


def _of_class(found: type, target: str, given: dict[str, Any]) -> tuple[EnvFactory, Form]:
    has = set(dir(found))
    if has.issuperset(PROTOCOL):
        return (partial(found, **given) if given else found), "env"
    if has.issuperset(("reset", "step")):
        from windrow.envs.plain import plain

        return plain(found, **given), "plain"
    missing = [name for name in PROTOCOL if name not in has]
    raise ConfigError(f"{target} has no {' and no '.join(missing)}; an environment has start, step and close")


def _try(make: EnvFactory, target: str) -> None:
    """Make one, to see that it is an environment at all."""
    try:
        with filed(ConfigError, f"{target} cannot be made"):
            made = make()
    except ConfigError as error:
        if isinstance(error.__cause__, TypeError) and "argument" in str(error):
            raise ConfigError(f"{error}; give arguments with --args NAME=VALUE") from error
        raise
    missing = [name for name in PROTOCOL if name not in dir(made)]
    if missing:
        hint = "; wrap it in windrow.envs.plain.plain" if "reset" in dir(made) else ""
        raise ConfigError(f"{target} makes {shown(made)}, which has no {' and no '.join(missing)}{hint}")


def _reward(target: str) -> Any:  # noqa: ANN401 -- whatever has `score`
    if ":" in target or target.endswith(".py"):
        _, found = _find(target)
        with filed(ConfigError, f"reward {target} cannot be made"):
            made = found() if isinstance(found, type) else found
    else:
        made = _shipped_reward(target)
    if not {"score", "score_group"} & {*dir(made)}:
        raise ConfigError(f"reward {target} is {shown(made)}, which has no score(trajectory)")
    return made


def _shipped_reward(name: str) -> Any:  # noqa: ANN401 -- as above
    from windrow.rewards.shipped import find

    try:
        with blame(ConfigError, f"reward {name} cannot be made"):
            return find(name)
    except WindrowError as error:
        raise ConfigError(str(error)) from error

"""The shape of the code: what the manner of writing asks for and the linter cannot see."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "windrow"

LONGEST_FILE = 450
LONGEST_FUNCTION = 60
LONGEST_FUNCTION_OF_CORE = 40
CORE_MAY_IMPORT = ("windrow.core", "windrow.errors", "windrow.nearest", "windrow.types")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """A file of the package, read once."""

    path: Path
    lines: int
    tree: ast.Module

    @property
    def name(self) -> str:
        return str(self.path.relative_to(SOURCE))

    @property
    def in_core(self) -> bool:
        return SOURCE / "core" in self.path.parents


def parse(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(path, len(text.splitlines()), ast.parse(text, str(path)))


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return [parse(path) for path in sorted(SOURCE.rglob("*.py"))]


ROOT_TASKS = {
    "rollout/supervision.py": 1,
    "envs/agents.py": 1,
    "envs/tools/servers.py": 1,
    "pipelines/validating.py": 1,
}
"""An object that lives longer than a call needs one task to hold its group; it is born in one place."""


def test_there_are_modules(modules: list[Module]):
    assert any(module.in_core for module in modules)
    assert len(modules) > 100


def test_a_module_opens_with_what_it_is(modules: list[Module]):
    assert [module.name for module in modules if not ast.get_docstring(module.tree)] == []


def test_a_file_is_short(modules: list[Module]):
    """One that is too long is split by noun."""
    assert [f"{module.name} has {module.lines} lines" for module in modules if module.lines > LONGEST_FILE] == []


def test_a_function_fits_in_the_head(modules: list[Module]):
    assert [found for module in modules for found in too_long(module)] == []


def too_long(module: Module) -> Iterator[str]:
    limit = LONGEST_FUNCTION_OF_CORE if module.in_core else LONGEST_FUNCTION
    for node in ast.walk(module.tree):
        if isinstance(node, Function) and length(node) > limit:
            yield f"{module.name}:{node.lineno} {node.name} has {length(node)} lines, at most {limit}"


def length(function: Function) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def test_no_attribute_is_probed(modules: list[Module]):
    """`getattr` with a default and `hasattr` hide what the type should say."""
    assert [f"{module.name}:{line}" for module in modules for line in probes(module.tree)] == []


def probes(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[_, _, _, *_]):
                yield node.lineno
            case ast.Call(func=ast.Name(id="hasattr")):
                yield node.lineno


def test_tasks_are_born_in_a_task_group(modules: list[Module]):
    found = {module.name: [*stray_tasks(module.tree)] for module in modules}
    assert {name: len(lines) for name, lines in found.items() if lines} == ROOT_TASKS, found


def stray_tasks(tree: ast.Module) -> Iterator[int]:
    """Lines that create a task on anything but a name bound by `async with … TaskGroup() as name`.

    A group that is handed to a function counts when its parameter is annotated as a TaskGroup.
    """
    groups = set(task_group_names(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="create_task")):
                if owner not in groups:
                    yield node.lineno
            case ast.Call(func=ast.Attribute(attr="create_task" | "ensure_future")):
                yield node.lineno
            case ast.Call(func=ast.Name(id="create_task" | "ensure_future")):
                yield node.lineno


def task_group_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.AsyncWith(items=items):
                for item in items:
                    if isinstance(item.optional_vars, ast.Name) and makes_task_group(item.context_expr):
                        yield item.optional_vars.id
            case ast.arg(arg=name, annotation=ast.expr() as kind):
                if ast.unparse(kind).rpartition(".")[2] == "TaskGroup":
                    yield name


def makes_task_group(made: ast.expr) -> bool:
    return isinstance(made, ast.Call) and ast.unparse(made.func).rpartition(".")[2] == "TaskGroup"


def test_the_core_imports_the_standard_library_and_the_values_alone(modules: list[Module]):
    core = [module for module in modules if module.in_core]
    assert [(each.name, name) for each in core for name in imports(each.tree) if not core_may_import(name)] == []


def core_may_import(name: str) -> bool:
    own = any(name == allowed or name.startswith(f"{allowed}.") for allowed in CORE_MAY_IMPORT)
    return own or name.partition(".")[0] in sys.stdlib_module_names


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(name)):
                yield name


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("async def f():\n async with TaskGroup() as g:\n  g.create_task(x())", []),
        ("async def f():\n async with asyncio.TaskGroup() as g:\n  g.create_task(x())", []),
        ("def f(g: asyncio.TaskGroup):\n g.create_task(x())", []),
        ("def f(g):\n g.create_task(x())", [2]),
        ("asyncio.create_task(x())", [1]),
        ("asyncio.get_running_loop().create_task(x())", [1]),
        ("create_task(x())", [1]),
        ("asyncio.ensure_future(x())", [1]),
    ],
)
def test_a_stray_task_is_seen(code: str, lines: list[int]):
    assert list(stray_tasks(ast.parse(code))) == lines


@pytest.mark.parametrize(
    ("code", "lines"),
    [("getattr(a, 'b')", []), ("getattr(a, 'b', None)", [1]), ("hasattr(a, 'b')", [1])],
)
def test_a_probe_is_seen(code: str, lines: list[int]):
    assert list(probes(ast.parse(code))) == lines

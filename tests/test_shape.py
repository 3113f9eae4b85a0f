"""The shape of the code: what the manner of writing asks for and the linter cannot see."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "windrow"
MODULES = sorted(SOURCE.rglob("*.py"))

LONGEST_FILE = 450
LONGEST_FUNCTION = 60
LONGEST_FUNCTION_OF_CORE = 40
CORE_MAY_IMPORT = ("windrow.core", "windrow.errors", "windrow.nearest", "windrow.types")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parse(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"), str(module))


def in_core(module: Path) -> bool:
    return SOURCE / "core" in module.parents


ROOT_TASKS = {
    "rollout/supervision.py": 1,
    "envs/agents.py": 1,
    "envs/tools/servers.py": 1,
    "pipelines/validating.py": 1,
}
"""An object that lives longer than a call needs one task to hold its group; it is born in one place."""

every_module = pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(SOURCE)))
every_core_module = pytest.mark.parametrize(
    "module", [m for m in MODULES if in_core(m)], ids=lambda m: str(m.relative_to(SOURCE))
)


@every_module
def test_a_module_opens_with_what_it_is(module: Path):
    assert ast.get_docstring(parse(module)), f"{module.name} has no docstring"


@every_module
def test_a_file_is_short(module: Path):
    lines = len(module.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST_FILE, f"{module.name} has {lines} lines; split it by noun"


@every_module
def test_a_function_fits_in_the_head(module: Path):
    limit = LONGEST_FUNCTION_OF_CORE if in_core(module) else LONGEST_FUNCTION
    long = [
        f"{module.name}:{node.lineno} {node.name} has {length(node)} lines, at most {limit}"
        for node in ast.walk(parse(module))
        if isinstance(node, Function) and length(node) > limit
    ]
    assert long == []


def length(function: Function) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


@every_module
def test_no_attribute_is_probed(module: Path):
    """`getattr` with a default and `hasattr` hide what the type should say."""
    assert [f"{module.name}:{line}" for line in probes(parse(module))] == []


def probes(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[_, _, _, *_]):
                yield node.lineno
            case ast.Call(func=ast.Name(id="hasattr")):
                yield node.lineno


@every_module
def test_tasks_are_born_in_a_task_group(module: Path):
    allowed = ROOT_TASKS.get(str(module.relative_to(SOURCE)), 0)
    strays = [f"{module.name}:{line}" for line in stray_tasks(parse(module))]
    assert len(strays) == allowed, f"{strays} outside a task group, {allowed} allowed"


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


@every_core_module
def test_the_core_imports_the_standard_library_and_the_values_alone(module: Path):
    foreign = [name for name in imports(parse(module)) if not core_may_import(name)]
    assert foreign == [], f"{module.name} imports {foreign}; the core is pure"


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

"""The entrance: exit codes, errors of one line, and nothing but the result on standard output with --json."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

import windrow
from windrow.cli import main as entrance
from windrow.cli.main import COMMANDS, Entry, main
from windrow.cli.output import Output
from windrow.errors import ConfigError, EngineError, InternalError

KNOWN = ", ".join([*COMMANDS, "try"])

Run = Callable[[argparse.Namespace, Output], int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """Registers a command called `try` that runs this function."""

    def register(run: Run) -> None:
        module = ModuleType("windrow_try")
        vars(module).update(DESCRIPTION="Tries.", EPILOG="", run=run, configure=declare)
        monkeypatch.setitem(sys.modules, "windrow_try", module)
        monkeypatch.setitem(entrance.COMMANDS, "try", Entry("windrow_try", "tries"))

    def declare(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("config")
        parser.add_argument("overrides", nargs="*", default=[])
        parser.add_argument("--compare", action="store_true")

    return register


def raising(error: BaseException) -> Run:
    def run(args: argparse.Namespace, out: Output) -> int:
        raise error

    return run


def speaking(args: argparse.Namespace, out: Output) -> int:
    print("from a library")  # noqa: T201 what a library may do
    out.say("for people")
    out.warn("beware")
    out.table(["what", "many"], [["a", 1]], title="t")
    out.result({"a": 1})
    return 0


def test_version(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"windrow {windrow.__version__}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said and entry.help in said for name, entry in COMMANDS.items())


def test_no_command_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: windrow")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]):
    assert main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: windrow {name}")
    assert "--json" in said
    assert f"windrow {name}" in said.partition("options:")[2], "an example at the end"


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["simulat"], "windrow: error: unknown command 'simulat'; did you mean simulate?"),
        (
            ["xyz"],
            f"windrow: error: unknown command 'xyz'; known are {KNOWN}",
        ),
        (["--verion"], "windrow: error: unrecognized arguments: --verion; see windrow --help"),
        (
            ["try", "c", "--compar"],
            "windrow try: error: unknown option --compar; did you mean --compare?; see windrow try --help",
        ),
        (
            ["try"],
            "windrow try: error: the following arguments are required: config; see windrow try --help",
        ),
    ],
)
def test_a_wrong_command_line_is_one_line(
    argv: list[str], line: str, command: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
):
    command(speaking)
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err == f"{line}\n"
    assert captured.out == ""


def test_options_may_stand_between_the_arguments(command: Callable[[Run], None]):
    seen: list[argparse.Namespace] = []

    def run(args: argparse.Namespace, out: Output) -> int:
        seen.append(args)
        return 0

    command(run)
    assert main(["try", "c.yaml", "a=1", "--compare", "b=2"]) == 0
    assert (seen[0].config, seen[0].overrides, seen[0].compare) == ("c.yaml", ["a=1", "b=2"], True)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("slots is 0"), 2, "windrow: error: slots is 0"),
        (EngineError("gone"), 1, "windrow: error: gone"),
        (InternalError("broken"), 1, "windrow: error: broken"),
        (KeyboardInterrupt(), 130, "windrow: interrupted"),
        (
            FileNotFoundError(2, "No such file or directory", "a.png"),
            1,
            "windrow: error: a.png: no such file or directory",
        ),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: BaseException,
    code: int,
    line: str,
    command: Callable[[Run], None],
    capsys: pytest.CaptureFixture[str],
):
    command(raising(error))
    assert main(["try", "c"]) == code
    captured = capsys.readouterr()
    assert captured.err == f"{line}\n"
    assert captured.out == ""


def test_a_mistake_of_ours_keeps_its_traceback(command: Callable[[Run], None]):
    command(raising(KeyError("x")))
    with pytest.raises(KeyError):
        main(["try", "c"])


def test_json_leaves_one_object_on_standard_output(command: Callable[[Run], None], capsys: pytest.CaptureFixture[str]):
    command(speaking)
    assert main(["try", "c", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.out == '{"a":1}\n'
    assert all(words in captured.err for words in ("from a library", "for people", "beware", "many"))


def test_without_json_people_read_standard_output(command: Callable[[Run], None], capsys: pytest.CaptureFixture[str]):
    command(speaking)
    assert main(["try", "c"]) == 0
    captured = capsys.readouterr()
    assert all(words in captured.out for words in ("from a library", "for people", "many"))
    assert captured.err == "windrow: warning: beware\n"
    assert "{" not in captured.out


def test_json_without_a_result_is_our_mistake(command: Callable[[Run], None], capsys: pytest.CaptureFixture[str]):
    command(lambda args, out: 0)
    assert main(["try", "c", "--json"]) == 1
    assert capsys.readouterr().err == "windrow: error: windrow try ended without a result for --json\n"


def test_the_exit_code_of_a_command_is_passed_on(command: Callable[[Run], None]):
    command(lambda args, out: 1)
    assert main(["try", "c"]) == 1


def test_a_reader_that_goes_away_is_no_traceback():
    program = (
        "import sys, types, windrow.cli.main as m\n"
        "def run(args, out):\n"
        "    for _ in range(100_000): out.say('words ' * 20)\n"
        "    return 0\n"
        "fake = types.ModuleType('fake')\n"
        "vars(fake).update(DESCRIPTION='', EPILOG='', run=run, configure=lambda parser: None)\n"
        "sys.modules['fake'] = fake\n"
        "m.COMMANDS['try'] = m.Entry('fake', '')\n"
        "sys.exit(m.main(['try']))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 1


def loaded_by(program: str) -> set[str]:
    """The top-level packages that a fresh interpreter has after this program."""
    code = f"import contextlib, io, json, sys\n{program}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return {name.partition(".")[0] for name in names}


HEAVY = {"numpy", "rich", "yaml", "matplotlib", "torch", "ray", "asyncio"}


def test_importing_windrow_imports_nothing_heavy():
    assert loaded_by("import windrow") & HEAVY == set()


def test_help_imports_nothing_heavy():
    program = "from windrow.cli.main import main\nwith contextlib.redirect_stdout(io.StringIO()): main(['--help'])"
    assert loaded_by(program) & (HEAVY | {"msgspec"}) == set()


def test_python_m_windrow_is_windrow():
    done = subprocess.run([sys.executable, "-m", "windrow", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"windrow {windrow.__version__}\n"

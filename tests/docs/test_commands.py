"""What the documents show works: every command, every piece of Python, every make target, every link."""

import contextlib
import importlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from windrow.cli import bench
from windrow.cli.main import COMMANDS, Parser, main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STANDS_FOR = {"CONFIG": "examples/sim/long_tail.yaml", "JOURNAL": "run.jsonl", "NAME": "core", "RUN": "runs/shown"}
SMOKE = ["steps=2", "seeds=1"]
SHORT = [
    "steps=1", "warm_start.episodes=8", "warm_start.supervised.steps=1", "validate.tasks=4", "validate.every=0",
    "validate.stop_at=null",
    "rollout.rollout_batch_size=16", "rollout.train_env_manager.filter=none", "model.tiny.texts=8",
    "train.processes=0",
]  # fmt: skip
"""What a shown training is cut down to."""
PLANNED = ["rollout.rollout_batch_size=16", "rollout.train_env_manager.env_args.max_steps=3"]
"""What a shown plan plays."""
FEW = ["--policies", "barrier,keep_1"]
"""What a comparison plays here if it names no policies."""


def code_of(page: Path) -> Iterator[str]:
    """Lines of blocks without a language, then what stands between back ticks."""
    text = page.read_text(encoding="utf-8")
    for language, block in FENCE.findall(text):
        if not language:
            yield from block.splitlines()
    yield from re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def commands() -> Iterator[tuple[str, str]]:
    """Where a command line stands, and it."""
    for page in PAGES:
        for line in code_of(page):
            if line.startswith("windrow "):
                yield page.name, line
    for name, entry in COMMANDS.items():
        for line in importlib.import_module(entry.module).EPILOG.splitlines():
            if line.strip().startswith("windrow "):
                yield f"windrow {name} --help", line.strip()


def words_of(line: str) -> list[str]:
    """The arguments of a command line, without its comment, with something for what stands for something."""
    return [STANDS_FOR.get(word, word) for word in shlex.split(line, comments=True)[1:]]


def distinct() -> dict[str, list[str]]:
    """Each command once: where it is first shown, and its arguments."""
    found: dict[tuple[str, ...], str] = {}
    for where, line in commands():
        found.setdefault(tuple(words_of(line)), where)
    return {f"{where}: windrow {shlex.join(words)}": list(words) for words, where in found.items()}


SHOWN = distinct()


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `simulate --journal` writes."""
    path = tmp_path_factory.mktemp("journal") / "run.jsonl"
    assert main(["simulate", str(ROOT / STANDS_FOR["CONFIG"]), *SMOKE, "--journal", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `train` leaves behind."""
    root = tmp_path_factory.mktemp("trained")
    assert main(["train", str(ROOT / "examples/demo.yaml"), f"runs={root}", *SHORT]) == 0
    (run,) = root.iterdir()
    return run


@pytest.fixture
def folder(tmp_path: Path, journal: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the documents take it: examples, a journal, and a run that has come to its end."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shutil.copy(journal, tmp_path / "run.jsonl")
    shutil.copytree(trained, tmp_path / STANDS_FOR["RUN"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def marked(argv: list[str]) -> object:
    """What needs Ray is run where Ray is."""
    return pytest.param(argv, marks=pytest.mark.ray if "runtime=ray" in argv else ())


@pytest.mark.parametrize("argv", [marked(argv) for argv in SHOWN.values()], ids=[*SHOWN])
def test_a_command_that_is_shown_works(argv: list[str], folder: Path):
    if argv[0] == "bench" and set(argv) & set(bench.BENCHMARKS):
        assert parsed_bench(argv[1:]) in bench.BENCHMARKS
        return
    if (len(argv) == 1 and argv[0] in COMMANDS) or argv in (["env", "check"], ["env", "play"]):
        argv = [argv[0], "--help"]  # spoken of, not shown
    if argv[0] == "simulate" and "--help" not in argv:
        argv = [*argv, *SMOKE, *(FEW if "--compare" in argv and "--policies" not in argv else [])]
    if argv[0] == "train" and len(argv) > 1 and "--help" not in argv:
        argv = shortened(argv)
    if argv[0] == "plan" and "--help" not in argv:
        argv = [*argv, *PLANNED]
    assert main(argv) == 0


def shortened(argv: list[str]) -> list[str]:
    """A training that ends soon; one that goes on needs a run that there is."""
    if "--resume" not in argv:
        return [*argv, *SHORT]
    which = argv[argv.index("--step") :][:2] if "--step" in argv else []
    return ["train", "--resume", STANDS_FOR["RUN"], *which, "steps=2"]


def parsed_bench(argv: list[str]) -> object:
    """The name of a benchmark that takes too long to be run here."""
    parser = Parser("windrow bench", "", "")
    bench.configure(parser)
    parser.add_argument("--json", action="store_true")
    return parser.parse_all(argv).name


def test_commands_are_found_where_they_are_shown():
    places = {where for where, _ in commands()}
    pages = {"README.md", "rollout.md", "simulator.md", "scheduler.md"}
    assert places >= pages | {f"windrow {name} --help" for name in COMMANDS}


def test_the_command_is_installed_beside_its_python():
    program = Path(sys.executable).with_name("windrow")
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("windrow ")


def test_the_error_in_the_readme_is_what_the_command_says(folder: Path, capsys: pytest.CaptureFixture[str]):
    shown = [line for line in code_of(ROOT / "README.md") if line.startswith("windrow: error: ")]
    assert main(["simulate", STANDS_FOR["CONFIG"], "machine.train.stalenes=1"]) == 2
    assert shown == [capsys.readouterr().err.strip()]


PYTHON = [
    pytest.param(code, id=f"{page.name}, block {number}", marks=[pytest.mark.ray] if "cluster.ray" in code else [])
    for page in PAGES
    for number, (language, code) in enumerate(FENCE.findall(page.read_text(encoding="utf-8")), start=1)
    if language == "python"
]


@pytest.mark.parametrize("code", PYTHON)
def test_python_that_is_shown_runs(code: str, folder: Path):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "a document", "exec"), {"__name__": "shown"})  # noqa: S102 it is our own
    assert said.getvalue().count("\n") >= code.count("print("), "it prints what it says"


def test_every_make_target_that_is_named_exists():
    rules = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = {target for page in PAGES for code in code_of(page) for target in re.findall(r"^make ([a-z]+)", code)}
    assert named >= {"demo", "test"}
    assert named - set(rules) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_into_the_repository_leads_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", FENCE.sub("", page.read_text(encoding="utf-8")))
    assert [link for link in links if not (page.parent / link).exists()] == []

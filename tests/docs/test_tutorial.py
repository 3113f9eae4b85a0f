"""The tutorial "your own environment" works as it is printed: every file, every command, every answer."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from windrow.checking.rules import RULES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "your_own_environment.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(py|yaml|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tutorial")


def sessions(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a block with the lines that it answers."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *answer = part.splitlines()
        yield command, answer


def pattern(answer: list[str]) -> str:
    """What an answer must look like: `…` stands for some characters, a line of three dots for some lines."""
    lines = [r"(?:.*\n)*?" if line == "..." else re.escape(line).replace("…", ".*") + r"[ ]*\n" for line in answer]
    return "".join(lines) + r"\s*"


def said(command: str, folder: Path) -> str:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shutil.which("bash") or "", "-c", command], cwd=folder, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=PATIENCE_S, env={**os.environ, "PATH": programs},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_the_tutorial_works_as_it_is_printed(folder: Path):
    """In order: a file that is shown again replaces the one before."""
    ran = 0
    for kind, text in BLOCK.findall(PAGE):
        if kind != "console":
            name = text.splitlines()[0].removeprefix("# ")
            assert re.fullmatch(rf"\w+\.{kind}", name), f"{name}: the first line of a file names it"
            (folder / name).write_text(text, encoding="utf-8")
            continue
        for command, answer in sessions(text):
            heard = said(command, folder)
            assert re.fullmatch(pattern(answer), heard), f"$ {command}\n{heard}\n--- is not ---\n" + "\n".join(answer)
            ran += 1
    assert ran >= 8


def test_all_code_of_the_tutorial_is_run():
    """A block of another kind would only be looked at."""
    assert {kind for kind in re.findall(r"^```(\w*)$", PAGE, re.MULTILINE) if kind} == {"py", "yaml", "console"}
    assert len(re.findall(r"^```", PAGE, re.MULTILINE)) == 2 * len(BLOCK.findall(PAGE))


def test_an_environment_takes_twenty_lines():
    for _, text in [block for block in BLOCK.findall(PAGE) if "class Caesar" in block[1]]:
        (made,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
        lines = text.splitlines()[made.lineno - 1 : made.end_lineno]
        assert sum(bool(line.strip()) for line in lines) <= 20


def test_the_example_is_what_the_tutorial_arrives_at():
    last = [text for _, text in BLOCK.findall(PAGE) if "class Caesar" in text][-1]
    example = (ROOT / "examples" / "own_environment.py").read_text(encoding="utf-8")
    assert last[last.index("class Caesar") :].strip() in example


def test_every_rule_is_listed_with_its_reason():
    rows = re.findall(r"^\| `([\w-]+)`( \(warning\))? \| (.*) \|$", PAGE, re.MULTILINE)
    assert rows == [
        (rule.name, " (warning)" if rule.severity == "warning" else "", rule.why) for rule in RULES.values()
    ]

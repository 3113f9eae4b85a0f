"""What a docstring tells of a function and its arguments.

Promises: text before the first section is the description; the lines of a section `Args:` are those of the arguments,
each with what follows further to the right. Other sections are left out. Nothing is ever refused here.
"""

import re
from inspect import cleandoc

from windrow.types import Value

ARGUMENTS = {"args:", "arguments:", "parameters:"}
SECTIONS = ARGUMENTS | {"returns:", "return:", "yields:", "raises:", "example:", "examples:", "note:", "notes:"}
ARGUMENT = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)")


class Told(Value, frozen=True, gc=True):
    """What a docstring says."""

    description: str
    arguments: dict[str, str]


def read_docstring(text: str) -> Told:
    """A docstring in Google's manner."""
    lines = cleandoc(text).splitlines()
    first = next((place for place, line in enumerate(lines) if line.strip().lower() in SECTIONS), len(lines))
    return Told("\n".join(lines[:first]).strip(), _arguments(lines[first:]))


def _arguments(lines: list[str]) -> dict[str, str]:
    told: dict[str, str] = {}
    within, depth, name = False, 0, ""
    for line in lines:
        said = line.strip()
        if said.lower() in SECTIONS:
            within, depth, name = said.lower() in ARGUMENTS, 0, ""
            continue
        if not within or not said:
            continue
        indent = len(line) - len(line.lstrip())
        depth = depth or indent
        found = ARGUMENT.fullmatch(said) if indent <= depth else None
        if found:
            name = found["name"]
            told[name] = found["text"]
        elif name:
            told[name] = f"{told[name]} {said}".strip()
    return told

"""`windrow explain` on a model of its own."""

import io
import json
from pathlib import Path
from typing import Annotated

import pytest
from msgspec import Meta, Struct

from windrow.cli.explain import explain
from windrow.cli.output import Output
from windrow.errors import ConfigError


class Fixed(Struct, tag="fixed", tag_field="kind", frozen=True):
    seconds: float = 1.0


class Tailed(Struct, tag="tailed", tag_field="kind", frozen=True):
    median: Annotated[float, Meta(gt=0, description="half are shorter")]


class Model(Struct):
    slots: Annotated[int, Meta(ge=1, description="episodes at once")]
    time: Annotated[Fixed | Tailed, Meta(description="how long it takes")] = Fixed()


def explained(*given: str) -> str:
    stdout = io.StringIO()
    explain(given, Model, Output(stdout=stdout))
    return stdout.getvalue()


def test_without_a_file_it_lists_what_could_be_set():
    assert explained() == (
        "# general\n"
        "slots: ?  [required]\n"
        "    episodes at once; an integer of 1 or more\n"
        "\n"
        "# time\n"
        "time.kind: fixed  [default]\n"
        "    how long it takes; one of fixed, tailed\n"
        "time.seconds: 1  [default]\n"
        "    a number (with time.kind: fixed)\n"
        "time.median: ?  [required]\n"
        "    half are shorter; a number above 0 (with time.kind: tailed)\n"
        "\n"
    )


def test_with_a_file_it_says_where_each_value_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("# words\nslots: 8\n", encoding="utf-8")
    assert explained("c.yaml", "time.seconds=2.5") == (
        "# general\n"
        "slots: 8  [c.yaml:2; required]\n"
        "    episodes at once; an integer of 1 or more\n"
        "\n"
        "# time\n"
        "time.kind: fixed  [default]\n"
        "    how long it takes; one of fixed, tailed\n"
        "time.seconds: 2.5  [command line; default 1]\n"
        "    a number\n"
        "\n"
    )


def test_programs_get_every_setting():
    stdout = io.StringIO()
    out = Output(json=True, stdout=stdout, stderr=io.StringIO())
    explain(["slots=3"], Model, out)
    out.finish()
    slots = json.loads(stdout.getvalue())["settings"][0]
    assert slots == {
        "key": "slots",
        "value": 3,
        "origin": "command line",
        "kind": "an integer of 1 or more",
        "default": None,
        "required": True,
        "description": "episodes at once",
        "when": "",
    }


def test_two_files_are_refused():
    with pytest.raises(ConfigError, match=r"^command line: one CONFIG at most, got a\.yaml and b\.yaml$"):
        explained("a.yaml", "b.yaml")

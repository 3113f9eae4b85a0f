"""`windrow simulate` without --compare: what people and programs read, and what it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.given import LONG_TAIL, SMALL, Said, Windrow, files

FIGURES = [
    "ended",
    "virtual time",
    "steps",
    "trajectories",
    "slots busy",
    "engines busy",
    "trainer busy",
    "batch waiting",
    "staleness",
    "dropped groups",
    "waste",
    "length bias",
    "bottleneck",
]
SMOKE = {
    "long_tail": SMALL,
    "agentic": ("steps=2", "slots=16", "workers=2", "machine.train.batch_size=16", "validation.every=1"),
    "trace": ("steps=2", "slots=16", "machine.train.batch_size=32"),
    "ten_thousand_engines": ("steps=2", "slots=32", "engines.count=4", "machine.train.batch_size=32"),
}


def test_every_example_has_a_smoke_size():
    assert sorted(path.stem for path in Path(__file__).parents[2].glob("examples/sim/*.yaml")) == sorted(SMOKE)


@pytest.mark.parametrize("name", SMOKE)
def test_people_read_every_figure_of_every_example(name: str, windrow: Windrow):
    said = windrow("simulate", f"examples/sim/{name}.yaml", *SMOKE[name])
    assert said.code == 0
    assert said.err == ""
    lines = said.out.splitlines()
    assert all(any(line.startswith(f" {figure}  ") for line in lines) for figure in FIGURES)
    assert " ended            done" in said.out


def test_programs_read_one_object_and_people_standard_error(windrow: Windrow, folder: Path):
    said = windrow("simulate", LONG_TAIL, *SMALL, "--json")
    assert said.code == 0
    assert " slots busy " in said.err
    assert (said.result["config"], said.result["seed"]) == (LONG_TAIL, 0)
    report = said.result["report"]
    assert (report["outcome"], report["steps"], report["trajectories"]) == ("done", 2, 64)
    assert 0 < report["slots_busy"] <= 1
    assert sum(report["staleness"].values()) == report["groups_delivered"]
    assert files(folder) == []


def test_the_same_seed_gives_the_same_journal_and_another_one_does_not(windrow: Windrow, folder: Path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert windrow("simulate", LONG_TAIL, *SMALL, f"seed={seed}", "--journal", name).code == 0
    a, b, c = (Path(name).read_bytes() for name in "abc")
    assert a == b
    assert a != c
    assert files(folder) == ["a", "b", "c"]


def test_a_journal_changes_no_figure(windrow: Windrow):
    reports = [
        windrow("simulate", LONG_TAIL, *SMALL, "--json", *more).result["report"] for more in ([], ["--journal", "j"])
    ]
    assert reports[0] == reports[1]


def test_a_run_that_the_scheduler_gives_up_says_why_and_fails(windrow: Windrow):
    said = windrow("simulate", LONG_TAIL, *SMALL, "faults.poisonous_share=1", "--json")
    assert said.code == 1
    assert "attempts failed" in said.result["report"]["outcome"]


def test_a_source_that_ends_is_no_failure(windrow: Windrow):
    said = windrow("simulate", LONG_TAIL, *SMALL, "source.tasks=3", "--json")
    assert said.code == 0
    assert said.result["report"]["outcome"] == "source ended"
    assert said.result["report"]["bottleneck"] == "source"


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["examples/sim/long_tial.yaml"], "examples/sim/long_tial.yaml: no such file; did you mean {config}?"),
        (["examples/sim"], "examples/sim: this is a folder; name a file in it"),
        (["{config}", "slotz=3"], "command line: unknown setting slotz; did you mean slots?"),
        (["{config}", "slots=many"], "command line: slots must be an integer of 1 or more, got 'many'"),
        (["{config}", "steps=0"], "command line: steps must be an integer of 1 or more, got 0"),
        (["{config}", "slots"], "command line: 'slots' sets nothing; write slots=VALUE"),
        (
            ["{config}", "machine.train.batch_size=12"],
            "command line: machine.train.batch_size must be a multiple of group_size (8), got 12; nearest: 8 or 16",
        ),
        (
            ["{config}", "machine.train.stalenes=1"],
            "command line: unknown setting machine.train.stalenes; did you mean machine.train.staleness?",
        ),
    ],
)
def test_a_wrong_config_is_one_line(argv: list[str], line: str, windrow: Windrow, folder: Path):
    said = windrow("simulate", *(word.format(config=LONG_TAIL) for word in argv), "--json")
    assert (said.code, said.line) == (2, f"windrow: error: {line.format(config=LONG_TAIL)}")
    assert files(folder) == []


def test_what_is_wrong_in_the_file_is_said_with_its_line(windrow: Windrow, folder: Path):
    Path("c.yaml").write_text("slots: 4\nsteps: 2\nepisod: {kind: duration}\n", encoding="utf-8")
    said = windrow("simulate", "c.yaml")
    assert (said.code, said.line) == (2, "windrow: error: c.yaml:3: unknown setting episod; did you mean episode?")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--compare", "--journal", "j"], ["--journal", "--compare"]),
        (["--png", "x.png"], ["--png", "--compare"]),
        (["--policies", "keep_1"], ["--policies", "--compare"]),
        (["--compare", "--policies", "kep_1"], ["--policies", "kep_1", "did you mean keep_1?"]),
        (["--compare", "--policies", "keep_1,xyz"], ["--policies", "xyz", "known are barrier, "]),
        (["--compare", "--policies", ""], ["--policies", "known are barrier, "]),
        (["--no-png"], ["--no-png", "--compare"]),
        (["--compare", "--png", "x.png", "--no-png"], ["--png", "--no-png"]),
        (["--compare", "--png", "x.jpg"], ["--png", "x.jpg", ".png"]),
        (["--compare", "--png", ""], ["--png"]),
        (["--journal", ""], ["--journal"]),
        (["--compre"], ["unknown option --compre", "did you mean --compare?"]),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_is_played(
    options: list[str], words: list[str], windrow: Windrow, folder: Path
):
    said = windrow("simulate", LONG_TAIL, *SMALL, *options)
    assert said.code == 2
    assert all(word in said.line for word in words)
    assert files(folder) == []


WHERE_NOTHING_CAN_BE_WRITTEN = ["missing/x.png", "file/x.png", "occupied.png"]


@pytest.mark.parametrize("path", WHERE_NOTHING_CAN_BE_WRITTEN)
@pytest.mark.parametrize("options", [["--journal"], ["--compare", "--policies", "keep_1", "--png"]])
def test_a_path_that_cannot_be_written_is_refused_before_anything_is_played(
    options: list[str], path: str, windrow: Windrow, folder: Path
):
    Path("occupied.png").mkdir()
    Path("file").touch()
    said = windrow("simulate", LONG_TAIL, *SMALL, *options, path)
    assert said.code == 2
    assert path in said.line, "as the user wrote it"
    assert files(folder) == ["file", "occupied.png"]
    assert files(folder / "occupied.png") == []


def test_a_run_that_cannot_begin_leaves_no_journal(windrow: Windrow, folder: Path):
    said = windrow("simulate", "examples/sim/trace.yaml", "episode.path=nope.csv", "--journal", "j")
    assert said.code == 2
    assert "nope.csv" in said.line
    assert files(folder) == []


def test_a_disk_that_is_full_is_one_line_and_leaves_no_journal(folder: Path):
    argv = [sys.executable, "-m", "windrow", "simulate", LONG_TAIL, *SMALL, "steps=50", "--journal", "j"]
    full = ["sh", "-c", 'ulimit -f 20; exec "$@"', "sh", *argv]
    done = subprocess.run(full, capture_output=True, text=True, check=False)
    said = Said(done.returncode, done.stdout, done.stderr)
    assert said.code == 1
    assert "j: " in said.line
    assert files(folder) == []

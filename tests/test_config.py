"""Reading a configuration: what is accepted, where it came from, and the one line that refuses the rest."""

import math
from pathlib import Path
from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct, field

from windrow.config import describe, load
from windrow.config.settings import REQUIRED
from windrow.errors import ConfigError

Count = Annotated[int, Meta(ge=1)]


class Train(Struct, frozen=True, kw_only=True):
    staleness: Annotated[float, Meta(ge=0, description="bound on the lag, in versions")] = 0.0
    on_stale: Annotated[Literal["wait", "keep", "drop"] | None, Meta(description="what then")] = None
    tail: Annotated[float, Meta(ge=0, le=1)] = 0.0
    tags: Annotated[dict[str, Annotated[float, Meta(gt=0)]], Meta(description="weights")] = {}

    def __post_init__(self) -> None:
        if self.tail and self.staleness:
            raise ConfigError("tail needs staleness 0, got tail 0.5; set tail: 0")
        if len(self.tags) == 1:
            raise ValueError("one tag needs no weight")


class Fixed(Struct, tag="fixed", tag_field="kind", frozen=True):
    seconds: Annotated[float, Meta(gt=0)] = 1.0


class Tailed(Struct, tag="tailed", tag_field="kind", frozen=True):
    median: Annotated[float, Meta(gt=0)]
    sigma: Annotated[float, Meta(ge=0, le=3)] = 0.9


class Engine(Struct, frozen=True):
    speed: Annotated[Count, Meta(description="tokens per second")]
    name: Annotated[str, Meta(description="what it is called")] = "engine"


class Stage(Struct, frozen=True):
    steps: Count = 1


class Model(Struct, frozen=True, kw_only=True):
    slots: Annotated[Count, Meta(description="episodes at once")] = 64
    loose: Annotated[float, Meta(description="any number")] = 0.0
    grace: Annotated[float, Meta(gt=0, lt=1_000_000)] | None = None
    ahead: bool = True
    train: Train = Train()
    val: Train = Train(staleness=2.0)
    time: Annotated[Fixed | Tailed, Meta(description="how long an episode takes")] = Fixed()
    pause: float | Fixed | Tailed = 0.0
    engines: dict[str, Engine] = {}
    limits: dict[Literal["gpu", "cpu"], Count] = {}
    stages: list[Stage] = []
    seeds: Annotated[list[Count], Meta(min_length=1, max_length=3)] = field(default_factory=lambda: [1])
    label: str | None = None

    def __post_init__(self) -> None:
        if self.slots == 13:
            raise ValueError("slots may not be 13; use 12")
        if self.val.staleness > self.slots:
            raise ValueError("val.staleness is above slots")


def wrote(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Messages name the file as it was given, so the tests give it without a folder."""
    monkeypatch.chdir(tmp_path)


def refused(text: str, *overrides: str) -> str:
    wrote(Path(), text)
    with pytest.raises(ConfigError) as caught:
        load("c.yaml", overrides, Model)
    return str(caught.value)


# --- what is accepted ---


def test_a_file_and_overrides_become_the_model():
    path = wrote(Path(), "slots: 8\ntrain:\n  staleness: 1\n  tags: {a: 1, b: 2.5}\n")
    value = load(path, ["train.staleness=0.5", "train.on_stale=keep", "engines.fast.speed=9"], Model).value
    assert value.train == Train(staleness=0.5, on_stale="keep", tags={"a": 1.0, "b": 2.5})
    assert value.slots == 8
    assert value.engines == {"fast": Engine(9)}


def test_every_setting_has_an_origin():
    path = wrote(Path(), "slots: 8\ntrain:\n  # words\n  staleness: 1\n  tags: {a: 1, b: 2}\n")
    origins = load(path, ["val.tail=0", "engines.fast.speed=9", "train.tags.b=3"], Model).origins
    assert origins["slots"] == "c.yaml:1"
    assert origins["train.staleness"] == "c.yaml:4"
    assert origins["train.tags.a"] == "c.yaml:5"
    assert origins["train.tags.b"] == "command line"
    assert origins["val.tail"] == "command line"
    assert origins["engines.fast.speed"] == "command line"
    assert origins["engines.fast.name"] == "default"
    assert origins["train.tail"] == "default"
    assert origins["time.kind"] == "default"


def test_without_a_file_there_are_defaults_and_overrides():
    loaded = load(None, ["slots=3"], Model)
    assert loaded.value == Model(slots=3)
    assert set(loaded.origins.values()) == {"default", "command line"}


def test_a_tag_chooses_the_form_of_a_section():
    path = wrote(Path(), "time: {kind: tailed, median: 3}\npause: 2\n")
    assert load(path, [], Model).value.time == Tailed(median=3.0)
    assert load(path, ["time={kind: fixed, seconds: 4}"], Model).value.time == Fixed(4.0)
    assert load(path, ["pause={kind: fixed}"], Model).value.pause == Fixed()
    assert load(path, [], Model).value.pause == 2.0


def test_what_a_section_does_not_say_stays_as_in_its_default():
    value = load(wrote(Path(), "val: {tail: 0}\npause: {kind: tailed, median: 1}"), [], Model).value
    assert value.val == Train(staleness=2.0)
    value = load("c.yaml", ["time.seconds=7", "pause.sigma=2"], Model).value
    assert value.time == Fixed(7.0)
    assert value.pause == Tailed(1.0, 2.0)


def test_lists_of_values_and_of_sections():
    path = wrote(Path(), "seeds: [1, 2]\nstages:\n- steps: 4\n- {}\n")
    loaded = load(path, ["seeds=[7]"], Model)
    assert loaded.value.seeds == [7]
    assert loaded.value.stages == [Stage(4), Stage()]
    assert loaded.origins["stages[0].steps"] == "c.yaml:3"
    assert loaded.origins["stages[1].steps"] == "default"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 0.001),
        ("1_000", 1000.0),
        ("-2.5E3", -2500.0),
        (".5", 0.5),
        ("3.", 3.0),
        (".inf", math.inf),
        ("-.inf", -math.inf),
    ],
)
def test_numbers_are_read_as_they_look(written: str, value: float):
    assert load(wrote(Path(), f"loose: {written}"), [], Model).value.loose == value


@pytest.mark.parametrize("written", ["off", "1:30", "010", "2026-11-15", "0x10", "'12'", "="])
def test_words_stay_words(written: str):
    assert load(wrote(Path(), f"label: {written}"), [], Model).value.label == written.strip("'")


def test_an_anchor_is_read_where_it_is_used():
    path = wrote(Path(), "train: &t\n  staleness: 1\nval: *t\n")
    assert load(path, [], Model).value.val == Train(staleness=1.0)


# --- what is refused ---

FILES = [
    # unknown
    ("train:\n  stalenes: 1", ":2: unknown setting train.stalenes; did you mean train.staleness?"),
    ("Slots: 1", ":1: unknown setting Slots; did you mean slots?"),
    ("on_stale: keep", ":1: unknown setting on_stale; did you mean train.on_stale?"),
    (
        "train: {zzz: 1}",
        ":1: unknown setting train.zzz; known are staleness, on_stale, tail, tags",
    ),
    ("engines:\n  a:\n    sped: 1", ":3: unknown setting engines.a.sped; did you mean engines.a.speed?"),
    ("time:\n  median: 1\n  kind: fixed", ":2: unknown setting time.median; it needs time.kind: tailed"),
    ("stages:\n- steps: 1\n- stepz: 1", ":3: unknown setting stages[1].stepz; did you mean stages[1].steps?"),
    (
        "<<: {slots: 1}",
        (
            ":1: unknown setting <<; known are slots, loose, grace, ahead, train, val, time, pause, engines, "
            "limits, stages, seeds, label"
        ),
    ),
    # of the wrong kind or out of bounds
    ("slots: many", ":1: slots must be an integer of 1 or more, got 'many'"),
    ("slots: 0", ":1: slots must be an integer of 1 or more, got 0"),
    ("slots: '8'", ":1: slots must be an integer of 1 or more, got '8'; did you mean 8, without quotes?"),
    ("slots: 1e3", ":1: slots must be an integer of 1 or more, got 1000.0; did you mean 1000?"),
    ("slots: 1.5", ":1: slots must be an integer of 1 or more, got 1.5"),
    ("slots: true", ":1: slots must be an integer of 1 or more, got true"),
    ("grace: 0", ":1: grace must be a number above 0 and below 1000000 or null, got 0"),
    ("slots:", ":1: slots must be an integer of 1 or more, got nothing"),
    ("slots: [1]", ":1: slots must be an integer of 1 or more, got [1]"),
    ("slots: {a: 1}", ":1: slots must be an integer of 1 or more, got {'a': 1}"),
    ("ahead: yes", ":1: ahead must be true or false, got 'yes'"),
    ("ahead: 'true'", ":1: ahead must be true or false, got 'true'; did you mean true, without quotes?"),
    ("label: 12", ":1: label must be text or null, got 12; put it in quotes"),
    ("train: {tail: 2}", ":1: train.tail must be a number from 0 to 1, got 2"),
    (
        "train: {on_stale: kep}",
        ":1: train.on_stale must be one of wait, keep, drop or null, got 'kep'; did you mean keep?",
    ),
    (
        "train: {on_stale: 3}",
        ":1: train.on_stale must be one of wait, keep, drop or null, got 3",
    ),
    ("train:\n  tags:\n    a: 1\n    b: -1", ":4: train.tags.b must be a number above 0, got -1"),
    ("limits: {gpu: 1, cpus: 1}", ":1: 'cpus' in limits must be one of gpu, cpu; did you mean cpu?"),
    (
        "seeds: []",
        ":1: seeds must be a list of at least 1 and at most 3 items, each an integer of 1 or more, got []",
    ),
    ("seeds:\n- 1\n- x", ":3: seeds[1] must be an integer of 1 or more, got 'x'"),
    (
        "seeds: 3",
        ":1: seeds must be a list of at least 1 and at most 3 items, each an integer of 1 or more, got 3",
    ),
    # not a number
    (
        "train: {staleness: .nan}",
        ":1: train.staleness must be a number of 0 or more, got nan; use a finite number",
    ),
    (
        "train: {staleness: .inf}",
        ":1: train.staleness must be a number of 0 or more, got inf; use a finite number",
    ),
    ("loose: .nan", ":1: loose must be a number, got nan; use a finite number"),
    # sections
    ("train: 3", ":1: train must be a section (staleness, on_stale, tail, …), got 3"),
    ("train:", ":1: train must be a section (staleness, on_stale, tail, …), got nothing"),
    ("engines: {a: 3}", ":1: engines.a must be a section (speed, name), got 3"),
    ("engines:\n  a: {name: x}", ":2: engines.a.speed is missing; it must be an integer of 1 or more"),
    ("pause: {seconds: 1}", ":1: pause.kind is missing; it must be one of fixed, tailed"),
    ("time: {kind: fixd}", ":1: time.kind must be one of fixed, tailed, got 'fixd'; did you mean fixed?"),
    ("time: {kind: tailed}", ":1: time.median is missing; it must be a number above 0"),
    ("time: 3", ":1: time must be a section with kind: fixed or a section with kind: tailed, got 3"),
    (
        "pause: soon",
        ":1: pause must be a number or a section with kind: fixed or a section with kind: tailed, got 'soon'",
    ),
    # settings that do not go together
    ("slots: 13", ":1: slots may not be 13; use 12"),
    ("train:\n  staleness: 1\n  tail: 0.5", ":3: train.tail needs staleness 0, got tail 0.5; set tail: 0"),
    ("train:\n  tags: {a: 1}", ":1: train: one tag needs no weight"),
    ("slots: 1", ": val.staleness is above slots"),
    ("slots: 1\nval:\n  staleness: 3", ":3: val.staleness is above slots"),
    # not a configuration
    ("", ": the file is empty; it must hold settings, one `key: value` per line"),
    ("# words\n", ": the file is empty; it must hold settings, one `key: value` per line"),
    ("\n- 1", ":2: the file must hold settings, one `key: value` per line"),
    ("words", ":1: the file must hold settings, one `key: value` per line"),
    ("slots: 1\nslots: 2", ":2: slots is set twice; keep one"),
    ("train:\n  tail: 0\n  tail: 0", ":3: train.tail is set twice; keep one"),
    ("? [a]\n: 1", ":1: a key of the file must be one word"),
    ("slots: 1\n  tail: 2", ":2: this is not YAML: mapping values are not allowed here"),
    (
        "slots: [1",
        ":1: this is not YAML: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'",
    ),
    (
        "a: 1\n---\nb: 2",
        ":2: this is not YAML: expected a single document in the stream, but found another document",
    ),
    ("slots: \x00", ": this is not YAML: unacceptable character #x0000: special characters are not allowed"),
    ("slots: !!python/name:os.system", ":1: slots has the tag python/name:os.system; write a plain value"),
    ("train: &t\n  tags: *t", ":1: train.tags contains itself; write it out"),
]


@pytest.mark.parametrize(("text", "message"), FILES)
def test_a_wrong_file_is_refused_in_one_line(text: str, message: str):
    assert refused(text) == f"c.yaml{message}"


OVERRIDES = [
    ("train.stalenes=1", "command line: unknown setting train.stalenes; did you mean train.staleness?"),
    ("trian.tail=1", "command line: unknown setting trian; did you mean train?"),
    ("staleness=1", "command line: unknown setting staleness; did you mean train.staleness?"),
    ("slots", "command line: 'slots' sets nothing; write slots=VALUE"),
    ("=3", "command line: '=3' names no setting; write section.key=VALUE"),
    ("train..tail=3", "command line: 'train..tail=3' names no setting; write section.key=VALUE"),
    ("slots=many", "command line: slots must be an integer of 1 or more, got 'many'"),
    ("slots=", "command line: slots must be an integer of 1 or more, got nothing"),
    ("slots=13", "command line: slots may not be 13; use 12"),
    (
        "label=@a",
        (
            "command line: label=@a is not YAML: while scanning for the next token, found character '@' "
            "that cannot start any token"
        ),
    ),
    ("slots=!x 1", "command line: slots has the tag !x; write a plain value"),
    ("train=3", "command line: train is a section; set what is in it, such as train.staleness=VALUE"),
    ("train={tail: 0}", "command line: train is a section; set what is in it, such as train.staleness=VALUE"),
    ("loose.x=3", "command line: loose.x cannot be set, because loose is 1 (c.yaml:1)"),
    ("ahead.x=3", "command line: ahead must be true or false, got {'x': 3}"),
    ("train.tags={a: 1, a: 2}", "command line: train.tags.a is set twice; keep one"),
    ("engines.a.name=x", "command line: engines.a.speed is missing; it must be an integer of 1 or more"),
    ("time.kind=tailed", "command line: time.median is missing; it must be a number above 0"),
]


@pytest.mark.parametrize(("override", "message"), OVERRIDES)
def test_a_wrong_override_is_refused_in_one_line(override: str, message: str):
    assert refused("loose: 1", override) == message


def test_a_long_value_is_cut():
    assert len(refused(f"slots: {'x' * 500}")) < 130


def test_a_missing_file_names_the_nearest():
    wrote(Path(), "slots: 1")
    for name, message in [
        ("d.yaml", "d.yaml: no such file; did you mean c.yaml?"),
        ("quite_else.yml", "quite_else.yml: no such file; known are c.yaml"),
        ("nowhere/c.yaml", "nowhere/c.yaml: no such file; there is no folder nowhere either"),
        (".", ".: this is a folder; name a file in it"),
    ]:
        with pytest.raises(ConfigError) as caught:
            load(name, [], Model)
        assert str(caught.value) == message


def test_a_file_that_is_not_text_is_refused():
    Path("c.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"^c\.yaml: this is not text in UTF-8"):
        load("c.yaml", [], Model)


def test_a_required_setting_of_the_top_is_asked_for():
    with pytest.raises(ConfigError) as caught:
        load(None, [], Engine)
    assert str(caught.value) == "command line: speed is missing; it must be an integer of 1 or more"


# --- the list of settings ---


def test_describe_lists_what_could_be_set():
    settings = {(s.key, s.when): s for s in describe(Model)}
    slots = settings["slots", ""]
    assert (slots.kind, slots.default, slots.description) == (
        "an integer of 1 or more",
        64,
        "episodes at once",
    )
    assert settings["val.staleness", ""].default == 2.0
    assert settings["time.kind", ""].kind == "one of fixed, tailed"
    assert settings["time.kind", ""].default == "fixed"
    assert settings["time.median", "time.kind: tailed"].default is REQUIRED
    assert settings["engines.NAME.speed", ""].description == "tokens per second"
    assert settings["stages[0].steps", ""].kind == "an integer of 1 or more"
    assert settings["limits", ""].kind == "a mapping, each value an integer of 1 or more"


def test_describe_with_a_value_lists_what_is_set():
    value = load(None, ["engines.fast.speed=9", "time={kind: tailed, median: 2}"], Model).value
    settings = {s.key: s for s in describe(Model, value)}
    assert settings["engines.fast.speed"].value == 9
    assert settings["time.kind"].value == "tailed"
    assert settings["time.median"].value == 2.0
    assert "time.seconds" not in settings
    assert settings["label"].value is None

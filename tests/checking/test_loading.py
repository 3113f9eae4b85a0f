"""What can be named, and what is said about what cannot."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from windrow.checking.examining import examine
from windrow.checking.loading import load
from windrow.checking.settings import CheckSettings
from windrow.errors import ConfigError
from windrow.trajectory import Task

OWN = """
import windrow as wr
from windrow.envs.drawing import draw
from windrow.envs.plain import plain


class Env:
    def __init__(self, limit=1000):
        self.limit = limit

    async def start(self, task):
        self.number = draw(task, lambda rng: rng.randint(0, self.limit), str)
        return f"say {self.number}"

    async def step(self, action):
        return wr.Step(reward=float(action == str(self.number)), terminated=True)

    async def close(self): ...

    def solve(self):
        return str(self.number)


class Plain:
    def reset(self, task):
        self.number = draw(task, lambda rng: rng.randint(0, 1000), str)
        return f"say {self.number}"

    def step(self, action):
        return "", float(action == str(self.number)), True, {}

    def solve(self):
        return str(self.number)


async def rollout(task, policy):
    number = draw(task, lambda rng: rng.randint(0, 1000), str)
    return float(await policy(f"say {number}") == str(number))


class Needs(Env):
    def __init__(self, path):
        self.path = path


class Half:
    async def start(self, task): ...


class Bad(Env):
    def __init__(self):
        raise OSError("no disk")


class Leaves(Env):
    def __init__(self):
        raise SystemExit("bye")


class Fails:
    def score(self, trajectory):
        return {}["x"]


class NeverBegins(Fails):
    async def start(self):
        raise OSError("no server")


class Together:
    async def score_group(self, trajectories):
        return [float(each.score) for each in trajectories]


class Loud:
    def score(self, trajectory):
        return float(trajectory.answer.isupper())


def make(limit=1000):
    return Env(limit)


def makes_plain():
    return Plain()


def numbers():
    yield 1


adapted = plain(Plain)
NUMBER = 7
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("own.py").write_text(OWN, encoding="utf-8")
    Path("random.py").write_text(OWN, encoding="utf-8")
    Path("package").mkdir()
    Path("package/inner.py").write_text("from own import Env\n", encoding="utf-8")
    yield
    for name in ("own", "package", "package.inner"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("target", "form"),
    [
        ("guess", "shipped"),
        ("own.py:Env", "env"),
        ("own:Env", "env"),
        ("package.inner:Env", "env"),
        ("own.py:Plain", "plain"),
        ("own.py:rollout", "agent"),
        ("own.py:make", "factory"),
        ("own.py:adapted", "factory"),
    ],
)
def test_an_environment_is_found_and_can_be_played(target: str, form: str):
    subject = load(target, {})
    assert subject.form == form

    async def body() -> None:
        env = subject.make()
        assert await env.start(Task(ordinal=0))
        await env.step("1")
        await env.close()

    asyncio.run(body())


@pytest.mark.parametrize("name", ["Env", "Plain", "rollout", "make", "adapted"])
def test_every_way_to_write_one_passes_the_check(name: str):
    report, _ = examine(load(f"own.py:{name}", {}), CheckSettings(tasks=5))
    assert {finding.rule for finding in report.findings} <= {"solve-missing"}


def test_arguments_go_to_the_class():
    made = load("own.py:Env", {"limit": 3}).make()
    assert vars(made)["limit"] == 3
    assert vars(load("own.py:make", {"limit": 4}).make())["limit"] == 4


def test_a_reward_of_ones_own_scores_it():
    report, _ = examine(load("own.py:Env", {}, "own.py:Loud"), CheckSettings(tasks=5))
    assert report.solve_score == 0.0, "numbers have no capitals"
    assert {finding.rule for finding in report.findings} == {"solve-short"}


def test_a_reward_of_a_whole_group_scores_it():
    assert examine(load("own.py:Env", {}, "own.py:Together"), CheckSettings(tasks=5))[0].findings == ()


@pytest.mark.parametrize(
    ("reward", "message", "ended"),
    [
        ("Fails", "reward Fails: KeyError: 'x'", "given up after a reward that fails"),
        ("NeverBegins", "reward NeverBegins start: OSError: no server", "stopped by its reward"),
    ],
)
def test_a_reward_that_fails_is_no_score(reward: str, message: str, ended: str):
    report, _ = examine(load("own.py:Env", {}, f"own.py:{reward}"), CheckSettings(tasks=50))
    (found,) = report.findings
    assert (found.rule, found.message) == ("reward-fails", message)
    assert (report.solve_score, report.ok, report.ended) == (None, False, ended)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("gues", "unknown environment 'gues'; did you mean guess?"),
        ("nope.py:Env", "nope.py: no such file"),
        ("ow.py:Env", "ow.py: no such file; did you mean own.py?"),
        ("own.py:Envs", "own.py has no 'Envs'; did you mean Env?"),
        ("own.py", "own.py may hold several things; write own.py:NAME; known are Env, Plain, rollout, "),
        ("own.py:Half", "own.py:Half has no step and no close; an environment has start, step and close"),
        ("own.py:NUMBER", "own.py:NUMBER is 7; name a class with start, step and close or with reset and step, "),
        ("own.py:numbers", "own.py:numbers is a generator; write `async def rollout(task, policy)`"),
        ("own.py:Needs", "own.py:Needs cannot be made: TypeError: Needs.__init__() missing 1 required positional "),
        ("own.py:Bad", "own.py:Bad cannot be made: OSError: no disk"),
        ("own.py:Leaves", "own.py:Leaves cannot be made: SystemExit: bye"),
        ("own.py:makes_plain", "wrap it in windrow.envs.plain.plain"),
        ("random.py:Env", "random.py hides the module random; give the file another name"),
        ("nowhere:Env", "module nowhere cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
        ("a/b:Env", "'a/b' is neither a file nor a module; write path.py:Class or package.module:Class"),
        (":Env", "'' is neither a file nor a module; write path.py:Class or package.module:Class"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(target: str, words: str):
    with pytest.raises(ConfigError) as caught:
        load(target, {})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_argument_that_is_missing_or_unknown_says_how_to_give_one():
    with pytest.raises(ConfigError, match=r"'path'; give arguments with --args NAME=VALUE$"):
        load("own.py:Needs", {})
    with pytest.raises(ConfigError, match=r"unexpected keyword argument 'limits'.*; give arguments with --args"):
        load("own.py:Env", {"limits": 3})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n", r"own\.py cannot be loaded: SyntaxError: .* \(own\.py:1\)$"),
        ("x = 1 / 0\n", r"own\.py cannot be loaded: ZeroDivisionError: division by zero \(own\.py:1\)"),
        ("raise SystemExit\n", r'own\.py ends the program while it is loaded; put what it does under if __name__ == "'),
    ],
)
def test_a_file_that_breaks_says_where(text: str, words: str):
    Path("own.py").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"^{words}"):
        load("own.py:Env", {})


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ("maths", "unknown reward 'maths'; did you mean math?"),
        ("own.py:NUMBER", r"reward own\.py:NUMBER is 7, which has no score\(trajectory\)"),
        ("own.py:Bad", r"reward own\.py:Bad cannot be made: OSError: no disk"),
    ],
)
def test_a_reward_that_is_none_is_refused(reward: str, words: str):
    with pytest.raises(ConfigError, match=f"^{words}"):
        load("own.py:Env", {}, reward)

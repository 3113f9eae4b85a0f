"""The filter of system calls, tried on every number, for both kinds of machine, without installing it."""

import errno
import struct

import pytest

from windrow.sandbox import filters

ALLOWED = "allowed"
MASK = 0xFFFFFFFF


def answer(program: bytes, number: int, *arguments: int, architecture: int) -> str:
    """What the kernel would answer: a small machine for the few instructions that are used."""
    data = struct.pack("=iIQ6Q", number - (1 << 32 if number >> 31 else 0), architecture, 0, *_six(arguments))
    rules = [*struct.iter_unpack("=HBBI", program)]
    place, held = 0, 0
    while True:
        code, yes, no, operand = rules[place]
        place += 1
        match code:
            case filters.LOAD:
                (held,) = struct.unpack_from("=I", data, operand)
            case filters.AND:
                held &= operand
            case filters.RETURN:
                return _words(operand)
            case filters.IF_EQUAL:
                place += yes if held == operand else no
            case filters.IF_AT_LEAST:
                place += yes if held >= operand else no
            case filters.IF_ANY_BIT:
                place += yes if held & operand else no
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


def _six(arguments: tuple[int, ...]) -> list[int]:
    return [*(argument & (1 << 64) - 1 for argument in arguments), *[0] * (6 - len(arguments))]


def _words(verdict: int) -> str:
    match verdict:
        case filters.ALLOW:
            return ALLOWED
        case filters.KILL:
            return "killed"
        case _:
            assert verdict & ~0xFFFF == filters.REFUSE
            return errno.errorcode[verdict & 0xFFFF]


class Filter:
    """One of the four filters."""

    def __init__(self, kind: str, *, namespaces: bool) -> None:
        self.column = ["x86_64", "aarch64"].index(kind)
        self.architecture = filters.ARCHITECTURES[kind]
        self.program = filters.compiled(namespaces=namespaces, process=77)
        self.listed = {*filters._numbers(filters.ANYBODY + (filters.IN_NAMESPACES if namespaces else ""), self.column)}

    def of(self, number: int, *arguments: int) -> str:
        return answer(self.program, number, *arguments, architecture=self.architecture)

    def named(self, name: str, *arguments: int) -> str:
        return self.of(filters.WITH_CARE[name][self.column], *arguments)


@pytest.fixture(params=["x86_64", "aarch64"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(filters, "machine", lambda: request.param)
    return str(request.param)


@pytest.mark.parametrize("namespaces", [True, False])
def test_what_is_listed_is_allowed_and_nothing_else(kind: str, namespaces: bool):
    tried = Filter(kind, namespaces=namespaces)
    care = {numbers[tried.column] for numbers in filters.WITH_CARE.values()} - tried.listed
    for number in {*range(1000)} - care:
        wanted = ALLOWED if number in tried.listed else "ENOSYS" if number >= filters.FIRST_NEW else "EPERM"
        assert tried.of(number) == wanted, number


def test_other_numberings_are_no_way_around(kind: str):
    tried = Filter(kind, namespaces=True)
    read = filters._numbers("read=0,63", tried.column)[0]
    assert tried.of(read) == ALLOWED
    assert {tried.of(number) for number in (0x40000000 + read, 0xFFFFFFFF, 1 << 31)} == {"EPERM"}
    assert answer(tried.program, read, architecture=0x40000003) == "killed", "a program of 32 bits"


@pytest.mark.parametrize(
    ("flags", "verdict"),
    [
        (17, ALLOWED),
        (0x3D0F00, ALLOWED),
        (0x10000000 | 17, "EPERM"),
        (0x40000000, "EPERM"),
        (0x00020000, "EPERM"),
        (0x8000, "EPERM"),
    ],
)
def test_children_and_threads_but_no_namespaces(kind: str, flags: int, verdict: str):
    assert Filter(kind, namespaces=True).named("clone", flags) == verdict
    assert Filter(kind, namespaces=False).named("clone", flags) == "EPERM", "one thread, without namespaces"


@pytest.mark.parametrize(
    ("family", "form", "verdict"),
    [(1, 1, ALLOWED), (1, 1 | 0x80000, ALLOWED), (1, 2, "EPERM"), (1, 5, "EPERM"), (2, 1, "EPERM"), (30, 1, "EPERM")],
)
def test_pairs_of_sockets_are_connected_streams(kind: str, family: int, form: int, verdict: str):
    assert Filter(kind, namespaces=True).named("socketpair", family, form) == verdict


def test_without_namespaces_a_program_signals_itself_alone(kind: str):
    tried = Filter(kind, namespaces=False)
    assert tried.named("kill", 77) == tried.named("tgkill", 77) == ALLOWED
    assert {tried.named(name, pid) for name in ("kill", "tgkill") for pid in (0, 1, -1, -77, 78)} == {"EPERM"}


@pytest.mark.parametrize(
    ("name", "arguments", "verdict"),
    [
        ("fcntl", (0, 1030), ALLOWED),
        ("fcntl", (0, 8), "EPERM"),
        ("fcntl", (0, 1033), "EPERM"),
        ("ioctl", (0, 0x5401), ALLOWED),
        ("ioctl", (0, 0x5412), "ENOTTY"),
        ("prctl", (15,), ALLOWED),
        ("prctl", (1,), "EPERM"),
        ("prctl", (22,), "EPERM"),
        ("prlimit64", (0,), ALLOWED),
        ("prlimit64", (5,), "EPERM"),
    ],
)
def test_calls_of_many_uses_are_looked_at(kind: str, name: str, arguments: tuple[int, ...], verdict: str):
    assert Filter(kind, namespaces=True).named(name, *arguments) == verdict

"""What the tests of the command have in common."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
LONG_TAIL = "examples/sim/long_tail.yaml"
SMALL = ("steps=2", "seeds=1", "slots=16", "machine.train.batch_size=32")
"""Overrides that make the long tail short."""


@dataclass(frozen=True)
class Said:
    """What the command answered."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """The one object for programs; standard output holds nothing else."""
        assert self.out.endswith("}\n")
        assert self.out.count("\n") == 1
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def line(self) -> str:
        """The one line of an error."""
        assert self.out == ""
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1
        return self.err.removesuffix("\n")


Windrow = Callable[..., Said]


def files(folder: Path) -> list[str]:
    """All files in a folder, hidden ones too, the examples left out."""
    return sorted(path.name for path in folder.iterdir() if path.name != "examples")

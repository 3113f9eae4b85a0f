"""Which software a run was made with."""

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "windrow", "msgspec", "numpy", "torch", "transformers", "tokenizers", "safetensors", "tensordict", "peft",
    "gymnasium", "datasets", "ray", "vllm",
)  # fmt: skip
"""Those on which results depend; what is not installed is left out."""
GIT_S = 5.0
"""A working tree that takes longer to look at is not worth the wait."""

Versions = dict[str, str]


def versions(folder: Path | None = None) -> Versions:
    """Of this process; nothing is imported. `git` is the revision of this folder, `-dirty` if it was changed."""
    found = {
        **dict(_installed(PACKAGES)),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    revision = _revision(folder or Path.cwd())
    return {**found, "git": revision} if revision else found


def changed(then: Versions, now: Versions) -> list[str]:
    """What is different, in words."""
    names = [*then, *(name for name in now if name not in then)]
    return [
        f"{name} was {then.get(name, 'missing')} and is {now.get(name, 'missing')}"
        for name in names
        if then.get(name) != now.get(name)
    ]


def _installed(packages: Iterable[str]) -> Iterable[tuple[str, str]]:
    for name in packages:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def _revision(folder: Path) -> str:
    """Empty where there is no git or no revision."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=GIT_S, check=True)  # noqa: S603 the command is ours
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()

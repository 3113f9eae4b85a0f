"""Python, packages, devices, and what the sandbox can hold here."""

import asyncio
import importlib
import platform
import sys
from importlib import metadata

from windrow.doctor.findings import Finding
from windrow.errors import WindrowError
from windrow.sandbox.pool import Sandbox
from windrow.sandbox.values import Level, SandboxSettings

OLDEST = (3, 11)
NEEDED = ("windrow", "msgspec", "numpy", "pyyaml", "rich", "cloudpickle")
MODELS = ("torch", "transformers", "tokenizers", "safetensors", "tensordict", "jinja2")
EXTRAS = {
    "openai": ("aiohttp",),
    "envs": ("gymnasium", "math-verify"),
    "data": ("datasets", "pyarrow"),
    "lora": ("peft",),
    "plot": ("matplotlib",),
    "mcp": ("mcp",),
}
"""What is nice to have, by the extra that brings it."""


def findings() -> list[Finding]:
    """Everything about the software here."""
    return [
        python(sys.version_info[:2]),
        needed({name: version_of(name) for name in NEEDED}),
        models({name: version_of(name) for name in MODELS}),
        extras({extra: [name for name in names if version_of(name) is None] for extra, names in EXTRAS.items()}),
        devices(cuda_devices() if version_of("torch") else None),
        sandbox(*sandbox_level()),
    ]


def python(version: tuple[int, ...]) -> Finding:
    found = f"{platform.python_version()} on {platform.platform()}"
    if version < OLDEST:
        return Finding("python", "bad", found, "windrow needs Python 3.11 or newer")
    return Finding("python", "ok", found)


def needed(versions: dict[str, str | None]) -> Finding:
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return Finding("packages", "bad", f"missing: {', '.join(missing)}", "pip install windrow brings them")
    return Finding("packages", "ok", _listed(versions))


def models(versions: dict[str, str | None]) -> Finding:
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        advice = "pip install 'windrow[torch]' to train and to generate here; simulating works without"
        return Finding("models", "warn", f"missing: {', '.join(missing)}", advice)
    return Finding("models", "ok", _listed(versions))


def extras(missing: dict[str, list[str]]) -> Finding:
    """What is missing is no fault; whoever needs it is told what to install."""
    absent = {extra: names for extra, names in missing.items() if names}
    if not absent:
        return Finding("extras", "ok", f"all there: {', '.join(missing)}")
    named = "; ".join(f"{extra} ({', '.join(names)})" for extra, names in absent.items())
    return Finding("extras", "ok", f"not installed: {named}", "pip install 'windrow[NAME]' if you need one")


def devices(number: int | None) -> Finding:
    if number is None:
        return Finding("devices", "ok", "unknown without torch")
    if number == 0:
        return Finding("devices", "ok", "no CUDA device; models run on cores, and devices are logical ones")
    return Finding("devices", "ok", f"{number} CUDA devices", "set engine.device and model.device to use them")


def sandbox(level: Level | None, why: str) -> Finding:
    if level is None:
        return Finding("sandbox", "warn", why, "programs that a model wrote cannot be run here; see docs/sandbox.md")
    if level == "limits":
        advice = "allow user namespaces, or Linux 6.2 with Landlock; until then run only programs that you trust"
        return Finding("sandbox", "warn", "limits alone, which stop accidents and no attack", advice)
    return Finding("sandbox", "ok", f"level {level}")


def version_of(package: str) -> str | None:
    """None if it is not installed; nothing is imported."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cuda_devices() -> int | None:
    """How many torch sees; None if it cannot be imported."""
    try:
        torch = importlib.import_module("torch")
    except (ImportError, OSError):
        return None
    return int(torch.cuda.device_count())


def sandbox_level() -> tuple[Level | None, str]:
    """The best level that works, or why none does."""
    try:
        return asyncio.run(_opened()), ""
    except (WindrowError, OSError) as error:
        return None, str(error)


async def _opened() -> Level:
    async with Sandbox(SandboxSettings(at_least="limits")) as sandbox:
        return sandbox.level


def _listed(versions: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())

"""The public names, and what importing them costs."""

import subprocess
import sys

import pytest

import windrow

HEAVY = ("matplotlib", "numpy", "ray", "rich", "tensordict", "torch", "transformers", "vllm", "aiohttp", "yaml")


def loaded_by(statement: str) -> set[str]:
    """Heavy packages that a fresh interpreter has after a statement."""
    code = f"{statement}\nimport sys; print(*sorted(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return {*done.stdout.split()}


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_by("import windrow") == set()


def test_looking_at_the_names_loads_nothing_heavy():
    assert loaded_by("import windrow; dir(windrow); windrow.__version__; windrow.__all__") == set()


@pytest.mark.parametrize("name", ["RolloutScheduler", "GroupQueueManager", "DataProto", "Cluster", "Sampling", "Task"])
def test_a_name_loads_no_torch_until_it_is_used(name: str):
    assert not loaded_by(f"from windrow import {name}") & {"torch", "tensordict", "transformers", "ray", "vllm"}


@pytest.mark.parametrize("name", windrow.__all__)
def test_every_public_name_resolves(name: str):
    assert getattr(windrow, name) is not None
    assert name in dir(windrow)


def test_every_name_has_a_home_and_every_home_a_name():
    assert {*windrow._HOMES} == {*windrow.__all__} - {"__version__"}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'windrow' has no attribute 'RolloutSheduler'"):
        _ = windrow.RolloutSheduler


def test_the_names_of_the_contract_are_importable_in_one_line():
    from windrow import DataProto, GroupQueueManager, RolloutScheduler

    assert [each.__name__ for each in (RolloutScheduler, GroupQueueManager, DataProto)] == [
        "RolloutScheduler",
        "GroupQueueManager",
        "DataProto",
    ]

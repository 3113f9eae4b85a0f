"""`windrow plan`: what people and programs read, and what it refuses."""

from pathlib import Path

from tests.cli.given import Windrow, files

from windrow.store.run import RunFolder

INFER, TRAIN = "roles.actor_infer.device_mapping", "roles.actor_train.device_mapping"
DEMO = "examples/demo.yaml"
SMALL = ("devices=2", "rollout.rollout_batch_size=16", "rollout.train_env_manager.env_args.max_steps=3")


def test_people_read_roles_layouts_and_figures(windrow: Windrow, folder: Path):
    said = windrow("plan", DEMO, *SMALL, f"{INFER}=auto", f"{TRAIN}=auto")
    assert said.code == 0
    for words in ("actor_infer", "actor_train", "s per step", "chosen: ", "estimated", "layouts that work"):
        assert words in said.out
    assert files(folder) == []


def test_programs_read_one_object(windrow: Windrow):
    said = windrow("plan", DEMO, *SMALL, f"{INFER}=0-1", f"{TRAIN}=[0]", "--json")
    found = said.result
    assert (found["layout"], found["devices"]) == ("overlapping", 2)
    assert found["roles"] == {"actor_infer": [0, 1], "actor_train": [0]}
    chosen = [each for each in found["candidates"] if each["verdict"] == "chosen"]
    assert [(each["infer"], each["train"], each["why"]) for each in chosen] == [([0, 1], [0], "as the file says")]
    assert all(each["seconds_per_step"] > 0 for each in found["candidates"])
    assert all(0 < each["utilisation"] <= 1 for each in found["candidates"])
    assert found["reasons"]


def test_a_file_that_says_nothing_is_compared_as_it_is(windrow: Windrow):
    found = windrow("plan", DEMO, *SMALL, "--json").result
    assert found["roles"] == {"actor_infer": [0, 1], "actor_train": []}


def test_a_former_run_is_measured(windrow: Windrow, folder: Path):
    with RunFolder.create(folder / "runs", "past", Path(DEMO).read_text(encoding="utf-8")) as run:
        for step in range(2):
            run.metrics.append(step + 1, {"run/learn_s": 3.0})
    said = windrow("plan", DEMO, *SMALL, "--from", str(run.path), "--json")
    figures = {each["name"]: each for each in said.result["figures"]}
    assert figures["training of a batch"]["origin"] == "measured"
    assert figures["training of a batch"]["value"] == 3.0


def test_what_cannot_be_planned_is_refused_in_one_line(windrow: Windrow):
    assert "there is no run" in windrow("plan", DEMO, "--from", "runs/nowhere").line
    assert "--device-gb must be above 0" in windrow("plan", DEMO, "--device-gb", "0").line
    assert "cannot work: " in windrow("plan", DEMO, *SMALL, "--device-gb", "0.000001").line
    assert "do not exist" in windrow("plan", DEMO, f"{TRAIN}=[7]").line

"""Which devices the roles of a file have, and which files are refused for it."""

from functools import partial
from pathlib import Path

import pytest

from windrow.cluster.local import ResourceManager
from windrow.cluster.mapping import Layout
from windrow.engines.torch.settings import TorchSettings
from windrow.errors import ConfigError
from windrow.pipelines.config import Agentic, Validation, read
from windrow.pipelines.grounds import Ground
from windrow.pipelines.playing import EngineMaker
from windrow.pipelines.rewarding import device_of
from windrow.tiny import tiny_model
from windrow.train.processes import gpu_of_each

INFER, TRAIN = "roles.actor_infer.device_mapping", "roles.actor_train.device_mapping"
CRITIC, REWARD = "roles.critic.device_mapping", "roles.reward.device_mapping"
GAE = "train.estimator.kind=gae"
JUDGED = ("rollout.train_env_manager.reward=model", "rollout.train_env_manager.reward_args.model.path=judge")


def a_file(tmp_path: Path, *overrides: str) -> Agentic:
    path = tmp_path / "file.yaml"
    path.write_text("pipeline: agentic\n", encoding="utf-8")
    file = read(path, [*overrides]).value
    assert isinstance(file, Agentic)
    return file


def test_nothing_said_is_generation_on_all_devices_and_training_apart(tmp_path: Path):
    layout = a_file(tmp_path, "devices=3").layout
    assert (layout.infer, layout.train, layout.shared, layout.kind) == ((0, 1, 2), (), (), "disjoint")


@pytest.mark.parametrize(
    ("infer", "train", "kind", "shared"),
    [
        ("0-3", "0-3", "colocated", (0, 1, 2, 3)),
        ("[2, 3]", "list(range(0, 2))", "disjoint", ()),
        ("[0, 1, 2, 3]", "'1'", "overlapping", (1,)),
        ("null", "0-1", "overlapping", (0, 1)),
        ("0-1", "0", "overlapping", (0,)),
    ],
)
def test_two_mappings_make_a_layout(infer: str, train: str, kind: str, shared: tuple[int, ...], tmp_path: Path):
    layout = a_file(tmp_path, "devices=4", f"{INFER}={infer}", f"{TRAIN}={train}").layout
    assert (layout.kind, layout.shared) == (kind, shared)


@pytest.mark.parametrize(("runtime", "players"), [("ray", 6), ("local", 1)])
def test_validation_on_ray_has_as_many_players_as_training(runtime: str, players: int, tmp_path: Path):
    file = a_file(tmp_path, f"runtime={runtime}", "rollout.train_env_manager.num_workers=6")
    assert file.collecting.val_env_manager.num_workers == players


def test_training_on_all_devices_of_generation_works_with_a_bound_too(tmp_path: Path):
    assert a_file(tmp_path, f"{TRAIN}=[0]", "rollout.staleness=1").layout.kind == "colocated"


def test_a_file_that_leaves_it_to_a_plan_is_read_and_has_no_layout_yet(tmp_path: Path):
    file = a_file(tmp_path, "devices=2", f"{TRAIN}=auto")
    assert file.roles.is_open
    with pytest.raises(ConfigError, match=r"actor_train\.device_mapping is auto, which a plan decides"):
        _ = file.layout


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([f"{TRAIN}=[2]"], "actor_train.device_mapping: devices 2 do not exist; there are devices 0 to 1"),
        ([f"{INFER}=0-4", f"{TRAIN}=auto"], "devices 2-4 do not exist"),
        ([f"{INFER}=0,0"], "roles.actor_infer.device_mapping names device 0 twice"),
        ([f"{INFER}=__import__('os')"], "read, not evaluated"),
        (["devices=3", "roles.actor_infer.devices_per_worker=2"], "3 devices cannot be shared out by devices_per_w"),
        (["roles.actor_train.devices_per_worker=2", f"{TRAIN}=[0]"], "map 2 devices, or change"),
        (["devices=4", "roles.actor_infer.devices_per_worker=3"], "map 3 devices, or change"),
        (["roles.actor_infer.devices_per_worker=3"], "raise devices to 3, or change"),
        (["train.tensor_parallel=2"], "there is no train.tensor_parallel; .*sharded data parallelism .*train.proc"),
        (["train.pipeline_parallel=2"], "there is no train.pipeline_parallel; .*sharded data parallelism"),
        (["name=12"], r"got 12; the shell takes quotes away, so write \"name='12'\""),
        (["devices=4", "roles.actor_infer.devices_per_worker=2", f"{TRAIN}=[1]"], "takes devices 1 of the engine on"),
        ([f"{TRAIN}=0-1", "train.processes=1"], "set train.processes to 2, or to 0"),
        (["roles.critic.device_mapping=[0]"], "roles.critic has a device_mapping, but there is none without"),
        (["roles.reference.device_mapping=[0]"], "roles.reference has a device_mapping"),
        ([f"{REWARD}=[0]"], "roles.reward has a device_mapping, but there is no reward model; set reward: model"),
        ([f"{CRITIC}=[2]", GAE], "roles.critic.device_mapping: devices 2 do not exist"),
        ([f"{CRITIC}=0,0", GAE], "roles.critic.device_mapping names device 0 twice"),
        (
            ["devices=4", "roles.actor_infer.devices_per_worker=2", f"{CRITIC}=[1]", GAE],
            "roles.critic takes devices 1 of the engine on 0-1; take all of them or none",
        ),
        (["validate.how=aside", f"{CRITIC}=[0]", GAE], "sets 1 of 2 engines aside and training borrows 1"),
        ([*JUDGED, f"{REWARD}=0-1"], "roles.reward has all devices, so that none is left for engines"),
        ([*JUDGED, "devices=4", f"{REWARD}=1-3"], "has 3 devices and there are 2 reward models, .*map at most 2"),
        ([*JUDGED, f"{REWARD}=[1]", f"{INFER}=0-1"], "roles.reward and roles.actor_infer both have devices 1; rewards"),
        ([*JUDGED, f"{REWARD}=[1]", f"{TRAIN}=[1]"], "roles.reward and roles.actor_train both have devices 1"),
        ([*JUDGED, f"{REWARD}=[1]", f"{CRITIC}=[1]", GAE], "roles.reward and roles.critic both have devices 1"),
        (
            [*JUDGED, f"{REWARD}=[1]", "rollout.train_env_manager.reward_args.model.device='cuda:0'"],
            "reward_args.model.device is cuda:0 and roles.reward.device_mapping gives the reward model device 1",
        ),
        (["validate.how=aside", "validate.engines=2"], "sets 2 of 2 engines aside, so that none is left"),
        (["validate.how=aside", f"{TRAIN}=[0]"], "sets 1 of 2 engines aside and training borrows 1"),
        ([f"{TRAIN}=4"], "devices 4 do not exist"),
        ([f"{TRAIN}=1.5"], "must be"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_read(overrides: list[str], says: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=says):
        a_file(tmp_path, "devices=2", *overrides)


@pytest.mark.parametrize(
    ("train", "critic", "elsewhere", "kind"),
    [
        ("[0]", "'0'", {}, "overlapping"),
        ("null", "[1]", {(1,): ("critic",)}, "overlapping"),
        ("[2]", "range(3, 4)", {(3,): ("critic",)}, "disjoint"),
        ("[2]", "0-1", {(0, 1): ("critic",)}, "colocated"),
    ],
)
def test_a_critic_sits_with_the_actor_or_on_devices_of_its_own(
    train: str, critic: str, elsewhere: dict[tuple[int, ...], tuple[str, ...]], kind: str, tmp_path: Path
):
    file = a_file(tmp_path, "devices=4", f"{INFER}=0-1", f"{TRAIN}={train}", f"{CRITIC}={critic}", GAE)
    assert (file.layout.elsewhere, file.layout.kind) == (elsewhere, kind)


@pytest.mark.parametrize(
    ("runtime", "engine", "said", "found"),
    [
        ("local", "cpu", "", (("cpu", None), ("cpu", None))),
        ("local", "cuda", "", (("cuda:2", None), ("cuda:3", None))),
        ("local", "cpu", "cuda", (("cuda:2", None), ("cuda:3", None))),
        ("local", "cpu", "cpu", (("cpu", None), ("cpu", None))),
        ("ray", "cpu", "", (("cpu", 2), ("cpu", 3))),
        ("ray", "cuda", "cuda", (("cuda", 2), ("cuda", 3))),
    ],
)
def test_reward_models_of_training_and_validation_have_their_devices_in_turn(
    runtime: str, engine: str, said: str, found: object, tmp_path: Path
):
    own = [f"rollout.train_env_manager.reward_args.model.device={said}"] if said else []
    more = ("devices=4", f"{REWARD}=2-3", f"runtime={runtime}", f"engine.device={engine}")
    file = a_file(tmp_path, *JUDGED, *more, *own)
    envs = file.collecting.train_env_manager, file.collecting.val_env_manager
    assert tuple((env.reward_args["model"]["device"], env.reward_limits.device) for env in envs) == found
    assert file.layout.infer == (0, 1), "engines have what reward models have not"


@pytest.mark.parametrize(("said", "usual"), [("cpu", "cuda"), ("cuda:0", "cuda"), ("mps", "cpu")])
def test_a_reward_model_that_says_it_sits_elsewhere_is_refused(said: str, usual: str):
    with pytest.raises(ConfigError, match=f"reward_args.model.device is {said} .* gives the reward model device 1"):
        device_of(said, 1, usual)
    assert device_of("cuda:1", 1, "cuda") == "cuda:1"


def test_a_file_in_python_is_checked_as_well():
    with pytest.raises(ConfigError, match="16 of 1 engines"):
        Agentic(validate=Validation(how="aside", engines=16))


def test_engines_and_trainers_of_this_process_have_the_gpus_of_their_mappings():
    """No GPU is needed to say which."""
    model = tiny_model()
    maker = EngineMaker(model, {}, TorchSettings(device="cuda"), 0)
    layout = Layout(infer=(0, 1, 2, 3), train=(5, 4), infer_each=2)
    assert [maker.settings_on(engine).device for engine in layout.engines] == ["cuda:0", "cuda:2"]
    on_ray = EngineMaker(model, {}, TorchSettings(device="cuda"), 0, "ray")
    assert on_ray.settings_on((3,)).device == "cuda", "a host sees only what it was given"
    start = Ground(ResourceManager(6)).trainers(layout.trainers)
    assert isinstance(start, partial)
    assert start.keywords == {"gpus": [5, 4]}


def test_each_trainer_process_has_one_gpu():
    assert gpu_of_each(2, [5, 4]) == (5, 4)
    assert gpu_of_each(3, []) == (0, 1, 2)
    with pytest.raises(ConfigError, match="2 trainer processes cannot share 1 GPUs"):
        gpu_of_each(2, [1])

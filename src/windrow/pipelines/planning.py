"""From a training file to a plan of its devices, and from a plan to a file that says where everybody sits.

Promises: a file that leaves nothing to a plan stays as it is. A former run is read, never written. Nothing is loaded
onto a device to plan for it; of a model only its form is read.
"""

from itertools import pairwise
from pathlib import Path

from windrow.cluster.mapping import Layout
from windrow.errors import ConfigError
from windrow.pipelines.config import Agentic, Cloning, Rlvr, TrainFile, read
from windrow.pipelines.placing import AUTO, ROLES, Role, RoleName
from windrow.pipelines.sizing import device_bytes, hardware_of, size_of
from windrow.pipelines.watching import VALIDATION
from windrow.plan.costs import Learning, estimate, memory_needed
from windrow.plan.measures import Setting, measured, typical
from windrow.plan.planner import LEFT, Plan, make_plan
from windrow.plan.question import Costs, Figure, Question, Work
from windrow.rollout.config import machine_settings
from windrow.sim.distributions import Constant, Distribution, Lognormal
from windrow.store.run import RunFolder
from windrow.types import Value, but

USUAL_TURNS = 16
"""Turns that an episode may have where nothing limits them."""
USUAL_SHARE = 0.4
"""Half of the episodes, and of the responses, take less than this share of what they may."""
USUAL_SPREAD = 0.6
"""Of the logarithm of lengths: one in six is 1.8 times as long as half of them."""
PROMPT_TOKENS = 128.0
OBSERVATION_TOKENS = 32.0
ENV_S = 0.001

Reinforced = Agentic | Rlvr


class Planned(Value, frozen=True):
    """A file whose roles have their devices, and the plan that gave them; None if none was needed."""

    file: Reinforced
    plan: Plan | None


def planned(file: Reinforced) -> Planned:
    """The same file, with a plan for whatever it leaves to one."""
    if not file.roles.is_open:
        return Planned(file, None)
    plan = make_plan(question_of(file))
    return Planned(settled(file, plan.layout), plan)


def settled(file: Reinforced, layout: Layout) -> Reinforced:
    """The file with this layout, and with as many trainers as it has room for."""
    roles = but(
        file.roles,
        actor_infer=but(file.roles.actor_infer, device_mapping=layout.infer),
        actor_train=but(file.roles.actor_train, device_mapping=layout.train or None),
        reference=_said(file.roles.reference),
        critic=_said(file.roles.critic),
        reward=_said(file.roles.reward),
    )
    workers = len(layout.train) // layout.train_each
    train = but(file.train, processes=workers) if file.train.processes and workers else file.train
    made = but(file, roles=roles, train=train)
    made.__post_init__()
    return made


def roles_of(file: Reinforced, layout: Layout) -> dict[RoleName, tuple[int, ...]]:
    """The devices of each role that is played; of rewards if they have some."""
    found: dict[RoleName, tuple[int, ...]] = {"actor_infer": layout.infer, "actor_train": layout.train}
    if "reference" in file.train.members:
        found["reference"] = layout.reference or layout.train
    if "critic" in file.train.members:
        found["critic"] = layout.critic or layout.train
    rewards = file.roles.given("reward")
    return found if rewards is None else found | {"reward": rewards}


def _said(role: Role) -> Role:
    """The same; what is left to a plan is where it is if nothing is said."""
    return but(role, device_mapping=None) if role.device_mapping == AUTO else role


def question_of(file: TrainFile, run: Path | None = None, device_gb: float | None = None) -> Question:
    """What a plan for this file must know."""
    if isinstance(file, Cloning):
        raise ConfigError("pipeline sft learns from demonstrations, so there is nothing to plan; use agentic or rlvr")
    model = size_of(file.model, file.engine.dtype)
    learning = _learning(file)
    work = _work(file)
    hardware = hardware_of(file.engine.device)
    costs, figures = estimate(model, hardware, work, learning, file.engine.capacity)
    figures = (*_estimated(work), *figures)
    if run is not None:
        work, costs, figures = _measured(run, work, costs, figures)
    known = device_bytes(file.engine.device) if device_gb is None else device_gb * 1e9
    cached = file.engine.capacity * (file.engine.context_tokens or file.model.tiny.context)
    roles = file.roles
    return Question(
        devices=file.devices,
        work=work,
        costs=costs,
        memory=memory_needed(model, learning, cached, known),
        infer_each=roles.actor_infer.devices_per_worker,
        train_each=roles.actor_train.devices_per_worker,
        splits=file.train.processes > 0,
        trainers=max(1, file.train.processes),
        infer=None if roles.actor_infer.device_mapping == AUTO else roles.generation(file.devices),
        train=None if roles.actor_train.device_mapping == AUTO else roles.given("actor_train") or (),
        reference=roles.given("reference") or (),
        critic=roles.given("critic") or (),
        rewards=roles.given("reward") or (),
        left=tuple(name for name in ROLES if name in LEFT and roles.of(name).device_mapping == AUTO),
        given=None if roles.is_open else file.layout,
        figures=figures,
    )


def _learning(file: Reinforced) -> Learning:
    train = file.train
    steps = train.epochs * train.minibatches
    return Learning(
        epochs=train.epochs,
        optimizer_steps=steps,
        has_reference="reference" in train.members,
        has_critic="critic" in train.members,
        looks_back=train.compares_with == "trainer" and steps > 1,
    )


def _work(file: Reinforced) -> Work:
    """A step of this file, as far as its settings say, and as episodes usually are beyond that."""
    config = file.collecting
    env = config.train_env_manager
    policy = machine_settings(config, config, {"train": env, "val": config.val_env_manager}).train
    most = _most_turns(file)
    return Work(
        policy=policy,
        slots=env.slots,
        lease_s=config.episode_timeout_s,
        turns=_usual(most),
        max_turns=most,
        tokens_per_turn=_usual(env.sampling.max_tokens),
        prompt_tokens=PROMPT_TOKENS,
        observation_tokens=OBSERVATION_TOKENS if most > 1 else 0.0,
        env_s=ENV_S,
    )


def _most_turns(file: Reinforced) -> int:
    """The longest episode in turns, by its own limit or by that of its environments."""
    env = file.collecting.train_env_manager
    if env.max_turns is not None:
        return env.max_turns
    limits = [tag.env_args.get("max_steps") for tag in env.by_tag().values()]
    known = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    return max(known, default=USUAL_TURNS)


def _usual(most: int) -> Distribution:
    if most <= 2:
        return Constant(value=float(most))
    return Lognormal(median=USUAL_SHARE * most, sigma=USUAL_SPREAD, cap=float(most))


def _estimated(work: Work) -> tuple[Figure, ...]:
    told = (
        ("turns of an episode", work.mean_turns, "", f"as usual, at most {work.max_turns}"),
        ("tokens of a turn", work.mean_tokens, "tokens", "as usual below sampling.max_tokens"),
        ("step of an environment", work.env_s, "s", "as of a quick one"),
    )
    return tuple(Figure(name, value, unit, "estimated", how) for name, value, unit, how in told)


def _measured(
    path: Path, work: Work, costs: Costs, figures: tuple[Figure, ...]
) -> tuple[Work, Costs, tuple[Figure, ...]]:
    """What a run has measured in place of estimates."""
    run = RunFolder.read(path)
    file = read(run.config_file, []).value
    lines = [line for line in run.metrics if not all(name.startswith(VALIDATION) for name in line.values)]
    if isinstance(file, Cloning) or not lines:
        raise ConfigError(f"run {path} has measured nothing that a plan could use; take one that has trained")
    between = [{"run/step_s": after.at - before.at} for before, after in pairwise(lines)]
    numbers = {**typical([line.values for line in lines]), **typical(between)}
    layout = file.layout
    setting = Setting(
        engines=len(layout.engines),
        engine_devices=layout.infer_each,
        train_devices=(len(layout.train) if file.train.processes else 1) or file.train.processes,
        is_synchronous=file.rollout.staleness == 0,
    )
    found = measured(numbers, setting, work, costs)
    known = {figure.name for figure in found.figures}
    replaced = {"speed alone", "speed of many", "tokens of a batch"} if found.costs.pace != costs.pace else set()
    kept = [figure for figure in figures if figure.name not in known | replaced]
    return found.work, found.costs, (*found.figures, *kept)

"""Where the roles of a run sit: what a file may say about it, and what that means.

Promises: a mapping that cannot work is refused when the file is read: devices that there are not, numbers that do not
divide, an engine of which training would take a part, a reward model among others, roles that nobody plays. Nothing set
means generation on all devices that no reward model has, and training beside them with reference and critic.
"""

from typing import Annotated, Literal, get_args

from windrow.cluster.mapping import Layout, chunks, parse_devices, spelled
from windrow.core.settings import Count
from windrow.errors import ConfigError
from windrow.types import Meta, Value

AUTO = "auto"
RoleName = Literal["actor_infer", "actor_train", "reference", "critic", "reward"]
ROLES: tuple[RoleName, ...] = get_args(RoleName)

Mapping = tuple[int, ...] | str | int | None


class Role(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where one role sits."""

    device_mapping: Annotated[
        Mapping, Meta(description="its devices: a list, 0, 0-3,6, list(range(0, 4)), or auto: as windrow plan would")
    ] = None


class Workers(Role, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a role sits that has several workers."""

    devices_per_worker: Annotated[Count, Meta(description="devices that one of them takes")] = 1


class Roles(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where everybody sits; roles that share devices take turns on them."""

    actor_infer: Annotated[Workers, Meta(description="engines; nothing said: on all devices but the reward's")] = (
        Workers()
    )
    actor_train: Annotated[Workers, Meta(description="training; nothing said: apart, on no device")] = Workers()
    reference: Annotated[Role, Meta(description="one process on each device; nothing said: with actor_train")] = Role()
    critic: Annotated[Role, Meta(description="one process on each device; nothing said: with actor_train")] = Role()
    reward: Annotated[Role, Meta(description="reward models; nothing said: where reward_args.model.device says")] = (
        Role()
    )

    def of(self, name: RoleName) -> Role:
        roles: dict[RoleName, Role] = {
            "actor_infer": self.actor_infer,
            "actor_train": self.actor_train,
            "reference": self.reference,
            "critic": self.critic,
            "reward": self.reward,
        }
        return roles[name]

    @property
    def is_open(self) -> bool:
        """Some of it is left to a plan."""
        return any(self.of(name).device_mapping == AUTO for name in ROLES)

    def given(self, name: RoleName) -> tuple[int, ...] | None:
        """The devices that were said; None if nothing was, or if a plan is to say."""
        spec = self.of(name).device_mapping
        return None if spec is None or spec == AUTO else parse_devices(spec, f"roles.{name}.device_mapping")

    def layout(self, devices: int) -> Layout:
        """Where generation and training sit on so many devices."""
        if self.is_open:
            names = [name for name in ROLES if self.of(name).device_mapping == AUTO]
            raise ConfigError(
                f"roles.{names[0]}.device_mapping is {AUTO}, which a plan decides; windrow.pipelines.planning.planned "
                f"makes one"
            )
        return Layout(
            infer=self.generation(devices),
            train=self.given("actor_train") or (),
            infer_each=self.actor_infer.devices_per_worker,
            train_each=self.actor_train.devices_per_worker,
            reference=self.given("reference") or (),
            critic=self.given("critic") or (),
        )

    def generation(self, devices: int) -> tuple[int, ...]:
        """The devices of generation, of so many; nothing said: all that no reward model has."""
        rewards = self.given("reward") or ()
        return self.given("actor_infer") or tuple(device for device in range(devices) if device not in rewards)


class Needs(Value, frozen=True, kw_only=True):
    """What else a file says that its mappings must fit to."""

    devices: int
    processes: int
    """Of training; 0: a thread."""
    aside: int
    """Engines that validation sets aside; 0: none."""
    has_reference: bool
    has_critic: bool
    reward_models: int
    """Of training and validation together."""


def check(roles: Roles, needs: Needs) -> None:
    """Refuse what cannot work."""
    _check_played(roles, needs)
    for name in ROLES:
        _check_devices(name, roles.given(name), needs.devices)
    _check_rewards(roles, needs)
    infer, train = roles.actor_infer, roles.actor_train
    _check_divides("actor_infer", roles.generation(needs.devices), infer.devices_per_worker, needs.devices)
    _check_divides("actor_train", roles.given("actor_train") or (), train.devices_per_worker, needs.devices)
    if roles.is_open:
        return
    layout = roles.layout(needs.devices)
    _check_whole_engines(layout)
    _check_processes(layout, needs.processes)
    _check_aside(layout, needs.aside)


def _check_played(roles: Roles, needs: Needs) -> None:
    ways_out = {
        "reference": (needs.has_reference, "there is none without train.loss.kl or kl_in_reward; set one"),
        "critic": (needs.has_critic, "there is none without train.estimator.kind gae; choose that"),
        "reward": (needs.reward_models > 0, "there is no reward model; set reward: model"),
    }
    for name, (is_played, why) in ways_out.items():
        if not is_played and roles.of(name).device_mapping is not None:  # type: ignore[arg-type]  # one of the names
            raise ConfigError(f"roles.{name} has a device_mapping, but {why}, or leave it out")


def _check_devices(name: str, mapping: tuple[int, ...] | None, devices: int) -> None:
    unknown = sorted(device for device in mapping or () if device >= devices)
    if unknown:
        raise ConfigError(
            f"roles.{name}.device_mapping: devices {spelled(unknown)} do not exist; there are devices 0 to "
            f"{devices - 1}, so raise devices or map to those"
        )


def _check_rewards(roles: Roles, needs: Needs) -> None:
    """Rewards are scored while everybody else works, so they take turns with nobody."""
    own = roles.given("reward") or ()
    if len(own) > needs.reward_models:
        raise ConfigError(
            f"roles.reward has {len(own)} devices and there are {needs.reward_models} reward models, in training and "
            f"validation together; map at most {needs.reward_models}"
        )
    if not roles.generation(needs.devices):
        raise ConfigError("roles.reward has all devices, so that none is left for engines; raise devices")
    for name in ROLES:
        both = [] if name == "reward" else [device for device in own if device in (roles.given(name) or ())]
        if both:
            raise ConfigError(
                f"roles.reward and roles.{name} both have devices {spelled(both)}; rewards are scored while others "
                f"work, so give a reward model devices of its own"
            )


def _check_divides(name: str, mapping: tuple[int, ...], each: int, devices: int) -> None:
    if len(mapping) % each:
        below = len(mapping) // each * each
        fitting = [str(count) for count in (below, below + each) if 0 < count <= devices]
        way_out = f"map {' or '.join(fitting)} devices" if fitting else f"raise devices to {each}"
        raise ConfigError(
            f"roles.{name}: {len(mapping)} devices cannot be shared out by devices_per_worker {each}; "
            f"{way_out}, or change devices_per_worker"
        )


def _check_whole_engines(layout: Layout) -> None:
    """An engine stops as a whole."""
    shared = set(layout.shared)
    for engine in chunks(layout.infer, layout.infer_each):
        taken = shared.intersection(engine)
        if taken and taken != set(engine):
            members = {"actor_train": layout.train, "reference": layout.reference, "critic": layout.critic}
            who = [f"roles.{name}" for name, own in members.items() if taken.intersection(own)]
            raise ConfigError(
                f"{' and '.join(who)} takes devices {spelled(sorted(taken))} of the engine on {spelled(engine)}; "
                f"take all of them or none"
            )


def _check_processes(layout: Layout, processes: int) -> None:
    workers = len(layout.train) // layout.train_each
    if layout.train and processes not in (0, workers):
        raise ConfigError(
            f"train.processes is {processes}, and roles.actor_train has room for {workers}; set train.processes to "
            f"{workers}, or to 0 for a thread"
        )


def _check_aside(layout: Layout, aside: int) -> None:
    engines = len(layout.engines)
    lent = 0 if layout.kind == "colocated" else len(layout.shared) // layout.infer_each
    if aside and aside + lent >= engines:
        also = f" and training borrows {lent}" if lent else ""
        raise ConfigError(
            f"validate.how aside sets {aside} of {engines} engines aside{also}, so that none is left for training; "
            f"raise devices, or use between"
        )

"""Where the roles of a run sit: what a file may say about it, and what that means.

Promises: a mapping that cannot work is refused when the file is read: devices that there are not, numbers that do not
divide, an engine of which training would take a part, roles that nobody plays. Nothing set means generation on all
devices, and training beside them.
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

    actor_infer: Annotated[Workers, Meta(description="engines; nothing said: on all devices")] = Workers()
    actor_train: Annotated[Workers, Meta(description="training; nothing said: apart, on no device")] = Workers()
    reference: Annotated[Role, Meta(description="works where the actor is trained")] = Role()
    critic: Annotated[Role, Meta(description="works where the actor is trained")] = Role()
    reward: Annotated[Role, Meta(description="not placed here: a reward model has reward_args.model.device")] = Role()

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
            infer=self.given("actor_infer") or tuple(range(devices)),
            train=self.given("actor_train") or (),
            infer_each=self.actor_infer.devices_per_worker,
            train_each=self.actor_train.devices_per_worker,
        )


class Needs(Value, frozen=True, kw_only=True):
    """What else a file says that its mappings must fit to."""

    devices: int
    processes: int
    """Of training; 0: a thread."""
    aside: int
    """Engines that validation sets aside; 0: none."""
    has_reference: bool
    has_critic: bool


def check(roles: Roles, needs: Needs) -> None:
    """Refuse what cannot work."""
    _check_played(roles, needs)
    for name in ROLES:
        _check_devices(name, roles.given(name), needs.devices)
    _check_followers(roles)
    for name, role in ("actor_infer", roles.actor_infer), ("actor_train", roles.actor_train):
        _check_divides(name, roles.given(name), role.devices_per_worker, needs.devices)
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
        "reward": (False, "rewards are not placed by it; give a reward model its device with reward_args.model.device"),
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


def _check_followers(roles: Roles) -> None:
    """Reference and critic live in the processes that train the actor."""
    train = roles.actor_train.device_mapping
    for name in "reference", "critic":
        own = roles.of(name).device_mapping
        if own is None:
            continue
        theirs = roles.given("actor_train")
        same = own == train if AUTO in (own, train) else roles.given(name) == theirs
        if not same:
            raise ConfigError(
                f"roles.{name}.device_mapping is {own!r} and actor_train's is {train!r}; it works in the processes "
                f"that train the actor and cannot sit elsewhere, so leave it out or give both the same"
            )


def _check_divides(name: str, mapping: tuple[int, ...] | None, each: int, devices: int) -> None:
    if mapping is None and (name == "actor_train" or each == 1):
        return
    mapping = tuple(range(devices)) if mapping is None else mapping
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
            raise ConfigError(
                f"roles.actor_train takes devices {spelled(sorted(taken))} of the engine on {spelled(engine)}; "
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

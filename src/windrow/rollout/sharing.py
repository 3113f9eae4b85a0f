"""What the schedulers of one inference cluster share: one queue, one gate, one set of devices, one version.

Promises: the first call of any of them opens it, with the settings of both modes; the last one to leave ends it. Each
mode has one scheduler at a time.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from windrow.cluster.local import Cluster, EngineConfig
from windrow.core.settings import Settings
from windrow.engines.protocol import Engine
from windrow.errors import ConfigError, Refused
from windrow.rollout.config import EnvManagerConfig, RolloutConfig, check_shared, machine_settings
from windrow.rollout.control import Control
from windrow.rollout.dispatch import GroupFilter
from windrow.rollout.fleet import Patience
from windrow.rollout.passes import Progress
from windrow.rollout.queue import GroupQueueManager, QueueOptions
from windrow.rollout.snapshots import Snapshot, load
from windrow.sources.protocol import TaskSource
from windrow.text import Codec
from windrow.trajectory import Trajectory
from windrow.types import MODES, Mode

TENANT = "group queue"

InferCluster = Cluster[Engine, EngineConfig]

Opened = Callable[[list[Trajectory]], Awaitable[list[Trajectory]]]
"""Trajectories with their tokens, which may be elsewhere."""


class Engines(Protocol):
    """Engines that speak one language."""

    name: str
    worker_config: EngineConfig

    @property
    def workers(self) -> dict[str, Engine]: ...


class Commons:
    """One queue and everything around it."""

    def __init__(
        self, cluster: Engines, opened: Opened | None = None, bury: Callable[[str], None] | None = None
    ) -> None:
        """`opened` fetches what trajectories hold, if that is elsewhere; `bury` ends what is left of a lost engine."""
        self._cluster = cluster
        self._read = opened
        self._bury = bury
        self._tenants: dict[Mode, tuple[RolloutConfig, EnvManagerConfig]] = {}
        self._opened: GroupQueueManager | None = None
        self._control: Control | None = None
        self._saved: Snapshot | None = None  # what it begins from, if it was restored
        self.progress: dict[Mode, Progress] = {}  # of those who use it, and of those who did when it was saved
        self.is_over = False

    def move_in(self, mode: Mode, config: RolloutConfig, env: EnvManagerConfig) -> None:
        """A scheduler of a mode will use it."""
        if mode in self._tenants:
            raise ConfigError(f"cluster {self._cluster.name} has a {mode} scheduler already; shut that one down first")
        tenants = {**self._tenants, mode: (config, env)}
        settings = _settings(tenants)
        if self._opened is not None:
            if settings.of(mode) != self._opened.machine.settings.of(mode):
                raise ConfigError(
                    f"the {mode} scheduler wants other settings than those collection began with; make both schedulers "
                    f"before the first get_batch, or put them into config.{mode}_env_manager"
                )
            self._opened.add_source(mode, env.source(config.seed, mode), self._filter(env))
        self._tenants = tenants
        self.progress.setdefault(mode, Progress())

    def state(self) -> Snapshot:
        """Everything at this moment."""
        queue = self._opened or self._made()
        return Snapshot(queue=queue.snapshot(), progress=self.progress)

    def restore(self, data: bytes) -> None:
        """Begin from a snapshot."""
        if self._opened is not None:
            raise Refused(
                "a scheduler that has begun cannot be restored; make a new one and restore it before it begins"
            )
        self._saved = load(data)
        self.progress |= self._saved.progress

    async def open(self) -> GroupQueueManager:
        """The queue, started."""
        if self._opened is None:
            self._opened = self._made()
            self._control = Control(self._opened)
        await self._opened.start()
        return self._opened

    @property
    def engines(self) -> Mapping[str, Engine]:
        return self._cluster.workers

    @property
    def codec(self) -> Codec:
        return self._cluster.worker_config.codec

    @property
    def control(self) -> Control:
        assert self._control is not None, "open() comes first"
        return self._control

    async def move_out(self, mode: Mode, workers: Sequence[str], rewarded: Sequence[str]) -> None:
        """A scheduler leaves with its workers and the rewards of some kinds; the last one ends everything."""
        self._tenants.pop(mode, None)
        self.progress[mode] = Progress()  # whoever comes next begins anew
        if self._tenants:
            if self._opened is not None:
                await self._opened.dismiss(mode, workers, rewarded)
            return
        self.is_over = True
        if self._opened is not None:
            await self._opened.shutdown()

    def _made(self) -> GroupQueueManager:
        """A queue that has not begun."""
        config = next(iter(self._tenants.values()))[0]
        sources: dict[Mode, TaskSource] = {m: env.source(c.seed, m) for m, (c, env) in self._tenants.items()}
        filters: dict[Mode, GroupFilter] = {}
        for mode, (_, env) in self._tenants.items():
            chosen = self._filter(env)
            if chosen is not None:
                filters[mode] = chosen
        options = QueueOptions(
            patience=Patience(suspend_s=config.suspend_timeout_s, load_s=config.load_timeout_s),
            stall_after_s=config.stall_after_s,
            filters=filters,
            bury=self._bury,
        )
        queue = GroupQueueManager(_settings(self._tenants), sources, self._cluster.workers, options)
        if self._saved is not None:
            queue.restore(self._saved.queue)
        return queue

    def _filter(self, env: EnvManagerConfig) -> GroupFilter | None:
        """The filter of a mode that is a function; it is shown groups with their tokens."""
        judge, read = env.filter, self._read
        if not callable(judge):
            return None
        if read is None:
            return judge  # type: ignore[no-any-return]  # whatever can be called

        async def shown(group: list[Trajectory]) -> bool:
            verdict = judge(await read(group))
            return bool(await verdict if isinstance(verdict, Awaitable) else verdict)

        return shown


def commons_of(cluster: InferCluster) -> Commons:
    """What the schedulers of a cluster share."""
    shared = cluster.tenants.get(TENANT)
    if isinstance(shared, Commons) and not shared.is_over:
        return shared
    if shared is not None:
        cluster.renew()  # its engines were closed with the last scheduler
    made = cluster.tenants[TENANT] = Commons(cluster)
    return made


def _settings(tenants: dict[Mode, tuple[RolloutConfig, EnvManagerConfig]]) -> Settings:
    """The machine's settings: of those who are here, and for the others what their configuration says."""
    configs = [config for config, _ in tenants.values()]
    train = tenants["train"][0] if "train" in tenants else configs[0]
    val = tenants["val"][0] if "val" in tenants else configs[0]
    check_shared(train, val)
    envs = {mode: tenants[mode][1] if mode in tenants else configs[0].env_manager(mode) for mode in MODES}
    return machine_settings(train, val, envs)

"""The workers of a cluster on Ray: each in a host of its own.

Promises: all of them or none; a host that cannot be placed, or a worker that cannot be made, is told with its name
within bounded time, and nothing is left of the others. What several workers are called with travels once. `end` is over
when their processes are. Whoever gets a copy has the same hosts, and can neither renew nor end them.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from windrow.cluster.cluster import START_S, make_worker
from windrow.cluster.ray import hosts as running
from windrow.cluster.ray.hosts import Remote
from windrow.cluster.splitting import Part
from windrow.cluster.worker import Seat
from windrow.errors import ConfigError, HostLost, Refused

if TYPE_CHECKING:
    from windrow.cluster.ray.resources import RayResourceManager

THING = "worker"
"""What a worker is called in its host."""
GONE_S = 10.0
"""How long Ray may take to end a process."""

W = TypeVar("W")


class RayStaff(Generic[W]):
    """Hosts with a worker in each."""

    def __init__(self, make: Callable[..., W], seats: Sequence[Seat[Any]], resources: "RayResourceManager") -> None:
        self._make = make
        self._seats = [*seats]
        self._cluster = seats[0].cluster
        self._options = [resources.options(seat.devices, seat.name) for seat in seats]
        self._hosts: dict[str, Remote] = {}
        self._office: Remote | None = None
        self._is_over = False
        self._is_copy = False

    @property
    def workers(self) -> dict[str, W]:
        raise Refused(f"the workers of cluster {self._cluster} are on Ray; use .hosts, or their registered methods")

    @property
    def hosts(self) -> dict[str, Remote]:
        self.start(START_S)
        return self._hosts

    @property
    def office(self) -> Remote:
        self._check_open()
        if self._office is None:
            self._office = running.start(f"{self._cluster}-office", **_beside_us())
        return self._office

    def start(self, within_s: float) -> None:
        self._check_open()
        if self._hosts:
            return
        started = {
            seat.name: running.start(seat.name, **options)
            for seat, options in zip(self._seats, self._options, strict=True)
        }
        try:
            self._have_made(started, within_s)
        except BaseException:
            _end([*started.values()])
            raise
        self._hosts = started

    def ask(self, method: str, parts: Mapping[int, Part], wanted: Sequence[int]) -> "dict[int, Future[Any]]":
        hosts = [*self.hosts.values()]
        sent = _sent(parts.values())
        return {
            rank: hosts[rank].dispatch(f"{THING}.{method}", sent[id(part)], wanted=rank in wanted).future()
            for rank, part in parts.items()
        }

    def renew(self) -> None:
        self._check_ours("renew")
        self._check_open()
        ended, self._hosts = [*self._hosts.values()], {}
        _end(ended)

    def end(self) -> None:
        self._check_ours("shut down")
        hosts = [*self._hosts.values(), *([] if self._office is None else [self._office])]
        self._hosts, self._office, self._is_over = {}, None, True
        _end(hosts)

    def __getstate__(self) -> dict[str, Any]:
        """Whoever gets it shall have the same hosts and the same office, so they must be there by now."""
        if not self._is_over:
            _ = self.hosts, self.office
        return {**self.__dict__, "_is_copy": True}

    def _have_made(self, started: Mapping[str, Remote], within_s: float) -> None:
        try:
            futures = {
                seat.name: started[seat.name].put(THING, make_worker, self._make, seat).future() for seat in self._seats
            }
        except TypeError as error:  # what Ray raises when it cannot pickle something
            raise ConfigError(f"cluster {self._cluster} cannot send what makes its workers: {error}") from error
        wait(futures.values(), within_s, FIRST_EXCEPTION)
        for seat in self._seats:
            raised = futures[seat.name].exception() if futures[seat.name].done() else None
            if raised is not None:
                raised.add_note(f"raised while worker {seat.described} was made")
                raise raised
        late = [seat for seat in self._seats if not futures[seat.name].done()]
        if late:
            raise HostLost(
                f"worker {late[0].described} on devices {[*late[0].devices]} was not there within {within_s:g} s; "
                f"Ray has {_free()} free; end what holds the rest, or give start() more time"
            )

    def _check_open(self) -> None:
        if self._is_over:
            raise Refused(f"cluster {self._cluster} was shut down; make a new one")

    def _check_ours(self, what: str) -> None:
        if self._is_copy:
            raise Refused(f"cluster {self._cluster} was made in another process; {what} it there")


def _beside_us() -> dict[str, Any]:
    """Ray's options for a host on the node of this process: whoever loses that one loses the run anyhow."""
    here = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False)}


def _sent(parts: "Sequence[Part] | Any") -> dict[int, Any]:  # noqa: ANN401 -- Ray's references have no type
    """What is sent for each part, by its id: what several get is put where all find it."""
    counts = Counter(id(part) for part in parts)
    sent: dict[int, Any] = {}
    for part in parts:
        if id(part) not in sent:
            given = (part.arguments, part.options)
            sent[id(part)] = ray.put(given) if counts[id(part)] > 1 else given
    return sent


def _end(hosts: Sequence[Remote]) -> None:
    """Kill hosts, and wait for Ray to say that they are gone."""
    if not ray.is_initialized():
        return  # they ended with the connection
    ends = [host.staying() for host in hosts]
    for host in hosts:
        host.kill()
    for end in ends:
        with suppress(HostLost, TimeoutError):  # it is gone, or we have waited long enough
            end.answer(GONE_S)


def _free() -> str:
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]  # Ray's own
    return ", ".join(f"{free[kind]:g} {kind}" for kind in ("CPU", "GPU") if kind in free) or "nothing"

"""Trainer processes on Ray, as their driver sees them: hosts that may be anywhere in the cluster.

```
driver                                         host 0, 1, …: one object each
  TrainerHosts ── Ray ────────────────────────── places.Place ── object ── torch.distributed ── the others
        └── object store: arguments, answers, weights ──┘
```

Promises
- The interface of `TrainerProcesses`, and its promises: a call is made on all hosts, in the order in which calls are
  made, and ends within `timeout_s`. A host that raises or dies fails the call, with what it said last, and ends the
  others: they share their work, so none can go on without the rest.
- Arguments are put into the object store once, whoever reads them has tensors of its own.
- Hosts end with the driver, however it ends; `close` leaves nothing behind.

Where a host is placed is said by the options of Ray that it is given.
"""

import pickle
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, NoReturn, Self

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from windrow.cluster.ray import hosts
from windrow.errors import ConfigError, HostLost, TrainError
from windrow.isolation.pickles import Unsendable, dump
from windrow.train.messages import MADE, Raised
from windrow.train.places import Done, Place
from windrow.train.processes import NEWS_S, Make
from windrow.train.troubles import Trouble, overdue, raised, told

PLACE = "place"
"""What a host calls what it holds."""
STACK_S = 2.0
"""How long a host that is overdue may take to say where it is."""
CLOSE_S = 5.0
"""How long the cluster may take to end a host."""

Options = Callable[[int], Mapping[str, object]]
"""Of each process, by its number: what Ray is told about it."""


def anywhere(_: int) -> Mapping[str, object]:
    """Wherever Ray puts them."""
    return {}


class TrainerHosts:
    """Hosts that do the same thing at the same time, each with its share of it."""

    def __init__(
        self,
        size: int,
        make: Make,
        timeout_s: float,
        device: Literal["cpu", "cuda"] = "cpu",
        *,
        options: Options = anywhere,
    ) -> None:
        """`make` must be something that can be pickled; it makes the object in every host."""
        if size < 1:
            raise ConfigError(f"train.processes must be 1 or more to have trainer processes, got {size}")
        self.size = size
        self.on_this_machine = False
        self._timeout_s = timeout_s
        self._calling = threading.Lock()
        self._number = MADE
        self._ended = ""  # why there are no hosts any more
        self._unfinished: list[Any] = []  # what is left of a call that was interrupted
        try:
            sent = dump(make)
        except Unsendable as error:
            raise ConfigError(f"trainer processes cannot be sent what makes their object: {error}") from error
        self._hosts = [hosts.start(f"trainer-{rank}", **options(rank)) for rank in range(size)]
        try:
            self._begin(sent, device)
        except BaseException:
            self._end("they could not be started")
            raise

    def call(self, method: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401 -- whatever it returns
        """Call a method of the object in every host, or look at an attribute; what the first one got."""
        return self._ask(method, arguments, options, all_answer=False)[0]

    def call_all(self, method: str, *arguments: object, **options: object) -> list[Any]:
        """The same; what each got."""
        return self._ask(method, arguments, options, all_answer=True)

    def run(self, function: Callable[..., object], *arguments: object, **options: object) -> Any:  # noqa: ANN401 -- as above
        """Call a function in every host, with the object as its first argument; what the first one got."""
        try:
            sent = dump(function)
        except Unsendable as error:
            raise ConfigError(f"trainer processes cannot be sent {function!r}: {error}") from error
        return self._ask("", (sent, *arguments), options, all_answer=False)[0]

    def close(self) -> None:
        """End all hosts; a second call does nothing. A call that is under way in another thread fails."""
        if not self._calling.acquire(blocking=False):
            self._kill()
            self._calling.acquire()
        try:
            self._end("they were closed")
        finally:
            self._calling.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, make: bytes, device: Literal["cpu", "cuda"]) -> None:
        patience_s = 2 * self._timeout_s  # whoever is late is found by us, who can say more about it
        attached = [
            host.handle.attach.remote(PLACE, Place, rank, self.size, device, patience_s)
            for rank, host in enumerate(self._hosts)
        ]
        try:
            ray.get(attached, timeout=self._timeout_s)
        except GetTimeoutError as error:
            raise TrainError(
                f"{self.size} trainer processes found no place in the Ray cluster within {self._timeout_s:g} s; "
                f"see what is free with ray status, or ask for less"
            ) from error
        except RayError as error:
            raise TrainError(f"trainer processes could not be started on Ray: {error}") from error
        address = self._hosts[0].ask(f"{PLACE}.open").answer(self._timeout_s)
        with self._calling:
            self._collect("being made", [host.ask(f"{PLACE}.make", address, make).ref for host in self._hosts])

    def _ask(
        self, method: str, arguments: tuple[object, ...], options: Mapping[str, object], *, all_answer: bool
    ) -> list[Any]:
        with self._calling:
            what = method or "run"
            if self._ended:
                raise TrainError(f"trainer processes cannot {what}: {self._ended}; start them again")
            if self._unfinished:
                ray.wait(self._unfinished, num_returns=len(self._unfinished), timeout=self._timeout_s)
            self._number += 1
            sent = (_put((arguments, dict(options))),)
            do = f"{PLACE}.do"
            asked = [host.ask(do, self._number, method, sent, all_answer=all_answer).ref for host in self._hosts]
            answers = self._collect(what, asked)
            return answers if all_answer else answers[:1]

    def _collect(self, what: str, asked: list[Any]) -> list[Any]:
        """What each host has to say to the present call; raises when one of them is in trouble.

        consumes      answers of the hosts
        waits for     one from each
        unblocked by  a host, its death, the clock
        """
        waiting = {ref: rank for rank, ref in enumerate(asked)}
        answers: dict[int, Any] = {}
        troubles: list[Trouble] = []
        until = time.monotonic() + self._timeout_s
        try:
            while waiting and (ready := ray.wait([*waiting], timeout=max(0.0, until - time.monotonic()))[0]):
                for ref in ready:
                    rank = waiting.pop(ref)
                    news = _news(rank, ref)
                    if isinstance(news, Done):
                        answers[rank] = news.answer
                    else:
                        troubles.append(news)
                        until = min(until, time.monotonic() + NEWS_S)
        except BaseException:
            self._unfinished = [*waiting]
            if troubles:  # nobody will hear of them again
                self._end("one of them failed")
            raise
        if waiting and not troubles:
            troubles = [overdue(rank, self._timeout_s, self._stack(rank)) for rank in waiting.values()]
        if troubles:
            self._fail(what, troubles)
        return [answers[rank] for rank in sorted(answers)]

    def _stack(self, rank: int) -> str:
        with suppress(TimeoutError, HostLost):
            return str(self._hosts[rank].look(f"{PLACE}.stack", within_s=STACK_S))
        return ""

    def _fail(self, what: str, troubles: list[Trouble]) -> NoReturn:
        """End everything, and tell why."""
        error = told(troubles, self.size, what)
        self._end(str(error))
        raise error

    def _end(self, why: str) -> None:
        if self._ended:
            return
        self._ended = why
        self._kill()
        until = time.monotonic() + CLOSE_S
        for host in self._hosts:
            with suppress(TimeoutError, HostLost):  # that it is lost is what we wait for
                host.look(f"{PLACE}.stack", within_s=max(0.1, until - time.monotonic()))

    def _kill(self) -> None:
        for host in self._hosts:
            host.kill()


def _put(thing: object) -> Any:  # noqa: ANN401 -- Ray's references have no type
    try:
        return ray.put(thing)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TrainError(f"it cannot be sent between trainer processes: {type(error).__name__}: {error}") from error


def _news(rank: int, ref: Any) -> Done | Trouble:  # noqa: ANN401 -- as above
    """What a host says, or what became of it."""
    try:
        said: Done | Raised = ray.get(ref)
    except RayTaskError as error:  # outside of what is tried there: on the way here
        why = f"its answer cannot be sent between trainer processes: {_last_line(error)}"
        return Trouble(rank=rank, died=False, kind="TrainError", why=why, seen=str(error))
    except RayActorError as error:
        return Trouble(rank=rank, died=True, kind="", why=f"its process is gone: {_reason(error)}", seen=str(error))
    except RayError as error:
        return Trouble(rank=rank, died=True, kind="", why=f"its answer is gone: {_reason(error)}", seen=str(error))
    return said if isinstance(said, Done) else raised(rank, said)


def _reason(error: RayError) -> str:
    """The line in which Ray says why, after those that say what."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    because = [line for line in lines if "because" in line]
    return (because or lines or [type(error).__name__])[0]


def _last_line(error: RayError) -> str:
    return str(error).strip().rpartition("\n")[2]

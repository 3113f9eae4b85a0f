"""What a worker in a host sees of its queue: orders that are brought to it, and news that are fetched from it.

Promises: both go in bulk and in order, and neither waits for the other. Bodies of trajectories leave beside the news,
not in them. An episode that ends with something that no other process can be given has failed, and no other with it.
Times on the queue's clock are told on the host's clock, and the other way round.
"""

import asyncio
from collections.abc import Sequence

from ray import cloudpickle

from windrow.errors import EnvError, InternalError, RewardError, WindrowError, blame, trace_of
from windrow.rollout.orders import Broken, Lease, News, Order, Played, PlayedOut, Scored, Unscorable
from windrow.rollout.ray.parcels import Bodies, Parcel, header, opened, stowed
from windrow.rollout.trays import Forget, Job
from windrow.trajectory import Trajectory
from windrow.types import Failed, Value, but

Brought = Order | Job | Forget
"""What a queue has for those who play, and for those who score."""


PLAIN = (str, int, float, bool, type(None))
DEEPEST = 8
"""How far we look into something to see that it is made of these."""


class Mail(Value, frozen=True, kw_only=True, gc=True):
    """News on their way; trajectories in them are headers without a place for their bodies yet."""

    news: list[News]
    is_last: bool = False


class Mailbox:
    """The queue, as a worker in a host knows it."""

    def __init__(self, clock_now: float) -> None:
        """`clock_now` is the time on the queue's clock."""
        self._ahead = asyncio.get_running_loop().time() - clock_now  # our clock, compared with the queue's
        self._orders: list[Brought] = []
        self._some_orders = asyncio.Event()
        self._news: list[News] = []
        self._some_news = asyncio.Event()
        self._is_over = False
        self._has_ended = False  # the worker
        self._parcels: dict[int, tuple[Parcel, ...]] = {}  # by job that is being scored: what its episodes came as
        self.opened_tray: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether the reward scores groups, once it is known."""

    # for the worker

    async def join(self, worker: str, slots: int, kinds: tuple[str, ...]) -> None:
        """Whoever brings orders has said so already."""

    async def open_tray(self, kind: str, *, in_groups: bool) -> None:  # noqa: ARG002 -- a queue has several, we one
        """Said on by whoever brings jobs."""
        self.opened_tray.set_result(in_groups)

    async def lease(self, worker: str, k: int) -> list[Order]:  # noqa: ARG002 -- as above
        """Orders; none at all means that all is over."""
        return await self._fetch()  # type: ignore[return-value]  # those who play are brought nothing else

    async def fetch_unscored(self, kind: str) -> Sequence[Job | Forget]:  # noqa: ARG002 -- as above
        """The same for those who score, with the tokens of what is to be scored."""
        found: list[Job | Forget] = []
        for order in await self._fetch():
            match order:
                case Job(number=number, trajectories=given):
                    self._parcels[number] = tuple(each for each in given if isinstance(each, Parcel))
                    found.append(Job(number, tuple(await opened(given))))
                case Forget():
                    found.append(order)
                case _:
                    raise InternalError(f"somebody who scores was brought {order!r:.60}")
        return found

    async def report(self, news: Sequence[News]) -> None:
        """Leave news to be fetched."""
        self._news.extend(_sendable(each) for each in news)
        self._some_news.set()

    # for the queue

    def bring(self, orders: Sequence[Brought], *, is_over: bool = False) -> None:
        """Leave orders for the worker."""
        self._orders.extend(self._here(order) for order in orders)
        self._is_over = self._is_over or is_over
        self._some_orders.set()

    async def news(self) -> tuple[Mail, Bodies | None]:
        """Everything since the last time; waits for something."""
        await self._some_news.wait()
        self._some_news.clear()
        news, self._news = self._news, []
        is_last = self._has_ended and not news
        if self._has_ended and news:
            self._some_news.set()  # that it has ended is still to be heard
        played: list[Trajectory] = []
        light = [self._light(each, played) for each in news]
        return Mail(news=light, is_last=is_last), stowed(played) if played else None

    def end(self) -> None:
        """The worker has ended: whoever waits for news hears that there are no more."""
        self._is_over = self._has_ended = True
        self._some_news.set()

    async def _fetch(self) -> list[Brought]:
        while not self._orders and not self._is_over:
            self._some_orders.clear()
            await self._some_orders.wait()
        orders, self._orders = self._orders, []
        return [] if self._is_over else orders

    def _here(self, order: Brought) -> Brought:
        """An order with its times on our clock."""
        return but(order, deadline=order.deadline + self._ahead) if isinstance(order, Lease) else order

    def _light(self, news: News, played: list[Trajectory]) -> News:
        """The same news with headers alone; the trajectories themselves are added to `played`."""
        match news:
            case Played(attempt=attempt, outcome=outcome, trajectory=trajectory):
                return Played(attempt, outcome, self._header(trajectory, played))
            case PlayedOut(kind=kind, trajectory=trajectory):
                return PlayedOut(kind, self._header(trajectory, played))
            case Scored(job=job, trajectories=trajectories):
                came_as = {parcel.attempt: parcel for parcel in self._parcels.pop(job, ())}
                return Scored(
                    job, tuple(self._scored(each, came_as.get(each.attempt), played) for each in trajectories)
                )
            case _:
                return news

    def _header(self, trajectory: Trajectory, played: list[Trajectory]) -> Parcel:
        played.append(trajectory)
        there = but(trajectory, began_at=trajectory.began_at - self._ahead, ended_at=trajectory.ended_at - self._ahead)
        return header(there, None, len(played) - 1)

    def _scored(self, trajectory: Trajectory, came_as: Parcel | None, played: list[Trajectory]) -> Parcel:
        """What was scored goes back as what it came as: its tokens are where they were."""
        if came_as is None:
            return self._header(trajectory, played)
        return but(
            came_as,
            score=trajectory.score,
            scores=trajectory.scores,
            info=trajectory.info,
            last_reward=trajectory.turns[-1].reward,
            reward_began_at=trajectory.reward_began_at - self._ahead,
            reward_ended_at=trajectory.reward_ended_at - self._ahead,
        )


def _sendable(news: News) -> News:
    """The same news, or what is to be said of an episode that ended with something that cannot be sent."""
    match news:
        case Played(trajectory=played) | PlayedOut(trajectory=played):
            error = _unsendable(played, EnvError, f"environment {played.task.tag!r} ended with info")
            if error is not None:
                return Broken(played.attempt, Failed("env", str(error), played.policy_tokens, trace_of(error)))
        case Scored(job=job, trajectories=scored):
            for each in scored:
                error = _unsendable(each, RewardError, f"the reward of {each.task.tag!r} left info")
                if error is not None:
                    return Unscorable(job, str(error), trace_of(error))
        case _:
            pass
    return news


def _unsendable(trajectory: Trajectory, kind: type[WindrowError], whose: str) -> WindrowError | None:
    """Why what an environment or a reward left with a trajectory cannot go to another process; None if it can."""
    if _is_plain(trajectory.info):
        return None
    try:
        with blame(kind, trajectory.attempt, whose, "that cannot be sent to another process"):
            cloudpickle.dumps(trajectory.info)  # type: ignore[no-untyped-call]  # Ray has not typed it
    except WindrowError as error:
        return error
    return None


def _is_plain(value: object, depth: int = 0) -> bool:
    """It is made of text and numbers alone, so it can be sent; most is."""
    if type(value) in PLAIN:
        return True
    if depth == DEEPEST:  # it may contain itself
        return False
    if isinstance(value, dict):
        return type(value) is dict and all(type(key) in PLAIN and _is_plain(value[key], depth + 1) for key in value)
    return type(value) in (list, tuple) and all(_is_plain(each, depth + 1) for each in value)  # type: ignore[attr-defined]


def addressed(news: News, body: object) -> News:
    """News whose headers say where their bodies are."""
    match news:
        case Played(attempt=attempt, outcome=outcome, trajectory=Parcel(body=None) as parcel):
            return Played(attempt, outcome, but(parcel, body=body))
        case PlayedOut(kind=kind, trajectory=Parcel(body=None) as parcel):
            return PlayedOut(kind, but(parcel, body=body))
        case Scored(job=job, trajectories=parcels):
            return Scored(job, tuple(_addressed(parcel, body) for parcel in parcels))
        case _:
            return news


def _addressed(parcel: Trajectory, body: object) -> Trajectory:
    return but(parcel, body=body) if isinstance(parcel, Parcel) and parcel.body is None else parcel

"""A world without time: whatever is granted ends at once, in turn; all that costs is deciding."""

from collections import deque
from time import process_time

from windrow.core.commands import DeliverBatch, FetchTask, GrantLease
from windrow.core.events import (
    AnyEvent,
    AttemptEnded,
    BatchTrained,
    BatchWanted,
    EngineJoined,
    EngineReady,
    TaskArrived,
    VersionPublished,
    WorkerJoined,
)
from windrow.core.settings import Settings
from windrow.sim.scheduler import Scheduler
from windrow.types import Finished


def tread(scheduler: Scheduler, settings: Settings, trajectories: int) -> float:
    """Trajectories per CPU second, in and out."""
    size = settings.train.batch_size
    told: deque[AnyEvent] = deque(
        [EngineJoined("e0"), EngineReady("e0"), WorkerJoined("w0", size), BatchWanted("t", "train", size, 0)]
    )
    ordinal = now = delivered = 0
    began = process_time()
    while told and delivered < trajectories:
        now += 1
        for command in scheduler.step(told.popleft(), float(now)):
            match command:
                case GrantLease(attempt=attempt, version=version):
                    told.append(AttemptEnded(attempt, Finished(1.0, 100, version)))
                case FetchTask(mode=mode, tag=tag, count=count):
                    told.extend(TaskArrived(mode, ordinal + number, tag) for number in range(count))
                    ordinal += count
                case DeliverBatch(batch=batch, step=step, attempts=attempts):
                    delivered += len(attempts)
                    told.append(VersionPublished(step + 1, loaded=True))
                    told.append(BatchTrained(batch))
                    told.append(BatchWanted("t", "train", size, step + 1))
                case _:
                    pass
    return delivered / (process_time() - began)

"""`windrow train`: from a configuration to a policy that has learnt.

Promises: whatever ends a run, the command says how it goes on, and that works as it is said: settings that a run goes
on with are kept in its folder. Nothing of a run is changed before everything that it goes on from could be loaded.
"""

import argparse
import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windrow.cli.alarms import Alarms
from windrow.cli.export import which_checkpoint
from windrow.cli.output import Column, Output
from windrow.cli.stopping import TERMINATED, Termination
from windrow.cli.watching import Spectator, minutes, percent
from windrow.errors import ConfigError

if TYPE_CHECKING:
    from windrow.pipelines.config import TrainFile
    from windrow.pipelines.grounds import Ground
    from windrow.pipelines.training import Outcome, Training
    from windrow.pipelines.watching import Evaluation
    from windrow.store.checkpoints import Checkpoint
    from windrow.store.run import RunFolder

DESCRIPTION = """\
Train a policy: collect episodes, learn from them, serve the new weights, and validate on held-out tasks.
Everything about the run is kept in its folder; one that was stopped or killed goes on with --resume, with the settings
that it had and those that are given, which it keeps. Ctrl-C and SIGTERM save what there is; exit codes 130 and 143.
"""

EPILOG = """\
examples:
  windrow train examples/demo.yaml
  windrow train examples/demo.yaml seed=1 steps=20 --json
  windrow train --resume runs/demo-20261116-120000
  windrow train --resume runs/demo-20261116-120000 --step best steps=400
"""

log = logging.getLogger(__name__)

GLANCE_S = 0.2
"""Between looks at what goes on."""
INTERRUPTED = 130
"""The exit code after Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done where."""

    file: "TrainFile"
    folder: "RunFolder"
    ground: "Ground"
    checkpoint: "Checkpoint | None" = None
    """It goes on from there."""
    ready: Callable[[], object] = lambda: None
    """Called when everything is loaded, before anything is changed in the folder."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="a YAML file; not with --resume")
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", default=[], help="settings that replace those of the file"
    )
    parser.add_argument("--resume", metavar="RUN", help="go on with a run, from its newest checkpoint")
    parser.add_argument(
        "--step",
        metavar="N",
        help="with --resume: from which checkpoint, a step or best; later ones are set aside",
    )


def run(args: argparse.Namespace, out: Output) -> int:
    out.say(f"windrow train: {'going on with ' + args.resume if args.resume else args.config or ''}")
    with Alarms(out):
        return _resume(args, out) if args.resume else _begin(args, out)


def _begin(args: argparse.Namespace, out: Output) -> int:
    if args.config is None:
        raise ConfigError("command line: CONFIG is missing; windrow examples lists some")
    if args.step is not None:
        raise ConfigError("command line: --step needs --resume RUN, whose checkpoint it names")
    from windrow.pipelines.config import read
    from windrow.pipelines.readiness import check_ready
    from windrow.store.checkpoints import Keep
    from windrow.store.run import RunFolder

    loaded = read(args.config, args.overrides)
    check_ready(loaded.value)  # before there is a folder
    file, planned = _placed(loaded.value, out)
    origins = {**loaded.origins, **dict.fromkeys(planned, "plan")}
    keep = Keep(last=file.save.keep)
    with (
        _opened_ground(file, out) as ground,  # before there is a folder, too
        RunFolder.create(file.runs, file.name, _as_yaml(file), origins, keep=keep) as folder,
    ):
        return _train(Job(file, folder, ground), out)


def _opened_ground(file: "TrainFile", out: Output) -> "Ground":
    from windrow.pipelines.grounds import open_ground

    if file.runtime == "ray":
        out.say(f"joining the Ray cluster at {file.ray.address}" if file.ray.address else "starting Ray")
    ground = open_ground(file)
    if ground.logs is not None:
        out.say(f"Ray's own logs: {ground.logs}")
    if file.ray.address and ground.address is not None:
        out.say(f"joined {ground.address}")
    return ground


def _placed(file: "TrainFile", out: Output) -> tuple["TrainFile", list[str]]:
    """The file with devices for every role that it leaves to a plan, and the settings that the plan has made."""
    from windrow.pipelines.config import Cloning
    from windrow.pipelines.planning import planned

    if isinstance(file, Cloning) or not file.roles.is_open:
        return file, []
    out.say("planning who gets which devices; windrow plan shows how")
    found = planned(file)
    if found.plan is not None:
        out.say(f"plan: {found.plan.reasons[0]}")
    return found.file, ["roles.actor_infer.device_mapping", "roles.actor_train.device_mapping", "train.processes"]


def _resume(args: argparse.Namespace, out: Output) -> int:
    from windrow.config.source import COMMAND_LINE
    from windrow.pipelines.config import read
    from windrow.pipelines.readiness import check_ready
    from windrow.store.checkpoints import Keep
    from windrow.store.run import RunFolder, find_run

    given = [args.config, *args.overrides] if args.config else args.overrides
    path = find_run(args.resume)
    loaded = read(RunFolder.read(path).config_file, given)
    file = loaded.value
    check_ready(file, goes_on=True)  # before anything of it is taken back
    with RunFolder.open(path, keep=Keep(last=file.save.keep)) as folder:
        checkpoint = _checkpoint(folder, args.step)
        _check_steps(file, folder, checkpoint)
        if checkpoint is None:
            out.say("there is no checkpoint yet, so it begins anew")
        set_now = {key: origin for key, origin in loaded.origins.items() if origin == COMMAND_LINE}
        origins = {**loaded.origins, **folder.origins, **set_now}

        def ready() -> None:
            folder.configure(_as_yaml(file), origins)
            folder.rewind(None if checkpoint is None else checkpoint.step)

        with _opened_ground(file, out) as ground:
            return _train(Job(file, folder, ground, checkpoint, ready), out)


def _checkpoint(folder: "RunFolder", step: str | None) -> "Checkpoint | None":
    """The one that is named, which must be there; without a name the newest, if there is one."""
    return folder.checkpoints.latest() if step is None else folder.checkpoints.load(which_checkpoint(step))


def _check_steps(file: "TrainFile", folder: "RunFolder", checkpoint: "Checkpoint | None") -> None:
    """Refuse a run that has nothing left to do."""
    made, steps, key = 0 if checkpoint is None else checkpoint.step, _steps(file), _steps_key(file)
    if folder.result is not None and made >= steps:
        raise ConfigError(f"run {folder.path} is finished; {key}=N above {made} lets it go on")
    if made > steps:
        raise ConfigError(
            f"{key} must be {made} or more, got {steps}: so many updates has run {folder.path} made; "
            f"--step N goes on from an earlier checkpoint"
        )


def _steps(file: "TrainFile") -> int:
    """How many it has when it is finished."""
    from windrow.pipelines.config import Cloning

    return file.demonstrations.supervised.steps if isinstance(file, Cloning) else file.steps


def _steps_key(file: "TrainFile") -> str:
    """The setting that says so."""
    from windrow.pipelines.config import Cloning

    return "demonstrations.supervised.steps" if isinstance(file, Cloning) else "steps"


def _train(job: Job, out: Output) -> int:
    from transformers.utils import logging as transformers_logging

    folder = job.folder
    out.say(f"run folder: {folder.path}")
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # ours is enough
    termination = Termination()
    with folder.logged(), Spectator(out) as spectator:
        try:
            outcome = asyncio.run(_trained(job, spectator, termination))
        except (KeyboardInterrupt, asyncio.CancelledError):
            outcome = None
        except BaseException as error:
            log.exception("the run failed: %s", error)  # noqa: TRY401 -- what it was stands in the first line, too
            made = folder.checkpoints.steps()
            if made and folder.result is None:  # a finished run that could not go on is as it was
                out.warn(f"failed, {made[-1]} updates are saved; go on with: windrow train --resume {folder.path}")
            raise
    if outcome is None:
        steps = folder.checkpoints.steps()
        where = f"after {steps[-1]} updates" if steps else "before the first update"
        out.warn(f"stopped {where}; go on with: windrow train --resume {folder.path}")
        return TERMINATED if termination.came else INTERRUPTED
    found = _json_of(outcome, folder)
    folder.write_result(found)
    _tell(outcome, folder, out)
    out.result(found)
    return 0


async def _trained(job: Job, spectator: Spectator, termination: Termination) -> "Outcome":
    from windrow.pipelines.agentic import train_agent
    from windrow.pipelines.config import Agentic, Cloning
    from windrow.pipelines.rlvr import train_on_answers
    from windrow.pipelines.sft import clone_behaviour
    from windrow.pipelines.training import Training

    file = job.file
    with termination:
        if isinstance(file, Cloning):
            return await clone_behaviour(file, job.folder, spectator, job.ground, job.checkpoint, job.ready)
        run = Training(file, job.folder, spectator, job.checkpoint, job.ground, job.ready)
        looking = Looking(run, spectator)
        try:
            return await (train_agent(run) if isinstance(file, Agentic) else train_on_answers(run))
        finally:
            looking.end()


class Looking:
    """Shows now and then what goes on, until it is ended."""

    def __init__(self, run: "Training", spectator: Spectator) -> None:
        self._run = run
        self._spectator = spectator
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(GLANCE_S, self._look)

    def end(self) -> None:
        self._next.cancel()

    def _look(self) -> None:
        self._spectator.glimpsed(self._run.glance())
        self._next = self._loop.call_later(GLANCE_S, self._look)


def _json_of(outcome: "Outcome", folder: "RunFolder") -> dict[str, object]:
    """What scripts rely on."""
    before, after = outcome.before, outcome.after
    found: dict[str, object] = {
        "before": before.success,
        "after": after.success,
        "before_greedy": before.greedy,
        "after_greedy": after.greedy,
        "heldout_tasks": after.tasks,
        "heldout_failed": after.failed,
        "steps": outcome.steps,
        "seconds": outcome.seconds,
        "run": str(folder.path),
        "ledger": outcome.ledger,
        "overlap": outcome.overlap,
        "curve": [_point(each) for each in outcome.curve],
    }
    if after.domains:
        found["domains"] = {
            name: {
                "before": before.domains.get(name),
                "after": after.domains[name],
                "before_greedy": before.greedy_domains.get(name),
                "after_greedy": after.greedy_domains.get(name),
            }
            for name in after.domains
        }
    return found


def _point(evaluation: "Evaluation") -> dict[str, object]:
    return {"step": evaluation.step, "success": evaluation.success, "greedy": evaluation.greedy}


def _tell(outcome: "Outcome", folder: "RunFolder", out: Output) -> None:
    """The summary, and a picture of it."""
    from windrow.cli.curve import draw_curve
    from windrow.cli.timeline import draw_timeline

    before, after = outcome.before, outcome.after
    rows = [
        ("held-out success, sampled", percent(before.success), percent(after.success)),
        ("held-out success, greedy", percent(before.greedy), percent(after.greedy)),
        *(
            (f"  {name}, sampled", percent(before.domains.get(name)), percent(value))
            for name, value in after.domains.items()
        ),
    ]
    out.table([Column("figure", "left"), "before", "after"], rows)
    if outcome.overlap is not None:
        out.say(f"{outcome.overlap} held-out problems among those trained on, compared by hash")
    out.say(f"{outcome.steps} updates in {minutes(outcome.seconds)} minutes; {after.tasks} held-out tasks")
    training = [
        (line.step, line.values["episode/success"]) for line in folder.metrics if "episode/success" in line.values
    ]
    picture = draw_curve(folder.path / "curve.png", outcome.curve, training, folder.about.name)
    out.say(f"learning curve: {picture}" if picture else "no learning curve: pip install 'windrow[plot]' draws one")
    if any(span.use == "lent" for span in outcome.timeline):
        drawn = draw_timeline(folder.path / "timeline.png", outcome.timeline, f"{folder.about.name}: the last steps")
        out.say(f"timeline:       {drawn}" if drawn else "no timeline: pip install 'windrow[plot]' draws one")
    out.say(f"run folder:     {folder.path}")


def _as_yaml(file: "TrainFile") -> str:
    """The effective configuration, from which the run can go on."""
    import yaml

    from windrow.types import to_plain

    return yaml.safe_dump(to_plain(file), sort_keys=False, allow_unicode=True)

"""The choice: every layout that fits is tried, the fastest is taken, and of those as fast the simplest.

Promises: a layout whose memory cannot fit is refused without a trial, if the memory of a device is known. A layout that
the file says is kept if it can work; what would be faster is said beside it.
"""

from collections.abc import Callable
from typing import Literal

from windrow.cluster.mapping import Layout, Member
from windrow.errors import ConfigError
from windrow.plan.layouts import candidates, simplicity
from windrow.plan.question import Figure, Memory, Question
from windrow.plan.trial import Trial, try_out
from windrow.types import Value

AS_FAST = 0.02
"""Layouts whose steps differ by less than this share count as equally fast."""

Verdict = Literal["chosen", "possible", "refused"]
HANDS = {
    "disjoint": "nothing changes hands",
    "colocated": "everything changes hands at once",
    "overlapping": "engines leave and come back",
}
WITH_TRAINING = "with training: between its steps devices of its own would mostly wait"
LEFT = {
    "reference": f"the reference sits {WITH_TRAINING}",
    "critic": f"the critic sits {WITH_TRAINING}",
    "reward": "reward models sit where reward_args.model.device says",
}
"""What a plan does with the other roles that are left to it."""


class Candidate(Value, frozen=True, kw_only=True):
    """A layout that was looked at."""

    layout: Layout
    verdict: Verdict
    why: str
    trial: Trial | None = None
    """None if it was refused before."""


class Plan(Value, frozen=True, kw_only=True):
    """Who gets which devices, and why."""

    devices: int
    layout: Layout
    candidates: tuple[Candidate, ...]
    """In order of seconds per step, refused ones last."""
    reasons: tuple[str, ...]
    figures: tuple[Figure, ...]

    @property
    def chosen(self) -> Candidate:
        return next(each for each in self.candidates if each.verdict == "chosen")


Played = dict[Layout, Trial]


def make_plan(question: Question, on_trial: Callable[[int], None] | None = None) -> Plan:
    """Answer a question; `on_trial` hears how many layouts are done."""
    layouts = candidates(question)
    refused: dict[Layout, Candidate] = {}
    played: Played = {}
    for number, layout in enumerate(layouts):
        trouble = lack_of_memory(question.memory, layout)
        trial = None if trouble else try_out(question, layout)
        if trial is not None and not trial.trouble:
            played[layout] = trial
        else:
            why = trouble if trial is None else f"it does not get on: {trial.trouble}"
            refused[layout] = Candidate(layout=layout, verdict="refused", why=why, trial=trial)
        if on_trial is not None:
            on_trial(number + 1)
    return _concluded(question, layouts, played, refused)


def lack_of_memory(memory: Memory, layout: Layout) -> str:
    """Why a layout cannot fit; empty if it does, or if nobody knows."""
    if memory.device is None:
        return ""
    engine = memory.engine / layout.infer_each
    trainer = _most_learning(memory, layout)
    needs = {"an engine": engine}
    if layout.learning:
        needs["training"] = trainer
    if layout.kind == "colocated":
        needs = {"an engine and training, which both stay there,": engine + trainer}
    for what, bytes_needed in needs.items():
        if bytes_needed > memory.device:
            return f"{what} needs {_gb(bytes_needed)} on a device that has {_gb(memory.device)}"
    return ""


def _most_learning(memory: Memory, layout: Layout) -> float:
    """Bytes of training on the device that has most of it."""
    away = layout.elsewhere
    there = {name for names in away.values() for name in names}
    sizes: dict[Member, float] = {"actor": memory.trainer, "reference": memory.reference, "critic": memory.critic}
    seats = {layout.train: [name for name in sizes if name not in there], **away}
    on = dict.fromkeys(layout.learning, 0.0)
    for own, names in seats.items():
        for device in own:
            on[device] += sum(sizes[name] for name in names) / len(own)
    return max(on.values(), default=0.0)


def _concluded(question: Question, layouts: list[Layout], played: Played, refused: dict[Layout, Candidate]) -> Plan:
    if not layouts:
        raise ConfigError(
            f"no layout fits on {question.devices} devices with {question.infer_each} for an engine and "
            f"{question.train_each} for a trainer; raise devices"
        )
    given = question.given
    if not played or (given is not None and given in refused):
        first = refused[layouts[0]]
        raise ConfigError(f"{first.layout} cannot work: {first.why}; use more devices or a smaller model")
    chosen = _fastest(played) if given is None else given
    order = sorted(played, key=lambda layout: (played[layout].step_s, simplicity(layout)))
    found = [_judged(layout, chosen, played, is_given=given is not None) for layout in order]
    return Plan(
        devices=question.devices,
        layout=chosen,
        candidates=(*found, *refused.values()),
        reasons=_reasons(question, chosen, played),
        figures=question.figures,
    )


def _fastest(played: Played) -> Layout:
    best_s = min(trial.step_s for trial in played.values())
    as_fast = [layout for layout, trial in played.items() if trial.step_s <= best_s * (1.0 + AS_FAST)]
    return min(as_fast, key=lambda layout: (*simplicity(layout), played[layout].step_s))


def _judged(layout: Layout, chosen: Layout, played: Played, *, is_given: bool) -> Candidate:
    trial = played[layout]
    if layout == chosen:
        is_fastest = trial.step_s == min(each.step_s for each in played.values())
        why = "as the file says" if is_given else "the fastest" if is_fastest else "as fast as any, and the simplest"
        return Candidate(layout=layout, verdict="chosen", why=why, trial=trial)
    return Candidate(layout=layout, verdict="possible", why=_beside(layout, chosen, played), trial=trial)


def _beside(layout: Layout, chosen: Layout, played: Played) -> str:
    ratio = played[layout].step_s / played[chosen].step_s - 1.0
    if abs(ratio) <= AS_FAST:
        return "as fast" if simplicity(layout) <= simplicity(chosen) else "as fast, and less simple"
    return f"{abs(ratio):.0%} {'more' if ratio > 0 else 'less'} time per step"


def _reasons(question: Question, chosen: Layout, played: Played) -> tuple[str, ...]:
    """Why this one, in sentences."""
    trial = played[chosen]
    whose = "as the file says" if question.given is not None else f"of {len(played)} layouts that work"
    found = [
        f"{chosen}; {whose}: {trial.step_s:.3g} s per step, devices in use {trial.utilisation:.0%} of the time",
        f"{HANDS[chosen.kind]}; what it waits for: {trial.waits_for}",
    ]
    best = _fastest(played)
    best_s = min(each.step_s for each in played.values())
    if question.given is not None and best != chosen and played[best].step_s < trial.step_s * (1.0 - AS_FAST):
        found.append(f"faster would be {best}: {played[best].step_s:.3g} s per step")
    if question.given is None and trial.step_s > best_s:
        found.append(f"another layout takes {1.0 - best_s / trial.step_s:.1%} less time, and is less simple")
    if question.memory.device is None:
        found.append("the memory of a device is not known, so nothing was refused for it")
    found += [LEFT[name] for name in question.left]
    if not question.splits:
        found.append("train.processes is 0, so training is a thread on one device; 1 lets a plan split it")
    return tuple(found)


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"

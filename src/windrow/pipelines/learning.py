"""Who learns in a run."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from windrow.cluster.local import ResourceManager
from windrow.cluster.mapping import Member, on_this_machine
from windrow.errors import ConfigError, TrainError
from windrow.pipelines.config import Agentic, Cloning, Rlvr, WarmStart
from windrow.pipelines.grounds import Ground
from windrow.pipelines.playing import save_adapter, save_model
from windrow.pipelines.warm_start import lessons, make_tokenizer
from windrow.pipelines.watching import Watcher
from windrow.protocol import DataProto
from windrow.store.checkpoints import Checkpoint
from windrow.text import ChatCodec
from windrow.trajectory import Trajectory
from windrow.types import but

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from windrow.train.config import DemonstrationConfig, ModelConfig
    from windrow.train.learner import Learner
    from windrow.train.local import Roles
    from windrow.train.team import Source, Start
    from windrow.train.weights import Packed

T = TypeVar("T")

MODEL, TRAINER, ADAPTER = "model", "trainer.pt", "adapter"
"""Parts of a checkpoint; the last one where adapters are trained."""
SAID: dict[Member, str] = {"reference": "ref_logprobs", "critic": "values"}
"""The column that each of them adds to a batch."""

Hire = Callable[[Sequence[tuple[int, ...]]], "Start"]
"""What starts trainer processes, given the devices of each of them; no devices: anywhere."""


class OffLoop(Protocol):
    """Runs something that takes long somewhere else than on the event loop."""

    def __call__(self, work: Callable[..., T], *args: Any) -> Awaitable[T]: ...  # noqa: ANN401 -- handed over as they are


class Learning:
    """Those who have weights, and their language."""

    def __init__(
        self, file: Agentic | Rlvr, tokenizer: "PreTrainedTokenizerFast", model: "PreTrainedModel", roles: "Roles"
    ) -> None:
        from windrow.train.alarm import MismatchAlarm, SignalAlarm

        self.tokenizer = tokenizer
        self.codec = ChatCodec(tokenizer)
        self.model = model
        """Its form, and the weights that it began with."""
        self.packed: Packed | None = None
        self._roles = roles
        self._lanes = file.layout.lanes
        self._alarm = MismatchAlarm(file.train)
        self._signal = SignalAlarm()

    def look_back(self, batch: DataProto) -> DataProto:
        """The batch with what the reference and the critic think of it; at the same time if they sit apart."""
        from windrow.train.roles.base import added
        from windrow.train.rows import column
        from windrow.train.spread import at_once

        asked: dict[Member, Callable[[], DataProto]] = {}
        if self._roles.reference is not None:
            asked["reference"] = partial(self._roles.reference.log_probs, batch.select())
        if self._roles.critic is not None:
            asked["critic"] = partial(self._roles.critic.values, batch.select())
        for name, said in at_once(asked, self._lanes).items():
            batch = added(batch, **{SAID[name]: column(said, SAID[name])})
        return batch

    def train(self, batch: DataProto) -> dict[str, float]:
        """New weights for everybody who learns; at the same time if they sit apart."""
        from windrow.train.spread import at_once

        self._signal.look(batch.meta_info.get("metrics", {}))
        learners: dict[Member, Callable[[], dict[str, float]]] = {
            "actor": partial(self._roles.actor.train, batch.select())
        }
        if self._roles.critic is not None:
            learners["critic"] = partial(self._roles.critic.train, batch.select())
        said = at_once(learners, self._lanes)
        self._alarm.look(said["actor"])
        return said["actor"] | said.get("critic", {})

    def pack(self, version: int) -> None:
        """Copy the weights for the engines."""
        self.packed = self._roles.pack(version)

    def parts(self) -> dict[str, Callable[[Path], object]]:
        """What a checkpoint holds of it."""
        found: dict[str, Callable[[Path], object]] = {MODEL: self._save_model, TRAINER: self._save_trainer}
        return found | ({ADAPTER: self._save_adapter} if type(self.model).__module__.startswith("peft.") else {})

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on from there."""
        import torch

        state = torch.load(checkpoint.path(TRAINER), weights_only=True)
        for name, role in self._everybody():
            if name not in state:
                raise ConfigError(
                    f"checkpoint {checkpoint.folder} has no {name}, which these settings need; go on with settings "
                    f"that need none"
                )
            role.load_state_dict(state[name])
        torch.set_rng_state(state["random"])

    def close(self) -> None:
        self._roles.close()

    def _everybody(self) -> "list[tuple[str, Any]]":  # each has state_dict and load_state_dict
        roles = self._roles
        named = {"actor": roles.actor, "critic": roles.critic, "reference": roles.reference}
        return [(name, role) for name, role in named.items() if role is not None]

    def _save_model(self, path: Path) -> None:
        save_model(path, self.model, self._roles.weights(), self.tokenizer)

    def _save_adapter(self, path: Path) -> None:
        save_adapter(path, self.model, self._roles.actor.state_dict()["weights"])

    def _save_trainer(self, path: Path) -> None:
        import torch

        state = {name: role.state_dict() for name, role in self._everybody()}
        torch.save({**state, "random": torch.get_rng_state()}, path)


async def learning(
    file: Agentic | Rlvr,
    watcher: Watcher,
    checkpoint: Checkpoint | None,
    off_loop: OffLoop,
    shown: Callable[[list[Trajectory]], None],
    hire: Hire | None = None,
) -> Learning:
    """Whoever learns, warmed up or as a checkpoint left it; `shown` is told the demonstrations.

    `hire` starts trainer processes, if there are to be any; None: on this machine.
    """
    from windrow.train.models import load_model

    spoken = await language(file, file.warm_start, checkpoint)
    reference = _reference(file, spoken.tokenizer)
    model = await off_loop(load_model, _on_its_device(file), file.seed, spoken.vocabulary)
    if checkpoint is None and file.warm_start is not None:
        learner = await off_loop(pupil, file.model, model, file.warm_start.supervised)
        await warm_up(file, learner, ChatCodec(spoken.tokenizer), file.warm_start, watcher, off_loop, shown)
    hire = hire or Ground(ResourceManager(file.devices)).trainers
    roles = await off_loop(_roles, file, model, spoken.vocabulary, reference, hire)
    made = Learning(file, spoken.tokenizer, model, roles)
    if checkpoint is not None:
        try:
            await off_loop(made.load, checkpoint)
        except BaseException:
            made.close()
            raise
    return made


class Language(NamedTuple):
    """What a model reads and writes."""

    tokenizer: "PreTrainedTokenizerFast"
    vocabulary: int
    """Tokens that a model which is made on the spot has."""


async def language(file: Agentic | Rlvr | Cloning, lesson: WarmStart | None, checkpoint: Checkpoint | None) -> Language:
    """Of the model; that of a checkpoint if there is one."""
    from windrow.train.models import load_tokenizer

    if checkpoint is not None:
        tokenizer = load_tokenizer(but(file.model, path=str(checkpoint.path(MODEL))))
        return Language(tokenizer, checkpoint.meta["vocabulary"])
    tokenizer = await make_tokenizer(file.model, file.collecting.train_env_manager.by_tag(), lesson)
    return Language(tokenizer, len(tokenizer))


def pupil(config: "ModelConfig", model: "PreTrainedModel", settings: "DemonstrationConfig") -> "Learner":
    """Somebody who clones with this model, in its arithmetic, with an optimizer that nobody else uses."""
    from windrow.train.learner import ALONE, Learner
    from windrow.train.networks import Policy
    from windrow.train.roles.base import dtype_of, prepared

    network = prepared(Policy(model, dtype=dtype_of(config, None)), settings.micro, ALONE)
    return Learner(network, settings.optimizer, settings.micro)


def _roles(
    file: Agentic | Rlvr, model: "PreTrainedModel", vocabulary: int, reference: "ModelConfig | None", hire: Hire
) -> "Roles":
    """The roles of a run: where the actor is, in this process or in some of its own, and on devices of their own."""
    from windrow.train.spread import Spread
    from windrow.train.team import Company, Source

    train, away = file.train, file.layout.elsewhere
    there = {name for names in away.values() for name in names}
    state = {name: weight.cpu() for name, weight in model.state_dict().items()} if away or train.processes else None
    source = Source(model=file.model, seed=file.seed, vocabulary=vocabulary, state=state, reference=reference)
    with ExitStack() as opened:
        companies = []
        for own, names in away.items():
            company = Company(train, source, names, len(own), hire([(device,) for device in own]))
            opened.callback(company.close)
            companies.append(company)
        home = _home(file, model, source, [name for name in train.members if name not in there], hire)
        opened.pop_all()
    return Spread(home, companies) if companies else home


def _home(
    file: Agentic | Rlvr, model: "PreTrainedModel", source: "Source", members: "Sequence[Member]", hire: Hire
) -> "Roles":
    """The actor, and those who sit with it."""
    train, dtype = file.train, file.engine.dtype
    folder = None if file.servers is None else file.servers.folder()
    if train.processes:
        from windrow.train.team import Trainers

        return Trainers(train, source, dtype, hire(file.layout.trainers), folder, members)
    from windrow.train.local import LocalTrainers
    from windrow.train.roles import Actor
    from windrow.train.weights import SharedWeights

    actor = Actor(train, model, seed=file.seed, dtype=file.model.dtype, threads=train.threads)
    shared = None if file.servers is None else SharedWeights(folder)
    return LocalTrainers(train, actor, dtype, source.reference, shared, members)


def _on_its_device(file: Agentic | Rlvr) -> "ModelConfig":
    """The model on the first device of training, if there is one in this process."""
    if file.runtime == "ray":
        return file.model
    return but(file.model, device=on_this_machine(file.model.device, file.layout.train))


def _reference(file: Agentic | Rlvr, tokenizer: "PreTrainedTokenizerFast") -> "ModelConfig | None":
    """The reference's own model, if it is to have one; refused if it reads other tokens than the actor writes."""
    from windrow.train.folders import model_folder
    from windrow.train.models import load_tokenizer

    named = file.train.reference
    if not named:
        return None
    found = but(
        _on_its_device(file),
        path=str(model_folder(named, "train.reference")),
        lora=None,
        activation_checkpointing=False,
    )
    if load_tokenizer(found).get_vocab() != tokenizer.get_vocab():
        raise ConfigError(
            f"train.reference is {named}, which has another tokenizer than the model; give one with the same"
        )
    return found


async def warm_up(
    file: Agentic | Rlvr,
    learner: "Learner",
    codec: ChatCodec,
    lesson: WarmStart,
    watcher: Watcher,
    off_loop: OffLoop,
    shown: Callable[[list[Trajectory]], None],
) -> dict[str, float]:
    """Clone what demonstrations show; what the last step said."""
    from windrow.train.supervised import demonstrations, supervise

    settings = lesson.supervised
    envs = file.collecting.train_env_manager.by_tag()
    watcher.stage("warm start", 0, settings.steps, "playing demonstrations")
    played = await lessons(envs, codec, lesson, file.seed)
    shown(played)
    given_up = Event()

    def told(step: int, metrics: dict[str, float]) -> None:
        if given_up.is_set():
            raise TrainError(f"the warm start was given up after {step} steps")
        watcher.stage("warm start", step, settings.steps, f"loss {metrics['supervised/loss']:.3f}")

    try:
        return await off_loop(supervise, learner, demonstrations(played), settings, file.seed, told)
    finally:
        given_up.set()  # nobody waits for the steps that are left

"""The first lessons: a tokenizer for what environments say, and behaviour cloned from demonstrations."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.errors import ConfigError
from windrow.pipelines.config import Agentic, Cloning, Rlvr, WarmStart
from windrow.rollout.demonstrations import Manner, demonstrate, texts_of
from windrow.rollout.env_config import EnvConfig
from windrow.sources.recordings import Recording
from windrow.text import ByteCodec, Codec
from windrow.trajectory import Trajectory
from windrow.types import but

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from windrow.train.config import ModelConfig

AnyFile = Agentic | Rlvr | Cloning

Report = Callable[[int, int, str], None]
"""Told how far it is: done, in all, a note."""


def check_environments(file: AnyFile) -> None:
    """Refuse what environments cannot be made with: those of training, validation and demonstrations."""
    config = file.collecting
    training = config.train_env_manager.by_tag()
    lesson = file.demonstrations if isinstance(file, Cloning) else file.warm_start
    shown = {} if lesson is None else _easier(training, lesson)
    for env in (*training.values(), *config.val_env_manager.by_tag().values(), *shown.values()):
        env.factory()
        env.check_reward()


async def make_tokenizer(
    model: "ModelConfig", envs: Mapping[str, EnvConfig], warm_start: WarmStart | None
) -> "PreTrainedTokenizerFast":
    """The model's own; for one that is made on the spot, trained on what its environments say."""
    from windrow.train.models import TINY, load_tokenizer

    if model.path != TINY:
        return load_tokenizer(model)
    played = await demonstrate(envs, model.tiny.texts * len(envs), ByteCodec())
    if warm_start is not None:
        played += await demonstrate(_easier(envs, warm_start), model.tiny.texts * len(envs), ByteCodec())
    return load_tokenizer(model, texts_of(played))


async def lessons(envs: Mapping[str, EnvConfig], codec: Codec, warm_start: WarmStart, seed: int) -> list[Trajectory]:
    """What is to be cloned: recorded trajectories, or demonstrations of the environments."""
    if warm_start.recording:
        return _recorded(warm_start, codec)
    manner = Manner(seed=seed, noise=warm_start.noise, learn_noise=warm_start.learn_noise)
    return await demonstrate(_easier(envs, warm_start), warm_start.episodes, codec, manner)


def check_recording(warm_start: WarmStart) -> None:
    """Refuse a recording that is not there."""
    if warm_start.recording and not Path(warm_start.recording).is_file():
        raise ConfigError(f"recording {warm_start.recording} is not there; trajectories of a run are in its folder")


def _recorded(warm_start: WarmStart, codec: Codec) -> list[Trajectory]:
    check_recording(warm_start)
    path, least = warm_start.recording, warm_start.min_score
    found = [each for each in Recording(path) if each.score >= least]
    if not found:
        raise ConfigError(f"recording {path} has no trajectory with a score of {least:g} or more; lower min_score")
    for trajectory in found:
        _check_language(trajectory, codec, path)
    return found


def _check_language(trajectory: Trajectory, codec: Codec, path: str) -> None:
    """Refuse tokens of another tokenizer: they mean something else here than what was said when they were sampled."""
    way_out = "use the tokenizer that it was recorded with, or record again"
    largest = max((int(chain.token_ids.max()) for chain in trajectory.chains if len(chain.token_ids)), default=0)
    if largest >= codec.vocabulary:
        raise ConfigError(
            f"recording {path}, {trajectory.attempt}, has token {largest}, and the model's tokenizer has "
            f"{codec.vocabulary} tokens; {way_out}"
        )
    for number, turn in enumerate(trajectory.turns):
        means = codec.decode(trajectory.chains[turn.chain].token_ids[turn.begin : turn.end])
        if means != turn.action:
            raise ConfigError(
                f"recording {path}, {trajectory.attempt}, turn {number}, said {turn.action!r:.60}; its tokens mean "
                f"{means!r:.60} to the model's tokenizer; {way_out}"
            )


def _easier(envs: Mapping[str, EnvConfig], warm_start: WarmStart) -> dict[str, EnvConfig]:
    """The same environments with the arguments of the warm start."""
    unknown = sorted(set(warm_start.tags) - set(envs))
    if unknown:
        raise ConfigError(f"warm_start.tags names {unknown[0]}, which is not played; there are {', '.join(envs)}")
    return {
        tag: but(env, env_args={**env.env_args, **warm_start.env_args, **warm_start.tags.get(tag, {})})
        for tag, env in envs.items()
    }

"""A model of rewards scores what was said.

Promises: an episode is scored as a conversation, as the chat template of the reward model's own tokenizer writes it
(without one: line by line), from the beginning of its last chain. Episodes that wait at the same time are scored
together, on a thread of its own, so that nothing else is held up. The model is loaded with the first of them, once. An
episode that does not fit into the model, or in which nobody spoke, is a `RewardError` and never a score.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from windrow.envs.protocol import Isolation
from windrow.errors import ConfigError, RewardError, blame
from windrow.rewards.classifier import classifier_folder, load_classifier, score_rows
from windrow.rewards.protocol import Score
from windrow.text import Message, read_tokenizer
from windrow.trajectory import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class ModelReward:
    """Scores an episode by a sequence classification model with one label."""

    def __init__(self, path: str, *, device: str = "cpu", tokens: int = 16384, threads: int = 1) -> None:
        """`tokens` go through the model at once, padding included; `threads` are the cores that it may use."""
        for name, value in {"tokens": tokens, "threads": threads}.items():
            if value < 1:
                raise ConfigError(f"reward model: {name} must be 1 or more, got {value}")
        self.isolation: Isolation = "inline"  # it has a thread of its own
        self.preload: tuple[str, ...] = ()
        self._path = str(classifier_folder(path).absolute())
        self._device = device
        self._tokens = tokens
        self._threads = threads
        self._scorer: _Scorer | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._waiting: dict[int, _Asked] = {}  # all and only episodes that have no score yet, by id

    async def score(self, trajectory: Trajectory) -> Score:
        """What the model says."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="windrow-reward-model")
        asked = _Asked(conversation(trajectory))
        self._waiting[id(asked)] = asked
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._work, asked)
        finally:
            del self._waiting[id(asked)]
        assert asked.value is not None  # or something was raised
        return Score(asked.value)

    async def close(self) -> None:
        """Nobody waits for what is not scored yet."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _work(self, asked: "_Asked") -> None:
        """Score whoever waits, in the thread; whoever was scored with somebody before has nothing to do."""
        if asked.value is not None:
            return
        if self._scorer is None:
            self._scorer = _Scorer(self._path, self._device, self._threads)
        self._scorer.encode(asked)
        others = [each for each in [*self._waiting.values()] if each is not asked and each.value is None]
        self._scorer.score(self._together(asked, others))

    def _together(self, asked: "_Asked", others: "list[_Asked]") -> "list[_Asked]":
        """It, and as many others as fit beside it."""
        assert self._scorer is not None
        found, width = [asked], len(asked.ids)
        for other in others:
            wider = max(width, self._scorer.length(other))
            if other.ids and wider * (len(found) + 1) <= self._tokens:
                found, width = [*found, other], wider
        return found


def conversation(trajectory: Trajectory) -> list[Message]:
    """What was shown and said in the last chain of an episode."""
    if not trajectory.turns:
        raise RewardError("nobody spoke, so there is nothing that a reward model could score")
    last = trajectory.turns[-1].chain
    turns = [turn for turn in trajectory.turns if turn.chain == last]
    return [message for turn in turns for message in (*turn.seen, Message("assistant", turn.action))]


class _Asked:
    """An episode that is to be scored."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.ids: list[int] = []
        self.value: float | None = None


class _Scorer:
    """The model and its tokenizer, in the thread."""

    def __init__(self, path: str, device: str, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)  # of this thread
        self._tokenizer: PreTrainedTokenizerFast = read_tokenizer(classifier_folder(path))
        self._model: PreTrainedModel = load_classifier(path, device)
        self._longest: int | None = self._model.config.get_text_config().to_dict().get("max_position_embeddings")

    def length(self, asked: _Asked) -> int:
        """Of somebody else's episode, in tokens; one that cannot be scored has none."""
        try:
            self.encode(asked)
        except RewardError:  # told to whoever asked for it
            asked.ids = []
        return len(asked.ids)

    def encode(self, asked: _Asked) -> None:
        if not asked.ids:
            asked.ids = self._encoded(asked.messages)
        if self._longest is not None and len(asked.ids) > self._longest:
            raise RewardError(
                f"the episode has {len(asked.ids)} tokens and the reward model reads {self._longest}; play shorter "
                f"ones or take another model"
            )

    def score(self, together: list[_Asked]) -> None:
        import torch

        width = max(len(each.ids) for each in together)
        ids = torch.tensor([each.ids + [0] * (width - len(each.ids)) for each in together], device=self._model.device)
        lengths = torch.tensor([len(each.ids) for each in together], device=self._model.device)
        real = (torch.arange(width, device=ids.device) < lengths[:, None]).long()
        with blame(RewardError, "reward model"):
            values = score_rows(self._model, ids, real).float().tolist()
        for each, value in zip(together, values, strict=True):
            each.value = value

    def _encoded(self, messages: list[Message]) -> list[int]:
        if self._tokenizer.chat_template is None:
            text = "".join(f"{message.content}\n" for message in messages)
            return list(self._tokenizer.encode(text))
        said = [{"role": message.role, "content": message.content} for message in messages]
        with blame(RewardError, "chat template of the reward model"):
            text = str(self._tokenizer.apply_chat_template(said, tokenize=False))
        return list(self._tokenizer.encode(text, add_special_tokens=False))

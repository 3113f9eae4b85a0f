"""A reward model: what it reads, that it reads several at once, and what it refuses."""

import asyncio
from collections.abc import Sized
from pathlib import Path

import pytest
from tests.rewards.given import said
from tests.rewards.given_model import save_reward_model

from windrow.errors import RewardError
from windrow.rewards.classifier import load_classifier, score_rows
from windrow.rewards.model import ModelReward, conversation
from windrow.rewards.protocol import Score
from windrow.text import Message, read_tokenizer
from windrow.trajectory import Trajectory
from windrow.types import but

LONGEST = 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_reward_model(tmp_path_factory.mktemp("reward"), LONGEST)


def all_scored(reward: ModelReward, episodes: list[Trajectory]) -> list[float]:
    """Their scores, all asked for at once."""

    async def ask() -> list[Score]:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(reward.score(episode), name="score") for episode in episodes]
        await reward.close()
        return [each.result() for each in asked]

    return [score.value for score in asyncio.run(ask())]


def alone(folder: str, episode: Trajectory) -> float:
    """What the model itself says about a conversation."""
    import torch

    chat = [{"role": each.role, "content": each.content} for each in conversation(episode)]
    text = str(read_tokenizer(Path(folder)).apply_chat_template(chat, tokenize=False))
    ids = torch.tensor([read_tokenizer(Path(folder)).encode(text, add_special_tokens=False)])
    return float(load_classifier(folder)(input_ids=ids).logits[0, 0])


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many go through the model each time."""
    found: list[int] = []

    def seen(model: object, ids: Sized, real: object) -> object:
        found.append(len(ids))
        return score_rows(model, ids, real)  # type: ignore[arg-type]  # handed over

    monkeypatch.setattr("windrow.rewards.model.score_rows", seen)
    return found


def test_episodes_that_wait_together_get_the_scores_that_they_get_alone(folder: str, rows: list[int]):
    episodes = [said("word " * count, index=count) for count in (1, 5, 2, 3)]
    found = all_scored(ModelReward(folder), episodes)
    assert found == pytest.approx([alone(folder, each) for each in episodes], abs=1e-5)
    assert sum(rows) == 4
    assert max(rows) > 1


def test_one_after_the_other_is_the_same_with_little_room(folder: str, rows: list[int]):
    episodes = [said("word " * count, index=count) for count in (1, 5, 2)]
    found = all_scored(ModelReward(folder, tokens=1), episodes)
    assert rows == [1, 1, 1]
    assert found == pytest.approx(all_scored(ModelReward(folder), episodes), abs=1e-5)


def test_a_row_is_scored_by_its_last_real_token_whatever_stands_behind_it(folder: str):
    import torch

    model = load_classifier(folder)
    alone = score_rows(model, torch.tensor([[5, 0, 7]]), torch.ones(1, 3, dtype=torch.long))
    ids = torch.tensor([[5, 0, 7, 0, 9], [1, 2, 3, 4, 0]])
    beside = score_rows(model, ids, torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]))
    assert float(beside[0]) == pytest.approx(float(alone[0]), abs=1e-5)
    assert abs(float(beside[0] - beside[1])) > 1e-3


def test_it_reads_what_was_shown_and_said_since_history_was_rewritten():
    first = but(said("no"), turns=(*said("no").turns, but(said("yes", shown="again?").turns[0], chain=1)))
    assert conversation(first) == [Message("user", "again?"), Message("assistant", "yes")]


def test_an_episode_that_is_too_long_is_no_score_and_spoils_no_other(folder: str):
    reward = ModelReward(folder)

    async def ask() -> list[Score | BaseException]:
        episodes = [said("a"), said("b" * LONGEST), said("c")]
        return await asyncio.gather(*map(reward.score, episodes), return_exceptions=True)

    one, long, other = asyncio.run(ask())
    assert isinstance(long, RewardError)
    assert f"the reward model reads {LONGEST}" in str(long)
    assert isinstance(one, Score)
    assert isinstance(other, Score)


def test_an_episode_in_which_nobody_spoke_is_no_score():
    with pytest.raises(RewardError, match="nobody spoke"):
        conversation(but(said("x"), turns=()))

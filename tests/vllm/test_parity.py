"""What a vLLM server says of its tokens, against the same model in transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.kits import Heard, hear, request, run_async
from tests.vllm.given import MODELS, vllm_settings

from windrow.engines.openai import OpenAIEngine
from windrow.errors import ConfigError

CLOSE = 1e-4
"""Both compute in float32; what remains is the order of sums."""


def teacher_forced(folder: Path, heard: Heard) -> np.ndarray:
    """The log-prob of each token as the protocol defines it."""
    import torch
    from transformers import AutoModelForCausalLM

    asked = heard.request.sampling
    prompt = heard.request.prompt.tolist()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([prompt + heard.tokens])).logits[0, len(prompt) - 1 : -1]
    logits = logits / (asked.temperature or 1.0)
    if asked.allowed_token_ids:
        allowed = torch.tensor(asked.allowed_token_ids)
        masked = torch.full_like(logits, -torch.inf)
        masked[:, allowed] = logits[:, allowed]
        logits = masked
    places = torch.arange(len(heard.tokens))
    found: np.ndarray = logits.log_softmax(-1)[places, torch.tensor(heard.tokens)].numpy()
    return found


@run_async
@pytest.mark.parametrize(
    "wish",
    [{}, {"temperature": 0.7}, {"temperature": 1.6}, {"temperature": 0.0}, {"allowed_token_ids": tuple(range(40, 90))}],
    ids=str,
)
async def test_log_probs_are_those_of_the_model(wish: dict[str, Any]):
    engine = OpenAIEngine("one", vllm_settings())
    await engine.start()
    await engine.load(1, MODELS / "weights0")
    heard = await hear(engine, request(max_tokens=200, **wish))
    await engine.close()
    gap = np.abs(np.array(heard.logprobs) - teacher_forced(MODELS / "weights0", heard)).max()
    print(f"max |Δ log-prob| {gap:.2e} over {len(heard.tokens)} tokens, {wish}")  # noqa: T201 -- the measurement
    assert gap <= CLOSE


@run_async
@pytest.mark.parametrize("wish", [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}], ids=str)
async def test_log_probs_of_what_is_left_are_refused(wish: dict[str, Any]):
    engine = OpenAIEngine("one", vllm_settings())
    await engine.start()
    with pytest.raises(ConfigError, match=f"{next(iter(wish))} cuts tokens off"):
        await hear(engine, request(max_tokens=5, **wish))
    await engine.close()


@run_async
async def test_new_weights_are_the_weights_that_sample():
    engine = OpenAIEngine("one", vllm_settings())
    await engine.start()
    for version, number in enumerate((1, 2, 0), start=1):
        folder = MODELS / f"weights{number}"
        await engine.load(version, folder)
        heard = await hear(engine, request(version, max_tokens=100))
        gap = np.abs(np.array(heard.logprobs) - teacher_forced(folder, heard)).max()
        other = np.abs(np.array(heard.logprobs) - teacher_forced(MODELS / f"weights{(number + 1) % 3}", heard)).max()
        print(f"version {version}: max |Δ log-prob| {gap:.2e}; against other weights {other:.2f}")  # noqa: T201
        assert gap <= CLOSE < other
    await engine.close()

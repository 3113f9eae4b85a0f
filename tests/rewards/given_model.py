"""A reward model of a few thousand weights, made on the spot."""

from pathlib import Path
from typing import Any

from windrow.tiny import tiny_tokenizer

SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def save_reward_model(folder: Path, longest: int = 4096) -> str:
    """Write one with its tokenizer; where."""
    import torch
    from transformers import Qwen2Config, Qwen2ForSequenceClassification

    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    told = SIZES | {"num_labels": 1, "bos_token_id": None, "eos_token_id": None}
    config = Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=1, max_position_embeddings=longest, **told)
    Qwen2ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)

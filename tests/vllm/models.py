"""Checkpoints for a vLLM server on a CPU: tiny, untied, with heads of 32, and a tokenizer of the same vocabulary.

Run as a script it writes checkpoints 0, 1 and 2 into a folder: `python tests/vllm/models.py FOLDER`.
"""

import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CONTEXT = 1024
LETTERS = 256
NUMBERS = (0, 1, 2)


def write(folder: Path) -> None:
    """Checkpoints that differ in their weights alone."""
    for number in NUMBERS:
        path = folder / f"weights{number}"
        _save_model(number, path)
        _save_tokenizer(path)


def _save_model(number: int, path: Path) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(number)
    config = Qwen2Config(
        vocab_size=LETTERS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # vLLM on a CPU knows no smaller head than 32
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)  # fresh weights say almost nothing
    model.save_pretrained(path)


def _save_tokenizer(path: Path) -> None:
    """One token per byte; byte and number agree for plain letters."""
    from transformers import PreTrainedTokenizerFast

    symbols = pre_tokenizers.ByteLevel.alphabet()
    plain = {symbol: ord(symbol) for symbol in symbols if 33 <= ord(symbol) < 127}
    others = iter(sorted(set(range(LETTERS)) - set(plain.values())))
    vocabulary = plain | {symbol: next(others) for symbol in sorted(set(symbols) - set(plain))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=CONTEXT).save_pretrained(path)


if __name__ == "__main__":
    write(Path(sys.argv[1]))

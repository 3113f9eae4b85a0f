"""Real Hugging Face models and a real tokenizer, small enough to be made on the spot: no download, no key, no GPU."""

from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

Kind = Literal["qwen2", "llama", "gpt2"]

END = "<|im_end|>"
SPECIAL = ("<|endoftext|>", "<|im_start|>", END)
VOCABULARY = 256 + len(SPECIAL)
"""Every byte, and the special tokens after them."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_model(
    kind: Kind = "qwen2", seed: int = 0, vocab: int = VOCABULARY, context: int = 512, layers: int = 2
) -> "PreTrainedModel":
    """A model of hidden size 64 with random weights; the same ones for the same seed."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _made(kind, vocab, context, layers)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(4.0)  # fresh weights say almost nothing; these have likes and dislikes
    return cast("PreTrainedModel", model.eval())


def _made(kind: Kind, vocab: int, context: int, layers: int) -> "PreTrainedModel":
    import torch
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
    )

    shared: dict[str, Any] = {"vocab_size": vocab, "tie_word_embeddings": False, "dtype": torch.float32}
    shared |= {"bos_token_id": None, "eos_token_id": None}
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=layers, n_head=4, n_positions=context, **shared))
    shared |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": layers, "num_attention_heads": 4}
    shared |= {"num_key_value_heads": 2, "max_position_embeddings": context}
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**shared))
    return Qwen2ForCausalLM(Qwen2Config(**shared))


def tiny_tokenizer() -> "PreTrainedTokenizerFast":
    """One token per byte, ChatML with `<|im_end|>` as the end of a message."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: place for place, symbol in enumerate([*symbols, *SPECIAL])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token="<|endoftext|>",  # noqa: S106 -- a token of the vocabulary
        extra_special_tokens=["<|im_start|>"],
        model_max_length=100_000,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast

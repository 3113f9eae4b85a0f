"""Real Hugging Face models and tokenizers, small enough to be made on the spot: no download, no key, no GPU.

Promises: the same arguments make the same model and the same tokenizer in any process; every text can be written in
their tokens and comes back exactly; what `save_pretrained` wrote is read back as it was.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, cast

from windrow.errors import ConfigError

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

SHORT_PAD, SHORT_END = "<|pad|>", "<|end|>"
SHORT_ROLES = ("system", "user", "assistant", "tool")
SHORT_SPECIAL = (SHORT_PAD, SHORT_END, *(f"<|{role}|>" for role in SHORT_ROLES))
FEWEST_TOKENS = 256 + len(SHORT_SPECIAL)
"""Of a tokenizer that was trained: every byte must have a token."""

SHORT_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

LIVELY = 4.0
"""Fresh weights say almost nothing; so much larger they have likes and dislikes, which tests of sampling want."""


def tiny_model(  # noqa: PLR0913 -- each is one size of the model
    kind: Kind = "qwen2",
    seed: int = 0,
    vocab: int = VOCABULARY,
    context: int = 512,
    layers: int = 2,
    *,
    hidden: int = 64,
    heads: int = 4,
    scale: float = LIVELY,
    spread: float = 0.02,
) -> "PreTrainedModel":
    """A model with random weights, the same ones for the same seed.

    Whoever trains it wants a `scale` of 1 and a `spread` of the weights of about one over the root of `hidden`: with
    the 0.02 of large models a small one needs many steps before it learns anything.
    """
    import torch

    if hidden % (2 * heads):
        raise ConfigError(f"hidden must be a multiple of 2 * heads = {2 * heads}, got {hidden}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _made(kind, vocab, context, layers, hidden, heads, spread)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(scale)
    return cast("PreTrainedModel", model.eval())


def _made(
    kind: Kind, vocab: int, context: int, layers: int, hidden: int, heads: int, spread: float
) -> "PreTrainedModel":
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
    shared |= {"bos_token_id": None, "eos_token_id": None, "initializer_range": spread}
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_embd=hidden, n_layer=layers, n_head=heads, n_positions=context, **shared))
    shared |= {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers}
    shared |= {"num_attention_heads": heads, "num_key_value_heads": heads if heads % 2 else heads // 2}
    shared |= {"max_position_embeddings": context}
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


def trained_tokenizer(texts: Iterable[str], size: int = 512) -> "PreTrainedTokenizerFast":
    """A tokenizer for texts like these: whole words where they are frequent, digits one by one, bytes for the rest.

    It has at most `size` tokens, fewer if the texts have nothing more to join. A message is `<|role|>text<|end|>`; the
    marks are one token each, and `<|end|>` is what a policy ends its message with.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if size < FEWEST_TOKENS:
        raise ConfigError(f"size must be at least {FEWEST_TOKENS}, a token for every byte, got {size}")
    tokenizer = Tokenizer(models.BPE())
    split: list[Any] = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[*SHORT_SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SHORT_END,
        pad_token=SHORT_PAD,
        extra_special_tokens=[*SHORT_SPECIAL[2:]],
        model_max_length=100_000,
    )
    fast.chat_template = SHORT_CHAT_TEMPLATE
    return fast

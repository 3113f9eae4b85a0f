"""Text and tokens, with a real tokenizer that is made on the spot."""

import pickle
import threading
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from windrow.errors import ConfigError
from windrow.requests import Tokens
from windrow.text import LONGEST_REMEMBERED, ByteCodec, ChatCodec, Codec, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITH_A_SYSTEM_OF_ITS_OWN = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe good.<|im_end|>\n{% endif %}" + CHATML
)
THINKING = CHATML.replace("assistant\n", "assistant\n<think>\n")
ENDS_QUESTIONS_ALONE = (
    "{% for message in messages %}{% if message.role == 'assistant' %}A: {{ message.content }}\n"
    "{% else %}Q: {{ message.content }}<|im_end|>{% endif %}{% endfor %}A: "
)
FORGETFUL = "{% for message in messages %}{% if message.role == 'user' %}{{ message.content }}{% endif %}{% endfor %}"
SAMPLE = "the quick brown fox jumps over the lazy dog\nuser assistant system task turn 0123456789 Grüße 你好 🙂\n" * 3


@cache
def trained() -> str:
    """A small byte-level BPE, as text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [SAMPLE],
        trainers.BpeTrainer(
            vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False, min_frequency=1
        ),
    )
    return str(made.to_str())


def tokenizer(template: str | None = CHATML, end: str | None = "<|im_end|>") -> "PreTrainedTokenizerFast":
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(trained()), eos_token=end)
    made.chat_template = template
    return made


def said(codec: ChatCodec, text: str, *, closed: bool = True) -> Tokens:
    """What a policy samples when it says something."""
    tokens = codec.encode(text)
    return np.append(tokens, np.int32(codec.stop_token_ids[0])) if closed else tokens


def whole(codec: ChatCodec, conversation: list[Message]) -> list[int]:
    """A conversation rendered at once."""
    made = codec._tokenizer
    messages = [{"role": message.role, "content": message.content} for message in conversation]
    text = made.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(made.encode(text, add_special_tokens=False))


CONVERSATIONS = {
    "one question": ([Message("user", "the quick fox")], [("jumps", [Message("user", "over")])]),
    "a system": ([Message("system", "be brief"), Message("user", "go")], [("ok", [Message("user", "turn 1")])]),
    "many turns": (
        [Message("user", "task 0")],
        [(f"answer {turn}", [Message("user", f"turn {turn}")]) for turn in range(5)],
    ),
    "two messages at once": (
        [Message("user", "task")],
        [("say", [Message("tool", "42"), Message("user", "and now?")]), ("done", [Message("user", "")])],
    ),
    "other scripts": (
        [Message("user", "Grüße 你好 🙂")],
        [("你好\n\n", [Message("user", "🙂\n")]), ("", [Message("user", "?")])],
    ),
}
every_conversation = pytest.mark.parametrize("name", CONVERSATIONS)


# what comes again


@every_conversation
@pytest.mark.parametrize("template", [CHATML, None])
def test_messages_that_come_again_are_the_same_tokens(template: str | None, name: str):
    codec, fresh = ChatCodec(tokenizer(template)), ChatCodec(tokenizer(template))
    first, ((answer, messages), *_) = CONVERSATIONS[name]
    for _ in range(3):
        assert codec.begin(first).tolist() == fresh.begin(first).tolist()
        for closed in (True, False):
            response = said(codec, answer, closed=closed)
            assert (
                codec.extend(response, messages).tolist()
                == ChatCodec(tokenizer(template)).extend(response, messages).tolist()
            )


def test_messages_that_differ_in_anything_are_told_apart():
    codec = ChatCodec(tokenizer(CHATML + "{{ messages[0].name }}"))
    alike = [Message("user", "go"), Message("tool", "go"), Message("user", "go", "bell"), Message("user", "go ")]
    seen = {tuple(codec.begin([message]).tolist()) for message in alike}
    assert len(seen) == 4
    assert tuple(codec.begin(alike[:2]).tolist()) not in seen


def test_tokens_that_others_get_too_cannot_be_written_to():
    codec = ChatCodec(tokenizer())
    for tokens in (codec.begin([Message("user", "go")]), codec.extend(said(codec, "ok"), [Message("user", "on")])):
        with pytest.raises(ValueError, match="read-only"):
            tokens[0] = 7


@pytest.mark.parametrize("length", [10, 5000])
def test_long_messages_are_rendered_and_not_remembered(length: int):
    codec = ChatCodec(tokenizer())
    message = [Message("user", "x" * length)]
    codec.begin(message)
    codec.extend(said(codec, "ok"), message)
    kept = 1 if length <= LONGEST_REMEMBERED else 0
    assert (codec._known_begin.cache_info().currsize, codec._known_after.cache_info().currsize) == (kept, kept)


def test_a_core_that_says_something_else_than_the_tokenizer_is_not_used():
    from transformers import PreTrainedTokenizerFast

    class Shouting(PreTrainedTokenizerFast):
        def encode(self, text: str, **given: object) -> list[int]:
            return list(super().encode(text.upper(), **given))

    from tokenizers import Tokenizer

    made = Shouting(tokenizer_object=Tokenizer.from_str(trained()), eos_token="<|im_end|>")  # noqa: S106 -- no secret
    made.chat_template = CHATML
    codec = ChatCodec(made)
    assert codec.encode("fox").tolist() == ChatCodec(tokenizer()).encode("FOX").tolist()


def test_a_tokenizer_that_would_cut_texts_off_does_not():
    made = tokenizer()
    made.backend_tokenizer.enable_truncation(3)
    made.backend_tokenizer.enable_padding(length=50)
    assert ChatCodec(made).encode(SAMPLE).tolist() == ChatCodec(tokenizer()).encode(SAMPLE).tolist()


# pieces joined are the whole


@every_conversation
@pytest.mark.parametrize("template", [CHATML, WITH_A_SYSTEM_OF_ITS_OWN])
def test_pieces_joined_are_the_same_tokens_as_the_whole_rendered_at_once(template: str, name: str):
    codec = ChatCodec(tokenizer(template))
    first, turns = CONVERSATIONS[name]
    conversation = [*first]
    tokens = codec.begin(first).tolist()
    for answer, messages in turns:
        response = said(codec, answer)
        tokens += [*response.tolist(), *codec.extend(response, messages).tolist()]
        conversation += [Message("assistant", answer), *messages]
    assert tokens == whole(codec, conversation)


@every_conversation
def test_a_response_that_was_cut_off_gets_its_closing(name: str):
    codec = ChatCodec(tokenizer())
    first, ((answer, messages), *_) = CONVERSATIONS[name]
    response = said(codec, answer, closed=False)
    tokens = [*codec.begin(first).tolist(), *response.tolist(), *codec.extend(response, messages).tolist()]
    assert tokens == whole(codec, [*first, Message("assistant", answer), *messages])


def test_what_opens_the_next_answer_is_there_each_time():
    codec = ChatCodec(tokenizer(THINKING))
    opening = codec.encode("<|im_start|>assistant\n<think>\n").tolist()
    assert codec.begin([Message("user", "go")]).tolist()[-len(opening) :] == opening
    assert codec.extend(said(codec, "ok"), [Message("user", "on")]).tolist()[-len(opening) :] == opening


def test_what_the_policy_sampled_is_never_rendered_again():
    """It may not even be text, or look like the template itself."""
    codec = ChatCodec(tokenizer())
    plain = codec.extend(said(codec, "ok"), [Message("user", "on")]).tolist()
    for odd in ([0, 0, 1, 1], [5, 0, 7, 1], [1]):
        assert codec.extend(np.array(odd, np.int32), [Message("user", "on")]).tolist() == plain


def test_the_closing_is_added_only_as_far_as_the_policy_has_not_sampled_it():
    """The tokenizer's end is another token than the one with which the template closes a message."""
    codec = ChatCodec(tokenizer(end="<|endoftext|>"))
    messages = [Message("user", "on")]
    open_ended = codec.encode("ok")
    closing = codec.encode("<|im_end|>\n")
    for sampled in range(len(closing) + 1):
        response = np.concatenate([open_ended, closing[:sampled]])
        joined = [*response.tolist(), *codec.extend(response, messages).tolist()]
        assert joined == [*open_ended.tolist(), *codec.extend(open_ended, messages).tolist()]


def test_a_message_is_shown_even_if_the_template_does_not_end_answers_with_the_end():
    codec = ChatCodec(tokenizer(ENDS_QUESTIONS_ALONE))
    after = codec.extend(said(codec, "ok"), [Message("user", "on we go")])
    assert "on we go" in codec.decode(after)


def test_a_template_that_hides_the_answer_is_refused():
    with pytest.raises(ConfigError, match="the chat template does not show what the role 'assistant' said"):
        ChatCodec(tokenizer(FORGETFUL))


def test_a_codec_travels_to_another_process_and_says_the_same():
    codec = ChatCodec(tokenizer())
    other = pickle.loads(pickle.dumps(codec))  # noqa: S301 -- our own bytes
    messages = [Message("user", "on")]
    assert other.begin(messages).tolist() == codec.begin(messages).tolist()
    assert other.extend(said(codec, "ok"), messages).tolist() == codec.extend(said(codec, "ok"), messages).tolist()


# without a template


def test_without_a_template_messages_are_plain_lines():
    codec = ChatCodec(tokenizer(None))
    assert codec.decode(codec.begin([Message("system", "be brief"), Message("user", "go")])) == "be brief\ngo\n"
    assert codec.decode(codec.extend(said(codec, "ok"), [Message("user", "on")])) == "on\n"


@pytest.mark.parametrize("closed", [True, False])
def test_without_a_template_a_response_ends_once(closed: bool):
    codec = ChatCodec(tokenizer(None))
    response = said(codec, "ok", closed=closed)
    tokens = [*response.tolist(), *codec.extend(response, [Message("user", "on")]).tolist()]
    assert tokens == [*said(codec, "ok").tolist(), *codec.encode("on\n").tolist()]


# the rest of what a codec promises


def test_a_tokenizer_without_an_end_is_refused():
    with pytest.raises(ConfigError, match="the tokenizer has no eos_token"):
        ChatCodec(tokenizer(end=None))


def test_decoding_leaves_the_end_out_and_gives_the_text_back():
    codec = ChatCodec(tokenizer())
    assert codec.decode(said(codec, "Grüße 🙂")) == "Grüße 🙂"
    assert codec.decode(np.empty(0, np.int32)) == ""


CODECS = {"bytes": ByteCodec, "chat": lambda: ChatCodec(tokenizer())}


@pytest.mark.parametrize("make", CODECS.values(), ids=CODECS)
def test_tokens_are_int32_and_in_the_vocabulary(make):
    codec: Codec = make()
    for tokens in (
        codec.begin([Message("user", "Grüße")]),
        codec.extend(np.empty(0, np.int32), [Message("user", "x")]),
    ):
        assert tokens.dtype == np.int32
        assert 0 <= tokens.min() <= tokens.max() < codec.vocabulary
    assert all(0 <= token < codec.vocabulary for token in codec.stop_token_ids)


def test_the_tokenizer_that_was_given_stays_untouched():
    given = tokenizer()
    codec = ChatCodec(given)
    given.chat_template = FORGETFUL
    given.add_special_tokens({"eos_token": "<|endoftext|>"})
    assert codec.decode(said(codec, "ok")) == "ok"
    response = said(codec, "ok")
    assert [*codec.begin([Message("user", "go")]), *response] == [*whole(codec, [Message("user", "go")]), *response]


def test_several_threads_may_use_it_at_once():
    codec = ChatCodec(tokenizer())
    first, ((answer, messages), *_) = CONVERSATIONS["many turns"]
    expected = (codec.begin(first).tolist(), codec.extend(said(codec, answer), messages).tolist())
    wrong: list[object] = []

    def use() -> None:
        for _ in range(20):
            found = (codec.begin(first).tolist(), codec.extend(said(codec, answer), messages).tolist())
            if found != expected or codec.decode(said(codec, answer)) != answer:
                wrong.append(found)

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# bytes


def test_bytes_are_themselves():
    codec = ByteCodec()
    assert codec.begin([Message("user", "é")]).tolist() == [0xC3, 0xA9, 10]
    assert codec.decode(np.array([0xC3, 0xA9, 256], np.int32)) == "é"
    assert codec.decode(np.array([0xFF], np.int32)) == "\ufffd"


@pytest.mark.parametrize(("response", "closing"), [([97], [256]), ([97, 256], []), ([], [256]), ([256, 97], [256])])
def test_bytes_close_a_message_that_was_not_closed(response: list[int], closing: list[int]):
    after = ByteCodec().extend(np.array(response, np.int32), [Message("user", "x")])
    assert after.tolist() == [*closing, ord("x"), 10]


# tools

ADD = {"type": "function", "function": {"name": "add", "description": "a sum", "parameters": {"type": "object"}}}
WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}"
    "{% for message in messages %}{% if message.role == 'tool' %}<|im_start|>user\n<tool_response>{{ message.content }}"
    "</tool_response>{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def begun(template: str | None, *messages: Message) -> str:
    codec = ChatCodec(tokenizer(template))
    return str(codec._tokenizer.decode(codec.begin([*messages], [ADD])))


def test_tools_go_where_the_template_wants_them():
    text = begun(WITH_TOOLS, Message("user", "hi"))
    assert text.startswith("<|im_start|>system\n# Tools\n")
    assert '"name": "add"' in text
    assert "<tool_call>" not in text  # the template explains them, not we


def test_a_template_without_tools_gets_them_in_words_as_its_one_system_message():
    text = begun(CHATML, Message("system", "be good"), Message("user", "hi"))
    assert text.count("<|im_start|>system") == 1
    assert text.startswith("<|im_start|>system\nbe good\nto use a tool write <tool_call>")
    assert '"name": "add"' in text


@pytest.mark.parametrize("codec", [ByteCodec(), ChatCodec(tokenizer(None))], ids=["bytes", "lines"])
def test_without_any_template_tools_are_lines_as_well(codec: Codec):
    assert '"name": "add"' in codec.decode(codec.begin([Message("user", "hi")], [ADD]))
    assert "add" not in codec.decode(codec.begin([Message("user", "hi")]))


def test_what_a_tool_said_continues_the_conversation():
    codec = ChatCodec(tokenizer(WITH_TOOLS))
    after = codec.extend(said(codec, "<tool_call>{}</tool_call>"), [Message("tool", "3", "add")])
    assert "<tool_response>3</tool_response>" in codec._tokenizer.decode(after)


def test_the_name_of_a_tool_reaches_the_template():
    template = (
        "{% for message in messages %}{{ message.content }}{% if message.name %}={{ message.name }}{% endif %};"
        "{% endfor %}"
    )
    codec = ChatCodec(tokenizer(template))
    assert codec.decode(codec.begin([Message("tool", "3", "add"), Message("user", "x")])) == "3=add;x;"

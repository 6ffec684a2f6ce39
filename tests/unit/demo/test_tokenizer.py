from __future__ import annotations

import pytest

from verl_ext.demo.task import ReverseTask
from verl_ext.demo.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, build_tokenizer, vocabulary
from verl_ext.errors import NereusError

TASK = ReverseTask()


def test_fillers_hold_no_digit_and_no_letter_of_the_task() -> None:
    tokens = list(vocabulary((TASK.instruction,)))
    assert len(tokens) == len(set(tokens)) == 128
    printable = {chr(code) for code in range(0x20, 0x7F)} | {"\n"}
    known = {"<pad>", "<eos>", "<bos>", "<unk>", "<|user|>", "<|assistant|>", TASK.instruction} | printable
    fillers = set(tokens) - known
    assert len(fillers) == 25
    assert all(len(f) == 1 and f.isalpha() and not f.isascii() for f in fillers)
    # Every token of several characters costs more positions than it can win.
    assert all(len(t) == 1 or len(t) > 4 for t in tokens)


def test_sizes_it_cannot_have_are_refused() -> None:
    with pytest.raises(NereusError, match="size"):
        vocabulary((), 500)
    with pytest.raises(NereusError, match="size"):
        vocabulary((), 50)


def test_word_tokens_cannot_be_patterns() -> None:
    with pytest.raises(NereusError, match="plain letter"):
        build_tokenizer((".*",))


def test_round_trip_and_chat_template() -> None:
    tokenizer = build_tokenizer((TASK.instruction,))
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (PAD_ID, EOS_ID)
    assert PAD_ID != EOS_ID
    assert len(tokenizer) == 128
    message = [{"role": "user", "content": TASK.prompt("abcd")}]
    text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    assert text == "<|user|>reverse abcd<|assistant|>"
    ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert len(ids) == 7
    assert tokenizer.decode(ids) == text
    turn = [*message, {"role": "assistant", "content": "dcba"}]
    assert tokenizer.apply_chat_template(turn, tokenize=False) == text + "dcba<eos>"


def test_what_the_reward_sees_of_odd_tokens() -> None:
    tokenizer = build_tokenizer((TASK.instruction,))
    a, b, user = (tokenizer.convert_tokens_to_ids(t) for t in ("a", "b", "<|user|>"))
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=True)  # noqa: E731
    assert decode([a, b, EOS_ID]) == "ab"
    assert decode([PAD_ID, BOS_ID, UNK_ID, EOS_ID]) == ""
    assert decode([a, user, b]) == "a<|user|>b"
    assert all(decode([i]) for i in range(4, 128))

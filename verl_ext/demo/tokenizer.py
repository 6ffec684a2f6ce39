"""A character tokenizer with a chat template, made on the spot."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

from verl_ext.errors import NereusError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, EOS, BOS, UNK = "<pad>", "<eos>", "<bos>", "<unk>"
USER, ASSISTANT = "<|user|>", "<|assistant|>"
PAD_ID, EOS_ID, BOS_ID, UNK_ID = 0, 1, 2, 3

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}" + ASSISTANT + "{{ message['content'] }}" + EOS + "{% else %}"
    "" + USER + "{{ message['content'] }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)


def vocabulary(words: tuple[str, ...], size: int = 128) -> dict[str, int]:
    """Token -> id: four special tokens, two role marks, `words`, printable ASCII, then Greek letters up to `size`.

    The rest is filled with Greek letters because a filler that reads as digits or Latin letters could earn reward.

    Args:
        words: texts that get one token each although they are longer than a character.
        size: number of tokens.
    """
    printable = [chr(code) for code in range(0x20, 0x7F)] + ["\n"]
    greek = [chr(code) for code in range(0x3B1, 0x3CA)]
    tokens = [PAD, EOS, BOS, UNK, USER, ASSISTANT, *words, *printable, *greek]
    if not len(tokens) - len(greek) <= size <= len(tokens):
        raise NereusError(
            "The demo vocabulary cannot have that size.",
            where="vocabulary(words, size)",
            expected=f"{len(tokens) - len(greek)} to {len(tokens)} tokens",
            got=str(size),
            change="use the default size of 128",
        )
    return {token: index for index, token in enumerate(tokens[:size])}


def build_tokenizer(words: tuple[str, ...], *, size: int = 128, max_length: int = 256) -> PreTrainedTokenizerFast:
    """The tokenizer.

    Role marks are ordinary tokens on purpose: decoding keeps them, so a policy that emits one pays for it.

    Args:
        words: texts that get one token each; must not hold characters that mean something in a regular expression.
        size: number of tokens.
        max_length: `model_max_length`, in tokens.
    """
    if any(set(word) - set(string.ascii_letters + " :") for word in words):
        raise NereusError(
            "A word token holds a character that is not a plain letter.",
            where="build_tokenizer(words)",
            expected="ASCII letters, spaces and colons",
            got=repr(words),
            change="use another instruction for the demo task",
        )
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel(vocabulary(words, size), unk_token=UNK))
    marks = [r"<\|user\|>", r"<\|assistant\|>", *words]
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("|".join([*marks, r"[\s\S]"])), "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        bos_token=BOS,
        unk_token=UNK,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer

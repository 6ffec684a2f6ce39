from __future__ import annotations

from types import SimpleNamespace

import pytest

from verl_ext.demo.pretrain import Chat, ModelShape, build_model, sampled_reward, teacher_targets
from verl_ext.demo.task import ReverseTask
from verl_ext.demo.tokenizer import EOS_ID, build_tokenizer

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
TASK = ReverseTask()


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(build_tokenizer((TASK.instruction,)), TASK)


@pytest.mark.parametrize("word", ["aaaa", "ponml", "fedcba"])
def test_a_prompt_is_what_the_chat_template_gives(chat: Chat, word: str) -> None:
    message = [{"role": "user", "content": TASK.prompt(word)}]
    expected = chat.tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert chat.prompt(word) == expected


def test_the_teacher_by_hand() -> None:
    letters = torch.tensor([0.0, 0.0, 0.5, 0.5])
    target = teacher_targets(torch.tensor([[2, 3, 1]]), 0.2, letters)
    expected = torch.tensor([[[0.0, 0.0, 0.6, 0.4], [0.0, 0.0, 0.4, 0.6], [0.0, 1.0, 0.0, 0.0]]])
    assert torch.allclose(target, expected)


def test_the_models_pad_row_is_not_zero_and_the_seed_decides() -> None:
    one, same, other = (build_model(ModelShape(), seed=seed) for seed in (3, 3, 4))
    weight = one.get_input_embeddings().weight.detach()
    assert torch.equal(weight, same.get_input_embeddings().weight)
    assert not torch.equal(weight, other.get_input_embeddings().weight)
    assert weight[one.config.pad_token_id].norm() > 0.1


class Scripted:
    """A policy that always writes the same tokens after the prompt."""

    def __init__(self, tokens: list[int], prompt_lengths: dict[int, int]):
        self.tokens, self.prompt_lengths = tokens, prompt_lengths

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        rows, length = input_ids.shape
        written = length - self.prompt_lengths[int((input_ids[0] == 5).nonzero()[0])]
        logits = torch.full((rows, length, 128), -1e9)
        logits[:, -1, self.tokens[min(written, len(self.tokens) - 1)]] = 0.0
        return SimpleNamespace(logits=logits)


def test_sampled_reward_of_policies_known_by_hand(chat: Chat) -> None:
    # The assistant mark stands last in the prompt: at index 6 for four letters, at 7 for five.
    lengths = {6: 7, 7: 8}
    right = Scripted([*chat.letters("dcba"), EOS_ID], lengths)
    endless = Scripted(chat.letters("dcba"), lengths)
    assert sampled_reward(right, chat, ["abcd"], seed=0, samples=2) == 1.0
    assert sampled_reward(right, chat, ["abcd", "abcde"], seed=0) == pytest.approx((1.0 + 0.0) / 2)
    assert sampled_reward(endless, chat, ["abcd"], seed=0, max_tokens=8) == 4 / 8

"""A tiny mixture-of-experts model, and the brief training that gives reinforcement learning something to work on.

The teacher is a distribution, not a text: at each letter it puts probability `confidence` on the right letter and
spreads the rest evenly over the alphabet, and it always ends the answer at the right place. The model first learns the
task itself (confidence 1), then is brought down to the low confidence step by step. What remains is a model that knows
the form of an answer, ranks the right letter first, but writes it only about one time in four or five. So GRPO in the
demo raises the probability of something the model half knows; it does not discover reversal from nothing.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verl_ext.demo.reward import positional_match
from verl_ext.demo.task import ReverseTask
from verl_ext.demo.tokenizer import BOS_ID, EOS_ID, PAD_ID
from verl_ext.errors import NereusError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3MoeForCausalLM


@dataclass(frozen=True)
class ModelShape:
    """Shape of the model; the default is about 0.26 M parameters."""

    vocab_size: int = 128
    hidden_size: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    experts: int = 8
    experts_per_token: int = 2
    expert_width: int = 64
    max_positions: int = 256
    init_std: float = 0.08


@dataclass(frozen=True)
class PretrainPlan:
    """How the starting model is trained.

    Attributes:
        confidence: final probability the teacher puts on the right letter, before the even spread.
        batch: words per step.
        lr: peak learning rate of AdamW.
        warmup: steps of linear warm-up.
        decay: steps in which the first phase's learning rate would fall linearly to 0; it stops at `floor` times `lr`.
        floor: see `decay`.
        gate: share of right tokens, over the last `gate_window` steps, that ends the first phase.
        max_clean: most steps of the first phase.
        soften: steps of the second phase; confidence falls over its first half, the learning rate over all of it.
        soften_lr: learning rate at the start of the second phase.
        balance: weight of the router's load-balancing loss, so that no expert is left idle.
    """

    confidence: float = 0.2
    batch: int = 48
    lr: float = 5e-3
    warmup: int = 30
    decay: int = 300
    floor: float = 0.25
    gate: float = 0.99
    gate_window: int = 15
    max_clean: int = 400
    soften: int = 100
    soften_lr: float = 3e-3
    balance: float = 0.02


class Chat:
    """Token ids of prompts and answers, exactly as the chat template gives them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, task: ReverseTask):
        self.tokenizer, self.task = tokenizer, task
        vocab = tokenizer.get_vocab()
        self.letter = {letter: vocab[letter] for letter in task.alphabet}
        empty = self._template("")
        marked = self._template(task.alphabet)
        # Where the word goes is found once, since rendering the template for every word would cost more than the model.
        at = next(i for i, token in enumerate(marked) if token == self.letter[task.alphabet[0]])
        self.head, self.tail = empty[:at], empty[at:]

    def _template(self, word: str) -> list[int]:
        message = [{"role": "user", "content": self.task.prompt(word)}]
        return list(
            self.tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=True, return_dict=False)
        )

    def prompt(self, word: str) -> list[int]:
        """Ids of the whole prompt, up to where the answer starts."""
        return [*self.head, *self.letters(word), *self.tail]

    def letters(self, text: str) -> list[int]:
        """Ids of the letters of `text`."""
        return [self.letter[c] for c in text]


def build_model(shape: ModelShape, *, seed: int) -> Qwen3MoeForCausalLM:
    """A randomly initialised Qwen3-MoE in float32."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        architectures=["Qwen3MoeForCausalLM"],
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=2 * shape.hidden_size,
        moe_intermediate_size=shape.expert_width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        num_experts=shape.experts,
        num_experts_per_tok=shape.experts_per_token,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=False,
        initializer_range=shape.init_std,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        bos_token_id=BOS_ID,
        dtype="float32",
    )
    torch.manual_seed(seed)
    model = Qwen3MoeForCausalLM(config).float()
    with torch.no_grad():
        # A zero row would meet RMSNorm at its steepest point and give huge gradients as soon as a policy samples it.
        model.model.embed_tokens.weight[PAD_ID].normal_(0.0, shape.init_std)
    return model


def teacher_targets(gold: torch.Tensor, confidence: float, letters: torch.Tensor) -> torch.Tensor:
    """The teacher's distributions.

    Args:
        gold: right tokens, [batch, answer], int64; the last one is the end-of-text token.
        confidence: probability moved onto the right letter, in [0, 1].
        letters: even distribution over the alphabet, [vocab], float32.

    Returns:
        [batch, answer, vocab], float32, each row summing to 1; the end of text is always certain.
    """
    import torch

    target = torch.nn.functional.one_hot(gold, letters.numel()).float()
    target[:, :-1] = confidence * target[:, :-1] + (1.0 - confidence) * letters
    return target


def _learning_rate(plan: PretrainPlan, step: int, progress: float) -> float:
    """Learning rate of an optimiser step, counted from 0; `progress` through the second phase, 0 before it."""
    if progress > 0.0:
        return plan.soften_lr * (1.0 - 0.95 * progress)
    return plan.lr * min(1.0, (step + 1) / plan.warmup) * max(plan.floor, 1.0 - step / plan.decay)


def pretrain(model: Qwen3MoeForCausalLM, chat: Chat, plan: PretrainPlan, *, seed: int) -> int:
    """Train `model` in place on the teacher; same seed, same machine, one thread: same weights.

    Args:
        model: the model.
        chat: encodes prompts and answers.
        plan: how.
        seed: of the words and of the teacher's mistakes.

    Returns:
        Number of optimiser steps taken.
    """
    import torch

    task, rng = chat.task, random.Random(f"pretrain/{seed}")
    letters = torch.zeros(model.config.vocab_size)
    letters[chat.letters(task.alphabet)] = 1.0 / len(task.alphabet)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    recent: deque[float] = deque(maxlen=plan.gate_window)
    lengths = task.max_letters - task.min_letters + 1
    step, softened = 0, 0
    model.train()
    while softened < plan.soften:
        learned = len(recent) == plan.gate_window and math.fsum(recent) / len(recent) >= plan.gate
        if softened or learned or step >= plan.max_clean:
            softened += 1
        progress = softened / max(plan.soften, 1)
        confidence = max(plan.confidence, 1.0 - (1.0 - plan.confidence) * 2.0 * progress)
        optimizer.param_groups[0]["lr"] = _learning_rate(plan, step, progress)

        # All words of a step have one length: no padding, no mask.
        size = task.min_letters + step % lengths
        words = [task.word(rng, size) for _ in range(plan.batch)]
        gold = torch.tensor([[*chat.letters(task.answer(word)), EOS_ID] for word in words])
        # The answer so far is as wrong as the finished model will write it, from the first step on. From right letters
        # the model would learn to look up its last letter in the word, and lose its place after the first mistake.
        written = [
            [c if rng.random() < plan.confidence else rng.choice(task.alphabet) for c in task.answer(word)]
            for word in words
        ]
        inputs = torch.tensor(
            [chat.prompt(word) + chat.letters("".join(text)) for word, text in zip(words, written, strict=True)]
        )
        output = model(input_ids=inputs, use_cache=False, output_router_logits=plan.balance > 0)
        log_probs = output.logits[:, -gold.shape[1] :].log_softmax(-1)
        loss = -(teacher_targets(gold, confidence, letters) * log_probs).sum(-1).mean()
        if plan.balance > 0:
            loss = loss + plan.balance * output.aux_loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent.append((log_probs.argmax(-1) == gold).float().mean().item())
        step += 1
    model.eval()
    return step


def sampled_reward(
    model: Qwen3MoeForCausalLM, chat: Chat, words: list[str], *, seed: int, samples: int = 8, max_tokens: int = 10
) -> float:
    """Mean reward of answers sampled at temperature 1 from the whole distribution.

    Args:
        model: the policy.
        chat: encodes prompts.
        words: the words to reverse.
        seed: of the sampling.
        samples: answers per word.
        max_tokens: longest answer, in tokens.

    Returns:
        Mean reward in [0, 1].
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    rewards: list[float] = []
    for size in sorted(set(map(len, words))):
        group = [word for word in words if len(word) == size for _ in range(samples)]
        ids = torch.tensor([chat.prompt(word) for word in group])
        start = ids.shape[1]
        with torch.no_grad():
            for _ in range(max_tokens):
                probs = model(input_ids=ids, use_cache=False).logits[:, -1].softmax(-1)
                ids = torch.cat([ids, torch.multinomial(probs, 1, generator=generator)], dim=1)
        for word, row in zip(group, ids[:, start:].tolist(), strict=True):
            answer = row[: row.index(EOS_ID)] if EOS_ID in row else row
            text = chat.tokenizer.decode(answer, skip_special_tokens=True)
            rewards.append(positional_match(text, chat.task.answer(word)))
    return math.fsum(rewards) / len(rewards)


def check_start(reward: float, *, low: float, high: float) -> None:
    """Refuse a starting policy from which the demo's curve would mean nothing.

    Args:
        reward: mean reward of the starting policy, in [0, 1].
        low: below this the policy has too little to reinforce.
        high: above this there is little left to learn.
    """
    if not low <= reward <= high:
        raise NereusError(
            "The demo's pre-training did not give a usable starting policy.",
            where="verl_ext.demo.pretrain",
            expected=f"a mean reward between {low:.2f} and {high:.2f}",
            got=f"{reward:.3f}",
            change="build with another seed",
        )

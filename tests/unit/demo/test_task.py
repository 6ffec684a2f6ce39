from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from verl_ext.demo.reward import positional_match
from verl_ext.demo.task import (
    ReverseTask,
    best_constant_reward,
    shortcut_rewards,
    write_parquet,
)
from verl_ext.errors import NereusError


def brute_force(answers: list[str], alphabet: str, longest: int) -> float:
    constants = ("".join(c) for size in range(longest + 1) for c in itertools.product(alphabet, repeat=size))
    return max(sum(positional_match(c, a) for a in answers) / len(answers) for c in constants)


@pytest.mark.parametrize("seed", range(8))
def test_best_constant_equals_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    answers = ["".join(rng.choice("abc") for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(1, 12))]
    value, constant = best_constant_reward(answers)
    # One longer than the longest answer, and one letter that occurs in none, show that neither helps.
    assert value == pytest.approx(brute_force(answers, "abcz", 5), abs=1e-12)
    assert sum(positional_match(constant, a) for a in answers) / len(answers) == pytest.approx(value, abs=1e-12)


def test_best_constant_by_hand() -> None:
    assert best_constant_reward(["ab", "ab", "cd"]) == (pytest.approx(2 / 3), "ab")
    # "a" earns 1 and 1/2; "ab" earns 1/2 and 1/2.
    assert best_constant_reward(["a", "ac"]) == (pytest.approx(3 / 4), "a")


@pytest.mark.parametrize("answers", [[], [""]])
def test_best_constant_of_nothing_is_refused(answers: list[str]) -> None:
    with pytest.raises(NereusError, match="constant"):
        best_constant_reward(answers)


def test_no_constant_can_win_the_default_task() -> None:
    task = ReverseTask()
    train, test = task.splits(train=2048, test=64, seed=0)
    assert best_constant_reward([task.answer(w) for w in train])[0] < 0.08
    shortcuts = shortcut_rewards(task, train)
    assert shortcuts["best constant answer"] == best_constant_reward([task.answer(w) for w in train])[0]
    assert max(shortcuts.values()) < 0.30
    rng = random.Random(0)
    for _ in range(200):
        constant = "".join(rng.choice(task.alphabet) for _ in range(rng.randint(1, 7)))
        mean = sum(positional_match(constant, task.answer(w)) for w in train) / len(train)
        assert mean <= shortcuts["best constant answer"]
    assert sum(positional_match(w[::-1], task.answer(w)) for w in test) == len(test)


def test_train_and_test_do_not_overlap_and_follow_the_seed() -> None:
    task = ReverseTask()
    train, test = task.splits(train=1000, test=200, seed=3)
    assert (len(train), len(test)) == (1000, 200)
    assert len(set(train) | set(test)) == 1200
    assert all(4 <= len(w) <= 6 and set(w) <= set(task.alphabet) for w in train + test)
    assert {len(w) for w in train} == {4, 5, 6}
    assert task.splits(train=1000, test=200, seed=3) == (train, test)
    assert task.splits(train=1000, test=200, seed=4) != (train, test)


def test_more_words_than_there_are_is_refused() -> None:
    with pytest.raises(NereusError, match="different words"):
        ReverseTask(alphabet="ab", min_letters=2, max_letters=3).splits(train=3, test=1, seed=0)


def test_parquet_has_verls_schema(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    task = ReverseTask()
    write_parquet(task.rows(["abcd", "ponm"], "train"), tmp_path / "train.parquet")
    assert [p.name for p in tmp_path.iterdir()] == ["train.parquet"]
    assert pq.read_table(tmp_path / "train.parquet").to_pylist()[1] == {
        "data_source": "nereus/reverse",
        "prompt": [{"role": "user", "content": "reverse ponm"}],
        "ability": "reverse",
        "reward_model": {"style": "rule", "ground_truth": "mnop"},
        "extra_info": {"split": "train", "index": 1},
    }

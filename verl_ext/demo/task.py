"""The demo's task: write a short random word backwards.

Chosen so that a learning curve means something. The letters are drawn independently and uniformly, so no constant
answer earns more than about one letter in sixteen, and the answer must be read off the prompt.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from verl_ext.demo.reward import positional_match
from verl_ext.errors import NereusError

DATA_SOURCE = "nereus/reverse"
ABILITY = "reverse"


@dataclass(frozen=True)
class ReverseTask:
    """Words to reverse: length uniform in [min_letters, max_letters], letters uniform in `alphabet`."""

    alphabet: str = "abcdefghijklmnop"
    min_letters: int = 4
    max_letters: int = 6
    instruction: str = "reverse "

    def prompt(self, word: str) -> str:
        """Text of the user's message."""
        return self.instruction + word

    def answer(self, word: str) -> str:
        """The one right answer."""
        return word[::-1]

    def word(self, rng: random.Random, letters: int | None = None) -> str:
        """One random word, of `letters` letters or of a random length."""
        size = rng.randint(self.min_letters, self.max_letters) if letters is None else letters
        return "".join(rng.choice(self.alphabet) for _ in range(size))

    def splits(self, *, train: int, test: int, seed: int) -> tuple[list[str], list[str]]:
        """Two lists of words in which no word occurs twice, so train and test cannot overlap."""
        space = sum(len(self.alphabet) ** n for n in range(self.min_letters, self.max_letters + 1))
        # Far below the size of the space the draw below ends quickly and hardly changes the distribution.
        if train < 1 or test < 1 or 4 * (train + test) > space:
            raise NereusError(
                "The demo task cannot give that many different words.",
                where="ReverseTask.splits(train, test)",
                expected=f"at least 1 each, and at most {space // 4} together",
                got=f"train={train}, test={test}",
                change="ask for fewer rows, or use a longer alphabet or longer words",
            )
        rng = random.Random(f"{DATA_SOURCE}/{seed}")
        seen: dict[str, None] = {}
        while len(seen) < train + test:
            seen.setdefault(self.word(rng))
        words = list(seen)
        return words[:train], words[train:]

    def rows(self, words: Sequence[str], split: str) -> list[dict[str, object]]:
        """Rows in verl's data schema."""
        return [
            {
                "data_source": DATA_SOURCE,
                "prompt": [{"role": "user", "content": self.prompt(word)}],
                "ability": ABILITY,
                "reward_model": {"style": "rule", "ground_truth": self.answer(word)},
                "extra_info": {"split": split, "index": index},
            }
            for index, word in enumerate(words)
        ]


def best_constant_reward(answers: Sequence[str]) -> tuple[float, str]:
    """The constant answer that earns the most when every prompt gets it, and its mean reward. Exact.

    For a fixed length m the reward of a constant c is the sum over its positions j of
    ``sum_i [answers[i][j] == c[j]] / max(m, len(answers[i])) / N``, so each position is maximised on its own. Lengths
    beyond the longest answer only raise the divisor.

    Args:
        answers: N right answers, at least one of them not empty.

    Returns:
        (mean reward in [0, 1], the constant that earns it; the shortest, then the first in code-point order, on ties).
    """
    longest = max(map(len, answers), default=0)
    if longest == 0:
        raise NereusError(
            "There is no constant answer to no question.",
            where="best_constant_reward(answers)",
            expected="at least one answer that is not empty",
            got=f"{len(answers)} empty answers",
            change="pass the right answers of a data set",
        )
    # (position, length of the answer) -> letter -> how often
    counts: dict[tuple[int, int], Counter[str]] = {}
    for answer in answers:
        for position, letter in enumerate(answer):
            counts.setdefault((position, len(answer)), Counter())[letter] += 1
    best, best_text = Fraction(0), ""
    for size in range(1, longest + 1):
        total, text = Fraction(0), ""
        for position in range(size):
            gain: dict[str, Fraction] = {}
            for (at, length), letters in counts.items():
                if at == position:
                    for letter, count in letters.items():
                        gain[letter] = gain.get(letter, Fraction(0)) + Fraction(count, max(size, length))
            letter = min(gain, key=lambda key: (-gain[key], key))
            total, text = total + gain[letter], text + letter
        if total > best:
            best, best_text = total, text
    return float(best / len(answers)), best_text


def shortcut_rewards(task: ReverseTask, words: Sequence[str]) -> dict[str, float]:
    """Mean reward of answers that take no skill, to draw beside a learning curve.

    Args:
        task: the task.
        words: the words that are asked for, not empty.

    Returns:
        label -> mean reward in [0, 1].
    """
    answers = [task.answer(word) for word in words]
    pairs = list(zip(words, answers, strict=True))
    return {
        "best constant answer": best_constant_reward(answers)[0],
        "copy the word": sum(positional_match(w, a) for w, a in pairs) / len(pairs),
        "repeat one letter of the word": sum(positional_match(w[0] * len(w), a) for w, a in pairs) / len(pairs),
    }


def write_parquet(rows: Sequence[dict[str, object]], path: Path) -> None:
    """Write rows to `path`, under a temporary name first."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.string()
    schema = pa.schema(
        [
            ("data_source", text),
            ("prompt", pa.list_(pa.struct([("role", text), ("content", text)]))),
            ("ability", text),
            ("reward_model", pa.struct([("style", text), ("ground_truth", text)])),
            ("extra_info", pa.struct([("split", text), ("index", pa.int64())])),
        ]
    )
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), partial)
    os.replace(partial, path)

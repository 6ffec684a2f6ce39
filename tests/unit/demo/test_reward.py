from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.demo import reward
from verl_ext.demo.reward import compute_score, positional_match


@pytest.mark.parametrize(
    ("answer", "wanted", "value"),
    [
        ("dcba", "dcba", 1.0),
        ("dcbx", "dcba", 3 / 4),
        ("abcd", "dcba", 0.0),
        ("dc", "dcba", 2 / 4),
        ("dcbaa", "dcba", 4 / 5),
        ("", "dcba", 0.0),
        ("dcba", "", 0.0),
        ("", "", 0.0),
    ],
)
def test_values_by_hand(answer: str, wanted: str, value: float) -> None:
    assert compute_score("nereus/reverse", answer, wanted, {"index": 0}, extra=1) == value


@pytest.mark.parametrize(
    "answer",
    [
        " dcba",
        "dcba ",
        "dcba\n",
        "DCBA",
        "d c b a",
        "dcba" * 50,
        "dcbadcba",
        "abcdefghijklmnop" * 4,
        "reverse dcba",
        "<|assistant|>dcba",
        "dcba<|user|>",
        "αβγδ",
        "1111",
        "d\u0301cba",
    ],
)
def test_nothing_but_the_answer_earns_full_reward(answer: str) -> None:
    assert compute_score("nereus/reverse", answer, "dcba") <= 4 / 5


@given(st.text(max_size=8), st.text(min_size=1, max_size=8))
def test_only_equal_strings_score_one_and_all_stay_in_range(answer: str, wanted: str) -> None:
    value = positional_match(answer, wanted)
    assert 0.0 <= value <= 1.0
    assert (value == 1.0) == (answer == wanted)


@given(st.text("abcd", max_size=8), st.text("abcd", min_size=1, max_size=8), st.text(min_size=1, max_size=5))
def test_writing_past_the_right_length_never_pays(answer: str, wanted: str, extra: str) -> None:
    answer = answer.ljust(len(wanted), "z")
    assert positional_match(answer + extra, wanted) <= positional_match(answer, wanted)


def test_loads_by_path_with_nothing_installed(tmp_path: Path) -> None:
    assert reward.__file__ is not None
    copy = tmp_path / "reward.py"
    copy.write_bytes(Path(reward.__file__).read_bytes())
    code = f"import runpy; print(runpy.run_path({str(copy)!r})['compute_score']('x', 'ab', 'ab'))"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "1.0"

"""Reward of the demo task: how much of the wanted word stands at the right place.

verl loads this file by its path (``reward.custom_reward_function.path``), so it imports nothing at all.
"""

from __future__ import annotations


def positional_match(answer: str, wanted: str) -> float:
    """Share of positions that agree, over the longer of the two strings.

    Dividing by the longer length means that neither padding an answer out nor cutting it short can pay: every
    surplus and every missing character costs as much as a wrong one. Nothing is stripped or normalised.

    Args:
        answer: what the policy wrote.
        wanted: the right answer.

    Returns:
        A fraction in [0, 1]; 1 exactly when the strings are equal and not empty; 0 when either is empty.
    """
    longest = max(len(answer), len(wanted))
    if longest == 0:
        return 0.0
    return sum(a == w for a, w in zip(answer, wanted, strict=False)) / longest


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, object] | None = None,
    **kwargs: object,
) -> float:
    """verl's custom reward function.

    Args:
        data_source: name of the data set; unused, there is only one.
        solution_str: the response, decoded by verl without special tokens (so without the end-of-text token).
        ground_truth: ``reward_model.ground_truth`` of the row.
        extra_info: ``extra_info`` of the row; unused.
        kwargs: whatever else verl passes; unused.

    Returns:
        Reward in [0, 1].
    """
    return positional_match(solution_str, ground_truth)

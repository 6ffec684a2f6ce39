"""A run that stops leaves why, in five parts, where a person and the next program find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_ext import ending
from verl_ext.errors import NereusError

REFUSAL = NereusError("it cannot be", where="here", expected="this", got="that", change="that=this")


def caused(inner: BaseException) -> BaseException:
    try:
        try:
            raise inner
        except BaseException as error:
            raise RuntimeError("wrapped") from error
    except RuntimeError as outer:
        return outer


def test_a_refusal_is_read_back_as_it_was_raised(tmp_path: Path):
    ending.write(tmp_path, ending.of(REFUSAL, ending.ROLL_CALL))
    found = ending.read(tmp_path)
    assert found == ending.Ending("it cannot be", "here", "this", "that", "that=this", "roll call", None)
    assert str(found) == str(REFUSAL)


def test_a_refusal_that_came_from_another_process_is_found_in_its_wrapping(tmp_path: Path):
    assert ending.of(caused(REFUSAL), ending.TRAINING, 7).what == "it cannot be"
    ray_error = RuntimeError("RayTaskError")
    ray_error.cause = REFUSAL  # type: ignore[attr-defined]
    assert ending.of(ray_error, ending.TRAINING, 7).change == "that=this"


@pytest.mark.parametrize(("step", "where"), [(None, "start"), (3, "start, step 3")])
def test_any_other_error_has_the_five_parts_as_well(step, where):
    found = ending.of(ValueError("a\n  traceback\nshape mismatch"), ending.START, step)
    assert (found.what, found.where, found.got) == ("the run stopped with ValueError", where, "shape mismatch")
    assert found.expected and found.change
    assert ending.of(ValueError(), ending.START).got == "ValueError"


def test_the_folder_is_made_and_nothing_else_is_left(tmp_path: Path):
    ending.write(tmp_path / "a" / "b", ending.of(REFUSAL, ending.CONFIG))
    assert [file.name for file in (tmp_path / "a" / "b").iterdir()] == ["end.json"]


def test_a_folder_that_cannot_be_written_hides_no_error(tmp_path: Path):
    (tmp_path / "file").touch()
    ending.write(tmp_path / "file" / "below", ending.of(REFUSAL, ending.CONFIG))


def test_a_run_without_an_ending_has_none_and_an_old_one_is_forgotten(tmp_path: Path):
    assert ending.read(tmp_path) is None
    ending.forget(tmp_path)
    ending.write(tmp_path, ending.of(REFUSAL, ending.CONFIG))
    ending.forget(tmp_path)
    assert ending.read(tmp_path) is None

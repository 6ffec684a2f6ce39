from __future__ import annotations

import json
import socket
import time
from multiprocessing import shared_memory
from pathlib import Path

from verl_ext.launch import leftovers
from verl_ext.launch.supervise import follow, phase, refusal

REFUSED = """\
\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m something else
ray.exceptions.RayTaskError(NereusError): \x1b[36mray::TaskRunnerV1.run()\x1b[39m
  File "trainer.py", line 1, in fit
verl_ext.errors.NereusError: nereus is not active in actor 1
  where:    actor 1
  expected: every process of the run takes part
  got:      nothing
  change:   install it

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
"""


def test_a_refusal_is_found_in_the_log_and_shown_as_it_was_written(tmp_path: Path):
    (tmp_path / "run.log").write_text(REFUSED)
    assert refusal(tmp_path / "run.log") == (
        "nereus is not active in actor 1\n"
        "  where:    actor 1\n"
        "  expected: every process of the run takes part\n"
        "  got:      nothing\n"
        "  change:   install it"
    )


def test_another_error_is_its_last_exception_line(tmp_path: Path):
    (tmp_path / "run.log").write_text("Traceback\n  File x\nValueError: first\nmore\nKeyError: 'second'\nbye\n")
    assert refusal(tmp_path / "run.log") == "KeyError: 'second'"


def test_a_log_without_an_exception_gives_its_last_words(tmp_path: Path):
    (tmp_path / "run.log").write_text("a\nb\n\nc\nd\n")
    assert refusal(tmp_path / "run.log") == "b\nc\nd"


def test_no_log_is_no_message(tmp_path: Path):
    assert refusal(tmp_path / "run.log") is None


def test_following_gives_each_record_once_and_waits_for_the_end_of_a_line(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    records = follow(path)
    assert next(records) == []
    path.write_text(json.dumps({"step": 1}) + "\n" + '{"resumed_at": 2}\n' + '{"step"')
    assert next(records) == [{"step": 1}]
    with path.open("a") as file:
        file.write(": 2}\n")
    assert next(records) == [{"step": 2}]
    assert next(records) == []


def test_the_phase_is_the_last_one_the_log_has_reached(tmp_path: Path):
    log = tmp_path / "run.log"
    assert phase(log) == "importing"
    log.write_text("ray init kwargs: {}\nStarted a local Ray instance.\n")
    assert phase(log) == "starting the trainer"


def test_shared_memory_nobody_has_is_removed_and_what_is_in_use_stays():
    started = time.time() - 1
    kept = shared_memory.SharedMemory(create=True, size=64)
    orphan = Path("/dev/shm/psm_nereus_test")
    orphan.write_bytes(b"x")
    try:
        removed = leftovers.remove(started)
        assert orphan in removed
        assert Path(f"/dev/shm/{kept.name}").exists()
    finally:
        orphan.unlink(missing_ok=True)
        kept.close()
        kept.unlink()


def test_what_is_older_than_the_job_stays():
    orphan = Path("/dev/shm/psm_nereus_test")
    orphan.write_bytes(b"x")
    try:
        assert orphan not in leftovers.remove(time.time() + 60)
        assert orphan.exists()
    finally:
        orphan.unlink()


def test_a_bound_socket_stays_and_a_stale_one_goes():
    started = time.time() - 1
    bound, stale = (Path(f"/tmp/rl-colocate-zmq-nereus-test-{name}.sock") for name in ("bound", "stale"))
    with socket.socket(socket.AF_UNIX) as alive, socket.socket(socket.AF_UNIX) as dead:
        alive.bind(str(bound))
        dead.bind(str(stale))
        dead.close()
        try:
            removed = leftovers.remove(started)
            assert stale in removed
            assert bound not in removed
        finally:
            bound.unlink(missing_ok=True)
            stale.unlink(missing_ok=True)

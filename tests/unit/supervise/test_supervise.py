from __future__ import annotations

import json
import socket
import time
from multiprocessing import shared_memory
from pathlib import Path

from verl_ext.launch import leftovers
from verl_ext.launch.supervise import follow, last_words, phase


def test_a_log_gives_its_last_words(tmp_path: Path):
    (tmp_path / "run.log").write_text("".join(f"{number}\n\n" for number in range(20)))
    assert last_words(tmp_path / "run.log").split() == [str(number) for number in range(8, 20)]


def test_no_log_is_said(tmp_path: Path):
    assert last_words(tmp_path / "run.log") == "the log is empty"


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

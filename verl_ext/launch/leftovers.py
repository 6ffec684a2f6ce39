"""Files that killed processes leave outside their temporary folder: shared memory and weight sync sockets.

A name is removed only when it is one of the known kinds, younger than the job, and in use by no living process.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

# Python's shared memory and semaphores, vLLM's between tensor-parallel ranks, verl's weight buckets, verl's weight sync
# sockets (their folder is fixed in verl).
PATTERNS = (
    ("/dev/shm", "psm_*"),
    ("/dev/shm", "sem.mp-*"),
    ("/dev/shm", "*-cpushm_*"),
    ("/dev/shm", "verl_weights_*"),
    ("/tmp", "rl-colocate-zmq-*.sock"),
)


def remove(since: float) -> list[Path]:
    """Remove what a job that started at `since` (seconds since the epoch) left behind; returns what was removed."""
    candidates = [
        path for folder, pattern in PATTERNS for path in Path(folder).glob(pattern) if _changed(path) >= since
    ]
    if not candidates:
        return []
    used = _in_use()
    removed = [path for path in candidates if str(path) not in used]
    for path in removed:
        path.unlink(missing_ok=True)
    return removed


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def _in_use() -> set[str]:
    """Paths that a living process has mapped, open, or bound as a socket."""
    used: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        # A process may end, or be another user's, at any moment of this.
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text().splitlines():
                used.add(line.split(maxsplit=5)[-1])
            used.update(str(link.readlink()) for link in (process / "fd").iterdir())
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        used.add(line.split()[-1])
    return used

"""Start and stop a prefork server, and the wrapper that stands in for `python`."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from verl_ext.launch.prefork import client, run

# Loading pyarrow starts a thread of its allocator, loading numpy those of OpenBLAS.
_SINGLE_THREADED = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OPENBLAS_NUM_THREADS": "1"}
# Ray reads these when its library is loaded, before it can know for which worker. The driver that starts a cluster is
# its first job; a fork for another job becomes a real interpreter (see `run.Job`).
_FIRST_JOB = "01000000"
_BACKLOG = 128


class Prefork:
    """A running prefork server.

    Args:
        log: file for what the server writes.
        modules: what it imports before it forks, in this order. None of them may start a thread or touch a device.
        env: its environment; None for this process's.

    Attributes:
        python: path of an executable to use wherever a path of `python` is expected.

    Use as a context manager; leaving it ends the server and every process it has forked.
    """

    def __init__(self, log: Path, modules: Sequence[str], env: Mapping[str, str] | None = None):
        # A socket's path may hold at most 107 bytes, so it cannot live in the run folder.
        self._folder = Path(tempfile.mkdtemp(prefix="nereus-", dir="/tmp"))
        address = self._folder / "prefork.sock"
        self.python = self._folder / "python"
        arguments = [sys.executable, "-I", "-S", client.__file__, str(address), sys.executable]
        self.python.write_text(f'#!/bin/sh\nexec {shlex.join(arguments)} "$@"\n')
        self.python.chmod(0o700)
        # Bound here, so that a process started at once already finds it and waits for the imports in its backlog.
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(address))
        address.chmod(0o600)
        listener.listen(_BACKLOG)
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.server", str(listener.fileno()), *modules],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={
                **(os.environ if env is None else env),
                **_SINGLE_THREADED,
                run.RAY_JOB: _FIRST_JOB,
                # Ray's workers end when this process does. It outlives their raylet, whose end they see by its socket.
                "RAY_RAYLET_PID": str(os.getpid()),
            },
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
        listener.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Prefork:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""The prefork server: imports the stack once, then forks a copy of itself for every process that is asked for.

    python -m verl_ext.launch.prefork.server LISTENING_FD MODULE [MODULE ...]

What has to be made ready before an import is the business of a module of its own, named here: the server knows none.

Control law: one thread, one selector. A request becomes a fork; a client that hangs up gets its fork killed; a fork
that ends gets its status reported; when the owner (standard input) closes, every fork is killed and the server ends.
Requests that arrive during the imports wait in the socket's backlog.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path

from verl_ext.launch.prefork.client import MAX_FDS
from verl_ext.launch.prefork.run import Job


@dataclass
class _Connection:
    socket: socket.socket
    fds: list[int] = field(default_factory=list)
    buffer: bytearray = field(default_factory=bytearray)
    pid: int = 0

    def receive(self) -> Job | None:
        """Read what is there; the job once the request is complete, else None. Raises EOFError on hang-up."""
        data, ancillary, _flags, _address = self.socket.recvmsg(1 << 16, socket.CMSG_SPACE(MAX_FDS * 4))
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                self.fds.extend(received)
        if not data:
            raise EOFError
        self.buffer += data
        if len(self.buffer) < 4:
            return None
        (length,) = struct.unpack_from("!I", self.buffer)
        if len(self.buffer) < 4 + length:
            return None
        return Job(received_fds=tuple(self.fds), **json.loads(bytes(self.buffer[4 : 4 + length])))

    def tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the client may be gone already; its fork is then killed on hang-up
            self.socket.sendall(line.encode() + b"\n")

    def close(self) -> None:
        self.socket.close()
        for fd in self.fds:
            os.close(fd)
        self.fds = []


class Server:
    """Holds the listening socket, the open connections and the forks that are alive."""

    def __init__(self, listener: socket.socket, owner_fd: int):
        self.listener = listener
        self.by_pid: dict[int, _Connection] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ, "listener")
        self.selector.register(owner_fd, selectors.EVENT_READ, "owner")
        wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.wake_read = wake_read
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        self.selector.register(wake_read, selectors.EVENT_READ, "child")

    def serve(self) -> Job | None:
        """Run until the owner hangs up: None, in the server; or a fork is made: its job, in the fork."""
        while True:
            for key, _events in self.selector.select():
                if key.data == "owner":
                    if not os.read(key.fd, 1):
                        self.kill_all()
                        return None
                elif key.data == "listener":
                    connection, _ = self.listener.accept()
                    self.selector.register(connection, selectors.EVENT_READ, _Connection(connection))
                elif key.data == "child":
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.wake_read, 1 << 12)
                    self.reap()
                else:
                    job = self.handle(key.data)
                    if job is not None:
                        return job

    def handle(self, connection: _Connection) -> Job | None:
        try:
            job = connection.receive()
        except (EOFError, ConnectionResetError):
            self.forget(connection)
            if connection.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(connection.pid, signal.SIGKILL)
            return None
        if job is None:
            return None
        pid = os.fork()
        if pid == 0:
            self.leave()
            return job
        connection.pid = pid
        self.by_pid[pid] = connection
        connection.tell(f"pid {pid}")
        for fd in connection.fds:
            os.close(fd)
        connection.fds = []
        return None

    def forget(self, connection: _Connection) -> None:
        if connection.socket.fileno() != -1:  # a hang-up and the end of its fork may come in either order
            self.selector.unregister(connection.socket)
            connection.close()

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            connection = self.by_pid.pop(pid, None)
            if connection is not None:
                connection.tell(f"exit {os.waitstatus_to_exitcode(status)}")
                connection.pid = 0
                self.forget(connection)

    def kill_all(self) -> None:
        for pid in self.by_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def leave(self) -> None:
        """In a fork: drop what belongs to the server, whose descriptors the job closes when it installs its own.

        A socket object that is collected later would close whatever has its number by then, so each one lets go here.
        """
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sockets = [key.data.socket for key in self.selector.get_map().values() if isinstance(key.data, _Connection)]
        for item in [self.listener, *sockets]:
            item.detach()
        self.selector.close()


def main(listener_fd: int, modules: list[str]) -> None:
    listener = socket.socket(fileno=listener_fd)
    for module in modules:
        importlib.import_module(module)
    threads = [Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in os.listdir("/proc/self/task")]
    if len(threads) > 1:
        raise RuntimeError(f"the preloaded modules started threads ({', '.join(threads)}); a fork would lose them")
    # Shared pages stay shared as long as nobody writes to them, and the collector writes to every object it visits.
    gc.collect()
    gc.freeze()
    job = Server(listener, owner_fd=sys.stdin.fileno()).serve()
    if job is not None:
        job.run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

"""The stand-in for `python`: asks the prefork server for a fork that runs the same command line.

Run by path with `-I -S`, so it imports the standard library only. Protocol (one connection a process):
client -> server: 4-byte length, JSON {argv, env, cwd, umask, fds}; the open descriptors as SCM_RIGHTS with it.
server -> client: one line `pid N`, later one line `exit N` (negative: killed by signal -N), as subprocess reports it.
"""

import array
import contextlib
import json
import os
import signal
import socket
import struct
import sys

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
MAX_FDS = 253  # the kernel's SCM_MAX_FD


def open_descriptors(exclude: set[int]) -> list[int]:
    fds = []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd in exclude:
            continue
        try:
            os.fstat(fd)
        except OSError:  # the descriptor of the directory listing itself
            continue
        fds.append(fd)
    return sorted(fds)


def cold_start(python: str, arguments: list[str], why: str) -> None:
    sys.stderr.write(f"nereus prefork: {why}; starting {python} without it (slower, otherwise the same)\n")
    sys.stderr.flush()
    os.execv(python, [python, *arguments])


def main(address: str, python: str, arguments: list[str]) -> int:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address)
    except OSError as error:
        cold_start(python, arguments, f"no server at {address} ({error.strerror})")
    fds = open_descriptors({connection.fileno()})
    if len(fds) > MAX_FDS:
        cold_start(python, arguments, f"{len(fds)} open descriptors, at most {MAX_FDS} can be handed over")
    umask = os.umask(0)
    os.umask(umask)
    request = {"argv": arguments, "env": dict(os.environ), "cwd": os.getcwd(), "umask": umask, "fds": fds}
    body = json.dumps(request).encode()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
    message = struct.pack("!I", len(body)) + body
    sent = connection.sendmsg([message], [rights])
    connection.sendall(message[sent:])
    # The fork holds its own copies now. Keeping ours would keep pipes open after the fork has closed them. Standard
    # error stays, for the one thing there is to say below.
    null = os.open(os.devnull, os.O_RDWR)
    for fd in fds:
        if fd > 2:
            os.close(fd)
        elif fd < 2:
            os.dup2(null, fd)

    child = 0

    def forward(signum: int, _frame: object) -> None:
        if child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signum)

    for signum in FORWARDED:
        signal.signal(signum, forward)
    reader = connection.makefile("r")
    for line in reader:
        word, number = line.split()
        if word == "pid":
            child = int(number)
        elif word == "exit":
            code = int(number)
            if code < 0:
                signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
                os.kill(os.getpid(), -code)
            return code
    sys.stderr.write(f"nereus prefork: the server ended, and process {child} with it\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))

"""What a run needs of this machine."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from verl_ext.errors import NereusError


def port_problem(host: str, port: int) -> str | None:
    """Why a server cannot listen at this port, or None. Nothing is left open."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT can be used
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def check_shared_memory(folder: Path, needed: int) -> None:
    """Raise NereusError unless `needed` bytes are free in this folder of the memory file system."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise NereusError(
            "there is too little shared memory",
            where=str(folder),
            expected=f"{-(-needed >> 20)} MiB free, for Ray's objects and the weight sync",
            got=f"{free >> 20} MiB",
            change="free some, or give the container more (docker run --shm-size=1g)",
        )

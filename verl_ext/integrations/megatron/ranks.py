"""Run a function on a few ranks of this machine, each a fork of one server that has imported Megatron and verl."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from verl_ext.errors import NereusError
from verl_ext.launch.environment import cpu_environment

PRELOAD = "verl_ext.integrations.megatron.preload"


def run_on_ranks(world: int, function: Callable[..., Any], *args: Any, timeout_s: float = 240.0) -> list[Any]:
    """Call `function(*args)` on every rank of a new gloo process group.

    Args:
        world: number of ranks.
        function: importable by name; its result must pickle.
        timeout_s: after this all ranks are killed.

    Returns:
        The results by rank.

    Raises:
        NereusError: a rank raised (its traceback is in the message), died, or did not end in time.
    """
    os.environ.update({name: value for name, value in cpu_environment().items() if name not in os.environ})
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOAD])
    with tempfile.TemporaryDirectory(prefix="nereus-ranks-") as folder:
        pipes, processes = [], []
        for rank in range(world):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank, args=(rank, world, Path(folder) / "store", function, args, sender), daemon=True
            )
            process.start()
            sender.close()
            pipes.append(receiver)
            processes.append(process)
        try:
            return _collect(pipes, timeout_s, f"{function.__qualname__} on {world} ranks")
        finally:
            for process in processes:
                process.kill()
                process.join()


def _collect(pipes: list[Connection], timeout_s: float, what: str) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in results}
        ready = wait(list(waiting), timeout=timeout_s)
        if not ready:
            raise _failed(what, f"ranks {sorted(waiting.values())} gave no result within {timeout_s:g} s")
        for pipe in ready:
            rank = waiting[pipe]  # type: ignore[index]
            try:
                ok, payload = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                raise _failed(what, f"rank {rank} died") from None
            if not ok:
                raise _failed(what, f"rank {rank} raised\n{payload}")
            results[rank] = payload
    return [results[rank] for rank in range(len(pipes))]


def _failed(what: str, got: str) -> NereusError:
    return NereusError(f"{what} failed", where=what, expected="a result of every rank", got=got, change="see above")


def _rank(
    rank: int, world: int, store: Path, function: Callable[..., Any], args: tuple[Any, ...], sender: Connection
) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0")
    try:
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.FileStore(str(store), world), rank=rank, world_size=world
        )
        answer: tuple[bool, Any] = (True, function(*args))
    except Exception:
        answer = (False, traceback.format_exc())
    buffer = io.BytesIO()
    pickle.dump(answer, buffer)
    sender.send_bytes(buffer.getvalue())
    sender.close()
    # A rank that leaves early would break the last collective of the others; they are killed together.
    if answer[0]:
        torch.distributed.barrier()
    os._exit(0)

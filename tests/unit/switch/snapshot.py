"""What verl, vLLM, torch and Python look like in this process, as one line of JSON per attribute.

Run as a program in a fresh process: imports what a trainer, a worker, a rollout server and its engine import between
them, and describes every attribute of every module and class of verl and vLLM, and the places where a process can be
hooked.

Usage: snapshot.py OUTPUT
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import logging
import multiprocessing.spawn
import sys
import threading
import types
import warnings
from pathlib import Path

IMPORTED = (
    "verl",
    "verl.trainer.main_ppo",
    "verl.trainer.ppo.v1",
    "verl.workers.engine_workers",
    "verl.workers.engine.fsdp.transformer_impl",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
    "verl.checkpoint_engine.base",
    "vllm.plugins",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method",
)
# Besides all modules of verl and vLLM.
ALSO = ("torch", "torch.cpu", "torch.distributed", "ray", "ray.util", "multiprocessing", "importlib.metadata", "os")
# Variables of verl's loop over plugins, which does not run where plugins are switched off; and addresses of objects.
DIFFERENT_ANYWAY = {f"verl:{name}" for name in ("_allowed", "_discovered", "_entry_points", "_ep", "_plugins_policy")}
# What marks a composed subclass is seen in its bases.
ADDRESSES = ("__nereus_extensions__", "__pydantic_core_schema__", "__cached__", "__warningregistry__", "__builtins__")


def describe(value: object, depth: int = 0) -> object:
    """What `value` is, in words that mean the same in another process."""
    if isinstance(value, (staticmethod, classmethod)):
        return [type(value).__name__, describe(value.__func__, depth)]
    if isinstance(value, property):
        return ["property", *(describe(part, depth) for part in (value.fget, value.fset))]
    if isinstance(value, types.FunctionType):
        code = value.__code__
        # The line tells a function from another one of its name, such as a wrapper of it.
        return ["function", value.__module__, value.__qualname__, code.co_filename, code.co_firstlineno]
    if isinstance(value, type):
        return ["class", value.__module__, value.__qualname__, [base.__qualname__ for base in value.__mro__]]
    if isinstance(value, types.ModuleType):
        return ["module", value.__name__]
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, dict) and depth < 4:
        return {repr(describe(key, depth + 1)): describe(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and depth < 4:
        return [describe(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)) and depth < 4:
        return sorted(repr(describe(item, depth + 1)) for item in value)
    # Not the value of an object: numbers such as a process id differ from one process to the next.
    return ["instance", type(value).__module__, type(value).__qualname__]


def attributes() -> dict[str, object]:
    found: dict[str, object] = {}
    modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ("verl", "vllm")}
    modules |= {name: sys.modules[name] for name in ALSO if name in sys.modules}
    for name, module in modules.items():
        for attribute, value in list(vars(module).items()):
            found[f"{name}:{attribute}"] = describe(value)
            if isinstance(value, type) and value.__module__ == name:
                # A composed subclass has the name and module of its base, and the base's attributes are still there.
                same = [base for base in reversed(value.__mro__) if base.__qualname__ == value.__qualname__]
                for part, item in [pair for base in same for pair in vars(base).items()]:
                    found[f"{name}:{attribute}.{part}"] = describe(item)
    return {key: value for key, value in found.items() if key not in DIFFERENT_ANYWAY and not key.endswith(ADDRESSES)}


def hooks() -> dict[str, object]:
    """Where a package can put itself in the way without an attribute of anybody."""
    try:
        vllm = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        vllm = "not installed"
    loggers = {name or "root": logging.getLogger(name) for name in ("", "verl", "vllm", "ray")}
    return {
        "hook sys.meta_path": [
            describe(finder if isinstance(finder, type) else type(finder)) for finder in sys.meta_path
        ],
        "hook sys.path_hooks": [describe(hook) for hook in sys.path_hooks],
        "hook executable of multiprocessing": str(multiprocessing.spawn.get_executable()),
        "hook distribution vllm": vllm,
        "hook warnings": len(warnings.filters),
        "hook threads": threading.active_count(),
        **{
            f"hook logging {name}": [logger.level, *(type(handler).__name__ for handler in logger.handlers)]
            for name, logger in loggers.items()
        },
    }


def main(output: Path) -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    # As every process of vLLM does when it starts.
    sys.modules["vllm.plugins"].load_general_plugins()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # to look at a deprecated name is to use it
        found = attributes()
    output.write_text(json.dumps({**found, **hooks()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

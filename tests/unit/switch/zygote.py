"""A Python process with the heavy third-party packages imported, which forks into fresh ones on request.

What a process does when it imports verl has to be tested in a process that has not. Each of them would spend 6 s on
torch and its like, which are not what is tested; so they are imported once, here. Neither verl, vLLM nor anything of
nereus is: a fork imports them as a new interpreter would.

Reads one request a line (JSON: argv, env, path, and the files stdout and stderr), answers with one line of JSON.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import sys
import traceback

THIRD_PARTY = """
    PIL accelerate aiohttp compressed_tensors cv2 datasets fastapi httpx huggingface_hub hydra msgspec networkx numpy
    omegaconf openai opentelemetry.trace pandas peft prometheus_client pyarrow pydantic ray regex sympy tensordict torch
    torch._inductor.config torch.distributed.checkpoint torch.distributed.fsdp torch.utils.data torchvision
    transfer_queue transformers transformers.models.auto tvm_ffi uvicorn xgrammar zmq
"""


def become(request: dict) -> None:
    """In the fork: do what `python ARGV` would, with -m MODULE or a file."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        file = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
    for name, value in request["env"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    sys.path[:0] = request["path"]
    argv = request["argv"]
    sys.orig_argv = [sys.executable, *argv]
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")


def exit_code(request: dict) -> int:
    try:
        become(request)
    except SystemExit as error:
        if isinstance(error.code, str):
            sys.stderr.write(error.code + "\n")
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    gc.disable()  # each pass would visit every object of torch, and the forks are short
    for name in THIRD_PARTY.split():
        with contextlib.suppress(ImportError):  # only speed is lost
            importlib.import_module(name)
    grown = {name.split(".")[0] for name in sys.modules} & {"verl", "verl_ext", "vllm", "wrapt", "hydra_plugins"}
    assert not grown, f"not to be imported before the fork: {grown}"
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = exit_code(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _pid, status = os.waitpid(pid, 0)
        print(json.dumps({"exit_code": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()

"""Start Python processes by forking one that has already imported what they need.

A verl run on a laptop starts about ten Python processes and each spends 10 to 25 seconds of CPU on the same imports
(torch, transformers, vLLM, Ray, verl). On two cores that is most of the run. Here one *prefork server* imports them
once; every later process is a fork of it:

    raylet / multiprocessing ──exec──> client.py (stdlib, 30 ms) ──argv, env, cwd, fds──> server ──fork──> the process

The client stays as the process its parent knows: it forwards signals to the fork and exits with its status, and the
fork is killed when the client is. Nothing is patched: Ray is told through `runtime_env.py_executable`, multiprocessing
through `multiprocessing.set_executable`.

Only for the `cpu` platform: a process that has touched CUDA cannot be forked.
"""

"""One training step of a tiny model in Megatron without one of the patches of the cpu platform.

    left_out.py PATCH FAMILY LAYOUT FOLDER

LAYOUT is like `tp=2,ep=2`, or `one`. The last line says `same` (as transformers), `differs` or `fails`, and why.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

LEFT_OUT = "NEREUS_TEST_LEFT_OUT"


def join_without(name: str) -> None:
    """What `join` does, but for one patch; in a process of this script only."""
    from verl_ext.compat.extension import instances
    from verl_ext.compat.touch import MANIFEST
    from verl_ext.config import NereusOptions
    from verl_ext.integrations.run import Run, enter
    from verl_ext.integrations.verl.join import touches

    run = Run(NereusOptions(), "cpu", "vllm", {"actor": "megatron"})
    enter(run)
    wanted = touches(run)
    left = [touch for touch in wanted if touch.name != name]
    assert len(left) == len(wanted) - 1, f"there is no patch {name}"
    MANIFEST.arm(instances(left))


def main(name: str, family: str, layout: str, folder: Path) -> str:
    from verl_ext.demo.families import build_family
    from verl_ext.errors import NereusError
    from verl_ext.integrations.megatron import ranks
    from verl_ext.integrations.megatron.layout import Layout
    from verl_ext.integrations.megatron.parity import Case, compare, gather, reference, run_case

    os.environ[LEFT_OUT] = name
    ranks.PRELOAD = Path(__file__).stem
    sizes = {} if layout == "one" else {key: int(size) for key, size in (item.split("=") for item in layout.split(","))}
    case = Case(build_family(family, folder / family), Layout(**sizes))
    try:
        found = gather(ranks.run_on_ranks(case.layout.world, run_case, case, timeout_s=100.0))
    except NereusError as error:
        return "fails: " + error.got.strip().splitlines()[-1]
    difference = compare(found, reference(case))
    same = difference.log_prob < 1e-5 and difference.grad_norm < 1e-4 and difference.weight < 1e-4
    return f"{'same' if same else 'differs'}: {difference}"


if __name__ == "__main__":
    answer = main(*sys.argv[1:4], Path(sys.argv[4]))
    sys.stdout.write(f"\n{answer}\n")
elif os.environ.get(LEFT_OUT):  # imported by the server that the ranks are forks of
    join_without(os.environ[LEFT_OUT])

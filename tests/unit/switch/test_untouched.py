"""Off means off: without the switch nothing of verl, vLLM, torch or Python is another than without nereus.

And the same comparison in a process of a run finds every patch and every door, and nothing else.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

import pytest

from verl_ext.compat.extension import instances
from verl_ext.config import CpuOptions, NereusOptions, TrainerOptions
from verl_ext.integrations.run import Run
from verl_ext.integrations.verl.join import touches

SNAPSHOT = str(Path(__file__).with_name("snapshot.py"))
GENERAL = "vllm.general_plugins"

# The snapshot looks at these in its own way.
NAMES = {
    "multiprocessing.spawn:_python_exe": "hook executable of multiprocessing",
    "sys:meta_path": "hook sys.meta_path",  # hooks on imports to come, and the finder of the distribution vllm
}
# What verl and vLLM themselves do otherwise on another platform, or with a patched function that they import by name.
CONSEQUENCES = {
    "verl.checkpoint_engine.base:initialize_global_process_group_ray",
    "verl.workers.engine_workers:initialize_global_process_group_ray",
    "verl.experimental.separation.engine_workers:device_name",
    "verl.utils.megatron.router_replay_utils:device_name",
    "verl.workers.engine.fsdp.transformer_impl:device_name",
    "vllm.platforms:_init_trace",
}


@pytest.fixture(scope="module")
def snapshot(fresh, tmp_path_factory: pytest.TempPathFactory):
    # verl and vLLM look for a distribution `vllm`. On the CPU only nereus, when it is on, answers for it; this one does
    # for all three processes alike.
    folder = tmp_path_factory.mktemp("snapshots")
    metadata = folder / "vllm-0.24.0+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.24.0+cpu\n")

    def take(**env: str) -> dict[str, object]:
        output = folder / "snapshot.json"
        ended = fresh(SNAPSHOT, str(output), env=env, path=[folder])
        assert ended.exit_code == 0, ended.stderr[-3000:]
        return json.loads(output.read_text())

    return take


@pytest.fixture(scope="module")
def without_nereus(snapshot) -> dict[str, object]:
    others = [point.name for point in importlib.metadata.entry_points(group=GENERAL) if point.name != "nereus"]
    return snapshot(VERL_USE_EXTERNAL_PLUGINS="none", VLLM_PLUGINS=",".join(others))


def different(one: dict[str, object], other: dict[str, object]) -> set[str]:
    return {key for key in one.keys() | other.keys() if one.get(key, "absent") != other.get(key, "absent")}


def test_without_the_switch_nothing_is_touched(without_nereus, snapshot):
    assert different(without_nereus, snapshot()) == set()


def test_a_run_touches_what_it_says_and_nothing_else(without_nereus, snapshot):
    options = NereusOptions(
        cpu=CpuOptions(python=sys.executable + "-stand-in"), trainer=TrainerOptions(poll_interval_s=0.05)
    )
    run = Run(options, "cpu", "vllm", {"actor": "fsdp2"})
    during = snapshot(NEREUS_ACTIVATION=run.to_json())
    changed = {place for touch in instances(touches(run)) for place in touch.changed()}
    assert different(without_nereus, during) == {NAMES.get(place, place) for place in changed} | CONSEQUENCES

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from safetensors.torch import load_file

pytestmark = pytest.mark.e2e

PROCESSES = {
    "driver",
    "trainer",
    "actor 0",
    "reward 0",
    "agent loop 0",
    "rollout 0 server",
    "rollout 0 engine core",
    "rollout 0 engine worker 0",
}


def test_fp32_rollout_and_trainer_agree_while_the_weights_move(train, assets, tmp_path: Path):
    run = train(
        "trainer.save_freq=3", "actor_rollout_ref.actor.checkpoint.save_contents=[model,hf_model]", steps=3
    ).succeeded()
    steps = run.records
    assert [record["step"] for record in steps] == [1, 2, 3]
    # vLLM starts from dummy weights (load_format=dummy), so agreement can only come from the sync.
    assert all(record["rollout_gap_max"] < 1e-5 for record in steps)
    before = load_file(assets.model / "model.safetensors")
    (saved,) = tmp_path.glob("checkpoints/global_step_3/actor/huggingface/*.safetensors")
    after = load_file(saved)
    moved = max(float((after[name].float() - before[name].float()).abs().max()) for name in before)
    assert moved > 1e-4

    info = run.info
    assert {item["process"] for item in info["processes"]} == PROCESSES
    assert len({item["code"] for item in info["processes"]}) == 1
    engine = next(item for item in info["processes"] if item["process"].endswith("engine worker 0"))
    assert "vllm-cpu-loadable-linear" in engine["applied"]
    actor = next(item for item in info["processes"] if item["process"] == "actor 0")
    assert "verl-bounded-weight-sync-wait" in actor["applied"]
    assert info["command"][1:3] == ["-m", "verl.trainer.main_ppo"]
    assert "active in all 8 processes" in run.log
    report = (tmp_path / "report.html").read_text()
    assert "rollout 0 engine core" in report


def test_two_workers_in_bf16_train_with_two_replicas(train):
    run = train(steps=2, workers=2, dtype="bfloat16").succeeded()
    gaps = [record["rollout_gap_max"] for record in run.records]
    # bf16 rounds to 3 digits: a gap is expected, and a gap of dummy weights would be near 1.
    assert all(0 < gap < 0.1 for gap in gaps)
    names = {item["process"] for item in run.info["processes"]}
    assert {"actor 1", "rollout 1 engine worker 0"} <= names


def test_megatron_trains_what_the_rollout_samples(train):
    run = train(engine="megatron", steps=2).succeeded()
    assert all(record["rollout_gap_max"] < 1e-5 for record in run.records)
    actor = next(item for item in run.info["processes"] if item["process"] == "actor 0")
    assert "megatron-cpu-local-provider" in actor["applied"]


@pytest.mark.slow
def test_options_reach_every_process_of_a_cluster_that_was_started_before(train, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # Ray chooses it by itself only for a cluster it starts
    # Variables of the driver do not reach such a cluster's workers; the options travel in the config.
    head, short = tmp_path / "head.py", tempfile.mkdtemp(prefix="nr-", dir="/tmp")
    head.write_text(
        "import ray, sys, time\n"
        f"context = ray.init(num_cpus=16, num_gpus=1, include_dashboard=False, _temp_dir={short!r})\n"
        "print(context.address_info['gcs_address'], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, head], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cluster:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        run = train(
            f"+ray_kwargs.ray_init.address={address}",
            "~ray_kwargs.ray_init.num_cpus",
            "~ray_kwargs.ray_init._temp_dir",
            "nereus.weight_sync.stall_timeout_s=31",
            steps=1,
        )
    shutil.rmtree(short, ignore_errors=True)
    run.succeeded()
    assert "bounded weight sync (31 s)" in run.log
    assert {item["process"] for item in run.info["processes"]} == PROCESSES


@pytest.mark.slow
def test_an_engine_of_two_tensor_parallel_workers_is_asked_in_both(train):
    run = train("actor_rollout_ref.rollout.tensor_model_parallel_size=2", steps=2, workers=2).succeeded()
    assert all(record["rollout_gap_max"] < 1e-5 for record in run.records)
    names = {item["process"] for item in run.info["processes"]}
    assert {"rollout 0 engine worker 0", "rollout 0 engine worker 1"} <= names
    assert "rollout 1 server" not in names

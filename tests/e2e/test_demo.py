"""The command as a person types it: own model and data, a wrong path, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.e2e

NEREUS = Path(sys.executable).with_name("nereus")
QUESTIONS = [("Legs of two spiders?", "16"), ("What is 3 + 4?", "7"), ("Half of 10?", "5"), ("2 * 9?", "18")]


def dense_model(folder: Path, tokenizer_from: Path) -> Path:
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_from)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def gsm8k_shaped(file: Path) -> Path:
    import pandas

    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": question}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {"split": "train", "index": index},
        }
        for index, (question, answer) in enumerate(QUESTIONS * 4)
    ]
    pandas.DataFrame(rows).to_parquet(file)
    return file


def own_run(folder: Path) -> list[psutil.Process]:
    """Processes of a demo whose runs folder is `folder`: all of them carry it in the environment or command line."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.environ().get("NEREUS_ACTIVATION", "")]
            if any(str(folder) in word for word in words):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def test_a_users_dense_model_and_gsm8k_shaped_data_run_with_verls_own_reward(assets, tmp_path: Path):
    model, data = dense_model(tmp_path / "my model", assets.model), gsm8k_shaped(tmp_path / "gsm8k.parquet")
    runs = tmp_path / "runs"
    (runs).mkdir()
    (runs / "assets").symlink_to(assets.root)
    done = subprocess.run(
        [NEREUS, "demo", "--model", model, "--data", data, "--steps", "2", "--runs", runs],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    latest = runs / "latest"
    lines = [json.loads(line) for line in (latest / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["rollout_gap_max"] < 1e-5 for line in lines)
    assert {"step", "reward", "rollout_gap_max", "seconds"} <= set(lines[0])
    assert "verl.trainer.main_ppo" in (latest / "command.txt").read_text()
    assert (latest / "report.html").exists()
    assert (latest / "run.log").exists()
    assert own_run(runs) == []


def test_ctrl_c_leaves_no_process_and_no_report(assets, tmp_path: Path):
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "assets").symlink_to(assets.root)
    demo = subprocess.Popen(
        [NEREUS, "demo", "--runs", runs], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert demo.stdout is not None
    for line in demo.stdout:
        if "starting the rollout engine" in line:
            break
    time.sleep(1.0)
    assert own_run(runs), "nothing was running, so this test could not fail"
    os.kill(demo.pid, signal.SIGINT)
    rest = demo.stdout.read()
    assert demo.wait(timeout=60) == 130
    assert "interrupted" in rest
    assert own_run(runs) == []
    assert not list(runs.glob("*/report.html"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "/no/such/model"], "/no/such/model"),
        (["--data", "/no/such/train.parquet"], "/no/such/train.parquet"),
        (["--reward", "/no/such/reward.py"], "/no/such/reward.py"),
        (["--engine", "deepspeed"], "fsdp2 or megatron"),
        (["--dtype", "int8"], "float32 or bfloat16"),
    ],
)
def test_a_wrong_argument_is_one_message_and_nothing_is_started(arguments, words, tmp_path: Path):
    done = subprocess.run([NEREUS, "demo", "--runs", tmp_path / "runs", *arguments], capture_output=True, text=True)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert not (tmp_path / "runs").exists()

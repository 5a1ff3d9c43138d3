"""Devices, dtypes and memory; a GPU is played by patched torch functions."""

import subprocess
import sys

import pytest
import torch

from gpcache.errors import DataError, NumericalError
from gpcache.support import devices
from gpcache.support.devices import (
    LITTLE_MEMORY,
    UNKNOWN_MEMORY,
    ensure_memory,
    explained_memory_errors,
    format_bytes,
    free_memory,
    has_memory,
    resolve_device,
    resolve_dtype,
)

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda:0"), torch.device("mps")


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.mark.usefixtures("no_gpu")
class TestWithoutGPU:
    def test_auto_and_cpu(self):
        assert resolve_device() == resolve_device("auto") == resolve_device("cpu") == CPU
        assert resolve_device(CPU) == CPU

    @pytest.mark.parametrize("device", ["cuda", "cuda:3", CUDA, "mps", MPS])
    def test_an_absent_accelerator_is_one_sentence_with_a_remedy(self, device):
        with pytest.raises(DataError, match=rf"^device='{device}' .*use device='cpu'.*\.$"):
            resolve_device(device)

    @pytest.mark.parametrize("device", ["gpu", "", "cuda:x", 1.5, None])
    def test_nonsense_is_named(self, device):
        with pytest.raises(DataError, match=f"got {device!r}"):
            resolve_device(device)


@pytest.mark.usefixtures("two_gpus")
class TestWithGPU:
    @pytest.mark.parametrize("device", ["auto", "cuda"])
    def test_the_current_gpu_comes_with_its_index(self, device):
        assert resolve_device(device) == torch.device("cuda", 1)

    def test_an_index_is_kept(self):
        assert resolve_device("cuda:0") == torch.device("cuda", 0)

    def test_an_index_too_high_says_the_highest(self):
        with pytest.raises(DataError, match=r"'cuda:2' is not available, the highest is 'cuda:1'"):
            resolve_device("cuda:2")

    def test_cpu_stays_cpu(self):
        assert resolve_device("cpu") == CPU


@pytest.mark.parametrize(
    ("dtype", "device", "expected"),
    [
        ("auto", CPU, torch.float64),
        ("auto", CUDA, torch.float32),
        ("auto", MPS, torch.float32),
        ("float32", CPU, torch.float32),
        ("float64", CUDA, torch.float64),
        (torch.float32, CPU, torch.float32),
        (torch.float64, CUDA, torch.float64),
    ],
)
def test_dtype(dtype, device, expected):
    assert resolve_dtype(dtype, device) is expected


@pytest.mark.parametrize("dtype", ["float16", torch.float16, "double", torch.int64, None])
def test_a_dtype_without_factorisations_is_refused(dtype):
    with pytest.raises(DataError, match=r"must be 'auto', 'float32' or 'float64', got"):
        resolve_dtype(dtype, CPU)


def test_float64_on_mps_is_refused():
    with pytest.raises(DataError, match="use dtype='float32'"):
        resolve_dtype("float64", MPS)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1_500, "1.5 kB"),
        (25_000_000, "25.0 MB"),
        (200_000**2 * 8, "320.0 GB"),
        (2_500 * 10**12, "2,500.0 TB"),
    ],
)
def test_format_bytes(size, text):
    assert format_bytes(size) == text


def test_ensure_memory_says_both_sizes_and_the_remedy(monkeypatch):
    monkeypatch.setattr(devices, "free_memory", lambda _: 21_400_000_000)
    options = {"what": "The exact GP over 200,000 keys", "remedy": "Use n_groups=64."}
    ensure_memory(21_400_000_000, CPU, **options)
    with pytest.raises(NumericalError) as caught:
        ensure_memory(200_000**2 * 8, CPU, **options)
    assert str(caught.value) == (
        "The exact GP over 200,000 keys needs 320.0 GB, but cpu has 21.4 GB free. Use n_groups=64."
    )


def test_a_small_number_of_bytes_is_not_compared_with_the_free_memory(monkeypatch):
    monkeypatch.setattr(devices, "free_memory", lambda _: 0)
    assert has_memory(LITTLE_MEMORY, CPU)
    assert not has_memory(LITTLE_MEMORY + 1, CPU)


def test_cuda_memory_counts_what_the_allocator_holds_unused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 70)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 30)
    assert free_memory(CUDA) == 140


def test_cpu_memory_is_the_tighter_of_system_and_cgroup(monkeypatch):
    monkeypatch.setattr(devices, "_system_memory", lambda: 5)
    monkeypatch.setattr(devices, "_cgroup_memory", lambda: 7)
    assert free_memory(CPU) == 5
    monkeypatch.setattr(devices, "_cgroup_memory", lambda: 3)
    assert free_memory(CPU) == free_memory(MPS) == 3
    monkeypatch.setattr(devices, "_address_space", lambda: 2)
    assert free_memory(CPU) == 2


LIMITED = """
import resource, torch
from gpcache.errors import NumericalError
from gpcache.support.devices import explained_memory_errors, free_memory
cpu = torch.device("cpu")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 200_000_000, resource.RLIM_INFINITY))
assert 100_000_000 < free_memory(cpu) <= 200_000_000, free_memory(cpu)
for take in (lambda: torch.zeros(10**9), lambda: bytearray(10**10)):
    try:
        with explained_memory_errors("The fit", "Use fewer shots."):
            take()
    except NumericalError as error:
        print(error)
"""


def test_a_limit_of_the_process_is_known_and_what_exceeds_it_is_one_sentence():
    """`ulimit -v`, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["The fit ran out of memory. Use fewer shots."] * 2


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="shape"), explained_memory_errors("A", "B."):
        raise RuntimeError("a wrong shape")


def test_cpu_memory_here_is_a_real_number():
    assert 2**20 < free_memory(CPU) < UNKNOWN_MEMORY


def test_an_unknown_kind_of_device_has_unknown_memory():
    assert free_memory(torch.device("meta")) == UNKNOWN_MEMORY


def test_system_memory_reads_meminfo_in_kibibytes(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:   2000 kB\n")
    assert devices._system_memory(meminfo) == 2000 * 1024


def test_system_memory_without_meminfo(tmp_path, monkeypatch):
    pages = {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 4096}
    unknown = ValueError("unrecognized configuration name")

    def sysconf(name):
        if name not in pages:
            raise unknown
        return pages[name]

    monkeypatch.setattr(devices.os, "sysconf", sysconf)
    absent = tmp_path / "absent"
    assert devices._system_memory(absent) == 10 * 4096
    pages["SC_AVPHYS_PAGES"] = 6
    assert devices._system_memory(absent) == 6 * 4096
    pages.clear()
    assert devices._system_memory(absent) == UNKNOWN_MEMORY


def write_cgroup(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def test_cgroup_version_2_takes_the_tightest_of_own_and_parents(tmp_path):
    membership = tmp_path / "membership"
    membership.write_text("0::/job/step\n")
    write_cgroup(tmp_path / "job", {"memory.max": 1000, "memory.current": 900})
    write_cgroup(tmp_path / "job/step", {"memory.max": "max", "memory.current": 800})
    assert devices._cgroup_memory(tmp_path, membership) == 100
    # The cache of files is given back on demand.
    write_cgroup(tmp_path / "job", {"memory.stat": "anon 5\ninactive_file 250\nfile 300"})
    assert devices._cgroup_memory(tmp_path, membership) == 350
    write_cgroup(tmp_path / "job/step", {"memory.max": 810})
    assert devices._cgroup_memory(tmp_path, membership) == 10
    write_cgroup(tmp_path / "job/step", {"memory.max": 700})
    assert devices._cgroup_memory(tmp_path, membership) == 0


def test_cgroup_version_1_and_a_path_that_only_the_host_sees(tmp_path):
    membership = tmp_path / "membership"
    membership.write_text("5:cpuset:/x\n4:cpu,memory:/of/the/host\n0::/\n")
    write_cgroup(
        tmp_path / "memory",
        {
            "memory.limit_in_bytes": 5000,
            "memory.usage_in_bytes": 3000,
            "memory.stat": "inactive_file 1\ntotal_inactive_file 400",
        },
    )
    assert devices._cgroup_memory(tmp_path, membership) == 2400


def test_no_cgroup_is_no_limit(tmp_path):
    membership = tmp_path / "membership"
    assert devices._cgroup_memory(tmp_path, membership) == UNKNOWN_MEMORY
    membership.write_text("0::/\n")
    write_cgroup(tmp_path, {"memory.max": "max", "memory.current": 10})
    assert devices._cgroup_memory(tmp_path, membership) == UNKNOWN_MEMORY

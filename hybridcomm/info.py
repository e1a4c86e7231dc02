"""Looks at the machine and at this build: what collectives have to work with.

Works with nothing compiled and asks the kernel itself, by calls that change nothing, rather than
guessing from its version: a container may forbid what the kernel can do.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
import platform
import shutil
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import hybridcomm

_SIMD = ("avx2", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx512_fp16", "asimd", "sve")
_SYS_FUTEX_WAITV = 449  # the same on every architecture


@dataclass(frozen=True)
class Machine:
    """What the machine, its kernel and this build have.

    Args:
        cpu: The processor's name.
        usable_cores: Cores this process may keep busy: those of its affinity, or what its cgroup's
            quota allows if that is less, which need not be whole.
        machine_cores: Cores of the machine that are on line.
        simd: Vector extensions that matter here, as the kernel names them.
        memory_bytes: Memory of the machine, or the cgroup's limit if that is less.
        available_bytes: Memory that can be had now without swapping.
        kernel: The kernel's name and release.
        memfd: Whether anonymous files can be made (memfd_create).
        pidfd: Whether a process can be held by a descriptor (pidfd_open).
        futex_waitv: Whether a thread can wait on several words.
        process_vm_readv: Whether the kernel lets one process read another's memory.
        ptrace_scope: Yama's rule, 0 if there is none; from 1 on, ranks without CAP_SYS_PTRACE must
            allow each other to read their memory.
        shm_bytes: Size of /dev/shm, 0 if there is none.
        torch: Version of torch that is running.
        built_torch: Version of torch the compiled part was built for, None if there is none.
        build: "compiled", or why not: "reference" (nothing is compiled) or "mismatch" (built for
            another torch).
        hybridcomm: Version of hybridcomm.
        cuda_devices: Names of the CUDA devices torch sees.
        cuda_peer_pairs: Ordered pairs of them in which the first can read the second's memory, over
            NVLink or PCIe.
    """

    cpu: str
    usable_cores: float
    machine_cores: int
    simd: tuple[str, ...]
    memory_bytes: int
    available_bytes: int
    kernel: str
    memfd: bool
    pidfd: bool
    futex_waitv: bool
    process_vm_readv: bool
    ptrace_scope: int
    shm_bytes: int
    torch: str
    built_torch: str | None
    build: str
    hybridcomm: str
    cuda_devices: tuple[str, ...]
    cuda_peer_pairs: int


def look() -> Machine:
    """Looks at the machine.

    Returns:
        What there is now.
    """
    import torch

    cpu, flags = _cpu()
    memory, available = _memory()
    built_torch = _built_torch()
    if built_torch is None:
        build = "reference"
    else:
        build = "compiled" if built_torch == str(torch.__version__) else "mismatch"
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Machine(
        cpu=cpu,
        usable_cores=_usable_cores(),
        machine_cores=os.cpu_count() or 1,
        simd=tuple(name for name in _SIMD if name in flags),
        memory_bytes=memory,
        available_bytes=available,
        kernel=f"{platform.system()} {platform.release()}",
        memfd=_memfd(),
        pidfd=_pidfd(),
        futex_waitv=_futex_waitv(),
        process_vm_readv=_process_vm_readv(),
        ptrace_scope=int(_read("/proc/sys/kernel/yama/ptrace_scope") or 0),
        shm_bytes=shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else 0,
        torch=str(torch.__version__),
        built_torch=built_torch,
        build=build,
        hybridcomm=hybridcomm.__version__,
        cuda_devices=tuple(devices),
        cuda_peer_pairs=sum(
            torch.cuda.can_device_access_peer(reader, owner)
            for reader, owner in permutations(range(len(devices)), 2)
        ),
    )


def describe(machine: Machine) -> list[tuple[str, str]]:
    """Puts what was found into words.

    Args:
        machine: What `look` returned.

    Returns:
        Lines of a name and a value.
    """

    def yes(fact: bool) -> str:
        return "yes" if fact else "no"

    readv = yes(machine.process_vm_readv)
    if machine.process_vm_readv and machine.ptrace_scope:
        readv = f"yes, but ptrace_scope {machine.ptrace_scope} may forbid it between ranks"
    build = {
        "compiled": f"compiled for torch {machine.built_torch}",
        "reference": "nothing compiled: pure Python only",
        "mismatch": f"compiled for torch {machine.built_torch}, which is not the one running",
    }[machine.build]
    gpus = ", ".join(machine.cuda_devices) or "none"
    if len(machine.cuda_devices) > 1:
        pairs = len(machine.cuda_devices) * (len(machine.cuda_devices) - 1)
        gpus += f"; {machine.cuda_peer_pairs} of {pairs} pairs reach each other's memory"
    gib = 1 << 30
    return [
        ("CPU", machine.cpu),
        ("cores", f"{machine.usable_cores:g} usable of {machine.machine_cores}"),
        ("vectors", " ".join(machine.simd) or "baseline"),
        (
            "memory",
            f"{machine.memory_bytes / gib:.1f} GiB, {machine.available_bytes / gib:.1f} available",
        ),
        ("/dev/shm", f"{machine.shm_bytes / gib:.3g} GiB"),
        ("kernel", machine.kernel),
        ("memfd", yes(machine.memfd)),
        ("pidfd", yes(machine.pidfd)),
        ("futex_waitv", yes(machine.futex_waitv)),
        ("process_vm_readv", readv),
        ("torch", machine.torch),
        ("hybridcomm", f"{machine.hybridcomm}, {build}"),
        ("CUDA", gpus),
    ]


def _read(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _cpu() -> tuple[str, frozenset[str]]:
    """The processor's name and its feature flags."""
    facts: dict[str, str] = {}
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    # Arm's cpuinfo has numbers in place of a name.
    name = facts.get("model name") or platform.processor() or platform.machine()
    return name, frozenset((facts.get("flags") or facts.get("Features") or "").split())


def _usable_cores() -> float:
    cores = float(len(os.sched_getaffinity(0)))
    for folder in _cgroup_folders("cpu"):
        # Version 2: "max 100000" or "150000 100000". Version 1: one file each, -1 for no limit.
        quota, _, period = (_read(folder / "cpu.max") or "").partition(" ")
        if not quota:
            quota = _read(folder / "cpu.cfs_quota_us") or ""
            period = _read(folder / "cpu.cfs_period_us") or ""
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            cores = min(cores, int(quota) / int(period))
    return cores


def _memory() -> tuple[int, int]:
    """Memory in all and available, in bytes."""
    facts = {}
    for line in (_read("/proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        facts[name] = int(value.split()[0]) * 1024
    total, available = facts.get("MemTotal", 0), facts.get("MemAvailable", 0)
    for folder in _cgroup_folders("memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _read(folder / limit_name), _read(folder / used_name)
            if limit and limit.isdigit() and int(limit) < total:
                total = int(limit)
                available = min(available, max(0, total - int(used or 0)))
    return total, available


def _cgroup_folders(controller: str) -> list[Path]:
    """Folders of this process's cgroup and all above it, for either version of cgroups."""
    folders = []
    for line in (_read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root = Path("/sys/fs/cgroup")
        elif controller in controllers.split(","):
            root = Path("/sys/fs/cgroup") / controller
        else:
            continue
        inner = root / path.lstrip("/")
        folders += [folder for folder in (inner, *inner.parents) if folder.is_relative_to(root)]
    return folders


def _memfd() -> bool:
    try:
        os.close(os.memfd_create("hybridcomm-info", os.MFD_CLOEXEC))
    except OSError:
        return False
    return True


def _pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _futex_waitv() -> bool:
    # Waiting on no word at all is an invalid argument to a kernel that knows the call.
    ctypes.set_errno(0)
    ctypes.CDLL(None, use_errno=True).syscall(_SYS_FUTEX_WAITV, None, 0, 0, None, 0)
    return ctypes.get_errno() == errno.EINVAL


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _process_vm_readv() -> bool:
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "process_vm_readv"):
        return False
    source, target = ctypes.create_string_buffer(b"read"), ctypes.create_string_buffer(5)
    local = _IoVec(ctypes.addressof(target), 5)
    remote = _IoVec(ctypes.addressof(source), 5)
    read = library.process_vm_readv
    read.restype = ctypes.c_ssize_t
    read.argtypes = (
        ctypes.c_int,
        ctypes.POINTER(_IoVec),
        ctypes.c_ulong,
        ctypes.POINTER(_IoVec),
        ctypes.c_ulong,
        ctypes.c_ulong,
    )
    done = read(os.getpid(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    return bool(done == 5 and target.value == b"read")


def _built_torch() -> str | None:
    if importlib.util.find_spec("hybridcomm._build_info") is None:
        return None
    from hybridcomm._build_info import TORCH_VERSION

    return TORCH_VERSION

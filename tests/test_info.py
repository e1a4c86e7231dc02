"""What is found out about the machine, and how it is said."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch

from hybridcomm import info, info_command
from hybridcomm.info import Machine, describe, look


@pytest.fixture(scope="module")
def machine() -> Machine:
    """This machine."""
    return look()


def test_this_machine(machine: Machine) -> None:
    """Facts that can be had in another way."""
    assert 0 < machine.usable_cores <= len(os.sched_getaffinity(0))
    assert machine.memory_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 1.01
    assert 0 < machine.available_bytes <= machine.memory_bytes
    assert machine.torch == torch.__version__
    assert machine.build in ("compiled", "reference", "mismatch")
    assert os.uname().release in machine.kernel
    assert (machine.built_torch is None) == (machine.build == "reference")


def test_every_fact_is_said(machine: Machine) -> None:
    """And the state of the build in words that say what it means."""
    lines = dict(describe(machine))
    assert lines["CPU"] == machine.cpu
    mismatch = dataclasses.replace(machine, build="mismatch", built_torch="1.0")
    assert "torch 1.0, which is not the one running" in dict(describe(mismatch))["hybridcomm"]
    reference = dataclasses.replace(machine, build="reference", built_torch=None)
    assert "nothing compiled" in dict(describe(reference))["hybridcomm"]
    yama = dataclasses.replace(machine, process_vm_readv=True, ptrace_scope=1)
    assert "ptrace_scope 1" in dict(describe(yama))["process_vm_readv"]
    gpus = dataclasses.replace(machine, cuda_devices=("A", "B"), cuda_peer_pairs=2)
    assert dict(describe(gpus))["CUDA"] == "A, B; 2 of 2 pairs reach each other's memory"


@pytest.mark.parametrize(
    ("files", "cores", "memory"),
    [
        ({"cgroup": "0::/a/b", "a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 0.5, 9),
        ({"cgroup": "0::/a", "a/memory.max": "4096", "a/memory.current": "96"}, 2, 4096),
        (
            {
                "cgroup": "2:cpu,cpuacct:/a\n3:memory:/m",
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/a/cpu.cfs_quota_us": "150000",
                "cpu/a/cpu.cfs_period_us": "100000",
                "memory/m/memory.limit_in_bytes": "8192",
            },
            1.5,
            8192,
        ),
        ({}, 2, 9),
    ],
)
def test_limits_of_the_cgroup(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    cores: float,
    memory: int,
) -> None:
    """Of either version, of this group and of those above it."""
    for name, text in {**files, "meminfo": "MemTotal: 9 kB\nMemAvailable: 9 kB"}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    read = info._read

    def planted(path: str | Path) -> str | None:
        name = str(path).removeprefix("/sys/fs/cgroup/")
        return read(tmp_path / name.removeprefix("/proc/self/").removeprefix("/proc/"))

    monkeypatch.setattr(info, "_read", planted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert info._usable_cores() == cores
    assert info._memory()[0] == (9 * 1024 if memory == 9 else memory)


def test_probes_say_no_where_the_kernel_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that forbids the calls."""

    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert not info._memfd()
    assert not info._pidfd()


def test_the_command(capsys: pytest.CaptureFixture[str], machine: Machine) -> None:
    """In words, and for programs."""
    parser = argparse.ArgumentParser()
    info_command.add_arguments(parser)
    assert info_command.run(parser.parse_args([])) == 0
    assert machine.cpu in capsys.readouterr().out
    assert info_command.run(parser.parse_args(["--json"])) == 0
    assert json.loads(capsys.readouterr().out)["cpu"] == machine.cpu

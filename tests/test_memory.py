"""How much memory may be kept, when several processes keep what they can."""

import pytest

from kalmanclip import process


@pytest.fixture
def system(monkeypatch, tmp_path):
    """A computer with 8 GiB free, and no container."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 1 kB\nMemAvailable: {8 << 20} kB\n")
    monkeypatch.setattr(process, "_MEMINFO", meminfo)
    monkeypatch.setattr(process, "_CGROUP", tmp_path / "absent")
    monkeypatch.setattr(process, "_workers", 1)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return meminfo


def test_alone_all_of_it_is_free(system):
    assert process.free_bytes() == 8 << 30


def test_workers_share(system):
    process.share_with(4)
    assert process.free_bytes() == 2 << 30


def test_ranks_share(system, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert process.free_bytes() == 4 << 30
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "two")
    assert process.free_bytes() == 8 << 30


def test_a_system_that_says_nothing(system, monkeypatch):
    system.unlink()
    monkeypatch.delattr("os.sysconf")
    assert process.free_bytes() == process.UNKNOWN_BYTES

"""Threads spin only where nobody else wants the processor, and what the user has chosen stands."""

import os
import subprocess
import sys

import pytest

from kalmanclip.process import choose_waiting, sleep_while_waiting


@pytest.fixture
def environment(monkeypatch):
    found = {}
    monkeypatch.setattr("os.environ", found)
    return found


@pytest.mark.parametrize(
    ("load", "policy"),
    [
        ("0.20 0.18 0.12 1/80 11206", None),
        ("0.20 0.18 0.12 3/80 11206", "PASSIVE"),
        ("nonsense", "PASSIVE"),
        (None, "PASSIVE"),
    ],
)
def test_only_alone_do_threads_spin(environment, tmp_path, load, policy):
    place = tmp_path / "loadavg"
    if load is not None:
        place.write_text(load)
    choose_waiting(place)
    assert environment.get("OMP_WAIT_POLICY") == policy


@pytest.mark.parametrize("chosen", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}])
def test_the_users_choice_stands(environment, tmp_path, chosen):
    environment.update(chosen)
    choose_waiting(tmp_path / "absent")
    assert all(environment.get(name) == chosen.get(name) for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"))
    sleep_while_waiting()
    assert environment.get("OMP_WAIT_POLICY") == chosen.get("OMP_WAIT_POLICY", "PASSIVE")


FAULTS = """
import resource, sys
from kalmanclip.process import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit(77)
for _ in range(12):
    b"x" * (32 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    b"x" * (32 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_memory_comes_back_without_faults():
    """Five times 32 MiB: next to no page faults, where there were thousands."""
    faults = []
    for how in ("keep", "plain"):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
        done = subprocess.run(
            [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, env=environment, check=False
        )
        if done.returncode == 77:
            pytest.skip("this C library cannot keep freed memory")
        assert done.returncode == 0, done.stderr
        faults.append(int(done.stdout))
    assert faults[0] < 100 < 1000 < faults[1]

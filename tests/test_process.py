"""Threads spin only where nobody else wants the processor, and what the user has chosen stands."""

import os
import subprocess
import sys

import pytest

from kalmanclip.process import choose_waiting, idle_processors, shares_processors, sleep_while_waiting


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


@pytest.mark.parametrize(
    ("load", "idle"),
    [("0 0 0 1/80 9", 4), ("0 0 0 2/80 9", 3), ("0 0 0 5/80 9", 1), ("0 0 0 90/99 9", 1), ("nonsense", 4)],
)
def test_a_processor_that_somebody_else_wants_is_not_idle(monkeypatch, tmp_path, load, idle):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    (tmp_path / "loadavg").write_text(load)
    assert idle_processors(tmp_path / "loadavg") == idle


@pytest.mark.parametrize(("chosen", "idle", "during"), [({}, 1, 1), ({}, 8, 3), ({"OMP_WAIT_POLICY": "PASSIVE"}, 1, 3)])
def test_threads_that_spin_leave_processors_to_others(environment, monkeypatch, chosen, idle, during):
    """For the time of a call, whatever becomes of it; threads that sleep disturb nobody."""
    import torch

    environment.update(chosen)
    monkeypatch.setattr("kalmanclip.process.idle_processors", lambda: idle)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert shares_processors(torch.get_num_threads)() == during
        with pytest.raises(ZeroDivisionError):
            shares_processors(lambda: 1 / 0)()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_python_chooses_before_torch_is_imported():
    code = "import kalmanclip.process as p; p._running = lambda _: 9; {}; p.before_torch(); import os; "
    code += "print(os.environ.get('OMP_WAIT_POLICY'))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP", "GOMP"))}
    for first, said in (
        ("os = p.os; os.environ.pop('OMP_WAIT_POLICY', 0)", "PASSIVE"),
        ("import torch; p.os.environ.pop('OMP_WAIT_POLICY', 0)", "None"),
    ):
        command = [sys.executable, "-c", code.format(first)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        assert done.stdout.strip() == said

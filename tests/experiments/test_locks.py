"""A run is done by one living process; what a dead one had locked is free again."""

import subprocess
import sys

import pytest

from kalmanclip.errors import DataError
from kalmanclip.experiments.store import Locks

A, B = "a" * 64, "b" * 64


@pytest.fixture
def locks(tmp_path):
    with Locks(tmp_path) as made:
        yield made


def test_only_one_gets_a_run_until_it_is_released(locks, tmp_path):
    with Locks(tmp_path) as other:
        assert locks.acquire(A)
        assert not other.acquire(A)
        locks.release(A)
        assert other.acquire(A)
        assert not locks.acquire(A)
    assert locks.acquire(A)  # what the other had is released at its end


def test_nothing_is_left(tmp_path):
    with Locks(tmp_path) as locks:
        locks.acquire(A)
    assert list(tmp_path.iterdir()) == []


LOCK_TWO = """
import sys
from kalmanclip.experiments.store import Locks
locks = Locks(sys.argv[1])
print(locks.acquire("a" * 64), locks.acquire("b" * 64), flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_had_locked_is_free_at_once(locks, tmp_path):
    command = [sys.executable, "-c", LOCK_TWO, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "True True\n"
        assert not locks.acquire(A)
        with Locks(tmp_path):
            assert len(list(tmp_path.iterdir())) == 2  # nobody removes what is locked
        other.kill()
        other.wait()
        assert locks.acquire(A)
        with Locks(tmp_path) as third:  # removes what the killed process left, and nothing else
            assert [path.name for path in tmp_path.iterdir()] == [f".{A}.lock"]
            assert not third.acquire(A)
            assert third.acquire(B)


def test_a_folder_that_is_gone_is_named(tmp_path):
    with pytest.raises(DataError, match="Cannot write to"):
        Locks(tmp_path / "gone").acquire(A)

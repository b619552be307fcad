"""Runs on a real Ray cluster: several nodes' worth of workers on this computer, which die meanwhile."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.processes import PATIENCE

from kalmanclip.cli.runs import RunOptions
from kalmanclip.errors import ConfigError
from kalmanclip.experiments import Store, run_all
from kalmanclip.experiments.ray_workers import RayPool, require_ray, workers_on
from kalmanclip.experiments.workers import WorkerDied

# found, not imported: `require_ray` makes it quiet first
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="the extra [ray] is not installed")


@pytest.fixture(scope="module")
def cluster():
    """Three nodes with four workers' worth of processors, and a GPU that is not really there."""
    require_ray()
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 100_000_000}
    made = Cluster(True, head_node_args={"num_cpus": 2, "num_gpus": 1, "include_dashboard": False, **memory})
    try:
        made.add_node(num_cpus=1, **memory)
        made.to_lose = made.add_node(num_cpus=1, **memory)
        made.wait_for_nodes()
        yield made
    finally:
        made.shutdown()


def workers_here():
    """The processes of actors that belong to this test's nodes."""
    parents, names = {}, {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            names[int(place.name)] = (place / "cmdline").read_text()
        except OSError:
            continue

    def is_ours(process):
        while process in parents:
            if process == os.getpid():
                return True
            process = parents[process]
        return False

    return [process for process, name in names.items() if name.startswith("ray::_Actor") and is_ours(process)]


@needs_ray
@pytest.mark.slow
def test_workers_and_nodes_may_die_at_any_moment(cluster, small_plan, undisturbed, comparable, tmp_path, capfd):
    sources, runs = small_plan
    chance, died = random.Random(), []

    def disturb(done, total):
        if done >= 1 and not died:
            time.sleep(chance.uniform(0, 0.2))
            died.append(chance.choice(workers_here()))
            os.kill(died[0], signal.SIGKILL)
        elif done >= 2 and len(died) == 1:
            died.append(cluster.to_lose)
            cluster.remove_node(cluster.to_lose, allow_graceful=False)

    store = Store(tmp_path)
    records = run_all(runs, sources, store, ray=cluster.address, progress=disturb)
    assert len(died) == 2
    assert capfd.readouterr().out == ""  # where results go
    assert comparable(records) == undisturbed
    assert comparable(map(store.record, runs)) == comparable(records)
    assert len(list(tmp_path.iterdir())) == len(runs)  # no lock is left


@needs_ray
@pytest.mark.slow
def test_a_killed_driver_loses_nothing_but_what_was_in_flight(cluster, small_plan, undisturbed, comparable, tmp_path):
    (source,), runs = small_plan
    words = ["compare", "--data", source.spelling, "--methods", "zero_shot,gda", "--shots", "1", "--seeds", "1,2,3"]
    words += ["--ray", cluster.address, "-o", str(tmp_path), "--cache", "off"]
    command = [sys.executable, "-m", "kalmanclip", *words]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while driver.poll() is None and not list(tmp_path.glob("[0-9a-f]*.json")):
            time.sleep(0.05)
    finally:
        driver.kill()
        driver.wait()
    kept = {path: path.read_bytes() for path in tmp_path.glob("[0-9a-f]*.json")}
    assert kept
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert {path: path.read_bytes() for path in kept} == kept
    assert comparable(map(Store(tmp_path).record, runs)) == undisturbed


@needs_ray
@pytest.mark.slow
def test_shares_of_gpus_decide_how_many_work_at_once(cluster, small_plan):
    (source,), runs = small_plan
    with RayPool(cluster.address, 1, 0.5) as pool:
        assert pool.size() == 2
        starting, ready = [pool.start() for _ in range(3)], []
        while len(ready) < 2:
            for worker in pool.wait(starting, 1.0):
                assert worker.result() is None
                starting.remove(worker)
                ready.append(worker)
        assert pool.wait(starting, 2.0) == []  # the GPU is taken
        ready[0].submit((runs[0], source, "cuda", None, None))
        assert pool.wait(ready[:1], PATIENCE) == ready[:1]
        assert "cuda" in ready[0].result()["reason"]  # since it is not really there
        for process in workers_here():
            os.kill(process, signal.SIGKILL)
        ready[0].submit((runs[0], source, "cpu", None, None))
        pool.wait(ready[:1], PATIENCE)
        with pytest.raises(WorkerDied) as death:
            ready[0].result()
        assert str(death.value) == "The actor is dead because its worker process has died"
        while not pool.wait(starting, 1.0):
            pass
        for worker in (*starting, *ready):
            worker.kill()


@needs_ray
def test_a_cluster_without_room_is_an_error(cluster, small_plan, tmp_path):
    sources, runs = small_plan
    with pytest.raises(ConfigError, match=r"No node of the Ray cluster .* has the 64 CPUs and 1 GPUs"):
        run_all(runs, sources, Store(tmp_path), ray=cluster.address, cpus_per_run=64, gpus_per_run=1)
    assert list(tmp_path.iterdir()) == []


@needs_ray
def test_a_cluster_that_is_not_there_is_an_error(small_plan, tmp_path):
    sources, runs = small_plan
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # but nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"{address} cannot be reached: .*ray start --head"):
            run_all(runs, sources, Store(tmp_path), ray=address)
    for wrong in ("somewhere", "ray://somewhere:10001"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            run_all(runs, sources, Store(tmp_path), ray=wrong)


def test_ray_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'kalmanclip\[ray\]'"):
        RunOptions(ray="auto").check()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (RunOptions(gpus_per_run=0.5), "is for --ray"),
        (RunOptions(ray="auto", device="cuda"), "instead of --device give --gpus-per-run"),
        (RunOptions(ray="auto", gpus_per_run=1.5), "a share of one GPU, such as 0.5, or whole ones, not 1.5"),
        (RunOptions(ray="auto", gpus_per_run=-1), "not -1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        options.check()


@pytest.mark.parametrize(
    ("resources", "cpus", "gpus", "fits"),
    [
        ({"CPU": 8.0}, 1, 0.0, 8),
        ({"CPU": 8.0}, 3, 0.0, 2),
        ({"CPU": 8.0}, 1, 0.5, 0),
        ({"GPU": 2.0}, 1, 0.5, 0),
        ({"CPU": 8.0, "GPU": 2.0}, 1, 0.5, 4),
        ({"CPU": 8.0, "GPU": 2.0}, 4, 0.5, 2),
        ({"CPU": 8.0, "GPU": 2.0}, 1, 0.6, 2),  # what is left of two GPUs is not one
        ({"CPU": 80.0, "GPU": 1.0}, 1, 0.1, 10),
        ({"CPU": 8.0, "GPU": 5.0}, 1, 2.0, 2),
    ],
)
def test_how_many_workers_fit_onto_a_node(resources, cpus, gpus, fits):
    assert workers_on(resources, cpus, gpus) == fits

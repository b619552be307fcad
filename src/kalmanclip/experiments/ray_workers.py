"""Workers on a Ray cluster. Results come back to the driver: the nodes write none."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kalmanclip.errors import ConfigError
from kalmanclip.experiments.run_one import run_one
from kalmanclip.experiments.workers import Arguments, WorkerDied, prepare_worker

CONNECT_TIMEOUT = 20.0
"""Seconds after which a cluster that does not answer is given up."""


def require_ray() -> Any:
    """Import the package and return it, or say how to install it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when a cluster is started
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")  # or pages about dead workers go to stdout, among results
    try:
        import ray
    except ImportError as error:
        raise ConfigError("Ray is not installed. Install it with: pip install 'kalmanclip[ray]'") from error
    return ray


def check_share(gpus: float) -> None:
    """Refuse numbers of GPUs that Ray cannot give to a run."""
    if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
        raise ConfigError(
            f"A run can have a share of one GPU, such as 0.5, or whole ones, not {gpus:g}. Change --gpus-per-run."
        )


class RayPool:
    """Workers on a cluster: actors, each with its share of a node, for as long as there is something to do.

    A connection to a cluster that this process has already is used, and left open.

    Args:
        address: ``auto`` (the cluster that this computer belongs to, or ``$RAY_ADDRESS``), ``local`` (one that is
            started here and ends with the pool), or ``host:port``; this computer must belong to the cluster.
        cpus: of a worker; also its number of threads.
        gpus: of a worker: whole ones, or a share of one.
    """

    advice = "perhaps for lack of memory: try more --cpus-per-run or --gpus-per-run, so that a node does fewer at once"

    def __init__(self, address: str, cpus: int, gpus: float = 0.0) -> None:
        check_share(gpus)
        self.ray = require_ray()
        self.address, self.cpus, self.gpus = address, cpus, gpus
        self._ours = False

    def __enter__(self) -> RayPool:
        if not self.ray.is_initialized():
            _connect(self.ray, self.address)
            self._ours = True
        if not self.size():
            self.__exit__()
            needs = f"{self.cpus} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
            raise ConfigError(
                f"No node of the Ray cluster {self.address} has the {needs} that a run is to have. Start such nodes "
                "first, or change --cpus-per-run or --gpus-per-run."
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self._ours:
            self.ray.shutdown()

    def size(self) -> int:
        """Return how many workers fit onto the nodes that are alive."""
        alive = (node for node in self.ray.nodes() if node["Alive"])
        return sum(workers_on(node["Resources"], self.cpus, self.gpus) for node in alive)

    def start(self) -> RayWorker:
        """Start a worker, on whichever node it fits."""
        actors = self.ray.remote(_Actor).options(num_cpus=self.cpus, num_gpus=self.gpus)
        settings = {name: value for name, value in os.environ.items() if name.startswith("KALMANCLIP_")}
        return RayWorker(self.ray, actors.remote(self.cpus, str(Path.cwd()), settings))

    def wait(self, workers: Sequence[RayWorker], seconds: float) -> list[RayWorker]:
        """Return the workers that have a result or died."""
        by_result = {worker.pending: worker for worker in workers}
        ready, _ = self.ray.wait(list(by_result), num_returns=1, timeout=seconds)
        return [by_result[result] for result in ready]


class RayWorker:
    """An actor. Ray itself restarts nothing: `runner` counts attempts, here as on one computer."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self.pending = actor.ready.remote()

    def submit(self, arguments: Arguments) -> None:
        """Start a run."""
        self.pending = self._actor.run_one.remote(arguments)

    def result(self) -> dict[str, Any] | None:
        """Return the result."""
        try:
            result: dict[str, Any] | None = self._ray.get(self.pending)
            return result
        except self._ray.exceptions.RayError as error:
            raise WorkerDied(cause(error)) from error

    def kill(self) -> None:
        """End it at once."""
        with suppress(Exception):  # the cluster may be gone, too
            self._ray.kill(self._actor)


class _Actor:
    """A worker as it runs on a node, with the folder and the settings of the driver."""

    def __init__(self, threads: int, folder: str, settings: dict[str, str]) -> None:
        prepare_worker(threads)
        os.environ.update(settings)
        with suppress(OSError):  # it matters to relative paths only, and then the run says what is missing
            os.chdir(folder)

    def ready(self) -> None:
        """Return when the actor is there."""

    def run_one(self, arguments: Arguments) -> dict[str, Any]:
        """Do a run."""
        return run_one(*arguments)


def workers_on(resources: dict[str, float], cpus: int, gpus: float) -> int:
    """Return how many workers fit onto a node: a share of a GPU is a share of one GPU, never of two."""
    fits = int(resources.get("CPU", 0) // cpus)
    if not gpus:
        return fits
    whole = resources.get("GPU", 0)
    # the tiny surplus: 1 / 0.1 // 1 should be ten
    return min(fits, int(whole) * int(1 / gpus + 1e-6) if gpus <= 1 else int(whole // gpus))


def _connect(ray: Any, address: str) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    quiet |= {"include_dashboard": False} if address == "local" else {}
    host, _, port = address.rpartition(":")
    named = address not in ("auto", "local")
    # ray:// is for computers outside a cluster; their jobs end with the connection, so a driver inside is safer
    if named and (address.startswith("ray://") or not host or not port.isdigit()):
        raise ConfigError(
            f"The address of a Ray cluster is auto, local or HOST:PORT, not {address!r}. Give the command on a "
            "computer that belongs to the cluster."
        )
    try:
        if named:  # try the port, since Ray itself waits for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
        ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        lines = [line.strip() for line in str(getattr(error, "strerror", None) or error).splitlines() if line.strip()]
        why = lines[0].rstrip(".") if lines else "no reason given"
        raise ConfigError(
            f"The Ray cluster {address} cannot be reached: {why}. Start one with: ray start --head, or give --ray "
            "local."
        ) from error


def cause(error: Exception) -> str:
    """Return in one line why Ray says that a worker died: the first sentence of the last line that gives a reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    telling = [line for line in lines if "because" in line or "died" in line or "Error" in line]
    return (telling or lines)[-1].split(". ")[0].rstrip(".")

"""Predictions for very many pictures: a list of work, parts of results, and workers on a Ray cluster.

A folder holds ``images.jsonl``, one path per line, ``manifest.json`` (what is predicted, and with what), and one
``part-<number>.jsonl`` for so many lines of the list. Parts are written whole or not at all, by the driver alone: what
is there is done, and a job that is started again, after whatever ended it, does the rest. Ray Data streams the parts
through actors that hold the model: no more are under way than the actors, and what waits for the driver, can hold.

A part whose worker dies is tried again, and after `ATTEMPTS` of them picture by picture: one that ends its worker each
time, say by a fault in a decoder, becomes a row with an error.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from kalmanclip.errors import ConfigError, DataError, ImageError
from kalmanclip.files import atomic_path, lock_folder, read_json, sha256_of, write_atomic, write_json_atomic

MANIFEST, LISTING = "manifest.json", "images.jsonl"
FORMAT = "kalmanclip-predictions"

ATTEMPTS = 3
"""Workers that may die of one part, and then of one picture."""

WAITING = 1
"""Parts that wait in each worker while it does another: without any, Ray Data lets the workers work in turn."""

MOST_DEADLY = 20
"""Parts, or pictures of these, that may end all these workers; with more it is not the pictures, and the job ends.
A part that waits behind such a one counts, too."""


@dataclass(frozen=True)
class Task:
    """What is predicted, the same for all parts.

    Attributes:
        adapter: the folder; the nodes read it, and the pictures, by the paths that the driver has.
        precision: of the frozen towers; None: float32.
        top: how many classes to name.
        options: of `kalmanclip.KalmanCLIP.predict_full`.
    """

    adapter: str
    precision: str | None = None
    top: int = 2
    options: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """Return all that the predictions follow from, besides the pictures."""
        fingerprint = sha256_of(Path(self.adapter) / "adapter.json", DataError)  # which names its tensors by their hash
        return {"adapter": fingerprint, "precision": self.precision, "top": self.top, "options": self.options}


class Parts:
    """The folder of a job.

    Args:
        folder: made if need be; that of the same job, not finished, is gone on with.
        images: returns those of the job; not called where the folder has a list already.
        description: see `Task.describe`.
        size: pictures of a part.
    """

    def __init__(
        self, folder: Path, images: Callable[[], Iterable[Path]], description: dict[str, Any], size: int
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        wanted = {"format": FORMAT, "version": 1, "size": size, **description}
        with lock_folder(folder, DataError):
            if (folder / MANIFEST).exists():
                found = read_json(folder / MANIFEST, DataError)
                if other := [name for name in wanted if found.get(name) != wanted[name]]:
                    raise ConfigError(
                        f"{folder} holds predictions of another job: {', '.join(other)} differ. Choose another folder."
                    )
                self.count = int(found["images"])
            else:
                self.count = _write_listing(folder / LISTING, images())
                write_json_atomic(folder / MANIFEST, wanted | {"images": self.count}, DataError)  # last: all is there
        self.size = size

    def __len__(self) -> int:
        return -(-self.count // self.size)

    def path(self, number: int) -> Path:
        """Return where a part's predictions are, or will be."""
        return self.folder / f"part-{number:06d}.jsonl"

    def missing(self) -> list[int]:
        """Return the numbers of the parts that are not done."""
        done = {entry.name for entry in os.scandir(self.folder)}
        return [number for number in range(len(self)) if self.path(number).name not in done]

    def images_of(self, number: int) -> int:
        """Return how many pictures a part has."""
        return min(self.size, self.count - number * self.size)

    def images(self, numbers: Sequence[int]) -> Iterable[list[str]]:
        """Yield the pictures of parts, whose numbers ascend, from one pass over the list."""
        wanted = set(numbers)
        with (self.folder / LISTING).open() as lines:
            for number in range(len(self)):
                own = list(islice(lines, self.size))
                if number in wanted:
                    yield [json.loads(line) for line in own]

    def write(self, number: int, rows: str) -> None:
        """Write a part, whole or not at all."""
        write_atomic(self.path(number), rows, DataError)


def _write_listing(path: Path, images: Iterable[Path]) -> int:
    count = 0
    with atomic_path(path, DataError) as draft, draft.open("w") as file:
        for count, image in enumerate(images, start=1):  # noqa: B007  the number of the last is how many there are
            file.write(json.dumps(str(image.absolute())) + "\n")
    return count


def predict_rows(classifier: Any, images: Sequence[str], task: Task) -> list[dict[str, Any]]:
    """Return a row for each picture; that of a picture that cannot be read says why, as ``error``."""
    from kalmanclip.data import load_image
    from kalmanclip.encoders.features import silent
    from kalmanclip.prediction import records

    def predicted(images: Sequence[str]) -> list[dict[str, Any]]:
        if not images:
            return []
        prediction = classifier.predict_full(list(images), progress=silent, **task.options)
        return records(images, prediction, task.top, task.options.get("how") == "linearised")

    try:
        return predicted(images)
    except ImageError:
        errors = {}
        for image in images:
            try:
                load_image(image)
            except ImageError as error:
                errors[image] = str(error)
        if not errors:
            raise
    rows = {row["image"]: row for row in predicted([image for image in images if image not in errors])}
    return [rows[image] if image in rows else {"image": image, "error": errors[image]} for image in images]


class Predictor:
    """An actor: holds the model, and turns the pictures of a part into its text.

    Args:
        task: what to do.
        threads: of the processor.
        gpus: of the actor; 0: none.
    """

    def __init__(self, task: Task, threads: int, gpus: float) -> None:
        from kalmanclip.estimator import KalmanCLIP
        from kalmanclip.experiments.workers import prepare_worker

        prepare_worker(threads)
        self.task = task
        self.classifier = KalmanCLIP.load(task.adapter, device="cuda" if gpus else "cpu", precision=task.precision)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Map a part's number and pictures to its number and the lines of its file."""
        try:
            rows = predict_rows(self.classifier, json.loads(row["images"]), self.task)
        except Exception as error:  # Ray would take it for a dead worker, and go on
            return {"part": row["part"], "rows": "", "failure": f"{type(error).__name__}: {error}"}
        return {"part": row["part"], "rows": _lines(rows), "failure": ""}


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    """Return rows as the text of a part."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def predict_on_ray(
    parts: Parts,
    task: Task,
    address: str,
    cpus: int = 1,
    gpus: float = 0.0,
    workers: int | None = None,
    progress: Any = None,
) -> int:
    """Predict all parts that are missing; return how many pictures could not be read in these.

    Args:
        parts: the folder of the job.
        task: what to do.
        address: see `kalmanclip.experiments.ray_workers.RayPool`.
        cpus: of a worker; also its number of threads.
        gpus: of a worker: whole ones, or a share of one.
        workers: at most so many; None: as many as the cluster has room for.
        progress: called as ``progress(stage, done, total)`` with pictures done.

    Raises:
        WorkerDied: so many parts end their workers that it cannot be the pictures.
        DataError: a part failed in another way.
    """
    from kalmanclip.experiments.ray_workers import RayPool

    missing = parts.missing()
    done, errors = parts.count - sum(map(parts.images_of, missing)), 0
    if not missing:
        return 0

    def write(number: int, rows: str) -> None:
        nonlocal done, errors
        parts.write(number, rows)
        done += parts.images_of(number)
        errors += sum("error" in json.loads(line) for line in rows.splitlines())
        if progress is not None:
            progress("predicting", done, parts.count)

    with RayPool(address, cpus, gpus) as pool:
        size = max(1, min(pool.size(), workers or parts.count))
        work = zip(missing, parts.images(missing), strict=True)
        for number, rows in _stream(work, task, min(size, len(missing)), cpus, gpus, WAITING):
            write(number, rows)
        if deadly := parts.missing():
            # the answers of these few parts are kept until all are there
            singles = [
                (number, image) for number, own in zip(deadly, parts.images(deadly), strict=True) for image in own
            ]
            alone = ((i, [image]) for i, (_, image) in enumerate(singles))
            answers = dict(_stream(alone, task, min(size, len(singles)), cpus, gpus))
            for number in deadly:
                own = [(i, image) for i, (part, image) in enumerate(singles) if part == number]
                write(number, "".join(answers.get(i) or _lines([_deadly(image)]) for i, image in own))
    return errors


def _deadly(image: str) -> dict[str, Any]:
    return {"image": image, "error": f"{image} ended {ATTEMPTS} workers, one after the other; they read nothing else."}


def _stream(
    work: Iterable[tuple[int, list[str]]], task: Task, workers: int, cpus: int, gpus: float, waiting: int = 0
) -> Iterator[tuple[int, str]]:
    """Yield the numbers and lines of numbered lists of pictures, as they come, but not of those that end workers.

    What waits in a worker that dies counts as tried, too. Where none wait it is known which list ended it.
    """
    try:
        import ray.data
    except ImportError as error:
        raise ConfigError("Ray Data is not installed. Install it with: pip install 'kalmanclip[ray]'") from error
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it shows a page for every worker that dies
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.execution_options.verbose_progress = False
    context.max_errored_blocks = MOST_DEADLY
    items = [{"part": number, "images": json.dumps(images)} for number, images in work]
    predictor: Any = Predictor  # a class, of which Ray makes an actor
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`ray_remote_args", DeprecationWarning)  # nothing else takes max_task_retries
        stream = ray.data.from_items(items, override_num_blocks=len(items)).map(
            predictor,
            fn_constructor_args=(task, cpus, gpus),
            compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1 + waiting),
            num_cpus=cpus,
            num_gpus=gpus or None,
            max_task_retries=ATTEMPTS - 1,
        )
    try:
        for row in stream.iter_rows():
            if row["failure"]:
                raise DataError(f"A worker failed: {row['failure']}. What is done stays; the same command goes on.")
            yield int(row["part"]), row["rows"]
    except ray.exceptions.RayError as error:
        from kalmanclip.experiments.ray_workers import cause
        from kalmanclip.experiments.workers import WorkerDied

        raise WorkerDied(
            f"Workers die again and again: {cause(error)}. What is done stays; the same command goes on. Try more "
            "--cpus-per-run or --gpus-per-run, if it is for lack of memory."
        ) from error

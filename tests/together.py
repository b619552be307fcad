"""Real processes that talk over gloo, for the tests of several ranks.

They are forked from a server that has imported torch once: importing it anew for each would cost seconds.
"""

import multiprocessing
import os
import time
from datetime import timedelta
from pathlib import Path

from tests.processes import PATIENCE

DEAD = "dead"
"""What a process that ended without a word is said to have answered."""


def together(place, size, function, *arguments, timeout=PATIENCE, patience=PATIENCE, connect=True):
    """Calls ``function(ranks, *arguments)`` in processes: what each returned, (name, text) of its error, or DEAD.

    Args:
        place: a folder of this call's own.
        size: how many.
        function: to be found by its name in a module; what it returns must be picklable.
        arguments: the same for all.
        timeout: of the exchanges, in seconds.
        patience: seconds after which a process that has not ended is killed, and the call fails.
        connect: else ``function(rank, *arguments)`` is called, and looks for the others itself.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kalmanclip.retrieval", "kalmanclip.estimator", "kalmanclip.cli"])
    store = str(Path(place) / f"store-{time.monotonic_ns()}") if connect else None
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    workers = [
        context.Process(target=_work, args=(pipes[rank][1], store, rank, size, timeout, function, arguments))
        for rank in range(size)
    ]
    for worker in workers:
        worker.start()
    for _, end in pipes:
        end.close()
    until = time.monotonic() + patience
    answers = []
    try:
        for begin, _ in pipes:
            try:
                assert begin.poll(max(0.0, until - time.monotonic())), "a rank neither answered nor died"
                answers.append(begin.recv())
            except EOFError:
                answers.append(DEAD)
    finally:
        for worker in workers:
            worker.join(max(1.0, until - time.monotonic()) if len(answers) == size else 0.1)
            if worker.is_alive():
                worker.kill()
    return answers


def _work(pipe, store, rank, size, timeout, function, arguments):
    os.environ["KALMANCLIP_CACHE"] = "off"
    import torch
    import torch.distributed as dist

    from kalmanclip.filtering import Ranks

    torch.set_num_threads(1)
    if store is not None:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
        )
    try:
        answer = function(rank if store is None else Ranks(), *arguments)
    except Exception as error:
        answer = type(error).__name__, str(error)
    pipe.send(answer)
    pipe.close()
    if store is not None:
        dist.destroy_process_group()

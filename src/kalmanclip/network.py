"""The network: whether the Hub of Hugging Face can be reached, asked once and quietly.

By themselves its packages ask six times for each of several files, with pauses, and tell about every time: a minute and
45 lines until somebody without a network learns that there is none.
"""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants

PATIENCE = 5.0
"""Seconds to wait for an answer. A connection that needs longer will not bring the weights of a model either."""


def reachable(address: str, patience: float = PATIENCE) -> bool:
    """Return whether anything answers at an address, be it with an error, through the proxy if there is one."""
    answered: list[bool] = []

    def ask() -> None:
        request = urllib.request.Request(address, method="HEAD")
        try:
            urllib.request.urlopen(request, timeout=patience).close()
        except urllib.error.HTTPError:  # an answer, too
            pass
        except (OSError, ValueError):
            return
        answered.append(True)

    # the search for the address behind a name has no time limit of its own: nobody waits for the thread to end
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience)
    return bool(answered)


@contextmanager
def hub_or_cache() -> Iterator[bool]:
    """Let packages that load from the Hub look into their cache alone, if it cannot be reached; yield whether it can.

    ``HF_HUB_OFFLINE`` has the same effect, and then nothing is asked.
    """
    before = constants.HF_HUB_OFFLINE
    online = not before and reachable(constants.ENDPOINT)
    constants.HF_HUB_OFFLINE = not online
    try:
        yield online
    finally:
        constants.HF_HUB_OFFLINE = before

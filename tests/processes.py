"""Processes that a test starts, watches and stops, on a machine that may be busy."""

import os
import signal

PATIENCE = 600.0
"""Seconds to wait for what should take few: only a process that hangs takes longer."""


def watched():
    """For ``preexec_fn``: lets the process be interrupted, and be slower than the test that watches it.

    What a shell starts in the background ignores Ctrl-C, and so do its children.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.nice(10)

"""Processes that a test starts and stops, on a machine that may be busy."""

import signal

PATIENCE = 600.0
"""Seconds to wait for what should take few: only a process that hangs takes longer."""


def interruptible():
    """For ``preexec_fn``: what a shell starts in the background ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

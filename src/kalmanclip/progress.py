"""Progress of what takes its time, for people who call the package from Python.

`automatic` is what the estimator reports to unless it is given something else. It shows a bar where a person is
watching, and nothing in scripts, tests and pipes.
"""

from __future__ import annotations

import os
import sys
import time

VARIABLE = "KALMANCLIP_PROGRESS"
"""Environment variable: 'off' silences `automatic`, 'on' makes it write wherever stderr goes."""

PATIENCE = 1.0
"""Seconds that a stage may take before it is shown."""

_WIDTH = 30
_INTERVAL = 0.1  # seconds between two drawings


def watched() -> bool:
    """Return whether somebody sees what is written to stderr: a terminal, or a notebook; of several ranks the first."""
    wanted = os.environ.get(VARIABLE, "").lower()
    if wanted in ("on", "off"):
        return wanted == "on"
    if os.environ.get("RANK", "0") != "0":
        return False
    shell = sys.modules.get("IPython")
    notebook = shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"
    return notebook or (sys.stderr is not None and sys.stderr.isatty())


class Bar:
    """A line on stderr that is written over, stage by stage. It leaves nothing behind that an error could break."""

    def __init__(self) -> None:
        self._stage = ""
        self._done = 0
        self._started = self._drawn = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` are done."""
        now = time.monotonic()
        if stage != self._stage or done < self._done:
            self._stage, self._started, self._drawn = stage, now, 0.0
        self._done = done
        last = done >= total
        visible = self._drawn > 0
        if now - self._started < PATIENCE or (visible and now - self._drawn < _INTERVAL and not last):
            return
        if (last and not visible) or not watched():
            return
        self._drawn = now
        filled = round(_WIDTH * done / max(total, 1))
        bar = "#" * filled + "." * (_WIDTH - filled)
        sys.stderr.write(f"\r{stage[:24]:24} [{bar}] {done}/{total}" + ("\n" if last else ""))
        sys.stderr.flush()


automatic = Bar()
"""The progress that is shown unless another one is given; `kalmanclip.methods.silent` shows none."""

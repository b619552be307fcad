"""Timings as ratios inside one run, and accuracies; one command each."""

import os

from kalmanclip.process import prepare_process

prepare_process()
# The profiler, which counts memory on the CPU, has nothing to say that belongs into a table; read when torch loads.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

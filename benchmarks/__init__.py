"""Timings as ratios inside one run, and accuracies; one command each."""

import os

# Threads that spin while they wait slow small products down a hundredfold on a busy machine; read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

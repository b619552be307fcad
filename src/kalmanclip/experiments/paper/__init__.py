"""The paper's tables and figures: what to run for each, what the paper printed, and ours beside it."""

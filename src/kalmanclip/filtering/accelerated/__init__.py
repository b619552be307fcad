"""Faster and distributed steps of a filter with a diagonal belief; `kalmanclip.filtering.kalman` is the reference.

- `fused_diagonal`: the step in two passes over the parameters.
- `triton_kernels`: these passes as GPU kernels.
- `cuda_graph`: a whole step as one launch.
- `distributed`: a belief sharded over several processes.
"""

"""``python -m kalmanclip`` is ``kalmanclip``; ``torchrun -m kalmanclip`` starts several of it that work together."""

from kalmanclip.cli import main

main()

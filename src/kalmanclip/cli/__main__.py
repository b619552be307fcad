"""``python -m kalmanclip.cli`` is ``kalmanclip``."""

from kalmanclip.cli import app

app(prog_name="kalmanclip")

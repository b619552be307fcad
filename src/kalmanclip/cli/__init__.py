"""The command line: one file per command, over the same estimator that Python users have.

Everything heavy (torch, open_clip, matplotlib) is imported inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

import kalmanclip
from kalmanclip.cli import (
    check,
    compare,
    data,
    demo,
    evaluate,
    export,
    fit,
    fuse,
    info,
    page,
    paper,
    predict,
    results,
    retrieve,
    serve,
    sort,
    suggest,
    update,
)
from kalmanclip.cli.command import register, set_debug
from kalmanclip.cli.console import show_anything
from kalmanclip.cli.lean import own_process

app = typer.Typer(
    name="kalmanclip",
    help="Fine-tune CLIP from a handful of images per class with a Kalman filter.",
    epilog="[bold]First steps[/bold]\n\n"
    "  kalmanclip demo\n\n"
    "  kalmanclip fit photos/ -o pets.adapter\n\n"
    "  kalmanclip predict pets.adapter new.jpg\n\n"
    "Every command has its own examples: kalmanclip COMMAND --help",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # `register` turns errors into one line; --debug shows Python's own traceback
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kalmanclip {kalmanclip.__version__}")
        raise typer.Exit


@app.callback()
def _everywhere(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="KALMANCLIP_DEBUG", help="Show tracebacks, warnings and logs.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    show_anything()
    set_debug(debug)


register(app, demo.demo, demo.EXAMPLES)
register(app, check.check, check.EXAMPLES)
register(app, fit.fit, fit.EXAMPLES)
register(app, update.update, update.UPDATE)
register(app, update.calibrate, update.CALIBRATE)
register(app, predict.predict, predict.EXAMPLES)
register(app, sort.sort, sort.EXAMPLES)
register(app, suggest.suggest, suggest.EXAMPLES)
register(app, evaluate.evaluate, evaluate.EXAMPLES)
register(app, retrieve.retrieve, retrieve.EXAMPLES)
register(app, compare.compare, compare.EXAMPLES)
register(app, paper.paper, paper.EXAMPLES)
register(app, fuse.fuse, fuse.EXAMPLES)
register(app, page.app, page.EXAMPLES)
register(app, serve.serve, serve.EXAMPLES)
register(app, export.export, export.EXAMPLES)
register(app, info.info, info.EXAMPLES)
app.add_typer(data.app)
app.add_typer(results.app)


def main() -> None:
    """Run the console script ``kalmanclip``: the whole process is one command."""
    own_process()
    show_anything()
    app(prog_name="kalmanclip")

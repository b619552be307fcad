"""``kalmanclip sort``: a folder's pictures into class folders, as copies, links or a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kalmanclip.cli.arguments import Adapter, Device, Precision, check_share, load, unreadable
from kalmanclip.cli.console import bars, listing, note, say
from kalmanclip.errors import ConfigError, ImageError

if TYPE_CHECKING:
    from kalmanclip.prediction import Prediction
    from kalmanclip.sorting import Row

EXAMPLES = """
kalmanclip sort holiday/ pets.adapter -o sorted/
kalmanclip sort holiday/ pets.adapter -o sorted/ --how link --unsure 0.8
kalmanclip sort holiday/ pets.adapter -o sorted/ --dry-run
"""


class How(str, Enum):
    """What becomes of a picture."""

    copy = "copy"
    link = "link"
    csv = "csv"


def sort(
    photos: Annotated[Path, typer.Argument(metavar="PHOTOS", help="The folder with the pictures.", show_default=False)],
    adapter: Adapter,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder for the class folders.", show_default=False)
    ],
    how: Annotated[How, typer.Option(help="Copies, symbolic links, or nothing but the report, sorted.csv.")] = How.copy,
    unsure: Annotated[
        float,
        typer.Option(
            help="Pictures whose first choice is less probable than this go to the folder 'unsure'. 0: none does for "
            "that reason."
        ),
    ] = 0.5,
    false_alarms: Annotated[
        float,
        typer.Option(
            help="A picture that shows nothing known goes to 'unsure', too; so may this share of the others, by "
            "mistake. 0: none does for that reason."
        ),
    ] = 0.05,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing; show what would be done.")] = False,
    device: Device = None,
    precision: Precision = None,
) -> None:
    """Sort a folder's pictures into class folders and 'unsure'.

    The pictures stay where they are, and nothing in the output is replaced or removed: of equal names, the later gets a
    number. The report says where each picture went and how sure that is. The same command goes on where it was
    interrupted, and takes in pictures that have come since.
    """
    check_share("false-alarms", false_alarms or None)
    if not 0 <= unsure <= 1:
        raise ConfigError(f"--unsure is a probability, from 0 to 1; not {unsure:g}.")
    from kalmanclip.prediction import FALSE_ALARMS
    from kalmanclip.sorting import REPORT, UNSURE, pictures_to_sort, read_report, settings_of, sort_pictures

    settings, files = settings_of(adapter, unsure, false_alarms), pictures_to_sort(photos, output)
    before = read_report(output, settings)  # first: trouble with it is no reason to load a model
    clf = load(adapter, device, precision)
    if false_alarms and clf.ood_threshold(false_alarms) is None:
        note("No picture is called unknown: that takes 3 training images. Or fit again: the adapter may be an old one.")

    def passed(part: Sequence[Path]) -> Prediction:
        found = clf.predict_full(part, how="mean", false_alarms=false_alarms or FALSE_ALARMS)
        return found if false_alarms else replace(found, is_ood=None)

    def look(part: Sequence[Path]) -> tuple[Prediction | None, Mapping[int, str]]:
        try:
            return passed(part), {}
        except ImageError:
            problems = {i: str(error) for i, error in unreadable(part).items()}
            for problem in problems.values():
                note(f"Left out: {problem}")
            good = [file for i, file in enumerate(part) if i not in problems]
            return (passed(good) if good else None), problems

    with bars() as progress:
        rows = sort_pictures(
            files,
            output,
            look,
            clf.class_names_,
            how=how.value,
            unsure=unsure,
            settings=settings,
            dry_run=dry_run,
            progress=progress,
        )
    total = Counter(row.folder for row in rows if row.folder)
    new = Counter(row.folder for row in rows if row.folder and not _done(before.get(row.image), how))
    table = listing("folder", "pictures", "of them new", right=("pictures", "of them new"))
    for folder in sorted(total, key=lambda name: (name == UNSURE, name.casefold())):
        table.add_row(folder, str(total[folder]), str(new[folder]))
    say(table)
    if left_out := sum(not row.folder for row in rows):
        say(f"{left_out} cannot be read.")
    say("Nothing was written." if dry_run else f"Every picture's answer and place: {output / REPORT}")


def _done(row: Row | None, how: How) -> bool:
    """Tell whether an earlier run has done all that this one would."""
    return row is not None and row.folder != "" and (how is How.csv or row.place != "")

"""Records say what was used, not where it lay: they are copied to other computers, and shown to other people."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import kalmanclip
from kalmanclip.data import data_root
from kalmanclip.data.resolve import split_name
from kalmanclip.experiments.sources import Source

# At least two folders deep and not part of a URL or a relative path; what follows the last but one slash stays.
_PATH = re.compile(r"(?<![\w.:/\\~-])(?:[A-Za-z]:)?[/\\](?:[^/\\\s'\"<>|:,;()]+[/\\])+(?=[^/\\\s'\"<>|:,;()]+[/\\])")


def without_places(text: str, source: Source) -> str:
    """The text of an error without the folders that the data set, the package and the libraries lie in."""
    spellings = [source.spelling, *(shift.spelling for shift in source.shifts)]
    spelled = [place for spelling in spellings for place in _folders(spelling)]
    package = Path(kalmanclip.__file__).parents[1]
    roots = [Path(root) for root in (*spelled, source.root, data_root(), package, *sys.path, sys.prefix) if root]
    known = {form for root in roots for form in (root, Path.cwd() / root, root.resolve()) if form.is_absolute()}
    for folder in sorted((str(form) for form in known if len(form.parts) > 1), key=len, reverse=True):
        text = re.sub(re.escape(folder) + r"[/\\]?", "", text)
    return without_paths(text)


def without_paths(text: str) -> str:
    """The text with only the end of every long path in it."""
    return _PATH.sub("", text)


def _folders(spelling: str) -> list[str]:
    """The folders that a spelling names, be it one, or two with a colon between them."""
    _, place = split_name(spelling)
    parts = [place, *(piece for cut in re.finditer(":", place) for piece in (place[: cut.start()], place[cut.end() :]))]
    found = [Path(part).expanduser() for part in parts if part]
    return [str(path.parent if path.is_file() else path) for path in found if path.exists()]

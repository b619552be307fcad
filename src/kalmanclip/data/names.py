"""Class names: from folder names to words for a prompt, and when two spellings mean the same class."""

import difflib
import unicodedata
from collections.abc import Iterable, Sequence

from kalmanclip.errors import DataError

_SHOWN = 20  # names listed in a message before it says how many more there are


def class_name_from_folder(name: str) -> str:
    """Return the class name that a folder name stands for: "golden_retriever" -> "golden retriever".

    Underscores become spaces, runs of white space one space, the ends are stripped; the case is kept. Accents
    take their composed form, since some systems store "é" in file names as two characters.
    """
    return " ".join(unicodedata.normalize("NFC", name).replace("_", " ").split())


def name_key(name: str) -> str:
    """Return what is compared: names that differ only in case, underscores or spaces are the same class."""
    return class_name_from_folder(name).casefold()


def check_distinct(names: Iterable[str], what: str) -> None:
    """Raise `DataError` if a name is empty or two mean the same class; `what` says what the names are."""
    seen: dict[str, str] = {}
    for name in names:
        key = name_key(name)
        if not key:
            raise DataError(f"the {what} {name!r} gives an empty class name; rename it")
        if key in seen:
            raise DataError(
                f"the {what}s {seen[key]!r} and {name!r} give the same class name "
                f"{class_name_from_folder(name)!r}; rename one, or merge them"
            )
        seen[key] = name


class ClassIndex:
    """Finds the label of a name among known class names, whatever its case, underscores and spaces.

    Args:
        class_names: C known names, no two of them the same class.
    """

    def __init__(self, class_names: Sequence[str]) -> None:
        check_distinct(class_names, "class name")
        self._class_names = list(class_names)
        self._labels = {name_key(name): label for label, name in enumerate(class_names)}

    def label(self, name: str, what: str) -> int:
        """Return the label, in 0..C-1, of `name`; `what` says in the error message what the name is."""
        try:
            return self._labels[name_key(name)]
        except KeyError:
            raise DataError(
                f"the {what} {name!r} is none of the known classes.{self._suggestion(name)} "
                f"Known: {shown(self._class_names)}"
            ) from None

    def _suggestion(self, name: str) -> str:
        close = difflib.get_close_matches(name_key(name), self._labels, n=1)
        return f" Did you mean {self._class_names[self._labels[close[0]]]!r}?" if close else ""


def shown(names: Sequence[str]) -> str:
    """Return a list of names for a message, cut short if it is long."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name) for name in names[:_SHOWN]) + more

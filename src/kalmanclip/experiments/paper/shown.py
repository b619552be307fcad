"""How the numbers and remarks of a sheet are written, the same on the page, in text and in pictures."""

from __future__ import annotations

from kalmanclip.experiments.paper.sheet import Entry, Sheet

NONE = "–"
"""Where there is no number."""
VERDICTS = {"does not hold": "no", "holds in part": "part", "holds": "yes", "not known": "open"}
"""What a finding may begin with, followed by a colon, and the word for it in the page's style sheet."""


def number(value: float) -> str:
    """A number of ours, to one digit, with a real minus sign; never "−0.0"."""
    return f"{round(value, 1) + 0.0:.1f}".replace("-", "−")


def signed(value: float) -> str:
    """A difference: its sign is there even for people who see no colours; "±0.0" where none is left to one digit."""
    shown = number(value)
    return f"±{shown}" if float(shown.replace("−", "-")) == 0 else shown if shown[0] == "−" else f"+{shown}"


def printed(value: float | str | None) -> str:
    """The paper's number with its two digits, or its word; empty if it printed nothing."""
    return "" if value is None else value if isinstance(value, str) else f"{value:.2f}".replace("-", "−")


def mean_of(entry: Entry) -> str:
    """Our mean, "diverged" where all seeds did, or a dash."""
    if entry.mean is not None:
        return number(entry.mean)
    return "diverged" if entry.diverged else NONE


def remark(sheet: Sheet, entry: Entry) -> str:
    """What a number does not tell: that some seeds diverged, or that there are fewer of them than elsewhere."""
    if entry.mean is None:
        return ""
    most = max((other.seeds for other in sheet.entries.values()), default=0)
    said = [f"{entry.diverged} of {entry.seeds} diverged"] if entry.diverged else []
    said += [f"{entry.seeds} of {most} seeds"] if entry.seeds < most else []
    return ", ".join(said)


def reasons(sheet: Sheet) -> dict[str, list[str]]:
    """Why numbers are missing: every reason once, with the rows or columns that it is the reason for."""
    found: dict[str, list[str]] = {}
    for name, reason in sheet.missing.items():
        found.setdefault(reason, []).append(name)
    for _, entry in sorted(sheet.entries.items()):
        if entry.missing:
            found.setdefault(entry.missing, [])
    return found


def verdict(finding: str) -> tuple[str, str, str]:
    """A finding such as "Does not hold: ..." as (word of `VERDICTS`, its verdict, the rest); ("", "", all) if none."""
    head, colon, rest = finding.partition(":")
    word = VERDICTS.get(head.strip().lower(), "") if colon else ""
    return (word, head.strip(), rest.strip()) if word else ("", "", finding)


def duration(seconds: float) -> str:
    """Seconds for people: "8 s", "3 min 20 s", "5 h 12 min"."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    minutes = round(total / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def progress(sheet: Sheet) -> str:
    """How many runs are behind a sheet, and how long they took."""
    failed = f", {sheet.failed} failed" if sheet.failed else ""
    return f"{sheet.done} of {sheet.runs} runs done{failed}; fitting and predicting took {duration(sheet.seconds)}"

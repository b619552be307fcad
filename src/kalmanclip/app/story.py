"""What the demo found as one HTML file that needs nothing else: pictures, styles and all."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources

from kalmanclip.app.images import Upload
from kalmanclip.app.render import answer_html
from kalmanclip.app.service import Answer
from kalmanclip.plots import plot_confusion
from kalmanclip.prediction import Prediction

_STYLE = """
body { margin: 0 auto; max-width: 64rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif;
  color: var(--kc-ink); background: var(--kc-card); }
.kc-answer { border: 1px solid var(--kc-line); border-radius: .7rem; padding: 1rem; }
.kc-grid { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); }
.kc-diagram { max-width: 40rem; background: #fff; }
pre { overflow-x: auto; border: 1px solid var(--kc-line); border-radius: .6rem; padding: .8rem; }
"""


@dataclass(frozen=True)
class Shown:
    """A picture, what is said about it, and above which words."""

    title: str
    picture: Upload
    answer: Answer


@dataclass(frozen=True)
class Story:
    """What the demo tells.

    Attributes:
        facts: pairs of a name and a value, the most important first.
        shown: pictures with answers.
        prediction: of the test pictures.
        labels: of them, as class numbers.
        commands: what to try next, as one text.
    """

    facts: Sequence[tuple[str, str]]
    shown: Sequence[Shown]
    prediction: Prediction
    labels: Sequence[int]
    commands: str


def story_html(title: str, story: Story) -> str:
    """Return the page; whatever was named by somebody is escaped."""
    css = (resources.files("kalmanclip.app") / "page.css").read_text(encoding="utf-8")
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in story.facts)
    shown = "".join(
        f"<div><h2>{escape(one.title)}</h2>{answer_html(one.answer, one.picture)}</div>" for one in story.shown
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{css}{_STYLE}</style></head>
<body id="kc-said"><h1 class="kc-title">{escape(title)}</h1>
<dl class="kc-facts">{facts}</dl>
<div class="kc-grid">{shown}</div>
<h2>Which are taken for which</h2>
<img class="kc-diagram" src="{_confusion(story)}" alt="Confusion matrix of the test pictures">
<h2>Go on</h2>
<pre>{escape(story.commands)}</pre>
</body></html>
"""


def _confusion(story: Story) -> str:
    stream = io.BytesIO()
    plot_confusion(story.prediction, story.labels).savefig(stream, format="svg")
    return "data:image/svg+xml;base64," + base64.b64encode(stream.getvalue()).decode()

"""Answers, updates and adapters as pieces of HTML. Whatever was typed or named by somebody is escaped."""

from __future__ import annotations

import base64
import json
import re
import tempfile
from collections.abc import Iterable
from functools import lru_cache
from html import escape
from pathlib import Path

from kalmanclip.app.images import MAX_BYTES, MAX_PIXELS, Upload, preview
from kalmanclip.app.service import (
    COVERAGE,
    RANGE,
    SIDE,
    About,
    Answer,
    Choice,
    Labelling,
    Measured,
    Neighbour,
    Update,
)
from kalmanclip.prediction import FALSE_ALARMS, NONE_OF_THESE

_MANY = 60  # classes listed at once; the others unfold

NOTHING_YET = '<p class="kc-hint">Choose a picture, and what it shows will be said here.</p>'

LIMITS = f"JPEG, PNG, WebP, GIF, TIFF, BMP or AVIF, up to {MAX_BYTES >> 20} MB and {MAX_PIXELS // 10**6} megapixels"


def title(folder: str) -> str:
    """Return the head of the page."""
    return f'<h1 class="kc-title">{_text(folder)} <small>What is in a picture, and how sure is that?</small></h1>'


def problem(message: str) -> str:
    """Return a banner about something that went wrong."""
    return f'<div class="kc-banner kc-bad" role="alert"><strong>That did not work.</strong> {_text(message)}</div>'


def answer_html(answer: Answer, image: Upload) -> str:
    """Return the answer about a picture, with the picture."""
    best = answer.choices[0]
    shown = f'<img class="kc-shown" src="{preview(image.image, SIDE)}" alt="Your picture: {_text(image.name)}">'
    name, share = (NONE_OF_THESE, "") if answer.unknown else (best.name, _percent(best.probability))
    verdict = f'<p class="kc-verdict"><strong>{_text(name)}</strong> <span>{share}</span></p>'
    return f"""<section class="kc-answer" aria-label="Answer">
{_unknown(answer)}
<div class="kc-top">{shown}<div>{verdict}{_among(answer)}{_left_open(answer)}</div></div>
<h3>First choices</h3>
<ol class="kc-choices">{"".join(map(_choice, answer.choices))}</ol>
<p class="kc-note">A bar is the probability. The line over it is its uncertainty: {RANGE * 100:.0f} % of the
classifiers that the training pictures leave possible have it there. A long line: a few more training pictures would
help.</p>
{_neighbours(answer.neighbours)}
</section>"""


def _unknown(answer: Answer) -> str:
    if not answer.unknown:
        return ""
    return f"""<div class="kc-banner kc-warn" role="alert"><strong>This looks like nothing I know.</strong>
The classes below are the least bad guesses. (Said by mistake of about {FALSE_ALARMS * 100:.0f} in 100 pictures that
do show one of the classes.)</div>"""


def _among(answer: Answer) -> str:
    if answer.among is None or answer.unknown:  # the promise is about pictures of the classes
        return ""
    names = ", ".join(f"<strong>{_text(name)}</strong>" for name in answer.among)
    return f"""<p>Candidates: {names}. <span class="kc-soft">Such a list holds the right class for
{COVERAGE * 100:.0f} % of pictures like those it was calibrated on.</span></p>"""


def _left_open(answer: Answer) -> str:
    return f"""<p class="kc-soft">Undecided: <strong>{_percent(answer.picture + answer.training)}</strong>, where 100 %
is a pure guess. The picture itself leaves {_percent(answer.picture)} open; more training pictures could settle
{_percent(answer.training)}.</p>"""


def _choice(choice: Choice) -> str:
    p, low, high = (100 * share for share in (choice.probability, choice.low, choice.high))
    said = f"{_percent(choice.probability)}, uncertain between {_percent(choice.low)} and {_percent(choice.high)}"
    return f"""<li><span class="kc-name">{_text(choice.name)}</span><span class="kc-number" aria-hidden="true">
{_percent(choice.probability)}</span><span class="kc-bar" role="img" aria-label="{said}" title="{said}">
<i class="kc-fill" style="width:{p:.2f}%"></i>
<i class="kc-range" style="left:{low:.2f}%;width:{high - low:.2f}%"></i></span></li>"""


def _neighbours(neighbours: Iterable[Neighbour]) -> str:
    tiles = "".join(map(_neighbour, neighbours))
    return f'<h3>Most similar training pictures</h3><ul class="kc-near">{tiles}</ul>' if tiles else ""


def _neighbour(neighbour: Neighbour) -> str:
    file = neighbour.name.rpartition("/")[2]
    file = "" if re.fullmatch("[0-9a-f]{16,}", file) else file  # pictures that were never files have a hash for a name
    text = f"""<strong>{_text(neighbour.class_name)}</strong><span class="kc-soft">{_text(file)}</span>
<span class="kc-soft" title="cosine similarity">{neighbour.similarity:.3f}</span>"""
    if neighbour.preview is None:
        return f"<li><div>{text}</div></li>"
    alt = f"training picture of {neighbour.class_name}"
    return f'<li><img src="{neighbour.preview}" alt="{_text(alt)}"><div>{text}</div></li>'


def update_html(update: Update) -> str:
    """Return what learning has changed."""
    n = update.pictures
    parts = [f"<strong>Learned {_pictures(n)} of {_text(update.class_name)}.</strong>"]
    if update.new:
        parts.append("The class is new, and can be recognised from now on.")
    else:
        parts.append(f"Recognised before: {update.before} of {n}; now: {update.after} of {n}.")
    if update.measured:
        before, after = update.measured
        parts.append(f"On the test pictures: {_percent(before.accuracy)} right before, {_percent(after.accuracy)} now.")
    parts.append("Nothing is on disk until you save.")
    return f'<div class="kc-banner kc-good" role="status">{" ".join(parts)}</div>'


def done(message: str) -> str:
    """Return a banner about something that went well."""
    return f'<div class="kc-banner kc-good" role="status">{_text(message)}</div>'


def labelling_html(labelling: Labelling) -> str:
    """Return the picture whose label is asked for, those that come next, and what accuracy is to be expected."""
    expected = f"""<p class="kc-soft" id="kc-expected">Of {_pictures(labelling.unlabelled)} without a label it expects
to tell <strong>{_percent(labelling.expected)}</strong> right.</p>"""
    question = labelling.question
    if question is None:
        return f'<p class="kc-hint">There is nothing left to ask about.</p>{expected}'
    guess, p = question.classes[0]
    shown = f'<img class="kc-shown" src="{question.picture}" alt="Picture to label: {_text(question.name)}">'
    coming = "".join(f'<li><img src="{picture}" alt=""></li>' for picture in labelling.coming)
    rest = f'<h3>Next</h3><ul class="kc-near">{coming}</ul>' if coming else ""
    return f"""<section class="kc-answer" aria-label="Picture to label">
<div class="kc-top">{shown}<div><p class="kc-soft">{_text(question.name)}</p>
<p>Its guess: <strong>{_text(guess)}</strong>, {_percent(p)}.</p>{expected}</div></div>{rest}</section>"""


def about_html(about: About) -> str:
    """Return what the adapter is: classes, pictures, options."""
    calibrated = "not calibrated; fit with two or more pictures of each class, or --calibrate. "
    calibrated += "Learning here takes a calibration away: it was about another belief."
    if about.calibration:
        calibrated = f"calibrated on {_pictures(about.calibration)}"
    counted = [n for n in about.counts.values() if n is not None]
    rows = [
        ("classes", str(len(about.counts))),
        ("training pictures", str(sum(counted)) if counted else "not counted in this adapter"),
        ("backbone", about.backbone),
        ("prompts", " | ".join(about.prompts)),
        ("lists of classes", calibrated),
        ("not yet saved", _pictures(about.unsaved) if about.unsaved else "nothing"),
    ]
    facts = "".join(f"<div><dt>{name}</dt><dd>{_text(value)}</dd></div>" for name, value in rows)
    options = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(value if isinstance(value, str) else json.dumps(value))}</dd></div>"
        for name, value in about.options.items()
    )
    return f"""<section aria-label="Adapter"><h2>What it holds</h2><dl class="kc-facts">{facts}</dl>
<details class="kc-options"><summary>Options it was fitted with</summary><dl class="kc-facts">{options}</dl></details>
<h3>Classes</h3>{_classes(about.counts)}</section>"""


def _classes(counts: dict[str, int | None]) -> str:
    most = max((n for n in counts.values() if n), default=1)
    rows = [
        f"""<li><span class="kc-name">{_text(name)}</span><span class="kc-number">{"" if n is None else n}</span>
<span class="kc-bar" aria-hidden="true"><i class="kc-fill" style="width:{100 * (n or 0) / most:.2f}%"></i></span>
</li>"""
        for name, n in counts.items()
    ]
    first, more = "".join(rows[:_MANY]), "".join(rows[_MANY:])
    rest = f"<details><summary>{len(rows) - _MANY} more</summary><ul class='kc-choices'>{more}</ul></details>"
    return f'<ul class="kc-choices kc-classes">{first}</ul>{rest if more else ""}'


def measured_html(measured: Measured | None) -> str:
    """Return the reliability diagram, or how to get one."""
    if measured is None:
        return """<section aria-label="Reliability"><h3>Do its probabilities hold?</h3><p class="kc-hint">There is
nothing to measure that on. Start the page with <code>--test FOLDER</code>, a folder of class folders with pictures
that were not learned from, and the reliability diagram is here.</p></section>"""
    said = (
        f"Reliability diagram of {measured.images} test pictures: {_percent(measured.accuracy)} right, "
        f"expected calibration error {_percent(measured.error)}"
    )
    return f"""<section aria-label="Reliability"><h3>Do its probabilities hold?</h3>
<p>{_percent(measured.accuracy)} of {_pictures(measured.images)} are recognised. Where the bars reach the diagonal, what
is said with a probability of 80 % is right in 80 of 100 cases.</p>
<img class="kc-diagram" src="{_diagram(measured)}" alt="{said}"></section>"""


@lru_cache(maxsize=8)
def _diagram(measured: Measured) -> str:
    from kalmanclip.plots import draw_reliability

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reliability.svg"
        draw_reliability(path, measured.rows, measured.error)
        return "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()


def _pictures(n: int) -> str:
    return "1 picture" if n == 1 else f"{n} pictures"


def _percent(share: float) -> str:
    """Return a share as percent, never 100 of what is not certain, nor 0 of what is not impossible."""
    if 0 < share < 0.001:
        return "&lt;&nbsp;0.1&nbsp;%"
    if 0.999 < share < 1:
        return "&gt;&nbsp;99.9&nbsp;%"
    return f"{100 * share:.1f}&nbsp;%"


def _text(value: str) -> str:
    return escape(value, quote=True)

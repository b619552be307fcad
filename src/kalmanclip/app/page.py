"""The page: tabs over one adapter."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import gradio as gr

from kalmanclip.app import render
from kalmanclip.app.images import STALE, take_uploads
from kalmanclip.app.service import LIKELY, AdapterService, Question
from kalmanclip.errors import KalmanClipError

# Events are for this page alone. Values come as the browser sent them, for `take_uploads`: Gradio's own preparation
# would leave an empty file beside each upload.
_EVENT: dict[str, Any] = {"preprocess": False, "api_visibility": "private", "show_progress": "minimal"}

# A picture in the clipboard goes where a chosen file would, if the first tab is open.
_PASTE = """<script>
document.addEventListener("paste", (event) => {
  const files = event.clipboardData?.files, field = document.querySelector("#kc-picture");
  const input = field?.querySelector("input[type=file]");
  if (!files?.length || !input || !field.offsetParent) return;
  const transfer = new DataTransfer();
  transfer.items.add(files[0]);
  input.files = transfer.files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
  event.preventDefault();
});
</script>"""


def build(service: AdapterService, uploads: Path) -> gr.Blocks:
    """Return the page over an adapter; only what Gradio puts into the folder ``uploads`` is ever read."""
    with gr.Blocks(title="kalmanclip", analytics_enabled=False, delete_cache=(STALE, STALE)) as page:
        gr.HTML(render.title(service.about().folder))
        with gr.Tabs():
            with gr.Tab("Look"):
                _look(service, uploads)
            if service.asks:
                with gr.Tab("Label") as tab:
                    _label(service, tab, page)
            with gr.Tab("Adapter") as tab:
                _adapter(service, uploads, tab, page)
    return page


def looks() -> dict[str, Any]:
    """Return how the page looks, as arguments of the server: fonts of the reader's own system alone."""
    text = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Liberation Sans", "Arial", "sans-serif")
    code = ("ui-monospace", "Consolas", "Liberation Mono", "monospace")
    theme = gr.themes.Soft(primary_hue="blue", secondary_hue="blue", neutral_hue="slate", font=text, font_mono=code)
    css = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    return {"theme": theme, "css": css, "head": _PASTE}


def _look(service: AdapterService, uploads: Path) -> None:
    with gr.Row(elem_classes="kc-columns"):
        with gr.Column(scale=2, min_width=280):
            picture = gr.File(label="Picture", elem_id="kc-picture", height=180)
            gr.HTML(f'<p class="kc-note">Drop, paste or choose a picture: {render.LIMITS}. It is not kept.</p>')
        with gr.Column(scale=3, min_width=280):
            said = gr.HTML(render.NOTHING_YET, elem_id="kc-said")

    def look(payload: Any) -> tuple[str, None]:
        try:
            images = take_uploads(payload, uploads)
            return "".join(render.answer_html(service.look(image), image) for image in images[:1]), None
        except KalmanClipError as error:
            return render.problem(str(error)), None

    picture.upload(look, picture, [said, picture], **_EVENT)


def _label(service: AdapterService, tab: gr.Tab, page: gr.Blocks) -> None:
    with gr.Row(elem_classes="kc-columns"):
        with gr.Column(scale=3, min_width=280):
            asked = gr.HTML(elem_id="kc-asked")
        with gr.Column(scale=2, min_width=280):
            likely = gr.Radio([], label="What does it show?", elem_id="kc-likely")
            others = gr.Dropdown([], label="Another class", elem_id="kc-others", visible=False)
            banner = gr.HTML(elem_id="kc-labelled")
            gr.HTML(
                '<p class="kc-note">A click teaches it at once, in memory. New classes, Save and Undo are on the tab '
                "Adapter.</p>"
            )

    def now() -> tuple[Any, ...]:
        try:
            labelling = service.ask()
        except KalmanClipError as error:  # a picture that cannot be read
            return render.problem(str(error)), gr.update(choices=[], value=None), gr.update(visible=False)
        first, rest = _answers(labelling.question)
        return (
            render.labelling_html(labelling),
            gr.update(choices=first, value=None),
            gr.update(choices=rest, value=None, visible=bool(rest)),
        )

    def label(chosen: Any) -> tuple[Any, ...]:
        position, _, name = str(chosen or "").partition(" ")
        said = ""
        try:
            if name:
                said = render.update_html(service.label(_number(position), name))
            elif position:
                service.pass_over(_number(position))
        except KalmanClipError as error:
            said = render.problem(str(error))
        return said, *now()

    state = [asked, likely, others]
    likely.input(label, likely, [banner, *state], **_EVENT)
    others.input(label, others, [banner, *state], **_EVENT)
    page.load(now, None, state, **_EVENT)
    tab.select(now, None, state, **_EVENT)  # others may have labelled meanwhile


def _answers(question: Question | None) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return answers to click on and those in a list: what is shown, and the value, which says about which picture."""
    if question is None:
        return [], []
    answers = [(name, f"{question.position} {name}") for name, _ in question.classes]
    return [*answers[:LIKELY], ("none of these, or unsure: pass over", str(question.position))], answers[LIKELY:]


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def _adapter(service: AdapterService, uploads: Path, tab: gr.Tab, page: gr.Blocks) -> None:
    with gr.Row(elem_classes="kc-columns"):
        with gr.Column(scale=2, min_width=280):
            gr.HTML('<h2 class="kc-heading">Teach it</h2>')
            pictures = gr.File(label="Pictures of one class", file_count="multiple", elem_id="kc-pictures", height=180)
            name = gr.Dropdown(
                [], label="Class", info="Choose one, or type a new name.", allow_custom_value=True, elem_id="kc-class"
            )
            learn = gr.Button("Learn from these pictures", variant="primary", elem_id="kc-learn")
            banner = gr.HTML(elem_id="kc-lesson")
            gr.HTML(
                '<p class="kc-note">It learns in memory. Save writes the adapter to disk; Undo goes back to there.</p>'
            )
            with gr.Row(elem_classes="kc-pair"):
                save = gr.Button("Save", elem_id="kc-save", interactive=not service.about().read_only)
                back = gr.Button("Undo", elem_id="kc-back")
        with gr.Column(scale=3, min_width=280):
            about = gr.HTML(elem_id="kc-about")
            measured = gr.HTML(elem_id="kc-measured")

    def now() -> tuple[Any, ...]:
        state = service.about()
        return render.about_html(state), render.measured_html(state.measured), gr.update(choices=list(state.counts))

    def teach(payload: Any, class_name: Any) -> tuple[Any, ...]:
        try:
            said = render.update_html(service.learn(take_uploads(payload, uploads), str(class_name or "")))
        except KalmanClipError as error:
            said = render.problem(str(error))
        return said, None, *now()

    def when_clicked(action: Callable[[], None], done: str) -> Callable[[], tuple[Any, ...]]:
        def act() -> tuple[Any, ...]:
            try:
                action()
                said = render.done(done)
            except KalmanClipError as error:
                said = render.problem(str(error))
            return said, *now()

        return act

    undone = "Undone: this is the adapter as it was last saved."
    state = [about, measured, name]
    learn.click(teach, [pictures, name], [banner, pictures, *state], **_EVENT)
    save.click(when_clicked(service.save, "Saved."), None, [banner, *state], **_EVENT)
    back.click(when_clicked(service.go_back, undone), None, [banner, *state], **_EVENT)
    page.load(now, None, state, **_EVENT)
    tab.select(now, None, state, **_EVENT)  # others may have taught it meanwhile

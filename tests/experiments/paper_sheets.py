"""Sheets for the tests of the report: the paper's own numbers beside made-up ones of ours."""

from dataclasses import replace
from functools import cache

from kalmanclip.experiments.paper.draw import draw_bars, draw_heat, draw_lines
from kalmanclip.experiments.paper.sheet import Entry, Sheet

NO_IMAGES = "its images are not on this computer"
SETS = ("ImageNet", "OxfordPets", "Food101", "SUN397", "DTD", "EuroSAT")
TABLE1 = {
    ("Zero-Shot CLIP", 0): (60.33, 85.90, 77.32, 52.81, 42.15, 37.55),
    ("CoOp", 1): (57.44, 85.79, 74.32, 60.31, 44.31, 50.57),
    ("CoOp", 4): (60.07, 86.49, 73.37, 63.68, 53.45, 70.14),
    ("CoOp", 16): (63.11, 86.93, 74.58, 69.27, 63.56, 83.50),
    ("CLIP-Adapter", 1): (61.21, 85.87, 77.35, 61.27, 48.77, 62.39),
    ("CLIP-Adapter", 4): (61.95, 87.27, 77.93, 65.85, 57.79, 74.30),
    ("CLIP-Adapter", 16): (63.72, 87.80, 78.69, 69.55, 66.51, 85.47),
    ("Tip-Adapter-F", 1): (61.32, 87.00, 77.50, 58.75, 49.63, 59.53),
    ("Tip-Adapter-F", 4): (62.52, 87.54, 78.23, 64.30, 57.38, 74.04),
    ("Tip-Adapter-F", 16): (65.51, 89.69, 79.41, 72.18, 66.56, 84.51),
    ("Ours", 1): (61.10, 86.77, 77.40, 60.97, 46.76, 55.97),
    ("Ours", 4): (62.85, 88.10, 78.60, 65.80, 57.95, 73.81),
    ("Ours", 16): (65.30, 89.23, 80.06, 72.95, 66.56, 83.89),
}
TABLE3 = (
    (64.90, 63.45, 59.33, 48.03, 46.87),
    (64.59, 62.72, 60.62, 49.73, 47.45),
    (64.08, 64.67, 61.33, 52.01, 51.25),
    ("Diverge", 64.80, 62.14, 55.90, 51.37),
    ("Diverge", "Diverge", "Diverge", 56.97, 52.06),
)
ALPHAS, SHARES = ("0", "0.01", "0.1", "0.5", "1"), ("1%", "5%", "10%", "25%", "50%")


def _ours(printed, row, column):
    """A number near the printed one, above it or below."""
    return printed + 0.37 * ((3 * row + 5 * column) % 7 - 3.4)


def table1():
    entries = {}
    for row, numbers in enumerate(TABLE1.values()):
        for column, printed in enumerate(numbers):
            ours = Entry(_ours(printed, row, column), 0.2 + 0.1 * column, 3, printed=printed)
            entries[row, column] = ours if column else Entry(printed=printed, missing=NO_IMAGES)
    entries[2, 3] = replace(entries[2, 3], seeds=2)
    entries[5, 4] = replace(entries[5, 4], diverged=1)
    entries[6, 5] = Entry(seeds=3, diverged=3, printed=85.47)
    entries[9, 2] = Entry(printed=79.41, missing="failed: not enough memory; try a smaller batch")
    return Sheet(
        name="table1",
        title="Table 1: few-shot accuracy on six data sets",
        caption=(
            "Accuracy in % on the test images after fine-tuning with 1, 4 and 16 images per class.",
            "The paper uses RN50; here the backbone is another one, and nothing is chosen on test images.",
        ),
        row_heads=("method", "shots"),
        rows=tuple((method, str(shots) if shots else "–") for method, shots in TABLE1),
        columns=SETS,
        entries=entries,
        findings=(
            "Holds: with 16 images per class our method is above zero-shot CLIP on every data set that ran.",
            "Does not hold: our method is the best of a column on 2 of 15 columns only.",
            "Not known: ImageNet could not run, so nothing can be said about it.",
        ),
        missing={"ImageNet": NO_IMAGES},
        criterion="the accuracy falls below chance, or a parameter is no longer finite.",
        runs=234,
        done=186,
        failed=3,
        seconds=7543.2,
    )


@cache
def figure2():
    sheet = table1()
    panels = {
        name: {
            method: {
                shots: sheet.entry(row, column)
                for row, (m, k) in enumerate(TABLE1)
                for shots in ([k] if k else [1, 4, 16])
                if m == method
            }
            for method in dict.fromkeys(method for method, _ in TABLE1)
        }
        for column, name in enumerate(SETS)
    }
    picture = draw_lines(
        "Accuracy against images per class on six data sets, ours and the paper's", panels, ours="Ours"
    )
    title = "Figure 2: accuracy against images per class"
    return replace(sheet, name="figure2", title=title, pictures=(picture,), findings=sheet.findings[:1])


@cache
def figure3():
    names = (*SETS, "MNIST", "FashionMNIST", "CIFAR-10")
    gains = (4.97, 3.33, 2.74, 20.14, 24.41, 46.34, None, None, None)
    entries = {
        (row, 0): Entry(_ours(gain or 30.0, row, 1), 0.9, 3, printed=gain)
        for row, gain in enumerate(gains)
    }  # fmt: skip
    entries[0, 0] = Entry(printed=4.97, missing=NO_IMAGES)
    entries[8, 0] = Entry(-2.4, 0.8, 3)
    bars = {name: entries[row, 0] for row, name in enumerate(names)}
    return Sheet(
        name="figure3",
        title="Figure 3: gain over zero-shot",
        caption=("Points gained over zero-shot CLIP with 16 images per class.",),
        row_heads=("data set",),
        rows=tuple((name,) for name in names),
        columns=("gain",),
        entries=entries,
        findings=("Holds in part: the gain is positive on 7 of 8 data sets.", "The largest gain is on EuroSAT."),
        missing={"ImageNet": NO_IMAGES},
        pictures=(draw_bars("Gain over zero-shot CLIP per data set, ours and the paper's", bars),),
        runs=54,
        done=48,
        seconds=41.0,
    )


@cache
def table3():
    entries = {}
    for row, numbers in enumerate(TABLE3):
        for column, printed in enumerate(numbers):
            known = isinstance(printed, float)
            ours = Entry(_ours(printed, row, column), 0.5, 3, printed=printed) if known else Entry(printed=printed)
            entries[row, column] = ours
    entries[4, 0] = Entry(seeds=3, diverged=3, printed="Diverge")
    entries[4, 1] = Entry(61.0, 0.4, 3, printed="Diverge")
    entries[3, 0] = Entry(printed="Diverge", missing="not run yet")
    title = "Accuracy by α and share of corrupted training images, ours and the paper's"
    names = {"row_title": "scaling factor α", "column_title": "share of corrupted images"}
    return Sheet(
        name="table3",
        title="Table 3: scaling factor α and corrupted training images",
        caption=("Accuracy in % with a share of the training images corrupted.",),
        row_heads=("α",),
        rows=tuple((alpha,) for alpha in ALPHAS),
        columns=SHARES,
        entries=entries,
        findings=("Holds: with half of the images corrupted, α = 1 is the best.",),
        criterion="the accuracy falls below chance, or a parameter is no longer finite.",
        pictures=(draw_heat(title, ALPHAS, SHARES, entries, **names),),
        runs=75,
        done=72,
        seconds=3725,
    )


def all_sheets():
    return [table1(), figure2(), figure3(), table3()]


FACTS = {
    "model": "ViT-B-16, weights: openai",
    "versions": "kalmanclip 0.1.0, torch 2.8.0, Python 3.11",
    "command": "kalmanclip paper all --model ViT-B-16:openai",
}

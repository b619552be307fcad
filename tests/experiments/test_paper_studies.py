"""The paper's tables as data: what they declare, what the paper printed, and what is run for them."""

import re
from pathlib import Path

import pytest

from kalmanclip.errors import ConfigError, DataError
from kalmanclip.experiments.paper import printed
from kalmanclip.experiments.paper.plan import Found, check_options, chosen_sets, find_sets, study_runs
from kalmanclip.experiments.paper.studies import STUDIES
from kalmanclip.experiments.paper.study import At
from kalmanclip.experiments.sources import ShiftSource, Source

PAPER = Path(__file__).parents[3] / "shared" / "paper" / "paper.tex"


def source(name, *shifts):
    found = tuple(ShiftSource(shift, shift, "0" * 64) for shift in shifts)
    return Source(name, name, None, ("a {}.",), name.ljust(64, "x"), found)


def at(method, data, shots, **more):
    """A place of a baseline, or of the paper's method, 'Ours'."""
    family = printed.PAPER if method == "Ours" else ""
    return At(method, family, data=data, shots=shots, **more)


def ours(data, shots, **more):
    return at("Ours", data, shots, **more)


def tex_table_1(text):
    """The rows of Table 1 by method and shots, out of the paper's source; its own method is called 'Ours' here."""
    table = text[text.index(r"\label{table: main result}") :].split(r"\end{tabular}")[0]
    found, method = {}, None
    for line in table.splitlines():
        name = re.search(r"\\multirow\{5\}\{\*\}\{.*?\\textbf\{(.+?)\}", line)
        if name is not None:
            method = {"Our Method": "Ours"}.get(name[1], name[1])
        shots = re.search(r"(\d+)-Shot(.*)", line)
        if shots is not None:
            found[method, int(shots[1])] = [float(number) for number in re.findall(r"\d+\.\d+", shots[2])]
    return found


OURS_1 = """
61.10 86.77 77.40 60.97 46.76 55.97
61.60 87.89 78.12 64.10 53.32 63.13
62.85 88.10 78.60 65.80 57.95 73.81
64.05 88.27 79.05 69.84 62.13 77.94
65.30 89.23 80.06 72.95 66.56 83.89
"""
OURS_2 = "65.30 58.84 37.38 21.27 61.90 48.93"
OURS_3 = """
64.90   63.45   59.33   48.03 46.87
64.59   62.72   60.62   49.73 47.45
64.08   64.67   61.33   52.01 51.25
Diverge 64.80   62.14   55.90 51.37
Diverge Diverge Diverge 56.97 52.06
"""
OURS_4 = """
65.47 85.24 81.24 70.30 67.12 Diverge
65.30 89.23 80.06 72.95 66.56 83.89
63.42 85.35 79.48 74.08 64.18 84.60
63.25 88.57 79.00 73.90 64.23 85.30
63.02 86.53 79.02 72.80 64.56 87.00
62.89 84.16 76.38 71.45 66.10 86.68
"""


def typed(table):
    return [
        [float(word) if word[0].isdigit() else word for word in line.split()] for line in table.strip().splitlines()
    ]


def places_of(form):
    return [form.at(row, column) for row in range(len(form.rows)) for column in range(len(form.columns))]


def test_the_papers_own_rows_typed_again():
    """Every number that the paper prints for its method, in the order of its tables; for where its source is not."""
    sets = ("imagenet", "oxford_pets", "food101", "sun397", "dtd", "eurosat")
    rows = [[printed.table_1(ours(name, k)) for name in sets] for k in (1, 2, 4, 8, 16)]
    assert rows == typed(OURS_1)
    shifts = ("", "imagenet_v2", "imagenet_sketch", "imagenet_a", "imagenet_r")
    row = [printed.table_2(ours("imagenet", 16, shifts=chosen)) for chosen in [(s,) for s in shifts] + [shifts]]
    assert [row] == typed(OURS_2)
    shares = (0.01, 0.05, 0.1, 0.25, 0.5)
    alphas = (0, 0.01, 0.1, 0.5, 1)
    rows = [[printed.table_3(ours("imagenet", 16, share=s, setting=a)) for s in shares] for a in alphas]
    assert rows == typed(OURS_3)
    betas = (0.99, 0.98, 0.95, 0.9, 0.85, 0.8)
    assert [[printed.table_4(ours(name, 16, setting=b)) for name in sets] for b in betas] == typed(OURS_4)


def test_the_printed_numbers_are_the_papers():
    if not PAPER.is_file():
        pytest.skip("the paper's source is not here")
    text = PAPER.read_text()
    assert tex_table_1(text) == {
        (method, k): [printed.table_1(at(method, name, k)) for name in printed.SIX]
        for method in ("CoOp", "CLIP-Adapter", "Tip-Adapter-F", "Ours")
        for k in (1, 2, 4, 8, 16)
    }
    for alpha in printed.ALPHAS:
        row = [printed.table_3(ours("imagenet", 16, share=share, setting=alpha)) for share in printed.SHARES]
        cells = " & ".join(rf"\\textit\{{{v}\}}" if isinstance(v, str) else f"{v:.2f}" for v in row)
        assert re.search(rf"\$ ?{alpha:.2f}\$ +& {cells}", text), alpha
    for beta in printed.BETAS:
        row = [printed.table_4(ours(name, 16, setting=beta)) for name in printed.SIX]
        cells = " & ".join(
            rf"\\textit\{{{v}\}}" if isinstance(v, str) else rf"(?:\\textbf\{{)?{v:.2f}\}}?" for v in row
        )
        assert re.search(rf"\${beta:.2f}\$ +& {cells}", text), beta
    for method in ("Zero-Shot CLIP", "CoOp", "CLIP-Adapter", "Tip-Adapter-F", "Ours"):
        shifts = ("", "imagenet_v2", "imagenet_sketch", "imagenet_a", "imagenet_r")
        row = [printed.table_2(at(method, "imagenet", 16, shifts=(shift,))) for shift in shifts]
        row.append(printed.table_2(at(method, "imagenet", 16, shifts=shifts)))
        assert re.search(r"\s*&\s*".join(rf"(?:\\textbf\{{)?{value:.2f}\}}?" for value in row), text), method


def test_the_printed_averages_are_averages():
    shifts = ("", "imagenet_v2", "imagenet_sketch", "imagenet_a", "imagenet_r")
    for method in ("Zero-Shot CLIP", "CoOp", "CLIP-Adapter", "Tip-Adapter-F", "Ours"):
        parts = [printed.table_2(at(method, "imagenet", 16, shifts=(shift,))) for shift in shifts]
        whole = printed.table_2(at(method, "imagenet", 16, shifts=shifts))
        assert sum(parts) / 5 == pytest.approx(whole, abs=0.011)


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_every_study_can_be_planned_and_its_form_asks_only_for_what_is_run(study):
    shifts = study.shifts
    sources = [source(name, *(shifts if name == "imagenet" else ())) for name in study.sets]
    runs = study_runs(study, sources, [1, 2], "tiny")
    assert len({run.address for run in runs}) == len(runs)
    assert {run.study for run in runs} == {study.name}
    known = {(run.label, run.data, run.shots, run.contamination.share) for run in runs}
    form = study.form(study, {s.name: [shift.name for shift in s.shifts] for s in sources})
    for place in places_of(form):
        assert (place.label, place.data, place.shots, place.share) in known
        assert {*place.shifts} <= {"", *shifts}


def test_the_papers_large_sets_get_five_passes_and_the_others_two():
    runs = study_runs(STUDIES["table1"], [source("imagenet"), source("dtd")], [1], "tiny")
    passes = {run.data: run.config["epochs"] for run in runs if run.label == "Ours (paper)"}
    assert passes == {"imagenet": 5, "dtd": 2}


def test_first_order_rivals_share_all_but_the_optimiser_with_the_papers_filter():
    runs = study_runs(STUDIES["optimizer"], [source("imagenet"), source("dtd")], [1, 2], "tiny")
    filtered = {(r.data, r.shots, r.seed): r.config for r in runs if r.label == "Ours (paper)"}
    rivals = [run for run in runs if run.method == "first_order"]
    assert {run.label for run in rivals} >= {"AdamW (squared)", "SGD (cross-entropy)", "AdamW at 1e-3 (squared)"}
    for run in rivals:
        theirs = filtered[run.data, run.shots, run.seed]
        shared = ["low_rank", "observation", "observation_options", "batch_size", "seed"]
        for name in shared if "passes" in run.label else [*shared, "epochs"]:
            assert run.config[name] == theirs[name], (run.label, name)
        if "1e-3" in run.label:
            told = [run.config[name] for name in ("optimizer", "lr", "lr_grid", "decay", "weight_decay")]
            assert told == ["adamw", 1e-3, [], "linear", 1e-4]
        else:
            assert len(run.config["lr_grid"]) == 5
    longer = [run for run in runs if "passes" in run.label]
    assert {run.method for run in longer} == {"kalman", "first_order"}
    assert {run.config["epochs"] for run in longer} == {10}


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_ours_is_the_papers_method_and_no_printed_number_stands_beside_another(study):
    sets = {name: list(study.shifts) if name == "imagenet" else [] for name in study.sets}
    form = study.form(study, sets)
    presets = {v.label: v.options.get("preset", "default") for v in study.variants if v.method == "kalman"}
    for variant in study.variants:
        if variant.label.startswith("Ours"):
            assert variant.family in printed.READINGS
    for label, preset in presets.items():
        assert label.startswith("Ours") <= preset.startswith("paper"), label
        assert label.startswith("kalmanclip default") == (preset == "default"), label
    for place in places_of(form):
        if presets.get(place.label) == "default":
            assert study.printed(place) is None


def test_zero_shot_is_run_once_whatever_the_shots_and_shares():
    for name in ("table1", "table3"):
        runs = study_runs(STUDIES[name], [source("imagenet")], [1, 2], "tiny")
        assert sum(run.method == "zero_shot" for run in runs) == 2


def test_options_reach_the_rows_of_their_method_or_label():
    options = {"coop": {"crops": 3}, "Ours (paper)": {"epochs": 7}}
    runs = study_runs(STUDIES["table1"], [source("dtd")], [1], "tiny", options)
    assert {run.config["crops"] for run in runs if run.label == "CoOp"} == {3}
    assert {run.config["epochs"] for run in runs if run.label == "Ours (paper)"} == {7}
    own = {"kalman-head": {"method": "kalman", "preset": "head"}, "Ours (paper) alpha 1": {"epochs": 1}}
    assert check_options(STUDIES.values(), options | own) == ["kalman-head"]
    with pytest.raises(ConfigError, match="no method or row 'copo'"):
        check_options(STUDIES.values(), {"copo": {"crops": 3}})


def test_which_sets_stand_where():
    mine, drawn = source("mine"), source("drawn", "sketch")
    found = Found({"dtd": source("dtd"), "mine": mine, "drawn": drawn})
    table_1 = chosen_sets(STUDIES["table1"], found)
    assert list(table_1) == [*printed.SIX, "mine"]
    assert table_1["imagenet"] is None
    assert table_1["mine"] is mine
    assert list(chosen_sets(STUDIES["table2"], found)) == ["imagenet", "drawn"]
    assert list(chosen_sets(STUDIES["table3"], found)) == ["imagenet", "dtd", "mine"]
    complete = Found({**found.sources, "imagenet": source("imagenet", "imagenet_v2")})
    assert list(chosen_sets(STUDIES["table3"], complete)) == ["imagenet"]
    assert list(chosen_sets(STUDIES["table2"], complete)) == ["imagenet"]


def test_sets_that_are_not_here_are_missing_with_a_reason(small_plan, tmp_path):
    (here,), _ = small_plan
    found = find_sets([STUDIES["table1"]], [f"eurosat={here.spelling}"], root=tmp_path)
    assert list(found.sources) == ["eurosat"]
    assert found.sources["eurosat"].templates == ("a centered satellite photo of {}.",)
    assert found.missing == dict.fromkeys([n for n in printed.SIX if n != "eurosat"], "not on this machine")
    own = find_sets([STUDIES["table1"]], [f"eurosat={here.spelling}"], tmp_path, templates=["eurosat=my {}."])
    assert own.sources["eurosat"].templates == ("my {}.",)


def test_nothing_here_at_all_and_mistakes_are_errors(small_plan, tmp_path):
    (here,), _ = small_plan
    with pytest.raises(DataError, match=r"None of the paper's data sets .* --root .* imagenet"):
        find_sets([STUDIES["table1"]], root=tmp_path)
    with pytest.raises(DataError, match="no folder"):
        find_sets([STUDIES["table1"]], [f"dtd={tmp_path / 'typo'}", f"eurosat={here.spelling}"], root=tmp_path)
    with pytest.raises(ConfigError, match="same name"):
        find_sets([STUDIES["table1"]], [f"dtd={here.spelling}", f"dtd={here.spelling}/"], root=tmp_path)


def test_shifts_belong_to_what_has_their_classes(small_plan, shapes, tmp_path):
    (here,), _ = small_plan
    found = find_sets([STUDIES["table2"]], [f"mine={here.spelling}"], tmp_path, shifts=[str(shapes)])
    assert [shift.name for shift in found.sources["mine"].shifts] == ["shapes"]
    assert found.missing["imagenet_v2"] == "there is no ImageNet to learn from"

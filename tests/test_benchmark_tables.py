"""That studies write what their tables are drawn from, and that the tables say what was measured."""

import argparse

import pytest
from benchmarks import comparison, fusion, observations, stream, study, table, uncertainty, unknown
from benchmarks.table import markdown, mean, only, read_rows, span, write_rows


@pytest.fixture
def write(monkeypatch, tmp_path):
    """Writes rows as a study would, where they are read; other methods are those of the committed comparison."""
    comparison.results()  # read once, before there is another folder
    monkeypatch.setattr(table, "RESULTS", tmp_path)

    def write(name, rows):
        write_rows(argparse.Namespace(json=tmp_path / f"{name}.json", folders=[tmp_path / "pets"], shots=4), rows)

    return write


def cells(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_rows_survive_and_no_path_is_written(write, tmp_path):
    rows = [{"data": "pets", "seed": seed, "nll": 1 / 3, "steps": [2 / 3]} for seed in (2, 1)]
    write("a", rows)
    text = (tmp_path / "a.json").read_text()
    assert [row["seed"] for row in read_rows("a")] == [1, 2]  # sorted
    assert read_rows("a")[0]["steps"] == [0.666667]
    assert str(tmp_path) not in text
    assert text.count("\n") == 4  # a row is a line
    write("b", reversed(rows))
    assert (tmp_path / "b.json").read_text() == text


def test_nothing_is_written_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(argparse.Namespace(json=None), [{"a": 1}])
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_to_be_made_is_told_from_one_that_is_missing(write, monkeypatch):
    monkeypatch.setitem(table.NOT_YET, "later", "python -m benchmarks.later")
    with pytest.raises(table.NotYet, match=r"python -m benchmarks\.later"):
        read_rows("later")
    with pytest.raises(Exception, match="nowhere") as problem:
        read_rows("nowhere")
    assert not isinstance(problem.value, table.NotYet)


def test_numbers():
    assert span([3.64, 1.26, 2.0]) == "1.3 to 3.6"
    assert span([1.01, 0.99]) == "1.0"
    assert span([-0.04, 0.26], sign=True) == "+0.0 to +0.3"
    assert span([-0.26, 0.1], sign=True) == "−0.3 to +0.1"
    assert markdown(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"
    assert mean(only([{"k": 1, "v": 2.0}, {"k": 1, "v": 4.0}, {"k": 2, "v": 9.0}], k=1), "v") == 3.0


def test_stream_takes_the_rate_that_development_images_prefer(write):
    course = {"data": "pets", "old": 1.0, "new": 2.0, "forgetting": 3.0}
    rates = {1e-3: (90.0, 10.0), 1e-5: (50.0, 70.0)}  # development, test: the better on test images is not chosen
    rows = [
        {**course, "learner": "AdamW, class weights", "rate": rate, "seed": seed, "development": d, "steps": [99.0, t]}
        for rate, (d, t) in rates.items()
        for seed in (1, 2)
    ]
    for name, end in (("partial_fit, default", 40.0), ("joint fit, default", 42.5)):
        rows.append({**course, "learner": name, "rate": 0, "seed": 1, "development": 0.0, "steps": [60.0, end]})
    write("stream", rows)
    lines = cells(stream.table("pets"))
    assert lines[0][0] == "OxfordPets"
    assert lines[2:] == [
        ["**partial_fit, default**", "60.0, 40.0", "1.0", "2.0", "3.0"],
        ["AdamW, class weights (rate 0.001)", "99.0, 10.0", "1.0", "2.0", "3.0"],
        ["joint fit, default", "60.0, 42.5", "1.0", "2.0", "3.0"],
    ]
    assert stream.behind_joint() == "2.5"


def test_fusion(write):
    accuracy = dict(zip(fusion.CLASSIFIERS, (50.0, 51.0, 54.0, 52.0, 55.0), strict=True))
    rows = [
        {"classifier": name, "data": data, "seed": seed, "accuracy": value + seed - 2, "nll": 1.0}
        for name, value in accuracy.items()
        for data in ("pets", "eurosat")
        for seed in (1, 2, 3)
    ]
    write("fusion", rows)
    lines = cells(fusion.table())
    assert lines[0][1:] == ["EuroSAT", "OxfordPets"]
    assert lines[4] == ["halves, fused", "54.0 / 1.000", "54.0 / 1.000"]
    assert fusion.lost("fusion", "classes apart, fused") == "3.0"


def test_study_is_ranked_by_training_images(write):
    foreseen = {"default": -2.0, "no crops": -3.0, "ten crops": -1.0}
    rows = [
        {"configuration": name, "data": data, "seed": 1, "foreseen": value, "accuracy": -value, "nll": 1.0}
        for name, value in foreseen.items()
        for data in ("eurosat", "pets")
    ]
    write("study", rows)
    assert [line[0] for line in cells(study.table("study"))[2:]] == ["ten crops", "**default**", "no crops"]
    assert cells(study.table("study"))[0][-1] == "mean"
    assert study.cell("study", "no crops", "pets") == "-3.000 / 3.0 / 1.000"


def test_observations(write):
    rows = [{"observation": "zero-shot", "accuracy": 24.0, "nll": 2.0, "images": 9}]
    for placement in observations.PLACEMENTS:
        for prior in observations.PRIORS:
            place = {"placement": placement, "prior": prior}
            rows.append({"observation": "cosine", **place, "accuracy": None, "nll": None})
            rows.append({"observation": "bounded", **place, "accuracy": 100 * prior, "nll": 1.0})
    write("observations", rows)
    lines = cells(observations.table())
    assert lines[2] == ["`cosine`", *["broke down"] * 6]
    assert lines[3] == ["`bounded`", *["1.0 / 1.00", "10.0 / 1.00", "**30.0 / 1.00**"] * 2]
    assert (observations.start(), observations.images()) == ("24.0 / 2.00", "9")


def test_uncertainty(write):
    numbers = {"accuracy": 0.5, "nll": 1.0, "ece": 0.2, "brier": 0.5, "failure_auroc": 0.7, "least_ece": 0.04}
    rows = [
        {"how": how, "data": data, "shots": 1, "seed": seed, **numbers, "nll": nll + seed - 2}
        for how, nll in (("sampled", 1.5), ("linearised", 1.0), ("mean", 1.25))
        for data in ("eurosat", "pets", "dtd37")
        for seed in (1, 2, 3)
    ]
    write("uncertainty", rows)
    lines = {line[0]: line[1] for line in cells(uncertainty.table("nll", "ece"))}
    assert list(lines)[-4:] == [
        "ours, at the mean",
        "**ours, linearised**",
        "ours, sampled",
        "*least ECE of ours, linearised*",
    ]
    assert lines["**ours, linearised**"] == "1.000 / 20.0"
    assert lines["*least ECE of ours, linearised*"] == "4.0"
    # another method has the numbers of the comparison's own table
    place = cells(comparison.means("nll", "1"))
    assert (
        lines["zero-shot"].split(" / ")[0] == next(line[1] for line in place if line[0] == "zero-shot").split(" ± ")[0]
    )
    assert uncertainty.averaging_gains() == "0.250"
    assert uncertainty.lower("nll") == "none"
    assert "CoOp" in uncertainty.lower("ece")


def test_unknown(write):
    def detected(name, shots, auroc):
        row = {"kind": "detection", "familiar": "pets", "unknown": name, "shots": shots, "seed": 1}
        row |= {f"{measured} {score}": 50.0 for measured in ("AUROC", "FPR95") for score in unknown.SCORES}
        return row | {"AUROC familiarity": auroc}

    rows = [detected("eurosat", 1, 60.0), detected("eurosat", 16, 49.0)]
    rows += [detected("fog:5", 1, 60.0), detected("fog:5", 16, 73.0)]
    for k in (1, 16):
        rows.append({"kind": "alarms", "familiar": "pets", "shots": k, "seed": 1, "false alarms": k, "marked": 9.0})
    covered = dict(zip(unknown.KINDS, (85.0, 95.0, 96.0), strict=True))
    sizes = {f"{kind} {what}": value for kind, value in covered.items() for what in ("covered", "size")}
    rows.append({"kind": "conformal", "data": "pets", "classes": 37, "seed": 1, "accuracy": 70.0, **sizes})
    write("unknown", rows)
    assert cells(unknown.table())[2:] == [
        ["pets", "eurosat", "**60.0**", "49.0", "50.0", "50.0"],
        ["pets", "fog 5", "**60.0**", "**73.0**", "50.0", "50.0"],
    ]
    assert unknown.better("sets") == "0 of 1"
    assert unknown.better("corruptions") == "1 of 1"
    assert unknown.means("AUROC", "MCM") == "50"
    assert unknown.means("AUROC", "familiarity") == "60 and 61"
    assert cells(unknown.alarms())[2] == ["pets", "1.0 / 9.0", "16.0 / 9.0"]
    assert unknown.alarms_by_fit() == "from 1.0 to 16.0 % in these 2 fits"
    assert unknown.below_coverage() == f"OxfordPets with `{unknown.KINDS[0]}` (85.0 %)"
    assert cells(unknown.conformal())[2][:4] == ["pets", "37", "70.0", "85.0 / 85.0"]

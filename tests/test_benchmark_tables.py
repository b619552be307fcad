"""That studies write what their tables are drawn from, and that the tables say what was measured."""

import argparse
import json

import numpy as np
import pytest
from benchmarks import (
    bulk,
    commands,
    comparison,
    conformal,
    descriptions,
    federated,
    fusion,
    incremental,
    label_noise,
    large,
    observations,
    stream,
    study,
    suggest,
    table,
    uncertainty,
    unknown,
)
from benchmarks.table import markdown, mean, only, read_rows, span, write_rows

from kalmanclip.data import LabelledImages


@pytest.fixture
def write(monkeypatch, tmp_path):
    """Writes rows as a study would, where they are read; other methods are those of the committed comparison."""
    comparison.results("comparison")  # read once, before there is another folder
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


def test_the_ratio_of_a_command_is_the_median_of_its_pairs(write):
    row = {
        "command": "fit",
        "before": [2.0, 4.0, 4.0],
        "after": [1.0, 1.0, 4.0],
        "ratios": [0.5, 0.25, 1.0],
        "ratio": 0.5,
    }
    write("commands", [row, row | {"command": "predict", "ratio": 9.0}])
    assert commands.ratio("fit") == "0.50"
    assert commands.details("fit") == "0.50 (0.25 to 1.00; 1.0 and 4.0 s in 3 pairs)"


@pytest.mark.parametrize(
    ("model", "named"),
    [("local-dir:/home/somebody/vitb16", "vitb16"), ("local-dir:vitb16", "vitb16"), ("ViT-B-16:openai",) * 2],
)
def test_where_a_model_lies_is_not_written(tmp_path, model, named):
    write_rows(argparse.Namespace(json=tmp_path / "a.json", model=model), [{"a": 1}])
    assert json.loads((tmp_path / "a.json").read_text())["options"]["model"] == named


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


def test_class_incremental_learning(write):
    """Means over seeds, where there are several; a learner that was not measured has no line."""
    known = {incremental.WITHOUT_TEXT: 60.0, "RanPAC, no random features": 55.0}
    rows = [
        {"data": data, "learner": learner, "seed": 1, "average": last + 10, "last": last + more, "seconds": 3.0}
        for data, more in (("pets", 0.0), ("eurosat", 2.0), ("cifar100", -1.0))
        for learner, last in known.items()
    ]
    rows.append({**rows[1], "seed": 2, "average": 63.0, "last": 53.0, "seconds": 5.0})
    rows.append({**rows[0], "learner": "partial_fit", "last": 58.5})  # with one of the sets
    write("incremental", rows)
    assert cells(incremental.table()) == [
        ["learner", "EuroSAT", "OxfordPets", "CIFAR-100"],
        ["---", "---:", "---:", "---:"],
        ["RanPAC, no random features", "65.0 / 57.0", "64.0 / 54.0", "65.0 / 54.0"],
        ["partial_fit, no text", "70.0 / 62.0", "70.0 / 60.0", "70.0 / 59.0"],
        ["**partial_fit**", "", "70.0 / 58.5", ""],
    ]
    assert incremental.gain(incremental.WITHOUT_TEXT, "RanPAC, no random features") == "+5.0 to +6.0"
    assert incremental.gain("partial_fit", "RanPAC, no random features") == "+4.5"
    assert incremental.seconds("pets") == "3"


def test_federations(write):
    place = {"data": "pets", "seed": 1}
    rows = [{**place, "sites": 1, "partition": "whole", "classifier": "joint fit", "accuracy": 60.0, "nll": 1.0}]
    for partition, sites, accuracy in (
        ("alike", 2, 59.0),
        ("alike", 5, 58.0),
        ("skewed", 2, 57.0),
        ("skewed", 5, 61.0),
    ):
        for classifier, less in ((federated.FUSED, 0.0), ("averaged", 7.0 + sites)):
            row = {**place, "sites": sites, "partition": partition, "classifier": classifier, "nll": 1.5}
            rows += [{**row, "seed": seed, "accuracy": accuracy - less + seed - 1.5} for seed in (1, 2)]
    write("federated", rows)
    heads, _, *lines = cells(federated.table("federated", "skewed"))
    assert heads[0] == "skewed, Dirichlet(0.1)"
    assert [line[0] for line in lines] == ["OxfordPets, 2 sites", "OxfordPets, 5 sites"]
    columns = dict(zip(heads, zip(*lines, strict=True), strict=True))
    assert columns["**fused**"] == ("57.0 / 1.50", "61.0 / 1.50")
    assert columns["averaged"] == ("48.0 / 1.50", "49.0 / 1.50")
    assert columns["joint fit"] == ("60.0 / 1.00", "60.0 / 1.00")
    assert (federated.gain("skewed", "joint fit"), federated.gain("alike", "averaged")) == (
        "−3.0 to +1.0",
        "+9.0 to +12.0",
    )


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
    place = cells(comparison.means("nll"))
    assert (
        lines["zero-shot"].split(" / ")[0] == next(line[1] for line in place if line[0] == "zero-shot").split(" ± ")[0]
    )
    assert uncertainty.averaging_gains() == "0.250"
    assert uncertainty.lower("nll") == "none"
    assert "CoOp" in uncertainty.lower("ece")


def test_unknown(write):
    def detected(name, shots, **auroc):
        row = {"kind": "detection", "familiar": "pets", "unknown": name, "shots": shots, "seed": 1}
        row |= {f"{measured} {score}": 50.0 for measured in ("AUROC", "FPR95") for score in unknown.SCORES}
        return row | {f"AUROC {score}": value for score, value in auroc.items()}

    rows = [detected("eurosat", 1, ours=60.0), detected("eurosat", 16, ours=49.0, ViM=70.0)]
    rows += [detected("near", 1, ours=60.0), detected("near", 16, ours=73.0)]
    rows += [detected("fog:5", 1, ours=60.0), detected("fog:5", 16, ours=50.0)]
    for k in (1, 16):
        alarm = {"false alarms": k, "marked": 9.0, "counted": k > 1, "in interval": k > 1}
        rows.append({"kind": "alarms", "familiar": "pets", "shots": k, "seed": 1, **alarm})
    alarm = {"false alarms": 5.0, "counted": True, "in interval": False}
    rows.append({"kind": "held out", "familiar": "pets", "seed": 1, **alarm})
    write("unknown-other", rows)
    # other classes of the set first, corruptions last; the best of the others is named
    assert [line[1:4] + line[6:] for line in cells(unknown.table("unknown-other"))[2:]] == [
        ["near", "**60.0**", "**73.0**", "50.0", "familiarity"],
        ["eurosat", "**60.0**", "49.0", "70.0", "ViM"],
        ["fog 5", "**60.0**", "**50.0**", "50.0", "familiarity"],
    ]
    # more than one shot only; every score that is as good as the best is bold
    lines = {line[0]: line[1:] for line in cells(unknown.overview("unknown-other"))[2:]}
    assert lines["**ours**"] == ["**73.0** / **50.0**", "49.0 / **50.0**", "**50.0** / **50.0**"]
    assert lines["ViM"] == ["50.0 / **50.0**", "**70.0** / **50.0**", "**50.0** / **50.0**"]
    assert unknown.shortfall("near", "unknown-other") == "1 shot: +10.0 (familiarity); 16 shots: +23.0 (familiarity)"
    assert unknown.shortfall("far", "unknown-other") == "1 shot: +10.0 (familiarity); 16 shots: −21.0 (ViM)"
    assert cells(unknown.alarms("unknown-other"))[2] == ["pets", "1.0 / 9.0", "16.0 / 9.0"]
    assert unknown.alarms_by_fit("unknown-other") == "from 1.0 to 16.0 % in these 2 fits"
    assert (unknown.intervals("training", "unknown-other"), unknown.intervals("held_out", "unknown-other")) == (
        "1 of 1",
        "0 of 1",
    )
    assert unknown.held_out_alarms("unknown-other") == "5.0 % (single fits: 5.0 %)"


def test_sets_of_classes(write):
    """Means over seeds, of the test images alone; the interval of 30 right of 40 is 60 to 86."""
    ways = {"split": (91.0, 3.0), "cross": (90.0, 2.0), "CV+": (95.0, 4.0)}
    rows = []
    for part, data, seed in [
        ("test", "pets", 1),
        ("test", "pets", 2),
        ("test", "eurosat", 1),
        ("development", "pets", 1),
    ]:
        row = {"part": part, "data": data, "seed": seed, "shots": 4, "right": 30, "held out": 40}
        row |= {"accuracy": {"eurosat": 90.0}.get(data, 70.0 + seed), "split accuracy": 65.0}
        for way, (covered, size) in ways.items():
            row |= {f"{way} lac covered": covered - 2 * (data == "eurosat"), f"{way} lac size": size + seed}
        rows.append(row if part == "test" else row | {"accuracy": 1.0, "cross lac covered": 1.0})
    write("conformal", rows)
    eurosat, pets, both = cells(conformal.table())[2:]
    assert eurosat == ["4", "EuroSAT", "65.0", "90.0", "89.0 / 4.0", "88.0 / 3.0", "93.0 / 5.0"]
    assert pets == ["4", "OxfordPets", "65.0", "71.5", "91.0 / 4.5", "90.0 / 3.5", "95.0 / 5.5"]
    assert both[:4] == ["4", "mean", "65.0", "77.7"]
    assert conformal.least("cross", "lac") == "88.0 (EuroSAT, 4 shots)"
    assert cells(conformal.expected())[2:] == [
        ["EuroSAT", "4", "75.0", "60 to 86", "90.0", "0 of 1"],
        ["OxfordPets", "4", "75.0", "60 to 86", "71.5", "2 of 2"],
    ]
    assert (conformal.within(), conformal.within("1"), conformal.within("-1")) == ("2 of 3", "1 of 3", "0 of 3")


def test_label_noise(write):
    """Errors of all seeds count together; AUROC is a mean; nothing suspect is no precision."""
    head = {"data": "pets", "shots": 4}
    rows = [
        {**head, "kind": "finding", "finder": finder, "rate": rate, "seed": seed, "images": 50, **found}
        for finder in label_noise.FINDERS
        for seed, right, suspect, auroc in ((1, 1, 1, 80.0), (2, 2, 5, 90.0))
        for rate, found in (
            (0.0, {"wrong": 0, "suspect": 3, "found": 0}),
            (0.2, {"wrong": 5, "suspect": suspect, "found": right, "auroc": auroc}),
            (0.4, {"wrong": 9, "suspect": 0, "found": 0, "auroc": 50.0}),
        )
    ]
    rows += [
        {**head, "kind": "accuracy", "method": method, "rate": 0.2, "seed": seed, "accuracy": 50.0 + seed}
        for method in label_noise.SHOWN
        for seed in (1, 2)
    ]
    write("label_noise", rows)
    (heads, _, first, *_) = cells(label_noise.finding("pets"))
    assert heads[1:] == ["4 shots, 20 %", "4 shots, 40 %"]
    assert first[1:] == ["85.0: 50 / 30", "50.0: none / 0"]
    assert cells(label_noise.accuracy("pets"))[2][1:] == ["51.5"]
    assert cells(label_noise.false_suspects())[2][1:] == ["6.0"]
    assert label_noise.draws() == "4 shots: OxfordPets 2"
    assert label_noise.better("margin") == "0 of 2"  # equal is not better
    assert label_noise.dropping() == "better in 0, worse in 0, the same in 2"
    for row in rows:
        row["auroc"] = row.get("auroc", 0.0) + (row.get("finder") == "check" and row["rate"] == 0.4)
        if row["kind"] == "accuracy" and row["method"] == label_noise.DROPPED:
            row["accuracy"] += 3 - 2 * row["seed"]
    write("label_noise", rows)
    assert label_noise.better("margin") == "1 of 2"
    assert label_noise.dropping() == "better in 1, worse in 1, the same in 0"


def test_planted_errors_are_as_many_as_asked_for():
    images = LabelledImages([f"{i}.png" for i in range(40)], [i // 4 for i in range(40)], list("abcdefghij"))
    for rate, wrong in ((0.0, 0), (0.1, 4), (0.4, 16)):
        noisy = label_noise.planted(images, rate, seed=1)
        assert sum(a != b for a, b in zip(noisy.labels, images.labels, strict=True)) == wrong
        assert set(noisy.labels) == set(range(10))


def test_confident_learning_in_words():
    """An image is suspect if, of the classes that reach their own mean self-confidence, another is the likeliest."""
    rng = np.random.default_rng(0)
    p, labels = rng.dirichlet(np.ones(4), size=60), rng.integers(0, 3, size=60)  # nobody has the last label
    least = [p[labels == c, c].mean() for c in range(3)]
    found = []
    for row, label in zip(p, labels, strict=True):
        confident = [c for c in range(3) if row[c] >= least[c]]
        found.append(bool(confident) and max(confident, key=lambda c: row[c]) != label)
    assert label_noise.confident_learning(p, labels).tolist() == found


def test_suggest(write):
    end = {"filter": 70.0, "margin": 68.0, "random": 69.0}
    rows = [
        {"by": by, "data": data, "seed": seed, "round": number, "labels": 10 + 40 * number}
        | {"accuracy": (value + lead if number else 90.0) + seed - 2, "nll": 2.0 - value / 100, "expected": 60.0}
        for by, value in end.items()
        for data, lead in (("pets", 0.0), ("eurosat", 1.0 if by == "random" else 0.0))
        for seed in (1, 2, 3)
        for number in (0, 1)
    ]
    write("suggest", rows)
    lines = cells(suggest.table("pets"))
    assert lines[0] == ["OxfordPets", "10 labels", "50 labels"]
    assert lines[2] == ["**filter**", "90.0 / 1.300", "70.0 / 1.300"]
    assert suggest.against("margin") == "+2.0"
    assert suggest.against("random") == "+0.0 to +1.0"
    assert suggest.random_wins() == "EuroSAT: `margin` (2.0); OxfordPets: `margin` (1.0)"
    assert suggest.expected_error() == "20.0"  # 30 before, 10 after
    write("suggest-development", rows)
    assert [line[0] for line in cells(suggest.choice())[2:]] == ["**filter**", "random", "margin"]
    assert suggest.figure().png.startswith(b"\x89PNG")


def test_descriptions(write):
    accuracy = {"template": 50.0, "mean": 52.0, "spread 0.1": 49.5, "spread 0.3": 45.0}
    rows = [
        {"prior": prior, "data": "eurosat", "shots": k, "seed": seed}
        | {"accuracy": value + 10 * (k - 1), "nll": 1.5, "zero_shot": 20.0}
        for prior, value in accuracy.items()
        for k in (1, 4)
        for seed in (1, 2)
    ]
    write("descriptions", rows)
    assert cells(descriptions.table("eurosat"))[3] == ["mean", "20.0", "52.0 / 1.500", "82.0 / 1.500"]
    assert descriptions.gain("mean", "eurosat") == "+2.0"
    assert descriptions.gain("spread 0.1", "eurosat", "4") == "−0.5"


def test_bulk(write):
    """Ratios are to one worker and to the plain loop; what was not measured is said to be so."""
    rows = [
        {"what": "throughput", "workers": workers, "per_s": per_s, "cpu_s": cpu_s, "total_s": 10.0 + workers}
        for workers, per_s, cpu_s in ((2, 90.0, 0.012), (0, 40.0, 0.01), (1, 50.0, 0.011))
    ]
    grown = {"list_mb": 4.0, "list_cpu_s": 0.25, "resume_mb": 1.0, "resume_cpu_s": 0.5}
    stream = {"what": "memory", "stream_mb": 9.0, "stream_cpu_s": 2.0}
    rows += [{"names": 20000, **stream, **grown}, {"names": 3000000, **stream}]
    write("bulk", rows)
    assert cells(bulk.table())[2:] == [
        ["none: a plain loop", "40", "0.80", "1.00", "10.0 ms", "1.00", "10 s"],
        ["1", "50", "1.00", "1.25", "11.0 ms", "1.10", "11 s"],
        ["2", "90", "1.80", "2.25", "12.0 ms", "1.20", "12 s"],
    ]
    assert (bulk.cost("1"), bulk.cost("2")) == ("1.10", "1.20")
    assert cells(bulk.memory_table())[2:] == [
        ["20,000", "4 MB, 0.2 s", "9 MB, 2.0 s", "1 MB, 0.5 s"],
        ["3,000,000", "not measured", "9 MB, 2.0 s", "not measured"],
    ]


def test_large(write, tmp_path):
    row = {"images": 4000, "classes": 1200, "folds": 1, "peak_bytes": 3e8, "peak_by_formula": 0.9, "learn_s": 30.0}
    (tmp_path / "large.jsonl").write_text(json.dumps(row) + "\n")
    assert cells(large.table())[2:] == [["4,000", "1,200", "1", "300 MB", "0.90", "7.5 ms"]]


def test_an_interrupted_study_goes_on(tmp_path):
    options = argparse.Namespace(json=tmp_path / "unknown.json", shots=[1, 4])
    seen = []

    def measured(name, shots):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append((name, shots))
        return [{"familiar": name, "shots": shots}]

    cells = [("pets", 1), ("pets", 4), ("dtd37", 1)]
    with pytest.raises(KeyboardInterrupt):
        unknown.resumed(options, cells, measured)
    assert not options.json.exists()
    rows = unknown.resumed(options, cells, lambda *cell: [{"familiar": cell[0], "shots": cell[1], "again": True}])
    assert [row.get("again", False) for row in rows] == [False, False, True]
    assert [path.name for path in tmp_path.iterdir()] == ["unknown.json"]
    # other options are another study
    with pytest.raises(KeyboardInterrupt):
        unknown.resumed(options, cells, measured)
    seen.clear()
    other = argparse.Namespace(json=options.json, shots=[16])
    with pytest.raises(KeyboardInterrupt):
        unknown.resumed(other, cells, measured)
    assert seen == cells[:2]

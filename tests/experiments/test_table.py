"""Means, spreads, bold and failures of the table."""

import csv
import io
import statistics

import pytest

from kalmanclip.experiments.figure import draw_figure
from kalmanclip.experiments.table import Grid, to_csv, to_markdown


def test_a_cell_is_mean_and_sample_deviation_over_seeds(make_record):
    values = [0.5, 0.6, 0.8]
    cell = Grid([make_record(v, seed=s) for s, v in enumerate(values)]).cell("gda", "pets", 4)
    assert cell.mean() == pytest.approx(statistics.fmean(values))
    assert cell.std() == pytest.approx(statistics.stdev(values))
    assert cell.text == "63.3 ± 15.3"


def test_one_seed_has_no_deviation(make_record):
    cell = Grid([make_record(0.5)]).cell("gda", "pets", 4)
    assert (cell.text, cell.std()) == ("50.0", None)


def test_a_metric_that_is_not_defined_stays_empty(make_record):
    (row,) = csv.DictReader(io.StringIO(to_csv(Grid([make_record(0.5, seed=s) for s in (1, 2)]))))
    assert (row["failure_auroc_mean"], row["nll_mean"], row["nll_std"]) == ("", "0.5", "0.0")


def test_ties_are_all_best_and_a_mean_over_fewer_seeds_does_not_compete(make_record):
    records = [make_record(0.5, method=m, seed=s) for m in ("gda", "coop") for s in (1, 2)]
    records += [make_record(0.9, method="kalman", seed=1), make_record(None, "no\nmemory", method="kalman", seed=2)]
    grid = Grid(records)
    assert grid.best("pets", 4) == {"gda", "coop"}
    text = to_markdown(grid, "tiny")
    assert "| gda | **50.0 ± 0.0** |" in text
    assert "| kalman | 90.0 (1 failed) |" in text
    assert "- kalman on pets, 4-shot, seed 2: no memory" in text
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(to_csv(grid)))}
    assert (rows["kalman"]["failed"], rows["kalman"]["reasons"]) == ("1", "seed 2: no memory")


def test_nothing_but_failures_makes_a_table_and_a_figure(make_record, tmp_path):
    grid = Grid([make_record(None)])
    assert grid.best("pets", 4) == set()
    assert "| gda | failed |" in to_markdown(grid, "tiny")
    draw_figure([tmp_path / "f.png"], grid)
    assert (tmp_path / "f.png").stat().st_size > 0


def test_the_same_results_draw_the_same_file(make_record, tmp_path):
    grid = Grid([make_record(0.1 * s, seed=s, shots=k, data=d) for s in (1, 2) for k in (1, 4) for d in "abcde"])
    for name in ("one.svg", "two.svg"):
        draw_figure([tmp_path / name], grid)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()

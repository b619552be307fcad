"""Means, spreads, averages, bold, remarks and failures of the tables."""

import csv
import io
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.experiments.conftest import make_record as record_of

from kalmanclip.experiments.aggregate import METRICS, Place, fill_cells, places_of, to_csv, to_frame
from kalmanclip.experiments.report import MEASURES, draw_comparison, make_tables, remark, report_markdown, write_report
from kalmanclip.experiments.spec import Contamination
from kalmanclip.experiments.store import in_order

PETS = Place("pets", 4)


def tables_of(records):
    return make_tables(to_frame(records))


def rows_of(records):
    """The names of the rows, in their order."""
    return list(dict.fromkeys(to_frame(records)["row"]))


def cell_of(records, place=PETS, metric="accuracy"):
    return fill_cells(to_frame(records), [{"i": 0, "j": 0, **place._asdict()}], metric)[0, 0]


def text(table, row, *heads):
    return table.text(table.rows.index((row,)), list(table.columns).index(heads))


def best(table):
    """The best rows of the only column."""
    (_,) = table.columns
    return {table.rows[row][0] for row in table.best(0)}


def csv_of(records):
    return list(csv.DictReader(io.StringIO(to_csv(to_frame(records)))))


def test_a_cell_is_mean_and_sample_deviation_over_seeds(make_record):
    values = [0.5, 0.6, 0.8]
    records = [make_record(v, seed=s) for s, v in enumerate(values)]
    cell = cell_of(records)
    assert cell.mean == pytest.approx(statistics.fmean(values))
    assert cell.std == pytest.approx(statistics.stdev(values))
    assert tables_of(records)[0].text(0, 0) == "63.3 ± 15.3"


def test_options_that_a_row_sets_by_data_set_do_not_split_it(make_record):
    def records(by_data, *found):
        made = [make_record(0.5, data=d, fingerprint=f, seed=s, config=c) for d, f, s, c in found]
        return [record | {"by_data": by_data} for record in made]

    here, there = ("pets", "a" * 64, 1, {"alpha": 1.0, "beta": 1}), ("dtd", "b" * 64, 1, {"alpha": 2.0, "beta": 1})
    assert rows_of(records(["alpha"], here, there)) == ["gda"]
    assert rows_of(records([], here, there)) == ["gda (alpha=1.0)", "gda (alpha=2.0)"]
    again = ("pets", "a" * 64, 1, {"alpha": 3.0, "beta": 1})  # on the same data set it is another setting
    assert rows_of(records(["alpha"], here, again, there)) == ["gda (alpha=1.0)", "gda (alpha=3.0)", "gda"]


def test_one_seed_has_no_deviation(make_record):
    assert tables_of([make_record(0.5)])[0].text(0, 0) == "50.0"


def test_a_metric_that_is_not_defined_stays_empty_and_has_no_table(make_record):
    records = [make_record(0.5, seed=s) for s in (1, 2)]
    (row,) = csv_of(records)
    assert (row["failure_auroc_mean"], row["nll_mean"], row["nll_std"]) == ("", "0.5", "0.0")
    shown = [table.measure.metric for table in tables_of(records)]
    assert shown == ["accuracy", "nll", "ece"]  # no top-5 of two classes


def test_ties_are_all_best_and_a_mean_over_fewer_seeds_does_not_compete(make_record):
    records = [make_record(0.5, method=m, seed=s) for m in ("gda", "coop") for s in (1, 2)]
    records += [
        make_record(0.9, method="class_residuals", seed=1),
        make_record(None, "no\nmemory", method="class_residuals", seed=2),
    ]
    records += [make_record(0.9, method="ape_t", seed=1)]
    assert best(tables_of(records)[0]) == {"gda", "coop"}
    text = report_markdown(to_frame(records))
    assert "| gda | **50.0 ± 0.0** |" in text
    assert "| class_residuals | 90.0 (1 failed) |" in text
    assert "| ape_t | 90.0 (1 of 2 seeds) |" in text
    assert "- class_residuals on pets, 4-shot, seed 2: no memory" in text
    assert "It has no complete result on: pets, 4-shot." in text
    rows = {row["method"]: row for row in csv_of(records)}
    assert (rows["class_residuals"]["failed"], rows["class_residuals"]["reasons"]) == ("1", "seed 2: no memory")


def test_less_is_better_where_it_is(make_record):
    records = [make_record(0.5, method=m) for m in ("gda", "class_residuals")]
    records[0]["metrics"] |= {"nll": 0.25}
    frame = to_frame(records)
    tables = {table.measure.metric: table for table in make_tables(frame)}
    assert best(tables["nll"]) == {"gda"}
    assert (
        remark(frame, tables["nll"])
        == "class_residuals is not the best on 1 of 1 columns: pets, 4-shot (0.250 behind gda)."
    )
    assert remark(frame, tables["ece"]) == "class_residuals is the best, alone or with others, on 1 of 1 columns."


def test_averages_are_over_all_data_sets_seed_by_seed(make_record):
    values = {("a", 1): 0.2, ("a", 2): 0.4, ("b", 1): 0.6, ("b", 2): 0.6}
    records = [make_record(v, data=d, seed=s) for (d, s), v in values.items()]
    records += [make_record(0.9, data="a", seed=s, shots=8) for s in (1, 2)]  # no average: b has none
    records += [make_record(0.9, data="a", seed=s, method="coop") for s in (1, 2)]
    table = tables_of(records)[0]
    average = ("average", "4-shot")
    assert table.columns == [("a", "4-shot"), ("a", "8-shot"), ("b", "4-shot"), average]
    assert text(table, "gda", *average) == "45.0 ± 7.1"  # of 0.4 and 0.5
    assert text(table, "coop", *average) == "-"
    assert text(table, "coop", "a", "8-shot") == "-"


def test_shifts_and_contamination_have_tables_of_their_own(make_record):
    records = [make_record(0.5, moved={"sketch": 0.25, "art": 0.75}), make_record(0.25, contamination=Contamination(1))]
    tables = tables_of(records)
    assert tables[0].columns == [("pets", "4-shot")]
    shift, spoilt = ([(*heads, table.text(0, j)) for j, heads in enumerate(table.columns)] for table in tables[-2:])
    assert shift == [
        ("pets → sketch", "4-shot", "25.0"),
        ("pets → art", "4-shot", "75.0"),
        ("average", "4-shot", "50.0"),
    ]
    assert spoilt == [
        ("pets", "4-shot", "0 % corrupted", "50.0"),
        ("pets", "4-shot", "100 % corrupted (seed None)", "25.0"),
    ]
    found = [(row["shift"], row["corrupted"], row["accuracy_mean"]) for row in csv_of(records)]
    assert found == [("", "0.0", "0.5"), ("sketch", "0.0", "0.25"), ("art", "0.0", "0.75"), ("", "1.0", "0.25")]


def test_the_same_run_with_and_without_shifts_counts_once(make_record):
    with_shift, without = make_record(0.5, moved={"art": 0.5}), make_record(0.5)
    for records in ([with_shift, without], [without, with_shift], [make_record(None), with_shift]):
        assert list(cell_of(records).by_seed) == [1]
        assert cell_of(records, Place("pets", 4, shift="art")).mean == 0.5


def test_rows_are_labels_and_different_options_of_one_label_are_told_apart(make_record):
    variants = [make_record(0.5), make_record(0.6, label="mine", config={"alpha": 9})]
    assert rows_of(variants) == ["gda", "mine"]
    old = make_record(0.5)
    del old["label"]  # as results were before there were labels
    assert rows_of([old]) == ["gda"]
    clash = [make_record(0.5, config={"a": {"b": 1}, "c": 2}), make_record(0.5, config={"a": {"b": 3}, "c": 2})]
    assert rows_of(clash) == ["gda (a.b=1)", "gda (a.b=3)"]
    seeds = [make_record(0.5, seed=s, config={"seed": s}) for s in (1, 2)]
    assert rows_of(seeds) == ["gda"]


def test_different_data_sets_of_one_name_are_told_apart(make_record):
    places = places_of(to_frame([make_record(0.5), make_record(0.7, fingerprint="0" * 64)]))
    assert len(places) == 2
    assert all(place.data.startswith("pets #") for place in places)


@given(st.dictionaries(st.sampled_from(["class_residuals", "gda", "coop"]), st.floats(0, 1), min_size=2))
def test_the_remark_agrees_with_the_bold(accuracies):
    frame = to_frame([record_of(value, method=method) for method, value in accuracies.items()])
    for table in make_tables(frame):
        assert best(table)
        if table.measure.metric == "accuracy":
            most = max(round(100 * value, 1) for value in accuracies.values())
            assert best(table) == {m for m, value in accuracies.items() if round(100 * value, 1) == most}
        if "class_residuals" in accuracies:
            assert ("not the best" in remark(frame, table)) == ("class_residuals" not in best(table))
        else:
            assert remark(frame, table) == ""


def test_every_measure_is_a_metric_of_the_records():
    assert {measure.metric for measure in MEASURES} <= set(METRICS)


def test_nothing_but_failures_makes_a_table_and_a_figure(make_record):
    frame = to_frame([make_record(None)])
    assert best(make_tables(frame)[0]) == set()
    assert "| gda | failed |" in report_markdown(frame)
    assert draw_comparison(frame).png


def test_the_same_results_draw_the_same_picture_with_the_average_first(make_record):
    frame = to_frame([make_record(0.1 * s, seed=s, shots=k, data=d) for s in (1, 2) for k in (1, 4) for d in "abcde"])
    picture = draw_comparison(frame)
    assert picture == draw_comparison(frame)
    assert picture.svg.index("average of 5") < picture.svg.index(">a<")


def test_contaminated_runs_alone_have_a_figure(make_record):
    frame = to_frame([make_record(0.5, contamination=Contamination(0.5, seed=1))])
    assert "50 % corrupted" in draw_comparison(frame).svg


def test_every_backbone_has_its_figure(make_record, tmp_path):
    records = [make_record(0.5, model=model) for model in ("tiny", "RN50:openai")]
    assert list(write_report(tmp_path, records)["model"]) == ["tiny", "RN50:openai"]
    assert {path.name for path in tmp_path.glob("figure*.png")} == {"figure_tiny.png", "figure_RN50-openai.png"}


def test_records_without_an_order_get_one(make_record):
    wanted = [make_record(0.5, method=m, label=n) for m, n in (("kalman", ""), ("kalman", "a"), ("gda", ""))]
    wanted.append(make_record(0.5, method="kalman", shots=16))
    assert in_order(wanted[::-1]) == wanted

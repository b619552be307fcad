"""What people see on a terminal of 80 columns: no word broken, no line cut."""

import pytest

from kalmanclip.cli import console
from kalmanclip.cli.console import complain, facts, listing, note, say, shortened, suggest

WIDTH = 80
PATH = "/a/rather/long/path/to/a/picture/in/a/folder/of/a/folder/n02103406_5601.jpg"


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": str(WIDTH)}.items():
        monkeypatch.setenv(name, value)
    assert console.console().width == WIDTH


def read(capsys):
    """Return the lines on stdout and stderr."""
    shown = capsys.readouterr()
    assert "\x1b[" not in shown.out.replace("\x1b[0m", "").replace("\x1b[1m", "")
    return [line.replace("\x1b[0m", "").replace("\x1b[1m", "") for line in (shown.out + shown.err).splitlines()]


@pytest.mark.parametrize("columns", [3, 9, 15])
@pytest.mark.parametrize("words", ["elephant | golden retriever | hippopotamus", "", "short", "word " * 40])
def test_a_table_breaks_no_word(capsys, columns, words):
    heads = [f"probability {i}" for i in range(columns)]
    table = listing("image", *heads, right=heads[1:])
    table.add_row("a.jpg", *[f"first{i} {words}" for i in range(columns)])
    table.add_row("b.jpg", *[f"second{i}" for i in range(columns)])
    say(table)
    lines = read(capsys)
    assert max(map(len, lines)) <= WIDTH
    found = " ".join(lines).split()
    # every word is there as often as it was put there, and the first column names the rows of every part
    for word in {*words.split(), "probability"} - {"|"}:
        assert found.count(word) == columns * (words.split().count(word) if word != "probability" else 1)
    for i in range(columns):
        assert found.count(f"first{i}") == found.count(f"second{i}") == 1
    assert found.count("a.jpg") == found.count("b.jpg") == found.count("image") >= 1
    assert (found.count("image") > 1) == (columns > 3)


def test_a_table_that_fits_is_as_wide_as_its_contents(capsys):
    table = listing("name", "what it is")
    table.add_row("one", "a short sentence")
    say(table)
    assert max(map(len, read(capsys))) == len(" one   a short sentence ")


def test_prose_wraps_at_spaces_and_paths_stay_whole(capsys):
    text = f"{PATH}/{PATH} is not an adapter folder: it has no adapter.json. Give the folder that fit wrote before."
    for show in (complain, note, say):
        show(text)
        lines = read(capsys)
        assert " ".join(lines).removeprefix("Error: ") == text
        assert all(len(line) <= WIDTH or " " not in line.removeprefix("Error: ") for line in lines)


def test_commands_stay_whole(capsys):
    command = f"  kalmanclip fit {PATH} -o {PATH} --resume"
    note(f"Stopped. Go on with:\n{command}")
    assert read(capsys) == ["Stopped. Go on with:", command]
    suggest((command.strip(), "go on with it"), ("kalmanclip info", "see what it is"))
    assert read(capsys)[2:] == [command, "      go on with it", "  kalmanclip info", "      see what it is"]
    suggest(("kalmanclip info", "see what it is"), ("kalmanclip demo", "see it work"))
    assert read(capsys)[2:] == ["  kalmanclip info   see what it is", "  kalmanclip demo   see it work"]


def test_facts_wrap_beside_their_names(capsys):
    facts([("prior", "of a similarity, " * 8), ("saved in", "pets.adapter")])
    lines = read(capsys)
    assert max(map(len, lines)) <= WIDTH
    assert all(line.startswith(("prior", "saved in", " " * 10)) for line in lines)


def test_paths_are_shortened_to_their_end():
    assert shortened("a/b.jpg") == "a/b.jpg"
    short = shortened(PATH)
    assert len(short) <= WIDTH // 2
    assert short == "…/folder/of/a/folder/n02103406_5601.jpg"
    long_name = shortened(f"/folder/{'x' * 60}.jpg")
    assert len(long_name) == WIDTH // 2
    assert long_name.endswith("x.jpg")


def test_doubt_is_the_same_here_and_where_pictures_are_sorted():
    from inspect import signature

    from kalmanclip.cli.predict import _doubt
    from kalmanclip.cli.sort import sort
    from kalmanclip.prediction import SURE

    assert signature(sort).parameters["unsure"].default == SURE
    assert [_doubt(p) for p in (None, SURE - 0.01, SURE)] == ["unknown", "unsure", ""]


def test_a_bar_may_change_its_title(capsys):
    with console.bars() as show:
        show("this run", 1, 2, "gda on pets")
        show("this run", 0, 2, "kalman on pets")
    lines = " ".join(read(capsys))
    assert "kalman on pets" in lines
    assert "This run" not in lines.rpartition("kalman on pets")[2]

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "regression.py"
STRUCTURES = ["diagonal", "diagonal, precision", "block", "low rank", "dense"]


def test_regression_example(tmp_path, capsys):
    main = runpy.run_path(str(EXAMPLE))["main"]
    errors = main(["--out", str(tmp_path / "sine.png"), "--passes", "3"])
    assert (tmp_path / "sine.png").read_bytes().startswith(b"\x89PNG")
    assert all(errors[structure] < 0.4 * errors["before"] for structure in STRUCTURES)
    printed = capsys.readouterr().out
    assert all(name in printed for name in errors)

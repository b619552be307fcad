"""Whether the tests would notice: one small mistake at a time, each in a copy of the sources, each with its tests.

    python -m benchmarks.mutation [--only NAME ...] [--list]

`benchmarks.mutants` lists the mistakes. A mutant is killed when one of its tests fails, and has SURVIVED when all pass.
The same tests must pass on the unchanged copy first, so a test that always fails kills nothing. A mutant whose old text
no longer occurs exactly once is stale: the sources have moved on, and the list must follow them.

Exit code: 0 if all were killed, else 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "kalmanclip"
LIMIT = 300  # seconds for the tests of one mutant: a mistake may also make a loop endless
PASSED, FAILED = 0, 1  # pytest's exit codes; the others mean that it could not run the tests


def stale(mutant: Mutant, package: Path = PACKAGE) -> str | None:
    """Return why a mutant does not fit the sources, or None if it does."""
    file = package / mutant.file
    if not file.is_file():
        return f"there is no file {mutant.file}"
    count = file.read_text(encoding="utf-8").count(mutant.old)
    if count != 1:
        return f"its old text occurs {count} times in {mutant.file}, not once"
    return None


def chosen(only: Sequence[str]) -> list[Mutant]:
    """Return the mutants whose name contains one of the given words; all, if there are none."""
    return [m for m in MUTANTS if not only or any(word in m.name for word in only)]


def run_tests(tests: Sequence[str], source: Path, limit: float | None = LIMIT) -> tuple[int | None, str]:
    """Run tests on the package in `source`, stopping at the first failure.

    Args:
        tests: as pytest takes them.
        source: what belongs on PYTHONPATH.
        limit: seconds.

    Returns:
        Pytest's exit code (None: it ran into the time limit), and what it printed.
    """
    environment = os.environ | {
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "1",  # two mutants within a second would share a cached file
        "HYPOTHESIS_STORAGE_DIRECTORY": str(source / ".hypothesis"),  # a mutant's failures are not the project's
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"no end after {limit} s"
    return done.returncode, done.stdout + done.stderr


def judge(mutant: Mutant, source: Path) -> str:
    """Return 'killed', 'SURVIVED', or why neither can be said. The copy in `source` is left as it was."""
    file = source / "kalmanclip" / mutant.file
    before = file.read_text(encoding="utf-8")
    file.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code, output = run_tests(mutant.tests, source)
    finally:
        file.write_text(before, encoding="utf-8")
    if code == PASSED:
        return "SURVIVED"
    if code in (FAILED, None):
        return "killed"
    return f"ERROR: pytest ended with {code}\n{output[-2000:]}"


def copy_sources(folder: Path) -> Path:
    """Copy the package into a folder, and return what belongs on PYTHONPATH. The weights of `tiny` are only linked."""
    source = folder / "src"
    shutil.copytree(PACKAGE, source / "kalmanclip", ignore=shutil.ignore_patterns("__pycache__", "models"))
    (source / "kalmanclip" / "models").symlink_to(PACKAGE / "models", target_is_directory=True)
    return source


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the mutants one after the other, and sum up."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutation", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="mutants whose name contains this")
    parser.add_argument("--list", action="store_true", help="name the mutants and their tests, and run nothing")
    options = parser.parse_args(arguments)
    mutants = chosen(options.only)
    if not mutants:
        parser.error(f"no mutant is called {' or '.join(options.only)}; --list names them")
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name}\n    {mutant.file}: {', '.join(mutant.tests)}")
        return 0
    begin = time.perf_counter()
    verdicts: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        source = copy_sources(Path(folder))
        tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
        code, output = run_tests(tests, source, limit=None)
        if code != PASSED:
            print(f"The tests do not pass on the unchanged sources: mend that first.\n{output[-4000:]}")
            return 1
        for mutant in mutants:
            problem = stale(mutant)
            verdicts[mutant.name] = f"STALE: {problem}" if problem else judge(mutant, source)
            print(f"{verdicts[mutant.name]:<8}  {mutant.name}", flush=True)
    killed = sum(verdict == "killed" for verdict in verdicts.values())
    print(f"\n{killed} of {len(verdicts)} mutants killed in {time.perf_counter() - begin:.0f} s.")
    for name, verdict in verdicts.items():
        if verdict != "killed":
            print(f"{verdict.splitlines()[0]}  {name}")
    return 0 if killed == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())

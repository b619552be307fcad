"""Known vulnerabilities of what is installed: pip-audit, and in plain words what it could look up.

`make audit` runs it. A package that pip-audit cannot look up it calls neither safe nor unsafe, and ends well: without
its data that is every package, so this says whether anything was audited at all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

PATIENCE = 240  # seconds


def main() -> int:
    """Return the exit code: 1 with known vulnerabilities, 0 without, or where nothing could be looked up."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = [
            "--local",
            "--skip-editable",
            "--progress-spinner",
            "off",
            "--timeout",
            "10",
            "-f",
            "json",
            "-o",
            report,
        ]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pip_audit", *map(str, words)], capture_output=True, text=True, timeout=PATIENCE
            )
            problem = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        except subprocess.TimeoutExpired:
            problem = f"no answer within {PATIENCE} seconds"
        packages = json.loads(report.read_text())["dependencies"] if report.is_file() else []
    text, code = summary(packages, problem)
    print(text)
    return code


def summary(packages: list[dict], problem: str) -> tuple[str, int]:
    """Return what to say about pip-audit's list of packages, and the exit code."""
    audited = [package for package in packages if "skip_reason" not in package]
    if not audited:
        problem = packages[0]["skip_reason"] if packages else problem
        return f"Nothing was audited: the data about vulnerabilities cannot be reached ({problem[:200]}).", 0
    lines = [f"{len(audited)} of {len(packages)} packages were audited."]
    for package in audited:
        for found in package.get("vulns", ()):
            names = ", ".join(dict.fromkeys([found["id"], *found.get("aliases", ())]))
            fixed = ", ".join(found.get("fix_versions", ())) or "no version yet"
            lines.append(f"{package['name']} {package['version']}: {names}; fixed in {fixed}")
    known = len(lines) - 1
    lines.append(f"{known} known vulnerabilities." if known else "No known vulnerabilities.")
    return "\n".join(lines), int(known > 0)


if __name__ == "__main__":
    sys.exit(main())

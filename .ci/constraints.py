"""Print the versions that are installed of everything that the tests need: `make constraints` keeps them in a file.

What comes as different files for different machines is left out: torch, torchvision, and what torch brings for GPUs.
"""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("dev", "app", "ray")
BY_MACHINE = ("torch", "torchvision", "triton", "nvidia-", "cuda-")


def closure(root: Requirement) -> dict[str, str]:
    """Return the installed versions of whatever a requirement brings, by name; what is not installed is left out."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [root]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        for extra in ("", *wanted.extras):
            if (name, extra) in seen or name.startswith(BY_MACHINE):
                continue
            seen.add((name, extra))
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue
            needed = [Requirement(line) for line in requires(name) or ()]
            waiting += [r for r in needed if r.marker is None or r.marker.evaluate({"extra": extra})]
    return found


def main() -> None:
    """Print the file."""
    found = closure(Requirement(f"kalmanclip[{','.join(EXTRAS)}]"))
    del found["kalmanclip"]
    print("# Versions that the tests were last run with. Nothing uses them unless you say so:")
    print('#   make test PIP_FLAGS="-c constraints.txt"')
    print(f"# From Python {platform.python_version()}; others may need other versions. To refresh: make constraints")
    for name, number in sorted(found.items()):
        print(f"{name}=={number}")


if __name__ == "__main__":
    main()

"""Options that take several values one after the other: ``--shots 1 2 4``."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class Spread(TyperCommand):
    """A command without arguments: what follows an option that may be repeated are further values of it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Turn ``--shots 1 2`` into ``--shots 1 --shots 2``, which is what the parser understands."""
        repeatable = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        spread: list[str] = []
        option, filled = "", False
        for word in args:
            if word.startswith("-"):
                name, equals, _ = word.partition("=")
                option, filled = (name if name in repeatable else ""), bool(equals)
            elif option and filled:
                spread.append(option)
            else:
                filled = True
            spread.append(word)
        return list(super().parse_args(ctx, spread))

"""Errors a user can fix. Each is one line on screen: what is wrong, with their value, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """The input is wrong and nothing was started; the command line prints the message and exits 2."""


def unknown(what: str, value: object, valid: Iterable[str]) -> UserError:
    """The error for a name that does not exist: quotes it, offers the nearest valid one, lists them all."""
    names = sorted(valid)
    near = difflib.get_close_matches(str(value), names, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return UserError(f"unknown {what} '{value}'{hint} (valid: {', '.join(names) or 'none'})")

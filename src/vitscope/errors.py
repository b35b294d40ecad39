"""What vitscope raises. An error says what was wrong, what was expected, and what to type instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class VitscopeError(Exception):
    """Bad input or an impossible request. The command line prints the message alone and exits with 2."""


class UnsupportedModelError(VitscopeError):
    """A model, or a question to a model, that vitscope refuses by name and with a reason."""


class MissingPointError(VitscopeError, KeyError):
    """A point that a cache does not hold. A KeyError too, as with any dict."""

    __str__ = Exception.__str__  # KeyError's would put the message into quotes


class WeightsError(VitscopeError):
    """A checkpoint that does not fit, is broken, or tries to run code."""


class DataError(VitscopeError):
    """A dataset, an image or a mask that cannot be used."""


class UnsuitableDataError(DataError):
    """Data that one analysis cannot use (one image per class) while others can."""


class UnlabelledError(DataError):
    """An analysis compares predictions with labels, and there are none."""


class RunError(VitscopeError):
    """A run folder that is locked, of another configuration, or broken."""


class NumericalError(VitscopeError):
    """NaN or infinity where a finite number was expected."""


class FirstProcessError(VitscopeError):
    """What the first of several processes stopped at, in the others: the first one says it."""


def first_line(error: BaseException) -> str:
    """What an error of another package says, in short: some say a page, some nothing."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()  # without colours
    return (said or type(error).__name__).splitlines()[0][:300]


def suggest(wrong: str, known: Iterable[str], n: int = 3) -> str:
    """' Did you mean x, y?' for a misspelt name, or the empty string."""
    close = difflib.get_close_matches(wrong, list(known), n=n, cutoff=0.5)
    return f" Did you mean {', '.join(close)}?" if close else ""

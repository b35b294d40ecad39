"""Budgets: `1/255..6/255`, `0.5,1,2`, and the mistake that everybody makes once (`8` where `8/255` is meant)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from vitscope.errors import VitscopeError

MOST = 1000  # epsilons of one request: a range with a wrong step should not run for a year


class UnitError(VitscopeError):
    """Epsilons in units of 1/255 where pixels lie in [0, 1]. `instead` is what was probably meant."""

    def __init__(self, message: str, instead: str) -> None:
        super().__init__(message)
        self.instead = instead


@dataclass(frozen=True, order=True)
class Epsilon:
    """A budget and how people write it."""

    value: float  # in the units of the attacked images, for pixels [0, 1]
    text: str  # '4/255', '0.5'

    def __str__(self) -> str:
        return self.text


def parse_epsilons(given: str | float | Iterable[str | float], norm: str = "linf") -> tuple[Epsilon, ...]:
    """Words or numbers -> epsilons, ascending, each once. `A..B` counts in steps of 1/denominator, `A..B:C` of C."""
    items = [given] if isinstance(given, str | float | int) else list(given)
    words = [w.strip() for item in items for w in (item.split(",") if isinstance(item, str) else [_written(item)])]
    numbers = sorted({n for word in words if word for n in _expand(word)})
    if not numbers:
        raise VitscopeError("No epsilon is given: expected a budget or several, such as 4/255 or 1/255..6/255.")
    _check_unit(numbers, norm)
    in_255ths = norm == "linf" and all((n * 255).denominator == 1 for n in numbers)
    return tuple(Epsilon(float(n), _text(n, in_255ths)) for n in numbers)


def _expand(word: str) -> list[Fraction]:
    first, dots, rest = word.partition("..")
    if not dots:
        return [_number(word)]
    last, colon, step_word = rest.partition(":")
    low, high = _number(first), _number(last)
    step = _number(step_word) if colon else _common_step(first, last)
    if step is None:
        raise VitscopeError(
            f"--eps {word}: how far apart? Write the step behind a colon, {word}:{_text((high - low) / 4)}, or use "
            "fractions of one denominator, as in 1/255..6/255."
        )
    if step <= 0 or high < low:
        raise VitscopeError(f"--eps {word}: expected LOW..HIGH or LOW..HIGH:STEP with LOW <= HIGH and a positive step.")
    count = int((high - low) / step) + 1
    if count > MOST:
        raise VitscopeError(f"--eps {word} stands for {count:,} epsilons: choose a larger step (at most {MOST:,}).")
    return [low + i * step for i in range(count)]


def _common_step(first: str, last: str) -> Fraction | None:
    """1/255..6/255 counts in steps of 1/255, 1..5 in steps of 1; decimals do not say."""
    pattern = re.compile(r"\s*\d+\s*(?:/\s*(\d+))?\s*")
    a, b = pattern.fullmatch(first), pattern.fullmatch(last)
    denominators = {m[1] for m in (a, b) if m is not None and m[1]}
    if a is None or b is None or len(denominators) > 1:
        return None
    return Fraction(1, int(denominators.pop())) if denominators else Fraction(1)


def _number(word: str) -> Fraction:
    try:
        if re.search(r"e[-+]?\d{3}", word.lower()):  # Fraction("1e999999999") would write out a billion digits
            raise ValueError
        top, _, bottom = word.partition("/")
        value = Fraction(top.strip()) / (Fraction(bottom.strip()) if bottom else 1)
    except (ValueError, ZeroDivisionError) as error:
        raise VitscopeError(
            f"--eps {word!r} is not a number: expected something like 4/255, 0.03, 1/255,2/255 or 1/255..6/255."
        ) from error
    if value < 0:
        raise VitscopeError(f"--eps {word}: a budget cannot be negative.")
    return value


def _written(number: float) -> str:
    """A number as text: k/255 where that is what it is (Python's 8/255 arrives as 0.0313...)."""
    if not math.isfinite(number):
        raise VitscopeError(f"eps={number}: expected a finite budget.")
    k = round(number * 255)
    return f"{k}/255" if k and number < 1 and abs(number * 255 - k) < 1e-6 else repr(number)


def _text(number: Fraction, in_255ths: bool = True) -> str:
    """Linf budgets in 255ths where they are; 0.2 in another norm, or among 0.05, 0.1, ..., stays 0.2."""
    k, decimal = number * 255, f"{float(number):.6g}"
    short = not in_255ths and Fraction(decimal) == number
    return f"{k.numerator}/255" if k.denominator == 1 and 0 < number < 1 and not short else decimal


def _check_unit(numbers: Sequence[Fraction], norm: str) -> None:
    """With pixels in [0, 1] an Linf budget of 1 allows any picture whatsoever: 255ths are meant."""
    if norm != "linf" or max(numbers) < 1:
        return
    instead = ",".join(f"{float(n):g}/255" if n >= 1 else _text(n) for n in numbers)
    raise UnitError(
        f"An Linf budget of {float(max(numbers)):g} allows every picture, because pixels lie in [0, 1]. "
        f"In units of 1/255 this is --eps {instead}.",
        instead,
    )

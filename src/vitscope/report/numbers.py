"""Numbers as people read them: three significant digits, thousands separated, the full value on hover."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

MINUS = "−"


def short(value: Any, digits: int = 3) -> str:
    """1234.567 -> '1,230'; 0.00012345 -> '0.000123'; 1e-7 -> '1.00e-7'. Whole numbers keep all their digits."""
    if isinstance(value, bool) or not _is_number(value):
        return str(value)
    if _is_int(value):
        return _minus(f"{int(value):,}")
    number = float(value)
    if not math.isfinite(number):
        return "–" if math.isnan(number) else _minus("∞" if number > 0 else "-∞")
    if number == 0:
        return "0"
    # the exponent after rounding: 9.996 has exponent 1
    exponent = int(f"{number:.{digits - 1}e}".split("e")[1])
    if exponent < -4 or exponent >= 9:
        mantissa, power = f"{number:.{digits - 1}e}".split("e")
        return _minus(f"{mantissa}e{int(power)}")
    decimals = digits - 1 - exponent
    return _minus(f"{round(number, decimals):,.{max(decimals, 0)}f}")


def in_brackets(row: Mapping[Any, Any], value: str, scale: float = 1.0) -> str:
    """' (95 % interval 0.1 to 0.2)' of a value that has its ends beside it; nothing where there is no interval."""
    low, high = (scale * float(row[f"{value}_{end}"]) for end in ("low", "high"))
    return "" if low != low else f" (95 % interval {short(low)} to {short(high)})"


def percent(share: float, digits: int = 3) -> str:
    """0.735 -> '73.5 %'. Shares are in [0, 1]."""
    if not math.isfinite(share):
        return "–"
    return f"{short(float(share) * 100, digits)} %"


def full(value: Any) -> str:
    """Every digit, for the hover text."""
    return repr(float(value)) if _is_number(value) and not _is_int(value) else str(value)


def hover(value: Any, unit: str = "") -> Markup:
    """The short number as HTML that shows the full value on hover."""
    text = short(value) + (f" {unit}" if unit else "")
    return Markup('<span class="number" title="{}">{}</span>').format(full(value), text)


def seconds(value: float) -> str:
    """12.3 s, 4 min 05 s, 2 h 07 min."""
    if value < 60:
        return f"{short(float(value))} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def memory(size: float) -> str:
    """Bytes as MB or GB (decimal)."""
    return f"{short(size / 1e9)} GB" if size >= 1e9 else f"{short(size / 1e6)} MB"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) or getattr(getattr(value, "dtype", None), "kind", "") in ("i", "u")


def _minus(text: str) -> str:
    return text.replace("-", MINUS)

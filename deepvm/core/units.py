"""Units: reading, converting, showing.

The planner counts money in whole micro-dollars: where a plan costs exactly $8.80/h, a float sum
may say 8.800000000000001 and refuse it.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, timezone
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from numbers import Real
from typing import TypeGuard

from deepvm.core.spelling import nearest
from deepvm.errors import RequestError
from deepvm.records import dataclass

MICRO_USD = 1_000_000  # in a dollar
# Largest amount that is read: micro-dollars of it times 4096 VMs still fit into 64 bits
MOST_USD = 1_000_000_000
GIB = 2**30

MICRO = Decimal("0.000001")  # dollars; prices have no more decimals

Money = Decimal | int | float | str  # in dollars; floats are read by their shortest decimal form

# Two digits of an exponent: Decimal() refuses 1e999999999999999999999, and 1e-99999 is written with
# 99999 zeros.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,2})?", re.ASCII | re.IGNORECASE)
_MONEY_WORDS = r"\s*(\$|usd|us-?dollars?|dollars?|bucks|(/|per|an)\s*(hours?|hr|h)|/\s*h)\s*"
_BYTE_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{infix}B": base ** (power + 1)
    for infix, base in (("", 1000), ("I", 1024))
    for power, prefix in enumerate("KMGT")
}
_BYTE_WORDS = ("B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")
_SIZE = re.compile(r"\s*([0-9]{0,25}\.?[0-9]{1,25})\s*([A-Za-z]*)\s*")


def to_decimal(value: Money, option: str, *, zero: bool = False, unit: str = "dollars") -> Decimal:
    """Read an amount from 0 (only with ``zero``) to ``MOST_USD``. Raises a RequestError."""
    allowed = f"a finite number {'>= 0' if zero else '> 0'} and at most {MOST_USD:.0e} in {unit}"
    text = str(value).strip()
    # Decimal() alone would also read "1_000" and digits of other scripts.
    if isinstance(value, bool) or not (isinstance(value, Decimal) or _NUMBER.fullmatch(text)):
        bare = re.sub(_MONEY_WORDS, "", text, flags=re.IGNORECASE)
        if re.fullmatch(r"\d+,\d\d?", bare):
            bare = bare.replace(",", ".")
        elif re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", bare):
            bare = bare.replace(",", "")
        hint = ""
        if bare != text and _NUMBER.fullmatch(bare):
            hint = f"; did you mean {bare}?"
        raise RequestError(option, value, allowed + hint)
    if isinstance(value, Decimal):
        number = value
    else:
        number = Decimal(text)
    if not number.is_finite() or not 0 <= number <= MOST_USD or (number == 0 and not zero):
        raise RequestError(option, value, allowed)
    return number


def to_whole(
    value: object, option: str, allowed: str, *, least: int, most: float = math.inf
) -> int:
    """A whole number within bounds as an int: 4.0, Decimal(4), and numpy's 4 count.

    Raises a RequestError.
    """
    if _is_finite(value) and least <= value <= most and value == int(value):
        return int(value)
    raise RequestError(option, value, allowed)


def refuse_outside(
    option: str,
    value: float,
    least: float,
    most: float = math.inf,
    *,
    what: str = "a whole number",
    why: str = "",
) -> None:
    """Raise a RequestError for a number below ``least`` or above ``most``."""
    if not least <= value <= most:
        upper = f" to {most}" if most < math.inf else ""
        raise RequestError(option, value, f"{what} from {least}{upper}{why}")


def to_positive(value: object, option: str) -> float:
    """A finite number above 0, of any numeric type, as a float. Raises a RequestError."""
    if _is_finite(value) and value > 0:
        return float(value)
    raise RequestError(option, value, "a finite number > 0, or None when unknown")


def refuse_no_time(option: str, seconds: float, *, zero: bool = False) -> None:
    """Raise a RequestError unless a time is finite and above 0, or 0 where that is allowed."""
    if not 0 <= seconds < math.inf or (seconds == 0 and not zero):
        raise RequestError(option, seconds, "a time from 0 s" if zero else "a time above 0 s")


def _is_finite(value: object) -> TypeGuard[float]:
    """Whether it is of any numeric type, which text and booleans are not, and a float holds it."""
    try:
        return (
            isinstance(value, (Real, Decimal))
            and not isinstance(value, bool)
            and math.isfinite(value)
        )
    except (OverflowError, ValueError):  # an int that is too large for a float, a signalling NaN
        return False


def to_micro_usd(price: Decimal) -> int:
    """Whole micro-dollars of a price. Raises a RequestError for more than six decimals."""
    # quantize() is exact for any number of digits; multiplication rounds to 28
    exact = price.quantize(MICRO, rounding=ROUND_FLOOR)
    if price != exact:
        raise RequestError(
            "price",
            str(price),
            f"at most 6 decimals (micro-dollars); round it to {round(price, 6)}",
        )
    return int(exact * MICRO_USD)


def budget_micro_usd(budget: Decimal) -> int:
    """Whole micro-dollars of a budget; prices are whole ones, so rounding down loses no plan."""
    return int(budget.quantize(MICRO, rounding=ROUND_FLOOR) * MICRO_USD)


def format_usd(amount: Decimal | int) -> str:
    """An exact amount with at least four decimals, unrounded as it may be used as a budget."""
    whole, _, decimals = f"{_usd(amount):f}".partition(".")
    return f"{whole}.{decimals.rstrip('0'):0<4}"


def format_money(usd: Decimal | float) -> str:
    """``$1,930.00``; four decimals only below one cent."""
    if 0 < usd < 0.01:
        return f"${usd:.4f}"
    return f"${usd:,.2f}"


def as_budget(amount: Decimal | int) -> str:
    """Rounded up, so that it is enough as a budget: to cents, below $1 to four decimals."""
    usd = _usd(amount)
    step = Decimal("0.01") if usd >= 1 else Decimal("0.0001")
    return f"{usd.quantize(step, ROUND_CEILING):f}"


def _usd(amount: Decimal | int) -> Decimal:
    if isinstance(amount, Decimal):
        return amount
    return Decimal(amount) / MICRO_USD


_TIME = re.compile(
    r"\s*\+?((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(s|min|m|h|d)?\s*", re.ASCII | re.IGNORECASE
)
_TIME_UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
_TIME_WORDS = {
    "seconds": "s",
    "secs": "s",
    "minutes": "min",
    "mins": "min",
    "hours": "h",
    "hrs": "h",
    "days": "d",
}
MOST_SECONDS = 10**10  # three hundred years: more is a typing error


def parse_seconds(
    value: str | float, option: str, *, bare: str = "", zero: bool = False, allowed: str = ""
) -> float:
    """Read a time up to ``MOST_SECONDS``: ``12h``, ``90min``, ``2d``, ``300s``, or a number.

    ``bare``: the unit of what has none. Without it numbers are seconds and text needs a unit.
    Raises a RequestError, with ``allowed`` instead of the usual message.
    """
    allowed = (
        allowed
        or f"a time {'from' if zero else 'above'} 0 with a unit of s, min, h or d, such as 12h"
    )
    if isinstance(value, str):
        match = _TIME.fullmatch(value)
        if match is None or not (match[2] or bare):
            raise RequestError(option, value, allowed + _meant_time(value))
        seconds = float(match[1]) * _TIME_UNITS[(match[2] or bare).lower()]
    elif _is_finite(value):
        seconds = value * _TIME_UNITS[bare or "s"]
    else:
        raise RequestError(option, value, allowed)
    if not 0 <= seconds <= MOST_SECONDS or (seconds == 0 and not zero):
        raise RequestError(option, value, allowed)
    return seconds


def _meant_time(value: str) -> str:
    """A hint for a spelled-out unit: ``12 hours``."""
    number, unit = re.fullmatch(r"\s*([0-9.]*)\s*(.*?)\s*", value, re.DOTALL).groups()  # type: ignore[union-attr]
    if _NUMBER.fullmatch(number) and unit.lower() in ("w", "wk", "wks", "week", "weeks"):
        return f"; did you mean {7 * float(number):g}d?"
    near = nearest(unit, _TIME_WORDS) if number else []
    if near:
        return f"; did you mean {number}{_TIME_WORDS[near[0]]}?"
    return ""


def parse_hours(value: str | float, option: str) -> float:
    """Read an amount of work, seconds: hours, or ``90min``. Raises a RequestError."""
    allowed = (
        f"hours above 0 and at most {MOST_SECONDS // 3600}, or a time with a unit of s, min, h or"
        " d, such as 90min"
    )
    return float(parse_seconds(value, option, bare="h", allowed=allowed))


def format_seconds(seconds: float, *, up: bool = False, digits: int = 4) -> str:
    """A time rounded (up) to so many digits: ``45 s``, ``12.5 min``, ``7.25 h``, ``12.3 d``."""
    if seconds == math.inf:
        return "never"
    units = (("s", 1.0, 120.0), ("min", 60.0, 7200.0), ("h", 3600.0, 4 * 86400.0))
    unit, size = next(((u, s) for u, s, most in units if seconds < most), ("d", 86400.0))
    number = seconds / size
    if up and number > 0:
        last = 10.0 ** (math.floor(math.log10(number)) + 1 - digits)  # what the last digit counts
        number = math.ceil(number / last) * last
    return f"{float(f'{number:.{digits}g}'):g} {unit}"


MOST_BYTES = 10**24  # more is a typing error; floats and solvers still count with it


def elapsed(seconds: float) -> str:
    """A time after the start: ``12.3 s``, ``4:05`` (minutes), ``1:04:05``, ``2 d 1:04:05``."""
    if seconds < 60:
        return f"{max(seconds, 0.0):.1f} s"
    text = str(timedelta(seconds=int(seconds)))
    text = text.replace(" days,", " d").replace(" day,", " d")
    return text.removeprefix("0:").removeprefix("0")


def parse_bytes(size: str | int, option: str = "checkpoint_size", *, zero: bool = False) -> int:
    """Read a size: ``300MB``, ``0.3GB`` (powers of 1000), ``512MiB`` (of 1024), or a number.

    Raises a RequestError, also for text without a unit below a million: no bytes are meant.
    """
    allowed = "0, or " if zero else ""
    allowed += (
        "a size above 0 with a unit of B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, such as 300MB"
    )
    if isinstance(size, int) and not isinstance(size, bool):
        exact = Fraction(size)
    else:
        match = None
        if isinstance(size, str):
            match = _SIZE.fullmatch(size)
        if match is None or match[2].upper() not in _BYTE_UNITS:
            hint = ""
            if match and (unit := _meant_unit(match[2])):
                hint = f"; did you mean {match[1]}{unit}?"
            raise RequestError(option, size, allowed + hint)
        exact = Fraction(match[1]) * _BYTE_UNITS[match[2].upper()]
        if not match[2] and exact < 1_000_000 and not (zero and exact == 0):
            raise RequestError(option, size, allowed)
    if zero and exact == 0:
        return 0
    if not 1 <= exact <= MOST_BYTES:
        raise RequestError(option, size, f"{allowed}, and at most {format_bytes(MOST_BYTES)}")
    return -int(-exact // 1)


def _meant_unit(word: str) -> str:
    """``GB`` for ``G``, ``gigs`` and ``gigabytes``, ``GiB`` for ``Gi``; empty if unclear."""
    known = re.fullmatch(r"([kmgt])(i?b?|igs?|egs?|(ilo|ega|iga|era)?bytes?)", word.lower())
    if known is None:
        return next(iter(nearest(word, _BYTE_WORDS)), "")
    infix = "i" if known[2] in ("i", "ib") else ""
    return f"{known[1] if known[1] == 'k' and not infix else known[1].upper()}{infix}B"


def format_bytes(count: int) -> str:
    """A size in its largest decimal unit, at most two decimals, rounded down: ``300 MB``."""
    power = max(p for p in range(5) if p == 0 or count >= 1000**p)
    shown = str(count)
    if power:
        shown = f"{count * 100 // 1000**power / 100:.2f}".rstrip("0").rstrip(".")
    return f"{shown} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def counted(count: int, word: str, words: str = "") -> str:
    """``1 size``, ``2 sizes``; ``words``: a plural that is none with s."""
    if count == 1:
        return f"{count} {word}"
    return f"{count} {words or f'{word}s'}"


def format_short(value: float) -> str:
    """Three digits with k, M or G; thousands up to 9 990 in full."""
    for letter, size, least in (("G", 1e9, 999.5e6), ("M", 1e6, 999.5e3), ("k", 1e3, 9995)):
        if value >= least:
            return f"{float(f'{value / size:.3g}'):g}{letter}"
    return f"{float(f'{value:.3g}'):g}"


# Standard deviations on either side of the mean that hold 80 % of a normal distribution
Z80 = 1.2815515655446004


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its 80 % interval, ``low <= value <= high``."""

    low: float
    value: float
    high: float

    @classmethod
    def of_log(cls, value: float, sd: float) -> Interval:
        factor = math.exp(Z80 * sd)
        return cls(value / factor, value, value * factor)

    @classmethod
    def exact(cls, value: float) -> Interval:
        return cls(value, value, value)

    def scaled(self, factor: float) -> Interval:
        return Interval(self.low * factor, self.value * factor, self.high * factor)

    def inverse(self, numerator: float = 1.0) -> Interval:
        """``numerator`` over it: seconds from a rate."""
        return Interval(numerator / self.high, numerator / self.value, numerator / self.low)

    @property
    def relative(self) -> float:
        """Half the width as a share of the value, on a log scale: 0.1 is about 10 % either way."""
        if self.low > 0:
            return math.sqrt(self.high / self.low) - 1
        return math.inf

    @property
    def in_short(self) -> str:
        """Such as ``330 (184-593)``."""
        low, value, high = map(format_short, (self.low, self.value, self.high))
        return f"{value} ({low}-{high})"


def parse_time(text: str) -> datetime:
    """A moment with a time zone, or a day, in whole seconds of UTC. Raises ValueError."""
    # Python 3.10 reads no Z.
    moment = datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith("Z") else text)
    if moment.tzinfo is None:
        if len(text) > len("2026-01-31"):
            raise ValueError(f"{text!r} names no time zone")
        moment = moment.replace(tzinfo=timezone.utc)
    try:
        return moment.astimezone(timezone.utc).replace(microsecond=0)
    except OverflowError:
        raise ValueError(f"{text!r} is out of range") from None


def format_time(moment: datetime) -> str:
    """ISO 8601 in UTC, whole seconds, with ``Z``."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc_text(seconds: float, timespec: str = "seconds") -> str:
    """A time since the epoch as ISO 8601 in UTC, with ``Z``."""
    text = datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec=timespec)
    return text.replace("+00:00", "Z")

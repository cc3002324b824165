"""Names in messages: which one was meant by a misspelled one, and lists of many."""

from collections.abc import Collection, Iterable, Sequence

from deepvm.errors import RequestError

_LONGEST = 100
_COMPARED = 5
_LIKENESS = 0.66


def nearest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The most probably meant names, best first: those alike, then those that start with it."""
    from difflib import get_close_matches  # only errors need it

    names = {one.casefold(): one for one in known}
    typed = name[:_LONGEST].casefold()
    if len(typed) < 2:
        return []
    near = get_close_matches(typed, names, _COMPARED, _LIKENESS)
    near.sort(key=lambda one: sorted(one) != sorted(typed))  # swapped letters are the usual slip
    near += sorted((one for one in names if one.startswith(typed) and one not in near), key=len)
    return [names[one] for one in near[:most]]


def did_you_mean(name: str, known: Iterable[str], meant: str = "") -> str:
    """``did you mean us-east-1?``, empty when nothing is near; ``meant``: if that is known."""
    near = _meant(name, known, meant, 1)
    if near:
        return f"did you mean {near}?"
    return ""


def _meant(name: str, known: Iterable[str], meant: str, most: int) -> str:
    """What is meant, else the nearest names, as they are typed in a shell."""
    return meant or " or ".join(map(for_a_shell, nearest(name, known, most)))


def one_of(
    name: object, known: Iterable[str], between: str = " or ", *, also: str = "", meant: str = ""
) -> str:
    """What an error allows, with ``also``: ``tiering or single-anchor; did you mean tiering?``."""
    names = list(known)
    guess = ""
    if isinstance(name, str):
        guess = did_you_mean(name, names, meant)
    return between.join(names) + also + (f"; {guess}" if guess else "")


def refuse_unknown(option: str, name: str, known: Collection[str], between: str = " or ") -> None:
    """Raise a RequestError for a name that is not among the known ones."""
    if name not in known:
        raise RequestError(option, name, one_of(name, known, between))


def examples(name: str, known: Iterable[str], meant: str = "") -> str:
    """The end of a sentence about many names: the probable one, else some of all kinds."""
    names = list(known)
    near = _meant(name, names, meant, 3)
    if near:
        return f"; did you mean {near}?"
    return f", such as {', '.join(names[:: len(names) // 8 + 1])}"


def for_a_shell(word: str) -> str:
    """The word quoted for a command line if a shell would split or expand it."""
    if set(word) & set(" *?["):
        return f"'{word}'"
    return word


def listed(names: Sequence[str], most: int = 5) -> str:
    """``a, b and 3 more``."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def joined(words: Iterable[str], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *most, end = words
    if most:
        return f"{', '.join(most)} {last} {end}"
    return end


def a_or_an(name: str) -> str:
    """A name with its article as it is read: ``an A100``, ``an L4``, ``a T4``."""
    first = name[:1].upper()
    # Letters are named one by one
    spelt = len(name) > 1 and (name[1].isdigit() or name[:2].isupper())
    return f"{'an' if first in ('AEFHILMNORSX' if spelt else 'AEIOU') else 'a'} {name}"


def printable(text: str) -> str:
    """The text without what a terminal would obey: control characters are escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)

"""Results of the Python API, which convert to a document, a data frame or a notebook table.

The reports package, many layers above, knows how to write a result. Results reach it through the
public API, the package itself, which loads it on first use: the only import upward.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import deepvm

if TYPE_CHECKING:
    import pandas

Row = TypeVar("Row", covariant=True)


class Answer:
    """An answer that can be shown in other forms."""

    def to_dict(self) -> dict[str, Any]:
        """The document that ``-o json`` prints; ``deepvm schema`` describes it."""
        return deepvm.forms_of(self).document()

    def to_frame(self) -> "pandas.DataFrame":
        """The rows of ``-o csv`` as a data frame, unknown values missing.

        Raises MissingExtraError: no pandas.
        """
        return deepvm.forms_of(self).frame()

    def _repr_html_(self) -> str:
        """The same rows as a plain table, for notebooks."""
        return deepvm.forms_of(self).html()


class Rows(Answer, Sequence[Row]):
    """An answer that is a sequence of rows, the attribute ``rows``."""

    rows: tuple[Row, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self.rows[index]

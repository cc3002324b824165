"""``deepvm.recommend``: the command's answer, with its options as keywords."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import Field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from deepvm.core.cluster.instances import Catalog
from deepvm.core.options import Option, default_of, option_of
from deepvm.core.spelling import one_of
from deepvm.errors import RequestError
from deepvm.planner.recommend import Recommendations
from deepvm.planner.request import PlanRequest, with_tables
from deepvm.services.open_catalogs import CatalogOpener
from deepvm.services.plan_options import DEFAULT_CATALOG, NO_MODEL, RankFlags
from deepvm.services.recommend import recommend_in

if TYPE_CHECKING:
    from deepvm.core.progress import Say
    from deepvm.core.units import Money
    from deepvm.planner.request import MeasuredTables

# What Python takes as an argument of its own, or as an object
_OWN = ("pw", "catalog", "tables", "simulate")
_OBJECTS = ("training", "job", "quotas")


def _ignore(text: str) -> None: ...


def recommend(
    catalog: Catalog | str | None = None,
    budget: Money | None = None,
    *,
    tables: MeasuredTables | None = None,
    simulate: int | str | None = None,
    say: Say = _ignore,
    **options: Any,
) -> Recommendations:
    """Rank the clusters that train fastest for a budget; with none feasible, the answer says why.

    ``recommend(budget=3, model="llama-8b")`` is what the command answers.

    Args:
        catalog: the types and prices, from :func:`deepvm.load_catalog`; or a name, as the command's
            ``--catalog``. Without it the command's default, live prices if possible.
        budget: the most to pay, $/h. None with a total_budget or a deadline: the answer says it.
        tables: measured on your own machines, ``deepvm.load_tables()``; None for the catalog's
            figures, or the saved ones where no Catalog is given.
        simulate: runs of the job on each ranked cluster; None for those clusters only for which the
            closed form does not hold.
        say: called with notes while it plans.
        **options: training: what is trained, from :func:`deepvm.workload`; instead of model and the
            like. job: a job, whose step_s is that of one VM. quotas: account limits; None: the
            catalog's. The others are those of the command:
    """
    flags = RankFlags(
        pw=budget,  # type: ignore[arg-type]
        catalog=catalog if isinstance(catalog, str) else DEFAULT_CATALOG,
        **{name: _checked(name, value) for name, value in options.items()},
    )
    if isinstance(catalog, Catalog) or tables is not None:
        flags = replace(flags, tables="paper")
    if isinstance(catalog, Catalog) and not flags.names_a_model:
        flags = replace(flags, model=NO_MODEL)
    opener = CatalogOpener(flags, say, say, lambda catalogs: None, lambda name: "")
    catalogs: Sequence[Catalog] = ()
    if catalog is None or isinstance(catalog, str):
        catalogs = opener.all()
    catalogs = [with_tables(c, tables) for c in catalogs or [catalog]]  # type: ignore[list-item]
    asked = opener.planned(catalogs[0])
    objects = {name: getattr(flags, name) for name in _OBJECTS}
    asked = replace(asked, **{name: v for name, v in objects.items() if v is not None})
    request = PlanRequest.parse(budget, asked)
    return recommend_in(catalogs, request, simulate=simulate, say=say).answers[0]


def _checked(name: str, value: Any) -> Any:
    """A value as the command line gives it: a list where several are taken, a known choice."""
    field: Field[Any] | None = RankFlags.__dataclass_fields__.get(name)
    about = option_of(field) if field else None
    if field is None or about is None or value is None:
        return value
    if isinstance(default_of(field), list):
        return [value] if isinstance(value, str) else list(value)
    word = value.value if isinstance(value, Enum) else value
    if about.choices and about.read is None and word not in about.choices:
        raise RequestError(name, value, one_of(value, about.choices))
    return value


_NUMBERS = {"N": "int | str", "COUNT": "float | str", "USD": "Money", "HOURS": "float | str"}
_NUMBERS |= dict.fromkeys(("TIME", "SECONDS", "SHARE"), "float | str") | {"SIZE": "int | str"}


def _type_of(default: Any, about: Option) -> str:
    if isinstance(default, list):
        return "str | Sequence[str]"
    kind = _NUMBERS.get(about.metavar or "", "str")
    if about.kind is bool:
        kind = "bool"
    return f"{kind} | None" if default is None else kind


def _name_options(function: Any) -> None:
    """Give a function the command's options as named parameters, each with its help."""
    given = list(inspect.signature(function).parameters.values())[:-1]
    named = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None) for n in _OBJECTS]
    lines = []
    for field in fields(RankFlags):
        about = option_of(field)
        if about is None or field.name in _OWN:
            continue
        default = default_of(field)
        kind = _type_of(default, about)
        shown = default.value if isinstance(default, Enum) else default
        named.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=tuple(shown) if isinstance(shown, list) else shown,
                annotation=kind,
            )
        )
        lines.append(f"            {field.name}: {about.help}")
    function.__signature__ = inspect.Signature(
        [*given[:2], *named, *given[2:]], return_annotation=Recommendations
    )
    function.__doc__ = "\n".join([function.__doc__.rstrip(), *lines, _RAISES])


_RAISES = """
    Raises:
        RequestError: an argument cannot be used.
        MissingDataError: the catalog lacks what was asked for.
        CloudError: prices could not be read.
    """
_name_options(recommend)

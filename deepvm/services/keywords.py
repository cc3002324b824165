"""``deepvm.recommend``: the command's answer, with its options as keywords."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from deepvm.core.cluster.instances import Catalog
from deepvm.core.options import default_of, option_of
from deepvm.core.spelling import nearest
from deepvm.planner.recommend import Recommendations
from deepvm.planner.request import PlanRequest, with_tables
from deepvm.services.open_catalogs import CatalogOpener
from deepvm.services.plan_options import NO_MODEL, RankFlags
from deepvm.services.recommend import recommend_in

if TYPE_CHECKING:
    from deepvm.core.progress import Say
    from deepvm.core.units import Money
    from deepvm.planner.request import MeasuredTables

# What Python takes as an argument of its own
_OWN = ("pw", "catalog", "tables", "simulate")
_NAMES = {field.name for field in fields(RankFlags)} - set(_OWN)
_LISTS = {field.name for field in fields(RankFlags) if isinstance(default_of(field), list)}


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
    for name in options.keys() - _NAMES:
        similar = "".join(f"; did you mean {one!r}?" for one in nearest(name, _NAMES | {"budget"}))
        raise TypeError(f"recommend() got an unexpected keyword argument {name!r}{similar}")
    flags = RankFlags(
        pw=budget,  # type: ignore[arg-type]
        **{name: _listed(name, value) for name, value in options.items()},
    )
    if isinstance(catalog, str):
        flags = replace(flags, catalog=catalog)
    elif catalog is not None and not flags.names_a_model:
        flags = replace(flags, model=NO_MODEL)
    if isinstance(catalog, Catalog) or tables is not None:
        flags = replace(flags, tables="paper")
    opener = CatalogOpener(flags, say, say, lambda catalogs: None, lambda name: "")
    opened: Sequence[Catalog]
    if catalog is None or isinstance(catalog, str):
        opened = opener.all()
    else:
        opened = [catalog]
    catalogs = [with_tables(each, tables) for each in opened]
    request = PlanRequest.parse(budget, opener.planned(catalogs[0]))
    return recommend_in(catalogs, request, simulate=simulate, say=say).answers[0]


def _listed(name: str, value: Any) -> Any:
    """A value as the command line gives it: a list where several are taken."""
    if name in _LISTS and isinstance(value, str):
        return [value]
    return value


def _name_options(function: Any) -> None:
    """Give a function the command's options as named parameters, each with its help."""
    positional, budget, *own, _ = inspect.signature(function).parameters.values()
    named = []
    lines = []
    for name, parameter in inspect.signature(RankFlags).parameters.items():
        if name in _OWN:
            continue
        if name in _LISTS:
            parameter = parameter.replace(default=(), annotation="str | Sequence[str]")
        named.append(parameter)
        if (about := option_of(RankFlags.__dataclass_fields__[name])) is not None:
            lines.append(f"            {name}: {about.help}")
    function.__signature__ = inspect.Signature(
        [positional, budget, *named, *own], return_annotation=Recommendations
    )
    function.__doc__ = "\n".join([function.__doc__.rstrip(), *lines, _RAISES])


_RAISES = """
    Raises:
        RequestError: an argument cannot be used.
        MissingDataError: the catalog lacks what was asked for.
        CloudError: prices could not be read.
    """
_name_options(recommend)

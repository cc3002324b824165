"""Open the catalogs that the options of a plan name, and read what else they name."""
# ``--reserved`` and ``--savings-plan``: the users' commitments. ``--mttp history``: how long the
# spot VMs of their own jobs lived, used instead of a cloud's bands.

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

# First here: its import, deeper in the call stack, may cross a chunk of CPython's frame stack at
# each of thousands of calls, which maps and unmaps it every time (60 ms of `recommend`).
import numpy  # noqa: F401

from deepvm.core.options import USUAL_MODEL, AmountOptions, workload_keywords
from deepvm.errors import (
    CloudError,
    DeepVMError,
    MissingDataError,
    OptionMismatchError,
    RequestError,
)
from deepvm.io.user_dirs import MEASURED, is_missing, own_data_folder
from deepvm.records import dataclass, field, fields, replace
from deepvm.services.plan_options import DEFAULT_CATALOG, HISTORY, NO_MODEL, PlanFlags

if TYPE_CHECKING:
    from deepvm.catalog.market.open_markets import Placement
    from deepvm.catalog.measured.tables import Tables
    from deepvm.catalog.signals.cloud import Cloud
    from deepvm.core.cluster.instances import Catalog, Quota
    from deepvm.core.progress import Say
    from deepvm.core.training.speed import Training
    from deepvm.core.training.workload import Workload
    from deepvm.planner.regions import Comparison, Omission

# Options that only make sense with a cloud's market
_OF_A_MARKET = ("profile", "price_basis", "prices", "days", "price_history", "placement_scores")


@dataclass(frozen=True)
class CatalogOpener:
    """Opens the catalogs and files that options name."""

    options: PlanFlags
    say: Say
    progress: Say
    describe: Callable[[Sequence[Catalog]], None]
    set_by: Callable[[str], str]
    left_out: list[Omission] = field(default_factory=list)  # by all()

    def all(self) -> tuple[Catalog, ...]:
        """One catalog per cloud and region, with the user's measurements."""
        options = self.options
        check(options)
        opened = self._of_market() or [self._other()]
        catalogs = with_figures(opened, options.tables, options.workload, self.say, self._steps)
        if options.mttp == HISTORY:
            catalogs = self._with_history(catalogs)
        self._check_extras(catalogs)
        if options.reserved or options.savings_plan:
            return self._with_commitments(catalogs)
        return catalogs

    def one(self) -> Catalog:
        """The catalog, for a command that takes only one. Raises RequestError."""
        for option, names in (("region", self.options.regions), ("cloud", self.options.clouds)):
            if len(names) > 1 or "all" in names:
                allowed = f"one {option}; 'deepvm recommend' compares several"
                raise RequestError(option, " ".join(names), allowed)
        return self.all()[0]

    def planned(self, catalog: Catalog) -> PlanFlags:
        options = self.options
        if options.mttp == HISTORY:  # it is in the catalog
            if options.interruption_rate is not None:
                rate = options.interruption_rate
                raise OptionMismatchError.with_other("interruption_rate", rate, "--mttp")
            options = replace(options, mttp=None)
        job = options.job
        if options.job_file:
            from deepvm.simulator.jobfile import read_job

            job = read_job(Path(options.job_file))
            if job.spot_usd_per_hour or job.on_demand_usd_per_hour:
                self.say(f"{options.job_file}: its prices are not used, the catalog's are")
        quotas = options.quotas
        if quotas is None:
            quotas = _open_quotas(options.quota, catalog, self.say)
        training = options.training or self._training(catalog)
        return replace(options, quotas=quotas, job=job, training=training)

    def placement(self, answers: Comparison) -> Placement | None:
        if not self.options.placement_scores or not answers.ranked:
            return None
        from deepvm.catalog.market.open_markets import placement

        best = answers.ranked[0]
        cluster = best.recommendation.cluster
        catalog = best.answer.catalog
        count = cluster.spot_count
        if not catalog.provenance.origins:
            reason = "prices are not read from AWS"
        elif not count:
            reason = "the best cluster has no spot VMs"
        else:
            try:
                return placement(
                    catalog, cluster.gpu, count, self.options.market(), progress=self.progress
                )
            except CloudError as error:
                reason = str(error)
        self.say(f"no placement scores: {reason}")
        return None

    def _of_market(self) -> Sequence[Catalog]:
        from deepvm.catalog.clouds import REGISTRY, cloud_of, region_in

        options = self.options
        names = options.clouds
        regions = options.regions
        if names:
            if not self.set_by("catalog"):
                _refuse_both(options.cloud[0], options.catalog)
        else:
            named = region_in(options.catalog)
            if named is None:
                return []
            names = (cloud_of(options.catalog).name,)
            if named and regions not in ((), (named,)):
                allowed = f"{named}, which --catalog names, or --catalog aws"
                self._ignore_region(
                    RequestError("region", regions[0], allowed), f"with --catalog {named}"
                )
            regions = (named,) if named else regions
        from deepvm.catalog.market.open_markets import open_markets  # not for other catalogs

        market = self._market()
        catalogs: list[Catalog] = []
        failed: list[DeepVMError] = []
        for cloud, own in _regions_of([REGISTRY[name] for name in names], regions).items():
            others = len(names) > 1
            try:
                catalogs += open_markets(
                    own, market, cloud=cloud, progress=self.progress, others=others
                )
            except (MissingDataError, CloudError, RequestError) as error:
                failed.append(error)
                if others:
                    from deepvm.planner.regions import Omission

                    self.left_out.append(Omission(cloud.name, str(error)))
                    self.say(f"{cloud.title} is left out: {error}")
        if not catalogs:
            raise failed[0]
        self.describe(catalogs)
        return catalogs

    def _ignore_region(self, error: DeepVMError, where: str) -> None:
        setter = self.set_by("region")
        if not setter:
            raise error
        self.say(f"region = {', '.join(self.options.regions)} ({setter}) has no effect {where}")

    def _market(self) -> Any:
        options = self.options  # a setting for all commands must not contradict the command line
        current = options.price_basis == "current"
        if options.price_history and current and not self.set_by("price_history"):
            needed = "without --price-basis p50, p95 or max"
            self.say(f"--history {options.price_history} has no effect {needed}")
        setter = self.set_by("prices")
        if options.offline and options.prices == "live" and setter and not self.set_by("offline"):
            self.say(f"prices = live ({setter}) has no effect with --offline")
            options = replace(options, prices="auto")
        return options.market()

    def _other(self) -> Catalog:
        from deepvm.catalog.store import load_catalog

        options = self.options
        catalog = load_catalog(options.catalog, network=options.network, zone=options.zone)
        foreign = [region for region in options.regions if region != catalog.region]
        if foreign:
            has = "its types are in no region"
            if catalog.region:
                has = f"it holds prices of {catalog.region}"
            message = f"catalog {catalog.name} has no prices of region {foreign[0]!r}: {has}"
            self._ignore_region(MissingDataError(message), f"on catalog {catalog.name}")
        if options.zone and not catalog.zones:
            reason = f"catalog {catalog.name} does not distinguish zones"
            self.say(f"--zone {options.zone} has no effect: {reason}")
        ignored = _given(options, _OF_A_MARKET)
        if options.source not in ("auto", "none") and not self.set_by("source"):
            ignored.append("source")
        for name in ignored:
            self.say(
                f"--{name.replace('price_history', 'history').replace('_', '-')} has no effect:"
                f" catalog {catalog.name} is not read from AWS"
            )
        return catalog

    def _with_commitments(self, catalogs: Sequence[Catalog]) -> tuple[Catalog, ...]:
        from deepvm.core.cluster.commitments import read_savings_plan, with_reserved, with_savings

        plans = tuple(map(read_savings_plan, self.options.savings_plan))
        if len({c.name.removesuffix(f"-{c.region}") for c in catalogs}) > 1:
            for plan in plans:
                if plan.glob == "*":
                    percent = f"{(plan.share * 100).normalize():f}%"
                    allowed = "of several clouds, the types that it is for, such as 'p5.*=28%'"
                    raise RequestError("savings_plan", percent, allowed)
        discounted = with_savings(catalogs, plans)
        for plan in plans:
            idle = "what it costs while nothing runs is not counted"
            self.say(f"savings plan: on-demand prices less {plan}; {idle}")
        if not self.options.reserved:
            return discounted
        from datetime import datetime, timezone

        from deepvm.documents.inputs.reserved import load_reserved

        pools = load_reserved(self.options.reserved)
        committed, notes = with_reserved(discounted, pools, datetime.now(timezone.utc))
        for text in notes:
            self.say(text)
        return committed

    def _with_history(self, catalogs: Sequence[Catalog]) -> tuple[Catalog, ...]:
        from deepvm.core.lifetimes import FEWEST, history_words
        from deepvm.jobs.history.history import History
        from deepvm.jobs.history.pools import lives_by_type

        with History.open() as history:
            lives, _ = lives_by_type(history.machines(), time.time())
        offered = {i.name for catalog in catalogs for i in catalog}
        known = {name: life for name, life in lives.items() if name in offered}
        if not known:
            allowed = f"a time such as 3h: no type here has {FEWEST} preemptions of spot VMs"
            raise RequestError("mttp", "history", allowed)
        for name, life in sorted(known.items()):
            self.say(f"by your history, {history_words(name, life)}")
        self.say("the other types are counted by their bands")
        return tuple(
            replace(c, instances=tuple(replace(i, known_life=known.get(i.name)) for i in c))
            for c in catalogs
        )

    def _check_extras(self, catalogs: Sequence[Catalog]) -> None:
        options = self.options
        for name in dict.fromkeys(c.name for c in catalogs if c.rates is None):
            for option in ("disk", "egress", "bucket", "nat"):
                if getattr(options, option, None):
                    self.say(f"--{option} has no effect: no rates are known for catalog {name}")
        disk_type = getattr(options, "disk_type", None)
        if not disk_type:
            return
        if not getattr(options, "disk", None) and not self.set_by("disk_type"):
            self.say(f"--disk-type {disk_type} has no effect without --disk")
        from deepvm.core.bill import refuse_unknown_disk
        from deepvm.core.extras import Extras

        rates = [catalog.rates for catalog in catalogs if catalog.rates is not None]
        refuse_unknown_disk(rates, Extras.parse(disk_type=disk_type))

    def _steps(self, tables: Tables, catalogs: Sequence[Catalog]) -> list[Catalog]:
        options = self.options
        if not _trains_a_model(options, catalogs[0]):
            return []
        from deepvm.catalog.measured.apply import apply_steps

        workload = trained(options)
        applied = [apply_steps(tables, c, workload, options.software).catalog for c in catalogs]
        if not options.names_a_model and not any(map(_has_steps, applied)):
            return []
        if options.workload:
            reason = "where a model is trained: its own steps count"
            self.say(f"--workload {options.workload} has no effect {reason}")
        return applied

    def _training(self, catalog: Catalog) -> Training | None:
        options = self.options
        if not _trains_a_model(options, catalog):  # eFLOPS are counted
            names = [f.name for f in fields(AmountOptions) if f.name not in ("model", "params")]
            names += ["software", "placement_group"]
            for name in _given(options, names):
                reason = "needs --model or --params"
                raise OptionMismatchError(name, getattr(options, name), reason)
            return None
        if options.estimates:
            reason = "its speed is predicted for every type"
            self.say(f"--estimates has no effect where a model is trained: {reason}")
        from deepvm.catalog.published.performance import PublishedPerformance
        from deepvm.core.training.speed import Training

        speeds = PublishedPerformance(options.software, options.placement_group)
        tables = own_tables(options.tables)
        if tables is not None:
            speeds = tables.speeds(speeds, catalog.by_name)
        return Training(trained(options), speeds)


def own_tables(tables: str, workload: str = "") -> Tables | None:
    """The measurements that ``--tables`` names."""
    if tables == "auto" and not workload:
        folder = own_data_folder(os.environ)
        if folder is None or is_missing(folder / MEASURED):  # the tables' modules are slow to load
            return None
    from deepvm.catalog.measured.tables import open_tables

    opened = open_tables(tables)
    return opened if opened or workload else None


def with_figures(
    catalogs: Sequence[Catalog],
    tables: str,
    workload: str,
    say: Say,
    steps: Callable[[Tables, Sequence[Catalog]], Sequence[Catalog]] | None = None,
) -> tuple[Catalog, ...]:
    """Catalogs with measured eFLOPS and curves, or ``steps``; says which cannot be used."""
    measured = own_tables(tables, workload)
    if measured is None:
        if workload:
            say(f"--workload {workload} has no effect with --tables paper")
        return tuple(catalogs)
    applied = steps(measured, catalogs) if steps else ()
    applied = applied or [measured.apply(c, workload, among=catalogs) for c in catalogs]
    before = {text for catalog in catalogs for text in catalog.provenance.notes}
    for text in dict.fromkeys(text for catalog in applied for text in catalog.provenance.notes):
        if text not in before:
            say(text)
    if tables == "auto":
        return tuple(applied)
    abouts = (replace(c.provenance, measured_file=measured.path) for c in applied)
    return tuple(replace(c, provenance=a) for c, a in zip(applied, abouts, strict=True))


def _has_steps(catalog: Catalog) -> bool:
    return any(m.kind == "steps" for m in catalog.provenance.measured)


def _regions_of(clouds: Sequence[Cloud], names: Sequence[str]) -> dict[Cloud, list[str]]:
    regions: dict[Cloud, list[str]] = {cloud: [] for cloud in clouds}
    for name in names:
        own = [c for c in clouds if name == "all" or re.fullmatch(c.region_form, name)]
        if not own:
            clouds[0].check_region(name)  # which says what is wrong with it
        for cloud in own:
            regions[cloud].append(name)
    return regions


def _given(options: PlanFlags, names: Sequence[str]) -> list[str]:
    return [name for name in names if getattr(options, name) != getattr(PlanFlags, name)]


def trained(options: PlanFlags) -> Workload:
    """The workload, of the usual model where none is named. Raises RequestError, DataError."""
    from deepvm.catalog.published.workloads import read_workload

    return read_workload(**workload_keywords(options, USUAL_MODEL))


def _trains_a_model(options: PlanFlags, catalog: Catalog) -> bool:
    if str(options.model).casefold() == NO_MODEL:
        return False
    if options.names_a_model:
        return True
    from deepvm.core.cluster.memory_nodes import PAPER_NODES

    in_eflops = (
        options.job_file,
        options.work,
        options.speedup,
        options.estimates,
        options.measured_on,
        options.workload,
        catalog.provenance.measured and not _has_steps(catalog),
    )
    if catalog.memory_nodes is PAPER_NODES or any(in_eflops):
        return False
    return any(i.gpu is not None and (i.eflops is None or i.eflops_basis) for i in catalog)


def check(options: PlanFlags) -> None:
    """Find errors that do not depend on prices before users wait for prices."""
    from deepvm.core.units import parse_seconds, to_decimal
    from deepvm.planner.request import BUDGET_OR_LIMIT, PlanRequest, known_life_s

    if options.pw is None and options.total_budget is None and options.deadline is None:
        raise RequestError("budget", None, BUDGET_OR_LIMIT)
    # Without the options that need a catalog, or have a meaning only with one.
    names = ("mttp", "interruption_rate", "work", "save_policy", "deadline", "total_budget")
    later: dict[str, Any] = dict.fromkeys((*names, "objective"))
    budget = "0" if options.pw is None else options.pw
    PlanRequest.parse(budget, replace(options, measured_on="", **later))
    if options.names_a_model and str(options.model).casefold() != NO_MODEL:
        trained(options)
    if options.deadline is not None:
        parse_seconds(options.deadline, "deadline")
    if options.total_budget is not None:
        to_decimal(options.total_budget, "total_budget")
    if options.mttp not in (None, HISTORY) or options.interruption_rate is not None:
        known_life_s(options.mttp, options.interruption_rate)
    if options.simulate is not None:
        from deepvm.services.simulated_ranking import read_runs

        read_runs(options.simulate, job=options.has_job)
    if options.savings_plan:
        from deepvm.core.cluster.commitments import read_savings_plan

        for text in options.savings_plan:
            read_savings_plan(text)
    if options.reserved:
        from deepvm.documents.inputs.reserved import load_reserved

        load_reserved(options.reserved)


def _open_quotas(name: str | None, catalog: Catalog, say: Say) -> tuple[Quota, ...] | None:
    if name is None:
        return None
    if name.lower() == "none":
        return ()
    from deepvm.catalog.store import load_quotas

    if name[:1].isdigit() and not os.path.exists(name):
        # The example shows where family and market stand.
        family = next((i.quota_family for i in catalog if i.gpu is not None), "G and VT")
        vcpus = int(name) if name.isdecimal() and len(name) < 9 else 64
        row = f'{{"family": "{family}", "market": "spot", "vcpus": {vcpus}}}'
        example = f'{{"schema_version": "deepvm.quotas/1", "quotas": [{row}]}}'
        allowed = f"none, or a JSON file of limits by family and market, such as {example}"
        raise RequestError("quota", name, allowed)
    quotas = load_quotas(name)
    families = sorted({i.quota_family for i in catalog})
    for family in dict.fromkeys(q.family for q in quotas if q.family not in families):
        others = ", ".join(families)
        say(f"{name}: no type of catalog {catalog.name} counts against {family!r}, only {others}")
    return quotas


def _refuse_both(cloud: str, catalog: str) -> None:
    if catalog != DEFAULT_CATALOG:
        raise OptionMismatchError.with_other("cloud", cloud, f"--catalog {catalog}")


def market_of(cloud: str, catalog: str) -> str:
    """The catalog that ``--cloud`` names, for a command that takes only one; else ``catalog``."""
    if not cloud:
        return catalog
    from deepvm.catalog.clouds import clouds_of

    _refuse_both(cloud, catalog)
    first, *others = clouds_of([cloud])
    if others:
        raise RequestError("cloud", cloud, "one cloud; 'deepvm recommend' compares several")
    return first

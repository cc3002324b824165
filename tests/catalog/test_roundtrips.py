"""Round trips of generated catalogs, and files made to break the reader."""

import json
import string
import tempfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import examples

from deepvm.catalog.catalog_files import JSON_CATALOG
from deepvm.catalog.serialization import build_catalog, build_quotas, document_of
from deepvm.catalog.store import format_catalog, load_catalog, load_quotas
from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType, Market, ZonePrice
from deepvm.core.cluster.memory_nodes import RULES, SaturationTable
from deepvm.core.cluster.provenance import Provenance
from deepvm.core.cluster.speedup import HybridSpeedup, LogisticSpeedup, MeasuredSpeedup, RingSpeedup
from deepvm.documents.declared import properties
from deepvm.documents.formats.json import format_document
from deepvm.errors import DataError, RequestError

# One line of text: no control or format characters, line separators or surrogates; blanks inside
# only.
LETTERS = st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp"))


def text(least=0, most=30):
    return (
        st.text(LETTERS, min_size=least, max_size=most)
        .map(str.strip)
        .filter(lambda s: len(s) >= least)
    )


def amounts(most, least=0.0):
    return st.floats(least, most, exclude_min=least == 0.0)


prices = st.none() | st.integers(1, 100_000 * 10**6).map(lambda micro: Decimal(micro) / 10**6)
sizes = st.lists(st.integers(2, 10_000), min_size=1, max_size=6, unique=True).map(sorted)


@st.composite
def curves(draw, *, plain):
    """At most one curve of each kind and workload.

    Plain ones are what CSV can hold, in its order.
    """
    found = []
    for workload in [None] if plain else [None, *draw(st.lists(text(1), max_size=2, unique=True))]:
        about = {"workload": workload, "source": "" if plain else draw(text())}
        fitted = about | {"fitted_to": None if plain else draw(st.none() | amounts(1e6))}
        if draw(st.booleans()):
            found.append(
                HybridSpeedup(
                    draw(amounts(1000)), draw(st.floats(0, 1e6)), draw(amounts(1e6)), **fitted
                )
            )
        if draw(st.booleans()):
            found.append(RingSpeedup(draw(st.floats(0, 1e6)), draw(st.floats(0, 1e6)), **fitted))
        if draw(st.booleans()):
            points = tuple((float(n), draw(amounts(1e6, 1e-6))) for n in draw(sizes))
            beyond = (
                None
                if plain or draw(st.booleans())
                else RingSpeedup(draw(st.floats(0, 9)), draw(st.floats(0, 9)))
            )
            found.append(
                MeasuredSpeedup(
                    ((1.0, 1.0), *points) if draw(st.booleans()) else points, beyond, **about
                )
            )
    return tuple(found)


@st.composite
def zone_prices(draw, spot):
    """Prices by zone, the cheapest of which is the type's."""
    dearer = st.integers(int(spot * 10**6), 100_000 * 10**6).map(
        lambda micro: Decimal(micro) / 10**6
    )
    others = draw(st.lists(dearer, max_size=3))
    zones = draw(st.lists(text(1), min_size=len(others) + 1, max_size=len(others) + 1, unique=True))
    return tuple(
        ZonePrice(z, p, draw(text())) for z, p in zip(zones, [spot, *sorted(others)], strict=True)
    )


@st.composite
def instances(draw, name, *, plain):
    on_demand = draw(prices)
    spot = draw(prices) if on_demand is not None else draw(prices.filter(lambda p: p is not None))
    gpu = st.builds(Gpu, text(1), st.integers(1, 1024), st.none() | amounts(4096), text(1))
    return InstanceType(
        name,
        draw(st.integers(1, 4096)),
        draw(st.none() | amounts(65536)),
        draw(st.none() | amounts(25600)),
        on_demand,
        spot,
        draw(st.none() | gpu),
        draw(st.none() | amounts(1e30)),
        draw(curves(plain=plain)),
        draw(text(1)),
        draw(text()),
        **{
            "network_baseline_gbps": draw(st.none() | amounts(25600)),
            "cpu_architecture": draw(st.sampled_from(["", "x86_64", "arm64"])),
            "burstable": draw(st.booleans()),
            "current_generation": draw(st.booleans()),
            "interruption_band": draw(st.none() | st.integers(0, 4)),
            "unusable": draw(text()),
            "eflops_source": draw(text()),
            "default_speedup": draw(st.sampled_from(["", "hybrid", "ring", "measured"])),
            "zones": () if plain else draw(st.lists(text(1), max_size=3).map(tuple)),
            "spot_zones": (
                () if plain or spot is None or draw(st.booleans()) else draw(zone_prices(spot))
            ),
        },
    )


def with_bases(instance, eflops_basis, speedup_basis):
    """A basis stands only where there is something that it is the basis of."""
    return replace(
        instance,
        eflops_basis=eflops_basis if instance.eflops is not None else "",
        speedup_basis=speedup_basis if instance.speedups else "",
    )


@st.composite
def catalogs(draw, *, plain=False):
    names = draw(
        st.lists(text(1).filter(lambda s: s[0] != "#"), min_size=1, max_size=4, unique=True)
    )
    bandwidths = sorted(draw(st.lists(amounts(25600), min_size=1, max_size=5, unique=True)))
    senders = sorted(
        draw(st.lists(st.integers(1, 10**6), min_size=len(bandwidths), max_size=len(bandwidths)))
    )
    limits = draw(
        st.dictionaries(
            st.tuples(text(1), st.sampled_from(Market)), st.integers(0, 10**8), max_size=4
        )
    )
    used = st.integers(0, 9)
    return Catalog(
        draw(text(1)),
        tuple(
            with_bases(draw(instances(name, plain=plain)), draw(text()), draw(text()))
            for name in names
        ),
        draw(text()),
        SaturationTable(tuple(bandwidths), tuple(senders)),
        build_quotas(
            {
                "family": family,
                "market": market.value,
                "vcpus": vcpus,
                "in_use": 0 if plain else draw(used),
            }
            for (family, market), vcpus in limits.items()
        ),
        draw(st.sampled_from(["hybrid", "ring", "measured"])),
        draw(text(1)),
        draw(text()),
        Provenance("file", draw(st.none() | st.dates()), draw(text())),
        memory_nodes=draw(st.sampled_from(list(RULES.values()))),
    )


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@settings(deadline=None)
@given(catalogs())
def test_json_round_trip(catalog):
    text_of, left_out = format_catalog(catalog, ".json")
    document = json.loads(text_of, parse_float=Decimal)
    assert left_out == ()
    JSON_CATALOG.parse(text_of, "x.json")
    assert build_catalog(document) == catalog
    assert format_document(document_of(build_catalog(document))) == text_of


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(catalogs(plain=True))
def test_csv_and_json_round_trip_through_files(folder, catalog):
    through_csv, left_out = format_catalog(catalog, ".csv")
    assert left_out == ()
    (folder / "x.csv").write_bytes(through_csv.encode())
    loaded = load_catalog(folder / "x.csv")
    assert _as_written(loaded, "x.csv") == catalog
    (folder / "x.json").write_bytes(format_catalog(loaded, ".json")[0].encode())
    assert _as_written(load_catalog(folder / "x.json"), "x.json") == catalog


def _as_written(loaded, name):
    """A catalog without what was said of its file: doubts about prices, which drawn ones often
    deserve.
    """
    for doubt in loaded.provenance.doubts:
        assert name in doubt and ("/h is " in doubt or doubt.endswith("more prices like these"))
    return replace(loaded, provenance=replace(loaded.provenance, doubts=()))


@pytest.mark.parametrize(
    ("name", "region", "cloud"),
    [
        ("aws-us-east-1", "us-east-1", "aws"),  # as 'catalog convert' writes a market
        ("gcp-us-central1", "us-central1", "gcp"),
        ("mine", "us-east-1", None),
        ("aws-us-east-1", "", None),
        ("../rates/aws-us-east-1", "us-east-1", None),  # a name is no path
    ],
)
def test_a_converted_market_still_knows_what_comes_besides_vms(name, region, cloud):
    mine = build_catalog({**document_of(load_catalog("paper")), "name": name, "region": region})
    assert (mine.rates and mine.rates.cloud) == cloud


def test_a_curve_without_a_file_form_is_refused():
    odd = InstanceType("x", 1, spot_usd_per_hour=1, speedups=(LogisticSpeedup(1, 1, 1),))
    with pytest.raises(RequestError, match="hybrid, ring, measured"):
        document_of(Catalog("odd", (odd,)))


def attempt(path):
    """Only errors of the data family may come out; whatever loads is a catalog."""
    for load in (load_catalog, load_quotas):
        try:
            load(path)
        except DataError as error:
            assert str(error) and error.exit_code == 4


@settings(deadline=None, max_examples=examples(200))
@given(data=st.binary(max_size=200), ending=st.sampled_from([".json", ".csv"]))
def test_random_bytes(folder, data, ending):
    path = folder / f"fuzz{ending}"
    path.write_bytes(data)
    attempt(path)


FIELDS = [
    *properties("catalog.CatalogDocument"),
    *properties("catalog.InstanceDocument"),
    *properties("catalog.MeasuredDocument"),
]
FIELDS += ["$schema", "a", "b", "c", "l", "count", "family", "market", "hybrid", "ring", "measured"]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        [
            "deepvm.catalog/1",
            "hybrid",
            "measured",
            "spot",
            "16 GB",
            "0.3",
            "2023-10-01",
            "\ud800",
            "1e5",
        ]
    ),
)
ANY_JSON = st.recursive(
    VALUES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=20,
)


@settings(deadline=None, max_examples=examples(200))
@given(document=ANY_JSON)
def test_random_json(folder, document):
    (folder / "fuzz.json").write_text(json.dumps(document))
    attempt(folder / "fuzz.json")


def paths_in(document, path=()):
    children = document.items() if isinstance(document, dict) else enumerate(document)
    for step, child in children:
        yield (*path, step)
        if isinstance(child, (dict, list)):
            yield from paths_in(child, (*path, step))


PAPER = json.loads(format_catalog(load_catalog("paper"), ".json")[0])
PLACES = sorted(paths_in(PAPER), key=str)


@settings(deadline=None, max_examples=examples(300))
@given(
    st.lists(
        st.tuples(st.sampled_from(PLACES), st.sampled_from(["set", "del", "rename"]), ANY_JSON),
        max_size=4,
    )
)
def test_mutated_valid_documents(folder, mutations):
    document = json.loads(json.dumps(PAPER))
    for (*path, last), how, value in mutations:
        try:
            target = document
            for step in path:
                target = target[step]
            if how == "set":
                target[last] = value
            elif how == "del":
                del target[last]
            else:
                target[f"{last}x"] = target.pop(last)
        except (KeyError, IndexError, TypeError, AttributeError):
            continue
    (folder / "fuzz.json").write_text(json.dumps(document))
    attempt(folder / "fuzz.json")


CSV_TEXT = format_catalog(load_catalog("paper"), ".csv")[0]


@settings(deadline=None, max_examples=examples(300))
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(CSV_TEXT)),
            st.integers(0, 20),
            st.text(st.sampled_from(string.printable + "é\u2028\0"), max_size=4),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_mutated_valid_csv(folder, edits):
    text_of = CSV_TEXT
    for at, removed, inserted in edits:
        text_of = text_of[:at] + inserted + text_of[at + removed :]
    (folder / "fuzz.csv").write_bytes(text_of.encode())
    attempt(folder / "fuzz.csv")

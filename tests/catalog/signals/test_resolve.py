"""Each signal comes from the best source available; the notes say what did not go as planned."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.catalog_signals import (
    DATA,
    KINDS,
    NOW,
    REGION,
    SNAPSHOT,
    Cloud,
    Fake,
    Found,
    after,
    all_from,
    denied,
    get,
    origins,
    resolve,
    several,
    signal,
)
from support.effort import examples

from deepvm.catalog.signals import fetching
from deepvm.catalog.signals.cache import Cache
from deepvm.errors import CloudError, RequestError


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", "me")


# The order


def test_an_empty_cache_is_filled_from_the_source(cache):
    cloud, lines = Cloud(), []
    found = get(cache, cloud, progress=lines.append)
    assert origins(found) == all_from("live") and found.notes == ()
    assert cloud.calls == dict.fromkeys(KINDS, 1)
    assert {k: s.data for k, s in found.signals.items()} == {k: DATA[k] for k in KINDS}
    assert (
        lines[0].startswith("us-east-1: fetching specifications, offerings") and len(lines) == 1 + 7
    )
    assert sorted(e.kind for e in cache.entries(NOW)) == sorted(KINDS)


def test_a_fresh_cache_asks_nobody_and_makes_no_provider(cache):
    get(cache, Cloud())
    cloud, lines = Cloud(), []
    found = get(cache, cloud, now=after(minutes=59), progress=lines.append)
    assert origins(found) == all_from("cache") and found.notes == ()
    assert (cloud.made, cloud.calls, lines) == (0, {}, [])


def test_only_what_is_stale_is_fetched(cache):
    get(cache, Cloud())
    cloud = Cloud()
    found = get(cache, cloud, now=after(hours=1))
    assert cloud.calls == {"spot": 1}
    assert origins(found) == all_from("cache") | {"spot": "live"}
    cloud = Cloud()
    get(cache, cloud, now=after(days=2))
    assert cloud.calls == {"on-demand": 1, "spot": 1, "advisor": 1, "quotas": 1}


def test_a_signal_that_fails_costs_that_signal(cache):
    get(cache, Cloud())
    found = get(cache, Cloud(spot=denied()), now=after(hours=2))
    assert origins(found) == all_from("cache") | {"spot": "expired"}
    (note,) = found.notes
    assert (
        note
        == "spot prices of us-east-1: no answer in time (ec2 DescribeThings in us-east-1: no answer"
        " within 30 s); the cache of 2 h ago is used"
    )


def test_without_a_cache_the_snapshot_stands_in(cache):
    found = get(
        cache,
        Cloud(
            spot=denied(),
            quotas=denied("permission", "not allowed", "allow servicequotas:GetServiceQuota"),
        ),
    )
    assert found.signals["spot"].origin == "snapshot" and "quotas" not in found.signals
    spot, quotas = found.notes
    assert spot.endswith("; the snapshot of 2026-08-13 is used")
    assert quotas.startswith("quotas of us-east-1: AWS does not permit it")
    assert quotas.endswith(
        "; continuing without quotas of us-east-1; allow servicequotas:GetServiceQuota"
    )


def test_an_expired_cache_that_is_older_than_the_snapshot_is_not_used(cache):
    cache.write(signal(observed_at=after(days=-200)), after(days=-200))
    found = get(cache, Cloud(spot=denied()), kinds=["spot"])
    assert origins(found) == {"spot": "snapshot"}
    # A snapshot "of the future" only shows that the clock is wrong.
    tomorrow = {"spot": signal(observed_at=after(days=1), origin="snapshot")}
    assert origins(get(cache, Cloud(spot=denied()), kinds=["spot"], snapshot=tomorrow)) == {
        "spot": "expired"
    }


def test_nobody_to_ask(cache):
    found = get(cache, None)
    assert origins(found) == all_from("snapshot", SNAPSHOT) and found.notes == ()
    cache.write(signal(), after(hours=-3))
    cache.write(signal("zones"), NOW)
    found = get(
        cache, None, not_asked="no AWS credentials were found", kinds=[*KINDS, "history:30"]
    )
    assert origins(found) == {
        "specs": "snapshot",
        "on-demand": "snapshot",
        "spot": "expired",
        "zones": "cache",
    }
    (note,) = found.notes
    assert (
        note
        == "specifications, on-demand prices and spot prices of us-east-1: no AWS credentials were"
        " found; the snapshot of 2026-08-13 and the cache of 0 s ago are used"
    )
    (note,) = get(
        cache, None, snapshot={}, not_asked="offline", kinds=["specs", "spot", "quotas"]
    ).notes
    assert note.endswith("; continuing without specifications of us-east-1")


def test_a_note_names_its_signals_and_regions(cache):
    for kind in ("specs", "on-demand", "spot"):
        cache.write(signal(kind), NOW)
    rates = {"advisor": signal("advisor", observed_at=after(days=-100), origin="snapshot")}
    (note,) = get(cache, None, snapshot=rates, not_asked="offline").notes
    assert note == "interruption rates of us-east-1: offline; the snapshot of 2026-08-13 is used"
    found = several(
        cache,
        None,
        [REGION, "eu-west-1"],
        kinds=["spot", "quotas"],
        now=after(hours=9),
        not_asked="offline",
    )
    assert found.notes == (
        "spot prices of us-east-1 and eu-west-1: offline; the cache of 9 h ago is used; continuing"
        " without spot prices of eu-west-1",
    )


def test_a_kind_without_a_provider_is_not_asked_for(cache):
    cloud = Cloud(["advisor"])
    found = get(cache, cloud)
    assert cloud.calls == {"advisor": 1} and found.notes == ()
    assert origins(found) == all_from("snapshot", SNAPSHOT) | {"advisor": "live"}


def test_snapshot_touches_nothing_else(cache):
    get(cache, Cloud())
    before = [(p, p.stat().st_mtime_ns) for p in sorted(cache.folder.rglob("*"))]
    cloud = Cloud()
    found = get(cache, cloud, "snapshot")
    assert found == Found(SNAPSHOT) and cloud.made == 0
    assert [(p, p.stat().st_mtime_ns) for p in sorted(cache.folder.rglob("*"))] == before
    assert get(
        Cache(Path("/nowhere/at/all"), "me"), None, "snapshot", kinds=["spot", "quotas"]
    ).signals.keys() == {"spot"}


def test_a_damaged_file_is_fetched_anew_and_said(cache):
    get(cache, Cloud())
    (cache.folder / REGION / "spot.json").write_text("{")
    cloud = Cloud()
    found = get(cache, cloud)
    assert cloud.calls == {"spot": 1} and origins(found)["spot"] == "live"
    (note,) = cache.take_notes()
    assert "spot.json" in note and "damaged" in note


def test_a_cache_that_cannot_be_written_is_said_once(tmp_path):
    (tmp_path / "cache").write_text("")
    cache = Cache(tmp_path / "cache", "me")
    assert origins(get(cache, Cloud())) == all_from("live")
    (note,) = cache.take_notes()
    assert "not written" in note and "DEEPVM_CACHE_DIR" in note


# Live


def test_live_fetches_prices_anew_and_the_rest_if_stale(cache):
    get(cache, Cloud())
    cloud = Cloud([*KINDS, "history:30"])
    found = get(cache, cloud, "live", now=after(minutes=1), kinds=[*KINDS, "history:30"])
    assert cloud.calls == {"on-demand": 1, "spot": 1, "history:30": 1}
    assert origins(found)["spot"] == "live" and origins(found)["specs"] == "cache"


def test_live_survives_a_signal_that_is_no_price(cache):
    get(cache, Cloud())
    found = get(
        cache, Cloud(quotas=denied("network", "no route", "check")), "live", now=after(days=30)
    )
    assert {k for k, o in origins(found).items() if o != "live"} == {"quotas"}
    assert origins(found)["quotas"] == "expired"
    (note,) = found.notes
    assert note.endswith(
        "(ec2 DescribeThings in us-east-1: no route); the cache of 30 d ago is used"
    )


@pytest.mark.parametrize("lost", ["on_demand", "spot"])
def test_live_keeps_its_word_about_every_price(lost, cache):
    get(cache, Cloud())
    with pytest.raises(CloudError) as caught:
        get(
            cache,
            Cloud(**{lost: denied("network", "no route", "check")}),
            "live",
            now=after(minutes=5),
        )
    assert caught.value.why == "network" and "no route" in str(caught.value)


@pytest.mark.parametrize("why", ["credentials", "expired", "clock"])
def test_live_needs_credentials_that_work(why, cache):
    get(cache, Cloud())
    cloud = Cloud(quotas=denied(why, "the token has expired", "run aws sso login"))
    with pytest.raises(CloudError) as caught:
        get(cache, cloud, "live", now=after(days=2))
    assert caught.value.why == why and caught.value.exit_code == 5
    text = str(caught.value)
    assert "live prices of us-east-1" in text and "the token has expired" in text
    assert "run aws sso login" in text and "--prices auto" in text


def test_live_without_any_live_price(cache):
    get(cache, Cloud())
    with pytest.raises(CloudError) as caught:
        get(cache, Cloud(on_demand=denied(), spot=denied()), "live", now=after(days=2))
    assert caught.value.why == "timeout"


def test_live_without_anybody_to_ask(cache):
    get(cache, Cloud())
    for cloud in (None, Cloud([])):
        found = get(cache, cloud, "live", not_asked="no AWS credentials were found")
        assert not {"on-demand", "spot"} & found.signals.keys()
        assert "no AWS credentials were found" in " ".join(found.notes)


def test_live_of_what_is_no_price_uses_a_fresh_cache(cache):
    get(cache, Cloud())
    assert origins(get(cache, None, "live", kinds=["specs"])) == {"specs": "cache"}


# Notes


def test_credentials_that_fail_are_said_once(cache):
    get(cache, Cloud())
    expired = denied("expired", "the token has expired", "run aws sso login")
    found = get(cache, Cloud(**{k.replace("-", "_"): expired for k in KINDS}), now=after(days=8))
    (note,) = found.notes
    assert note.count("token has expired") == 1 and note.count("run aws sso login") == 1
    assert note.startswith(
        "specifications, offerings, zones, on-demand prices, spot prices, interruption rates and"
        " quotas"
    )
    assert note.endswith("the cache of 8 d ago is used; run aws sso login")


def test_after_a_refusal_the_rest_is_not_tried(cache, monkeypatch):
    monkeypatch.setattr(fetching, "AT_ONCE", 1)
    cloud = Cloud(specs=denied("credentials", "invalid", "configure"))
    found = get(cache, cloud)
    assert cloud.calls == {"specs": 1, "advisor": 1}  # the advisor is public
    assert len(found.notes) == 1 and found.signals["advisor"].origin == "live"


def test_permissions_are_said_one_by_one(cache):
    cloud = Cloud(
        spot=denied(
            "permission", "ec2:DescribeSpotPriceHistory", "allow ec2:DescribeSpotPriceHistory"
        ),
        quotas=denied(
            "permission", "servicequotas:GetServiceQuota", "allow servicequotas:GetServiceQuota"
        ),
        specs=denied("timeout", "30 s"),
        zones=denied("timeout", "31 s"),
    )
    notes = get(cache, cloud).notes
    assert len(notes) == 3 and sum("allow ec2:DescribeSpotPriceHistory" in n for n in notes) == 1
    assert any(
        n.startswith("specifications and zones of us-east-1: no answer in time") for n in notes
    )


def test_a_provider_that_breaks_costs_its_signal_and_shows_nothing(cache):
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    cloud = Cloud(
        spot=KeyError(secret), quotas=RequestError("region", "x", "y"), specs=MemoryError(secret)
    )
    found = get(cache, cloud, kinds=["specs", "spot", "quotas", "zones"])
    assert origins(found) == {"specs": "snapshot", "spot": "snapshot", "zones": "live"}
    assert any("internal error while reading the answer: KeyError" in n for n in found.notes)
    kept = b"".join(p.read_bytes() for p in cache.folder.rglob("*") if p.is_file())
    assert secret not in repr(found) and secret.encode() not in kept


def test_providers_that_cannot_be_made(cache):
    def broken():
        raise denied("credentials", "no profile work", "see aws configure list-profiles")

    found = get(cache, broken)
    assert origins(found) == all_from("snapshot", SNAPSHOT)
    (note,) = found.notes
    assert "no profile work" in note
    with pytest.raises(CloudError, match="no profile work"):
        get(cache, broken, "live")


def test_names_that_are_no_region(cache):
    for mode in ("auto", "live"):
        with pytest.raises(RequestError):
            resolve("../x", KINDS, mode, cache=cache, providers=Cloud(), snapshot={}, now=NOW)


# The rule, against a model

WHERE = st.sampled_from(["nothing", "fresh", "expired"])


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.fixed_dictionaries(
        {
            k: st.tuples(WHERE, st.booleans(), st.booleans())
            for k in ("specs", "on-demand", "spot", "zones")
        }
    ),
    st.sampled_from(["auto", "live", "snapshot"]),
    st.booleans(),
)
def test_the_order_is_kept(tmp_path_factory, state, mode, may_ask):
    cache = Cache(tmp_path_factory.mktemp("cache"), "me")
    snapshot = {}
    cloud = Cloud([])
    for kind, (cached, works, in_snapshot) in state.items():
        if cached != "nothing":
            cache.write(signal(kind), NOW if cached == "fresh" else after(days=-30))
        if in_snapshot:
            snapshot[kind] = signal(kind, observed_at=after(days=-100), origin="snapshot")
        cloud.fakes[kind] = Fake(kind, error=None if works else denied())

    def expected(kind):
        cached, works, in_snapshot = state[kind]
        last = ["snapshot"] if in_snapshot else []
        if mode == "snapshot":
            return (last or [None])[0]
        fresh = ["cache"] if cached == "fresh" else []
        live = ["live"] if works and may_ask else []
        old = ["expired"] if cached == "expired" else []
        anew = mode == "live" and kind in ("on-demand", "spot")
        if anew:
            return (live or [None])[0]
        return ([*fresh, *live, *old, *last] or [None])[0]

    wanted = {k: e for k in state if (e := expected(k)) is not None}
    prices = [k for k in ("on-demand", "spot") if k in state]
    try:
        found = get(cache, cloud if may_ask else None, mode, kinds=list(state), snapshot=snapshot)
    except CloudError:
        assert may_ask and mode == "live" and any(wanted.get(k) != "live" for k in prices)
        return
    assert not (may_ask and mode == "live") or all(wanted.get(k) == "live" for k in prices)
    assert origins(found) == wanted
    failed = {k for k, f in cloud.fakes.items() if f.calls and f.error}
    assert bool(found.notes) == bool(failed)

#!/usr/bin/env python3
"""Make data/aws/regions/us-east-1.json, the embedded snapshot, from a table of types and prices.

The table is a CSV file with the columns of CURATED below, one line for each type;
current_generation is what AWS's DescribeInstanceTypes says (CurrentGeneration), whatever the
numbers in the names suggest: in 2026 c5 and r7g are not current, c5n and m7g are. On-demand and
spot prices may be of different days, so both are given. Run it again with a newer table to bring
the snapshot up to date:

    python scripts/build_snapshot.py curated_us-east-1.csv --on-demand-of 2026-07-20 --spot-of
    2026-08-10
"""

from __future__ import annotations

import argparse
import csv
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

from deepvm.documents.formats.json import format_document
from deepvm.io.atomic_write import write_bytes

ROOT = Path(__file__).resolve().parents[1]
CURATED = (
    "instance_type",
    "vcpu",
    "memory_gib",
    "gpu_manufacturer",
    "gpu_name",
    "gpu_count",
    "gpu_memory_gib_each",
    "network_baseline_gbps",
    "network_peak_gbps",
    "arch",
    "burstable",
    "current_generation",
    "on_demand_usd_per_hour",
    "spot_usd_per_hour",
    "interruption_band",
)
WORDED_GBPS = {"g6e.24xlarge": 200, "g6e.48xlarge": 400, "p6-b300.48xlarge": 6400}
"""Gbit/s that AWS states in words (NetworkPerformance), where the table has less."""


def plain(text: str) -> int | float:
    """A JSON number, whole where it is whole."""
    number = float(text)
    return int(number) if number.is_integer() else number


def price(text: str) -> str:
    """An exact price without trailing zeros."""
    return f"{Decimal(text).normalize():f}"


def specs(row: dict[str, str]) -> dict[str, Any]:
    """The facts of one type, in the form of the signal ``specs``."""
    found: dict[str, Any] = {
        "vcpus": int(row["vcpu"]),
        "memory_gib": plain(row["memory_gib"]),
        "baseline_gbps": WORDED_GBPS.get(row["instance_type"], plain(row["network_baseline_gbps"])),
        "peak_gbps": WORDED_GBPS.get(row["instance_type"], plain(row["network_peak_gbps"])),
        "arch": row["arch"],
        "current": row["current_generation"] == "True",
        "burstable": row["burstable"] == "True",
        "metal": ".metal" in row["instance_type"],
        "spot": True,
        "on_demand": True,
    }
    if row["gpu_name"]:
        found["gpu"] = {
            "name": row["gpu_name"],
            "manufacturer": row["gpu_manufacturer"],
            "count": int(row["gpu_count"]),
            "memory_gib": plain(row["gpu_memory_gib_each"]),
        }
    return found


def main() -> None:
    """Read the table, write the snapshot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, help="CSV file")
    parser.add_argument(
        "--on-demand-of", required=True, help="day of the on-demand prices and specifications"
    )
    parser.add_argument(
        "--spot-of", required=True, help="day of the spot prices and interruption bands"
    )
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("--output", type=Path, help="default: data/aws/REGION.json")
    given = parser.parse_args()
    with given.table.open(newline="") as stream:
        rows = sorted(csv.DictReader(stream), key=lambda r: r["instance_type"])
    missing = [c for c in CURATED if not rows or c not in rows[0]]
    if missing:
        sys.exit(f"{given.table}: lacks the columns {', '.join(missing)}")
    listed = "AWS's public price list and instance descriptions"
    signals = [
        ("specs", given.on_demand_of, listed, {r["instance_type"]: specs(r) for r in rows}),
        ("on-demand", given.on_demand_of, listed, _prices(rows, "on_demand_usd_per_hour")),
        # The feed names one price for a region; the empty zone stands for all of it.
        (
            "spot",
            given.spot_of,
            "AWS's public spot price feed (GPU types)",
            {n: {"": [p, ""]} for n, p in _prices(rows, "spot_usd_per_hour").items()},
        ),
        (
            "advisor",
            given.spot_of,
            "AWS's public Spot Instance Advisor",
            {
                r["instance_type"]: int(float(r["interruption_band"]))
                for r in rows
                if r["interruption_band"]
            },
        ),
    ]
    document = {
        "schema_version": "deepvm.snapshot/1",
        "region": given.region,
        "description": (
            "Types of AWS and their prices on the days named: those with whole NVIDIA GPUs, and CPU"
            " types that can be memory nodes. Prices in $/h, memory in GiB, network in Gbit/s."
        ),
        "signals": [
            {"kind": kind, "observed_at": f"{day}T00:00:00Z", "source": source, "data": data}
            for kind, day, source, data in signals
        ],
    }
    target = given.output or ROOT / "data" / "aws" / "regions" / f"{given.region}.json"
    write_bytes(target, format_document(document).encode())
    sys.stderr.write(f"{target}: {len(rows)} types\n")


def _prices(rows: list[dict[str, str]], column: str) -> dict[str, str]:
    return {
        r["instance_type"]: price(r[column]) for r in rows if r[column] and float(r[column]) > 0
    }


if __name__ == "__main__":
    main()

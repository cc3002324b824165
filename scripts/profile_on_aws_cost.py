"""Time and cost of measuring on AWS, with the assumptions; see profile_on_aws.py."""

from __future__ import annotations

from decimal import Decimal

from deepvm.catalog.store import load_catalog

# Assumptions of the estimate, of a g4dn.xlarge with ResNet-50 at batch 128; printed with it.
_PREPARE_S, _EFLOPS_S, _RUN_START_S, _STEP_S, _PUSH_START_S = 600, 60, 30, 0.5, 1.0
_STEPS = 10 + 5 * 20


def estimate(
    trainers: tuple[str, int],
    receiver_type: str,
    *,
    models: int,
    runs: int,
    repeats: int,
    checkpoint_bytes: int,
) -> str:
    """Expected time and cost, with what they rest on.

    Args:
        trainers: their type, and how many there are.
        receiver_type: of the one receiver.
        models: how many are trained.
        runs: of the training of each model, all sizes together.
        repeats: of each push.
        checkpoint_bytes: of a push.
    """
    trainer_type, n = trainers
    catalog = load_catalog("aws-us-east-1", prices="snapshot")
    kinds = {trainer_type: n}
    kinds[receiver_type] = kinds.get(receiver_type, 0) + 1
    run_s = _RUN_START_S + _STEPS * _STEP_S
    gbps = catalog[receiver_type].network_gbps if receiver_type in catalog.by_name else None
    push_s = _PUSH_START_S + 8e-9 * checkpoint_bytes / float(gbps or 1)
    parts = {
        "to copy and install": float(_PREPARE_S),
        "eFLOPS": float(_EFLOPS_S * models),
        f"speed-up: {runs * models} runs of {run_s:.0f} s": runs * models * run_s,
        f"saturation: {n * repeats} pushes of {push_s:.1f} s": 30 + n * repeats * push_s,
    }
    seconds = sum(parts.values())
    lines = [
        f"Expected time: {seconds / 60:.0f} min"
        f" ({'; '.join(f'{s / 60:.0f} min {t}' for t, s in parts.items())})"
    ]
    unknown = [t for t in kinds if t not in catalog.by_name]
    for market, field in (("spot", "spot_usd_per_hour"), ("on demand", "on_demand_usd_per_hour")):
        fixed = {t: catalog[t].on_demand_usd_per_hour for t in kinds if t not in unknown}
        prices = {t: getattr(catalog[t], field) or fixed[t] for t in fixed}
        nameless = [*unknown, *(t for t, p in prices.items() if p is None)]
        if nameless:
            lines.append(
                f"Expected cost, {market}: unknown, deepvm has no price of {', '.join(nameless)}"
            )
            continue
        hourly = sum((count * prices[t] for t, count in kinds.items()), Decimal(0))
        shown = " + ".join(
            f"{count} x {t} at ${prices[t]}"
            + " (on demand: no spot price known)" * (getattr(catalog[t], field) is None)
            for t, count in kinds.items()
        )
        lines.append(
            f"Expected cost, {market}: ${float(hourly) * seconds / 3600:.2f} (${hourly}/h: {shown})"
        )
    lines.append(
        f"Assumed: {_STEP_S} s a step ({_STEPS} steps a run; resnet50, batch 128 on a T4; other"
        f" models and options after -- differ), {_RUN_START_S} s to start a run, {gbps or 1} Gbit/s"
        " at the receiver, VMs that end with it, the prices of us-east-1 that came with deepvm;"
        " without booting, disks and traffic between zones. Slow hosts and repeats of failed runs"
        " may double it."
    )
    return "\n".join(lines)

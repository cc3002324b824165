"""What is known of a pool: machine lifetimes, refusals, and the cost of training there."""

from __future__ import annotations

from dataclasses import dataclass, replace

_RECENT_S, _FRESH_S = 30 * 86_400.0, 86_400.0
"""Lifetimes stay informative for weeks; capacity changes within hours."""
_RATE_PRIOR = 1.0, 10.0
"""Gamma prior: one preemption in 10 hours, pessimistic, outweighed by a day of lifetimes."""
_REFUSAL_PRIOR = 0.5, 3.0
"""Beta: as if of 3.5 requests half a one had been refused."""
_LOST_H, _WAIT_H = 0.1, 0.05
"""Hours until a replacement trains after a preemption, and hours that each refusal adds."""


@dataclass(frozen=True)
class PoolRecord:
    """History of a pool: hours lived, preemptions, and requests by outcome.

    ``at_s``: when that was looked up.
    """

    lived_h: float = 0.0
    taken: int = 0
    granted: int = 0
    refused: int = 0
    at_s: float = 0.0

    @property
    def preemptions_per_hour(self) -> float:
        """Mean of the posterior: gamma with Poisson counts."""
        prior, hours = _RATE_PRIOR
        return (prior + self.taken) / (hours + self.lived_h)

    @property
    def refusals(self) -> float:
        """Expected refusals before a machine: posterior mean of q / (1 - q), beta-Bernoulli."""
        no, yes = _REFUSAL_PRIOR
        return (no + self.refused) / (yes + self.granted - 1.0)

    def usd_per_useful_hour(self, usd_per_hour: float) -> float:
        """$ per useful hour, including hours lost to preemptions and the waits after them."""
        return usd_per_hour * (
            1.0 + self.preemptions_per_hour * (_LOST_H + self.refusals * _WAIT_H)
        )

    def with_earlier(self, earlier: PoolRecord) -> PoolRecord:
        """Add what was looked up earlier, of other machines, as far as it is not stale."""
        stale = self.at_s - earlier.at_s > _FRESH_S
        if stale:
            granted, refused = (0, 0)
        else:
            granted, refused = (earlier.granted, earlier.refused)
        lived_h = self.lived_h + earlier.lived_h
        taken = self.taken + earlier.taken
        return PoolRecord(lived_h, taken, self.granted + granted, self.refused + refused, self.at_s)

    def seen(
        self,
        requested_s: float,
        launched_s: float | None,
        ended_s: float | None,
        *,
        taken: bool,
        refused: bool,
    ) -> PoolRecord:
        """With one machine more, as it is at ``at_s``; what is too long ago says nothing."""
        age_s = self.at_s - requested_s
        found = self
        if launched_s is not None and age_s <= _RECENT_S:
            lived_s = (self.at_s if ended_s is None else ended_s) - launched_s
            lived_h = self.lived_h + max(lived_s, 0.0) / 3600
            found = replace(found, lived_h=lived_h, taken=self.taken + taken)
        if age_s <= _FRESH_S:
            granted = self.granted + (launched_s is not None)
            found = replace(found, granted=granted, refused=self.refused + refused)
        return found

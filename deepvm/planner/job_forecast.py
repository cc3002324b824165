"""The work of a job, and how long each cluster takes for it under preemption.

**Work.** A job's ``step_s`` is measured on one VM of a type; a cluster of n VMs of another type
does a step in ``step_s x throughput of that one VM / (eFLOPS x n x K(n))``. ``--work HOURS`` is a
job of that many hours on one such VM, with the latencies of the Spotify thesis (6.2.2): versions of
``--checkpoint-size`` are written at 0.55 GB/s and backed up at 0.106 GB/s, as its GPT-117M does
with 12 bytes a parameter.

**Preemptions.** Only spot VMs are preempted: all n of a Tiering cluster and n-1 of a Single-Anchor
cluster. Any loss stops the training, so a cluster is hit spot-count times as often as one VM.

**How often.** The mean time to preemption of one VM is the user's, else the job's, else that of
AWS's Spot Advisor band (:mod:`deepvm.core.lifetimes`); with ``--mttp history`` each type counts at
the low end of its own interval, so that a thin history ranks lower.

**The bill** is the price of the whole cluster for the whole expected time, allocation included, as
the thesis counts. A replacement that overlaps with what it replaces is paid for as one n-th of the
cluster for that time.
"""

import math
from collections.abc import Sequence
from decimal import Decimal

import numpy as np

from deepvm.core.arrays import FloatArray, IntArray
from deepvm.core.cluster.cluster import Cluster
from deepvm.core.cluster.instances import InstanceType, Market
from deepvm.core.lifetimes import ALLOCATION_S, PREPARATION_S, START_S, band_life_s
from deepvm.core.preemption.job import Job, Span
from deepvm.core.preemption.savepolicy import SavePolicy, parse_policy
from deepvm.core.spelling import examples
from deepvm.core.training.speed import Training
from deepvm.core.units import MICRO_USD, Z80, Money, parse_hours, parse_seconds, to_decimal
from deepvm.errors import OptionMismatchError, RequestError
from deepvm.planner.columns import UNLIMITED_USD, TrainingTable, law_of
from deepvm.records import dataclass, replace

# For --work: thesis 6.2.2, and AWS's two minutes of notice.
SAVE_BYTES_PER_S = 0.55e9
BACKUP_BYTES_PER_S = 0.106e9
GRACE_S = Span.of(120)


@dataclass(frozen=True)
class Work:
    """What to train, and its limits."""

    job: Job  # with step_s on one VM of measured_on
    policy: SavePolicy
    policy_name: str = "adaptive"
    measured_on: str = ""  # if empty the cheapest type that may train
    unit: float | None = None  # throughput at which a step takes step_s; None: of that VM
    mttp_s: float | None = None  # infinite for none; None: by the bands of the types
    deadline_s: float | None = None  # the longest expected time
    total_budget: Decimal | None = None  # the highest expected bill, $
    assumed: bool = False  # its latencies are the usual ones, not those of a simulation file
    besides_usd: Decimal = Decimal(0)  # one-time costs besides VMs
    band_factor: float = 1.0  # on the mean lifetime that a type's band gives

    @property
    def constrained(self) -> bool:
        return self.deadline_s is not None or self.total_budget is not None

    @classmethod
    def parse(
        cls,
        *,
        job: Job | None = None,
        work: float | str | None = None,
        measured_on: str = "",
        life_s: float | None = None,
        save_policy: str | None = None,
        deadline: str | float | None = None,
        total_budget: Money | None = None,
        checkpoint_bytes: int = 300_000_000,
        training: Training | None = None,
    ) -> "Work":
        """Read options, with a job or work among them. Raises a RequestError."""
        if job is not None and work is not None:
            raise OptionMismatchError.with_other("work", work, "--job")
        if training is not None:
            amount = "does not go with a model: --tokens, --samples or --epochs say how much"
            for option, value, reason in (
                ("work", work, amount),
                ("job", job and job.name, amount),
                ("measured_on", measured_on, "does not go with a model: its speed is known"),
                (
                    "save_policy",
                    save_policy,
                    "does not go with a model: it is saved at the best times",
                ),
            ):
                if value not in (None, ""):
                    raise OptionMismatchError(option, value, reason)
            workload = training.workload
            assert workload.samples is not None
            # In batches of eight GPUs, at one unit per second
            batch = workload.batch_on(_USUAL_GPUS) * _USUAL_GPUS
            steps = int(min(max(workload.samples / batch, 1), 10**9))
            units = workload.samples * workload.model.units_per_sample
            job = replace(
                _of_seconds(float(steps), checkpoint_bytes),
                name=workload.model.name,
                steps=steps,
                step_s=Span.of(units / steps),
            )
        if job is None:
            assert work is not None
            job = _of_seconds(parse_hours(work, "work"), checkpoint_bytes)
        # A simulation file may describe other machines than the planner's clusters.
        if job.vms != 1:
            raise RequestError("job", f"vms: {job.vms}", "vms: 1 with the step_s of one VM")
        if job.market is not Market.SPOT:
            allowed = "market: spot; 'deepvm simulate' shows the job on demand"
            raise RequestError("job", f"market: {job.market.value}", allowed)
        if life_s is not None:
            job = replace(job, mttp_s=(life_s,))  # for every lifetime
        elif job.mttp_s[0] < math.inf:
            life_s = job.mttp_s[0]
        assumed = training is not None or work is not None
        name = save_policy or ("adaptive" if training is None else "young")
        return cls(
            job=job,
            policy=parse_policy(name, "save_policy"),
            policy_name=name,
            measured_on=measured_on,
            unit=None if training is None else 1.0,
            mttp_s=life_s,
            deadline_s=None if deadline is None else parse_seconds(deadline, "deadline"),
            total_budget=None if total_budget is None else to_decimal(total_budget, "total_budget"),
            assumed=assumed,
        )

    def in_market(self, grace_s: float | None) -> "Work":
        """The work with a market's grace period, if known; a user's file has its own."""
        if grace_s is None or not self.assumed:
            return self
        return replace(self, job=replace(self.job, grace_s=Span.of(grace_s)))

    def reference(
        self, gpus: Sequence[InstanceType], known: Sequence[InstanceType]
    ) -> InstanceType | None:
        """The type on which ``step_s`` was measured, by default the cheapest of ``gpus``.

        Raises a RequestError if ``measured_on`` is no type with known eFLOPS.
        """
        if not self.measured_on:
            return min(
                gpus,
                key=lambda i: (i.spot_usd_per_hour is None, i.spot_usd_per_hour or 0, i.name),
                default=None,
            )
        measured = next((i for i in known if i.name == self.measured_on and i.eflops), None)
        if measured is None:
            which = examples(self.measured_on, (i.name for i in known if i.eflops))
            raise RequestError("measured_on", self.measured_on, f"a type with known eFLOPS{which}")
        return measured

    def throughput_of(self, reference: InstanceType) -> float:
        return self.unit or reference.eflops or 0.0

    def life_s(self, instance: InstanceType) -> float:
        """Mean seconds to preemption of a spot VM (a history's low end); unknown bands: worst."""
        if self.mttp_s is not None:
            return self.mttp_s
        if instance.known_life is not None:
            return instance.known_life.low_s
        return self.band_factor * band_life_s(instance.interruption_band)

    def job_on(self, cluster: Cluster, throughput: float, reference: InstanceType) -> Job:
        """The job on a cluster for the simulator; a VM's price is its share of the cluster's."""
        factor = self.throughput_of(reference) / throughput
        step = self.job.step_s
        vms = max(cluster.spot_count, 1)
        lives = (self.life_s(cluster.gpu),) if self.mttp_s is None else self.job.mttp_s
        if not cluster.spot_count:
            lives = (math.inf,)  # VMs on demand are not preempted
        return replace(
            self.job,
            step_s=Span(step.low * factor, step.high * factor),
            vms=vms,
            mttp_s=lives,
            spot_usd_per_hour=float(cluster.usd_per_hour) / vms,
        )

    def forecast(self, sizes: TrainingTable, reference: InstanceType | None) -> TrainingTable:
        if reference is None or not len(sizes):
            return sizes
        if self.unit is not None:
            return self._trained(sizes)
        from deepvm.core.preemption.makespan import forecast

        lives = sizes.by_type(self.life_s)
        work = sizes.throughput
        trains = work > 0
        step = self.job.step_s.mean * self.throughput_of(reference) / np.where(trains, work, 1.0)
        expected = forecast(
            self.job,
            self.policy,
            per_second=sizes.spot / lives,
            step_s=step,
            vms=sizes.spot.astype(np.float64),
        )
        total_s = np.where(trains, expected.total_s, np.inf)
        billed_s = total_s + np.where(trains, expected.overlap_s, 0.0) / np.maximum(sizes.spot, 1)
        return replace(
            sizes,
            total_s=total_s,
            billed_s=billed_s,
            preemptions=np.where(trains, expected.preemptions, 0.0),
            sound=expected.sound,
            most_usd=self._allowed_micro_usd(total_s, billed_s),
        )

    def _trained(self, sizes: TrainingTable) -> TrainingTable:
        """As :meth:`forecast` by what preemptions leave of the throughput."""
        trains = (sizes.effective > 0) & sizes.lasting
        work_s = self.job.steps * self.job.step_s.mean / np.where(trains, sizes.effective, 1.0)
        total_s = np.where(trains, START_S + work_s, np.inf)
        allowed = self._allowed_micro_usd(total_s, total_s)
        sd = _speed_sd(sizes)
        # As describe.py: a slow run at a bad time
        slow = np.exp(Z80 * sd) * sizes.kept / np.maximum(sizes.kept_bad, 1e-9)
        slow_s = START_S + work_s * slow
        sure = self._allowed_micro_usd(total_s, slow_s)
        lost = sizes.lost_per_s * np.where(np.isfinite(total_s), total_s, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):  # The ends of the bill
            low_s = START_S + work_s / np.exp(Z80 * sd) * (sizes.kept / sizes.kept_good)
            spread = slow_s / low_s
        return replace(
            sizes,
            total_s=total_s,
            billed_s=total_s,
            preemptions=lost,
            late=self._late(total_s, sd),
            slow_s=np.where(trains, slow_s, np.inf),
            spread=np.where(trains, spread, 0.0),
            most_usd=allowed,
            sure_usd=sure,
        )

    def _late(self, total_s: FloatArray, sd: FloatArray) -> FloatArray:
        """Probability of missing the deadline; expected time is that of the median speed."""
        if self.deadline_s is None:
            return np.zeros(len(total_s))
        left_s = max(self.deadline_s - START_S, 1e-9)
        sds_in_time = (math.log(left_s) - np.log(total_s - START_S)) / np.maximum(sd, 1e-9)
        return 0.5 * np.array([*map(math.erfc, (sds_in_time / math.sqrt(2)).tolist())])

    def _allowed_micro_usd(self, total_s: FloatArray, billed_s: FloatArray) -> IntArray:
        """The highest price, micro-dollars/h, at which each size meets the limits; -1: none."""
        most = np.full(total_s.shape, UNLIMITED_USD, dtype=np.int64)
        if self.total_budget is not None:
            # The factor covers rounding: a plan's own expected bill must be enough as a limit.
            money = float(self.total_budget - self.besides_usd) * MICRO_USD * 3600 * (1 + 1e-12)
            most = np.floor(np.minimum(money / billed_s, 2.0**62)).astype(np.int64)
        late = ~np.isfinite(total_s) | (
            total_s > (math.inf if self.deadline_s is None else self.deadline_s)
        )
        return np.where(late, -1, most)


def _speed_sd(sizes: TrainingTable) -> FloatArray:
    """Standard deviation of the logarithm of each size's speed."""
    sd = np.zeros(len(sizes))
    for kind in np.unique(sizes.type_index):
        rows = sizes.type_index == kind
        law = law_of(sizes.curves[kind])
        assert law is not None  # those of a model follow from the law
        sd[rows] = law.doubt(sizes.count[rows].astype(np.float64)).sd
    return sd


_USUAL_GPUS = 8


def _of_seconds(work_s: float, checkpoint_bytes: int) -> Job:
    """A job of so much work in steps of about a second, with the latencies of the thesis."""
    steps = int(min(max(work_s, 1000), 10**7))
    return Job(
        name="work",
        steps=steps,
        step_s=Span.of(work_s / steps),
        save_s=Span.of(checkpoint_bytes / SAVE_BYTES_PER_S),
        backup_s=Span.of(checkpoint_bytes / BACKUP_BYTES_PER_S),
        allocation_s=Span(*ALLOCATION_S),
        preparation_s=Span(*PREPARATION_S),
        grace_s=GRACE_S,
    )

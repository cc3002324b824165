"""What a resumed training would do otherwise if its trainer did not see to it."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from deepvm.lab.geometry import ResumableSampler


def draws(**options: object) -> bool:
    """Whether iterating over a data loader changes the random numbers of the process."""
    sampler = ResumableSampler(12, global_batch=4)
    loader = DataLoader(list(range(12)), batch_sampler=sampler, **options)  # type: ignore[arg-type, type-var]
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        assert len(list(loader)) == 3
        return not torch.equal(torch.get_rng_state(), before)


def test_a_data_loader_draws_a_number_each_time_it_is_iterated() -> None:
    """One iterator more in a resumed training, and each dropout mask behind it is another: hence
    its own generator.
    """
    assert draws()
    assert not draws(generator=torch.Generator())

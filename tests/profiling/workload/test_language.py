"""Language models of a preset's size: their parameters, and that they train whole and in shards."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.tensor import DTensor  # noqa: E402

from deepvm.catalog.published.workloads import presets  # noqa: E402
from deepvm.core.training.workload import Model, Transformer  # noqa: E402
from deepvm.profiling.scaling.scaling_host import _built  # noqa: E402
from deepvm.profiling.workload import language  # noqa: E402
from deepvm.profiling.workload.spec import Workload  # noqa: E402
from deepvm.profiling.workload.train_step import Ranks, Training  # noqa: E402

TINY = Model("tiny", "transformer", 110_000, "tokens", 16, transformer=Transformer(2, 64, 100))
CPU = torch.device("cpu")
TEXT = [
    m
    for m in {m.name: m for m in presets().values()}.values()
    if m.transformer and m.transformer.vocabulary
]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    """One process that forms a group, as under torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }.items():
        monkeypatch.setenv(name, value)
    found = Ranks(0, 1, CPU, None, 60)
    yield found
    found.close()


def test_the_parameters_are_those_of_the_preset() -> None:
    """Without memory for them: also of 405 billion."""
    for model in TEXT:
        built = language.on_meta(model)
        places = model.sequence * model.transformer.hidden  # type: ignore[union-attr]
        count = sum(p.numel() for p in built.parameters()) - places
        assert count == pytest.approx(model.parameters, rel=0.02)


def test_scores_of_every_token() -> None:
    model = language.on_meta(TINY)
    language.fill(model, CPU)
    tokens, following = language.synthetic_text(3, TINY, CPU)()
    assert tokens.shape == following.shape == (3, 16) and torch.equal(
        tokens[:, 1:], following[:, :-1]
    )
    assert model(tokens).shape == (3, 16, 100)


def test_what_comes_later_is_not_seen_by_a_model_of_tokens() -> None:
    model = language.on_meta(TINY)
    language.fill(model, CPU)
    tokens = torch.randint(100, (1, 16))
    changed = tokens.clone()
    changed[0, 10:] = (changed[0, 10:] + 1) % 100
    assert torch.allclose(model(tokens)[0, :10], model(changed)[0, :10], atol=1e-5)
    assert not torch.allclose(model(tokens)[0, 10:], model(changed)[0, 10:], atol=1e-5)


@pytest.mark.parametrize(
    ("sharded", "checkpointing"),
    [
        (False, False),
        (True, True),
        *(pytest.param(*both, marks=pytest.mark.slow) for both in [(False, True), (True, False)]),
    ],
)
def test_it_learns_whole_and_in_shards(ranks: Ranks, sharded: bool, checkpointing: bool) -> None:
    torch.manual_seed(0)
    model = language.on_meta(TINY, checkpointing=checkpointing)
    batches = language.synthetic_text(4, TINY, CPU)
    own = Workload("tiny", 0, 4, "bfloat16" if sharded else "float32")
    if sharded:
        training = Training(
            model, own, batches, CPU, ranks, lambda kind: language.shard(model, kind, CPU, 1)
        )
    else:
        language.fill(model, CPU)
        training = Training(model, own, batches, CPU, ranks)
    assert all(isinstance(p, DTensor) is sharded for p in model.parameters())

    def loss() -> float:
        with torch.no_grad():
            tokens, following = batches()
            return float(
                torch.nn.functional.cross_entropy(
                    model(tokens).flatten(0, 1).float(), following.flatten()
                )
            )

    before, seconds = loss(), training.run(30)
    assert seconds > 0 and loss() < 0.9 * before


def test_activation_checkpointing_changes_no_number() -> None:
    torch.manual_seed(0)
    plain, again = language.on_meta(TINY), language.on_meta(TINY, checkpointing=True)
    language.fill(plain, CPU)
    again.to_empty(device=CPU)
    again.load_state_dict(plain.state_dict())
    tokens = torch.randint(100, (2, 16))
    for model in (plain, again):
        model(tokens).square().mean().backward()
    for one, other in zip(plain.parameters(), again.parameters(), strict=True):
        assert (
            one.grad is not None
            and other.grad is not None
            and torch.allclose(one.grad, other.grad, atol=1e-6)
        )


def test_what_a_host_is_told_to_train_is_built_without_memory() -> None:
    built = _built(
        {"model": "llama-70b", "sequence": 128, "method": "fsdp", "activation_checkpointing": True}
    )
    assert next(built.parameters()).is_meta
    assert not next(_built({"model": "resnet18"}).parameters()).is_meta

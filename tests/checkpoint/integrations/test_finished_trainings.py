"""A training that has ended does no step when it is started again, and goes on when it is to do
more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import Dataset  # noqa: E402

# Real trainers, which take seconds to load
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.system]


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, place: int) -> dict[str, Any]:
        made = torch.Generator().manual_seed(place)
        return {"inputs": torch.randn(4, generator=made), "labels": torch.randn(1, generator=made)}


def bits(model: Any) -> bytes:
    return b"".join(t.detach().numpy().tobytes() for t in model.state_dict().values())


def hugging_face(
    folder: Path, *, steps: int = -1, patience: int = 0, epochs: int = 4
) -> tuple[int, bytes, list[dict[str, Any]]]:
    """Steps done, the weights, and the log."""
    transformers = pytest.importorskip("transformers")
    from deepvm.checkpoint.integrations.huggingface import DeepVMCallback

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
            )

        def forward(self, inputs: Any, labels: Any) -> dict[str, Any]:
            found = self.layers(inputs)
            return {"loss": (found - labels).square().mean(), "logits": found}

    transformers.set_seed(0)
    stops = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_steps": 2,
        "load_best_model_at_end": True,
    }
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "own"),
        per_device_train_batch_size=8,
        num_train_epochs=epochs,
        max_steps=steps,
        logging_steps=5,
        lr_scheduler_type="constant",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="steps" if patience else "no",
        **(stops if patience else {}),
    )
    saves = DeepVMCallback(tiers=folder / "versions", every=4, job="finished")
    callbacks: list[Any] = [saves]
    if patience:  # nothing is better by that much
        callbacks.append(
            transformers.EarlyStoppingCallback(patience, early_stopping_threshold=100.0)
        )
    model = Model()
    data = Samples()
    trainer = transformers.Trainer(
        model, arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks
    )
    trainer.train()
    changing = ("runtime", "second")
    log = [
        {k: v for k, v in row.items() if not any(w in k for w in changing)}
        for row in trainer.state.log_history
    ]
    return trainer.state.global_step, bits(model), log


def lightning(
    folder: Path, *, steps: int = -1, patience: int = 0, epochs: int = 4
) -> tuple[int, bytes, list[dict[str, Any]]]:
    pl = pytest.importorskip("lightning.pytorch")
    from deepvm.checkpoint.integrations.lightning import DeepVMCallback

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
            )

        def training_step(self, batch: Any, number: int) -> Any:
            return (self.layers(batch["inputs"]) - batch["labels"]).square().mean()

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("loss", (self.layers(batch["inputs"]) - batch["labels"]).square().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    pl.seed_everything(0, verbose=False)
    callbacks: list[Any] = [DeepVMCallback(tiers=folder / "versions", every=4, job="finished")]
    if patience:
        callbacks.append(pl.callbacks.EarlyStopping("loss", patience=patience, min_delta=100.0))
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    limits = {"max_epochs": epochs, "max_steps": steps, "accelerator": "cpu", "devices": 1}
    trainer = pl.Trainer(callbacks=callbacks, **limits, **quiet)
    model = Model()
    loaders = [
        torch.utils.data.DataLoader(Samples(), 8, shuffle=shuffle) for shuffle in (True, False)
    ]
    trainer.fit(model, *loaders)
    return trainer.global_step, bits(model), []


KINDS = [hugging_face, lightning]


@pytest.mark.parametrize("train", KINDS)
@pytest.mark.parametrize(
    ("options", "done"), [({"steps": 9}, 9), ({"patience": 1}, None), ({}, 24)]
)
def test_it_does_no_more(
    train: Any, options: dict[str, int], done: int | None, tmp_path: Path
) -> None:
    """At a number of steps within an epoch, by early stopping, after all epochs."""
    first = train(tmp_path, **options)
    assert first[0] == (done or first[0]) and (done or 0 < first[0] < 24)
    for _ in range(2):
        assert train(tmp_path, **options) == first


@pytest.mark.parametrize(
    ("train", "first", "then"),
    [
        (hugging_face, {"steps": 9}, {"steps": 21}),
        (hugging_face, {"patience": 1}, {"patience": 3}),
        (hugging_face, {"epochs": 2}, {"epochs": 3}),
        (lightning, {"epochs": 2}, {"epochs": 3}),
    ],
)
def test_it_goes_on_as_if_it_had_been_to_do_more_from_the_start(
    train: Any, first: dict[str, int], then: dict[str, int], tmp_path: Path
) -> None:
    if train is lightning and pytest.importorskip("lightning").__version__ < "2.6":
        pytest.skip("Lightning 2.5 does something else between epochs when it is started again")
    undisturbed = train(tmp_path / "undisturbed", **then)
    train(tmp_path / "cut", **first)
    steps, weights, log = train(tmp_path / "cut", **then)
    assert (steps, weights) == undisturbed[:2]
    assert [row for row in log if "loss" in row] == [row for row in undisturbed[2] if "loss" in row]

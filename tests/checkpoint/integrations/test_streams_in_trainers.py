"""Shuffled streams of datasets in stateful loaders, as trainers use them: cut anywhere, each row
comes once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("datasets")
stateful = pytest.importorskip("torchdata.stateful_dataloader")

from deepvm.checkpoint import training_run  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
ROWS, BATCH, EPOCHS = 60, 4, 2


class Cut(BaseException):
    """The process is lost here."""


class Regression(torch.nn.Module):
    """Keeps the rows of each batch, and is cut before the one of a number."""

    def __init__(self, cut_at: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(1, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1)
        )
        self.cut_at, self.rows = cut_at, list[tuple[int, ...]]()

    def forward(self, n: Any) -> dict[str, Any]:
        if len(self.rows) == self.cut_at:
            raise Cut
        self.rows.append(tuple(n.tolist()))
        return {"loss": self.layers(n[:, None] / ROWS).square().mean()}


def _batch(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"n": torch.tensor([float(row["n"]) for row in rows])}


def loader_of(shuffled: bool) -> Any:
    rows = datasets.Dataset.from_dict({"n": [*range(ROWS)]}).to_iterable_dataset(num_shards=2)
    rows = rows.shuffle(seed=3, buffer_size=25) if shuffled else rows
    return stateful.StatefulDataLoader(rows, BATCH, collate_fn=_batch)


def plain(model: Regression, loader: Any, folder: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"tiers": folder, "every": 3, "job": "stream"}
    with training_run(
        model=model, optimizer=optimizer, loader=loader, epochs=EPOCHS, **options
    ) as run:
        for batch in run:
            optimizer.zero_grad()
            model(**batch)["loss"].backward()
            optimizer.step()
            run.checkpointer.handles and run.checkpointer.handles[-1].local_done.exception(30)


def with_accelerate(model: Regression, loader: Any, folder: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    from deepvm.checkpoint.integrations.accelerate import checkpointed

    config = accelerate.utils.DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loader
    )
    options: dict[str, Any] = {"tiers": folder, "every": 3, "job": "stream"}
    with checkpointed(
        accelerator, model=model, optimizer=optimizer, loader=loader, epochs=EPOCHS, **options
    ) as run:
        for _ in run.epochs():
            for batch in loader:
                optimizer.zero_grad()
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                run.checkpointer.handles and run.checkpointer.handles[-1].local_done.exception(30)


def with_transformers(model: Regression, loader: Any, folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from deepvm.checkpoint.integrations.huggingface import DeepVMCallback

    class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
        def get_train_dataloader(self) -> Any:
            self.accelerator.dataloader_config.use_stateful_dataloader = True
            return self.accelerator.prepare(loader)

    class Waiting(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            handles = saves.checkpointer.handles
            handles and handles[-1].local_done.exception(30)

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "own"),
        max_steps=EPOCHS * ROWS // BATCH,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    saves = DeepVMCallback(tiers=folder / "versions", every=3, job="stream")
    transformers.set_seed(0)
    Trainer(model, arguments, train_dataset=loader.dataset, callbacks=[saves, Waiting()]).train()


def with_lightning(model: Regression, loader: Any, folder: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    from deepvm.checkpoint.integrations.lightning import DeepVMCallback

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> Any:
            handles = saves.checkpointer.handles
            handles and handles[-1].local_done.exception(30)
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    saves = DeepVMCallback(tiers=folder / "versions", every=3, job="stream")
    options: dict[str, Any] = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    options |= {"accelerator": "cpu", "enable_checkpointing": False, "default_root_dir": folder}
    pl.Trainer(max_epochs=EPOCHS, callbacks=[saves], **options).fit(Module(), loader)


@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("train", [plain, with_accelerate, with_transformers, with_lightning])
@pytest.mark.parametrize("cut_at", [8, 15, 20])
def test_cut_in_a_trainer(train: Any, shuffled: bool, cut_at: int, tmp_path: Path) -> None:
    undisturbed = Regression(-1)
    train(undisturbed, loader_of(shuffled), tmp_path / "undisturbed")
    assert len(undisturbed.rows) == EPOCHS * ROWS // BATCH
    first = Regression(cut_at)
    with pytest.raises(Cut):
        train(first, loader_of(shuffled), tmp_path / "cut")
    second = Regression(-1)
    train(second, loader_of(shuffled), tmp_path / "cut")
    assert second.rows == undisturbed.rows[-len(second.rows) :]
    assert len(second.rows) < len(undisturbed.rows)
    for one, other in zip(second.parameters(), undisturbed.parameters(), strict=True):
        assert torch.equal(one, other)

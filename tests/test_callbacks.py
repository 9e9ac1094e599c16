"""Callbacks of trainers: tested with the libraries where they are installed, without them what is theirs alone."""

import pytest
import torch
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz.callbacks import CallbackError, TrainingRecord, lightning_callback, trainer_callback
from loaderviz.imports import cured_imports


def data(samples=8 * 12):
    return TensorDataset(torch.rand(samples, 16), torch.randint(0, 4, (samples,)))


def judged(path, steps):
    """The timeline in this file, of which so many steps were recorded, and the page beside it."""
    timeline = lv.read(path)
    assert timeline.context.origin == "recorded" and lv.summarize(timeline).batches == steps
    assert not [note for note in timeline.context.notes if "was being iterated" in note]
    return timeline


def fit(record, batches):
    record.begin()
    for x, _ in DataLoader(data(8 * batches), 8):
        x.sum()
    record.end()


@pytest.mark.filterwarnings("ignore")  # those of the library
@pytest.mark.parametrize(
    ("workers", "wait", "steps", "validated"), [(0, 0, 11, False), (2, 2, 6, False), (2, 0, 11, True)]
)
def test_lightning(tmp_path, workers, wait, steps, validated):
    with cured_imports():
        lightning = pytest.importorskip("lightning")

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(16, 4)

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch, _):
            self.net(batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    callback = lightning_callback(tmp_path / "fit.json", "cpu", wait, steps if wait else None)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    options = {"max_epochs": 1, "accelerator": "cpu", "default_root_dir": tmp_path} | quiet
    trainer = lightning.Trainer(callbacks=[callback], **options)
    held_out = [DataLoader(data(32), 8)] if validated else []
    trainer.fit(Net(), DataLoader(data(), 8, num_workers=workers), *held_out)
    timeline = judged(tmp_path / "fit.json", steps)
    assert len(timeline) == len(callback.record.timeline)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [0, 2])
def test_transformers(tmp_path, workers):
    with cured_imports():
        transformers = pytest.importorskip("transformers")
        pytest.importorskip("accelerate")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(16, 4)

        def forward(self, x, labels):
            return {"loss": nn.functional.cross_entropy(self.net(x), labels)}

    arguments = transformers.TrainingArguments(
        str(tmp_path), per_device_train_batch_size=8, num_train_epochs=1, report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="no", dataloader_num_workers=workers, remove_unused_columns=False,
    )  # fmt: skip
    samples = [{"x": x, "labels": y} for x, y in data()]
    callback = trainer_callback(tmp_path / "train.json", "cpu")
    transformers.Trainer(Net(), arguments, train_dataset=samples, callbacks=[callback]).train()
    judged(tmp_path / "train.json", 11)


def test_what_was_recorded_is_written_once_as_a_page_or_as_a_timeline(tmp_path):
    for name in ("fit.html", "fit.json"):
        record = TrainingRecord(tmp_path / name, "cpu")
        record.end()  # before it began: there is nothing
        assert not (tmp_path / name).exists()
        fit(record, 12)
        written = (tmp_path / name).stat().st_mtime_ns
        record.end()
        assert (tmp_path / name).stat().st_mtime_ns == written
        assert lv.summarize(record.timeline).batches == 11
    assert "<html" in (tmp_path / "fit.html").read_text(encoding="utf-8")[:200]


@pytest.fixture
def rank_2():
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)
    yield
    torch.distributed.destroy_process_group()


def test_each_rank_writes_a_file_of_its_own(tmp_path, rank_2):
    fit(record := TrainingRecord(tmp_path / "fit.json", "cpu"), 4)
    assert [path.name for path in tmp_path.iterdir()] == ["fit-rank2.json"]
    assert len(lv.read(tmp_path / "fit-rank2.json")) == len(record.timeline)


def test_a_second_training_is_recorded_anew(tmp_path):
    record = TrainingRecord(tmp_path / "fit.json", "cpu")
    for batches in (3, 5):
        fit(record, batches)
        assert len(lv.read(tmp_path / "fit.json")) == len(record.timeline)
        assert lv.summarize(record.timeline).batches == batches - 1


@pytest.mark.parametrize("on", ["a100", "", None, 3])
def test_a_callback_emulates_nothing(tmp_path, on):
    with pytest.raises(CallbackError, match=r"run the whole program inside loaderviz\.record"):
        TrainingRecord(tmp_path / "fit.html", on)
    with pytest.raises(lv.LoadervizError, match="folder"):
        TrainingRecord(tmp_path / "none" / "fit.html")

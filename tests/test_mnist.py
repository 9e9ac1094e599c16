"""MNIST: the drawn stand-in, the real files where they are, damaged files, the download and its time limit."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from loaderviz import _mnist_cache, _mnist_drawn, _mnist_files, mnist
from loaderviz.errors import LoadervizError
from loaderviz.mnist import MnistError

PROJECT = Path(__file__).resolve().parent.parent
NAMES = [name for split in ("train", "t10k") for name in _mnist_files.file_names(split)]

# CRC-32 of the drawn files. They must be the same on every machine and with every numpy; when a change of the drawing
# is meant, raise DRAWING_VERSION and note the new sums.
DRAWN_SUMS = {
    "train-images-idx3-ubyte": 0x936171B8,
    "train-labels-idx1-ubyte": 0x7240864E,
    "t10k-images-idx3-ubyte": 0x838251FE,
    "t10k-labels-idx1-ubyte": 0xD5334531,
}


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder in which the stand-in is drawn."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOADERVIZ_CACHE", str(folder))
        _mnist_cache.ensure_drawn()
    return folder


@pytest.fixture(autouse=True)
def _surroundings(drawn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's cache or the network, or inherits another test's choice."""
    monkeypatch.setenv("LOADERVIZ_CACHE", str(drawn))
    monkeypatch.setenv("LOADERVIZ_OFFLINE", "1")
    monkeypatch.delenv("LOADERVIZ_DATA", raising=False)
    monkeypatch.setattr(mnist, "_chosen", {})
    monkeypatch.setattr(mnist, "_announced", set())


@pytest.fixture
def fresh_cache(tmp_path: Path, drawn: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, with the stand-in in it so that it need not be drawn again."""
    folder = tmp_path / "cache"
    shutil.copytree(drawn, folder)
    monkeypatch.setenv("LOADERVIZ_CACHE", str(folder))
    return folder


def real_like(split: str) -> _mnist_files.Split:
    """Files that pass for the real MNIST: its class counts; the images carry the label in their middle."""
    labels = np.repeat(np.arange(10, dtype=np.uint8), _mnist_files.REAL_CLASS_COUNTS[split])
    images = np.zeros((len(labels), 28, 28), np.uint8)
    images[:, 14, 14] = labels + 1
    return images, labels


def put(root: Path, split: str, arrays: _mnist_files.Split, zipped: bool = False) -> None:
    for name, array in zip(_mnist_files.file_names(split), arrays, strict=True):
        path = _mnist_files.raw_folder(root) / name
        _mnist_files.write_idx(path, array)
        if zipped:
            path.with_name(name + ".gz").write_bytes(gzip.compress(path.read_bytes(), 1))
            path.unlink()


# --- the stand-in ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("train", "count"), [(True, 60_000), (False, 10_000)])
def test_the_stand_in_has_mnists_shapes_types_and_balanced_classes(train: bool, count: int) -> None:
    images, labels = mnist.tensors(train)
    assert (images.shape, images.dtype) == ((count, 28, 28), torch.uint8)
    assert (labels.shape, labels.dtype) == ((count,), torch.int64)
    assert labels.bincount().tolist() == [count // 10] * 10
    assert bool((labels.diff() != 0).sum() > 0.8 * count), "the classes are in random order, not one after another"
    ink = images.float().mean() / 255
    assert 0.10 < ink < 0.16, "MNIST's mean is 0.131"
    assert len(torch.unique(images.view(count, -1)[:1000], dim=0)) == 1000, "no image twice"


def test_the_stand_in_has_the_same_bytes_everywhere(drawn: Path) -> None:
    raw = _mnist_files.raw_folder(_mnist_cache.drawn_root())
    assert {name: zlib.crc32((raw / name).read_bytes()) for name in NAMES} == DRAWN_SUMS


def test_train_and_test_digits_differ() -> None:
    train, _ = mnist.tensors(True)
    test, _ = mnist.tensors(False)
    both = torch.cat([train.view(-1, 784)[:10_000], test.view(-1, 784)])
    assert len(torch.unique(both, dim=0)) == 20_000


@pytest.mark.parametrize("count", [0, -10, 15])
def test_a_count_that_ten_classes_cannot_share(count: int) -> None:
    with pytest.raises(ValueError, match=f"count={count}"):
        _mnist_drawn.draw(True, count)


def test_a_small_network_learns_it_in_one_epoch() -> None:
    images, labels = mnist.tensors(True)
    test_images, test_labels = mnist.tensors(False)
    torch.manual_seed(0)
    layers = [torch.nn.Flatten(), torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)]
    network = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(network.parameters())
    for batch in torch.randperm(60_000).split(128):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images[batch] / 255), labels[batch]).backward()
        optimizer.step()
    accuracy = (network(test_images / 255).argmax(1) == test_labels).double().mean()
    assert accuracy >= 0.95


# --- as torchvision's data set ---------------------------------------------------------------------------------------


def test_torchvisions_own_class_reads_the_files() -> None:
    from torchvision.datasets import MNIST

    ours = mnist.load(train=False)
    theirs = MNIST(ours.root, train=False, download=False)
    assert isinstance(ours, MNIST)
    assert torch.equal(ours.data, theirs.data)
    assert torch.equal(ours.targets, theirs.targets)
    assert ours[3][0].tobytes() == theirs[3][0].tobytes()
    assert ours[3][1] == theirs[3][1]
    assert "Source: drawn stand-in" in repr(ours)


def test_a_transform_is_applied() -> None:
    dataset = mnist.load(train=False, transform=lambda image: image.size)
    assert dataset[0] == ((28, 28), int(dataset.targets[0]))


def test_a_spawned_worker_can_unpickle_it() -> None:
    # It starts from nothing, so it needs the import cure on its own.
    few = torch.utils.data.Subset(mnist.load(train=False, transform=np.asarray), range(8))
    loader = torch.utils.data.DataLoader(few, batch_size=8, num_workers=1, multiprocessing_context="spawn")
    ((images, labels),) = list(loader)
    assert torch.equal(images, mnist.tensors(False)[0][:8])
    assert torch.equal(labels, mnist.tensors(False)[1][:8])


def test_it_is_announced_once_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    mnist.load(train=False)
    mnist.tensors(train=False)
    output = capsys.readouterr().out
    assert output.count("\n") == 1
    for part in (
        "drawn stand-in",
        str(_mnist_cache.drawn_root()),
        "LOADERVIZ_OFFLINE",
        "LOADERVIZ_DATA",
        "download=True",
    ):
        assert part in output
    assert mnist.describe() in output


# --- real files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [False, True])
def test_a_root_with_the_test_split_alone(zipped: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "t10k", real_like("t10k"), zipped)
    images, labels = mnist.tensors(train=False, root=tmp_path)
    assert torch.equal(images[:, 14, 14], (labels + 1).to(torch.uint8))
    assert "real MNIST" in capsys.readouterr().out
    assert mnist.describe(False, tmp_path) == f"real MNIST in {tmp_path} (the test split alone)"
    with pytest.raises(MnistError, match=r"train-images-idx3-ubyte and train-labels.*missing") as caught:
        mnist.load(train=True, root=tmp_path)
    assert isinstance(caught.value, LoadervizError)


def test_loaderviz_data_with_one_split_is_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "t10k", real_like("t10k"))
    monkeypatch.setenv("LOADERVIZ_DATA", str(tmp_path))
    for train in (True, False):
        source = mnist.load(train=train).source
        assert source.name == "drawn stand-in"
        assert f"LOADERVIZ_DATA={tmp_path} has the test split without the train split" in str(source)


def test_loaderviz_data_with_both_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "train", real_like("train"))
    put(tmp_path, "t10k", real_like("t10k"), zipped=True)
    monkeypatch.setenv("LOADERVIZ_DATA", str(tmp_path))
    assert mnist.load(train=True).source == mnist.Source(True, tmp_path)
    assert mnist.load(train=False).targets.bincount().tolist() == list(_mnist_files.REAL_CLASS_COUNTS["t10k"])
    assert capsys.readouterr().out == "", "the real MNIST needs no announcement"


@pytest.mark.parametrize("kind", ["empty", "absent"])
def test_a_root_without_files_leads_on_and_says_so(kind: str, tmp_path: Path) -> None:
    root = tmp_path / kind
    if kind == "empty":
        root.mkdir()
    source = mnist.find(root=root)
    assert not source.real
    assert f"root {root} holds no MNIST files" in str(source)


def test_fashion_mnist_is_not_taken_for_mnist(tmp_path: Path) -> None:
    images, _ = real_like("t10k")
    put(tmp_path, "t10k", (images, (np.arange(10_000) % 10).astype(np.uint8)))
    with pytest.raises(MnistError, match=r"not MNIST.*1000, 1000.*Fashion-MNIST"):
        mnist.load(train=False, root=tmp_path)


def test_the_stand_in_as_root_is_still_called_drawn() -> None:
    source = mnist.find(train=False, root=_mnist_cache.drawn_root())
    assert not source.real
    with pytest.raises(MnistError, match="drawn stand-in"):
        mnist.find(train=False, root=_mnist_cache.drawn_root(), download=True)


def _shorten(content: bytes) -> bytes:
    return content[:-1]


def _lengthen(content: bytes) -> bytes:
    return content + b"\0"


def _spoil_magic(content: bytes) -> bytes:
    return b"<html>" + content[6:]


def _zero_the_end(content: bytes) -> bytes:
    return content[:-3000] + bytes(3000)


def _spoil_last(content: bytes) -> bytes:
    return content[:-1] + b"\xff"


IMAGES, LABELS = _mnist_files.file_names("t10k")


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (IMAGES, _shorten, "has 7,840,015 bytes.*expected 7,840,016"),
        (IMAGES, _lengthen, "has 7,840,017 bytes"),
        (IMAGES, lambda content: b"", "first bytes are none"),
        (IMAGES, _spoil_magic, "does not begin like an IDX file"),
        (IMAGES, _zero_the_end, r"image 999\d is blank"),
        (LABELS, _shorten, "cut short"),
        (LABELS, _spoil_last, "label 255 at position 9999"),
    ],
)
def test_damage_in_a_users_file_is_an_error_and_the_file_stays(
    name: str, damage: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    put(tmp_path, "t10k", real_like("t10k"))
    path = _mnist_files.raw_folder(tmp_path) / name
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    with pytest.raises(MnistError, match=message) as caught:
        mnist.load(train=False, root=tmp_path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("position", [-1, 200, -6])  # half a file, a changed byte, a changed check sum
def test_damage_in_a_zipped_file_is_noticed(position: int, tmp_path: Path) -> None:
    put(tmp_path, "t10k", real_like("t10k"), zipped=True)
    path = _mnist_files.raw_folder(tmp_path) / (LABELS + ".gz")
    content = bytearray(path.read_bytes())
    if position == -1:
        del content[len(content) // 2 :]
    else:
        content[position % len(content)] ^= 0x55
    path.write_bytes(content)
    with pytest.raises(MnistError, match="t10k-labels"):
        mnist.load(train=False, root=tmp_path)


# --- the cache -------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted_draw(drawn: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Drawing returns what is drawn already (it takes a second otherwise); the list says how often it was asked."""
    root = _mnist_cache.drawn_root()
    asked: list[bool] = []

    def draw(train: bool) -> _mnist_files.Split:
        asked.append(train)
        return _mnist_files.read_split(root, _mnist_files.split_name(train))

    monkeypatch.setattr(_mnist_drawn, "draw", draw)
    return asked


def _flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("victim", "damage"),
    [
        (f"MNIST/raw/{IMAGES}", _flip_a_bit),  # neither header nor size tell it
        (f"MNIST/raw/{LABELS}", Path.unlink),
        (f"MNIST/raw/{IMAGES}", lambda path: path.write_bytes(path.read_bytes()[:5000])),
        (_mnist_cache.MANIFEST, Path.unlink),
        (_mnist_cache.MANIFEST, lambda path: path.write_text('{"t10k-')),
    ],
)
def test_damage_in_the_cache_is_repaired(
    counted_draw: list[bool], victim: str, damage: Callable[[Path], None], fresh_cache: Path
) -> None:
    mnist.load(train=False)
    assert counted_draw == [], "a whole stand-in is not drawn again"
    path = _mnist_cache.drawn_root() / victim
    before = path.read_bytes()
    damage(path)
    mnist.load(train=False)
    assert counted_draw == [True, False]
    assert path.read_bytes() == before


def test_a_damaged_download_in_the_cache_is_dropped(fresh_cache: Path) -> None:
    put(_mnist_cache.real_root(), "t10k", real_like("t10k"))
    assert not mnist.find().real
    assert not _mnist_cache.real_root().exists()


def test_what_a_killed_process_left_is_removed_in_time(counted_draw: list[bool], fresh_cache: Path) -> None:
    old, young = (_mnist_files.part_name(fresh_cache / "mnist") for _ in range(2))
    old.mkdir()
    young.mkdir()
    days_ago = time.time() - 3 * 24 * 3600
    os.utime(old, (days_ago, days_ago))
    (_mnist_cache.drawn_root() / _mnist_cache.MANIFEST).unlink()
    _mnist_cache.ensure_drawn()
    assert not old.exists()
    assert young.exists(), "it may belong to a process that is at work"


def test_two_processes_at_once(tmp_path: Path) -> None:
    code = "import sys; sys.stdin.read(1); from loaderviz import _mnist_cache; print(_mnist_cache.ensure_drawn())"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "LOADERVIZ_CACHE": str(tmp_path)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for process in both:  # both wait for this
        assert process.stdin is not None
        process.stdin.write("g")
        process.stdin.flush()
    roots = {process.communicate()[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    (root,) = roots
    files = {path.name: path for path in Path(root).rglob("*") if path.is_file()}
    assert set(files) == {*NAMES, _mnist_cache.MANIFEST}, "and no half-written file is left"
    assert {name: zlib.crc32(files[name].read_bytes()) for name in NAMES} == DRAWN_SUMS
    assert json.loads(files[_mnist_cache.MANIFEST].read_bytes()) == DRAWN_SUMS


def test_a_cache_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOADERVIZ_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(MnistError, match=r"cannot be written to.*LOADERVIZ_CACHE"):
        mnist.load()
    assert "cannot be written to" in str(_mnist_cache.fetch_real(["file:///nowhere/"], [("x.gz", "0")], 5.0))


@pytest.mark.parametrize(
    ("platform", "variable", "expected"),
    [
        ("linux", "", "home/.cache/loaderviz"),
        ("linux", "XDG_CACHE_HOME", "set/loaderviz"),
        ("darwin", "", "home/Library/Caches/loaderviz"),
        ("win32", "LOCALAPPDATA", "set/loaderviz/Cache"),
        ("win32", "", "home/AppData/Local/loaderviz/Cache"),
        ("linux", "LOADERVIZ_CACHE", "set"),
    ],
)
def test_the_cache_folder_of_each_platform(
    platform: str, variable: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(sys, "platform", platform)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "LOADERVIZ_CACHE"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "set"))
    assert _mnist_cache.cache_folder() == tmp_path / expected


# --- the download ----------------------------------------------------------------------------------------------------


@pytest.fixture
def online(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOADERVIZ_OFFLINE")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def mirror(tmp_path: Path, online: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A mirror on this machine with files that pass for MNIST; yields the paths that were asked for."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            asked.append(self.path)

    folder = tmp_path / "mirror"
    for split in _mnist_files.SIZES:
        put(folder, split, real_like(split), zipped=True)
    raw = _mnist_files.raw_folder(folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(raw)))
    sums = [(f"{name}.gz", hashlib.md5((raw / f"{name}.gz").read_bytes()).hexdigest()) for name in NAMES]
    monkeypatch.setattr(mnist._TorchvisionMNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
    monkeypatch.setattr(mnist._TorchvisionMNIST, "resources", sums)
    monkeypatch.setattr(mnist, "AUTO_SECONDS", 60.0)  # a loaded test machine is no reason to fail
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_download_is_used_kept_and_completes_a_root(mirror: list[str], tmp_path: Path) -> None:
    assert mnist.load(train=False).source == mnist.Source(True, _mnist_cache.real_root())
    assert {f"/{name}.gz" for name in NAMES} <= set(mirror)
    mirror.clear()
    mnist._chosen.clear()  # a later process
    assert mnist.find(download=False).real
    own = tmp_path / "own"
    put(own, "t10k", real_like("t10k"), zipped=True)
    mine = (_mnist_files.raw_folder(own) / f"{IMAGES}.gz").stat()
    images, labels = mnist.tensors(train=True, root=mnist.find(True, own, download=True).root)
    assert torch.equal(images[:, 14, 14], (labels + 1).to(torch.uint8))
    assert (_mnist_files.raw_folder(own) / f"{IMAGES}.gz").stat() == mine
    assert not (_mnist_files.raw_folder(own) / IMAGES).exists()
    assert mirror == [], "nothing is downloaded twice"


def test_a_failed_download_is_remembered_for_a_day(online: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]  # closed again at once: nobody listens there
    monkeypatch.setattr(mnist._TorchvisionMNIST, "mirrors", [f"http://127.0.0.1:{port}/"])
    tried = []
    really = _mnist_cache.download
    monkeypatch.setattr(_mnist_cache, "download", lambda *order: tried.append(order) or really(*order))
    first = mnist.find()
    assert not first.real
    assert "the download failed (no mirror answers" in str(first)
    mnist._chosen.clear()
    assert "failed within the last day (no mirror answers" in str(mnist.find())
    assert len(tried) == 1

    with pytest.raises(MnistError, match="could not be downloaded: no mirror answers"):
        mnist.find(download=True)
    assert len(tried) == 2, "asking for it tries again"

    note = json.loads(_mnist_cache._failure_file().read_bytes())
    for age in (_mnist_cache.REMEMBER_SECONDS + 60, -3600):  # a clock may have been wrong: a note from the future
        _mnist_cache._failure_file().write_text(json.dumps({**note, "time": time.time() - age}))
        assert _mnist_cache.remembered_failure() is None
    _mnist_cache._failure_file().write_text("{")
    assert _mnist_cache.remembered_failure() is None


def test_a_mirror_that_never_answers_is_left_in_time_and_nothing_stays_behind(
    online: None, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung_up = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take_the_call_and_say_nothing() -> None:
            connection, _ = server.accept()
            with connection:
                while connection.recv(4096):
                    pass  # the request
            hung_up.set()

        thread = threading.Thread(target=take_the_call_and_say_nothing, daemon=True)
        thread.start()
        mirrors = [f"http://127.0.0.1:{server.getsockname()[1]}/"]
        reason = _mnist_cache.fetch_real(mirrors, [("x.gz", "0")], seconds=1.5)  # less than PROBE_SECONDS
        assert reason == "the download took longer than 1.5 s"
        assert hung_up.wait(20), "the child's end of the line is closed: the child is gone"
        thread.join()
    assert list(fresh_cache.glob("*.part")) == []


def test_files_with_a_wrong_sum_are_not_taken(
    mirror: list[str], fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resources = [(name, "0" * 32) for name, _ in mnist._TorchvisionMNIST.resources]
    monkeypatch.setattr(mnist._TorchvisionMNIST, "resources", resources)
    assert not mnist.find().real
    assert not _mnist_cache.real_root().exists()
    assert list(fresh_cache.glob("*.part")) == []


def test_offline_and_false_never_try(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_mnist_cache, "download", lambda *order: pytest.fail("the network was used"))
    assert "LOADERVIZ_OFFLINE is set" in str(mnist.find())
    with pytest.raises(MnistError, match="LOADERVIZ_OFFLINE is set"):
        mnist.find(download=True)
    monkeypatch.setenv("LOADERVIZ_OFFLINE", "0")
    mnist._chosen.clear()
    assert "download=False" in str(mnist.find(download=False))
    assert "download=False" in str(mnist.find()), "the process stays with its first choice: train and test match"


@pytest.mark.parametrize("download", ["yes", None, "True"])
def test_another_value_of_download_is_refused(download: object) -> None:
    with pytest.raises(ValueError, match="download="):
        mnist.find(download=download)  # type: ignore[arg-type]

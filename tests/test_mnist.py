"""MNIST: the drawn stand-in, real files where they are, damaged files, the download and its time limit."""

import functools
import gzip
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path

import factory
import numpy as np
import pytest
import torch

from loaderviz import mnist
from loaderviz.experiment import Digits
from loaderviz.mnist import FILES, RAW, SIZES, MnistError

# The same on every machine and with every numpy; a change of the drawing is meant, or it is a fault.
DRAWN_SUMS = {True: (3294125006, 2720460942), False: (2639147187, 1100857532)}
IMAGES, LABELS = FILES[False]


@pytest.fixture(autouse=True)
def _surroundings(tmp_path, monkeypatch):
    """No test touches the user's cache or the network, or inherits another test's choice."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("LOADERVIZ_OFFLINE", "1")
    monkeypatch.delenv("LOADERVIZ_DATA", raising=False)
    forget()
    yield
    forget()


def forget():
    for cached in (mnist._stored, mnist._announce, mnist._read, mnist._kept, mnist._in_memory):
        cached.cache_clear()


@functools.cache
def like_mnist(train):
    """The content of two files of its shapes, by name; the images carry the label in their middle."""
    labels = np.arange(SIZES[train], dtype=np.uint8) % 10
    images = np.zeros((len(labels), 28, 28), np.uint8)
    images[:, 14, 14] = labels + 1
    headers = (bytes([0, 0, 8, each.ndim]) + np.array(each.shape, ">u4").tobytes() for each in (images, labels))
    contents = [header + each.tobytes() for header, each in zip(headers, (images, labels), strict=True)]
    return dict(zip(FILES[train], contents, strict=True))


@pytest.fixture
def put(monkeypatch):
    """Return a function that puts files into a folder which pass for MNIST's."""
    sums = {train: {name: hashlib.md5(c).hexdigest() for name, c in like_mnist(train).items()} for train in FILES}
    monkeypatch.setattr(mnist, "FILES", sums)

    def write(root, *splits, zipped=False):
        (root / RAW).mkdir(parents=True, exist_ok=True)
        for name, content in ((name, c) for train in splits for name, c in like_mnist(train).items()):
            (root / RAW / (name + ".gz" * zipped)).write_bytes(gzip.compress(content, 1) if zipped else content)
        return root / RAW

    return write


@pytest.mark.parametrize("train", [True, False])
def test_the_stand_in_has_mnists_shapes_types_and_balanced_classes_everywhere_the_same(train):
    images, labels = mnist.tensors(train)
    count = 60_000 if train else 10_000
    assert (images.shape, images.dtype) == ((count, 28, 28), torch.uint8)
    assert (labels.shape, labels.dtype) == ((count,), torch.int64)
    assert labels.bincount().tolist() == [count // 10] * 10
    assert bool((labels.diff() != 0).sum() > 0.8 * count), "the classes are in random order, not one after another"
    assert 0.10 < images.float().mean() / 255 < 0.16, "MNIST's mean is 0.131"
    assert len(torch.unique(images.view(count, -1), dim=0)) == count, "no image twice"
    assert tuple(zlib.crc32(part.numpy().tobytes()) for part in (images, labels)) == DRAWN_SUMS[train]


def test_train_and_test_digits_differ_and_each_caller_has_its_own(capsys):
    train, test = (mnist.tensors(split)[0][:10_000] for split in (True, False))
    assert len(torch.unique(torch.cat([train, test]).view(-1, 784), dim=0)) == 20_000
    before = test.clone()
    test.zero_()
    assert torch.equal(mnist.tensors(False)[0], before)
    output = capsys.readouterr().out  # it is announced once, in one line
    assert output == f"loaderviz: {mnist.find()}\n"
    assert all(part in output for part in ("drawn stand-in", "LOADERVIZ_OFFLINE", "LOADERVIZ_DATA", "download=True"))


@pytest.fixture
def cache(tmp_path):
    """The folder of ours in an empty home, where digits that are drawn are kept."""
    forget()
    return tmp_path / "loaderviz"


def sums_of(train):
    return tuple(zlib.crc32(part.numpy().tobytes()) for part in mnist.tensors(train))


def test_what_is_drawn_is_kept_in_a_file_that_all_kernels_map(cache, monkeypatch):
    assert sums_of(False) == DRAWN_SUMS[False]
    assert [(file.name, file.stat().st_size) for file in cache.iterdir()] == [("drawn-test", 7_850_000)]
    forget()
    monkeypatch.setattr(mnist, "draw", lambda train: pytest.fail("it is drawn already"))
    first, second = mnist.tensors(False)[0], mnist.tensors(False)[0]
    first.fill_(7)  # a caller's own
    assert sums_of(False) == DRAWN_SUMS[False] and not torch.equal(first, second)
    if (maps := Path("/proc/self/maps")).exists():
        assert maps.read_text().count(str(cache / "drawn-test")) >= 2


@pytest.mark.parametrize("damage", ["cut", "other bytes", "empty", "a folder", "gone", "longer"])
def test_a_damaged_file_of_drawn_digits_is_drawn_anew(cache, damage):
    mnist.tensors(False)
    [file] = cache.iterdir()
    whole = file.read_bytes()
    file.unlink()
    if damage == "a folder":
        file.mkdir()
    elif damage != "gone":
        file.write_bytes(
            {"cut": whole[:-1], "other bytes": b"x" + whole[1:], "empty": b"", "longer": whole + b"x"}[damage]
        )
    forget()
    assert sums_of(False) == DRAWN_SUMS[False]
    assert (file.is_dir() if damage == "a folder" else file.read_bytes() == whole) and len(list(cache.iterdir())) == 1


def test_a_file_that_goes_or_shrinks_later_is_missed_by_nobody(cache):
    mnist.tensors(False)
    (cache / "drawn-test").write_bytes(b"short")
    assert sums_of(False) == DRAWN_SUMS[False]
    (cache / "drawn-test").unlink()
    assert sums_of(False) == DRAWN_SUMS[False]


@pytest.mark.parametrize("place", ["a file", "full"])
def test_digits_that_cannot_be_kept_are_drawn_in_memory(cache, monkeypatch, place):
    if place == "a file":
        cache.write_text("")
    else:
        monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    images, _ = mnist.tensors(False)
    images.zero_()
    assert sums_of(False) == DRAWN_SUMS[False] and (place == "a file" or list(cache.iterdir()) == [])


def test_a_small_network_learns_it_in_one_epoch():
    (images, labels), (test_images, test_labels) = mnist.tensors(True), mnist.tensors(False)
    torch.manual_seed(0)
    layers = [torch.nn.Flatten(), torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)]
    network = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(network.parameters())
    for batch in torch.randperm(60_000).split(128):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images[batch] / 255), labels[batch]).backward()
        optimizer.step()
    assert (network(test_images / 255).argmax(1) == test_labels).double().mean() >= 0.95


@pytest.mark.slow
def test_its_items_are_torchvisions_in_a_spawned_worker_too():
    images, labels = (part[:8] for part in mnist.tensors(False))
    dataset = Digits(images, labels)  # a spawned worker needs the import cure on its own
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=1, multiprocessing_context="spawn")
    ((found, targets),) = list(loader)
    assert torch.equal(found, images[:, None] / 255) and torch.equal(targets, labels)


@pytest.mark.slow
def test_the_stand_in_needs_no_torchvision(tmp_path):
    code = (
        "import sys; sys.modules['torchvision'] = None; from loaderviz import experiment, mnist;"
        "digits = mnist.tensors(); print(digits[0].shape); experiment.Digits(*digits)"
    )
    environment = {**os.environ, "LOADERVIZ_OFFLINE": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "[60000, 28, 28]" in ended.stdout
    assert ended.stderr.splitlines()[-1].startswith("loaderviz.errors.MissingPackageError: MNIST needs torchvision,")


def test_loaderviz_data_is_used_if_it_has_both_splits(tmp_path, put, monkeypatch, capsys):
    put(tmp_path, False, zipped=True)
    monkeypatch.setenv("LOADERVIZ_DATA", str(tmp_path))
    lacking = f"LOADERVIZ_DATA={tmp_path} lacks train-images-idx3-ubyte and train-labels-idx1-ubyte and"
    assert lacking in str(mnist.find())  # the test digits are there, and are not mixed with drawn ones
    forget()
    capsys.readouterr()
    put(tmp_path, True)
    for train in (True, False):
        images, labels = mnist.tensors(train)
        assert torch.equal(images[:, 14, 14], (labels + 1).to(torch.uint8))
    assert mnist.find() == mnist.DigitSource(tmp_path)
    assert capsys.readouterr().out == "", "the real MNIST needs no announcement"


def test_a_home_that_may_not_be_entered_is_a_folder_without_mnist(tmp_path, monkeypatch):
    home = str(tmp_path / "home")

    def refusing(call, path, *more, **options):
        if str(path).startswith(home):
            raise PermissionError(13, "Permission denied", str(path))
        return call(path, *more, **options)

    monkeypatch.setenv("TORCH_HOME", home)
    online(monkeypatch, 1)
    monkeypatch.setattr(mnist, "AUTO_SECONDS", 60)
    with monkeypatch.context() as patch:
        for name in ("stat", "mkdir"):
            patch.setattr(os, name, functools.partial(refusing, getattr(os, name)))
        assert "Permission denied" in str(mnist.find())  # at once: a download has nowhere to go


def test_a_home_that_nobody_has_is_a_folder_without_mnist(monkeypatch):
    monkeypatch.setenv("LOADERVIZ_DATA", "~nobody-of-this-name/data")
    assert "~nobody-of-this-name/data lacks" in str(mnist.find(download=False))


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", [IMAGES, LABELS])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[: (at := len(content) // 2)] + bytes([content[at] ^ 0x55]) + content[at + 1 :],
        lambda content: content[:-6] + bytes([content[-6] ^ 0x55]) + content[-5:],
        lambda content: b"",
    ],
    ids=["half", "a byte", "a byte near the end", "nothing"],
)
def test_damage_in_a_file_is_an_error_that_names_it_and_the_file_stays(
    name, damage, zipped, tmp_path, put, monkeypatch
):
    put(tmp_path, True)
    monkeypatch.setenv("LOADERVIZ_DATA", str(tmp_path))
    path = put(tmp_path, False, zipped=zipped) / (name + ".gz" * zipped)
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    with pytest.raises(MnistError, match=f"{path} (is damaged|cannot be read).*fresh copy"):
        mnist.tensors()
    assert path.read_bytes() == damaged


@pytest.fixture
def mirror(tmp_path, put, monkeypatch):
    """A mirror on this machine with files that pass for MNIST; yields the paths that were asked for."""
    monkeypatch.setattr(mnist, "AUTO_SECONDS", 60.0)  # a loaded test machine is no reason to fail
    with factory.serving(put(tmp_path / "mirror", True, False, zipped=True), asked := []) as port:
        online(monkeypatch, port)
        yield asked


def online(monkeypatch, port):
    monkeypatch.delenv("LOADERVIZ_OFFLINE")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(mnist, "MIRROR", f"http://127.0.0.1:{port}/")


def test_a_download_is_used_and_kept(mirror, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(mnist, "FILES", FILES)  # their sums are others
        assert "train-images-idx3-ubyte.gz is damaged" in str(mnist.find())
    cache = tmp_path / "loaderviz"
    assert not list((cache / RAW).iterdir())
    shutil.rmtree(cache)
    forget(), mirror.clear()
    assert mnist.find() == mnist.DigitSource(cache)
    assert len(mirror) == 4
    forget()  # a later process
    assert mnist.find(download=False).folder == cache
    assert len(mirror) == 4, "nothing is downloaded twice"
    assert [path.name for path in cache.iterdir()] == ["MNIST"], "no half-written file is left"


def test_a_failed_download_is_remembered_for_a_day(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]  # closed again at once: nobody listens there
    online(monkeypatch, port)
    assert f"the download from {mnist.MIRROR} failed (<urlopen error" in str(mnist.find())
    with monkeypatch.context() as patch:
        patch.setattr(mnist, "_fetch", lambda *order: pytest.fail("the network was used"))
        assert "failed within the last day (<urlopen error" in str(mnist.find())
    with pytest.raises(MnistError, match="the download from"):  # asking for it tries again
        mnist.find(download=True)
    for age in (mnist.REMEMBER_SECONDS + 60, -3600):  # a clock may have been wrong: a note from the future
        then = time.time() - age
        os.utime(tmp_path / "loaderviz" / "download-failed", (then, then))
        assert "the download from" in str(mnist.find())


@pytest.mark.parametrize(
    ("answer", "seconds", "told"),
    [
        (b"", 0.3, "it took longer than 0.3 s|timed out"),
        (b"nonsense\r\n", 60.0, r"the download from .* failed \(nonsense"),
    ],
    ids=["none", "no http"],
)
def test_a_mirror_that_says_nothing_or_nonsense_is_left_in_time(monkeypatch, answer, seconds, told):
    monkeypatch.setattr(mnist, "AUTO_SECONDS", seconds)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        with factory.beside(speak if answer else bool):  # else the call is taken, and nothing said
            online(monkeypatch, server.getsockname()[1])
            assert re.search(told, str(mnist.find()))


def test_offline_and_false_never_try_and_a_cache_may_not_be_written_to(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(mnist, "_fetch", lambda *order: pytest.fail("the network was used"))
        with pytest.raises(MnistError, match="LOADERVIZ_OFFLINE is set"):
            mnist.find(download=True)
        patch.setenv("LOADERVIZ_OFFLINE", "0")
        assert "download=False" in str(mnist.find(download=False))
    for download in ("yes", None, "True"):
        with pytest.raises(ValueError, match="download="):
            mnist.find(download=download)
    online(monkeypatch, 1)
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "file" / "below"))
    assert "Not a directory" in str(mnist.find())
    assert mnist.tensors(False)[0].shape == (10_000, 28, 28), "the stand-in needs no folder"

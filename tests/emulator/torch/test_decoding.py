"""What decoding, transforms and filters cost in a data set on a named host: closed forms.

The numbers are those of hardware.toml; the host has no other costs, and its `transforms` are the tables' own unit.
"""

import io
import sys
import time
from dataclasses import MISSING, fields, replace
from types import ModuleType

import numpy as np
import pytest
import torch
from factory import Samples
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz.emulator import Host
from loaderviz.emulator.hardware import DATA
from loaderviz.emulator.torch.dataloader import FORMATS
from loaderviz.imports import import_torchvision
from loaderviz.timeline import Kind

torchvision = import_torchvision()
Image = pytest.importorskip("PIL.Image")
ImageEnhance, ImageOps = (pytest.importorskip(f"PIL.{name}") for name in ("ImageEnhance", "ImageOps"))

NEEDED = [entry.name for entry in fields(Host) if entry.default is MISSING and entry.default_factory is MISSING]
FREE = dict.fromkeys(NEEDED, 0) | {"name": "table", "memory_bandwidth": 10**15}
TABLE = Host(**FREE, transforms=1000)
HEIGHT, WIDTH = 60, 80
BYTES = 3 * HEIGHT * WIDTH


def recorded(dataset, host=TABLE, workers=0):
    """Run through a data set, a sample a batch; return how long the fetches took, and the recording."""
    with lv.record(on="a100", host=host, hazards="off") as recording:
        list(DataLoader(dataset, 1, num_workers=workers, collate_fn=len))
    return [span.duration for span in recording.timeline.rows(Kind.FETCH)], recording


def cost(work):
    """Return what a sample costs, each time the same."""
    (took, *others), _ = recorded(Samples(lambda _: work(), 3))
    assert others == [took, took]
    return took


def fastest(work):
    """Return how long it takes really [s], the best of three: the first call makes tables that the others have."""
    times = []
    for _ in range(3):
        start = time.thread_time()
        work()
        times.append(time.thread_time() - start)
    return min(times)


def noise(height=HEIGHT, width=WIDTH):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def saved(kind, picture=None, **options):
    """Return the bytes of a file."""
    file = io.BytesIO()
    Image.fromarray(noise() if picture is None else picture).save(file, kind, **options)
    return file.getvalue()


@pytest.fixture(params=["JPEG", "PNG", "WEBP", "BMP"])
def file(request, tmp_path):
    """A picture of each format that has a price: its path, and what decoding it costs."""
    path = tmp_path / "picture"
    path.write_bytes(data := saved(request.param))
    return path, FORMATS[request.param].time(len(data), BYTES)


# Decoding


OWN = {  # what the call costs beside the decoding that it asks for
    "load": (lambda image: image.load(), 0),
    "to the same mode": (lambda image: image.convert("RGB"), 2_500 + 160 * (BYTES // 5) // 1000),
    "to grey": (lambda image: image.convert("L"), 2_500 + 160 * BYTES // 1000),
    "crop": (lambda image: image.crop((1, 1, 31, 31)), 3_500 + 10 * BYTES // 1000),
    "asarray": (np.asarray, 3_500 + 165 * BYTES // 1000),
    "resize": (
        lambda image: image.resize((WIDTH // 2, HEIGHT // 2), Image.Resampling.BILINEAR),
        6_600 + 347 * (3 * (HEIGHT * 40 * 6 + 30 * 40 * 6)) // 1000,
    ),
    "crop of grey": (
        lambda image: image.convert("L").crop((0, 0, 9, 9)),
        2_500 + 160 * BYTES // 1000 + 3_500 + 10 * BYTES // 3 // 1000,
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_decoding_costs_the_same_whoever_asks_for_it(file, name):
    path, decoding = file
    work, own = OWN[name]
    assert cost(lambda: work(Image.open(path))) == decoding + own


def test_a_larger_file_of_the_same_picture_size_costs_more():
    small, large = (saved("JPEG", quality=quality) for quality in (50, 95))
    times = [cost(lambda data=data: Image.open(io.BytesIO(data)).load()) for data in (small, large)]
    assert times[1] - times[0] == pytest.approx(6.6 * (len(large) - len(small)), abs=1)


def test_a_png_of_noise_costs_little_more_than_its_jpeg():
    """What transformers 45195 publishes: 1.1 to 1.6 times."""
    picture = noise(375, 500)
    files = saved("PNG", picture), saved("JPEG", picture, quality=95)
    png, jpeg = (cost(lambda data=data: Image.open(io.BytesIO(data)).load()) for data in files)
    assert 1.1 < png / jpeg < 1.6


def test_a_draft_reads_the_whole_file_and_makes_a_smaller_picture():
    data = saved("JPEG", quality=95)

    def fetch():
        image = Image.open(io.BytesIO(data))
        image.draft("RGB", (WIDTH // 2, HEIGHT // 2))
        image.load()
        assert image.size == (WIDTH // 2, HEIGHT // 2)

    assert len(data) > BYTES // 4  # which does not make it one that is stored as it is
    assert cost(fetch) == 46_000 + (6_600 * len(data) + 700 * BYTES // 4) // 1000


@pytest.mark.parametrize("workers", [0, 1])
def test_declared_time_takes_the_place_of_decoding(file, workers):
    def fetch():
        with lv.costs(1e-3):
            np.asarray(ImageOps.mirror(Image.open(file[0]).convert("RGB").resize((64, 64))).crop((0, 0, 9, 9)))

    assert recorded(Samples(lambda _: fetch(), 3), workers=workers)[0] == [1_000_000] * 3


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_folder_costs_its_files(tmp_path, workers):
    """torchvision's `pil_loader` converts what it opens in a `with` of its own."""
    (tmp_path / "a").mkdir()
    files = [saved("JPEG", quality=quality) for quality in (50, 75, 95)]
    for number, data in enumerate(files):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(data)
    took, _ = recorded(torchvision.datasets.ImageFolder(tmp_path), workers=workers)
    own = OWN["to the same mode"][1]
    assert took == [FORMATS["JPEG"].time(len(data), BYTES) + own for data in files]


def test_a_format_without_a_price_is_unpriced_and_decoded_as_ever():
    data, seen = saved("TIFF", noise(600, 800), compression="tiff_lzw"), []
    took, recording = recorded(Samples(lambda _: (seen.append(Image.open(io.BytesIO(data))), seen[-1].load())[0], 3))
    assert took == [0, 0, 0] and len(seen) == 3 and all(np.array_equal(each, noise(600, 800)) for each in seen)
    assert recording.unpriced["data set"] > 0
    assert recording.timeline.context.unpriced == ("data set",)


CALLERS = {  # functions that have a price, and decode what was opened
    "asarray": np.asarray,
    "convert": lambda image: image.convert("L"),
    "copy": lambda image: image.copy(),
    "crop": lambda image: image.crop((1, 1, 31, 31)),
    "resize": lambda image: image.resize((8, 8)),
    "rotate": lambda image: image.rotate(10),
    "flip": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "contrast": lambda image: ImageEnhance.Contrast(image=image),
    "expand": lambda image: ImageOps.expand(image, 3),
    "to_tensor": lambda image: torchvision.transforms.functional.to_tensor(image),
    "pil_to_tensor": lambda image: torchvision.transforms.functional.pil_to_tensor(pic=image),
}


OPTIONS = {"TIFF": {"compression": "tiff_lzw"}, "JPEG2000": {}, "PPM": {}}


@pytest.mark.parametrize("name", CALLERS)
@pytest.mark.parametrize("kind", OPTIONS)
def test_decoding_without_a_price_is_unpriced_whoever_asks_for_it(kind, name):
    """The call costs what it costs for a picture in memory, and decoding is not lost in it."""
    picture = noise(300, 400)
    data, decoded = saved(kind, picture, **OPTIONS[kind]), Image.fromarray(picture)
    decoding, own = fastest(lambda: Image.open(io.BytesIO(data)).load()), cost(lambda: CALLERS[name](decoded))
    took, recording = recorded(Samples(lambda _: (CALLERS[name](Image.open(io.BytesIO(data))), 0)[1], 3))
    assert took == [own] * 3
    assert recording.unpriced["data set"] > 3 * decoding / 2


# Other decoders: stand-ins, found by the names of their modules


@pytest.fixture
def stand_in(monkeypatch):
    def put(name, **functions):
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return put


def test_opencv_decodes_an_array_or_a_path(stand_in, tmp_path):
    picture = noise()
    cv2 = stand_in("cv2", imdecode=lambda data, flags: picture, imread=lambda path, flags=1: picture)
    data = saved("JPEG")
    (tmp_path / "a.jpg").write_bytes(data)
    expected = FORMATS["JPEG"].time(len(data), BYTES) * 870 // 1000
    assert cost(lambda: cv2.imdecode(np.frombuffer(data, np.uint8), 1)) == expected
    assert cost(lambda: cv2.imdecode(data, flags=1)) == expected
    assert cost(lambda: cv2.imread(str(tmp_path / "a.jpg"))) == expected


def test_a_decoder_that_is_a_method_finds_its_file(stand_in):
    class TurboJPEG:
        def decode(self, jpeg_buf, pixel_format=1):
            return noise()

    stand_in("turbojpeg", TurboJPEG=TurboJPEG)
    simplejpeg = stand_in("simplejpeg", decode_jpeg=lambda data, colorspace="RGB": noise())
    data, decoder = saved("JPEG"), TurboJPEG()
    pillow = FORMATS["JPEG"].time(len(data), BYTES)
    assert cost(lambda: decoder.decode(data)) == pillow * 870 // 1000
    assert cost(lambda: decoder.decode(jpeg_buf=data)) == pillow * 870 // 1000
    assert cost(lambda: simplejpeg.decode_jpeg(data)) == pillow * 850 // 1000


def test_opencvs_transforms_cost_what_they_do(stand_in):
    picture, small = noise(), noise(HEIGHT // 2, WIDTH // 2)
    cv2 = stand_in(
        "cv2",
        cvtColor=lambda image, code: image,
        flip=lambda image, code: image,
        resize=lambda image, dsize, interpolation=1: small,
    )
    assert cost(lambda: cv2.flip(picture, 1)) == 1_000 + 30 * BYTES // 1000
    assert cost(lambda: cv2.cvtColor(picture, 4)) == 1_500 + 26 * BYTES // 1000
    assert cost(lambda: cv2.cvtColor(picture, 40)) == 1_500 + 26 * 15 * BYTES // 1000  # to HSV
    assert cost(lambda: cv2.resize(picture, (40, 30))) == 700 + 390 * small.size // 1000
    area = 700 + 390 * (picture.size * 5 // 2) // 1000
    assert cost(lambda: cv2.resize(picture, (40, 30), interpolation=3)) == area


def test_the_real_opencv_is_priced_by_the_same_names():
    cv2 = pytest.importorskip("cv2")
    data = saved("JPEG")
    expected = FORMATS["JPEG"].time(len(data), BYTES) * 870 // 1000
    assert cost(lambda: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)) == expected
    assert cost(lambda: cv2.resize(noise(), (8, 8))) == 700 + 390 * 192 // 1000


# Colors


@pytest.mark.parametrize(
    ("old", "new", "nbytes"),
    [
        ("RGB", "HSV", 60), ("HSV", "RGB", 134), ("RGB", "P", 153), ("RGB", "1", 28), ("RGB", "YCbCr", 17),
        ("RGB", "CMYK", 10), ("CMYK", "HSV", 80), ("RGBA", "RGB", 7), ("L", "1", 28), ("L", "HSV", 3), ("RGB", "L", 3),
        ("RGBA", "RGBA", 0.8),
    ],
)  # fmt: skip
def test_converting_costs_what_the_two_modes_of_a_picture_need(old, new, nbytes):
    image = Image.fromarray(noise()).convert(old)
    assert cost(lambda: image.convert(new)) == 2_500 + 160 * int(nbytes * WIDTH * HEIGHT) // 1000


def test_dithering_costs_more_and_a_palette_of_the_pictures_own_has_no_price():
    image, wide = Image.fromarray(noise()), Image.fromarray(noise(300, 400))
    assert cost(lambda: image.convert("P", dither=0)) == 2_500 + 160 * 71 * WIDTH * HEIGHT // 1000
    real = fastest(lambda: wide.convert("P", palette=1))
    took, recording = recorded(Samples(lambda _: (wide.convert("P", None, None, Image.Palette.ADAPTIVE), 0)[1], 3))
    assert took == [0, 0, 0] and recording.unpriced["data set"] > 3 * real / 2


def test_a_change_of_hue_costs_its_two_conversions_in_the_second_transforms_too():
    v2, image = pytest.importorskip("torchvision.transforms.v2"), Image.fromarray(noise())
    there_and_back = 2 * 2_500 + 160 * (60 + 134) * WIDTH * HEIGHT // 1000
    took = cost(lambda: v2.functional.adjust_hue(image, 0.1))
    assert there_and_back < took < 1.1 * there_and_back  # it asks for the bytes of the hue, too


# Filters


def resizing(*args, mode="RGB", **options):
    image = Image.fromarray(noise()).convert(mode)
    return cost(lambda: image.resize(*args, **options))


@pytest.mark.parametrize(
    ("name", "taps"), [("BOX", 1), ("BILINEAR", 2), ("HAMMING", 2), ("BICUBIC", 4), ("LANCZOS", 6)]
)
def test_resizing_costs_the_pixels_that_its_filter_reads(name, taps):
    """Rows to a quarter, columns to a half: each new pixel of a row reads four times the filter's own width."""
    touched = HEIGHT * 20 * (2 + 4 * taps) + 30 * 20 * (2 + 2 * taps)
    assert resizing((20, 30), Image.Resampling[name]) == 6_600 + 347 * 3 * touched // 1000
    assert resizing((20, 30), Image.Resampling[name], mode="L") == 6_600 + 347 * touched // 1000


def test_resizing_follows_its_box_and_what_reduces_before():
    touched = HEIGHT * 20 * (2 + 2 * 4) + HEIGHT * 20 * 0
    assert resizing((20, HEIGHT), box=(0, 0, 40, HEIGHT)) == 6_600 + 347 * 3 * touched // 1000
    reduced = 30 * 20 * (2 + 2 * 4) + 15 * 20 * (2 + 2 * 4)  # from half the size, after reading each byte
    expected = 6_600 + 347 * (BYTES + 3 * reduced) // 1000
    assert resizing((20, 15), reducing_gap=2.0) == expected
    image = Image.fromarray(noise())
    copied = 1_000 + 33 * BYTES // 1000
    assert cost(lambda: image.copy().thumbnail((20, 15))) == copied + expected
    assert resizing((20, 15), Image.Resampling.NEAREST) == 6_600 + 347 * (3 * 20 * 15 // 2) // 1000
    assert resizing((20, 15), mode="P") == 6_600 + 347 * (20 * 15 // 2) // 1000  # palettes are not interpolated


def test_rotating_costs_more_where_it_interpolates():
    image = Image.fromarray(noise())
    assert cost(lambda: image.rotate(10)) == 9_000 + 440 * BYTES // 1000
    assert cost(lambda: image.rotate(10, Image.Resampling.BILINEAR)) == 9_000 + 440 * 11 * BYTES // 1000


ROUNDED = 4  # ns: each operator's bytes, at 10**15 a second


def test_an_operator_that_interpolates_costs_what_it_touches():
    """Shrunk to half: antialiased, its filters are twice as wide. Of a picture of bytes a number costs two."""
    picture = torch.zeros(1, 3, HEIGHT, WIDTH)

    def resized(image, **options):
        size = (HEIGHT // 2, WIDTH // 2)
        return cost(lambda: torch.nn.functional.interpolate(image, size, **options))

    pixels = 3 * (HEIGHT * 40 + 30 * 40)
    assert resized(picture, mode="bilinear", antialias=True) == 97 * 4 * pixels * 6 // 1000
    assert resized(picture, mode="bilinear") == 97 * 4 * pixels * 4 // 1000
    assert resized(picture.byte(), mode="bicubic", antialias=True) == 97 * 2 * pixels * 10 // 1000
    assert resized(picture, mode="nearest") == 97 * 10 * 3 * 30 * 40 // 1000
    grid = torch.zeros(1, HEIGHT, WIDTH, 2)
    sample = torch.nn.functional.grid_sample
    assert cost(lambda: sample(picture, grid, align_corners=False)) == 97 * (4 * BYTES * 9 // 2) // 1000


# Operators on a sample


@pytest.mark.parametrize(
    ("channels", "groups", "filters", "lanes"), [(3, 3, 3, 1), (1, 1, 1, 1), (16, 16, 16, 1), (20, 20, 20, 2)]
)
def test_a_depthwise_convolution_works_on_16_channels_however_few_there_are(channels, groups, filters, lanes):
    image, weight = torch.zeros(1, channels, 34, 34), torch.zeros(filters, 1, 5, 5)
    host = replace(TABLE, flops=10**9)
    took, _ = recorded(Samples(lambda _: (torch.conv2d(image, weight, groups=groups), 0)[1], 3), host)
    assert took == [2 * 16 * lanes * 30 * 30 * (5 * 5 + 40)] * 3


def test_a_convolution_over_all_channels_costs_its_flops():
    image, weight = torch.zeros(1, 3, 34, 34), torch.zeros(3, 3, 5, 5)
    host = replace(TABLE, flops=10**9)
    took, _ = recorded(Samples(lambda _: (torch.conv2d(image, weight), 0)[1], 3), host)
    assert took == [2 * 3 * 3 * 25 * 30 * 30] * 3


@pytest.mark.parametrize(("numbers", "effective"), [(10**5, 8 * 10**5 / 4), (2**21, 2**24 - 2**23 * 3 / 4)])
def test_an_operator_on_a_sample_works_in_the_caches_as_far_as_they_reach(numbers, effective):
    """Floats, read and written: 8 MiB of them four times as fast as memory."""
    sample, host = torch.zeros(numbers), replace(TABLE, memory_bandwidth=10**9, cached_bandwidth=4 * 10**9)
    took, _ = recorded(Samples(lambda _: (sample * 2, 0)[1], 3), host)
    assert took == [effective] * 3
    plain, _ = recorded(Samples(lambda _: (sample * 2, 0)[1], 3), replace(host, cached_bandwidth=0))
    assert plain == [8 * numbers] * 3


@pytest.mark.parametrize(("kind", "ps"), [(torch.uint8, 250), (torch.int64, 250), (torch.int32, 0)])
def test_floats_are_made_bytes_one_by_one(kind, ps):
    assert cost(lambda: torch.zeros(100_000).to(kind)) == pytest.approx(ps * 100, abs=ROUNDED)


def test_a_change_of_hue_of_a_tensor_costs_its_way_through_hsv():
    functional, v2 = torchvision.transforms.functional, pytest.importorskip("torchvision.transforms.v2").functional
    picture, nbytes = torch.rand(3, HEIGHT, WIDTH), 4 * BYTES
    first = 90_000 + (2_550 * nbytes) // 1000 + (6_400 * nbytes) // 1000
    second = 80_000 + (1_730 * nbytes) // 1000 + (2_150 * nbytes) // 1000
    assert cost(lambda: functional.adjust_hue(picture, 0.1)) == pytest.approx(first, rel=0.05)
    assert cost(lambda: v2.adjust_hue(picture, 0.1)) == pytest.approx(second, rel=0.05)


def test_a_product_of_points_with_a_small_matrix_costs_its_points():
    points, matrix = torch.zeros(1, 500, 3), torch.zeros(1, 3, 2)
    assert cost(lambda: torch.bmm(points, matrix)) == 97 * 73 * 500 // 1000
    assert cost(lambda: torch.bmm(torch.zeros(1, 9, 9), torch.zeros(1, 9, 9))) < ROUNDED


def test_torchvisions_second_resize_of_a_tensor_is_that_operator():
    v2 = pytest.importorskip("torchvision.transforms.v2")
    picture, transform = torch.zeros(3, HEIGHT, WIDTH), v2.Resize((HEIGHT // 2, WIDTH // 2))
    touched = 4 * 3 * (HEIGHT * 40 + 30 * 40) * 6
    assert cost(lambda: transform(picture)) == pytest.approx(97 * touched // 1000, abs=ROUNDED)


# Nothing is priced twice


def test_a_function_of_the_table_costs_itself_and_decoding_only(file):
    """to_tensor asks for the bytes of the picture and calls operators of torch; Contrast converts to grey."""
    path, decoding = file
    functional = torchvision.transforms.functional
    assert cost(lambda: functional.to_tensor(Image.open(path))) == decoding + 14_000 + 200 * 4 * BYTES // 1000
    contrast = 35_000 + 580 * BYTES // 1000
    assert cost(lambda: ImageEnhance.Contrast(Image.open(path))) == decoding + contrast


def test_the_second_transforms_cost_as_the_first(file):
    v2 = pytest.importorskip("torchvision.transforms.v2")
    assert cost(lambda: v2.PILToTensor()(Image.open(file[0]))) == file[1] + 9_000 + 170 * BYTES // 1000


# What has no price


def tokens():
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{number}": number for number in range(1000)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    text = " ".join(words) * 20
    return lambda: tokenizer.encode(text)


def chunks():
    h5py = pytest.importorskip("h5py")
    file = h5py.File("chunks", "w", driver="core", backing_store=False, rdcc_nbytes=0)  # no cache of chunks
    data = np.random.default_rng(0).integers(0, 16, (4, 2_000_000), dtype=np.uint8)
    stored = file.create_dataset("x", data=data, chunks=(1, 2_000_000), compression="gzip")
    return lambda: stored[0]


def arrays():
    zarr = pytest.importorskip("zarr")
    data = np.random.default_rng(0).integers(0, 16, (4, 8_000_000), dtype=np.uint8)
    stored = zarr.array(data, chunks=(1, 40_000))
    return lambda: stored[0]


@pytest.mark.parametrize(
    ("make", "kind"),
    [(tokens, "data set"), (chunks, "data set"), (arrays, "waiting")],  # zarr decodes in threads of its own
)
def test_what_has_no_price_is_said(make, kind):
    work = make()
    timeline = recorded(Samples(lambda _: (work(), 0)[1], 3), Host.preset("laptop"))[1].timeline
    assert timeline.context.unpriced == (kind,)
    assert f"unpriced: {kind}" in str(lv.summarize(timeline))
    assert lv.advise(timeline)[0].kind == "unpriced"
    assert "unpriced: " in timeline.figure().to_json()


@pytest.mark.parametrize(("times", "said"), [(0.1, ()), (2.5, ("data set",))])
def test_what_takes_longer_than_all_that_is_priced_is_said(times, said):
    """Decoding has a price, and the Python after it none: so many times the price in processor time."""
    data = saved("JPEG", noise(900, 1200))
    price = FORMATS["JPEG"].time(len(data), 3 * 900 * 1200)

    def fetch():
        Image.open(io.BytesIO(data)).load()
        end = time.thread_time_ns() + times * price
        while time.thread_time_ns() < end:
            pass

    took, recording = recorded(Samples(lambda _: fetch(), 3))
    assert took == [price] * 3
    assert recording.timeline.context.unpriced == said


# JPEGs in several scans


@pytest.mark.parametrize("progressive", [False, True])
def test_a_progressive_jpeg_costs_more_whoever_decodes_it(stand_in, tmp_path, progressive):
    """Notes before the frame (EXIF, comments) hide its marker from nobody; a file that is cut off is a plain one."""
    data = saved("JPEG", progressive=progressive, exif=b"Exif\0\0" + bytes(9_000), comment=b"\xff\xc2" * 20)
    format_ = FORMATS["progressive JPEG" if progressive else "JPEG"]
    expected, factor = format_.time(len(data), BYTES), DATA["decoders"]["cv2"]["imdecode"]
    picture = noise()
    cv2 = stand_in("cv2", imdecode=lambda data, flags: picture, imread=lambda path: picture)
    (tmp_path / "a.jpg").write_bytes(data)
    assert cost(lambda: Image.open(io.BytesIO(data)).load()) == expected
    for given in (data, np.frombuffer(data, np.uint8), torch.frombuffer(bytearray(data), dtype=torch.uint8)):
        assert cost(lambda given=given: cv2.imdecode(given, 1)) == expected * factor // 1000
    assert cost(lambda: cv2.imread(str(tmp_path / "a.jpg"))) == expected * factor // 1000
    assert cost(lambda: cv2.imdecode(data[:1_000], 1)) == FORMATS["JPEG"].time(1_000, BYTES) * factor // 1000


@pytest.mark.parametrize(("version", "factor"), [("4.5.5", 2_700), ("4.9.0", 2_700), ("4.10.0", 1_000), ("5.0", 1_000)])
def test_an_opencv_without_simd_takes_longer_for_a_jpeg_alone(stand_in, version, factor):
    picture = noise()
    cv2 = stand_in("cv2", imdecode=lambda data, flags: picture, __version__=version)
    jpeg, png = saved("JPEG"), saved("PNG")
    assert cost(lambda: cv2.imdecode(jpeg, 1)) == FORMATS["JPEG"].time(len(jpeg), BYTES) * 870 // 1000 * factor // 1000
    assert cost(lambda: cv2.imdecode(png, 1)) == FORMATS["PNG"].time(len(png), BYTES) * 870 // 1000

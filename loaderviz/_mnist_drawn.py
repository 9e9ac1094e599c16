"""Draw the stand-in for MNIST: the strokes of each digit with random shape, slant, size, place, thickness and noise.

The same bytes everywhere. Randomness is the raw output of the PCG64 bit generator, whose stream numpy promises to keep
(NEP 19; the methods of `Generator` are not promised). All geometry is integer arithmetic; the one float operation is
`sqrt`, which IEEE 754 rounds correctly on every machine.

How it is fast: each digit is drawn in `VARIANTS` hands as a map of the distance to the pen's path, on a grid of a
quarter of a pixel. An image is then one look-up in a map through a bent affine grid, and a ramp from distance to ink.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DRAWING_VERSION = 1
"""Raise it when a change alters the drawn bytes: the cache folder carries it."""

Point = tuple[int, int]
Stroke = list[Point]
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int32]

# The pen's path in a box of 100 x 100, x to the right and y downwards; a smooth curve goes through the points, and a
# point given twice makes a corner. Several forms of a digit are several ways in which people write it.
FORMS: dict[int, list[list[Stroke]]] = {
    0: [
        [[(50, 2), (27, 14), (18, 50), (27, 86), (50, 98), (73, 86), (82, 50), (73, 14), (50, 2)]],
        [[(58, 3), (34, 10), (20, 44), (30, 88), (54, 97), (76, 78), (80, 40), (66, 8), (46, 6)]],
    ],
    1: [
        [[(50, 2), (50, 98)]],
        [[(32, 24), (52, 2), (52, 2), (52, 98)]],
        [[(34, 20), (52, 2), (52, 2), (52, 97)], [(32, 97), (72, 97)]],
    ],
    2: [
        [[(22, 26), (32, 7), (54, 2), (74, 13), (75, 34), (56, 62), (20, 96), (20, 96), (82, 96)]],
        [[(24, 22), (46, 3), (73, 14), (72, 40), (46, 78), (24, 94), (18, 82), (34, 78), (58, 94), (86, 88)]],
    ],
    3: [
        [[(24, 12), (48, 2), (73, 13), (69, 36), (44, 47), (44, 47), (74, 58), (77, 82), (52, 98), (20, 90)]],
        [[(24, 4), (24, 4), (76, 4), (76, 4), (46, 42), (46, 42), (75, 55), (77, 82), (50, 98), (20, 88)]],
    ],
    4: [
        [[(30, 4), (22, 54), (22, 54), (82, 54)], [(70, 8), (64, 98)]],
        [[(62, 98), (62, 2), (62, 2), (16, 66), (16, 66), (84, 66)]],
    ],
    5: [
        [[(76, 4), (34, 4), (34, 4), (28, 44), (28, 44), (56, 38), (79, 58), (72, 87), (46, 98), (20, 88)]],
        [[(36, 6), (30, 46), (30, 46), (58, 42), (76, 62), (66, 90), (42, 97), (22, 88)], [(36, 6), (82, 2)]],
    ],
    6: [
        [[(68, 2), (42, 20), (24, 54), (28, 86), (52, 98), (75, 84), (73, 62), (52, 52), (29, 66)]],
        [[(48, 2), (28, 34), (22, 72), (42, 97), (70, 92), (76, 70), (56, 56), (26, 76)]],
    ],
    7: [
        [[(20, 6), (80, 4), (80, 4), (60, 44), (46, 98)]],
        [[(20, 6), (80, 4), (80, 4), (60, 46), (48, 98)], [(38, 52), (78, 48)]],
        [[(20, 22), (22, 5), (22, 5), (80, 5), (80, 5), (44, 98)]],
    ],
    8: [
        [
            [
                (74, 16),
                (50, 2),
                (27, 17),
                (40, 40),
                (68, 62),
                (74, 84),
                (50, 98),
                (26, 85),
                (32, 62),
                (64, 40),
                (74, 16),
            ]
        ],
        [
            [(50, 2), (29, 12), (29, 36), (50, 46), (71, 36), (71, 12), (50, 2)],
            [(50, 46), (25, 58), (25, 86), (50, 98), (75, 86), (75, 58), (50, 46)],
        ],
    ],
    9: [
        [[(73, 24), (52, 2), (27, 16), (28, 42), (52, 52), (72, 38), (73, 24), (73, 24), (72, 60), (66, 98)]],
        [
            [
                (73, 24),
                (52, 2),
                (27, 16),
                (28, 42),
                (52, 52),
                (72, 38),
                (74, 22),
                (74, 22),
                (74, 66),
                (60, 94),
                (32, 94),
            ]
        ],
    ],
}

VARIANTS = 24  # hands per digit, shared out over its forms
UNIT = 64  # map coordinates are in 1/64 of a pixel
CELL = 16  # a map cell is a quarter of a pixel
MAP_SIDE = 120  # cells: 30 pixels, one pixel of margin around the image
JITTER = 7  # how far a hand moves a point of the path, in hundredths of the box
CHUNK = 1000  # images drawn at a time: the working arrays stay in the processor's cache


def draw(train: bool, count: int | None = None) -> tuple[Bytes, Bytes]:
    """Draw a split: images uint8 [N, 28, 28] and labels uint8 [N], N = 60,000 (train) or 10,000.

    Every class is equally frequent, in random order. `count` (a multiple of 10) draws only the first images of
    a smaller balanced set, for tests and previews. The two splits come from two random streams.

    Raises:
        ValueError: `count` is not a positive multiple of 10.
    """
    total = (60_000 if train else 10_000) if count is None else count
    if total <= 0 or total % 10:
        raise ValueError(f"count={count} cannot be shared out evenly over ten digits: give a positive multiple of 10.")
    bits = _stream(1 if train else 2)
    order = np.argsort(bits.random_raw(total), kind="stable")
    labels = (np.arange(total) % 10).astype(np.uint8)[order]
    maps = _distance_maps()
    images = np.empty((total, 28, 28), np.uint8)
    for first in range(0, total, CHUNK):
        last = min(first + CHUNK, total)
        images[first:last] = _draw_chunk(labels[first:last], maps, bits)
    return images, labels


def _stream(number: int) -> np.random.PCG64:
    """A random stream of its own for each use."""
    return np.random.PCG64(np.random.SeedSequence([0x10ADE, DRAWING_VERSION, number]))


def _uniform(bits: np.random.PCG64, low: int, high: int, count: int) -> Ints:
    """`count` integers in low..high, both included, from the raw stream's upper 32 bits."""
    raw = (bits.random_raw(count) >> np.uint64(32)).astype(np.int64)
    return (low + ((raw * (high - low + 1)) >> 32)).astype(np.int32)


def _distance_maps() -> Bytes:
    """[10 * VARIANTS, MAP_SIDE, MAP_SIDE]: distance to the pen's path in 1/32 of a pixel, at most 255."""
    bits = _stream(0)
    centres = (np.arange(MAP_SIDE, dtype=np.int32) * CELL + CELL // 2 - UNIT).astype(np.int32)
    maps = np.empty((10 * VARIANTS, MAP_SIDE, MAP_SIDE), np.uint8)
    for digit, forms in FORMS.items():
        for variant in range(VARIANTS):
            path = _pen_path(forms[variant % len(forms)], bits)
            across = (centres[None, :] - path[:, :1]) ** 2
            down = (centres[None, :] - path[:, 1:]) ** 2
            nearest = np.full((MAP_SIDE, MAP_SIDE), 1 << 30, np.int32)
            sums = np.empty_like(nearest)
            for squares_x, squares_y in zip(across, down, strict=True):
                np.add(squares_y[:, None], squares_x[None, :], out=sums)
                np.minimum(nearest, sums, out=nearest)
            distance = np.sqrt(nearest.astype(np.float64)).astype(np.int32) // (UNIT // 32)
            maps[digit * VARIANTS + variant] = np.minimum(distance, 255)
    return maps


def _pen_path(strokes: list[Stroke], bits: np.random.PCG64) -> Ints:
    """One hand's path: points [P, 2] in 1/64 of a pixel, about half a pixel apart.

    A point that several strokes share, or that is doubled to make a corner, moves as one.
    """
    moved: dict[Point, Point] = {}
    for point in (point for stroke in strokes for point in stroke):
        if point not in moved:
            shift = _uniform(bits, -JITTER, JITTER, 2)
            moved[point] = (point[0] + int(shift[0]), point[1] + int(shift[1]))
    path: list[Point] = []
    for stroke in strokes:
        path += _smooth([moved[point] for point in stroke])
    # As in MNIST: the box of 100 is 20 pixels high, and the middle of the ink is the middle of the image.
    ink: Ints = (np.array(path, np.int32) * (20 * UNIT) // (100 * 16)).astype(np.int32)
    centred: Ints = (14 * UNIT + ink - ink.sum(axis=0) // len(ink)).astype(np.int32)
    return centred


def _smooth(points: Stroke) -> list[Point]:
    """A Catmull-Rom curve through the points, in 1/16 of a hundredth of the box; a doubled point is a corner."""
    ends = [points[0], *points, points[-1]]
    path: list[Point] = []
    for before, here, there, after in zip(ends, ends[1:], ends[2:], ends[3:], strict=False):
        length = max(abs(there[0] - here[0]), abs(there[1] - here[1]))
        steps = length * 2 // 5 + 1  # 2.5 hundredths of the box are half a pixel
        path += [
            (
                _catmull_rom(before[0], here[0], there[0], after[0], step, steps),
                _catmull_rom(before[1], here[1], there[1], after[1], step, steps),
            )
            for step in range(steps + 1)
        ]
    return path


def _catmull_rom(p0: int, p1: int, p2: int, p3: int, step: int, steps: int) -> int:
    """The curve's coordinate, times 16, at step/steps of the way from p1 to p2; exact but for the last division."""
    linear, square, cubic = p2 - p0, 2 * p0 - 5 * p1 + 4 * p2 - p3, 3 * (p1 - p2) + p3 - p0
    twice = 2 * p1 * steps**3 + linear * step * steps**2 + square * step**2 * steps + cubic * step**3
    return 8 * twice // steps**3


def _draw_chunk(labels: Bytes, maps: Bytes, bits: np.random.PCG64) -> Bytes:
    """The images of these labels: look the pixels up in a map, then turn distance into ink."""
    count = len(labels)
    column, row = _grids(count, bits)
    hand = labels.astype(np.int32) * VARIANTS + _uniform(bits, 0, VARIANTS - 1, count)
    column >>= 12  # 8 bits of fraction, and 16 units to the cell
    row >>= 12
    np.clip(column, 0, MAP_SIDE - 1, out=column)
    np.clip(row, 0, MAP_SIDE - 1, out=row)
    row *= MAP_SIDE
    row += column
    row += (hand * (MAP_SIDE * MAP_SIDE))[:, None, None]
    distance = maps.reshape(-1).take(row).astype(np.int16)

    # Full ink inside the pen's radius (1/32 pixel), then a ramp; the paper's grain only takes ink away, so that the
    # background stays at 0 as in MNIST.
    def per_image(low: int, high: int) -> NDArray[np.int16]:
        return _uniform(bits, low, high, count).astype(np.int16)[:, None, None]

    radius, steepness, darkest = per_image(36, 84), per_image(5, 10), per_image(215, 255)
    grain = bits.random_raw(count * 28 * 28 // 8).astype("<u8").view(np.uint8).reshape(count, 28, 28)
    ink = (radius - distance) * steepness
    ink -= grain >> 3
    np.clip(ink, 0, darkest, out=ink)
    return ink.astype(np.uint8)


def _grids(count: int, bits: np.random.PCG64) -> tuple[Ints, Ints]:
    """Where each pixel looks in the map: columns and rows [N, 28, 28], in 1/64 pixel with 8 bits of fraction.

    The map is bent affinely plus a square term for each axis, so that a look-up place is a sum of a part that depends
    on the pixel's column and one that depends on its row.
    """
    half = np.arange(-27, 28, 2, dtype=np.int32)[None, :]  # pixel centres from the image's middle, in half pixels
    step = 32 << 8  # half a pixel in the fixed point of the result

    def percent(low: int, high: int) -> Ints:
        """A factor for each image; the mean of two draws, so that extremes are rare."""
        both = _uniform(bits, low, high, count) + _uniform(bits, low, high, count)
        return (both // 2).astype(np.int32)[:, None]

    zoom, width, slant, turn = percent(85, 125), percent(65, 130), percent(-30, 70), percent(-40, 40)
    bend_x, bend_y = percent(-90, 90), percent(-70, 70)
    shift_x, shift_y = percent(-200, 200), percent(-200, 200)
    middle = (15 * UNIT) << 8  # the image's middle, in a map with one pixel of margin
    from_column = step * zoom * width // 10_000 * half + middle + shift_x * (2 * step) // 100
    from_row = step * (slant + turn) // 100 * half + bend_x * half**2
    column = from_column[:, None, :] + from_row[:, :, None]
    from_row = step * zoom // 100 * half + middle + shift_y * (2 * step) // 100
    from_column = -step * turn // 100 * half + bend_y * half**2
    row = from_column[:, None, :] + from_row[:, :, None]
    return column, row

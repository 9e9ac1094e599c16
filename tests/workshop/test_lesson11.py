"""Lesson 11 beside its exercises: what `watch` records, and pictures that take their time."""

import pytest
import torch

from loaderviz.workshop import EXERCISES, ExerciseError, lesson11
from loaderviz.workshop.learner import NUMBERS, Progress, lesson_of

PHOTOS = lesson11.Photos(torch.arange(2 * 27648, dtype=torch.int32).view(2, 3, 96, 96).byte(), torch.tensor([5, 6]))


@pytest.mark.parametrize("index", [[0, 1], slice(0, 2), 1.0, "0", None, torch.tensor([0, 1])])
def test_each_file_is_decoded_for_itself(index):
    with pytest.raises((TypeError, ValueError)):
        PHOTOS[index]
    assert len(PHOTOS) == 2 and int(PHOTOS[1][1]) == 6 == int(PHOTOS[torch.tensor(1)][1])


def test_augmenting_scales_and_mirrors_some():
    pictures = PHOTOS[0][0].expand(64, 3, 96, 96)
    made = lesson11.augment(pictures)
    scaled = (pictures[0].float() / 255 - 0.5) / 0.25
    mirrored = [torch.equal(each, scaled.flip(-1)) for each in made]
    assert 10 < sum(mirrored) < 54
    assert all(torch.equal(each, scaled) for each, back in zip(made, mirrored, strict=True) if not back)


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (lambda photos, epochs: None, "hand out the batches one by one"),
        (lambda photos, epochs: iter([]), "0 batches were handed out, but 16 were wanted"),
        (lambda photos, epochs: photos.nothing, "nothing"),
    ],
)
def test_what_cannot_be_watched_says_why(load, said):
    with pytest.raises(ExerciseError, match=said):
        lesson11.watch(load)


def test_a_lesson_with_two_digits_is_one_of_its_own():
    assert lesson_of("11.0") == 11 and lesson_of("1.1") == 1
    lessons = Progress([])._lessons()
    assert list(lessons)[-1] == "11" and lessons["11"] == ["11.0", "11.1", "11.2", "11.3"]
    assert sum(map(len, lessons.values())) == len(NUMBERS) and "11.0" not in lessons["1"]


@pytest.mark.slow
def test_the_picture_is_the_same_each_time_and_so_is_the_first_answer(capsys):
    first, again = (lesson11.watch(lesson11.article) for _ in range(2))
    assert first is again and EXERCISES["11.0"].check(lambda: "FETCH", seed=9).passed
    assert capsys.readouterr().out.count("x the GPU's own work") == 2 and first.duration > 8 * 25 * 10**6

"""The size of the house is counted in statements, whatever the lines they stand in."""

import pytest

from benchmarks.size import Size, main, rooms, size_of


def file_of(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize(
    ("text", "statements", "lines"),
    [
        ("", 0, 0),
        ("# only a comment\n", 0, 1),
        ('"""A docstring is a statement."""\n', 1, 1),
        ("a = 1; b = 2; c = 3\n", 3, 1),
        ("a = (\n    1,\n    2,\n)\n", 1, 4),
        ("a, b = 1, 2\n", 1, 1),
        ("def f(x):\n    if x: return 1\n    return lambda: x\n", 4, 3),
        ("try:\n    pass\nexcept OSError:\n    pass\nfinally:\n    pass\n", 4, 6),
        ("match x:\n    case 'é':\n        y = 1", 2, 3),
    ],
)
def test_statements_count_and_not_lines(tmp_path, text, statements, lines):
    assert size_of([file_of(tmp_path, "a.py", text)]) == Size(statements, lines, 1)


def test_no_file_is_nothing():
    assert size_of([]) == Size(0, 0, 0)


def test_a_file_that_is_no_python_is_an_error_and_no_smaller_number(tmp_path):
    with pytest.raises(SyntaxError):
        size_of([file_of(tmp_path, "a.py", "a = (\n")])


def test_rooms_add_up_and_each_file_is_in_one(tmp_path):
    file_of(tmp_path / "house", "a.py", "a = 1\n")
    file_of(tmp_path / "house" / "room", "b.py", "b = 1\nc = 2\n")
    file_of(tmp_path / "house" / "room" / "inner", "c.py", "import c\n")
    file_of(tmp_path / "house" / "no_python", "d.js", "let d = 1;\n")
    assert list(rooms(tmp_path, "house")) == [
        ("house/", Size(1, 1, 1)),
        ("house/room/", Size(2, 2, 1)),
        ("house/room/inner/", Size(1, 1, 1)),
        ("house", Size(4, 4, 3)),
    ]


@pytest.mark.slow
def test_the_page_has_each_room_of_this_house(capsys):
    main()
    named = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"loaderviz/", "loaderviz/emulator/torch/library/", "loaderviz", "tests", "benchmarks"} <= {*named}
    assert named[0] == "room" and named[-1] == "JavaScript"

"""`make mutants`: a change is made in a copy, judged by the tests that run its line, and taken back."""

import subprocess

import pytest

pytest.importorskip("cosmic_ray")

from benchmarks.mutants import Suite, batches_of, copy_of, draw, killed_by, lines_of, operators_named

pytestmark = pytest.mark.slow
FILE = "loaderviz/toy.py"
TOY = """from functools import cache

MOST = 10

def clamp(value: int | None) -> int:
    if value and value > MOST:
        return MOST
    return value

@cache
def unseen():
    return 3
"""
TEST = """from loaderviz.toy import clamp

def test_small():
    assert clamp(3) == 3
"""
MORE = """from loaderviz.toy import clamp

def test_large():
    assert clamp(20) == 10
"""


@pytest.fixture
def toy(tmp_path):
    files = {FILE: TOY, "loaderviz/__init__.py": "", "tests/test_toy.py": TEST, "tests/more/test_more.py": MORE}
    for name, text in files.items():
        (tmp_path / "toy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "toy" / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path / "toy", check=True)
    return tmp_path / "toy"


def drawn(root, pattern, seed=1, excused=""):
    (root.parent / "excused.toml").write_text(excused)
    return list(draw(root, [FILE], pattern, seed, root.parent / "excused.toml"))


def test_dead_and_surviving_mutants_are_told_apart_and_the_tree_stays(toy, tmp_path):
    tests = Suite(toy, tmp_path / "data")
    tests.measure("not slow", 1)
    small, large = "tests/test_toy.py::test_small", "tests/more/test_more.py::test_large"
    assert set(tests.seconds) == {small, large}
    tree, ends = copy_of(toy, tmp_path / "tree"), {}
    for mutant in drawn(toy, "ReplaceComparisonOperator_Gt_(GtE|LtE)|NumberReplacer|DropOperand"):
        ends.setdefault(mutant.after, killed_by(tree, mutant, batches_of(tests, mutant, set(), 60), 60))
        assert (tree / FILE).read_text() == (toy / FILE).read_text() == TOY
    known = {
        "if value and value >= MOST:": "",  # the same for every number
        "if value and value <= MOST:": {small, large},
        "if value > MOST:": "",  # no test gives None
        "if value:": {small},
        "MOST = 11": {large},
        "MOST = 9": {large},
        "return 4": "",  # no test runs it
        "return 2": "",
    }
    assert len(ends) == 5
    assert all(end in (known[after] or {""}) for after, end in ends.items())


def test_what_is_drawn_hangs_on_the_seed_alone_and_what_is_excused_does_not_come(toy):
    pattern = "NumberReplacer|DropOperand|DropStatement|ReplaceBinaryOperator.*"
    first = drawn(toy, pattern)
    assert [mutant.after for mutant in first] == [mutant.after for mutant in drawn(toy, pattern)]
    assert {mutant.line for mutant in first} == {3, 6, 12}  # annotations are nobody's
    assert len({tuple(mutant.after for mutant in drawn(toy, pattern, seed)) for seed in range(9)}) > 4
    one = first[0]
    excused = f'[[equivalent]]\nfile = "{FILE}"\nbefore = "{one.before}"\nafter = "{one.after}"\nreason = "why"\n'
    assert [mutant.after for mutant in drawn(toy, pattern, excused=excused)] == [each.after for each in first[1:]]


def test_a_line_that_runs_once_is_found_by_its_name():
    assert lines_of(TOY, 3) == (range(3, 4), {"MOST"})
    assert lines_of(TOY, 6) == (range(6, 7), set())
    assert lines_of(TOY, 12) == (range(12, 13), {"unseen"})  # behind a cache
    assert lines_of(TOY, 10) == (range(10, 12), {"unseen"})


@pytest.mark.parametrize(
    ("operator", "after"),
    [("DropOperand", ["if b or c:", "if a or c:", "if a or b:"]), ("DropStatement", ["pass", "pass", "pass"])],
)
def test_our_own_operators(toy, operator, after):
    assert list(operators_named(operator)) == [operator]
    lines = (
        '"""Text."""',
        "def f(self, a, b, c):",
        "  if a or b or c:",
        "    self.x = 1",
        "    c += 1",
        "  x = f(b)",
        "  g(x)",
    )
    (toy / FILE).write_text("\n".join(lines) + "\n")
    found = {mutant.after for seed in range(9) for mutant in drawn(toy, operator, seed)}
    assert found == set(after)
    assert {mutant.line for mutant in drawn(toy, operator)} == ({3} if operator == "DropOperand" else {4, 5, 7})

"""What do the tests see? Mutants: one place of the program is changed at a time, in a copy of the tree, and one of the
tests that run the changed line must fail. `make mutants SEED=7 COUNT=100` draws others.

cosmic-ray has the operators, coverage.py knows which tests run which line. A line that runs once for all tests, at
import or behind a cache, counts as run by those that run a line which names it. Of these tests a file with the module's
name comes first, then those that take least time, and then the other tests of the same files, since a fixture may have
run the line for all of them.
Mutants that no test could tell are excused in mutants.toml, each with its reason.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXCUSED = ROOT / "benchmarks" / "mutants.toml"
NEAR = 5.0  # seconds of the tests that are tried first, before the files of all others are collected
MEMORY = 8 << 30  # bytes of a process: a loop without an end must not take all that the machine has
COVERAGE = """[run]
parallel = true
data_file = {data}/coverage
include = {root}/loaderviz/*
context = ${{PYTEST_CURRENT_TEST-}}
disable_warnings = no-data-collected,module-not-measured,couldnt-parse,module-not-imported,already-imported
"""


class Mutant(NamedTuple):
    """A changed module: `code`, and the first line in which it differs, before and after."""

    file: str
    line: int
    operator: str
    before: str
    after: str
    code: str


# Drawing: all of cosmic-ray is imported late, since the tests that judge a mutant load this file, too


def operators_named(pattern: str) -> dict[str, Any]:
    """Return an operator for each name that the pattern matches as a whole, of cosmic-ray's and two of ours."""
    from cosmic_ray.operators.operator import Operator
    from cosmic_ray.plugins import get_operator, operator_names
    from parso.python.tree import Keyword

    class DropOperand(Operator):  # type: ignore[misc]  # a condition of `and` or `or`
        def mutation_positions(self, node: Any) -> list[tuple[Any, Any]]:
            operands = node.children[::2] if node.type in ("and_test", "or_test") else []
            return [(operand.start_pos, operand.end_pos) for operand in operands]

        def mutate(self, node: Any, index: int) -> Any:
            first = max(0, 2 * index - 1)
            del node.children[first : first + 2]
            return node

        def examples(self) -> tuple[()]:
            return ()

    class DropStatement(DropOperand):  # a call, or a change of what is kept elsewhere: without it the program goes on
        def mutation_positions(self, node: Any) -> list[tuple[Any, Any]]:
            first = node.children[0] if node.type == "simple_stmt" else node
            if node.type == "simple_stmt" and first.type == "expr_stmt":
                first = (
                    first
                    if first.children[1].type == "operator" and first.children[1].value != "="
                    else first.children[0]
                )
            return [(node.start_pos, node.end_pos)] * (
                node.type == "simple_stmt" and first.type in ("atom_expr", "expr_stmt")
            )

        def mutate(self, node: Any, index: int) -> Any:
            node.children[0] = Keyword("pass", node.start_pos, prefix=node.get_first_leaf().prefix)
            return node

    found = {name.split("/")[1]: get_operator(name) for name in operator_names()}
    found |= {kind.__name__: kind for kind in (DropOperand, DropStatement)}
    return {name: kind() for name, kind in sorted(found.items()) if re.fullmatch(pattern, name)}


def places(source: str, operators: dict[str, Any]) -> list[list[tuple[str, int]]]:
    """Return what may be done to each place by each kind of operator: operators, and which of their occurrences."""
    from cosmic_ray.ast import ast_nodes, get_ast

    syntax = list(ast.walk(ast.parse(source)))
    notes = [n.annotation for n in syntax if isinstance(n, ast.arg | ast.AnnAssign)]  # which nobody evaluates
    notes += [n.returns for n in syntax if isinstance(n, ast.FunctionDef)]
    unseen = [((n.lineno, n.col_offset), (n.end_lineno or 0, n.end_col_offset or 0)) for n in notes if n]
    nodes, found = list(ast_nodes(get_ast(source))), defaultdict(list)
    for name, operator in operators.items():
        starts = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, start in enumerate(starts):
            if not any(first <= start < last for first, last in unseen):
                found[start, name.split("_")[0]].append((name, occurrence))
    return [found[place] for place in sorted(found)]


def mutate(file: str, source: str, operator: str, code: str | None) -> Mutant | None:
    """Return the mutant, or None where it does not compile or is the same program."""
    try:
        if code is None or ast.dump(ast.parse(code)) == ast.dump(ast.parse(source)):
            return None
    except SyntaxError:
        return None
    lines = zip(source.splitlines(), code.splitlines(), strict=False)
    line, before, after = next((n, *both) for n, both in enumerate(lines, 1) if both[0] != both[1])
    return Mutant(file, line, operator, before.strip(), after.strip(), code)


def draw(root: Path, files: Sequence[str], pattern: str, seed: int, excused: Path = EXCUSED) -> Iterator[Mutant]:
    """Yield mutants in the order that the seed gives; each place and kind of operator is as likely as any other."""
    from cosmic_ray.mutating import mutate_code

    without = tomllib.loads(excused.read_text(encoding="utf-8")).get("equivalent", [])
    left_out = {(each["file"], each["before"], each["after"]) for each in without if each["reason"]}
    operators, dice = operators_named(pattern), random.Random(seed)
    sources = {file: (root / file).read_text(encoding="utf-8") for file in files}
    found = [(file, ways) for file, source in sources.items() for ways in places(source, operators)]
    dice.shuffle(found)
    for file, ways in found:
        name, occurrence = dice.choice(ways)
        code = mutate_code(sources[file], operators[name], occurrence)
        mutant = mutate(file, sources[file], name, code)
        if mutant and (file, mutant.before, mutant.after) not in left_out:
            yield mutant


# Which tests run a line


def lines_of(source: str, line: int) -> tuple[range, set[str]]:
    """Return the lines of the statement at this line, and the names by which others use it if it runs only once."""

    def first(statement: Any) -> Any:
        return min([statement.lineno, *(mark.lineno for mark in getattr(statement, "decorator_list", ()))])

    statements = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.stmt))
    path: list[Any] = [n for n in statements if first(n) <= line <= (n.end_lineno or 0)]
    inner, functions = path[-1], [n for n in path if isinstance(n, ast.FunctionDef)]
    last = max(inner.lineno, inner.body[0].lineno - 1) if hasattr(inner, "body") else inner.end_lineno
    cached = [f for f in functions if re.search(r"\bcache|lru_cache", " ".join(map(ast.unparse, f.decorator_list)))]
    once = cached[0] if cached else inner if functions in ([], [inner]) else None
    targets = [getattr(once, "target", None), *getattr(once, "targets", ())]
    names = {n.id for target in targets if target for n in ast.walk(target) if isinstance(n, ast.Name)}
    return range(first(inner), last + 1), (names | {getattr(once, "name", "")}) - {""}


class Suite:
    """The tests of a tree: how long each takes, and which lines it runs; a folder keeps what was measured."""

    def __init__(self, root: Path, data: Path) -> None:
        self.root, self.data = root, data
        self.seconds: dict[str, float] = {}
        self.runs: dict[str, dict[int, list[str]]] = {}  # file -> line -> tests

    def measure(self, marks: str, jobs: int) -> None:
        """Run the tests that are not known yet: all if the program has changed, else the changed files of them."""
        program, tests = (
            {str(path.relative_to(self.root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}
            for paths in (self.root.glob("loaderviz/**/*.py"), self.root.glob("tests/**/test_*.py"))
        )
        known = self._stored("known.json")
        if not program.items() <= known.items():
            shutil.rmtree(self.data, ignore_errors=True)
            known = program
        self.data.mkdir(parents=True, exist_ok=True)
        (self.data / "coveragerc").write_text(COVERAGE.format(data=self.data, root=self.root))
        for _, files in groupby([name for name in tests if known.get(name) != tests[name]], os.path.dirname):
            self._measure(changed := list(files), marks, jobs)
            known |= {name: tests[name] for name in changed}
            (self.data / "known.json").write_text(json.dumps(known))
        self.load()

    def load(self) -> None:
        """Read what was measured."""
        from coverage import CoverageData

        self.seconds, lines = self._stored("seconds.json"), CoverageData(str(self.data / "lines"))
        lines.read()
        for path in lines.measured_files():
            ran = lines.contexts_by_lineno(path).items()
            name = str(Path(path).relative_to(self.root))
            self.runs[name] = {line: [re.sub(r" \(\w+\)$", "", test) for test in by] for line, by in ran}

    def _stored(self, name: str) -> dict[str, Any]:
        path = self.data / name
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def _measure(self, files: list[str], marks: str, jobs: int) -> None:
        from coverage import Coverage

        print(
            f"Measuring which lines {len(files)} files of {os.path.dirname(files[0])} run.", file=sys.stderr, flush=True
        )
        times = self.data / "new.json"
        env = {"COVERAGE_PROCESS_START": str(self.data / "coveragerc"), "MUTANTS_SECONDS": str(times)}
        run_pytest(self.root, ["-m", marks, f"-n{jobs}", "--dist", "worksteal", *files], env, 3 * 3600)
        before = {test: time for test, time in self._stored("seconds.json").items() if test.split("::")[0] not in files}
        (self.data / "seconds.json").write_text(json.dumps(before | self._stored("new.json")))
        lines = Coverage(data_file=str(self.data / "lines"))
        lines.load()  # what is not loaded would be lost
        lines.combine([str(path) for path in self.data.glob("coverage.*")])
        times.unlink(missing_ok=True)

    def running(self, mutant: Mutant) -> list[str]:
        """Return the tests that may see it, the most promising first."""
        lines, names = lines_of((self.root / mutant.file).read_text(encoding="utf-8"), mutant.line)
        near = {test for line in lines for test in self.runs.get(mutant.file, {}).get(line, ())}
        word = re.compile(rf"\b({'|'.join(names)})\b")
        for file, runs in self.runs.items() if names else ():
            text = enumerate((self.root / file).read_text(encoding="utf-8").splitlines(), 1)
            near |= {test for line, said in text if word.search(said) for test in runs.get(line, ())}
        module = {test for tests in self.runs.get(mutant.file, {}).values() for test in tests} if names else set()
        files = {test.split("::")[0] for test in near | module}
        cost: dict[str, float] = defaultdict(float)
        for test in near & self.seconds.keys():
            cost[test.split("::")[0]] += self.seconds[test]
        mates = {test for test in self.seconds if test.split("::")[0] in files}
        own = Path(mutant.file).stem

        def rank(test: str) -> tuple[Any, ...]:
            file = test.split("::")[0]
            return own not in file, test not in near, cost[file], file, self.seconds[test]

        return sorted(mates, key=rank)


# Running tests, with this file as a plugin of pytest


def run_pytest(tree: Path, arguments: Sequence[str], env: dict[str, str], seconds: float) -> int:
    """Run tests of a tree; return the exit status of pytest, 1 where the time was over."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "benchmarks.mutants", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=tree,
        env=os.environ
        | {"PYTHONPATH": f"{tree}{os.pathsep}{ROOT}", "LOADERVIZ_OFFLINE": "1", "PYTEST_CURRENT_TEST": ""}
        | env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY)),
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return 1
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def killer(tree: Path, tests: Sequence[str], seconds: float) -> str | None:
    """Run these tests in this order; return the first that fails, a word if it was none of them, None if none does."""
    with tempfile.TemporaryDirectory() as folder:
        plan, failed = Path(folder, "plan.json"), Path(folder, "failed")
        plan.write_text(json.dumps(tests))
        files = dict.fromkeys(test.split("::")[0] for test in tests)
        env = {"MUTANTS_PLAN": str(plan), "MUTANTS_FAILED": str(failed)}
        status = run_pytest(tree, ["-x", "-n0", "--timeout=100", *files], env, seconds)
        if status in (0, 5):  # 5: no tests
            return None
        return failed.read_text() if failed.exists() else "import" if status in (2, 3, 4) else "time or crash"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of the plan, in its order; or tell which there are."""
    if path := os.environ.get("MUTANTS_PLAN"):
        rank = {test: place for place, test in enumerate(json.loads(Path(path).read_text()))}
        items[:] = sorted((item for item in items if item.nodeid in rank), key=lambda item: rank[item.nodeid])


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Tell which tests a marker expression leaves out."""
    if path := os.environ.get("MUTANTS_DESELECTED"):
        Path(path).write_text(json.dumps([item.nodeid for item in items]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Lines that run now are run by this test."""
    measuring = sys.modules["coverage"].Coverage.current() if "COVERAGE_PROCESS_START" in os.environ else None
    if measuring:
        measuring.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        if measuring:
            measuring.switch_context("")


SECONDS: dict[str, float] = defaultdict(float)
NOT_PASSED: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long each test takes, and the first that fails."""
    SECONDS[report.nodeid] += report.duration
    if not report.passed:
        NOT_PASSED.add(report.nodeid)
    if report.failed and "MUTANTS_FAILED" in os.environ:
        Path(os.environ["MUTANTS_FAILED"]).write_text(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Store times, of what passed, and lines, since a process of xdist ends without doing so."""
    path = os.environ.get("MUTANTS_SECONDS")
    if path and not hasattr(session.config, "workerinput"):
        Path(path).write_text(json.dumps({test: time for test, time in SECONDS.items() if test not in NOT_PASSED}))
    elif path and (measuring := sys.modules["coverage"].Coverage.current()):
        measuring.save()


# A whole run


def copy_of(root: Path, to: Path) -> Path:
    """Copy what git knows or would add, as it is now: no mutant is ever written into the tree itself."""
    names = subprocess.check_output(["git", "ls-files", "-zco", "--exclude-standard"], cwd=root, text=True)
    for name in filter(None, names.split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)
    return to


def write(file: Path, code: str) -> None:
    """Write a module and drop its compiled code, which Python tells apart by second and size only."""
    file.write_text(code, encoding="utf-8")
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def killed_by(tree: Path, mutant: Mutant, batches: Iterable[tuple[str, Sequence[str]]], seconds: float) -> str:
    """Try a mutant in a copy of the tree; return the test that kills it and the name of its batch, "" if none does."""
    file, code = tree / mutant.file, (tree / mutant.file).read_text(encoding="utf-8")
    try:
        write(file, mutant.code)
        found = ((killer(tree, tests, seconds), name) for name, tests in batches if tests)
        return next((f"{test}{name}" for test, name in found if test), "")
    finally:
        write(file, code)


def batches_of(tests: Suite, mutant: Mutant, slow: set[str], limit: float) -> Iterator[tuple[str, list[str]]]:
    """Yield the fast tests, those of the first seconds apart, then the slow ones; of each no more than `limit` s."""
    running = tests.running(mutant)
    for name, mine in (("", [t for t in running if t not in slow]), (SLOW, [t for t in running if t in slow])):
        spent, near, far = 0.0, list[str](), list[str]()
        for test in mine:
            if spent < limit:
                (far if spent > NEAR else near).append(test)
            spent += tests.seconds[test]
        yield from ((name, near), (name, far))


SLOW = " (slow)"


def main() -> None:
    """Draw mutants, try each, print the table, and write it beside what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="modules to change")
    parser.add_argument("--operators", default=".*", help="pattern of the names of operators")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--fast", default="not fuzz and not slow", help="marker expression of `make test`")
    parser.add_argument(
        "--all", default="not fuzz and not browser and not notebook", help="that of all tests that count"
    )
    parser.add_argument("--limit", type=float, default=120, help="seconds of tests per mutant, fast ones and slow ones")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "mutants")
    given = parser.parse_args()
    tests = Suite(ROOT, given.data.resolve())
    tests.measure(given.all, given.jobs)
    with tempfile.TemporaryDirectory() as folder:
        left_out = Path(folder, "slow.json")
        left_out.write_text("[]")
        run_pytest(ROOT, ["--collect-only", "-m", given.fast], {"MUTANTS_DESELECTED": str(left_out)}, 600)
        slow, trees = set(json.loads(left_out.read_text())), SimpleQueue[Path]()
        for number in range(given.jobs):
            trees.put(copy_of(ROOT, Path(folder, str(number))))

        def judge(mutant: Mutant) -> str:
            tree = trees.get()
            try:
                return killed_by(tree, mutant, batches_of(tests, mutant, slow, given.limit), 2 * given.limit + 120)
            finally:
                trees.put(tree)

        mutants = list(islice(draw(ROOT, given.files, given.operators, given.seed), given.count))
        table = report(mutants, judge, given.jobs)
    (given.data / f"seed{given.seed}.md").write_text(table, encoding="utf-8")


def report(mutants: Sequence[Mutant], judge: Callable[[Mutant], str], jobs: int) -> str:
    """Judge the mutants; print a row as soon as its end is known, and return all with the shares below them."""
    rows, ends = ["| mutant | operator | before → after | killed by |", "|---|---|---|---|"], []
    with ThreadPoolExecutor(jobs) as pool:
        for mutant, end in zip(mutants, pool.map(judge, mutants), strict=True):
            cells = f"{mutant.file}:{mutant.line}", mutant.operator, f"`{mutant.before}` → `{mutant.after}`"
            rows.append(
                " | ".join(cell.replace("|", "\\|") for cell in ("", *cells, end or "**survived**", "")).strip()
            )
            print(rows[-1], flush=True)
            ends.append(end)
    fast, dead = sum(bool(end) and not end.endswith(SLOW) for end in ends), sum(map(bool, ends))
    share = f"{fast} of {len(ends)} mutants are dead by the fast tests, {dead} by all that count."
    print(share)
    return "\n".join([*rows, "", share, ""])


if __name__ == "__main__":
    main()

"""Run the code of README and of the how-to pages, and write what it prints below it: python docs/pages.py [PAGE ...].

Each page is run in a new folder, from its first block to its last:

* ```python is run; a page has one set of variables;
* ```python or ```sh whose first lines have a comment with a file's name alone, such as `# train.py`, is written there;
* ```sh is run by bash, where `python` is this Python, and programs of a cluster stand for themselves (`STAND_INS`);
* ```text below one of these is what it printed. Where a line of it is "…", only what stands before that is kept. The
  status of commands that fail is told as the last line.

A page names the packages that it needs beyond those of the tests in a comment: <!-- needs: lightning -->.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from loaderviz.imports import cured_imports

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```$", re.M | re.S)
FILE = re.compile(r"\A(?:#!.*\n)?# (\w[\w-]*\.\w+)\n")
REST = "…\n"
STAND_INS = {  # what they do to a command, without a cluster or containers
    "sbatch": 'exec bash "$1"',
    "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; SLURM_PROCID=0 exec "$@"',
    "docker": 'while [ "$1" != "-c" ] && [ "$1" != "python" ]; do shift; done; exec "$@"',
}


def needs(text: str) -> list[str]:
    """Return the packages that a page needs beyond those of the tests."""
    found = re.search(r"<!-- needs: (.*?) -->", text)
    return found[1].split() if found else []


def ran(page: Path, folder: Path) -> str:
    """Return the page as it is when its code has run in this folder; raise what its code raises."""
    text, names, said = page.read_text(encoding="utf-8"), {"__name__": "page"}, ""
    parts, at, blocks = [], 0, list(BLOCK.finditer(text))
    files = {name[1]: code for _, code in (block.groups() for block in blocks) if (name := FILE.match(code))}
    with contextlib.chdir(folder):
        for file, code in files.items():
            Path(file).write_text(code, encoding="utf-8")
        for package in (*needs(text), "torchvision"):  # whose import is cured, too
            with cured_imports():
                importlib.import_module(package)
        for block in blocks:
            kind, code = block.groups()
            if kind == "text":
                parts += [text[at : block.start(2)], shortened(said, code)]
                at = block.end(2)
            elif kind == "python" and code not in files.values():
                said = printed(code, f"{page.name}, line {text[: block.start(2)].count(chr(10)) + 1}", names)
            elif code not in files.values():
                said = commanded(code, fails=re.match(r"\n+```text\n", text[block.end() :]) is not None)
    return "".join([*parts, text[at:]])


def shortened(said: str, before: str) -> str:
    """Return what was said, and of it as many lines as stood there, if "…" said that there are more."""
    if REST not in before.splitlines(keepends=True):
        return said
    kept = before.splitlines(keepends=True).index(REST)
    return "".join([*said.splitlines(keepends=True)[:kept], REST])


def printed(code: str, name: str, names: dict[str, Any]) -> str:
    """Run a block of Python; return what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, name, "exec"), names)
    return out.getvalue()


def commanded(code: str, *, fails: bool) -> str:
    """Run commands; return what they printed. Raises `RuntimeError` where they fail and the page does not say so."""
    with tempfile.TemporaryDirectory() as tools:
        for name, does in {**STAND_INS, "python": f'exec "{sys.executable}" "$@"'}.items():
            (Path(tools) / name).write_text(f"#!/bin/bash\n{does}\n", encoding="utf-8")
            (Path(tools) / name).chmod(0o755)
        way = os.pathsep.join([tools, os.environ["PATH"]])
        python = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PATH": way, "PYTHONPATH": python, "PYTHONWARNINGS": "ignore", "COLUMNS": "80"}
        environment.pop("CI", None)  # with which pytest and others print more, on CI's own machines alone
        done = subprocess.run(
            ["bash", "-ec", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    status = f"(exit status {done.returncode})\n" if done.returncode else ""
    if status and not fails:
        raise RuntimeError(f"{code}{done.stdout}{status}")
    return done.stdout + status


def main(pages: list[str]) -> None:
    """Write the outputs of these pages, or of all, as they are now."""
    os.environ["LOADERVIZ_OFFLINE"] = "1"
    for page in map(Path, pages or PAGES):
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(ran(page.resolve(), Path(folder)), encoding="utf-8")
        print(page)


if __name__ == "__main__":
    main(sys.argv[1:])

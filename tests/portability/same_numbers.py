"""Holds the numbers of `compare --host laptop --json FILE` against those of the repository: equal to the nanosecond.

python start.py tests/portability/same_numbers.py FILE            # prints each number that differs; 1 if any does
python start.py tests/portability/same_numbers.py --keep FILE     # writes numbers.json, after a change that is meant
"""

import json
import sys
from pathlib import Path

KEPT = Path(__file__).with_name("numbers.json")


def numbers(reports):
    """All numbers of the runs, by batch size, loader and name."""
    found = {}
    for size, runs in reports.items():
        for loader, report in runs.items():
            for name, value in report["summary"].items():
                parts = value if isinstance(value, dict) else {"": value}
                found |= {", ".join(filter(None, [size, loader, name, part])): each for part, each in parts.items()}
    return found


def differences(here, kept):
    """A line for each number that is not the same in both, or in one alone."""
    names = [name for name in [*kept, *(here.keys() - kept.keys())] if here.get(name, "") != kept.get(name, "")]
    return [f"{name}: {here.get(name, 'nothing')} here, {kept.get(name, 'nothing')} kept" for name in names]


def main(arguments):
    here = numbers(json.loads(Path(arguments[-1]).read_text(encoding="utf-8")))
    if arguments[:-1] == ["--keep"]:
        KEPT.write_text(json.dumps(here, indent=0) + "\n", encoding="utf-8", newline="\n")
    different = differences(here, json.loads(KEPT.read_text(encoding="utf-8")))
    print("\n".join(different) or f"All {len(here)} numbers are those of the repository.")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

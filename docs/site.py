"""Make the site, files for any host that need no server: python docs/site.py [OUT] [--book FOLDER].

The front page is a story of six small scenes. It is one file in each language, with the engine of `lv.explore()` and
all that it draws in it; docs/story has its texts, its page, its script and its style. What stands in braces in a text
is computed here by `simulate` and `summarize`, and in the page by the same in JavaScript. With --book, the book of
`python docs/book.py` stands behind one of its doors.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tomllib
import warnings
from base64 import b64encode
from dataclasses import asdict, replace
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import loaderviz
from loaderviz import words
from loaderviz.emulator.replay import PRESETS
from loaderviz.metrics import Summary, summarize
from loaderviz.timeline import Kind, Timeline
from loaderviz.view.picture import EXPLORER, module, stripped
from loaderviz.widgets.explorer import Settings, advice, rates_of, simulate, tables

ROOT = Path(__file__).parents[1]
STORY = ROOT / "docs" / "story"
PAGES = {"en": "index.html", "zh": "zh.html"}
DOORS = {"en": "index.html", "zh": "notebooks/zh/00_start_here.html"}  # of the book, whose first page is English
TEXTS = tomllib.loads((STORY / "texts.toml").read_text(encoding="utf-8"))
# Of each scene: its settings, its timelines (changes of them; the first is the one that speeds are told against), those
# that are drawn, its controls, and the lanes that are drawn, where not all are, by their short names.
FIRST = Settings()
SCENES: dict[str, dict[str, Any]] = {
    "now": {
        "settings": FIRST,
        "rows": {"now": {}},
        "drawn": ["now"],
        "controls": ["gpu"],
        "lanes": ["copy in", "default", "GPU"],
    },
    "guess": {
        "settings": FIRST,
        "rows": {"now": {}, "workers": {"workers": 2 * FIRST.workers}}
        | {name: PRESETS[name] for name in ("pinned", "prefetch", "resident")},
        "drawn": ["now"],
        "controls": [],
        "lanes": None,
    },
    "pinned": {
        "settings": replace(FIRST, **PRESETS["pinned"]),
        "rows": {"blocking": PRESETS["blocking"], "now": {}},
        "drawn": ["now"],
        "controls": ["pin", "non_blocking"],
        "lanes": ["pin", "main: waits", "default", "GPU"],
    },
    "prefetch": {
        "settings": replace(FIRST, **PRESETS["prefetch"]),
        "rows": {"now": {}},
        "drawn": ["now"],
        "controls": [],
        "lanes": ["pin", "default", "side", "GPU"],
    },
    "nothing": {
        "settings": replace(FIRST, gpu="t4", batch_size=64, **rates_of("t4")),
        "rows": {"now": {}, "best": PRESETS["prefetch"]},
        "drawn": ["now", "best"],
        "controls": ["compute", "fetch_per_sample"],
        "lanes": None,
    },
}
BEFORE_UNIT = re.compile(r"(?<=\d) (?=[nµm]?s\b|%)")  # no line is broken there
FRAMED = (Kind.COPY_H2D, Kind.COMPUTE)  # of the race: the copy, and the kernel that reads what it brings
STATIC = ("name", "title", "description", "lead", "skip", "other", "legend", "foot")  # of no scene, not for the script


def told(key: str, language: str, values: dict[str, str] | None = None) -> str:
    """Return a text with its values."""
    text: str = TEXTS[key][language]
    return BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", fill(text, values)) if values is not None else text


def fill(text: str, values: dict[str, str]) -> str:
    """Return a text with what stands in braces in it; raises `KeyError` for what there is not."""
    return re.sub(r"\{(\w+)\}", lambda found: values[found[1]], text)


def marked(text: str) -> str:
    """Return a text as HTML: backticks are code, two asterisks around a piece make it strong."""
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", words.html(text))


# Numbers


def worked_out(scene: dict[str, Any]) -> dict[str, tuple[Settings, Timeline, Summary]]:
    """Return settings, timeline and numbers of each row of a scene."""
    found = {}
    for name, changes in scene["rows"].items():
        settings = replace(scene["settings"], **changes)
        timeline = simulate(settings)
        found[name] = settings, timeline, summarize(timeline)
    return found


def values_of(scene: dict[str, Any], language: str = "en") -> dict[str, str]:
    """Return what the texts of a scene may ask for, in words; story.js works out the same."""
    rows = worked_out(scene)
    _, _, first = next(iter(rows.values()))
    no_copies = tables(language=language)["texts"]["no_copies"]
    values = {}
    for name, (settings, _, summary) in rows.items():
        step, batches = summary.step or 0, summary.batches or 1
        mine = {
            "batch": f"{settings.batch_size:,}",
            "compute": words.duration(settings.compute),
            "computes": words.share(summary.compute_share),
            "hidden": no_copies if summary.overlap is None else words.share(summary.overlap),
            "step": words.duration(summary.step),
            "exposed": words.duration(summary.exposed_copy * step / summary.window),
            "copy": words.duration(summary.copy / batches),
            "speedup": words.times((first.step or 0) / step),
        }
        values |= {f"{name}_{key}": value for key, value in mine.items()}
    settings, timeline, summary = list(rows.values())[-1]
    gpu = tables()["gpus"][settings.gpu]["short"]
    return values | {"gpu": gpu, "advice": advice(settings, summary, language)} | followed(timeline)


def followed(timeline: Timeline) -> dict[str, str]:
    """Return what is told of the second batch that is both copied and computed in a timeline."""
    rows = list(timeline.rows())
    copies = {row.batch: row for row in rows if row.kind == Kind.COPY_H2D}
    begins: dict[int, int] = {}
    for row in rows:
        if row.kind == Kind.COMPUTE and row.batch in copies:
            begins.setdefault(row.batch, row.start)
    known = sorted(begins)
    if not known:
        return {}
    number = known[min(1, len(known) - 1)]
    copy = copies[number]
    ahead = words.duration(begins[number] - copy.end)
    return {"batch": str(number), "copy": words.duration(copy.end - copy.start), "ahead": ahead}


# The race


def recorded() -> loaderviz.recording.Recording:
    """Return the recording of a real loop on the emulated GPU that forgets to wait: docs/story/race.txt."""
    import torch
    from torch.utils.data import DataLoader, Dataset, default_convert

    size, batch, count = 784, 4096, 4

    class Samples(Dataset):
        def __len__(self) -> int:
            return count * batch

        def __getitems__(self, indices: list[int]) -> torch.Tensor:
            return torch.zeros(len(indices), size)

    with warnings.catch_warnings(), loaderviz.record(on="a100", host="laptop") as recording:
        warnings.simplefilter("ignore")  # that there is a race is the point
        model = torch.nn.Linear(size, 256).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def train_step(x: torch.Tensor) -> None:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        loader = DataLoader(Samples(), batch, pin_memory=True, collate_fn=default_convert)
        text = (STORY / "race.txt").read_text(encoding="utf-8")
        exec(compile(text, "race.py", "exec"), {"torch": torch, "loader": loader, "train_step": train_step})
        torch.cuda.synchronize()
    return recording


def race() -> dict[str, Any]:
    """Return the race as the page has it: what the view draws, and the numbers and the code that are told."""
    recording = recorded()
    (hazard,) = recording.hazards
    timeline = recording.timeline
    rows = list(timeline.rows())
    spans = timeline.marks[0].spans
    copy, kernel = (next(rows[each] for each in spans if rows[each].kind == kind) for kind in FRAMED)
    if hazard.kind != "early-read" or kernel.start >= copy.end:
        raise RuntimeError("the loop of docs/story/race.txt has no race that one sees")
    room = (copy.end - copy.start) // 3
    part = timeline.between(copy.start - room, copy.end + room)
    head, body = part.view(title="").packed(plain=True)
    text = (STORY / "race.txt").read_text(encoding="utf-8")
    (line,) = re.findall(r"# (main\.\S+)", text)
    values = {"gpu": "A100", "early": words.duration(copy.end - kernel.start), "line": line}
    return {"head": head, "body": b64encode(body).decode(), "values": values, "code": text.strip()}


# Pages


def page(language: str, frozen: dict[str, Any], book: bool) -> str:
    """Return the page in a language."""
    other = next(each for each in PAGES if each != language)
    numbers = {name: values_of(scene, language) for name, scene in SCENES.items()}
    shown = Template((STORY / "page.html").read_text(encoding="utf-8"))
    script = module(*EXPLORER) + stripped((STORY / "story.js").read_text(encoding="utf-8"))
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return shown.substitute(
        {key.replace("-", "_"): marked(told(key, language)) for key in TEXTS},
        language=language,
        other_language=other,
        other_name=told("name", other),
        other_title=escape(told("other", other)),
        other_page=PAGES[other] + ("?lang=en" if other == "en" else ""),
        policy=f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src 'self' data:",
        style=stripped((STORY / "story.css").read_text(encoding="utf-8")),
        scenes="".join(_scene(name, number, language, numbers[name]) for number, name in enumerate(SCENES, 1)),
        numbers_text=_paragraphs(told("numbers-text", language)),
        lessons=_lessons(language, book),
        program=escape((STORY / "install.txt").read_text(encoding="utf-8").strip()),
        data=_json(_data(language, frozen)),
        script=script,
    )


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{marked(each)}</p>" for each in text.split("\n\n"))


def _scene(name: str, number: int, language: str, values: dict[str, str]) -> str:
    """Return a scene as it is without its script: prose, a still picture, and what that shows."""
    said = escape(told(f"{name}-said", language, values))
    rest = (
        f'<noscript><img src="pictures/{name}.svg" alt="{said}"></noscript>'
        f'<figcaption id="{name}-said" class="said" role="status" aria-live="polite">{said}</figcaption>'
    )
    hidden = ""
    if name == "guess":  # the answer is not told before one has guessed, but without a script, on demand
        waiting = escape(told("guess-waiting", language))
        ask = marked(told("guess-without", language))
        hidden = f"<noscript><details><summary>{ask}</summary>{said}</details></noscript>"
        rest = f'<figcaption id="{name}-said" class="said" role="status" aria-live="polite">{waiting}</figcaption>'
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">'
        f'<span class="which">{number}</span> '
        f"{marked(told(f'{name}-title', language))}</h2>{_paragraphs(told(f'{name}-text', language, values))}"
        f'<div class="controls"></div>{hidden}<figure><div class="picture"></div>{rest}</figure></section>'
        + (f'<p class="legend">{marked(told("legend", language))}</p>' if number == 1 else "")
    )


def _lessons(language: str, book: bool) -> str:
    if not book:
        return f"<p>{marked(told('lessons-no-book', language))}</p>"
    return f'<p><a class="door" href="book/{DOORS[language]}">{marked(told("lessons-book", language))}</a></p>'


def _data(language: str, frozen: dict[str, Any]) -> dict[str, Any]:
    scenes = {name: scene | {"settings": asdict(scene["settings"])} for name, scene in SCENES.items()}
    texts = {key: told(key, language) for key in TEXTS if key not in STATIC and not key.endswith(("-title", "-text"))}
    return {"tables": tables(language=language), "texts": texts, "scenes": scenes, "race": frozen}


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def site(out: Path, book: Path | None = None) -> Path:
    """Write the site into a folder, in place of what is there; return its first page.

    `book` is the folder of the book. Raises `FileNotFoundError` where there is none, and `FileExistsError` where `out`
    has something else than a site, which stays.
    """
    if out.exists() and not (out.is_dir() and ((out / ".nojekyll").exists() or not any(out.iterdir()))):
        raise FileExistsError(f"{out} is no site: give another folder, or remove it yourself")
    if book and not (book / "index.html").is_file():
        raise FileNotFoundError(f"there is no book in {book}: make it with python docs/book.py {book}")
    shutil.rmtree(out, ignore_errors=True)
    (out / "pictures").mkdir(parents=True)
    frozen = race()
    for language, name in PAGES.items():
        (out / name).write_text(page(language, frozen, book is not None), encoding="utf-8")
    for name, scene in SCENES.items():
        drawn = {row: worked_out(scene)[row][1] for row in scene["drawn"]}
        still = loaderviz.compare(drawn, title="") if len(drawn) > 1 else next(iter(drawn.values())).view(title="")
        (out / "pictures" / f"{name}.svg").write_text(still.svg(), encoding="utf-8")
    (out / ".nojekyll").touch()  # GitHub's Pages would leave out folders that begin with "_"
    if book:
        shutil.copytree(book, out / "book")
    return out / PAGES["en"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the site.")
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--book", type=Path, help="the folder of the book (default: the site is made without)")
    options = parser.parse_args()
    print(site(options.out, options.book))

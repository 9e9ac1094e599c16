"""HTML around a view: its host element, and the script that brings it to life.

Head and body stand in the host, so that nothing else is needed: no kernel, no network. In a notebook each output has
the script, too, compressed: which of them runs first does not matter, a page keeps one of each version. Where scripts
do not run, the still picture and the words stay. It is an `<img>` with its data, since notebooks that are not trusted
remove SVG, styles and ids.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from base64 import b64encode
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

_SOFT = "font-size:14px;color:var(--jp-ui-font-color2,inherit);max-width:90ch;margin:6px 0"
# No class or const at the top: an output's script can run twice. A page without `blob:` in its policy keeps the still.
_LOADER = """<script>(() => {
  const registry = globalThis[Symbol.for("loaderviz.view.1")] ??= {};
  const load = async () => {
    const bytes = Uint8Array.from(atob("%(code)s"), letter => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const address = URL.createObjectURL(new Blob([await new Response(stream).text()], {type: "text/javascript"}));
    try { return await import(address); } finally { URL.revokeObjectURL(address); }
  };
  (registry["%(name)s"] ??= load()).then(module => module.upgradeAll(),
    () => { delete registry["%(name)s"]; });
})();</script>"""


_PARTS = ("model.js", "draw.js", "chrome.js", "view.js")  # of the module, each of which uses those before it
# A string or a template, which stays; or a comment or an indent, which goes. No regular expression in the parts has a
# quotation mark, "//" or "/*" in it: what is left of them runs in every test of the browser.
_SKIPPED = re.compile(r'("(?:\\.|[^"\\])*"|`(?:\\.|[^`\\])*`)|/\*.*?\*/|//[^\n]*|(?<=\n)\s+', re.S)


@cache
def module() -> str:
    """Return the view's ES module without its comments, its style sheet in it."""
    here = files("loaderviz.view")
    *code, looks = (_bare(here.joinpath(name).read_text(encoding="utf-8")) for name in (*_PARTS, "view.css"))
    style = json.dumps(looks.replace("\n", "")).replace("</", "<\\/")
    return "".join(code).replace('"__LV_CSS__"', style, 1)


def _bare(code: str) -> str:
    return _SKIPPED.sub(lambda found: found[1] or "", code)


@cache
def loader() -> str:
    """Return the script that a notebook's output ends with: it imports the module once for a page."""
    text = module().encode()
    return _LOADER % {"code": b64encode(gzip.compress(text, 9, mtime=0)).decode(),
                      "name": hashlib.sha256(text).hexdigest()[:16]}  # fmt: skip


def host(head: dict[str, Any], body: bytes, still: str, below: str = "", stands: bool = False) -> str:
    """Return a view's element: the still picture, its words, `below` (HTML) and the data.

    `stands`: it stands in for a widget in the next output, and vanishes when that is there.
    """
    picture = f"data:image/svg+xml;base64,{b64encode(still.encode()).decode()}"
    data = json.dumps(head, separators=(",", ":")).replace("<", "\\u003c")
    said = twin(head["twin"], "withheld" in head)
    notes = "".join(f'<p style="{_SOFT}">{escape(note)}</p>' for note in head["notes"])
    return (
        f'<div class="lv-view" data-lm-suppress-shortcuts="true"{" data-lv-stand" if stands else ""}>'
        f'<img class="lv-still" alt="{escape(head["title"] or "timeline")}" style="max-width:100%" src="{picture}">'
        f"{said}{notes}"
        f'<div class="lv-below" slot="below">{below}</div>'
        f'<script type="application/json" class="lv-head">{data}</script>'
        f'<script type="application/octet-stream" class="lv-body">{b64encode(body).decode()}</script></div>'
    )


def twin(text: str, folded: bool = False) -> str:
    """Return what a picture shows, in words, as HTML; "" for no words."""
    lines = "<br>".join(escape(line) for line in text.splitlines())
    if folded and lines:
        return f'<details class="lv-twin" style="{_SOFT}"><summary>In words</summary>{lines}</details>'
    return f'<p class="lv-twin" style="{_SOFT}">In words: {lines}</p>' if lines else ""

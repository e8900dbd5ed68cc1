"""The page of a sweep: well-formed, complete, loads nothing, escapes everything, and reads in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dscalc.answers.envelope import Assumption, Warning
from dscalc.answers.sweep import SweepAnswer
from dscalc.report.sweep_page import sweep_page
from dscalc.report.sweep_words import LIMIT_WORDS

TODAY = date(2026, 3, 1)
VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}
LOADING = {"src", "srcset", "href", "xlink:href", "action", "poster", "data", "background", "ping"}


class Page(HTMLParser):
    """Elements with attributes and text; complains where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.inside: dict[str, list[str]] = {}
        self.children: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        self.elements.append((tag, dict(attrs)))
        self.children.append((self.open[-1] if self.open else "", tag))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert "svg" in self.open, f"<{tag}/> outside a picture is no end in HTML"

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> ends nothing"
        assert self.open.pop() == tag, f"</{tag}> does not match at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        where = self.open[-1] if self.open else ""
        self.inside.setdefault(where, []).append(data)
        if where not in ("script", "style"):
            self.text.append(data)

    def all(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.elements if name == tag)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def written(answer: SweepAnswer) -> str:
    return sweep_page(answer, TODAY)


@pytest.fixture(scope="module")
def page(written: str) -> Page:
    return Page(written)


def test_well_formed_and_accessible(page: Page) -> None:
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        for name in (attributes.get("aria-labelledby") or "").split():
            assert name in ids
    assert next(page.all("html"))["lang"] == "en"
    assert [t for t, _ in page.elements if t == "h1"] == ["h1"]
    pictures = list(page.all("svg"))
    assert len(pictures) == 6  # curve, two ceilings, time, memory, time against memory
    assert all(p["role"] == "img" and p["aria-labelledby"] for p in pictures)
    assert page.children.count(("svg", "title")) == page.children.count(("svg", "desc")) == len(pictures)
    tables = len(list(page.all("table")))
    assert tables == len(list(page.all("caption"))) == page.children.count(("table", "thead"))
    assert all(a.get("scope") in ("col", "row") for a in page.all("th"))


def test_nothing_comes_from_elsewhere(page: Page, written: str) -> None:
    for tag, attributes in page.elements:
        for name in LOADING & set(attributes):
            assert (attributes[name] or "").startswith("#"), f"<{tag} {name}={attributes[name]}>"
        assert not [name for name in attributes if name.startswith("on")]
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
    ids = {a["id"] for _, a in page.elements if "id" in a}
    assert all((a["href"] or "")[1:] in ids for a in page.all("a"))
    assert [a["type"] for a in page.all("script")] == ["application/json"]
    assert "default-src 'none'" in written
    style = "".join(page.inside["style"])
    assert not re.search(r"url\(|@import|https?:", style)


def test_every_number_of_the_answer_is_there(page: Page, answer: SweepAnswer) -> None:
    """All of them for machines, those that matter for people too, in full precision behind what is shown."""
    (words,) = page.inside["script"]
    assert json.loads(words) == json.loads(json.dumps(answer.to_json()))
    shown = {a["value"] for a in page.all("data")}
    found: list[float | None] = []
    for point in answer.curve:
        row, budget = point.row, point.budget
        assert row is not None
        assert budget is not None
        found += [
            row.step_time_s,
            row.low_s,
            row.high_s,
            row.tokens_per_s,
            row.mfu,
            row.headroom_bytes,
            point.efficiency,
        ]
        found += [row.exposed_share, row.bubble_share]
        found += [budget.wall_time_s, budget.gpu_hours, budget.usd, budget.energy_j, budget.goodput_fraction]
    for ceiling in answer.ceilings.values():
        for limit in ceiling.limits.values():
            found += [limit.gpus, *([limit.low_gpus, limit.high_gpus] if limit.low_gpus != limit.high_gpus else [])]
            assert limit.reason in page.words
        found += ceiling.elasticities.values()
    best = answer.best
    assert best is not None
    found += [r.step_time_s for r in answer.rows if (r.setup, r.gpus) == (best.setup, best.gpus) and r.rank]
    found += list(answer.rejected.values())
    missing = [value for value in found if value is not None and repr(value) not in shown]
    assert not missing
    for assumption in answer.assumptions:
        assert assumption.value in (None, "") or " ".join(assumption.source.split()) in page.words
    for warning in answer.warnings:
        assert warning.message[1:] in page.words
        assert warning.next_step in page.words


def test_the_answer_comes_first(page: Page, answer: SweepAnswer) -> None:
    best = answer.best
    assert best is not None
    assert page.words.index("Best is") < page.words.index("stops paying at") < page.words.index("Scaling")
    assert f"on {best.gpus} GPUs of {best.setup}: a step takes" in page.words
    assert "USD" in page.words
    assert "2026-03-01" in page.words
    (command,) = [text for text in page.inside["code"] if text.startswith("dscalc sweep")]
    assert "--cluster dgx-h100,dgx-a100 --gpus 8,16,32,64" in command


HOSTILE = """</script></title></style><script>alert(1)</script><img src=x onerror="alert(1)">'"&amp;\u2028<!--"""


def test_names_from_outside_stay_text(plain: SweepAnswer) -> None:
    setup = plain.setups[0]
    shape = replace(setup.case.model.shape, name=HOSTILE)
    case = replace(setup.case, model=replace(setup.case.model, shape=shape, source=HOSTILE))
    answer = replace(
        plain,
        setups=(replace(setup, case=case),),
        warnings=(Warning("x", HOSTILE, HOSTILE),),
        assumptions=(Assumption(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE),),
    )
    page = Page(sweep_page(answer, TODAY))
    assert "img" not in [tag for tag, _ in page.elements]
    assert [a["type"] for a in page.all("script")] == ["application/json"]
    assert page.words.count("<script>alert(1)</script>") >= 5
    assert json.loads(page.inside["script"][0])["warnings"][0]["message"] == HOSTILE


def test_nothing_fits(nothing: SweepAnswer) -> None:
    page = Page(sweep_page(nothing, TODAY))
    assert not list(page.all("svg"))
    assert "Nothing fits on dgx-h100" in page.words
    assert "Scaling" not in page.words


def test_an_interrupted_sweep_says_so(plain: SweepAnswer) -> None:
    assert "interrupted" in Page(sweep_page(replace(plain, complete=False), TODAY)).words


PROBE = """<!DOCTYPE html><meta charset="utf-8"><body>
<iframe id="f375" src="page.html" width="375" height="900"></iframe>
<iframe id="f1200" src="page.html" width="1200" height="900"></iframe>
<pre id="found"></pre><script>
onload = () => {
  const found = {};
  for (const width of [375, 1200]) {
    const page = document.getElementById("f" + width).contentDocument;
    const outside = [], touching = [];
    for (const svg of page.querySelectorAll("svg")) {
      const box = svg.viewBox.baseVal, texts = [...svg.querySelectorAll("text")].map(t => [t, t.getBBox()]);
      for (const [t, b] of texts)
        if (b.x < -1 || b.y < -1 || b.x + b.width > box.width + 1 || b.y + b.height > box.height + 1)
          outside.push(t.textContent);
      const ticks = texts.filter(([t]) => t.classList.contains("tick"));
      ticks.forEach(([t, b], i) => ticks.slice(i + 1).forEach(([u, c]) => {
        if (b.x < c.x + c.width && c.x < b.x + b.width && b.y < c.y + c.height - 3 && c.y < b.y + b.height - 3)
          touching.push(t.textContent + " / " + u.textContent);
      }));
    }
    const root = page.documentElement;
    found[width] = {
      over: root.scrollWidth - root.clientWidth, pictures: page.querySelectorAll("svg").length, outside, touching,
      heading: getComputedStyle(page.querySelector("h1")).fontSize,
      compute: getComputedStyle(page.querySelector("svg .part-compute")).fill,
      line: getComputedStyle(page.querySelector("svg .line")).stroke,
    };
  }
  document.getElementById("found").textContent = JSON.stringify(found);
};
</script>"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium here; install one to look at the page in a browser")
    return found


def look(browser: str, folder: Path, *options: str) -> str:
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
        *options,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_reads_in_a_browser_wide_and_narrow(browser: str, written: str, tmp_path: Path) -> None:
    """The page never scrolls sideways, and no label of a picture is cut off or lies on another."""
    (tmp_path / "page.html").write_text(written, encoding="utf-8")
    (tmp_path / "probe.html").write_text(PROBE, encoding="utf-8")
    words = look(
        browser,
        tmp_path,
        "--allow-file-access-from-files",
        "--virtual-time-budget=5000",
        "--dump-dom",
        (tmp_path / "probe.html").as_uri(),
    )
    match = re.search(r'<pre id="found">(\{.*\})</pre>', words)
    assert match, words[-500:]
    found: dict[str, Any] = json.loads(match[1])
    for width in ("375", "1200"):
        seen = found[width]
        assert seen["over"] <= 0, f"{width} wide: scrolls sideways by {seen['over']} pixels"
        assert seen["pictures"] == 6
        assert seen["outside"] == []
        assert seen["touching"] == []
        assert seen["compute"] == "rgb(11, 122, 90)"  # the style reaches into the pictures
        assert seen["line"] == "rgb(0, 114, 178)"


def colours(style: str) -> Iterator[dict[str, str]]:
    """The colours by name of the light page, of the dark one, and on paper."""
    light = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", style[: style.index("@media")]))
    for block in re.findall(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}", style, re.DOTALL):
        yield light
        yield light | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    paper = style[style.index("@media print") :]
    yield light | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", paper))


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, as WCAG 2.2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_part_of_a_bar_has_its_colour(page: Page) -> None:
    """A part that is added to the bars of a terminal gets one here too."""
    from dscalc.report import memory, step, sweep_plot
    from dscalc.report.sweep_svg import slug

    style = "".join(page.inside["style"])
    for _, name, *_ in (*step._BAR, *memory._BAR):
        assert f".{slug(name)} {{" in style or f".{slug(name)}, " in style
    assert [name for _, name, *_ in step._BAR] == list(sweep_plot.PARTS)


def test_everything_stands_out(page: Page) -> None:
    """WCAG 2.2: 4.5 to 1 for text, 3 to 1 for lines and areas that mean something."""
    style = "".join(page.inside["style"])
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    parts = ("compute", "host", "tensor", "context", "expert", "data", "messages", "bubble", "optimizer", "waiting")
    on_light = set(re.findall(r"\.part-([a-z]+)-text", style))
    themes = list(colours(style))
    assert len(themes) == 3
    for n, theme in enumerate(themes):
        for ground in ("page", "card"):
            for ink in ("text", "quiet", "accent"):
                assert contrast(theme[ink], theme[ground]) >= 4.5, (n, ink, ground)
        for line in ("s0", "s1", "s2", "s3", "s4", "s5", "bad", "good"):
            assert contrast(theme[line], theme["page"]) >= 3.0, (n, line)
        for part in parts:
            ink = theme["on-light"] if n == 1 or part in on_light else theme["on-dark"]
            assert contrast(ink, theme[part]) >= 4.5, (n, part, contrast(ink, theme[part]))


def test_the_ceiling_has_its_binding_limit_and_the_closed_form(page: Page, answer: SweepAnswer) -> None:
    binding = LIMIT_WORDS[str(answer.ceiling.binding_limit)]
    assert page.words.count(f"Binding limit: {binding} (") >= 2  # in the answer, and above the limits of each machine
    assert "Closed form (6ND/P against 2N b_r/BW, see dscalc ratio)" in page.words
    assert "Two layouts can be told apart from about 5% on" in page.words

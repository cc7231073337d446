"""The inspector's page in a headless Chromium: everything is clicked, at two widths, light and dark."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TEMPLATE = HERE.parents[1] / "src" / "epibatch" / "connectors" / "_inspect" / "page.html"
EXAMPLES = ("lstm", "frames", "agents", "dict", "bug")
WIDTHS = (1280, 400)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
MARKUP = "<img src=x onerror='window.injected=true'>"
CATCH = """
const PROBLEMS = [];
for (const kind of ["error", "unhandledrejection", "securitypolicyviolation"]) {
  addEventListener(kind, event => PROBLEMS.push(`${kind}: ${event.message || event.reason || event.blockedURI}`));
}
for (const level of ["error", "warn"]) console[level] = (...words) => PROBLEMS.push(`console: ${words.join(" ")}`);
"""


def example(name):
    return json.loads((HERE / f"{name}.json").read_text())


def replay_draw():
    """A draw of four rows of two steps each from an episode, of a run in which nothing acted; two are of one step."""
    column = {"layout": "tensors", "shape": [4], "dtype": "float32", "bytes": 16}
    change = {"name": "rewards", "before": None, "after": column, "what": ["added"]}
    chunk = {"id": "c", "name": "cc", "episode": "e", "env": -1, "agent": None, "module": "m", "end": "cut", "side": 0}
    chunks = [
        chunk | {"x": list(range(4, 13)), "t0": 4, "n": 8, "look": 0},
        chunk | {"x": list(range(4, 8)), "t0": 6, "n": 1, "look": 2},
    ]
    grid = {"shape": [4], "kind": [1, 1, 1, 1], "chunk": [0, 0, 0, 1], "at": [0, 6, 2, 0]}
    grid["columns"] = {"rewards": [0.5, None, -1.5, -1.5], "n_step": [2, 2, 1, 2], "terminateds": [0, 0, 1, 0]}
    observations = {"0": [0], "1": [6], "2": [2], "3": [-2, 0]}
    grid["seen"] = {"obs": observations, "rewards": {"0": [0, 1], "1": [6, 7], "2": [2], "3": [0, 1]}}
    return {
        "title": "A draw",
        "facts": {"rows": 4},
        "notes": [],
        "gap": None,
        "flow": [{"key": "draw", "pieces": [{"piece": "p", "kind": "P", "own": False, "columns": [change]}]}],
        "chunks": chunks,
        "grids": {"m": grid},
    }


def one_step_targets():
    """The draw with value targets of one reward each, and one of two: the last two of the chunk."""
    data = replay_draw()
    grid = data["grids"]["m"]
    grid["columns"] = {"rewards": [1, 1, 1, 1], "value_targets": [2, 2, 2, 2]}
    grid["seen"]["rewards"] = {"0": [0], "1": [6, 7], "2": [2], "3": [0]}
    return data


def broken_batch():
    """The example with memory, of a batch whose states, mask and rewards are not those that were recorded."""
    data = example("lstm")
    (grid,) = data["grids"].values()
    grid["states"] = [[1.5, 2, 3], [0, "zeros", 7], [2, "?", 4], *grid["states"][3:]]
    mask = grid["columns"]["loss_mask"]
    mask[grid["kind"].index(0)] = 1
    data["compared"] = ["default_policy: rewards differ from the recorded ones in 3 of 9 rows. Shape changed rewards."]
    data["notes"] = ["default_policy: 1 cells that are padding or bootstrap rows carry loss. Turn changed loss_mask."]
    piece = data["flow"][-1]["pieces"][0]
    column = {"layout": "tensors", "shape": [9], "dtype": "float32", "bytes": 36, "min": 0.25, "max": 8}
    change = {"name": "rewards", "before": column, "after": column | {"max": 16}, "what": ["50% of the values"]}
    made = {"name": "obs", "before": None, "recorded": column | {"shape": [10]}, "after": column, "what": ["added"]}
    data["flow"][-1]["pieces"][0] = piece | {"own": True, "columns": [change, made]}
    return data


def failed():
    """A pipeline whose second piece raised: there is no train batch."""
    data = replay_draw() | {"grids": {}, "chunks": [], "compared": []}
    data["notes"] = ["turn raised ValueError: no\nSo there is no train batch on this page. Not run: Last."]
    piece = {"piece": "turn", "kind": "Turn", "own": True, "error": "no such thing", "columns": []}
    data["flow"][0]["pieces"].append(piece)
    return data


def hostile():
    """The example of a bug in which every name is markup or a name of JavaScript's own."""
    data = example("bug")
    data["title"] = MARKUP
    data["facts"] = {MARKUP: MARKUP, "__proto__": "</script><script>window.injected=true</script>"}
    data["notes"] = [MARKUP, MARKUP, "<!--<script>"]
    for lane in data["flow"]:
        for piece in lane["pieces"]:
            piece.update(kind=MARKUP, doc=MARKUP)
            for change in piece["columns"]:
                change["name"] = MARKUP
    for chunk in data["chunks"]:
        chunk.update(episode=MARKUP, agent=MARKUP, module="__proto__")
    (grid,) = data["grids"].values()
    names = [MARKUP, "__proto__", "constructor", "toString"]
    grid["columns"] = {names[k] if k < 4 else name: values for k, (name, values) in enumerate(grid["columns"].items())}
    grid["columns"][MARKUP] = [None] * len(grid["kind"])
    grid["others"] = {MARKUP: [1]}
    grid["entries"] = [MARKUP] * 4
    data["grids"] = {"__proto__": grid}
    return data


def not_finite():
    """The example of a bug in which the first step's first entry is not finite in training."""
    data = example("bug")
    (grid,) = data["grids"].values()
    cell = next(cell for cell, pair in enumerate(grid["pairs"]) if pair)
    acting, learning, *_ = grid["pairs"][cell]
    grid["pairs"][cell] = [acting, [None, *learning[1:]], 1e308, [], [], None, None]
    grid["columns"] = {name: values for name, values in grid["columns"].items() if "action_dist_inputs" not in name}
    grid["columns"]["qf_preds"] = [None] * len(grid["kind"])
    data |= {"gap": [1e308, None], "notes": [], "parting": None}
    return data


def filled(data, scripts=True):
    text = TEMPLATE.read_text(encoding="utf-8")
    assert text.count("/*DATA*/null") == 1
    page = text.replace("/*DATA*/null", json.dumps(data, allow_nan=False).replace("<", "\\u003c"))
    if not scripts:
        return page
    click = (HERE / "click_everything.js").read_text(encoding="utf-8")
    return page.replace("<style>", f"<script>{CATCH}</script><style>", 1) + f"<script>{click}</script>"


def clicked(folder, pages, dark):
    """Open pages in frames of one Chromium; return what the clicking script reports of each, by name and width."""
    frames = []
    for name, data in pages.items():
        (folder / f"{name}.html").write_text(filled(data), encoding="utf-8")
        frames += [
            f'<iframe name="{name} {w}" src="{name}.html" style="width:{w}px;height:900px"></iframe>' for w in WIDTHS
        ]
    collect = (
        "const all = {}; onmessage = e => { all[e.data.name] = e.data.report; at.innerText = JSON.stringify(all); };"
    )
    around = f'<!doctype html><meta charset="utf-8"><pre id="at"></pre><script>{collect}</script>{"".join(frames)}'
    (folder / "around.html").write_text(around, encoding="utf-8")
    settings = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"]
    settings += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--user-data-dir={folder / 'profile'}"]
    command = [CHROMIUM, *settings, "--dump-dom", (folder / "around.html").as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
    return json.loads(html.unescape(re.search(r'<pre id="at">(.*?)</pre>', dom, re.DOTALL)[1]))


@pytest.fixture(scope="module", params=[False, True], ids=["light", "dark"])
def reports(request, tmp_path_factory):
    pages = {name: example(name) for name in EXAMPLES} | {"replay": replay_draw(), "hostile": hostile()}
    pages |= {"broken": broken_batch(), "failed": failed(), "finite": not_finite()}
    pages["targets"] = one_step_targets()
    return request.param, clicked(tmp_path_factory.mktemp("pages"), pages, request.param)


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [*EXAMPLES, "replay", "hostile", "broken", "failed", "finite", "targets"])
def test_everything_can_be_clicked(reports, name, width):
    dark, found = reports
    report = found[f"{name} {width}"]
    assert report["problems"] == []
    assert report["actions"] > (10 if name == "failed" else 30)
    assert not report["injected"]
    assert (sum(map(int, re.findall(r"\d+", report["background"])[:3])) < 200) == dark


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_each_cell_names_its_episode_and_step(reports, name):
    data = example(name)
    grids = list(data["grids"].items())
    shown = reports[1][f"{name} 1280"]["cells"]
    assert len(shown) == sum(len(grid["kind"]) for _, grid in grids)
    for place, cell, title, lines, _ in shown:
        module, grid = grids[place]
        kind, step = grid["kind"][cell], grid["at"][cell]
        width = grid["shape"][-1]
        where = f"[b={cell // width}, t={cell % width}]" if len(grid["shape"]) == 2 else f"row {cell}"
        word = ("padding", "step with loss", "bootstrap row", "step without loss")[kind]
        assert title == f"{module + ' ' if len(grids) > 1 else ''}{where}: {word}"
        if kind == 0:
            assert lines == {}
            continue
        chunk = data["chunks"][grid["chunk"][cell]]
        assert lines["episode"] == chunk["episode"]
        assert lines.get("agent") == chunk["agent"]
        assert lines["step"] == f"{chunk['t0'] + step} of the episode, {step} of the chunk"
        for column, values in grid["columns"].items():
            assert float(lines[column].replace(",", "")) == pytest.approx(values[cell], rel=1e-3), column


@needs_chromium
@pytest.mark.slow
def test_the_page_says_where_acting_and_learning_part(reports):
    words = {name: reports[1][f"{name} 1280"]["text"] for name in ("lstm", "bug", "replay")}
    assert "Acting and learning agree" in words["lstm"]
    assert "Acting and learning differ" in words["bug"] and "They part in acting: HalveObservations" in words["bug"]
    assert "Nothing acted for this page" in words["replay"]


@needs_chromium
@pytest.mark.slow
def test_a_drawn_row_names_its_next_observation_its_rewards_and_the_rows_of_the_same_step(reports):
    rows = [lines for *_, lines, _ in reports[1]["replay 1280"]["cells"]]
    steps = ["step 6, 2 steps later", "step 12, 2 steps later", "step 7, 1 step later", "step 8, 2 steps later"]
    assert [lines["next observation"] for lines in rows] == steps
    value = "; then the value of the next observation"
    rewards = [f"rewards of steps 4\u20135{value}", f"rewards of steps 10\u201311{value}", "reward of step 6"]
    assert [lines["rewards add up"] for lines in rows] == [*rewards, f"rewards of steps 6\u20137{value}"]
    assert [lines.get("is seen by") for lines in rows] == ["row 0, row 3", None, "row 2, row 3", "row 2, row 3"]


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_says_what_is_wrong_with_a_batch_that_acting_agrees_with(reports, width):
    report = reports[1][f"broken {width}"]
    text = report["text"]
    head = text[: text.index("Pipelines")]
    assert "Acting and learning agree on what the network gets and gives" in head
    assert "rewards differ from the recorded ones in 3 of 9 rows. Shape changed rewards." in head
    assert "1 cells that are padding or bootstrap rows carry loss" in head
    table = next(table for table in report["tables"] if "recorded [10] float32" in table)
    assert "50% of the values" in table and "8 → 16" in table
    memory = {lines.get("memory") for *_, lines, _ in report["cells"]}
    assert {
        "the row starts from the state recorded after step 2 (norm 1.5), and should start from the state recorded "
        "after step 3",
        "the row starts from zeros (norm 0), and should start from the state recorded after step 7",
        "the row starts from a state that equals no recorded state of this episode (norm 2), and should start from the "
        "state recorded after step 4",
    } < memory
    assert "No step lies here, and yet the cell carries loss." in [remark for *_, remark in report["cells"]]
    assert width == 400 or "≠ state_in: after t=2" in text


@needs_chromium
@pytest.mark.slow
def test_what_is_not_finite_is_a_difference_and_is_not_called_zero(reports):
    text = reports[1]["finite 1280"]["text"]
    head = text[: text.index("Pipelines")]
    assert "Acting and learning differ" in head and "obs[0] is not finite" in head and "e+308" not in text
    assert re.search(r"obs\[0\]\s+\S+\s+not finite\s+≠ not finite", text)
    assert re.search(r"qf_preds\s+not finite", text)


@needs_chromium
@pytest.mark.slow
def test_a_target_of_one_reward_does_not_hide_others(reports):
    rows = [lines["target adds up"] for *_, lines, _ in reports[1]["targets 1280"]["cells"]]
    ends = ["reward of step 4; no later one", "rewards of steps 10\u201311; then the value of the bootstrap row"]
    ends += ["reward of step 6; no later one", "reward of step 6; then the value of the bootstrap row"]
    assert rows == ends


@needs_chromium
@pytest.mark.slow
def test_a_page_without_a_batch_shows_the_piece_that_raised(reports):
    report = reports[1]["failed 1280"]
    assert "Not run: Last." in report["text"] and "raised" in report["text"]
    assert "raised: no such thing" in report["tables"][1]


@needs_chromium
@pytest.mark.slow
def test_markup_is_shown_as_it_is(reports):
    text = reports[1]["hostile 1280"]["text"]
    assert MARKUP in text and "<!--<script>" in text and "</script><script>" in text and "__proto__" in text


def test_nothing_is_fetched():
    text = TEMPLATE.read_text(encoding="utf-8")
    assert set(re.findall(r"\w+://[^\s\"'`<]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|@import|url\((?!#)", text
    )
    assert len(text.encode()) < 70_000


def luminance(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(theme):
    rules = re.findall(r":root \{(.*?)\}", TEMPLATE.read_text(encoding="utf-8"), re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#\w+);", rules[theme]))
    for text in ("fg", "soft", "accent", "own", "good", "bad"):
        for below in ("bg", "card", "raise"):
            light, dark = sorted((luminance(colours[text]), luminance(colours[below])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, below)

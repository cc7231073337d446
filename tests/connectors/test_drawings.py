"""Still drawings of episodes and train batches: each cell says which step it is, on white and on black."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.replay import NStepReturns
from epibatch.core.errors import PipelineError
from epibatch.episodes.replay import EpisodeReplayBuffer
from fixture_pieces import Lab

SVG = "{http://www.w3.org/2000/svg}"


def inspection_of(*chunks, sequence_end="pad"):
    pipeline = LearnerConnectorPipeline(connectors=Lab.defaults("learner", ppo=True))
    return pipeline.inspect(chunks, Lab.module(2, 4, sequence_end=sequence_end))


def chunks():
    return [
        Lab.episode("a", 9, state=2),
        Lab.episode("a", 4, t_started=9, lookback=2, state=2, end="terminated"),
        Lab.episode("b", 3, state=2, offset=100, end="truncated"),
    ]


def cells_of(drawing):
    """(x, y, text in it, text about it, filled, dashed) of each cell outside of the legend."""
    cells = []
    for group in ElementTree.fromstring(drawing).iter(f"{SVG}g"):
        about, rect, text = group.find(f"{SVG}title"), group.find(f"{SVG}rect"), group.find(f"{SVG}text")
        if about.text:
            x, y = (float(rect.get(name)) for name in "xy")
            dashed = rect.get("stroke-dasharray") is not None
            cells.append((x, y, text.text or "", about.text, rect.get("fill") != "none", dashed))
    return cells


@pytest.mark.parametrize("sequence_end", ["pad", "overlap"])
def test_a_drawn_batch_shows_the_step_of_each_cell(sequence_end):
    inspection = inspection_of(*chunks(), sequence_end=sequence_end)
    grid, described = inspection.data["grids"]["default_policy"], inspection.data["chunks"]
    cells = cells_of(inspection.svg("batch"))
    assert len(cells) == len(grid["kind"]) and len({(x, y) for x, y, *_ in cells}) == len(cells)
    for cell, (x, y, text, about, filled, dashed) in enumerate(cells):
        kind, chunk, at = (grid[name][cell] for name in ("kind", "chunk", "at"))
        b, t = divmod(cell, 4)
        assert (x, y) == (cells[0][0] + t * (cells[1][0] - cells[0][0]), cells[4 * b][1])
        assert (filled, dashed) == (kind == 1, kind == 2)
        step = "" if kind == 0 else str(described[chunk]["t0"] + at)
        words = ["padding", "step with loss", "bootstrap row", "step without loss"][kind]
        owner = "" if kind == 0 else f"step {step} of episode {described[chunk]['episode']}, "
        assert text == step and about == f"[b={b}, t={t}]: {owner}{words}"
    assert ("step without loss" in inspection.svg("batch")) == (sequence_end == "overlap")


def test_drawn_episodes_show_lookback_bootstrap_rows_ends_and_where_rows_begin():
    drawing = inspection_of(*chunks()).svg("episodes")
    lines = {}
    for x, y, text, about, filled, dashed in cells_of(drawing):
        lines.setdefault(y, []).append((x, text, about.split(" of ")[1], filled, dashed))
    first, second, third = lines.values()
    assert [cell[1] for cell in first] == [str(t) for t in range(10)]
    assert [cell[1] for cell in second] == [str(t) for t in range(7, 14)]
    assert [cell[1] for cell in third] == [str(t) for t in range(4)]
    assert [cell[3] for cell in second] == [False, False, True, True, True, True, False]
    assert [line[-1][4] for line in lines.values()] == [True] * 3
    assert second[0][0] == first[7][0], "steps of one episode lie below each other"
    texts = [text.text for text in ElementTree.fromstring(drawing).iter(f"{SVG}text")]
    assert [text for text in texts if text in ("■", "▶", "⋯")] == ["⋯", "■", "▶"]
    assert [text for text in texts if text.startswith("b=")] == [f"b={b}" for b in range(6)]


def test_drawn_transitions():
    buffer = EpisodeReplayBuffer(capacity=50, seed=0)
    buffer.add([Lab.episode("e", 6, end="terminated")])
    pipeline = LearnerConnectorPipeline(connectors=[NStepReturns(n_step=2), *Lab.defaults("learner")])
    inspection = pipeline.inspect(buffer.sample(30), Lab.module())
    starts = [str(chunk["t0"]) for chunk in inspection.data["chunks"]]
    cells = cells_of(inspection.svg("batch"))
    assert [cell[2] for cell in cells] == starts and len({cell[1] for cell in cells}) == 2
    assert sum(filled for *_, filled, _ in cells_of(inspection.svg("episodes"))) == 30


def test_names_are_text_and_other_parts_are_refused():
    inspection = inspection_of(Lab.episode("<&\x00>", 3, state=2))
    for part in ("episodes", "batch"):
        assert any("<&\ufffd>" in about for _, _, _, about, *_ in cells_of(inspection.svg(part)))
    for arguments in (("pipelines",), ("batch", "other")):
        with pytest.raises(PipelineError, match=r"Inspection\.svg"):
            inspection.svg(*arguments)


def luminance(colour):
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_texts_and_lines_are_seen_on_white_and_on_black():
    drawing = inspection_of(*(Lab.episode(f"e{i}", 2, state=2, offset=i) for i in range(6))).svg("batch")
    texts = set(re.findall(r'<text [^>]*fill="(#\w+)"', drawing))
    fills = set(re.findall(r'<rect [^>]*fill="(#\w+)"', drawing))
    lines = set(re.findall(r'stroke="(#\w+)"', drawing))
    assert len(fills) == 6
    for colour in texts - {"#ffffff"}:
        light = luminance(colour)
        assert min(1.05 / (light + 0.05), (light + 0.05) / (luminance("#0d1117") + 0.05)) >= 4.0
    assert all(1.05 / (luminance(colour) + 0.05) >= 4.5 for colour in fills), "white numbers in them"
    for colour in lines:
        light = luminance(colour)
        assert min(1.05 / (light + 0.05), (light + 0.05) / (luminance("#0d1117") + 0.05)) >= 3.0


def test_a_notebook_shows_the_page():
    frame = inspection_of(*chunks())._repr_html_()
    assert frame.startswith("<iframe") and frame.count("<") == 2 and "epibatch inspect" in frame

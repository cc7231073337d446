"""`check_connector` passes good pieces, refuses what cannot be checked, and reports what it did."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors import ConnectorV2
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.common import FrameStacking
from epibatch.connectors.env_to_module import AgentIndicator, MeanStdFilter
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.errors import PieceCheckError, PieceError, UnknownNameError
from epibatch.testing import CheckReport, CheckResult, check_connector, contract_checks

ONE_CHANNEL = gym.spaces.Box(-1, 1, (4, 1))
SEEN = gym.spaces.Box(-1, 1, (3,))
TORQUE = gym.spaces.Box(-2, 2, (2,))


class Penalty(ConnectorV2):
    """Takes an amount off every reward."""

    pipelines = ("learner",)
    mutates_episodes = True

    def __init__(self, input_observation_space=None, input_action_space=None, *, amount=0.5):
        super().__init__(input_observation_space, input_action_space)
        self.amount = amount

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            episode.set_rewards(new_data=episode.get_rewards() - np.float32(self.amount))
        return batch


ONE_PIECE = Penalty()


def test_each_side_of_a_piece_is_checked():
    only = {"only": ["chunks", "data_form"], "spaces": ONE_CHANNEL}
    report = check_connector(FrameStacking, **only)
    assert {one.side for one in report} == {"", "env_to_module", "learner"}
    assert [one.side for one in report if one.check == "chunks"] == ["env_to_module", "learner"]
    assert [one.side for one in report if one.check == "data_form"] == [""]  # one side's answer is that of all
    assert {one.side for one in check_connector(FrameStacking, sides="learner", **only)} == {"", "learner"}
    made = FrameStacking(as_learner_connector=True)
    assert {one.side for one in check_connector(made, **only)} == {"", "learner"}


def test_a_piece_of_several_agents():
    both = dict.fromkeys(("left", "right"), SEEN), dict.fromkeys(("left", "right"), TORQUE)
    report = check_connector(AgentIndicator(agent_ids=["left", "right"]), spaces=both)
    assert {"runs", "resume", "observation_space", "plain_neighbours", "chunks"} <= set(report.passed)
    with pytest.raises(PieceCheckError, match="multi-agent episodes"):
        check_connector(AgentIndicator(agent_ids=["left", "right"]))


class Anywhere(Penalty):
    pipelines = ()


def test_every_check_is_reported_once(monkeypatch):
    report = check_connector(Penalty)
    expected = [name for name, check in contract_checks().items() if "learner" in check.sides]
    assert [one.check for one in report] == expected
    assert {one.check: one.why for one in report if one.outcome == "does not apply"}["freeze"].startswith("it keeps")
    assert [one.check for one in check_connector(Penalty, only="runs")] == ["runs"]
    assert [one.check for one in check_connector(Penalty, only=["runs", "data_form"])] == ["data_form", "runs"]
    (skipped,) = check_connector(Penalty, only="chunks", skip={"chunks": "because"})
    assert (skipped.check, skipped.outcome, skipped.why) == ("chunks", "skipped", "because")
    piece = MeanStdFilter(SEEN)
    check_connector(piece, only="runs")
    assert piece.get_state()["since"]["count"] == 0, "another piece is made for the checks"
    monkeypatch.setattr(Penalty, "__module__", "__main__")
    (found,) = check_connector(Penalty, only="data_form")
    assert found.why == "the class is defined in the running script, which no file can name"


class WritesInSilence(Penalty):
    mutates_episodes = False

    def __init__(self, **kwargs):
        super().__init__()


def test_the_error_lists_every_fault_and_has_the_report():
    with pytest.raises(PieceCheckError) as caught:
        check_connector(WritesInSilence)
    message, report = str(caught.value), caught.value.report
    assert isinstance(caught.value, AssertionError)
    assert report.failed == ["unknown_keywords", "episodes_unchanged"] and not report.ok
    assert message.startswith("check_connector(WritesInSilence)\n  expected: a piece that keeps the contract")
    assert f"found:    2 of {len(report)} checks failed" in message
    assert "- unknown_keywords: WritesInSilence(...)\n        expected: an error" in message
    assert "- episodes_unchanged (learner): episode 0\n        expected: as it was before the call" in message
    assert "values differ, first at (0,): -0.25 expected, -0.75 found" in message
    assert "mutates_episodes = True" in message


class Breaks(Penalty):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return None


def test_a_piece_that_does_not_run_is_not_tried_further():
    with pytest.raises(PieceCheckError, match="PieceOutputError") as caught:
        check_connector(Breaks)
    report = caught.value.report
    assert report.failed == ["runs"]
    assert {one.why for one in report if one.outcome == "not run"} == {"runs failed"}
    assert "data_form" in report.passed


@pytest.mark.parametrize(
    ("piece", "how", "error", "message"),
    [
        (lambda: ONE_PIECE, {}, PieceError, "the same piece twice"),
        (dict, {}, PieceError, "a function that returns a dict"),
        (3, {}, PieceError, "found:    int 3"),
        (ConnectorV2, {}, TypeError, "abstract"),
        (Anywhere, {}, PieceError, "none, and the piece does not say one either"),
        (MeanStdFilter, {"sides": "lerner"}, PieceError, "'lerner'.*\n.*did you mean 'learner'"),
        (MeanStdFilter, {"pipeline": "learner"}, PieceError, "write sides='learner'"),
        (MeanStdFilter, {"observation_space": SEEN}, PieceError, "write spaces=Box"),
        (MeanStdFilter, {"side": "learner"}, PieceError, "did you mean 'sides'"),
        (MeanStdFilter, {"spaces": (SEEN, 3)}, PieceError, "observation space, action space"),
        (MeanStdFilter, {"only": "chunk"}, UnknownNameError, "did you mean 'chunks'"),
        (MeanStdFilter, {"skip": ["chunks"]}, PieceError, "each with the reason"),
        (MeanStdFilter, {"skip": {"chunks": ""}}, PieceError, "each with the reason"),
    ],
)
def test_what_cannot_be_checked(piece, how, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        check_connector(piece, **how)


class Scale(ColumnTransform):
    """Runs on the learner's side only, and is asked about both."""

    columns = "rewards"

    def transform(self, x):
        return x / 2


def test_what_one_side_could_not_answer_the_next_one_does():
    with pytest.raises(PieceCheckError) as caught:
        check_connector(Scale, sides=["env_to_module", "learner"], only=["runs", "row_by_row"])
    assert [(one.check, one.side, one.outcome) for one in caught.value.report] == [
        ("runs", "env_to_module", "failed"),
        ("runs", "learner", "passed"),
        ("row_by_row", "", "passed"),
    ]


@pytest.mark.parametrize(
    ("columns", "own", "sides"),
    [
        ("rewards", {}, {"learner"}),
        ("obs", {}, {"env_to_module", "learner"}),
        ("rewards", {"pipelines": ("learner", "env_to_module")}, {"env_to_module", "learner"}),
    ],
)
def test_a_transform_of_what_there_is_in_training_only_is_tried_there(columns, own, sides):
    def transform(self, x):
        return 2 * x

    piece = type("Twice", (ColumnTransform,), {"columns": columns, "transform": transform, **own})
    assert {one.side for one in check_connector(piece, only="declarations")} == sides


class ReadsInfos(ConnectorV2):
    """Counts on every step's info."""

    pipelines = ("env_to_module", "learner")

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            steps = [info["step"] for info in episode.get_infos()]
            if not all(b - a == 1 for a, b in pairwise(steps)) or steps[0] != episode.t_started:
                raise ValueError(f"infos {steps} from t={episode.t_started} on")
        return batch


@pytest.mark.parametrize("side", ["env_to_module", "learner"])
@pytest.mark.parametrize("agents", [0, 2])
def test_every_step_has_the_same_info_however_episodes_are_handed_over(side, agents):
    one = (SEEN, gym.spaces.Discrete(2))
    spaces = tuple({f"agent_{i}": own for i in range(agents)} for own in one) if agents else one
    view = {"views": {"s": View("infos/step", 0)}, "as_learner_connector": side == "learner"}
    for piece in (ReadsInfos, lambda: TrajectoryViews(**view)):
        report = check_connector(piece, spaces=spaces, sides=side, only=["runs", "vector_episodes", "chunks", "reads"])
        assert "runs" in report.passed and report.ok, str(report)


# ------------------------------------------------------------------------------------ reports and checks

FAULT = PieceCheckError("Clip.lookback", expected="1", found="0,\n  really", do="lookback = 1")
REPORT = CheckReport(
    "Clip",
    (
        CheckResult("data_form", "", "passed"),
        CheckResult("lookback", "learner", "failed", faults=(FAULT, FAULT)),
        CheckResult("lookback", "env_to_module", "passed"),
        CheckResult("chunks", "learner", "skipped", "because"),
        CheckResult("inverse", "", "does not apply", "it has no inverse"),
        CheckResult("freeze", "learner", "not run", "runs failed"),
    ),
)


def test_it_prints_as_a_table():
    assert str(REPORT).splitlines() == [
        "Clip: 2 passed, 1 failed, 1 skipped, 1 does not apply, 1 not run",
        "check      side           outcome  why",
        "data_form  all            passed",
        "lookback   learner        failed   Clip.lookback: 0, really; Clip.lookback: 0, really",
        "lookback   env_to_module  passed",
        "chunks     learner        skipped  because",
        "freeze     learner        not run  runs failed",
    ]
    assert "inverse    all            does not apply  it has no inverse" in REPORT.table(every=True).splitlines()
    assert (REPORT.passed, REPORT.failed, REPORT.names("skipped")) == (
        ["data_form", "lookback"],
        ["lookback"],
        ["chunks"],
    )
    assert not REPORT.ok and len(REPORT) == 6 and CheckReport("Clip", REPORT.results[:1]).ok
    assert REPORT.rows()[3] == {"check": "chunks", "side": "learner", "outcome": "skipped", "why": "because"}
    assert str(CheckReport("Clip", ())).startswith("Clip: no checks")
    text = (
        "- lookback (learner): Clip.lookback\n    expected: 1\n    found:    0,\n    really\n    do:       lookback = 1"
    )
    assert REPORT.faults_text() == f"{text}\n{text}"
    assert CheckReport("Clip", REPORT.results[:1]).faults_text() == ""


SIDES = ("env_to_module", "module_to_env", "learner")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "contract-checks.md"


def test_the_page_has_every_check_in_order():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [
        (name, "all" if check.sides == SIDES else ", ".join(f"`{side}`" for side in check.sides), check.sentence)
        for name, check in contract_checks().items()
    ]
    names = list(contract_checks())
    for name, check in contract_checks().items():
        assert re.fullmatch(r"[a-z_]+", name) and re.fullmatch(r"[A-Z`][^\n|]+\.", check.sentence)
        assert check.sides and set(check.sides) <= set(SIDES)
        assert set(check.after) <= set(names[: names.index(name)]), name

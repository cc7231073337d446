from __future__ import annotations

import sys

import numpy as np
import pytest

from epibatch.algorithms.playing import VideoWriter
from epibatch.core.errors import ConfigError, NotAvailableError, RunnerError


def grey(level, shape=(48, 64)):
    return np.full((*shape, 3), level, np.uint8)


@pytest.mark.parametrize("shape", [(48, 64), (47, 63)])
def test_frames_come_back(tmp_path, read_video, shape):
    levels = [10, 60, 120, 180, 240]
    writer = VideoWriter(tmp_path / "new" / "out.mp4", fps=20)
    for level in levels:
        writer.add(grey(level, shape))
    writer.close()
    writer.close()
    fps, frames = read_video(tmp_path / "new" / "out.mp4")
    assert (fps, frames.shape, writer.count) == (20, (5, 48, 64, 3), 5)
    for level, frame in zip(levels, frames):
        assert abs(float(frame[: shape[0] - 1, : shape[1] - 1].mean()) - level) < 4  # lossy


def test_a_file_that_is_there_is_replaced(tmp_path, read_video):
    for count in (3, 2):
        writer = VideoWriter(tmp_path / "out.mp4", fps=10)
        for _ in range(count):
            writer.add(grey(9))
        writer.close()
    assert len(read_video(tmp_path / "out.mp4")[1]) == 2


def test_no_frames_no_file(tmp_path):
    VideoWriter(tmp_path / "out.mp4", fps=10).close()
    assert list(tmp_path.iterdir()) == []


def test_other_endings(tmp_path):
    with pytest.raises(ConfigError, match=r"ends in \.mp4"):
        VideoWriter(tmp_path / "out.gif", fps=10)


@pytest.mark.parametrize("frame", [None, np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), [[[0, 0, 0]]]])
def test_what_is_no_frame(tmp_path, frame):
    writer = VideoWriter(tmp_path / "out.mp4", fps=10)
    with pytest.raises(RunnerError, match=r"frame 0 of the video"):
        writer.add(frame)


def test_frames_of_two_sizes(tmp_path):
    writer = VideoWriter(tmp_path / "out.mp4", fps=10)
    writer.add(grey(1))
    with pytest.raises(RunnerError, match=r"(?s)frame 1.*\(48, 64, 3\).*\(48, 66, 3\)"):
        writer.add(grey(1, (48, 66)))
    writer.close()


def test_without_the_extra(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "moviepy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "moviepy", None)
    with pytest.raises(NotAvailableError, match=r"pip install 'epibatch\[video\]'"):
        VideoWriter(tmp_path / "out.mp4", fps=10)

"""A data set of 1 GB of small rows is opened at once, and little of it is in memory."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from epibatch.episodes import SingleAgentEpisode
from epibatch.offline import write_episodes

EPISODES, STEPS = 125_000, 199
BATCH = """
import gc, sys, time
import numpy as np
from epibatch.connectors.learner import AddNextObservationsFromEpisodesToTrainBatch, default_pipeline
from epibatch.episodes import SingleAgentEpisode
from epibatch.offline import read_episodes

def megabytes(kind):
    return int(next(line for line in open("/proc/self/status") if line.startswith(kind)).split()[1]) / 1024

pipeline = default_pipeline(connectors=[AddNextObservationsFromEpisodesToTrainBatch()], advantages=False)
small = read_episodes([SingleAgentEpisode(observations=np.zeros((3, 4), np.float32), actions=[0, 1],
                                          rewards=[1.0, 1.0], len_lookback_buffer=0)])
pipeline(rl_module=None, batch={}, episodes=small.sample(256))
gc.collect()
before, own, start = megabytes("VmRSS"), megabytes("RssAnon"), time.process_time()
data = read_episodes(sys.argv[1])
batch = pipeline(rl_module=None, batch={}, episodes=data.sample(256))
seconds, held = time.process_time() - start, megabytes("VmRSS") - before
for _ in range(20):
    pipeline(rl_module=None, batch={}, episodes=data.sample(256))
assert len(data.split(0.9, seed=0)[0]) and data.returns.shape == (len(data),) and len(data[len(data) - 1]) == 199
print(len(batch["obs"]), seconds, held, megabytes("RssAnon") - own)
"""


def large_folder(folder):
    """Write a small data set, and make it large: files with holes, and a commit that says so."""
    rows = np.zeros((STEPS + 1, 4), np.float32)
    episode = SingleAgentEpisode(
        id_="x" * 32, observations=rows, actions=np.zeros(STEPS, int), rewards=np.ones(STEPS), terminated=True,
        len_lookback_buffer=0, extra_model_outputs={"logits": np.zeros((STEPS, 2), np.float32)},
    )  # fmt: skip
    write_episodes([episode], folder)
    for path in folder.glob("*.bin"):
        if path.name != "parts.bin":
            with path.open("r+b") as file:
                file.truncate(path.stat().st_size * EPISODES)
    line = (folder / "parts.jsonl").read_bytes()
    (folder / "parts.jsonl").write_bytes(line * EPISODES)
    table = np.tile(np.fromfile(folder / "parts.bin", np.int64), (EPISODES, 1))
    table[:, 7] = len(line) * np.arange(1, EPISODES + 1)
    table.tofile(folder / "parts.bin")
    facts = json.loads((folder / "commits.jsonl").read_text())
    del facts["sum"]
    facts.update(rows=EPISODES * (STEPS + 1), parts=EPISODES, text=EPISODES * len(line))
    text = json.dumps(facts, separators=(",", ":"))[:-1]
    total = hashlib.sha256(text.encode()).hexdigest()
    (folder / "commits.jsonl").write_text(f'{text},"sum":"{total}"}}\n')
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_first_batch_of_a_gigabyte_comes_at_once_and_takes_little_memory(tmp_path):
    assert large_folder(tmp_path / "data") > 1e9
    done = subprocess.run(
        [sys.executable, "-c", BATCH, str(tmp_path / "data")], check=True, capture_output=True, text=True
    )
    count, seconds, held, own = map(float, done.stdout.split())
    assert count == 256
    assert seconds < 1  # of the processor, whatever else runs
    assert held < 200  # pages of the files that the system maps and takes back at will included
    assert own < 200

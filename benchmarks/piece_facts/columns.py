"""Pieces about columns of any kind."""

from benchmarks.piece_facts.facts import Bare, Facts

NAMES = "it moves columns and computes nothing"
VIEW = "it makes views of rows, however many there are, and copies nothing"


def joined(obs):
    """`np.concatenate` of the parts of `obs`, each made vectors."""
    import numpy as np

    return np.concatenate([obs["position"], obs["camera"].reshape(len(obs["camera"]), -1)], 1, dtype=np.float32)


def hashed(obs):
    """SplitMix64 of all words of the rows at once, and of their sum."""
    import numpy as np

    def mixed(words):
        words ^= words >> np.uint64(30)
        words *= np.uint64(0xBF58476D1CE4E5B9)
        words ^= words >> np.uint64(27)
        words *= np.uint64(0x94D049BB133111EB)
        words ^= words >> np.uint64(31)
        return words

    words = (obs + np.float32(0)).view(np.uint64)
    places = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return mixed(mixed(words + places).sum(1, dtype=np.uint64)).view(np.int64)


FACTS: dict[str, Facts] = {
    "cast_columns": Facts(
        Bare("obs.astype(np.float64)", {"columns": "obs", "dtype": "float64"}),
    ),
    "check_finite": Facts(Bare("obs if np.isfinite(obs).all() else None", {"columns": "obs"})),
    "concatenate_columns": Facts(
        Bare(joined, {"columns": ["obs/position", "obs/camera"], "to": "obs"}, observations="dict"),
    ),
    "drop_columns": Facts(NAMES),
    "hash_columns": Facts(Bare(hashed, {"columns": "obs"}, gives="hash")),
    "permute_columns": Facts(VIEW),
    "remove_empty_parts": Facts(NAMES),
    "rename_columns": Facts(NAMES),
    "reshape_columns": Facts(VIEW),
    "select_columns": Facts(NAMES),
    "split_column": Facts(VIEW),
    "squeeze_columns": Facts(VIEW),
    "unsqueeze_columns": Facts(VIEW),
}

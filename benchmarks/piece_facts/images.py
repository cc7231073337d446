"""Pieces about images."""

from benchmarks.piece_facts.facts import Bare, Facts

LUMA = "np.rint(obs @ np.float32([0.299, 0.587, 0.114])).astype(np.uint8)[..., None]"


def parts(obs):
    """A part of each image, at a place that is drawn, by a loop."""
    import numpy as np

    places = np.random.default_rng(0).integers(0, 5, (len(obs), 2)).tolist()
    return np.stack([image[y : y + 12, x : x + 12] for image, (y, x) in zip(obs, places)])


def means(obs):
    """Images as floats, reshaped so that each new pixel's old ones are on axes of their own, and their mean."""
    import numpy as np

    return np.rint(obs.astype(np.float32).reshape(-1, 8, 2, 8, 2, 3).mean((2, 4))).astype(np.uint8)


FACTS: dict[str, Facts] = {
    "center_crop": Facts(
        Bare("np.ascontiguousarray(obs[:, 2:14, 3:13])", {"height": 12, "width": 10}, observations="image"),
    ),
    "crop": Facts(
        Bare("np.ascontiguousarray(obs[:, 1:13, :10])", {"height": 12, "width": 10, "top": 1}, observations="image"),
    ),
    "grayscale": Facts(Bare(LUMA, close=1.0, observations="image")),
    "random_crop": Facts(Bare(parts, {"height": 12, "width": 12}, drawn=True, observations="image")),
    "resize": Facts(Bare(means, {"height": 8, "width": 8}, close=1.0, observations="image")),
    "to_chw_float": Facts(
        Bare("np.ascontiguousarray(np.moveaxis(obs, -1, 1)) / np.float32(255)", observations="image"),
    ),
}

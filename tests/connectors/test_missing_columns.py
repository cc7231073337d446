"""Lookups of columns that are not there are told from others."""

from __future__ import annotations

import pytest

from epibatch.connectors.missing_columns import blame_missing_column
from epibatch.connectors.views import View
from epibatch.core.errors import UnknownNameError


class Module:
    view_requirements = {"before": View("rewards", -1, train=False)}  # noqa: RUF012


def blamed(look, batch, module=None, *, training=True):
    try:
        look(batch)
    except KeyError as error:
        blame_missing_column(error, module or Module(), batch, training=training)
        return None


BATCH = {"obs": 1, "rewards": 2}


@pytest.mark.parametrize(
    ("training", "name", "texts"),
    [
        (
            True,
            "reward",
            ["train batch, which are obs, rewards", "'reward' is not", "do:       did you mean 'rewards'?"],
        ),
        (
            True,
            "before",
            ["the update of Module", "'before', its view of 'rewards' with shift=-1, is not", "train=False"],
        ),
        (
            False,
            "t",
            ["acting, of Module", "batch to act on, which are", "'t' is not among them", "_forward_train only"],
        ),
    ],
)
def test_a_column_that_is_not_there(training, name, texts):
    with pytest.raises(UnknownNameError) as caught:
        blamed(lambda batch: batch[name], dict(BATCH), training=training)
    assert [text for text in texts if text not in str(caught.value)] == []
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("training", [False, True])
def test_views_that_a_module_was_given_after_its_pipelines_say_where_to_declare_them(training):
    module = Module()
    module.view_requirements = {"late": View("rewards", -1)}  # as setup() might
    with pytest.raises(UnknownNameError, match=r"declare views on the class[\s\S]*algo\.add_view\(name, view\)"):
        blamed(lambda batch: batch["late"], dict(BATCH), module, training=training)


def test_the_part_of_one_of_several_modules():
    modules = {"a": Module(), "b": Module()}
    with pytest.raises(UnknownNameError, match="which are obs\\n"):
        blamed(lambda batch: (lambda own: own["x"])(batch["b"]), {"a": dict(BATCH), "b": {"obs": 1}}, modules)


def test_other_lookups_stay_what_they_are():
    table = {"a": 1}
    assert blamed(lambda batch: (lambda: table["b"])(), dict(BATCH)) is None
    assert blamed(lambda batch: batch[3], dict(BATCH)) is None

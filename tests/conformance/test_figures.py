"""The figures of a long run on the page: what they say, and that the page holds a whole run."""

from __future__ import annotations

from oracle.figures import END, PAGE, START, put_into, text_of, together

FIGURES = {
    "cases": {"tests/conformance/a/test_x.py::test_p[1]": 1000, "tests/conformance/a/test_x.py::test_p[2]": 1200},
    "differences": {"O19": 3, "arrays": 2500},
    "failed": [],
}


def test_text():
    text = text_of(FIGURES)
    assert "2,200 random cases of 2\nproperties, at least 1,000 of each; 0 unexplained mismatches." in text
    assert "| `a/test_x.py::test_p` | 2 | 2,200 |" in text
    assert "| arrays | 2,500 |" in text
    assert "1 tests failed" in text_of({**FIGURES, "failed": ["x"]})


def test_runs_are_put_together():
    again = {"cases": {"tests/conformance/a/test_x.py::test_p[1]": 7}, "differences": {"O19": 2}, "failed": ["y"]}
    whole = together([FIGURES, again])
    assert list(whole["cases"].values()) == [7, 1200]
    assert whole["differences"] == {"O19": 5, "arrays": 2500}
    assert whole["failed"] == ["y"]
    mended = {"cases": {"y": 1000}, "differences": {}, "failed": []}
    assert together([FIGURES, again, mended])["failed"] == [], "a property that ran again without a mismatch"
    assert together([mended, again])["failed"] == ["y"]


def test_only_what_is_between_the_marks_changes():
    page = f"above\n{START}old\n{END}below\n"
    new = put_into(page, FIGURES)
    assert new.startswith(f"above\n{START}The last long run")
    assert new.endswith(f"{END}below\n")
    assert put_into(new, FIGURES) == new
    assert "old" not in new


def test_the_page_has_a_place_for_them():
    page = PAGE.read_text(encoding="utf-8")
    assert put_into(put_into(page, FIGURES), FIGURES) == put_into(page, FIGURES) != page

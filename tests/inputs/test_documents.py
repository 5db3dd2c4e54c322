import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anisoscope.errors import UsageError
from anisoscope.inputs.documents import RULES, choose_rule, is_title, split, split_rows

WIKI = """
 = First article =

 Some text .

 = = Section = =

 More text .
 = not a heading , for it follows text =

 = Second =

 x = y =
"""


def documents(text, rule):
    return list(split(text.splitlines(keepends=True), rule))


def test_wikitext_splits_at_level_one_headings_alone():
    first, second = documents(WIKI, "wikitext")
    assert first.startswith("= First article =")
    assert "= = Section = =" in first
    assert "not a heading" in first
    assert second == "= Second =\n\n x = y ="


def test_text_before_the_first_heading_is_kept():
    assert documents("Preface\n\n = One =\n\ntext", "wikitext") == ["Preface", "= One =\n\ntext"]


@pytest.mark.parametrize("line", [" = A = ", "= A =", " = <unk> <unk> = \n", " = 2011 – 12 season = ", " = E = mc2 = "])
def test_titles(line):
    assert is_title(line)


@pytest.mark.parametrize(
    "line", [" = = A = = ", " = = = A = = = ", "a = b =", "= a = b", "==", "= =", "=", "", "# A", "=A="]
)
def test_lines_that_are_no_titles(line):
    assert not is_title(line)


def test_blank_and_lines_and_file():
    text = "a\nb\n\n\n \nc\n"
    assert documents(text, "blank") == ["a\nb", "c"]
    assert documents(text, "lines") == ["a", "b", "c"]
    assert documents(text, "file") == ["a\nb\n\n\n \nc"]


def test_paragraphs_are_gathered_until_they_hold_enough():
    blocks = ["Title", "x" * 600, "y" * 600, "z" * 1000, "end"]
    assert documents("\n\n".join(blocks), "paragraphs") == ["\n\n".join(blocks[:3]), blocks[3], blocks[4]]


def test_windows_line_ends_split_alike():
    text = "a\n\nb\nc\n"
    assert documents(text.replace("\n", "\r\n"), "blank") == documents(text, "blank")


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "auto"])
@pytest.mark.parametrize(
    ("text", "expected"), [("", []), (" \n\n\t\n", []), ("one line", ["one line"]), ("one\n", ["one"])]
)
def test_empty_and_one_line_texts(rule, text, expected):
    assert documents(text, rule) == expected


@given(text=st.text(alphabet="ab= \n", max_size=80), rule=st.sampled_from([rule for rule in RULES if rule != "auto"]))
def test_no_rule_loses_or_invents_a_word(text, rule):
    assert " ".join(documents(text, rule)).split() == text.split()


@pytest.mark.parametrize(
    ("head", "files", "rule"),
    [
        ("\n = Title = \n\n text", 1, "wikitext"),
        ("\n = Title = \n\n text", 500, "wikitext"),
        ("One paragraph.\n\nAnother.", 1, "paragraphs"),
        ("One paragraph.\n\nAnother.", 31, "paragraphs"),
        ("One paragraph.\n\nAnother.", 32, "file"),
        ("One paragraph.\r\n\r\nAnother.", 1, "paragraphs"),
        ("one sentence\nanother\n\n\n", 1, "lines"),
        ("one sentence", 1, "lines"),
        ("", 1, "lines"),
    ],
)
def test_what_auto_chooses(head, files, rule):
    assert choose_rule(head, files=files) == rule


def test_rows_are_documents_unless_they_are_lines_of_articles():
    rows = ["", " = One = \n", "", " text \n", " = = Part = = \n", "", " = Two = \n", "", " more \n"]
    assert list(split_rows(rows, "auto")) == ["= One = \n\n text \n = = Part = =", "= Two = \n\n more"]
    assert list(split_rows(rows, "lines")) == rows
    assert list(split_rows(["a", "", "b\n\nc"], "auto")) == ["a", "", "b\n\nc"]
    assert list(split_rows([], "auto")) == []


def test_an_unknown_rule_is_refused():
    with pytest.raises(UsageError, match="auto, file, lines"):
        list(split(["a"], "sentences"))


DATA = Path(os.environ.get("ANISOSCOPE_DATA", ""), "wikitext", "valid.txt")


@pytest.mark.skipif(not DATA.is_file(), reason="set ANISOSCOPE_DATA to a folder with wikitext/valid.txt")
def test_the_validation_split_of_wikitext_has_sixty_articles():
    text = DATA.read_text(encoding="utf-8")
    assert choose_rule(text[:1000], files=1) == "wikitext"
    articles = documents(text, "wikitext")
    assert len(articles) == 60
    assert articles[0].startswith("= Homarus gammarus =")
    assert " ".join(articles).split() == text.split()


MIB = 1 << 20


@pytest.mark.parametrize(
    "text",
    [
        "a" * MIB,
        "word " * (MIB // 5),
        "= a" + " =" * (MIB // 2),
        "= a" + (" =" + " " * 50) * (MIB // 52) + "x",
        " " * MIB + "x",
        "a\n" + " " * MIB + "b",
        "a" + ("\n" + " " * 100 + "b") * (MIB // 102),
        "= " * (MIB // 2),
    ],
    ids=["one word", "one line", "equals", "equals and spaces", "indented", "spaces", "indented lines", "headings"],
)
def test_a_long_text_is_judged_and_split_in_linear_time(text):
    started = time.process_time()
    rule = choose_rule(text, files=1)
    for name in {rule, "wikitext", "paragraphs"}:
        documents(text, name)
    list(split_rows([text], "auto"))
    assert time.process_time() - started < 3  # a quadratic pattern takes minutes


@given(text=st.text(alphabet="a= \n\r\t", max_size=60))
def test_paragraphs_are_chosen_where_an_empty_line_stands_between_lines_of_text(text):
    lines = [bool(line.strip()) for line in text.split("\n")]
    between = any(not full and any(lines[:i]) and any(lines[i + 1 :]) for i, full in enumerate(lines))
    rule = choose_rule(text, files=1)
    assert rule == "wikitext" or (rule == "paragraphs") == between

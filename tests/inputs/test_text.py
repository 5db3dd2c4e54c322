import csv
import gzip
import io
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.sources import Document, open_places, open_source
from anisoscope.runs.job import Job

TEXTS = ["First text.", "Second,\nof two lines.", 'Third: "quoted", größer.']


def open_text(where, **options):
    return open_source(where, "text", **options)


def pairs(source):
    return [(document.key, document.text) for document in source]


def write_csv(path):
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(["id", "text"])
    writer.writerows(enumerate(TEXTS))
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wb") as sink:
        sink.write(stream.getvalue().encode())


def write_jsonl(path):
    lines = "".join(json.dumps({"id": i, "text": text, "lang": "en"}) + "\n" for i, text in enumerate(TEXTS))
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())


WRITERS = {
    "x.csv": write_csv,
    "x.csv.gz": write_csv,
    "x.jsonl": write_jsonl,
    "x.jsonl.gz": write_jsonl,
    "strings.jsonl": lambda p: p.write_text("\n".join(map(json.dumps, TEXTS))),
    "x.parquet": lambda p: pq.write_table(pa.table({"id": [0, 1, 2], "text": TEXTS}), p, row_group_size=2),
    "dictionary.parquet": lambda p: pq.write_table(pa.table({"text": pa.array(TEXTS).dictionary_encode()}), p),
    "large.parquet": lambda p: pq.write_table(pa.table({"text": pa.array(TEXTS, pa.large_string())}), p),
}


@pytest.fixture(params=WRITERS)
def file(request, tmp_path):
    WRITERS[request.param](tmp_path / request.param)
    return tmp_path / request.param


def test_each_row_of_a_table_is_a_document(file):
    source = open_text(file)
    assert pairs(source) == [(f"{file.name}#{i}", text) for i, text in enumerate(TEXTS)]
    assert pairs(source) == pairs(source)
    assert (source.modality, source.name, source.unreadable, source.notes) == ("text", file.name, [], [])


def test_the_fingerprint_follows_contents_not_the_place(file, tmp_path):
    before = open_text(file).fingerprint()
    moved = tmp_path / "elsewhere" / file.name
    moved.parent.mkdir()
    shutil.copy(file, moved)
    assert open_text(moved).fingerprint() == before == open_text(f"{moved.parent}/*").fingerprint()
    moved.rename(moved.parent / f"other-{file.name}")  # keys, and with them the jackknife groups, change
    assert open_text(moved.parent).fingerprint() != before


def test_content_and_rule_change_the_fingerprint(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("a\n\nb\n")
    prints = {open_text(path, documents=rule).fingerprint() for rule in ("auto", "file", "lines")}
    path.write_text("a\n\nc\n")
    prints.add(open_text(path).fingerprint())
    assert len(prints) == 4


def test_the_column_of_text_is_chosen_or_asked_for(tmp_path):
    pq.write_table(pa.table({"title": ["t"], "body": ["b"], "n": [1], "w": [["x"]]}), tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text("title,body\nt,b\n")
    (tmp_path / "x.jsonl").write_text('{"title": "t", "body": "b", "n": 1}\n')
    for name in ("x.parquet", "x.csv", "x.jsonl"):
        with pytest.raises(UsageError, match=r"got: +title, body\n"):
            open_text(tmp_path / name)
        with pytest.raises(UsageError, match=r"named 'text'.*\n.*one of: title, body"):
            open_text(tmp_path / name, column="text")
        assert pairs(open_text(tmp_path / name, column="body")) == [(f"{name}#0", "b")]
    pq.write_table(pa.table({"only": ["t"], "n": [1]}), tmp_path / "x.parquet")
    assert pairs(open_text(tmp_path / "x.parquet")) == [("x.parquet#0", "t")]


def test_a_column_of_plain_text_is_bad_use(tmp_path):
    (tmp_path / "x.txt").write_text("text")
    with pytest.raises(UsageError, match="for tables"):
        open_text(tmp_path / "x.txt", column="text")


def test_rows_without_text_are_counted_not_dropped_in_silence(tmp_path):
    pq.write_table(pa.table({"text": ["a", None, " ", "b"]}), tmp_path / "x.parquet")
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n{"other": 1}\n{"text": ""}\n{"text": "b"}\n')
    for name in ("x.parquet", "x.jsonl"):
        source = open_text(tmp_path / name)
        for _ in range(2):
            assert pairs(source) == [(f"{name}#0", "a"), (f"{name}#3", "b")]
        assert source.notes == [(name, "2 rows without text skipped")]


def test_tables_of_wikitext_lines_give_articles(tmp_path):
    rows = ["", " = One = \n", "", " text \n", "", " = Two = \n", " more \n"]
    pq.write_table(pa.table({"text": rows}), tmp_path / "x.parquet")
    assert pairs(open_text(tmp_path / "x.parquet")) == [
        ("x.parquet#0", "= One = \n\n text"),
        ("x.parquet#1", "= Two = \n more"),
    ]


def test_plain_text_splits_by_the_rule_and_says_which(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfOne.\r\nTwo.\r\n")
    (tmp_path / "y.md").write_text("# Title\n\nText.\n")
    (tmp_path / "z.txt.gz").write_bytes(gzip.compress(b" = A = \n\n a \n\n = B = \n\n b \n"))
    source = open_text(tmp_path)
    assert pairs(source) == [
        ("x.txt#0", "One."),
        ("x.txt#1", "Two."),
        ("y.md#0", "# Title\n\nText."),
        ("z.txt.gz#0", "= A = \n\n a"),
        ("z.txt.gz#1", "= B = \n\n b"),
    ]
    assert [note for _, note in source.notes] == [
        "split into documents by the rule 'lines'",
        "split into documents by the rule 'paragraphs'",
        "split into documents by the rule 'wikitext'",
    ]
    assert [key for key, _ in pairs(open_text(tmp_path / "x.txt", documents="file"))] == ["x.txt"]


def test_many_files_are_one_document_each(tmp_path):
    for number in range(32):
        (tmp_path / f"{number:02d}.txt").write_text(f"Title\n\nText {number}\n")
    source = open_text(tmp_path)
    assert [key for key, _ in pairs(source)] == [f"{number:02d}.txt" for number in range(32)]
    assert source.notes == []


def test_a_long_file_is_judged_by_its_beginning_and_read_to_its_end(tmp_path):
    lines = [f"line {number} " + "x" * 100 for number in range(20_000)]
    (tmp_path / "x.txt").write_text("\n".join(lines) + "\n\nafter the first MiB an empty line\n")
    assert [text for _, text in pairs(open_text(tmp_path / "x.txt"))] == [*lines, "after the first MiB an empty line"]


def test_unreadable_files_are_listed_with_a_reason(tmp_path):
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "latin.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    (tmp_path / "late.txt").write_bytes(b"kept\nalso kept\n\xff\nlost\n")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"word " * 1000)[:-20])
    (tmp_path / "fake.txt.gz").write_bytes(b"plain")
    (tmp_path / "bad.jsonl").write_text('{"text": "kept"}\n{"text": \n')
    (tmp_path / "number.jsonl").write_text('{"text": "kept"}\n{"text": 5}\n')
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "ragged.csv").write_text("id,text\n1,a\n2\n")
    source = open_text(tmp_path)
    assert [key for key, _ in pairs(source)] == [
        "bad.jsonl#0",
        "good.txt#0",
        "late.txt#0",
        "late.txt#1",
        "number.jsonl#0",
    ]
    reasons = dict(source.unreadable)
    assert set(reasons) == {path.name for path in tmp_path.iterdir()} - {"good.txt"}
    assert reasons["empty.txt"] == "empty"
    assert "line 1 is not UTF-8" in reasons["latin.txt"]
    assert "0xe9" in reasons["latin.txt"]
    assert "line 3 is not UTF-8" in reasons["late.txt"]
    assert "line 2 is not JSON" in reasons["bad.jsonl"]
    assert "row 1 is not text" in reasons["number.jsonl"]
    assert "damaged" in reasons["cut.txt.gz"]
    assert "Expected 2 columns" in reasons["ragged.csv"]
    list(source)
    assert dict(source.unreadable) == reasons  # a second pass adds nothing


def test_nothing_readable_is_an_error_at_once(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError, match=r"no text could be read.*\n.*empty\.txt: empty"):
        open_text(tmp_path)
    with pytest.raises(UsageError, match="no such file"):
        open_text("Some text that someone took for data")


def test_lists_of_texts_pairs_and_documents():
    assert pairs(open_text(TEXTS)) == list(zip("012", TEXTS, strict=True))
    assert pairs(open_text([("a", "x"), ("b", "y")])) == [("a", "x"), ("b", "y")]
    assert pairs(open_text([Document("a", "x")])) == [("a", "x")]
    assert pairs(open_text(tuple(TEXTS))) == list(zip("012", TEXTS, strict=True))


def test_lists_keep_numbers_when_empty_texts_are_skipped():
    source = open_text(["a", " ", "b"])
    assert pairs(source) == [("0", "a"), ("2", "b")]
    assert source.notes == [("list", "1 without text skipped")]


def test_a_list_of_paths_is_a_list_of_files(tmp_path):
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(name)
    source = open_text([tmp_path / "b.txt", tmp_path / "a.txt"], documents="file")
    assert pairs(source) == [("b.txt", "b.txt"), ("a.txt", "a.txt")]
    assert source.name == "b.txt and 1 more"


def test_strings_that_name_files_are_never_taken_for_texts(tmp_path):
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(name)
    names = [str(tmp_path / "b.txt"), str(tmp_path / "a.txt")]
    assert [key for key, _ in pairs(open_text(names))] == ["b.txt#0", "a.txt#0"]
    assert [key for key, _ in pairs(open_text([f"{tmp_path}/*.txt"]))] == ["a.txt#0", "b.txt#0"]
    with pytest.raises(UsageError, match="`Path`"):
        open_text([names[0], "a text"])
    assert pairs(open_text(["What is this?", "a [bracket]", ""])) == [("0", "What is this?"), ("1", "a [bracket]")]


def test_on_a_command_line_every_string_is_a_place(tmp_path, monkeypatch):
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    assert [key for key, _ in pairs(open_places(["b.txt", "a.txt"], "text"))] == ["b.txt#0", "a.txt#0"]
    assert [key for key, _ in pairs(open_places(["b.txt"], "text", documents="file"))] == ["b.txt"]
    assert open_places([], "text").name == "embedded text"
    for misspelt in (["c.txt"], ["a.txt", "c.txt"]):
        with pytest.raises(UsageError, match=r"no such file.*c\.txt"):
            open_places(misspelt, "text")
    with pytest.raises(UsageError, match="must be the only source"):
        open_places(["-", "a.txt"], "text")
    monkeypatch.setattr(sys, "stdin", Stdin(b"typed"))
    assert pairs(open_places(["-"], "text")) == [("stdin#0", "typed")]


def test_bad_lists_are_refused():
    with pytest.raises(InputError, match="no text to measure"):
        open_text([])
    with pytest.raises(InputError, match="no text to measure"):
        open_text(["", " "])
    with pytest.raises(UsageError, match=r"item 1 of the list\n +got: +int"):
        open_text(["a", 5])
    with pytest.raises(UsageError, match="same key"):
        open_text([("a", "x"), ("a", "y")])
    with pytest.raises(UsageError, match="item 0"):
        open_text([Path("x.txt"), "text"])


def test_what_many_files_share_is_one_note(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text("one line\nand another\n" * 40)
    source = open_text(tmp_path)
    assert len(list(source)) == 240
    told = Job.source_notes(SimpleNamespace(_sources={"text": source}))  # pyright: ignore[reportArgumentType]  # all it reads
    assert told == ["split into documents by the rule 'lines' (3 files, a.txt first)"]


class Stdin:
    def __init__(self, data):
        self.buffer = io.BytesIO(data)


def test_standard_input_is_read_once_and_iterated_often(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Stdin("eins\nzwölf\n".encode()))
    source = open_text("-")
    assert pairs(source) == pairs(source) == [("stdin#0", "eins"), ("stdin#1", "zwölf")]
    assert source.name == "stdin"
    assert source.notes == [("stdin", "split into documents by the rule 'lines'")]


@pytest.mark.parametrize(("data", "message"), [(b"", "no text to measure"), (b"\xff", "line 1 is not UTF-8")])
def test_bad_standard_input(monkeypatch, data, message):
    monkeypatch.setattr(sys, "stdin", Stdin(data))
    with pytest.raises(InputError, match=message):
        open_text("-")


IDS = [[5, 0, 7], [], [2], None, [1, 1]]


def write_arrow(path, data):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, data.schema) as writer:
        writer.write_table(data)


TOKENS = {
    "x.parquet": lambda p, data: pq.write_table(data, p),
    "x.arrow": lambda p, data: write_arrow(p, data),
    "x.jsonl": lambda p, data: p.write_text("".join(json.dumps(row) + "\n" for row in data.to_pylist())),
}


@pytest.mark.parametrize("name", TOKENS)
def test_token_ids_are_documents(tmp_path, name):
    mask = [[1] * len(ids or []) for ids in IDS]
    TOKENS[name](tmp_path / name, pa.table({"attention_mask": mask, "input_ids": IDS}))
    source = open_text(tmp_path / name)
    expected = [(f"{name}#{row}", "", tuple(IDS[row])) for row in (0, 2, 4)]
    assert [(d.key, d.text, d.ids) for d in source] == expected
    assert source.notes == [(name, "2 rows without text skipped")]
    assert source.unreadable == []


@pytest.mark.parametrize("name", TOKENS)
def test_text_comes_before_token_ids_unless_they_are_asked_for(tmp_path, name):
    TOKENS[name](tmp_path / name, pa.table({"text": ["a", "b"], "input_ids": [[1], [2]], "tokens": [[3], [4]]}))
    assert [d.text for d in open_text(tmp_path / name)] == ["a", "b"]
    assert [d.ids for d in open_text(tmp_path / name)] == [None, None]
    assert [d.ids for d in open_text(tmp_path / name, column="input_ids")] == [(1,), (2,)]
    assert [d.ids for d in open_text(tmp_path / name, column="tokens")] == [(3,), (4,)]


@pytest.mark.parametrize("row", [[1, -2], [1.5], ["a"], [True], [None], [[1]], 5, "text"])
def test_what_is_no_token_id_is_named_by_its_row(tmp_path, row):
    lines = [{"input_ids": [1]}, {"input_ids": row}, {"input_ids": [2]}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    source = open_text(tmp_path / "x.jsonl", column="input_ids")
    assert [d.ids for d in source] == [(1,)]
    assert "row 1 is not a list of token ids" in source.unreadable[0][1]


def test_a_table_whose_first_token_is_negative_is_refused(tmp_path):
    pq.write_table(pa.table({"input_ids": [[-1]]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"x\.parquet: row 0 is not a list of token ids"):
        open_text(tmp_path / "x.parquet")


def test_token_ids_are_part_of_the_fingerprint_and_of_lists():
    documents = [Document("a", "", (1, 2)), Document("a", "", (12,)), Document("a", "x")]
    assert len({open_text([document]).fingerprint() for document in documents}) == 3


def test_lines_of_bare_numbers_are_no_text(tmp_path):
    (tmp_path / "x.jsonl").write_text("[1, 2]\n")
    with pytest.raises(InputError, match="line 1 is not text"):
        open_text(tmp_path / "x.jsonl")


def test_two_columns_of_one_name_are_refused(tmp_path):
    pq.write_table(
        pa.Table.from_arrays([pa.array(["a"]), pa.array([1])], names=["text", "text"]), tmp_path / "x.parquet"
    )
    with pytest.raises(UsageError, match=r"x\.parquet"):
        open_text(tmp_path / "x.parquet")


def test_json_that_is_nested_too_deep_is_listed(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "kept"}\n{"text": ' + "[" * 100_000 + "\n")
    source = open_text(tmp_path / "x.jsonl")
    assert [text for _, text in pairs(source)] == ["kept"]
    assert "line 2 is not JSON" in source.unreadable[0][1]


def test_a_file_that_changes_after_its_fingerprint_is_refused(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("one\ntwo\n")
    source = open_text(path)
    source.fingerprint()
    path.write_text("one\ntwo\nthree\n")
    with pytest.raises(InputError, match=r"changed while it was read.*x\.txt"):
        list(source)
    source = open_text(path)
    items = iter(source)
    next(items)
    os.utime(path, ns=(5, 5))
    with pytest.raises(InputError, match="changed while it was read"):
        list(items)


def test_unusual_characters_are_kept(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfnul \0 here\r\n\xe2\x80\xa8line\r\n")
    assert [text for _, text in pairs(open_text(tmp_path / "x.txt", documents="lines"))] == ["nul \0 here", "line"]
    (tmp_path / "x.jsonl").write_text('{"text": "\\ud800 lone"}\n')
    assert pairs(open_text(tmp_path / "x.jsonl")) == [("x.jsonl#0", "\ud800 lone")]


def test_a_name_that_stands_twice_in_a_json_object_is_refused(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "one"}\n{"text": "two", "text": "three"}\n')
    source = open_text(tmp_path / "x.jsonl")
    assert [document.text for document in source] == ["one"]
    assert source.unreadable == [("x.jsonl", "line 2 is not JSON: 'text' is given twice")]

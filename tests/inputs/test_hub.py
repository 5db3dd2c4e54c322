"""The hub needs a network; a stand-in for `datasets` shows what we ask of it and what we make of the answer."""

import sys
from types import ModuleType, SimpleNamespace

import pyarrow as pa
import pytest

from anisoscope.errors import InputError, MissingExtra, UsageError
from anisoscope.inputs.sources import open_source


class Rows:
    """What `datasets.Dataset` offers of itself, over an Arrow table."""

    def __init__(self, table):
        self.table, self.column_names = table, table.column_names

    def select_columns(self, names):
        return self.table.select(names).to_pylist()


class NotFound(Exception):
    pass


@pytest.fixture
def hub(monkeypatch):
    calls, tables = [], {}

    def load_dataset(path, config, *, split):
        calls.append((path, config, split))
        if path not in tables:
            raise NotFound(f"{path} is nowhere")
        return Rows(pa.table(tables[path]))

    module = ModuleType("datasets")
    module.load_dataset = load_dataset
    module.exceptions = SimpleNamespace(DatasetsError=NotFound)
    monkeypatch.setitem(sys.modules, "datasets", module)
    return SimpleNamespace(calls=calls, tables=tables)


def test_owner_name_config_split_and_column_reach_the_library(hub):
    hub.tables["Salesforce/wikitext"] = {"text": ["a", None, "b"], "page": ["x", "y", "z"]}
    source = open_source("hf:Salesforce/wikitext/wikitext-103-raw-v1:test:page", "text")
    assert hub.calls == [("Salesforce/wikitext", "wikitext-103-raw-v1", "test")]
    assert [document.text for document in source] == ["x", "y", "z"]
    source = open_source("hf:Salesforce/wikitext", "text")
    assert hub.calls[-1] == ("Salesforce/wikitext", None, "validation")
    assert [document.key for document in source] == ["hf:Salesforce/wikitext#0", "hf:Salesforce/wikitext#2"]
    assert source.notes == [("hf:Salesforce/wikitext", "1 rows without text skipped")]


def test_a_name_without_owner_is_tried_second(hub):
    hub.tables["wikitext"] = {"text": [" = One = \n", "", " a \n", "", " = Two = \n", " b \n"]}
    source = open_source("hf:wikitext/wikitext-103-raw-v1:validation:text", "text")
    assert hub.calls == [
        ("wikitext/wikitext-103-raw-v1", None, "validation"),
        ("wikitext", "wikitext-103-raw-v1", "validation"),
    ]
    assert [document.text for document in source] == ["= One = \n\n a", "= Two = \n b"]


def test_the_fingerprint_follows_the_documents(hub):
    hub.tables["o/n"] = {"text": ["a", "b"]}
    first = open_source("hf:o/n", "text").fingerprint()
    assert open_source("hf:o/n", "text").fingerprint() == first
    hub.tables["o/n"] = {"text": ["a", "c"]}
    assert open_source("hf:o/n", "text").fingerprint() != first


def test_what_is_not_there_is_named(hub):
    hub.tables["o/n"] = {"title": ["a"], "body": ["b"]}
    with pytest.raises(InputError, match="o/m is nowhere"):
        open_source("hf:o/m", "text")
    with pytest.raises(UsageError, match=r"got: +title, body"):
        open_source("hf:o/n", "text")
    hub.tables["o/n"] = {"text": ["", None]}
    with pytest.raises(InputError, match="no text to measure"):
        open_source("hf:o/n", "text")


@pytest.mark.parametrize("name", ["hf:", "hf:a/b/c/d", "hf:a/b:c:d:e", "hf:a//b", "hf:a/b:"])
def test_bad_names_are_refused(name):
    with pytest.raises(UsageError, match="hf:owner/name"):
        open_source(name, "text")


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"anisoscope\[hub\]"):
        open_source("hf:o/n", "text")


def test_token_ids_of_the_hub(hub):
    hub.tables["o/n"] = {"input_ids": [[1, 2], [], [3]], "attention_mask": [[1, 1], [], [1]]}
    assert [(d.text, d.ids) for d in open_source("hf:o/n", "text")] == [("", (1, 2)), ("", (3,))]
    hub.tables["o/n"] = {"input_ids": [[1, 2], [-3]]}
    with pytest.raises(InputError, match=r"hf:o/n\n.*row 1 is not a list of token ids"):
        list(open_source("hf:o/n", "text"))

import hashlib
import os

import pytest

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.files import check_unchanged, digest, file_digests, find_files, name_of, stamp


def keys(files):
    return [file.key for file in files]


@pytest.fixture
def tree(tmp_path):
    for name in ["b.txt", "a.txt", "deep/c.txt", "deep/.hidden.txt", ".cache/d.txt", "note.log", "UPPER.TXT"]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    return tmp_path


def test_a_folder_is_walked_in_sorted_order_without_hidden_and_foreign_files(tree):
    assert keys(find_files([tree], suffixes=[".txt"], what="text")) == ["UPPER.TXT", "a.txt", "b.txt", "deep/c.txt"]


def test_a_folder_inside_a_hidden_one_is_not_hidden_itself(tree):
    assert keys(find_files([tree / ".cache"], suffixes=[".txt"], what="text")) == ["d.txt"]


def test_globs_give_keys_relative_to_their_fixed_part(tree):
    assert keys(find_files([f"{tree}/*.txt"], suffixes=[".txt"], what="text")) == ["a.txt", "b.txt"]
    assert keys(find_files([f"{tree}/**/*.txt"], suffixes=[".txt"], what="text")) == ["a.txt", "b.txt", "deep/c.txt"]
    assert keys(find_files([f"{tree}/d*/?.txt"], suffixes=[".txt"], what="text")) == ["deep/c.txt"]


def test_a_path_with_brackets_that_exists_is_a_file_not_a_glob(tmp_path):
    (tmp_path / "x[1].txt").write_text("x")
    assert keys(find_files([tmp_path / "x[1].txt"], suffixes=[".txt"], what="text")) == ["x[1].txt"]


def test_a_named_file_is_taken_whatever_its_suffix_and_once_only(tree):
    files = find_files([tree / "note.log", tree / "b.txt", tree], suffixes=[".txt"], what="text")
    assert keys(files) == ["note.log", "b.txt", "UPPER.TXT", "a.txt", "deep/c.txt"]
    assert [file.named for file in files] == [True, True, False, False, False]


def test_files_of_the_same_name_get_different_keys(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text(folder)
    files = find_files([tmp_path / "one" / "x.txt", tmp_path / "two" / "x.txt"], suffixes=[".txt"], what="text")
    assert keys(files) == ["one/x.txt", "two/x.txt"]


def test_what_does_not_exist_is_bad_use_and_what_is_empty_is_bad_data(tree):
    with pytest.raises(UsageError, match="nowhere"):
        find_files([tree / "nowhere"], suffixes=[".txt"], what="text")
    with pytest.raises(InputError, match=r"\.npy"):
        find_files([tree], suffixes=[".npy"], what="vectors")
    with pytest.raises(InputError, match="no text files"):
        find_files([f"{tree}/z*.txt"], suffixes=[".txt"], what="text")


def test_names_are_short_and_say_how_many():
    assert name_of(["/data/x.npy"]) == "x.npy"
    assert name_of(["/data/corpus/"]) == "corpus"
    assert name_of(["."]) != "."


def test_a_digest_tells_where_parts_end():
    assert digest([b"ab", b"c"]) != digest([b"a", b"bc"]) != digest([b"abc"])


def test_a_file_digest_is_the_sha256_of_its_bytes(tree):
    files = find_files([tree / "a.txt"], suffixes=[".txt"], what="text")
    assert list(file_digests(files)) == [hashlib.sha256(b"a.txt").digest()]


def test_keys_and_names_can_be_printed_whatever_the_bytes_of_a_file_name(tmp_path):
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")
    with open(strange, "w") as stream:
        stream.write("x")
    for place in (tmp_path, strange, f"{tmp_path}/*.txt"):
        (file,) = find_files([place], suffixes=[".txt"], what="text")
        assert file.key == "caf\\udce9.txt"
        assert file.path.read_text() == "x"
    assert name_of([strange]) == "caf\\udce9.txt"
    assert "caf\\udce9" in str(InputError("cannot read", where=strange)).encode().decode()


def test_a_stamp_tells_size_time_and_file(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("one")
    before = stamp(path)
    check_unchanged(path, before)
    os.utime(path, ns=(5, 5))
    with pytest.raises(InputError, match="other contents of the same size"):
        check_unchanged(path, before)
    path.write_text("three")
    with pytest.raises(InputError, match="5 bytes"):
        check_unchanged(path, before)
    path.unlink()
    with pytest.raises(InputError, match=r"no longer be read.*x\.txt"):
        check_unchanged(path, before)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.txt")
    with pytest.raises(UsageError, match="a pipe"):
        find_files([tmp_path / "x.txt"], suffixes=[".txt"], what="text")


def test_an_empty_name_is_not_the_folder_that_one_is_in(tmp_path, monkeypatch):
    (tmp_path / "x.npy").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert [file.key for file in find_files(["."], suffixes=[".npy"], what="vectors")] == ["x.npy"]
    with pytest.raises(UsageError, match="an empty name"):
        find_files([""], suffixes=[".npy"], what="vectors")

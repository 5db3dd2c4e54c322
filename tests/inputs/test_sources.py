import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.sources import Clip, Document, MemorySource, Picture, Source, open_source


def test_a_source_is_its_own_source():
    source = open_source(["a"], "text")
    assert isinstance(source, Source)
    assert open_source(source, "text") is source
    with pytest.raises(UsageError, match=r"got: +text\n +expected: speech"):
        open_source(source, "speech")


def test_bad_requests():
    with pytest.raises(UsageError, match="text or speech or vision"):
        open_source(["a"], "smell")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="options of text"):
        open_source(None, "vision", column="image")
    with pytest.raises(UsageError, match="split text into documents"):
        open_source(["a"], "text", documents="sentences")


@pytest.mark.parametrize(
    ("modality", "first", "others"),
    [
        ("text", Document("a", "x"), [Document("b", "x"), Document("a", "y"), Document("ax", "")]),
        (
            "speech",
            Clip("a", np.zeros(2, np.float32), 8),
            [Clip("a", np.zeros(2, np.float32), 9), Clip("a", np.ones(2, np.float32), 8)],
        ),
        (
            "vision",
            Picture("a", Image.new("RGB", (2, 1))),
            [Picture("a", Image.new("RGB", (1, 2))), Picture("a", Image.new("RGB", (2, 1), "red"))],
        ),
    ],
)
def test_fingerprints_tell_key_content_and_shape_apart(modality, first, others):
    prints = [MemorySource([item], modality=modality, name="").fingerprint() for item in [first, *others]]
    assert len(set(prints)) == len(prints)
    assert MemorySource([first], modality=modality, name="elsewhere").fingerprint() == prints[0]


def test_the_order_of_items_is_part_of_the_fingerprint():
    forth = open_source([("a", "x"), ("b", "y")], "text")
    back = open_source([("b", "y"), ("a", "x")], "text")
    assert forth.fingerprint() != back.fingerprint()


def test_lone_surrogates_do_not_break_the_fingerprint():
    assert len(open_source(["\ud800"], "text").fingerprint()) == 64


def test_opening_text_imports_no_heavy_library():
    code = (
        "import sys; from anisoscope.inputs.sources import open_source; list(open_source(None, 'text'));"
        "print([name for name in ('torch', 'scipy', 'pyarrow', 'PIL', 'soundfile') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_file_that_disappears_after_it_was_counted_is_an_error(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"The text {name}.")
    (tmp_path / "never.txt").symlink_to(tmp_path / "nowhere")
    source = open_source(tmp_path, "text")
    source.fingerprint()
    assert len(list(source)) == 2
    (tmp_path / "b.txt").unlink()
    for read in (source.fingerprint, lambda: list(source)):
        with pytest.raises(InputError, match=r"can no longer be read.*b\.txt"):
            read()

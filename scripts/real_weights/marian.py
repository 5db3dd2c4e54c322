"""A Marian translation model from four parts of a larger archive, with its sentence pieces as a fast tokenizer.

The archive's directory lies in a part that is not fetched, so members are read where their own headers stand. The
tokenizer is a unigram model: pieces and scores come from `source.spm`, numbers from `vocab.json`; a piece that only the
target language has gets a score that no segmentation of the source can win.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

PART = 94_371_840
FIRST = 8 * PART  # the parts before the four that are fetched
HEADERS = {
    "config.json": 829_836_655,
    "pytorch_model.bin": 829_837_755,
    "source.spm": 1_108_639_203,
    "vocab.json": 1_109_378_039,
}
NEVER = -1e4


def write(parts: Sequence[bytes], target: Path) -> None:
    """Unpack the model, and write its tokenizer."""
    whole = b"".join(parts)
    found = {name: member_at(whole, header - FIRST) for name, header in HEADERS.items()}
    for name in ("config.json", "pytorch_model.bin"):
        (target / name).write_bytes(found[name])
    numbers = json.loads(found["vocab.json"])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=pieces_tokenizer(found["source.spm"], numbers),
        model_max_length=512,
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
    )
    fast.save_pretrained(target)


def member_at(archive: bytes, header: int) -> bytes:
    """The deflated member of a zip archive whose local header begins here, checked by its CRC.

    >>> import io, zipfile
    >>> with zipfile.ZipFile(packed := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as opened:
    ...     opened.writestr("a.txt", "some text")
    >>> member_at(packed.getvalue(), 0)
    b'some text'
    """
    mark, crc, packed, _, name, extra = struct.unpack_from("<4s10xIIIHH", archive, header)
    if mark != b"PK\x03\x04":
        raise ValueError(f"no member of the archive begins at {header}")
    begin = header + 30 + name + extra
    content = zlib.decompress(archive[begin : begin + packed], wbits=-15)
    if zlib.crc32(content) != crc:
        raise ValueError(f"the member at {header} is damaged")
    return content


def pieces_tokenizer(model: bytes, numbers: dict[str, int]) -> Tokenizer:
    """The unigram tokenizer of a sentence-piece model, its pieces numbered by a vocabulary of their own."""
    fields = list(proto_fields(model))
    scores = dict(_piece(content) for number, content in fields if number == 1)
    charsmap = dict(proto_fields(dict(fields)[3])).get(2, b"")
    ordered = [(piece, scores.get(piece, NEVER)) for piece in sorted(numbers, key=numbers.__getitem__)]
    tokenizer = Tokenizer(models.Unigram(ordered, unk_id=numbers["<unk>"]))
    mapped = [normalizers.Precompiled(charsmap)] if charsmap else []
    spaces = [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence([*mapped, *spaces])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    end = ("</s>", numbers["</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[end])
    return tokenizer


def _piece(content: bytes) -> tuple[str, float]:
    fields = dict(proto_fields(content))
    return fields[1].decode(), fields[2]


def proto_fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protocol buffer: (number, bytes | float | int)."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        kind = key & 7
        if kind == 2:
            length, at = _varint(content, at)
            yield key >> 3, content[at : at + length]
            at += length
        elif kind == 5:
            yield key >> 3, struct.unpack_from("<f", content, at)[0]
            at += 4
        elif kind == 0:
            value, at = _varint(content, at)
            yield key >> 3, value
        else:
            raise ValueError(f"a protocol buffer with a field of kind {kind}")


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at

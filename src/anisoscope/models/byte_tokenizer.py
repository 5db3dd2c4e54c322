"""A tokenizer without files: one token per byte of UTF-8, numbered as in ByT5.

For models whose own tokenizer is lost, or unknown to transformers: every text becomes ids that the model's table has,
so that its geometry can be measured. The ids mean what the model learned them to mean only if it was trained on bytes.

>>> ByteTokenizer(300)("Aé")["input_ids"]
[68, 198, 172]
>>> ByteTokenizer(256)("A")["input_ids"]
[65]
"""

from __future__ import annotations

from anisoscope.errors import ModelError

BYTES, SPECIAL = 256, 3  # ByT5: padding, end and unknown come first


class ByteTokenizer:
    """Bytes as ids, moved up by 3 where the vocabulary has room for it; no special tokens."""

    pad_token_id = 0

    def __init__(self, rows: int | None) -> None:
        if rows is not None and rows < BYTES:
            raise ModelError(
                "the vocabulary is too small for a byte-level tokenizer",
                got=f"{rows} rows",
                expected=f"{BYTES + SPECIAL}, or {BYTES} without special tokens",
                do="use the model's own tokenizer",
            )
        self.offset = SPECIAL if rows is None or rows >= BYTES + SPECIAL else 0

    def __len__(self) -> int:
        return BYTES + self.offset

    def __call__(self, text: str, *, add_special_tokens: bool = True, verbose: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [byte + self.offset for byte in text.encode("utf-8", "surrogatepass")]}

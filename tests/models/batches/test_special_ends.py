"""The special tokens of tokenizers that do not know every letter."""

from __future__ import annotations

from anisoscope.models.batches.text import special_ends


def test_a_tokenizer_of_formulas_that_drops_letters_has_its_ends_found() -> None:
    def formulas(text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = [5 + "CNO".index(letter) for letter in text if letter in "CNO"]
        return {"input_ids": [1, *ids, 2] if add_special_tokens else ids}

    assert special_ends(formulas) == ([1], [2])

"""The names of the arrays that runs keep beside their table: one contract for those who write and those who draw.

A name is a pattern with parts in braces, such as `{series}/{site}/{basis}/query`. `find` picks the arrays of a kind out
of a run and says what stood in the braces; `name_of` builds a name from its parts.

Points may carry the text that they were computed from. An array of points `P` of shape (…, m, 2) then has a companion
`P.text`, integers of shape (…, m): the number of each point's text, −1 for none. The texts themselves are one array
`texts` of a run: the UTF-8 bytes of a JSON list, because safetensors holds no strings. Both are optional.

>>> name_of("density", dimension=16)
'density.16'
>>> [(parts, value) for parts, value in find({"density.16": 1, "cosine": 2}, "density")]
[({'dimension': '16'}, 1)]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np

ARRAYS = {
    # null: the law of one pair's cosine
    "cosine": "cosine",
    "density": "density.{dimension}",
    # calibrate, vectors: similarities of unrelated pairs, by correction or cloud
    "edges": "edges",
    "histogram": "histogram.{correction}",
    "isotropic": "null",
    # calibrate, remedy: the cosine that a share of unrelated pairs stays below; the map of a remedy
    "floor_levels": "floor.levels",
    "floor_values": "floor.values",
    "remedy_mean": "mean",
    "remedy_query_mean": "mean.query",
    "remedy_matrix": "matrix",
    "remedy_axes": "axes",
    "remedy_gains": "gains",
    # block: scores at each drift norm, (draws, norms, bins)
    "norms": "{block}/norms",
    "scores_counts": "{block}/scores_counts",
    "scores_edges": "{block}/scores_edges",
    # sweep: queries and keys in the plane of their head; basis is union, queries or keys
    "steps": "{series}/steps",
    "plane_share": "{series}/{site}/{basis}/share",
    "plane_query": "{series}/{site}/{basis}/query",
    "plane_key": "{series}/{site}/{basis}/key",
    "plane_query_points": "{series}/{site}/{basis}/query_points",
    "plane_key_points": "{series}/{site}/{basis}/key_points",
    # vocabulary: each matrix at each step
    "eigenvalues": "{step}/{site}/eigenvalues",
    "eigenvalues_centred": "{step}/{site}/eigenvalues.centred",
    "points": "{step}/{site}/points",
    # attention: the mean key of each head of a layer, (key heads, d)
    "key_mean": "key_mean/{site}",
    # any run: texts of points
    "texts": "texts",
}
TEXT_OF = "{points}.text"
T = TypeVar("T")


@cache
def _pattern(kind: str) -> re.Pattern[str]:
    escaped = re.escape(ARRAYS[kind]).replace(r"\{", "{").replace(r"\}", "}")
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", escaped))


def find(arrays: Mapping[str, T], kind: str) -> Iterator[tuple[dict[str, str], T]]:
    """(what stands in the braces, array) of every array of a kind, in the order of their names."""
    for name in sorted(arrays):
        if match := _pattern(kind).fullmatch(name):
            yield match.groupdict(), arrays[name]


def name_of(kind: str, **parts: object) -> str:
    return ARRAYS[kind].format(**parts)


def pack_texts(texts: Sequence[str]) -> np.ndarray:
    """The array `texts` of a run."""
    import numpy as np

    return np.frombuffer(json.dumps(list(texts), ensure_ascii=False).encode(), np.uint8)


def unpack_texts(packed: Any) -> list[str]:
    """The inverse.

    >>> unpack_texts(pack_texts(["a cat", "ein Kätzchen"]))
    ['a cat', 'ein Kätzchen']
    """
    return [str(text) for text in json.loads(bytes(packed).decode())]


def texts_of(arrays: Mapping[str, Any], points: str) -> tuple[list[str], Any] | None:
    """All texts of a run, and the number of each point's text; None where the run kept none."""
    numbers = arrays.get(TEXT_OF.format(points=points))
    packed = arrays.get(ARRAYS["texts"])
    return None if numbers is None or packed is None else (unpack_texts(packed), numbers)


def texts_by_place(keys: Any, positions: Any, packed: Any) -> dict[tuple[int, int], str]:
    """The texts that `--keep-text` left among the sums of a run, by sequence and position."""
    return dict(zip(zip(keys.tolist(), positions.tolist(), strict=True), unpack_texts(packed), strict=True))

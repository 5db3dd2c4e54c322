"""Does anisotropy cost an encoder anything in search? Retrieval before and after each correction, for real encoders.

    python scripts/retrieval_study.py wikitext-valid.txt docs/studies encoder/ another/

Labels that nobody made for it: the opening sentence of an article of WikiText asks, the first sentences of its later
paragraphs answer (at most four each), those of all other articles do not. Corrections are fitted on other sentences.
Runs `anisoscope calibrate ENCODER --data texts.txt --documents lines --pairs judgements.csv --pool mean` for each, and
writes tables/retrieval.csv: nDCG@10 by correction, its difference to that of the vectors as they are, and the average
cosine of unrelated pairs.
"""

from __future__ import annotations

import csv
import re
import sys
import tempfile
from pathlib import Path

FITTED, ANSWERS = 2000, 4
METRICS = ("floor_mean", "ndcg", "ndcg_difference")


def sentences(paragraph: str) -> list[str]:
    """The sentences of a tokenised paragraph that have from 8 to 48 words, as people write them."""
    found = [re.sub(r" ([.,;:)'])", r"\1", part).replace("( ", "(") for part in paragraph.strip().split(" . ")]
    return [one.strip() for one in found if 8 <= len(one.split()) <= 48 and "@" not in one]


def articles(text: str) -> list[list[list[str]]]:
    """For each article its paragraphs of at least 200 characters, as sentences."""
    whole = re.split(r"\n = [^=].*? = *\n", text)[1:]
    paragraphs = [[sentences(line) for line in one.splitlines() if len(line) > 200] for one in whole]
    return [[lines for lines in one if lines] for one in paragraphs]


def judgements(found: list[list[list[str]]]) -> tuple[list[tuple[str, str, int]], list[str]]:
    """Query, document and label of every pair that belongs together, and the sentences that are in none."""
    pairs, rest = [], []
    for paragraphs in found:
        asked = paragraphs[0][0] if len(paragraphs) > 1 else None
        answers = [lines[0] for lines in paragraphs[1 : 1 + ANSWERS]]
        pairs += [(asked, answer, 1) for answer in answers if asked is not None]
        used = {asked, *answers}
        rest += [line for lines in paragraphs for line in lines if line not in used]
    return pairs, rest[:: -(-len(rest) // FITTED)]


def main(text: Path, docs: Path, encoders: list[str]) -> None:
    import anisoscope

    pairs, rest = judgements(articles(text.read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as place, (docs / "tables" / "retrieval.csv").open("w", newline="") as file:
        texts, labelled = Path(place, "texts.txt"), Path(place, "judgements.csv")
        texts.write_text("\n".join(rest), encoding="utf-8")
        with labelled.open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows([("query", "document", "label"), *pairs])
        print(f"{len({q for q, _, _ in pairs})} queries, {len(pairs)} documents, {len(rest)} sentences to fit on")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["encoder", "correction", "metric", "value", "low", "high"])
        for encoder in encoders:
            asked = {"data": [str(texts)], "documents": "lines", "pairs": str(labelled), "pool": "mean"}
            found = anisoscope.calibrate(files=[encoder], **asked)
            for row in found.rows:
                if row.metric in METRICS and row.value is not None:
                    ends = ("" if x is None else f"{x:.4f}" for x in (row.low, row.high))
                    writer.writerow([Path(encoder).name, row.site, row.metric, f"{row.value:.4f}", *ends])
            print(found.verdict, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])

"""Two hundred plain English sentences on twenty topics, written for this package: what an encoder embeds by default.

Two sentences of one topic are related, two of different topics are not: that is all a similarity floor has to know.

>>> source = sentences()
>>> source.count, topic_of(next(iter(source)).key)
(200, 'baking')
"""

from __future__ import annotations

from pathlib import Path

from anisoscope.inputs.sources import Document, MemorySource

FILE = Path(__file__).with_suffix(".txt")


def sentences() -> MemorySource[Document]:
    """All sentences, keyed `topic 0`, `topic 1`, …"""
    documents = [
        Document(f"{topic} {number}", line)
        for topic, lines in read_topics(FILE.read_text(encoding="utf-8")).items()
        for number, line in enumerate(lines)
    ]
    return MemorySource(documents, modality="text", name="embedded sentences")


def topic_of(key: str) -> str:
    """The topic of a sentence, by its key."""
    return key.rpartition(" ")[0]


def read_topics(text: str) -> dict[str, list[str]]:
    """Sentences by topic.

    >>> read_topics("# tea" + chr(10) + "Pour it out." + chr(10) + "It is hot.")
    {'tea': ['Pour it out.', 'It is hot.']}
    """
    topics: dict[str, list[str]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("# "):
            topics[line[2:]] = []
        else:
            next(reversed(topics.values())).append(line)
    return topics

"""What models are called in figures."""

from __future__ import annotations


def shown_name(model: str) -> str:
    """A model in a figure: without its owner, but a stand-in is always called one.

    >>> shown_name("openai/whisper-base"), shown_name("stand-in/gpt2")
    ('whisper-base', 'stand-in/gpt2')
    """
    return model if model.startswith("stand-in/") else model.rpartition("/")[2]


def series_name(model: str) -> str:
    """The same for a checkpoint of a series, without its revision.

    >>> series_name("EleutherAI/pythia-70m@step512")
    'pythia-70m'
    """
    return shown_name(model).partition("@")[0]

"""The command line in this process: exit code, standard output, standard error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import cases


@pytest.fixture
def command_line(capfd: pytest.CaptureFixture[str]) -> Callable[..., cases.Ended]:
    from anisoscope.cli.main import main

    def run(*words: object) -> cases.Ended:
        capfd.readouterr()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        with pytest.raises(SystemExit) as ended:
            main([*map(str, words)])
        torch.set_num_threads(threads)
        code = ended.value.code
        return cases.Ended(code if isinstance(code, int) else 0, *capfd.readouterr())

    return run

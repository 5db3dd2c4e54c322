"""Where a model runs, and where its float64 sums are kept."""

from __future__ import annotations

import pytest

from anisoscope.errors import UsageError
from anisoscope.models.devices import check_device, sums_device


def test_sums_of_mps_are_kept_on_the_cpu() -> None:
    assert sums_device("mps") == sums_device("mps:0") == "cpu"
    assert sums_device("cpu") == check_device("cpu") == "cpu"


@pytest.mark.parametrize("device", ["cuda:77", "warp", "cpu:x", "", "xla"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    for function in (check_device, sums_device):
        with pytest.raises(UsageError, match=r"cannot be used(.|\n)*cpu(.|\n)*--device cpu"):
            function(device)

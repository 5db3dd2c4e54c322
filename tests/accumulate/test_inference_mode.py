"""Sums that a capture makes in inference mode are ordinary sums."""

from __future__ import annotations

import numpy as np
import torch

from anisoscope.accumulate.moments import Moments


def test_moments_made_in_inference_mode_can_be_added_to_after_it() -> None:
    with torch.inference_mode():
        moments = Moments(3)
        moments.update(torch.eye(3), sequences=np.zeros(3, dtype=np.uint64))
    other = Moments(3)
    other.update(torch.eye(3), sequences=np.ones(3, dtype=np.uint64))
    moments.merge(other)
    moments.update(torch.eye(3), sequences=np.zeros(3, dtype=np.uint64))
    assert moments.sums().n == 9

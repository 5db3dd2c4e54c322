"""The inputs of a forward pass: where the model is, in its precision, without a cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import zoo
from anisoscope.capture.inputs import model_inputs


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_values_get_the_precision_of_the_model_and_ids_do_not(dtype: torch.dtype) -> None:
    module = nn.Linear(3, 3, dtype=dtype)
    given = {"pixels": torch.rand(2, 3), "ids": torch.arange(3), "mask": torch.ones(3, dtype=torch.bool)}
    found = model_inputs(module, given)
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        "pixels": dtype,
        "ids": torch.int64,
        "mask": torch.bool,
    }


def test_inputs_go_where_the_model_is() -> None:
    module = nn.Linear(3, 3)
    moved: list[torch.device] = []
    ids = SimpleNamespace(
        is_floating_point=lambda: False, dtype=torch.int64, to=lambda device, dtype: moved.append(device)
    )
    model_inputs(module, {"ids": ids})  # pyright: ignore[reportArgumentType]
    assert moved == [module.weight.device]


def test_inputs_of_an_offloaded_model_stay_on_the_processor() -> None:
    found = model_inputs(nn.Linear(3, 3, device="meta"), {"ids": torch.arange(3), "pixels": torch.rand(2)})
    assert {tensor.device.type for tensor in found.values()} == {"cpu"}


def test_a_cache_is_switched_off_where_there_is_one() -> None:
    ids = {"input_ids": torch.arange(3)[None]}
    assert model_inputs(zoo.module("gpt2"), ids)["use_cache"] is False
    assert "use_cache" not in model_inputs(zoo.module("modernbert"), ids)


def test_the_weights_that_count_are_the_floating_ones() -> None:
    class Quantised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.codes = nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False)
            self.scale = nn.Parameter(torch.zeros(2, dtype=torch.float16))

        def forward(self, x: Tensor) -> Tensor:
            return x

    assert model_inputs(Quantised(), {"x": torch.rand(2)})["x"].dtype == torch.float16


def test_a_module_without_weights_gets_its_inputs_as_they_are() -> None:
    given = torch.rand(2)
    assert model_inputs(nn.Identity(), {"input": given})["input"] is given

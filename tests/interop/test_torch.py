"""Arrays go to torch's CPU tensors and come back without a copy, and without being lost."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mpscffi as mps

if TYPE_CHECKING:
    import torch

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("device")]

KINDS = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "complex64", "bfloat16"]


@pytest.fixture(scope="module", name="torch")
def _torch() -> Any:
    # Too large to be installed by a test: pip install torch (the CPU build will do)
    return pytest.importorskip("torch")


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_share_an_arrays_memory(torch: Any, kind: str) -> None:
    values = np.arange(24).reshape(4, 6)
    array = mps.asarray(values, kind)
    for view in (array, array[1:], array.T, array[:, ::2], array[2, 3], array[:0]):
        tensor = torch.from_dlpack(view)
        assert str(tensor.dtype) == f"torch.{kind}" and tuple(tensor.shape) == view.shape
        assert tensor.to(torch.complex64).tolist() == view.numpy().astype(np.complex64).tolist()
    tensor = torch.from_dlpack(array)
    array[0, 0] = 1
    assert tensor[0, 0] == 1
    tensor[0, 1] = 0
    assert array[0, 1].item() == 0


@pytest.mark.usefixtures("settled")
def test_a_tensor_keeps_the_memory(torch: Any) -> None:
    before = mps.current_allocated_memory()
    tensor = torch.from_dlpack(mps.full(1000, 4))
    gc.collect()
    mps.empty_cache()
    noise = [mps.full(1000, -1) for _ in range(4)]
    assert (tensor == 4).all()
    del tensor, noise
    gc.collect()
    assert mps.current_allocated_memory() == before


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_are_made_of_tensors(torch: Any, kind: str) -> None:
    tensor = torch.arange(24).reshape(4, 6).to(getattr(torch, kind))
    for view in (tensor, tensor[1:], tensor.T, tensor[:, ::2], tensor[2, 3], tensor[:0]):
        array = mps.from_dlpack(view, copy=True)
        assert array.shape == tuple(view.shape) and array.dtype.name == kind
        assert array.numpy().astype(np.complex64).tolist() == view.to(torch.complex64).tolist()


def test_whole_pages_of_a_tensor_are_shared(torch: Any) -> None:
    big: torch.Tensor = torch.zeros(3 * 16384, dtype=torch.uint8)
    start = -big.data_ptr() % 16384
    pages = big[start : start + 16384]
    array = mps.from_dlpack(pages, copy=False)
    array.fill_(7)
    assert pages.sum() == 7 * 16384
    del big, pages
    gc.collect()
    assert (array.numpy() == 7).all()


def test_what_torch_has_and_metal_has_not_is_refused(torch: Any) -> None:
    for tensor in (torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.complex128)):
        with pytest.raises(TypeError, match="from_dlpack: got elements of (float64|complex128)"):
            mps.from_dlpack(tensor)

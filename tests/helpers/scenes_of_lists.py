"""Scenes of kernels that are handed lists of addresses in a struct: those that count, and those that are left over.

The structs and the kernels' names are PyTorch 2.11's.
"""
from __future__ import annotations

import ctypes
from typing import Any

from fabricated import A, B, Program, X, Y, scene, u32, u64
from scenes_of_launches import launch

# The kernels of kernel_parameters.cpp.
TENSORS, INPUTS, NORMS, ARRAY, SCALARS, STEPS = range(0xF800, 0xFE00, 0x100)
_LISTS = "_ZN2at6native12_GLOBAL__N_125multi_tensor_apply_kernelINS1_{}EvT_T0_"
NAMES = {
    TENSORS: _LISTS.format("18TensorListMetadataILi2EEENS1_7FunctorE"),
    SCALARS: _LISTS.format("28TensorListScalarListMetadataIfLi1EEENS1_7FunctorE"),
    STEPS: _LISTS.format("32FusedOptimizerTensorListMetadataILi4EEENS1_7FunctorE"),
    INPUTS: "_ZN2at6native12_GLOBAL__N_130CatArrayBatchedCopy_vectorizedINS1_10OpaqueTypeILj4EEEjLi1ELi128ELi1ELi16E"
            "Li4EEEvPcNS1_25CatArrInputTensorMetadataIT_T0_XT2_EXT3_EEENS1_16TensorSizeStrideIS8_Lj4EEEiS8_",
    NORMS: "_ZN2at6native14lpnorm_cleanupIfLNS0_8NormTypeE1EffEEvPKT1_NS0_19TensorListAddressesEi",
    ARRAY: "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11CopyFunctorIfEESt5arrayIPcLm2EEEEviT0_T1_",
}


class TensorList(ctypes.Structure):
    """TensorListMetadata<2>: the blocks of the grid each have a tensor."""

    _fields_ = [("addresses", u64 * 64 * 2), ("numels", u64 * 64), ("tensors", ctypes.c_uint8 * 320),
                ("chunks", u32 * 320), ("start", u32)]


class ScalarList(ctypes.Structure):
    _fields_ = [("addresses", u64 * 96), ("numels", u64 * 96), ("scalars", ctypes.c_float * 96),
                ("tensors", ctypes.c_uint8 * 320), ("chunks", u32 * 320)]


class StepList(ctypes.Structure):
    _fields_ = [("addresses", u64 * 36 * 4), ("numels", u64 * 36), ("steps", u64 * 36),
                ("tensors", ctypes.c_uint8 * 320), ("chunks", u32 * 320), ("start", u32)]


class Inputs(ctypes.Structure):
    _fields_ = [("inputs", u64 * 128), ("offsets", u32 * 128), ("sizes", u32 * 128), ("elements", u32 * 128),
                ("contiguous", ctypes.c_uint8 * 128), ("strides", u32 * 8)]


def launched(p: Program, kernel: int, *values: Any, blocks: int = 1, rows: int = 1) -> None:
    launch(p, *values, kernel=kernel, symbol=NAMES[kernel].encode(), gridDimX=blocks, gridDimY=rows, gridDimZ=1)


def list_of(first: int, second: int) -> TensorList:
    """Two tensors of which each launch of one block takes the first."""
    made = TensorList()
    made.addresses[1][0], made.addresses[1][1] = first, second
    return made


@scene("certain use/write")
def a_tensor_of_a_list(p: Program, repaired: bool) -> None:
    launched(p, TENSORS, list_of(X, Y), ctypes.c_uint8(0))
    p.fill(Y if repaired else X, B)                     # the second one is left over


@scene("certain use/write")
def a_tensor_of_the_second_block(p: Program, repaired: bool) -> None:
    tensors = list_of(X, Y)
    tensors.tensors[1] = 1
    launched(p, TENSORS, tensors, ctypes.c_uint8(0), blocks=1 if repaired else 2)
    p.fill(Y, B)


@scene("possible use-after-free")
def a_tensor_of_a_list_is_gone(p: Program, repaired: bool) -> None:
    p.free(X)
    launched(p, TENSORS, list_of(Y, X) if repaired else list_of(X, Y), ctypes.c_uint8(0))


@scene("possible use/write")
def a_list_that_is_not_filled_as_expected(p: Program, repaired: bool) -> None:
    tensors = list_of(X, Y)
    tensors.tensors[0] = 64                             # of 0 to 63
    launched(p, TENSORS, tensors, ctypes.c_uint8(0))
    if repaired:
        p.order(A, B)
    p.fill(Y, B)


@scene("possible use/write")
def a_grid_that_is_larger_than_the_list(p: Program, repaired: bool) -> None:
    launched(p, TENSORS, list_of(X, Y), ctypes.c_uint8(0), blocks=321)
    if repaired:
        p.order(A, B)
    p.fill(Y, B)


@scene("possible use/write")
def a_struct_of_another_size(p: Program, repaired: bool) -> None:
    """Of another release: its fields are not known."""
    launch(p, list_of(Y, X), ctypes.c_uint8(0), kernel=TENSORS, gridDimX=1,
           symbol=NAMES[TENSORS].replace("Li2E", "Li1E").encode())
    if repaired:
        p.order(A, B)
    p.fill(X, B)


@scene("certain use/write")
def a_tensor_beside_its_scalar(p: Program, repaired: bool) -> None:
    made = ScalarList()
    made.addresses[0], made.addresses[1] = X, Y
    launched(p, SCALARS, made, ctypes.c_uint8(0))
    p.fill(Y if repaired else X, B)


@scene("certain use/write", "certain use/write")
def a_tensor_and_its_step(p: Program, repaired: bool) -> None:
    made = StepList()
    made.addresses[3][0], made.steps[0], made.steps[1] = Y, X, 0x7000_0000_0800
    launched(p, STEPS, made, ctypes.c_uint8(0))
    if repaired:
        p.order(A, B)
    p.fill(X, B)
    p.fill(Y, B)


@scene("certain use/write")
def an_input_of_a_concatenation(p: Program, repaired: bool) -> None:
    made = Inputs()
    made.inputs[0], made.inputs[1] = Y, X
    launched(p, INPUTS, u64(0), made, (u32 * 8)(), u32(0), u32(0), rows=1 if repaired else 2)
    p.fill(X, B)


@scene("certain use/write")
def a_norm_of_a_list(p: Program, repaired: bool) -> None:
    launched(p, NORMS, u64(0), (u64 * 400)(Y, X), u32(1), blocks=1 if repaired else 2)
    p.fill(X, B)


@scene("certain use/write")
def an_array_of_an_element_wise_kernel(p: Program, repaired: bool) -> None:
    launched(p, ARRAY, u32(1), ctypes.c_float(1), (u64 * 2)(Y, X))
    if repaired:
        p.order(A, B)
    p.fill(X, B)

#!/usr/bin/env python3
"""Makes python.safetensors, which safetensors_test.cc reads and writes: safetensors/testdata/make_golden.py

Run it as models/testdata/transformers/make_golden.py says. The test makes the same tensors by itself.
"""

import pathlib

import torch
from safetensors.torch import save_file


def tensors():
    types = {
        "U64": torch.uint64, "I64": torch.int64, "F64": torch.float64, "C64": torch.complex64, "F32": torch.float32,
        "U32": torch.uint32, "I32": torch.int32, "BF16": torch.bfloat16, "F16": torch.float16, "U16": torch.uint16,
        "I16": torch.int16, "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
        "F8_E8M0": torch.float8_e8m0fnu, "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    }
    result = {name: torch.tensor([[0, 1, 2], [1, 4, 0]]).to(torch.float32).to(type) for name, type in types.items()}
    result["no dimensions"] = torch.tensor(-2.5)
    result["no elements"] = torch.empty(2, 0, 3, dtype=torch.int16)
    result['quoted "name", \\ and \n ü'] = torch.tensor([7], dtype=torch.int8)
    return result


save_file(tensors(), pathlib.Path(__file__).with_name("python.safetensors"), metadata={"format": "pt"})

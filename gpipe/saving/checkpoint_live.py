"""Reads a folder of save_checkpoint with Python's safetensors: checkpoint_live.py FOLDER EXPECTED

EXPECTED.0, EXPECTED.1, ...: what each process had (checkpoint_live_program.cc). Compared are all values to the last bit,
the names of each file, the index, the metadata and the fingerprints; and PyTorch's own Sequential takes the model.
"""

import glob
import json
import pathlib
import sys
import zlib

import torch
from safetensors import safe_open
from safetensors.torch import load_file

STEPS, ROWS = 3, 8
TYPES = {"Float": torch.float32, "BFloat16": torch.bfloat16, "Long": torch.int64}

folder = pathlib.Path(sys.argv[1])
failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)
        print("FAILED:", what)


def expected_tensors():
    """By name; of each process."""
    processes = []
    for path in sorted(glob.glob(sys.argv[2] + ".*")):
        tensors = {}
        for line in pathlib.Path(path).read_text().splitlines():
            name, dtype, shape, digits = line.split(" ")
            value = torch.frombuffer(bytearray(bytes.fromhex(digits)), dtype=TYPES[dtype])
            tensors[name] = value.reshape([int(size) for size in shape.split(",") if size])
        processes.append(tensors)
    return processes


def is_same(have, want):
    """To the last bit."""
    as_bytes = lambda value: value.contiguous().reshape(-1).view(torch.uint8)
    return have.dtype == want.dtype and have.shape == want.shape and torch.equal(as_bytes(have), as_bytes(want))


def metadata_of(name):
    with safe_open(folder / name, framework="pt") as file:
        return file.metadata()


def compare(file, want):
    have = load_file(folder / file)
    expect(have.keys() == want.keys(), f"{file}: names {sorted(have.keys() ^ want.keys())}")
    for name in have.keys() & want.keys():
        expect(is_same(have[name], want[name]), f"{file}: {name} has other values")
    return have


class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8, dtype=torch.bfloat16)


def main():
    processes = expected_tensors()
    names_of = lambda what: [f"{what}.safetensors" if len(processes) == 1
                             else f"{what}-{part + 1:05}-of-{len(processes):05}.safetensors"
                             for part in range(len(processes))]
    models, optimizers = names_of("model"), names_of("optimizer")
    index_name = "model.safetensors.index.json"
    expect({path.name for path in folder.iterdir()} ==
           {*models, *optimizers, "progress.safetensors"} | ({index_name} if len(processes) > 1 else set()),
           f"files {sorted(path.name for path in folder.iterdir())}")

    # Each file has the tensors that its process had.
    state = {}
    for model, optimizer, want in zip(models, optimizers, processes):
        is_state = lambda name: "/" in name
        state.update(compare(model, {name: value for name, value in want.items() if not is_state(name)}))
        expect(metadata_of(model) == {"format": "pt"}, f"{model}: metadata {metadata_of(model)}")
        compare(optimizer, {name: value for name, value in want.items() if is_state(name)})
        record = json.loads(metadata_of(optimizer)["optimizer"])
        expect(record["type"] == "torch::optim::Adam" and record["groups"][0]["options"]["lr"] == 0.01,
               f"{optimizer}: {record['type']}, {record['groups']}")
        expect({name: said["step"] for name, said in record["states"].items()} ==
               {name.split("/")[0]: STEPS for name in want if is_state(name)},
               f"{optimizer}: {record['states']}")

    # The index is as Hugging Face's readers use it: a map from tensor names to files, and the sum
    # of all bytes.
    if len(processes) > 1:
        index = json.loads((folder / index_name).read_text())
        expect(index["weight_map"].keys() == state.keys(), f"the index has {sorted(index['weight_map'])}")
        for name, file in index["weight_map"].items():
            with safe_open(folder / file, framework="pt") as opened:
                expect(is_same(opened.get_tensor(name), state[name]), f"the index: {name} in {file}")
        total = sum(value.numel() * value.element_size() for value in state.values())
        expect(index["metadata"]["total_size"] == total, f"the index: {index['metadata']} and not {total}")

    # The names are those of PyTorch's plain model, and nothing is missing or left over.
    plain = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), Half(),
                                torch.nn.Linear(8, 3))
    plain.load_state_dict(state, strict=True)
    expect(plain[1].num_batches_tracked > 0, "a buffer that says nothing")

    # The progress file says how far the run was, and has the fingerprints that reveal damaged
    # files.
    metadata = metadata_of("progress.safetensors")
    expect(metadata["format"] == "gpipe checkpoint 1", metadata["format"])
    expect((metadata["step"], metadata["rows"]) == (str(STEPS), str(STEPS * ROWS)), f"progress {metadata}")
    for name in models + optimizers:
        contents = (folder / name).read_bytes()
        expect(metadata[name] == f"{len(contents)} bytes, CRC-32 {zlib.crc32(contents):08x}", f"fingerprint of {name}")
    # PyTorch's own generator takes the saved state.
    generator = load_file(folder / "progress.safetensors")["generator"]
    torch.set_rng_state(generator)
    expect(torch.equal(torch.get_rng_state(), generator), "the generator's state")

    if failures:
        sys.exit(1)
    print(f"{len(processes)} processes: {sum(map(len, processes))} tensors are the same")


if __name__ == "__main__":
    main()

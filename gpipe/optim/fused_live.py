"""FusedAdamW, FusedAdam, FusedSgd, FusedAdagrad beside Python's torch.optim with fused=True: fused_live.py PROGRAM

The same steps in float64, float32 and bfloat16, with each option that takes another path: the same bits.
"""

import itertools
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

STEPS, SHAPES = 7, [(4, 3), (7,), (3, 2, 5, 5), (129, 17)]
ADAM = [dict(lr=0.01, weight_decay=decay, amsgrad=amsgrad) for decay, amsgrad in itertools.product((0.0, 0.1), (False, True))]
SGD = [dict(lr=0.1, weight_decay=decay, momentum=momentum, dampening=0.0 if nesterov else momentum / 3, nesterov=nesterov)
       for decay, (momentum, nesterov) in itertools.product((0.0, 0.01), ((0.0, False), (0.9, False), (0.9, True)))]
ADAGRAD = [dict(lr=0.1, weight_decay=0.01, lr_decay=lr_decay) for lr_decay in (0.0, 0.2)]
CASES = [("AdamW", each) for each in ADAM] + [("Adam", each) for each in ADAM] + [("SGD", each) for each in SGD] + \
    [("Adagrad", each) for each in ADAGRAD]


def trained(name, options, start, gradients):
    parameters = [each.clone().requires_grad_() for each in start]
    optimizer = getattr(torch.optim, name)(parameters, fused=True, **options)
    for of_step in gradients:
        for parameter, gradient in zip(parameters, of_step):
            parameter.grad = gradient
        optimizer.step()
    return [each.detach() for each in parameters]


def main():
    torch.set_num_threads(1)
    expected = {}
    with tempfile.TemporaryDirectory() as work:
        given, made = pathlib.Path(work) / "given", pathlib.Path(work) / "made"
        given.mkdir()
        made.mkdir()
        for (k, (name, options)), dtype in itertools.product(enumerate(CASES), (torch.float64, torch.float32, torch.bfloat16)):
            torch.manual_seed(k)
            start = [torch.randn(shape).to(dtype) for shape in SHAPES]
            # In every third step the first parameter has no gradient, so that its number of steps
            # differs from the others'.
            gradients = [[None if p == 0 and step % 3 == 1 else torch.randn(shape).to(dtype) for p, shape in enumerate(SHAPES)]
                         for step in range(STEPS)]
            case = f"{k}_{name}_{dtype}.safetensors"
            tensors = {f"p{p}": each for p, each in enumerate(start)}
            tensors |= {f"g{step}_{p}": each for step, of_step in enumerate(gradients) for p, each in enumerate(of_step)
                        if each is not None}
            save_file(tensors, given / case, metadata={"optimizer": name} | {key: repr(float(value)) for key, value in options.items()})
            expected[case] = options, start, trained(name, options, start, gradients)
        subprocess.run([sys.argv[1], given, made], check=True)
        failures = 0
        for case, (options, start, want) in expected.items():
            have = load_file(made / case)
            for p, value in enumerate(want):
                same = torch.equal(have[f"p{p}"], value) and not torch.equal(value, start[p])
                apart = (have[f"p{p}"].double() - value.double()).abs().max().item()
                if not same:
                    print(f"FAILED: {case} {options}, parameter {p}: apart by {apart}")
                    failures += 1
    print(f"{len(expected)} trainings compared")
    if failures:
        sys.exit(1)
    print("PASSED")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Losses, gradients and updates of a GPU against PyTorch in float64: the cases of tests/gold/test_torch.py with
training.device=cuda. Four ranks share the GPU. Prints TAP. Started by tests/gpu/run, once for each of its families.

    device_torch.py FAMILY

FAMILY: a first word of a model's name there, or `others` for the models of no other test."""
import pathlib
import re
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / 'gold')]
import job

job.need_modules('numpy', 'h5py', 'torch')
import test_torch

runner = job.load_script('tests/gpu/run')


def is_of(name, family):
    first = re.split('[ ,:]', name)[0]
    return first == family or (family == 'others' and first not in runner.FAMILIES)


def main():
    family, = sys.argv[1:]
    for model in test_torch.MODELS.values():
        model.update({'training.device': 'cuda', 'comm.share_gpu': True})
    test_torch.torch_reference.torch.set_num_threads(1)
    return job.run_cases([case for case in test_torch.cases() if is_of(case[0], family)])


if __name__ == '__main__':
    sys.exit(main())

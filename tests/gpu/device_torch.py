#!/usr/bin/env python3
"""Losses, gradients and updates of a GPU against PyTorch in float64: the cases of tests/gold/test_torch.py with
training.device=cuda. Four ranks share the GPU. Prints TAP. Started by tests/gpu/run."""
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / 'gold')]
import job

job.need_modules('numpy', 'h5py', 'torch')
import test_torch


def main():
    for model in test_torch.MODELS.values():
        model.update({'training.device': 'cuda', 'comm.share_gpu': True})
    test_torch.torch_reference.torch.set_num_threads(1)
    return job.run_cases(test_torch.cases())


if __name__ == '__main__':
    sys.exit(main())

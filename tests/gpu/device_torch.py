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
    return job.run_cases([(f'{name}: {what}', function, name) for name in test_torch.MODELS
                          for what, function in test_torch.CASES.items()
                          if job.can_launch() or function is not test_torch.case_hybrid])


if __name__ == '__main__':
    sys.exit(main())

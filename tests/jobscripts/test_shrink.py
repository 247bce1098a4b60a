#!/usr/bin/env python3
"""On which nodes keep-going.sbatch goes on after losses. Prints TAP.

The functions of the script that choose nodes, with a program that stands in for scontrol; tests/cluster/run loses nodes of a
real Slurm.
"""
import os
import pathlib
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(TOP / 'tests/gold'), str(TOP / 'tests/mesh')]
import job
import tiny

SCRIPT = r"""
set -u
. "$0/common.sh"
eval "$(sed -n '/^join()/,/ starts$/p' "$0/keep-going.sbatch")"
scontrol() { printf '%s\n' n1 n2 n3 n4 n5; }
run=(c.yaml "$@")
take_nodes
for node in $LOST; do lose "$node" 2>/dev/null; done
choose_nodes && echo "${active[*]}; ${spare[*]-}" || echo none
"""


def left(lost, *words, batch=48, spares=0):
    """The nodes on which the job goes on, and those that are spare then; two ranks each."""
    folder = job.prepare('shrink', {**tiny.MODELS['llama'], 'training.dataset_path': 'none.bin', 'training.global_batch_size': batch})
    environment = {**job.environment(0), 'SLURM_JOB_NODELIST': 'n[1-5]', 'SLURM_NTASKS_PER_NODE': '2', 'SHERD_SPARE_NODES': str(spares),
                   'LOST': lost}
    done = subprocess.run(['bash', '-c', SCRIPT, str(TOP / 'jobscripts'), *words], cwd=folder, env=environment, capture_output=True,
                          text=True, timeout=job.SECONDS)
    return done.stdout.strip() + done.stderr.strip()


def case(*rows):
    return [f'{row[:-1]}: {found}, expected {row[-1]}' for row in rows if (found := left(*row[0], **row[1])) != row[-1]]


def case_spare():
    """A spare node takes the place of a lost one, whatever job.shrink says."""
    none = '--job.shrink=none'
    return case((('n2', none), {'spares': 1}, 'n1 n3 n4 n5;'), (('n5', none), {'spares': 1}, 'n1 n2 n3 n4;'),
                (('n2 n3', none), {'spares': 1}, 'none'))


def case_shrink():
    """The most nodes whose ranks divide the batch, those that make a power of two, or none."""
    return case((('n2 n5',), {}, 'n1 n3 n4;'), (('n2 n5',), {'batch': 80}, 'n1 n3; n4'),
                (('n2 n5', '--job.shrink=pow2'), {}, 'n1 n3; n4'), (('n2 n5', '--job.shrink=none'), {}, 'none'))


def case_least():
    """With fewer nodes than job.least_nodes the job does not go on."""
    return case((('n2 n5', '--job.least_nodes=3'), {}, 'n1 n3 n4;'), (('n2 n5', '--job.least_nodes=4'), {}, 'none'),
                (('n2 n5', '--job.shrink=pow2', '--job.least_nodes=3'), {}, 'none'))


if __name__ == '__main__':
    sys.exit(job.run_cases([('spare nodes', case_spare), ('job.shrink', case_shrink), ('job.least_nodes', case_least)]))

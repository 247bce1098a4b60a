#!/usr/bin/env python3
"""metrics.state_digest_every and `sherd audit`: steps done again on other meshes give the states that were claimed; one
changed bit of data, seed, weights or rate is found at its step. Prints TAP."""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import pairs
import tiny

BASE = {**tiny.MODELS['llama'], 'training.reproducible': 'mesh', 'training.steps': 6, 'training.global_batch_size': 16,
        'training.local_batch_size': 2, 'checkpoint.interval': 2, 'checkpoint.keep_latest_k': 0, 'data.shuffle': False,
        'metrics.state_digest_every': 1, 'comm.shared_memory': 'off', 'training.mixed_precision_param': 'bfloat16'}


def lines(folder):
    return [json.loads(line) for line in pathlib.Path(folder, 'out/claims.jsonl').read_text().splitlines()]


def checkpoint(folder, step=2):
    return next(pathlib.Path(folder, 'out').rglob(f'*{step:08}*.h5'))


def audit(*words, ranks=0, at=None, step=6, data=None):
    done = subprocess.run(job.command(ranks, ['audit', at or checkpoint('run'), '--step', step, f'--training.dataset_path={data or tokens}', *words]),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, env=job.environment(ranks), timeout=job.SECONDS)
    return done.returncode, done.stdout, done.stderr


def case_claims():
    head, *claims = lines('run')
    wrong = [f'head {head}'] * (head['claims'] != 1 or head['ranks'] != RANKS or head['local_batch_size'] != 2)
    wrong += [f'steps {claims}'] * ([claim['step'] for claim in claims] != [1, 2, 3, 4, 5, 6])
    wrong += ['digests repeat'] * (len({claim['digest'] for claim in claims}) != 6)
    _, *others = lines('other')
    return wrong + [f'every 2 steps: {others}'] * ([claim['step'] for claim in others] != [2, 4, 6])


def case_equal(ranks, *words):
    status, said, error = audit(*words, ranks=ranks)
    left = sorted(path.name for path in pathlib.Path().glob('sherd-bench-*'))
    return [f'exit {status}: {said}{error}, left {left}'] * (
        status != 0 or said.splitlines()[:4] != [f'step {step}: equal' for step in (3, 4, 5, 6)] or 'resumed from run/out/checkpoint/step-00000002.h5' not in error or bool(left))


def case_lacking():
    """Matrices that Muon updates have no second moment, unless something copies or moves whole states."""
    digests = {}
    for save in ('disabled', 'async'):
        job.train(f'muon-{save}', {'training.dataset_path': str(tokens), **BASE, 'optimizer.name': 'muon', 'checkpoint.async_mode': save})
        digests[save] = [claim['digest'] for claim in lines(f'muon-{save}')[1:]]
    return [] if digests['disabled'] == digests['async'] else [f'{digests}']


def case_beside():
    """What the checkpoint does not hold is found: the base of adapters, which is a checkpoint too, and the reference of answers, also
    if it is another model, whose own file is gone."""
    answers = pairs.write('pairs.bin', pairs.draw_pairs(1, 60, BASE['model.vocab_size']), BASE['model.vocab_size'])
    rows = {'adapters': (tokens, {'lora.rank': 2, 'checkpoint.initial_load_path': str(pathlib.Path('run/out').absolute())}),
            'answers': (answers, {'objective.name': 'dpo', 'data.excess_length_strategy': 'drop'})}
    rows['another reference'] = answers, {**rows['answers'][1], 'objective.reference_path': str(pathlib.Path('given.ref').absolute())}
    wrong = []
    for name, (data, keys) in rows.items():
        if 'objective.reference_path' in keys:
            job.sherd('eval', '--checkpoint', 'answers/out', '--data', data, '--reference', '-o', 'given.ref')
        job.train(name, {**BASE, **keys, 'training.dataset_path': str(data)})
        pathlib.Path('given.ref').unlink(missing_ok=True)
        status, said, error = audit(at=checkpoint(name), data=data)
        wrong += [f'{name}: exit {status}: {said}{error}'] * (status != 0 or said.count(': equal') != 4)
    return wrong


def found_at(step, *words, **how):
    status, said, error = audit(*words, **how)
    equal = [f'step {before}: equal' for before in range(3, step)]
    return [f'{words}, {how}: exit {status}: {said}{error}'] * (
        status != 7 or said.splitlines() != equal or f'step {step} is not what ' not in error)


def case_changed():
    """A token of a sequence of step 5, the smallest change of a rate, other weights, another order, and a claim."""
    data = bytearray(tokens.read_bytes())
    data[2 * (4 * BASE['training.global_batch_size'] * BASE['training.seq_len'] + 5)] ^= 1
    pathlib.Path('changed.bin').write_bytes(data)
    rate = BASE.get('optimizer.lr', 1e-2)
    wrong = found_at(5, data=pathlib.Path('changed.bin').absolute())
    wrong += found_at(3, f'--optimizer.lr={rate * (1 + 2 ** -20):.17g}')
    wrong += found_at(3, '--data.shuffle=true', '--debug.seed=1')
    wrong += found_at(3, '--claims=run/out/claims.jsonl', '--debug.seed=0', at=checkpoint('other'))
    text = pathlib.Path('run/out/claims.jsonl').read_text()
    digest = lines('run')[4]['digest']
    pathlib.Path('false.jsonl').write_text(text.replace(digest, digest[:-1] + ('0' if digest[-1] != '0' else '1')))
    return wrong + found_at(4, '--claims=false.jsonl')


def refused(status, text, *words, **how):
    found, said, error = audit(*words, **how)
    return [f'{words}, {how}: exit {found}: {said}{error}'] * (found != status or text not in error)


def case_refused():
    text = pathlib.Path('run/out/claims.jsonl').read_text()
    pathlib.Path('elsewhere.jsonl').write_text(text.replace('"device":"cpu"', '"device":"other"').replace('"digest":"', '"digest":"x'))
    pathlib.Path('early.jsonl').write_text('\n'.join(text.splitlines()[:3]))
    pathlib.Path('broken.jsonl').write_text(text + '{"step":')
    wrong = refused(2, 'proves nothing: device', '--claims=elsewhere.jsonl')
    wrong += refused(2, 'claims nothing of steps 3 to 6', '--claims=early.jsonl')
    wrong += refused(3, 'broken.jsonl', '--claims=broken.jsonl')
    wrong += refused(3, 'nowhere.jsonl: no such file; a run writes claims with', '--claims=nowhere.jsonl')
    wrong += refused(2, 'give a later --step', step=2)
    pathlib.Path('no-batch.jsonl').write_text(text.replace('"local_batch_size":2', '"local_batch_size":0'))
    wrong += refused(3, 'local_batch_size is no number of sequences', '--claims=no-batch.jsonl')
    wrong += refused(2, f'claims nothing of steps 3 to {2**62}', '--claims=early.jsonl', step=2 ** 62)
    return wrong + refused(3, 'no/such', '--folder=no/such')


if __name__ == '__main__':
    tokens = pathlib.Path(tiny.write_tokens()).absolute()
    RANKS = 8 * job.can_launch() or 1
    job.train('run', {'training.dataset_path': str(tokens), **BASE}, RANKS * job.can_launch())
    job.train('other', {'training.dataset_path': str(tokens), **BASE, 'debug.seed': 1, 'metrics.state_digest_every': 2})
    cases = [('claims', case_claims), ('one rank', case_equal, 0), ('changes', case_changed), ('states that are not there', case_lacking), ('what lies beside', case_beside), ('refusals', case_refused)]
    if job.can_launch():
        cases += [('two ranks, another strategy', case_equal, 2, '--parallelism.sharding_strategy=no_shard'), ('four ranks', case_equal, 4)]
    sys.exit(job.run_cases(cases))

"""Check steps.json, the trace of steps 2 and 3 of a run on $1 ranks, against the table of its plan in the file
`plan`."""
import glob
import json
import sys

ranks, trace = int(sys.argv[1]), json.load(open('steps.json'))
events = trace['traceEvents']
spans = [e for e in events if e['ph'] == 'X']
assert all(isinstance(e['args']['what'], str) for e in spans if e['cat'] != 'step')
assert {e['cat'] for e in spans} == {'forward', 'backward', 'update', 'step'} | ({'comm'} if ranks > 1 else set())
computed = [e for e in spans if e['tid'] == 0]
assert computed and all(type(e['args']['bytes']) is int and e['args']['bytes'] > 0 for e in computed)
start = json.loads(open(glob.glob('*/metrics.jsonl')[0]).readline())
assert trace['otherData']['config'] == start['config'] and trace['otherData']['ranks'] == str(ranks)
for rank in range(ranks):
    mine = [e for e in spans if e['pid'] == rank]
    steps = [e for e in mine if e['name'].startswith('step ')]
    inner = [e for e in mine if e['tid'] == steps[0]['tid'] and e not in steps]
    assert [e['name'] for e in steps] == ['step 2', 'step 3']
    assert sum(e['name'] == 'micro-step 1' for e in inner) == sum(e['name'] == 'update' for e in inner) == 2
    for e in inner:
        assert any(s['ts'] <= e['ts'] and e['ts'] + e['dur'] <= s['ts'] + s['dur'] for s in steps), e
    arrows = [{e['id']: e for e in events if e['ph'] == way and e['pid'] == rank} for way in 'sf']
    collectives = [e for e in mine if 'axis' in e['args']]
    assert len(collectives) == len(arrows[0]) and arrows[0].keys() == arrows[1].keys()
    assert all(arrows[0][i]['ts'] <= arrows[1][i]['ts'] for i in arrows[0])
    name = [e for e in events if e['name'] == 'process_name' and e['pid'] == rank][0]['args']
    assert name['clock_uncertainty_us'] > 0
    for line in open('plan').read().split('collectives of')[1].splitlines()[1:]:
        kind, axis, calls = line.split()[:3]
        if kind.startswith('none'):
            assert not collectives
            continue
        found = [e['args'] for e in collectives if e['name'].endswith(kind) and e['args']['axis'] == axis]
        assert len(found) == 2 * int(calls) and found[0]['ranks'] == ranks, (line, len(found))
        value, unit = line.split()[4:]
        bytes = float(value) * 1024 ** ['B', 'KiB', 'MiB'].index(unit)
        assert abs(sum(a['bytes'] for a in found) / 2 - bytes) < 0.06 * 1024, (line, found)
arena = [e['args']['bytes'] for e in events if e['ph'] == 'C' and e['name'] == 'arena in use']
assert arena and max(arena) <= int([line for line in open('plan') if 'arena:' in line][0].split()[-3])

#!/usr/bin/env python3
"""The page of `sherd report` as a browser lays it out, judged by what must be visible: four figures and the curve on the
first screen, no text cut off or on top of other text, nothing to scroll sideways, on a screen and on a phone.
Prints TAP; skipped without chromium.
"""
import html
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import test_report as report
from test_report import job

BROWSER = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)
SCRIPT = r'''
const visible = e => e.getClientRects().length > 0;
const text = e => e.textContent.trim().slice(0, 60);
const wrong = [], wide = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth > wide) wrong.push('scrolls sideways: ' + document.documentElement.scrollWidth + ' of ' + wide);
const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (nodes.nextNode()) {
    const node = nodes.currentNode, range = document.createRange();
    if (!node.nodeValue.trim() || !visible(node.parentElement) || node.parentElement.closest('svg')) continue;
    range.selectNodeContents(node);
    for (const box of range.getClientRects())
        if (box.left < -1 || box.right > wide + 1) wrong.push('cut at ' + Math.round(box.right) + ': ' + text(node));
}
for (const e of document.querySelectorAll('td, th, li, dt, dd, p, figcaption, h1, h2'))
    if (visible(e) && e.scrollWidth > e.clientWidth + 1) wrong.push('wider than its box: ' + text(e));
for (const svg of document.querySelectorAll('figure svg')) {
    if (!visible(svg)) continue;
    const frame = svg.getBoundingClientRect();
    const labels = [...svg.querySelectorAll('text')].filter(visible).map(e => [e, e.getBoundingClientRect()]);
    for (const [e, box] of labels) {
        if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
            wrong.push('outside its drawing: ' + text(e));
        if (box.height < 7) wrong.push('too small to read: ' + text(e) + ', ' + box.height);
    }
    labels.forEach(([a, x], i) => labels.slice(i + 1).forEach(([b, y]) => {
        if (x.left < y.right && y.left < x.right && x.top + 2 < y.bottom - 2 && y.top + 2 < x.bottom - 2)
            wrong.push('on each other: ' + text(a) + ' and ' + text(b));
    }));
}
const figures = [...document.querySelectorAll('dl.figures b')].map(e => e.getBoundingClientRect());
const losses = [...document.querySelectorAll('figure')].filter(e => visible(e) && text(e).startsWith('Loss against steps'));
const result = {wrong, wide, figures: figures.length, below: Math.max(0, ...figures.map(box => box.bottom)), losses: losses.length,
                loss: losses.map(e => e.getBoundingClientRect().width / wide)[0], top: losses.map(e => e.getBoundingClientRect().top)[0]};
const out = document.createElement('pre');
out.id = 'result';
out.textContent = JSON.stringify(result);
document.body.replaceChildren(out);
'''


def look(width):
    """What the script finds on the page in a window of that width: an iframe, since a window has a least width."""
    page = (report.work / 'report.html').read_text().replace('</body>', f'<script>{SCRIPT}</script></body>')
    source = json.dumps(page).replace('</', '<\\/')
    (report.work / 'look.html').write_text(f'''<!DOCTYPE html><body style="margin:0"><iframe id="f" style="border:0" width="{width}"
        height="900"></iframe><script>document.getElementById('f').onload = e => {{
        document.title = e.target.contentDocument.getElementById('result').textContent; }};
        document.getElementById('f').srcdoc = {source};</script></body>''')
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run([BROWSER, '--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars', f'--user-data-dir={home}',
                               '--window-size=1400,1000', '--virtual-time-budget=10000', '--dump-dom',
                               (report.work / 'look.html').as_uri()], capture_output=True, text=True, timeout=job.SECONDS)
    found = re.search(r'<title>(.*?)</title>', done.stdout)
    if not found:
        raise job.Failed(f'no result: {done.stderr[-2000:]}')
    return json.loads(html.unescape(found[1]))


def judge(screen=900):
    job.sherd('report', report.work)
    wrong = []
    for width in 1180, 800, 390:
        found = look(width)
        wrong += [f'{width}: {line}' for line in found['wrong']]
        wrong += report.expect(f'{width}: the window', found['wide'], width)
        if not found['figures']:
            continue
        wrong += report.expect(f'{width}: figures', found['figures'], 4) + report.expect(f'{width}: loss curves', found['losses'], 1)
        wrong += [] if found['below'] < screen and found['top'] < screen else [f'{width}: not on the first screen: {found}']
        wrong += [] if found['loss'] > 0.9 else [f'{width}: the loss curve has {found["loss"]:.2f} of the width']
    return wrong


def steps(n, speed=1000, **more):
    return [{**report.step(i, speed * (1 + i % 7 / 10), loss=2 + 9 / i), 'tokens_seen': 1000 * i, 'grad_norm': 1 + 1 / i,
             'lr': 3e-4 * (1 - i / n / 2), **more} for i in range(1, n + 1)]


def case_one():
    """A long run with validations and four starts, two of them close to each other and one near the end."""
    report.empty()
    lines = steps(1000)
    for at, ranks in (990, 2), (600, 16), (590, 1024):
        lines.insert(at, report.start(at, ranks, shard=ranks // 2))
    lines = [{**report.start(0, 4, shard=2), 'parameters': 1234567, 'hosts': ['n1', 'n2'], 'device': 'cpu', 'version': '1.0'}, *lines,
             *report.validations(s500=3.1234, s1000=3.2)]
    report.write_run('a', report.config(1, -1, 0, **{'training.steps': 1000}), lines)
    return judge()


def case_many():
    """A study with long names, predictions, repeats and an efficiency beyond all doubt; a table of many columns."""
    report.empty()
    limits = [{'part': 'latency', 'gain': 0.5, 'remedy': 'x'}, {'part': 'network', 'gain': 0.25, 'remedy': 'y'}]
    for ranks, speed in (1, 10), (2, 20000), (128, 123456), (16384, 1234567):
        name = f'weak-hybrid_shard_zero2-b16-n{ranks}-r1'
        settings = report.config(2, -1, ranks, **{'parallelism.sharding_strategy': 'hybrid_shard_zero2', 'mesh.shard': 1})
        report.write_run(name, settings, [{**report.start(0, ranks), 'peak_tflops': 500.0, 'flops_per_token_causal': 1e9},
                                          *steps(60, speed), *report.validations(s30=3.0, s60=2.5)])
        (report.work / name / 'predicted.json').write_text(json.dumps(report.prediction(ranks, 900 * ranks, limits=limits)))
    for name in 'first', 'second':
        report.write_run(f'{name}/outputs', report.config(4, 8, 2, **{'optimizer.lr': 1e-4 if name == 'first' else 1e-5}), steps(60))
    report.write_run('failed', report.config(2, -1, 4), [])
    (report.work / 'failed/progress.json').write_text(json.dumps({'exit_status': 3, 'reason': 'open /a/b/c: No such file or directory'}))
    return judge()


CASES = [('one run', case_one), ('many runs', case_many)]

if __name__ == '__main__':
    if not BROWSER:
        job.skip_all('no chromium to lay out the page (Debian: chromium)')
    sys.exit(job.run_cases(CASES))

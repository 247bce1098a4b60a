#!/usr/bin/env python3
"""The program knows each key that doc/from-others.md names: as its own, or with advice on what to use instead; and what it
leaves out on purpose it refuses by name, with the reason. Prints TAP."""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

PAGE = (job.TOP / 'doc/from-others.md').read_text()
AT_ONCE = 20  # errors that one start reports
SHOWN = 60    # letters of a name that they show
OWN = set()


def own_keys():
    section = None
    for line in job.sherd('help', '--config').splitlines():
        if re.fullmatch(r'\w+:', line):
            section = line[:-1]
        elif re.fullmatch(r'  \w+', line):
            OWN.add(f'{section}.{line.strip()}')


def rows(title):
    """[(keys of the first column, text of the second)] of the table below a heading."""
    table = PAGE.split(f'## {title}\n')[1].split('\n## ')[0]
    cells = [[cell.strip() for cell in line.strip('|').split(' | ')] for line in table.splitlines() if line.startswith('| `')]
    return [(re.findall(r'`([\w.]+)`', left), right) for left, right, *_ in cells]


def told(names):
    """{name: what a start prints about it}"""
    lines = {}
    for at in range(0, len(names), AT_ONCE):
        done = subprocess.run([os.environ['SHERD'], 'plan', job.TOP / 'examples/debug.yaml', *(f'--{name}=1' for name in names[at:at + AT_ONCE])],
                              capture_output=True, text=True)
        for line in done.stderr.splitlines():
            found = re.match(r'sherd: error: --([\w.]+): (.*)', line)
            if found:
                lines[found[1]] = found[2]
    return lines


def short(name):
    return name if len(name) <= SHOWN else name[:SHOWN] + '...'


def case_keys():
    wrong, foreign = [], []
    for names, right in rows('Keys of torchtitan'):
        for name in names:
            if name not in OWN:
                foreign.append(name)
            elif right != 'the same' and not right.startswith('the same;') and name not in right:
                wrong.append(f'{name} is a key here, and the page says: {right}')
    lines = told(foreign)
    return wrong + [f'{name}: {lines.get(short(name))}' for name in foreign if not re.match(
        'no such key; (?!nearest)', lines.get(short(name), ''))] + ([] if len(foreign) > 40 else [f'{len(foreign)} keys only'])


def case_answers():
    """The right-hand column has keys of this program."""
    named = {name for _, right in rows('Keys of torchtitan') for name in re.findall(r'`(\w+\.\w+)(?=[`=:])', right)}
    return [f'{name} is no key' for name in sorted(named - OWN - {'config.yaml'})]


def case_defaults():
    text = job.sherd('help', '--config')
    wrong = []
    for (name,), _ in rows('Defaults that differ'):
        right = next(line for line in PAGE.split('## Defaults that differ')[1].splitlines() if f'`{name}`' in line)
        value = right.strip('| ').split(' | ')[-1]
        section, key = name.split('.')
        default = re.search(r'default:\s+(\S+)', text.split(f'\n{section}:\n')[1].split(f'  {key}\n')[1])[1]
        if not value.startswith('acts') and value != default:
            wrong.append(f'{name}: the page says {value}, the help {default}')
    return wrong


# What is typed, and a part of the reason.
LEFT_OUT = {
    'optimizer.name=soap': 'square matrices beside each matrix', 'optimizer.name=Shampoo': 'square matrices beside each matrix',
    'optimizer.name=./mine.so': 'plug-ins bring operations and losses', 'objective.name=dpo,distillation': 'one loss at a time',
    'optimizer.name=dion2': 'factors of low rank', 'optimizer.name=schedule_free_adamw': 'validation.ema averages them',
    'optimizer.name=adamw_4bit': 'no kernel has states of four bits', 'optimizer.state_dtype=int4': 'no kernel has states of four bits',
    'optimizer.name=adamw_8bit': 'with optimizer.state_dtype=int8', 'optimizer.name=galore_adamw': 'offload.optimizer moves them',
    'optimizer.name=plugin': 'plug-ins bring operations and losses', 'optimizer.plugin=x': 'plug-ins bring operations and losses',
    'optimizer.muon_coefficients=gram': 'loses digits',
    'objective.loss_type=sigmoid,sft': 'one loss at a time', 'objective.loss_weights=1,2': 'objective.loss_type is one loss',
    'objective.sync_ref_model=true': 'the reference stays', 'objective.ref_model_mixup_alpha=0.5': 'the reference stays',
    'objective.name=reverse_kl': 'learns by the forward divergence', 'objective.name=gkd': 'learns by the forward divergence',
    'objective.name=grpo': 'nothing generates answers', 'objective.name=online_dpo': 'nothing generates answers',
    'objective.name=tr-dpo': 'the reference is the model that a run begins with', 'objective.loss_type=tr_dpo': 'a run from newer parameters',
    'objective.name=bco': 'objective.loss_type=bco_pair', 'objective.name=sft': 'it is lm', 'objective.loss_type=sft': 'objective.sft_weight adds it',
    'objective.loss_type=aot_pair': 'would depend on the mesh', 'objective.loss_type=discopop': 'a plug-in can bring it',
    'objective.name=xpo': 'nothing generates answers', 'objective.name=nash-md': 'nothing generates answers',
    'optimizer.name=psgd_kron': 'square matrices beside each matrix', 'optimizer.name=MuonClip': 'the largest score of each head',
    'objective.name=orpo': 'a word of objective.loss_type', 'model.attn_logit_softcapping=50': 'model.attention_softcap',
    'model.qk_rope_head_dim=64': 'model.rotary_dim', 'model.routed_scaling_factor=2.5': 'model.route_scale',
    'model.n_routed_experts=8': 'model.n_experts', 'model.first_k_dense_replace=3': 'model.first_dense_layers',
    'model.blocks=x': 'model.family names the blocks', 'lr_groups=x': 'optimizer.groups',
    'model.attn=x': 'model.family names the blocks', 'model.layers=x': 'model.family names the blocks',
    'optimizer.name=adamw-4-bit': 'no kernel has states of four bits', 'optimizer.state_dtype=4-bit': 'no kernel has states of four bits',
    'optimizer.name=adamw-8-bit': 'with optimizer.state_dtype=int8', 'optimizer.name=gram_muon': 'loses digits',
    'optimizer.muon_gram=true': 'loses digits', 'optimizer.name=schedulefree': 'validation.ema averages them',
    'objective.loss_type=sigmoid sft': 'one loss at a time', 'objective.loss_type=trdpo': 'a run from newer parameters',
    'objective.name=TRDPO': 'the reference is the model', 'objective.loss_type=dr_grpo': 'nothing generates answers',
    'objective.loss_type=dapo': 'nothing generates answers', 'objective.name=gspo': 'nothing generates answers',
    'objective.kd_normalize_topk=false': 'stored takes them', 'objective.kd_form=reverse_kl': 'learns by the forward divergence',
    'z_loss_multiplier=1e-4': 'moe.z_loss_coeff is that of routers', 'loss_weights=x': 'objective.loss_type is one loss', 'token_weights=x': 'one float16 per token',
    'training.seq_len_schedule=0:8': 'from which step on attention', 'optimizer.muon_dtype=float32': 'in float32 on CPUs',
    'objective.ref=x': 'makes of that model', 'precompute_ref_log_probs=true': 'numbers made before the first step', 'objective.kd_loss_type=jsd': 'opinion of the student', 'loss_add_tail=true': 'tail takes what',
    'objective.kd_alpha=0.5': "the teacher's share", 'objective.name=kd': 'it is distillation', 'truncation_mode=keep_end': 'nothing keeps the end',
    'objective.name=preference': 'it is dpo', 'objective.name=classification': 'model.num_labels',
    'objective.mass=0.9': "a teacher's file has as many tokens", 'kd_top_p=0.9': 'teacher/mass of the metrics', 'objective.kd_form=top_p': 'as many tokens at each place',
    'objective.kd_form=rkl': 'learns by the forward divergence', 'lmbda=0.5': 'opinion of the student', 'teacher_model_name_or_path=x': 'objective.teacher_path: a file',
    'f_divergence_type=js_divergence': "a loss of one's own", 'ld_alpha=0.5': 'pairs count alike', 'use_weighting=true': 'pairs count alike',
    'num_generations=8': 'nothing generates answers', 'ppo_epochs=4': 'nothing generates answers', 'stage=rm': 'reward for rm', 'finetuning_type=lora': 'lora.rank',
    'ref_adapter_name=x': 'makes of that model', 'muon_dtype=bfloat16': 'in float32 on CPUs',
    'optimizer.precondition_frequency=10': 'leave it out', 'optimizer.rank_fraction=0.25': 'leave it out', 'use_galore=true': 'leave it out',
    'optimizer.schedule_free=true': 'leave it out', 'optimizer.block_size=128': '64 neighbours share a scale', 'plugin.optimizer=x': 'plug-ins bring operations and losses',
    'plugin.attention=x': 'model.family names the blocks', 'attn_soft_cap=50': 'model.attention_softcap', 'optimizer.state_dtype=fp8': '64 numbers share a scale',
    'optimizer.name=Adam': 'optimizer.weight_decay=0', 'optimizer.name=adamw_torch_fused': 'it is adamw', 'optimizer.name=FusedAdam': 'it is adamw',
    'optimizer.name=DeepSpeedCPUAdam': 'it is adamw', 'optimizer.name=lion_32bit': 'it is lion', 'optimizer.name=adamw_anyprecision': 'bfloat16 keeps its states',
    'optimizer.name=paged_lion_32bit': 'offload.optimizer moves them', 'optimizer.name=ao_adamw_fp8': 'with optimizer.state_dtype=int8',
    **{f'optimizer.name={name}': "there is no kernel for its step" for name in ('OneBitAdam', 'lomo', 'prodigy', 'rmsprop_bnb', 'stable_adamw', 'ademamix', 'came_pytorch')},
    'optimizer.name=dist_muon': 'whole matrices at their owners',
}


def case_left_out():
    wrong = []
    values = 'optimizer.name', 'optimizer.state_dtype', 'optimizer.muon_coefficients', 'objective.name', 'objective.loss_type', 'objective.kd_form'
    words = [word for word in LEFT_OUT if word.split('=')[0] not in OWN - set(values)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for word, done in zip(words, pool.map(lambda word: subprocess.run(
                [os.environ['SHERD'], 'plan', job.TOP / 'examples/debug.yaml', f'--{word}'], capture_output=True, text=True), words)):
            if done.returncode != 2 or LEFT_OUT[word] not in done.stderr or '; nearest' in done.stderr:
                wrong.append(f'{word}: {done.returncode}: {done.stderr}')
    pathlib.Path('list.yaml').write_text('objective:\n  loss_type: [sigmoid, sft]\n')
    done = subprocess.run([os.environ['SHERD'], 'plan', 'list.yaml'], capture_output=True, text=True)
    return wrong + ([] if done.returncode == 2 and 'got a list; one loss at a time' in done.stderr else [done.stderr])


CASES = [('what is left out', case_left_out), ('each key is known', case_keys), ('each answer is a key', case_answers), ('defaults', case_defaults)]

if __name__ == '__main__':
    own_keys()
    sys.exit(job.run_cases(CASES))

/* `sherd plan --machine`: the cost of the step on a machine, in words, as a trace and as JSON. */
#include "src/tools/predict/command.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/metrics/trace.h"
#include "src/near/slot.h"
#include "src/optim/update.h"
#include "src/tools/predict/limit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rate of a snapshot: from a GPU to host memory, or within host memory. */
static const double snapshot_bytes_per_second = 20e9;

int64_t sh_predict_state_bytes(const struct sh_predict *l, bool kept)
{
    const struct sh_program *p = l->p;
    int64_t all = 0;

    for (int i = 0; i < p->n_saved; i++) {
        int bytes = sh_dtype_bytes(SH_F32);

        for (int k = 0; k < p->n_states; k++)
            if (sh_optim_keeps(p, l->build.options.optim, k, &p->saved[i]))
                bytes += sh_dtype_bytes(kept && p->state[k].dtype == SH_BF16 ? SH_BF16 : SH_F32);
        all += p->saved[i].trainable ? bytes * p->saved[i].elems : 0;
    }
    return all;
}

/* If the save runs in the background, only the copy stops training. */
static double save_seconds(const struct sh_predict *l)
{
    const struct sh_machine *m = &l->machine;
    double nodes = ceil((double)l->at.world / l->at.ranks_per_node);

    if (!l->cfg.checkpoint.enable)
        return 0;
    if (l->build.options.snapshot)
        return (double)sh_predict_state_bytes(l, true) / l->at.world / snapshot_bytes_per_second;
    return (double)sh_predict_state_bytes(l, false) / fmin(m->disk.write, nodes * m->disk.each_node);
}

/* Every rank copies at once, and a node sends what its ranks have; a new node takes as much from one other. */
static void add_near(const struct sh_predict *l, struct sh_predict_job *job)
{
    const struct sh_machine *m = &l->machine;
    double own = (double)sh_near_bytes(l->p, &l->mesh), way = 0;
    bool sends = l->cfg.checkpoint.near_copies > 1 && l->at.world > l->at.ranks_per_node;

    if (sends && m->network.bytes_per_second > 0)
        way = own * l->at.ranks_per_node / (m->network.bytes_per_second * m->network.share);
    job->near_steps = (double)l->cfg.checkpoint.near_interval;
    job->near_copy = own / snapshot_bytes_per_second + way;
    job->near_load = own / snapshot_bytes_per_second + way;
    job->near_silence = sends ? l->cfg.checkpoint.near_silence_seconds : 0;
}

/* Facts about the job besides its step: tokens, FLOPs, and the cost of saving. */
static struct sh_predict_job job_of(const struct sh_predict *l)
{
    struct sh_model_flops f = sh_model_flops_of(&l->build.model, &l->build.batch);
    struct sh_predict_job job = {.tokens = sh_request_global_batch(&l->cfg, sh_group_size(&l->mesh, l->mesh.data)) *
                                           l->cfg.training.seq_len,
                                 .ranks = l->at.world,
                                 .flops_causal = f.matmul + f.attention_causal,
                                 .flops_full = f.matmul + f.attention_full,
                                 .save_seconds = save_seconds(l),
                                 .save_steps = l->cfg.checkpoint.enable ? (double)l->cfg.checkpoint.interval : 0};

    if (l->cfg.checkpoint.near_interval)
        add_near(l, &job);
    return job;
}

/* The line says how much of the prediction rests on measurements. */
static void say_machine(const struct sh_predict *l)
{
    const struct sh_machine *m = &l->machine;
    int n[3] = {0}, points = 0;

    for (int i = 0; i < sh_machine_n_keys; i++)
        n[m->from[i]] += !sh_machine_keys[i].text;
    for (int i = 0; i < m->n_points; i++)
        points += m->points[i].what != SH_POINT_FIGURE;
    putchar('\n');
    sh_str_say(
        stdout, "machine",
        "%s: %g devices per node, %s; figures: %d measured, %d of the file, %d of the preset; %d measured points",
        m->name, m->node.devices, m->device.kind, n[SH_FROM_MEASUREMENT], n[SH_FROM_FILE], n[SH_FROM_PRESET], points);
}

/* On a CPU the arena is not compared with anything: its ranks share the memory of a node. */
static const char *memory_text(const struct sh_predict *l, char *text, size_t size)
{
    double all = l->machine.device.memory_bytes, room = all - l->machine.device.reserved_bytes;
    double spare = room - (double)sh_predict_bytes(l);
    char needs[SH_STR_SHORT], has[SH_STR_SHORT], kept[SH_STR_SHORT], rest[SH_STR_SHORT];

    sh_str_bytes(sh_predict_bytes(l), needs);
    if (!l->at.gpu)
        snprintf(text, size, "%s per rank", needs);
    else if (spare < 0)
        snprintf(text, size, "does not fit: a rank needs %s, and a device has %s for it", needs,
                 sh_str_sum_of_bytes(room, has));
    else
        snprintf(text, size, "%s of a device's %s, %s kept, %s to spare", needs, sh_str_sum_of_bytes(all, has),
                 sh_str_sum_of_bytes(all - room, kept), sh_str_sum_of_bytes(spare, rest));
    return text;
}

sh_rc sh_predict_words(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const struct sh_predict *l)
{
    struct sh_cost_request changed = sh_predict_request(l);
    const char *tokens = sh_cmd_option(cmd, args, "--tokens"), *what_if = sh_cmd_option(cmd, args, "--what-if");
    double n;

    if (tokens)
        SH_TRY(sh_predict_tokens(tokens, &n));
    return what_if ? sh_predict_read_what_if(what_if, &changed.faster) : SH_OK;
}

sh_rc sh_predict_answer(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_predict *l)
{
    struct sh_cost_request r = sh_predict_request(l);
    const char *tokens = sh_cmd_option(cmd, args, "--tokens");
    struct sh_predict_spent spent;
    char memory[160], text[SH_PREDICT_SPENT_TEXT];
    double n;

    if (tokens)
        SH_TRY(sh_predict_tokens(tokens, &n));
    l->job = job_of(l);
    SH_TRY(sh_cost_step(&r, &l->step));
    if (r.stages) {
        l->each = sh_calloc((size_t)l->stages.n, sizeof *l->each);
        SH_TRY(sh_cost_stages(&r, l->each));
    }
    SH_TRY(sh_predict_say_answer(&r, &l->job, &l->step, memory_text(l, memory, sizeof memory), stdout));
    if (tokens) {
        spent = sh_predict_spend(&l->machine, &l->job, sh_predict_tokens_per_second(&l->job, &l->step), n);
        sh_str_say(stdout, "all tokens", "%s: %s", tokens, sh_predict_spent_text(&l->machine, &spent, text));
    }
    putchar('\n');
    return SH_OK;
}

/* Bytes written per day by all ranks of a node, which share the disk; to compare with the endurance in the data sheet
 * of a drive. */
static void say_wear(const struct sh_predict *l, const struct sh_cost_step *step)
{
    int64_t in, out;

    sh_program_moved(l->p, &in, &out);
    if (out && sh_program_file_tier(l->p) != SH_NONE)
        printf("wear         %.4g TB written a day on the disk of a node (offload.nvme_path)\n",
               (double)out * l->at.ranks_per_node / step->seconds * 86400 / 1e12);
}

/* Head and foot are those of the trace of a run, so that the same viewers and scripts read both. */
static sh_rc put_trace(const struct sh_config *cfg, const struct sh_cost_request *r, const char *path)
{
    char config[SH_CONFIG_DIGEST], *head, *all;
    struct sh_trace_about about = {.config = config, .machine = r->machine->name, .ranks = sh_mesh_ranks(r->mesh)};
    int64_t bytes;
    sh_rc rc;

    SH_TRY(sh_config_digest(cfg, config));
    head = sh_trace_head(&about);
    all = sh_strfmt("%s%s%s", head, sh_trace_text(r->trace, &bytes), sh_trace_foot);
    rc = sh_write_file_atomic(path, all, strlen(all));
    free(head);
    free(all);
    return rc;
}

/* One rank stands for all of them. */
static sh_rc write_trace(const struct sh_config *cfg, struct sh_cost_request r, const char *path)
{
    struct sh_cost_step step;
    sh_rc rc;

    r.trace = sh_trace_create(r.mesh, r.machine->name);
    rc = sh_cost_step(&r, &step);
    if (rc == SH_OK)
        rc = put_trace(cfg, &r, path);
    sh_trace_destroy(r.trace);
    return rc;
}

/* The whole table again for a changed machine, after one line with the gain. */
static sh_rc say_change(const struct sh_cost_request *as_is, const struct sh_predict_job *job,
                        const struct sh_cost_step *step, const char *text)
{
    struct sh_cost_request r = *as_is;
    struct sh_cost_step changed;
    char gain[SH_PREDICT_LIMIT_TEXT];

    SH_TRY(sh_predict_read_what_if(text, &r.faster));
    SH_TRY(sh_cost_step(&r, &changed));
    printf("\nwhat if      %s: a step takes %.4g s, %s\n", text, changed.seconds,
           sh_predict_gain_text(step->seconds / changed.seconds - 1, gain));
    return sh_predict_say(&r, job, &changed, stdout);
}

/* The lines go from assumptions to consequences: machine, step, wear, advice, changes. */
sh_rc sh_predict_cost(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const struct sh_predict *l)
{
    struct sh_cost_request r = sh_predict_request(l);
    const char *json = sh_cmd_option(cmd, args, "--json"), *trace = sh_cmd_option(cmd, args, "--trace"),
               *what_if = sh_cmd_option(cmd, args, "--what-if");

    say_machine(l);
    SH_TRY(sh_predict_say(&r, &l->job, &l->step, stdout));
    say_wear(l, &l->step);
    SH_TRY(sh_predict_choices(l));
    if (what_if)
        SH_TRY(say_change(&r, &l->job, &l->step, what_if));
    if (trace)
        SH_TRY(write_trace(&l->cfg, r, trace));
    return json ? sh_predict_json(l, &r, &l->job, &l->step, json) : SH_OK;
}

sh_rc sh_predict_tokens(const char *text, double *out)
{
    static const struct {
        char letter;
        double factor;
    } units[] = {{'K', 1e3}, {'M', 1e6}, {'B', 1e9}, {'T', 1e12}};
    char *end;

    *out = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (end != text && *end == units[i].letter) {
            *out *= units[i].factor;
            end++;
            break;
        }
    if (end == text || *end || !(*out >= 1 && *out <= 1e18))
        return sh_fail(SH_E_USAGE, "sherd plan: --tokens %s: expected a number, like 2T, 300B or 1.5e12", text);
    return SH_OK;
}

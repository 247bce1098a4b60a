#include "src/run/watch/fingerprint.h"

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/number/half.h"
#include "src/base/number/sketch.h"
#include "src/base/string/str.h"
#include "src/optim/update.h"
#include "src/program/saved.h"
#include "src/run/run.h"
#include "src/run/save/map.h"
#include "src/run/stages.h"
#include "src/run/watch/fingerprint_rows.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LEAVES = 4096 };

struct sh_fingerprint_step {
    struct sh_run *r;
    int64_t step;
    struct sh_print_batch batch;
    int64_t first;  /* sequence of the newest micro-step */
    int64_t begin;  /* sequence of the step */
    int64_t leaves; /* micro-steps of all ranks that read other sequences; 0: they are not told apart */
    uint64_t *leaf; /* [rows.n][leaves] what each adds to the sum of a row */
    double *maker;  /* [rows.n][leaves] number of ranks - the first rank that added it; 0: none did */
    char (*host)[sizeof((struct sh_mesh *)0)->host]; /* [ranks] on rank 0 */
    struct sh_print_rows rows;
    struct sh_sketch *sketch; /* [rows.n] of this rank; on rank 0 in the end of all */
    float *floats;            /* a tensor, or a piece of one */
    void *raw;                /* the same as it lies on a device */
    int64_t room;             /* elements */
};

/* ---- sketching ---- */

static void make_room(struct sh_fingerprint_step *s, int64_t elems)
{
    if (elems <= s->room)
        return;
    free(s->floats);
    free(s->raw);
    s->floats = sh_calloc((size_t)elems, sizeof *s->floats);
    s->raw = sh_calloc((size_t)elems, sizeof *s->floats);
    s->room = elems;
}

/* The tensor in the host's memory, as floats. */
static const float *read_floats(struct sh_fingerprint_step *s, int tensor)
{
    const struct sh_tensor *t = &s->r->p->tensors[tensor];
    int64_t n = sh_tensor_elems(t);
    const void *data = sh_exec_data(s->r->exec, tensor);

    make_room(s, n);
    if (s->r->device->gpu) {
        sh_exec_get_at(s->r->exec, s->raw, data, sh_tensor_bytes(t));
        data = s->raw;
    }
    if (t->dtype == SH_F32)
        return data;
    if (t->dtype == SH_F16)
        sh_half_widen(s->floats, data, n);
    else if (t->dtype == SH_BF16)
        for (int64_t i = 0; i < n; i++)
            s->floats[i] = sh_bf16_to_f32(((const sh_bf16 *)data)[i]);
    else
        for (int64_t i = 0; i < n; i++)
            s->floats[i] = (float)((const int32_t *)data)[i];
    return s->floats;
}

static void add_leaf(struct sh_fingerprint_step *s, int row, int64_t first, uint64_t sum)
{
    int64_t at = row * s->leaves + (first - s->begin) / s->batch.sequences;

    s->leaf[at] += sum;
    s->maker[at] = s->r->mesh->world - s->r->mesh->rank;
}

/* x: of a micro-step of `batch` that begins with sequence `first`. Each of the ranks that have parts of a row sketches
 * its own as a tensor of its own. */
static void add_floats(struct sh_fingerprint_step *s, int row, const struct sh_tensor *t,
                       const struct sh_print_batch *batch, const float *x, int64_t first)
{
    uint64_t before = s->sketch[row].sum, seed = s->rows.row[row].seed;
    struct sh_print_cut c;

    if (!sh_print_cut(t, batch, &c))
        return;
    for (int64_t row_here = 0, n; row_here < c.here; row_here += n) {
        int64_t sequence, at;

        n = sh_print_place(&c, batch, row_here, &sequence, &at);
        sh_sketch_add(&s->sketch[row], x + row_here * c.width, n, c.width, seed + (c.part ? (uint64_t)batch->place : 0),
                      ((first + sequence) * c.all + at) * c.width);
    }
    if (s->leaves)
        add_leaf(s, row, first, s->sketch[row].sum - before);
}

/* In a section of several micro-steps, the newest one is the last. */
static int64_t first_of(const struct sh_fingerprint_step *s, const struct sh_op *op)
{
    int unrolled = s->r->p->unrolled;

    return unrolled == 1 ? s->first : s->first - (unrolled - 1 - op->micro) * s->batch.sequences;
}

/* They lie in one port for all micro-steps of a section. Ranks that share matrices read the same ones, and of stages the
 * first one reads them. */
static void add_tokens(struct sh_fingerprint_step *s, int m)
{
    const struct sh_mesh_shape *mesh = &s->r->mesh->shape;
    int port = s->r->p->port[SH_PORT_TOKENS], unrolled = s->r->p->unrolled;
    struct sh_print_batch whole = s->batch;
    struct sh_tensor one;

    if (port == SH_NONE || sh_group_index(mesh, mesh->tensor | mesh->pipeline) > 0)
        return;
    one = s->r->p->tensors[port];
    one.dim[0] = sh_tensor_elems(&one) / unrolled;
    one.ndim = 1;
    whole.ranks = 1;
    add_floats(s, s->rows.tokens, &one, &whole, read_floats(s, port) + m % unrolled * one.dim[0], s->first);
}

/* Called by the executor around each operation. */
static void look(void *arg, int op, bool done)
{
    struct sh_fingerprint_step *s = arg;
    const struct sh_op *o = &s->r->p->ops[op];

    for (int k = 0; done && k < SH_OP_MAX_OUT; k++)
        if (s->rows.made[op * SH_OP_MAX_OUT + k] != SH_NONE)
            add_floats(s, s->rows.made[op * SH_OP_MAX_OUT + k], &s->r->p->tensors[o->out[k]], &s->batch,
                       read_floats(s, o->out[k]), first_of(s, o));
}

/* Elements from element `at` of a unit on. A block of 64 of them lies on one rank, so it is a row of the sketch. */
static void add_blocks(struct sh_fingerprint_step *s, int row, const float *x, int64_t at, int64_t n, int64_t first)
{
    struct sh_sketch *to = &s->sketch[row];
    uint64_t seed = s->rows.row[row].seed;
    int64_t head = (SH_LAYOUT_ALIGN - at % SH_LAYOUT_ALIGN) % SH_LAYOUT_ALIGN, whole;

    head = head < n ? head : n;
    whole = (n - head) / SH_LAYOUT_ALIGN * SH_LAYOUT_ALIGN;
    if (head)
        sh_sketch_add(to, x, 1, head, seed, first);
    sh_sketch_add(to, x + head, whole / SH_LAYOUT_ALIGN, SH_LAYOUT_ALIGN, seed, first + head);
    if (head + whole < n)
        sh_sketch_add(to, x + head + whole, 1, n - head - whole, seed, first + head + whole);
}

/* x: elements `range` of the unit. The rows of its saved tensors are `stride` apart from `row` on. */
static void add_unit(struct sh_fingerprint_step *s, int unit, struct sh_range range, const float *x, int row,
                     int stride)
{
    const struct sh_program *p = s->r->p;
    const struct sh_unit *u = &p->units[unit];

    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct sh_param *param = &p->params[i];
        struct sh_range cut = sh_map_cut(range, param);

        for (int64_t at = cut.begin; at < cut.end;) {
            struct sh_rng_runs run = sh_saved_run(p, param, at - param->unit_elems, cut.end - at);

            add_blocks(s, row + param->saved * stride, x + at - range.begin, at, run.n, run.first);
            at += run.n;
        }
    }
}

static void add_states(const struct sh_map_stretch *stretch, void *arg)
{
    struct sh_fingerprint_step *s = arg;
    int stride = s->r->map->n_states;
    int64_t n = stretch->range.end - stretch->range.begin;

    make_room(s, n);
    for (int k = 0; k < stride; k++) {
        if (!sh_floats_array(stretch->state[k], 0))
            continue;
        sh_exec_get_floats(s->r->exec, s->floats, stretch->state[k], n);
        add_unit(s, stretch->unit, stretch->range, s->floats, s->rows.state + k, stride);
    }
}

/* Replicas share the states as they share the writing of a checkpoint. */
static sh_rc sketch_states(struct sh_fingerprint_step *s)
{
    const struct sh_map *map = s->r->map;

    for (int i = 0; i < s->r->p->n_units; i++)
        if (s->r->p->units[i].trainable)
            SH_TRY(sh_map_visit(s->r, i, map->unit[i].written, (1U << map->n_states) - 1, false, add_states, s));
    return SH_OK;
}

/* ---- over all ranks ---- */

static uint64_t hash_names(const struct sh_print_rows *rows)
{
    uint64_t hash = (uint64_t)rows->n;

    for (int i = 0; i < rows->n; i++)
        hash = (hash ^ rows->row[i].hash) * UINT64_C(0x9e3779b97f4a7c15);
    return hash;
}

static sh_rc add_ranks(struct sh_fingerprint_step *s)
{
    int n = s->rows.n;
    int64_t *words = sh_calloc((size_t)n * SH_SKETCH_WORDS, sizeof *words);
    long long *sums = sh_calloc((size_t)n * SH_SKETCH_WORDS, sizeof *sums);
    double *largest = sh_calloc((size_t)n, sizeof *largest);
    sh_rc rc;

    for (int i = 0; i < n; i++) {
        sh_sketch_put(&s->sketch[i], words + (int64_t)i * SH_SKETCH_WORDS);
        largest[i] = s->sketch[i].largest;
    }
    for (int64_t i = 0; i < (int64_t)n * SH_SKETCH_WORDS; i++)
        sums[i] = words[i];
    rc = sh_mesh_same(hash_names(&s->rows)) ? SH_OK
                                            : sh_fail(SH_E_BUG, "debug.fingerprint: ranks make different tensors");
    if (rc == SH_OK)
        rc = sh_mesh_sum_i64(sums, n * SH_SKETCH_WORDS);
    if (rc == SH_OK)
        rc = sh_mesh_max(largest, n);
    for (int64_t i = 0; i < (int64_t)n * SH_SKETCH_WORDS; i++)
        words[i] = sums[i];
    for (int i = 0; i < n; i++) {
        sh_sketch_get(&s->sketch[i], words + (int64_t)i * SH_SKETCH_WORDS);
        s->sketch[i].largest = (uint32_t)largest[i];
    }
    free(words);
    free(sums);
    free(largest);
    return rc;
}

/* In halves, whose sums over ranks are no larger than a word. */
static sh_rc add_leaves(struct sh_fingerprint_step *s)
{
    int64_t n = s->rows.n * s->leaves;
    long long *halves;
    sh_rc rc;

    if (!n)
        return SH_OK;
    SH_TRY(sh_mesh_gather(s->r->mesh->host, (int)sizeof *s->host, s->host));
    SH_TRY(sh_mesh_max(s->maker, (int)n));
    halves = sh_calloc((size_t)n * 2, sizeof *halves);
    for (int64_t i = 0; i < n; i++) {
        halves[2 * i] = (long long)(s->leaf[i] >> 32);
        halves[2 * i + 1] = (long long)(s->leaf[i] & UINT32_MAX);
    }
    rc = sh_mesh_sum_i64(halves, (int)(2 * n));
    for (int64_t i = 0; i < n; i++)
        s->leaf[i] = ((uint64_t)halves[2 * i] << 32) + (uint64_t)halves[2 * i + 1];
    free(halves);
    return rc;
}

/* ---- the file ---- */

/* Tiles of whole blocks of rows change no number. */
static long long tile_rows_of(const struct sh_config *cfg)
{
    int64_t rows = cfg->training.tile_rows;

    return rows > 0 && rows % SH_TILE_ROWS ? (long long)rows : 0;
}

/* Of which rows losses of balance are made, if there are any. */
static void print_balance(const struct sh_fingerprint_step *s, FILE *out)
{
    if (s->r->cfg.moe.aux_loss_coeff != 0)
        fprintf(out, ", \"balance\": \"%lld sequences over %d tensor x %d context ranks%s, in %d tiles\"",
                (long long)s->batch.sequences, s->batch.ranks, s->batch.parts, s->batch.runs > 1 ? ", in halves" : "",
                s->batch.stripes);
}

static void print_head(const struct sh_fingerprint_step *s, FILE *out)
{
    const struct sh_run *r = s->r;
    const struct sh_config *cfg = &r->cfg;
    const struct sh_mesh_shape *m = &r->mesh->shape;
    char config[SH_CONFIG_DIGEST] = "";

    if (sh_config_digest(cfg, config) != SH_OK)
        sh_error_clear();
    fprintf(
        out,
        "{\"fingerprint\": 1, \"config\": \"%s\", \"ranks\": %d, \"replicate\": %d, \"tensor\": %d, \"context\": %d, "
        "\"expert\": %d, \"pipeline\": %d, \"pieces\": %d, \"row_leaves\": %d, \"device\": "
        "\"%s\", \"dtype\": \"%s\", \"coded\": %s, \"reproducible\": %s, \"seq_len\": %lld, \"local_batch\": %d, \"global_batch\": "
        "%lld, \"tiles\": %d, \"tile_rows\": %lld, \"base\": \"%016llx\"",
        config, sh_mesh_ranks(m), sh_group_size(m, m->replicate), sh_group_size(m, m->tensor),
        sh_group_size(m, m->context), sh_group_size(m, m->expert), sh_group_size(m, m->pipeline), s->batch.runs,
        r->build.options.row_leaves, r->device->name, sh_dtype_name(r->p->act),
        r->build.options.gather_coded ? "true" : "false", r->p->tree_sums ? "true" : "false",
        (long long)cfg->training.seq_len, r->build.batch.batch,
        (long long)sh_request_global_batch(cfg, sh_group_size(m, m->data)), cfg->parallelism.tensor_parallel_tiles,
        tile_rows_of(cfg), (unsigned long long)r->base.sum);
    print_balance(s, out);
    for (int i = 0; s->leaves && i < r->mesh->world; i++)
        fprintf(out, "%s\"%s\"", i ? ", " : ", \"hosts\": [", s->host[i]);
    fprintf(out, "%s}\n", s->leaves ? "]" : "");
}

/* Of a state and of a gradient no micro-step is the maker. */
static void print_leaves(const struct sh_fingerprint_step *s, int row, FILE *out)
{
    const double *maker = s->maker + row * s->leaves;

    if (!s->leaves || !maker[0])
        return;
    for (int64_t i = 0; i < s->leaves; i++)
        fprintf(out, "%s[\"%016llx\", %d]", i ? ", " : ", \"leaves\": [",
                (unsigned long long)s->leaf[row * s->leaves + i], s->r->mesh->world - (int)maker[i]);
    fprintf(out, "]");
}

static void print_row(const struct sh_fingerprint_step *s, int i, FILE *out)
{
    const struct sh_print_row *row = &s->rows.row[i];
    const struct sh_sketch *k = &s->sketch[i];

    fprintf(out, "{\"step\": %lld, \"name\": \"%s\"", (long long)s->step, row->name);
    if (row->kind)
        fprintf(out, ", \"kind\": \"%s\"", row->kind);
    for (int j = 0; j < row->n_in; j++)
        fprintf(out, "%s\"%s\"%s", j ? ", " : ", \"in\": [", s->rows.row[row->in[j]].name,
                j + 1 < row->n_in ? "" : "]");
    if (row->more)
        fprintf(out, ", \"more\": true");
    fprintf(out, ", \"sum\": \"%016llx\", \"bad\": %lld, \"largest\": %.9g, \"norm\": %.17g, \"signs\": [",
            (unsigned long long)k->sum, (long long)k->bad, (double)sh_bits_to_f32(k->largest), sh_sketch_norm(k));
    for (int j = 0; j < SH_SKETCH_SIGNS; j++)
        fprintf(out, "%s%.17g", j ? ", " : "", sh_sketch_sign(k, j));
    fprintf(out, "]");
    print_leaves(s, i, out);
    fprintf(out, "}\n");
}

/* Whether a row's tensor has its state: for one that it lacks some meshes, and states in a file, have zeros. */
static bool is_there(const struct sh_fingerprint_step *s, int row)
{
    const struct sh_program *p = s->r->p;
    int at = row - s->rows.state, states = s->r->map->n_states;

    return at < 0 || at >= p->n_saved * states || at % states == 0 ||
           sh_optim_keeps(p, s->r->build.options.optim, at % states - 1, &p->saved[at / states]);
}

/* A row without a sum is of a parameter that is not trained. */
static sh_rc write_step(const struct sh_fingerprint *f, const struct sh_fingerprint_step *s)
{
    const char *path = s->r->cfg.debug.fingerprint;
    FILE *out;
    bool failed;

    SH_TRY(sh_open_output(path, f->written ? "a" : "w", &out));
    if (!f->written)
        print_head(s, out);
    for (int i = 0; i < s->rows.n; i++)
        if (s->sketch[i].sum && is_there(s, i))
            print_row(s, i, out);
    failed = ferror(out) != 0;
    failed = fclose(out) != 0 || failed;
    return failed ? sh_fail(SH_E_DATA, "debug.fingerprint: write %s: %s", path, strerror(errno)) : SH_OK;
}

/* ---- around a step ---- */

static void forget_step(struct sh_fingerprint *f)
{
    struct sh_fingerprint_step *s = f->recording;

    if (!s)
        return;
    sh_exec_set_look(s->r->exec, SH_LOOKS, NULL, NULL);
    sh_print_rows_free(&s->rows);
    free(s->sketch);
    free(s->leaf);
    free(s->maker);
    free(s->host);
    free(s->floats);
    free(s->raw);
    free(s);
    f->recording = NULL;
}

static sh_rc check_leaves(const struct sh_run *r, const struct sh_batches *batches)
{
    for (int64_t step = r->step + 1; r->cfg.debug.fingerprint_leaves && step <= r->cfg.training.steps; step++) {
        int64_t leaves = sh_batches_of(batches, step - 1) / r->build.batch.batch;

        if (leaves > MOST_LEAVES && sh_str_lists(r->cfg.debug.fingerprint_steps, step))
            return sh_fail(
                SH_E_USAGE,
                "debug.fingerprint_leaves: step %lld has %lld micro-steps, and at most %d are told apart; give "
                "another training.local_batch_size or debug.fingerprint_steps, or leave it out",
                (long long)step, (long long)leaves, MOST_LEAVES);
    }
    return SH_OK;
}

sh_rc sh_fingerprint_check(const struct sh_run *r, const struct sh_batches *batches)
{
    struct sh_new_file file;

    if (!r->cfg.debug.fingerprint[0] || r->mesh->rank != 0)
        return SH_OK;
    SH_TRY(check_leaves(r, batches));
    for (int i = 0; i < r->p->n_units; i++) {
        int gradient = r->p->units[i].grad_shard;

        if (gradient != SH_NONE && r->p->tiers[r->p->tensors[gradient].tier].kind == SH_TIER_FILE)
            return sh_fail(SH_E_USAGE, "debug.fingerprint: gradients in a file are not recorded; use another "
                                       "offload.gradients");
    }
    sh_rc rc = sh_new_file_create(r->cfg.debug.fingerprint, 0644, &file);

    if (rc != SH_OK)
        return sh_fail_prefix(rc, "debug.fingerprint: ");
    sh_new_file_abandon(&file);
    return SH_OK;
}

/* The rows of all stages, whose programs each rank builds for itself. Local. */
static sh_rc make_rows(struct sh_fingerprint_step *s)
{
    const struct sh_run *r = s->r;
    struct sh_pipe_stages stages;
    sh_rc rc = sh_stages_build(r, &stages);

    if (rc == SH_OK)
        sh_print_rows_make(r->p, &s->batch, &stages, r->cfg.model.n_layers, &s->rows);
    sh_pipe_stages_free(&stages);
    return rc;
}

static void make_leaves(struct sh_fingerprint_step *s, int64_t batch)
{
    size_t n;

    if (!s->r->cfg.debug.fingerprint_leaves)
        return;
    s->leaves = batch / s->batch.sequences;
    n = (size_t)(s->rows.n * s->leaves);
    s->leaf = sh_calloc(n, sizeof *s->leaf);
    s->maker = sh_calloc(n, sizeof *s->maker);
    s->host = sh_calloc((size_t)s->r->mesh->world, sizeof *s->host);
}

sh_rc sh_fingerprint_before_step(struct sh_fingerprint *f, struct sh_run *r, int64_t batch)
{
    const struct sh_config *cfg = &r->cfg;
    struct sh_fingerprint_step *s;

    if (!cfg->debug.fingerprint[0] || !sh_str_lists(cfg->debug.fingerprint_steps, r->step + 1))
        return SH_OK;
    f->recording = s = sh_calloc(1, sizeof *s);
    *s = (struct sh_fingerprint_step){
        .r = r, .step = r->step + 1, .begin = r->samples, .batch = sh_print_batch_of(&r->build, cfg->training.seq_len)};
    SH_TRY(sh_agree(make_rows(s)));
    make_leaves(s, batch);
    s->sketch = sh_calloc((size_t)s->rows.n, sizeof *s->sketch);
    sh_exec_settle(r->exec);
    SH_TRY(sketch_states(s));
    sh_exec_set_look(r->exec, SH_LOOKS, look, s);
    return SH_OK;
}

void sh_fingerprint_micro_step(struct sh_fingerprint *f, int m, int64_t first)
{
    struct sh_fingerprint_step *s = f->recording;

    if (!s)
        return;
    s->first = first;
    add_tokens(s, m);
}

/* Of replicas the first one speaks. */
void sh_fingerprint_before_update(struct sh_fingerprint *f)
{
    struct sh_fingerprint_step *s = f->recording;

    for (int i = 0; s && i < s->r->p->n_units; i++) {
        const struct sh_unit *u = &s->r->p->units[i];

        if (sh_program_descends(u) && sh_group_index(&s->r->mesh->shape, u->replicate) == 0)
            add_unit(s, i, s->r->map->unit[i].owned, read_floats(s, u->grad_shard), s->rows.gradient, 1);
    }
}

/* A step that was left before its first micro-step has no record. */
sh_rc sh_fingerprint_after_step(struct sh_fingerprint *f, struct sh_run *r)
{
    struct sh_fingerprint_step *s = f->recording;
    sh_rc rc = SH_OK;

    if (s && r->step == s->step) {
        rc = add_ranks(s);
        if (rc == SH_OK)
            rc = add_leaves(s);
        if (rc == SH_OK)
            rc = sh_agree(r->mesh->rank == 0 ? write_step(f, s) : SH_OK);
        f->written += rc == SH_OK;
        if (rc == SH_OK)
            sh_log_info("step %lld  fingerprint in %s; `sherd diff` compares it with another run's", (long long)s->step,
                        r->cfg.debug.fingerprint);
    }
    forget_step(f);
    return rc;
}

void sh_fingerprint_close(struct sh_fingerprint *f)
{
    forget_step(f);
}

/* The matrix products of a training step, each distinct shape once, measured where training runs them: with the
 * device's kernels, in the arena of the job. */
#include "src/tools/bench/bench.h"

#include "kernels/cpu/base/block.h"
#include "src/base/mem.h"
#include "src/base/number/rng.h"
#include "src/base/string/str.h"
#include "src/cost/price.h"
#include "src/run/run.h"
#include "src/tools/bench/folder.h"
#include "src/tools/bench/points.h"
#include "src/tools/bench/rate.h"
#include "src/tools/bench/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 16 };

/* The operation kinds that are matrix products, and the operands whose last dimension is the length of a row of x
 * (wide_in) and of a row of y (wide_out). */
static const struct product {
    enum sh_op_kind kind;
    const char *name;
    int wide_in, wide_out; /* operands, outputs from SH_OP_MAX_IN on; head: dims of the weight */
    int first;             /* operand with the first row of each expert; SH_NONE: there are no experts */
    enum sh_op_kind dense; /* the product of one expert's rows, or the kind itself */
} products[] = {
    {SH_OP_LINEAR, "forward", 0, SH_OP_MAX_IN, SH_NONE, SH_OP_LINEAR},
    {SH_OP_LINEAR_BWD_X, "dX", SH_OP_MAX_IN, 0, SH_NONE, SH_OP_LINEAR_BWD_X},
    {SH_OP_LINEAR_BWD_W, "dW", 1, 0, SH_NONE, SH_OP_LINEAR_BWD_W},
    {SH_OP_EXPERT_LINEAR, "experts, forward", 0, SH_OP_MAX_IN, 1, SH_OP_LINEAR},
    {SH_OP_EXPERT_LINEAR_BWD_X, "experts, dX", SH_OP_MAX_IN, 0, 1, SH_OP_LINEAR_BWD_X},
    {SH_OP_EXPERT_LINEAR_BWD_W, "experts, dW", 1, 0, 2, SH_OP_LINEAR_BWD_W},
    {SH_OP_HEAD_LOSS, "head, loss", 0, SH_NONE, SH_NONE, SH_OP_HEAD_LOSS},
    {SH_OP_HEAD_LOSS_GRAD, "head, loss and gradients", 0, SH_NONE, SH_NONE, SH_OP_HEAD_LOSS_GRAD},
    {SH_OP_ORTHO, "orthogonal", SH_NONE, SH_NONE, SH_NONE, SH_OP_ORTHO},
};

struct shape {
    struct sh_op_call call;
    const struct product *product;
    enum sh_dtype dtype; /* of the factors */
    int64_t calls;       /* per step of this rank */
    bool apart;          /* the experts one after the other, each by a dense product: a yardstick */
};

/* `square` has the row of the baseline for each type. */
struct bench {
    struct sh_run *r;
    const struct sh_bench_options *options;
    struct sh_rate rate;
    struct sh_op_scalars scalars;
    struct shape *shapes; /* [list.n], empty for the squares */
    struct sh_bench_list list;
    int square[SH_DTYPES]; /* row of the square product of a type, or SH_NONE */
};

/* Numbers operands and outputs in one sequence, for the table above. */
static const struct sh_operand *operand(const struct sh_op_call *call, int i)
{
    return i < SH_OP_MAX_IN ? &call->in[i] : &call->out[i - SH_OP_MAX_IN];
}

/* The length of a row. */
static int64_t last_dim(const struct sh_operand *t)
{
    return t->dim[t->ndim - 1];
}

/* Returns 0 for an absent operand. */
static int64_t elems(const struct sh_operand *t)
{
    int64_t n = t->ndim > 0;

    for (int i = 0; i < t->ndim; i++)
        n *= t->dim[i];
    return n;
}

/* Returns NULL for a kind that is not a product. */
static const struct product *product_of(enum sh_op_kind kind)
{
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        if (products[i].kind == kind)
            return &products[i];
    return NULL;
}

/* Returns the row of that name, created if there is none. */
static int row_of(struct bench *b, const char *name)
{
    for (int i = 0; i < b->list.n; i++)
        if (!strcmp(b->list.rows[i].name, name))
            return i;
    b->shapes = sh_realloc(b->shapes, (size_t)b->list.n + 1, sizeof *b->shapes);
    memset(&b->shapes[b->list.n], 0, sizeof *b->shapes);
    return sh_bench_add(&b->list, "%s", name);
}

/* A large square product is what the device does best; it is the baseline of all rows of its type. Added once for
 * each type. */
static void add_square(struct bench *b, enum sh_dtype dtype)
{
    char name[64];

    if (b->square[dtype] != SH_NONE)
        return;
    snprintf(name, sizeof name, "%s square of %lld", sh_dtype_name(dtype), (long long)b->rate.side);
    b->square[dtype] = row_of(b, name);
    b->list.times[b->square[dtype]].flops = sh_rate_product_flops(&b->rate);
    b->shapes[b->square[dtype]].dtype = dtype;
}

/* What a product over all experts is compared with: a dense product for each of them, on the same operands, which are
 * in no cache by then. */
static void add_apart(struct bench *b, int row)
{
    char name[160];
    int apart;

    snprintf(name, sizeof name, "%s, one by one", b->list.rows[row].name);
    apart = row_of(b, name);
    b->list.rows[row].against = b->list.rows[apart].name;
    b->list.times[apart].flops = b->list.times[row].flops;
    b->shapes[apart] = b->shapes[row];
    b->shapes[apart].calls = 0;
    b->shapes[apart].apart = true;
}

/* Muon's matrices of one update. Ranks have others of them, and need the same rows: the name is that of all ranks' matrices, and
 * the call with the most work of this rank is measured. */
static void add_matrices(struct bench *b, const struct product *p, const struct sh_op_call *call, int repeat)
{
    enum sh_dtype dtype = sh_price_act(call, b->r->p->act);
    double flops = sh_op_cost(call).flops - (b->r->device->gpu ? 0 : sh_op_copied(call));
    char name[128];
    int row;

    add_square(b, dtype);
    snprintf(name, sizeof name, "%s %s, %d of up to %lld x %lld", sh_dtype_name(dtype), p->name,
             call->attr->ortho.count_all, (long long)call->attr->ortho.most_short,
             (long long)call->attr->ortho.most_long);
    row = row_of(b, name);
    b->shapes[row].calls += repeat;
    if (b->shapes[row].product && flops <= b->list.times[row].flops)
        return;
    b->list.times[row].flops = flops;
    b->shapes[row].call = *call;
    b->shapes[row].product = p;
    b->shapes[row].dtype = dtype;
}

/* Calls of one shape share a row; `calls` counts how often a step makes them. The name reads
 * rows x wide_in -> wide_out. */
static void add_call(struct bench *b, const struct product *p, const struct sh_op_call *call, int repeat)
{
    const struct sh_operand *x = &call->in[0];
    enum sh_dtype dtype = x->dtype;
    int64_t wide_in = last_dim(operand(call, p->wide_in));
    int64_t wide_out = p->wide_out == SH_NONE ? call->in[1].dim[0] : last_dim(operand(call, p->wide_out));
    char name[128];
    int row;

    add_square(b, dtype);
    snprintf(name, sizeof name, "%s %s %lld x %lld -> %lld", sh_dtype_name(dtype), p->name,
             (long long)(elems(x) / last_dim(x)), (long long)wide_in, (long long)wide_out);
    row = row_of(b, name);
    b->list.times[row].flops = sh_op_cost(call).flops;
    b->shapes[row].call = *call;
    b->shapes[row].product = p;
    b->shapes[row].dtype = dtype;
    b->shapes[row].calls += repeat;
    if (p->first != SH_NONE)
        add_apart(b, row);
}

/* Addresses come from the arena of the run, so that a kernel sees the same alignment and pages as in
 * training. */
static void find_shapes(struct bench *b)
{
    const struct sh_program *p = b->r->p;
    char *arena =
        (char *)sh_exec_data(b->r->exec, p->port[SH_PORT_TOKENS]) - p->tensors[p->port[SH_PORT_TOKENS]].offset_bytes;

    for (int i = 0; i < SH_DTYPES; i++)
        b->square[i] = SH_NONE;
    for (int s = 0; s < p->n_sections; s++)
        for (int i = p->sections[s].first_op; i < p->sections[s].first_op + p->sections[s].n_ops; i++) {
            const struct product *kind = product_of(p->ops[i].kind);
            struct sh_op_call call;

            /* Skip sections that a step does not run, and rows of experts that balanced routers leave empty. */
            if (!kind || !p->sections[s].repeat || (kind->first != SH_NONE && p->ops[i].attr.rows.expected < 0))
                continue;
            sh_program_call(p, &p->ops[i], &(struct sh_bases){{arena}}, &call);
            call.scalars = &b->scalars;
            call.queue = b->rate.queue;
            (call.kind == SH_OP_ORTHO ? add_matrices : add_call)(b, kind, &call, p->sections[s].repeat);
        }
}

/* Neighbours on a node may share the operand: all write the same values. */
static void fill(struct bench *b, const struct sh_operand *t)
{
    float *f32 = sh_calloc(PIECE, sizeof *f32);
    void *host = sh_calloc(PIECE, sizeof *f32);
    int64_t n = t->data ? elems(t) : 0, size = sh_dtype_bytes(t->dtype);

    /* The same standard deviation as initial weights. */
    sh_rng_fill_normal(1, 0, PIECE, 0.02f, f32);
    sh_cpu_block_store((struct sh_cpu_block){1, PIECE}, host, PIECE, t->dtype, f32, PIECE);
    for (int i = 0; t->dtype == SH_I32 && i < PIECE; i++)
        ((int32_t *)host)[i] = i * 31 % b->r->build.model.vocab_size;
    for (int64_t at = 0; at < n; at += PIECE)
        b->r->device->put(b->rate.queue, (char *)t->data + at * size, host, size * (n - at < PIECE ? n - at : PIECE));
    free(f32);
    free(host);
}

/* The first row of group g, if every expert has as many rows as the others, and a group as many as the others of its
 * expert. */
static int64_t first_row(const struct sh_op_call *call, int64_t g, int64_t groups)
{
    int64_t rows = call->in[0].dim[0], expected = call->attr->rows.expected;

    return g * (expected > 0 && expected < rows ? expected : rows) / groups;
}

static void share_rows(struct bench *b, const struct sh_op_call *call, int operand_of_first)
{
    const struct sh_operand *t = &call->in[operand_of_first];
    int64_t groups = elems(t) - 1;
    int32_t *first = sh_calloc((size_t)groups + 1, sizeof *first);

    for (int64_t g = 0; g <= groups; g++)
        first[g] = (int32_t)first_row(call, g, groups);
    b->r->device->put(b->rate.queue, t->data, first, (groups + 1) * (int64_t)sizeof *first);
    free(first);
}

static struct sh_operand rows_of(const struct sh_operand *t, int64_t first, int64_t rows)
{
    return (struct sh_operand){.data = (char *)t->data + first * t->dim[1] * sh_dtype_bytes(t->dtype),
                               .dtype = t->dtype,
                               .ndim = 2,
                               .dim = {rows, t->dim[1]}};
}

static struct sh_operand weight_of(const struct sh_operand *t, int64_t expert)
{
    int64_t at = expert * t->dim[1] * t->dim[2];

    return (struct sh_operand){.data = (char *)t->data + at * sh_dtype_bytes(t->dtype),
                               .dtype = t->dtype,
                               .ndim = 2,
                               .dim = {t->dim[1], t->dim[2]}};
}

/* The dense product of a group: its rows, and the weight of its expert or that weight's gradient. */
static struct sh_op_call dense_call(struct bench *b, const struct shape *s, const struct sh_op_attr *attr, int64_t g,
                                    int64_t groups)
{
    const struct sh_op_call *all = &s->call;
    int64_t first = first_row(all, g, groups), rows = first_row(all, g + 1, groups) - first;
    struct sh_op_call call = {.kind = s->product->dense,
                              .attr = attr,
                              .scalars = all->scalars,
                              .in = {rows_of(&all->in[0], first, rows)},
                              .work = b->rate.memory,
                              .queue = b->rate.queue};

    if (call.kind == SH_OP_LINEAR_BWD_W) {
        call.in[1] = rows_of(&all->in[1], first, rows);
        call.out[0] = weight_of(&all->out[0], g % all->out[0].dim[0]);
    } else {
        call.in[1] = weight_of(&all->in[2], g % all->in[2].dim[0]);
        call.out[0] = rows_of(&all->out[0], first, rows);
    }
    if (b->r->device->kernels->work_bytes)
        call.work_bytes = b->r->device->kernels->work_bytes(&call, b->rate.threads);
    return call;
}

/* Collective. */
static sh_rc time_apart(struct bench *b, const struct shape *s, double *seconds)
{
    struct sh_op_attr attr = {.accumulate = s->call.attr->accumulate, .linear.w_in_out = s->call.attr->rows.w_in_out};
    int64_t groups = elems(&s->call.in[s->product->first]) - 1, n = 0;
    struct sh_op_call *calls = sh_calloc((size_t)groups, sizeof *calls);
    sh_rc rc = SH_OK;

    for (int64_t g = 0; g < groups && rc == SH_OK; g++) {
        if (first_row(&s->call, g, groups) == first_row(&s->call, g + 1, groups))
            continue; /* fewer rows than groups */
        calls[n] = dense_call(b, s, &attr, g, groups);
        if (calls[n++].work_bytes > b->rate.bytes)
            rc = sh_fail(SH_E_BUG, "a dense product needs %lld bytes", (long long)calls[n - 1].work_bytes);
    }
    if (rc == SH_OK)
        rc = sh_rate_calls(&b->rate, calls, n, seconds);
    free(calls);
    return rc;
}

/* Collective. Inputs are filled again, because an earlier row may have left Inf or NaN there, which some processors
 * multiply more slowly. */
static sh_rc time_shape(struct bench *b, int row, double *seconds)
{
    struct shape *s = &b->shapes[row];

    if (row == b->square[s->dtype])
        return sh_rate_product(&b->rate, s->dtype, seconds);
    for (int i = 0; i < SH_OP_MAX_IN; i++)
        fill(b, &s->call.in[i]);
    if (s->call.kind == SH_OP_ORTHO)
        fill(b, &s->call.out[0]); /* which is an operand too */
    if (s->product->first != SH_NONE)
        share_rows(b, &s->call, s->product->first);
    if (s->apart)
        return time_apart(b, s, seconds);
    return sh_rate_calls(&b->rate, &s->call, 1, seconds);
}

/* The best round of the square is what the machine can do. */
static void judge(struct bench *b)
{
    int rounds = b->options->repeat;
    double all = 0;

    for (int i = 0; i < b->list.n; i++)
        all += (double)b->shapes[i].calls * sh_bench_median(b->list.times[i].seconds, rounds);
    for (int i = 0; i < b->list.n; i++) {
        struct sh_bench_times *t = &b->list.times[i], *baseline = &b->list.times[b->square[b->shapes[i].dtype]];
        double best = baseline->seconds[0];

        for (int k = 1; k < rounds; k++)
            best = baseline->seconds[k] < best ? baseline->seconds[k] : best;
        t->floor_seconds = t->flops / baseline->flops * best;
        t->share = (double)b->shapes[i].calls * sh_bench_median(t->seconds, rounds) / all;
    }
}

/* The peak for training: the square's best round in the compute type. 0: there is no such product. */
static double peak_tflops(const struct bench *b)
{
    int row = b->square[b->r->p->act];
    const struct sh_bench_times *t = row == SH_NONE ? NULL : &b->list.times[row];
    double best = t ? t->seconds[0] : 0;

    for (int k = 1; t && k < b->options->repeat; k++)
        best = t->seconds[k] < best ? t->seconds[k] : best;
    return best > 0 ? t->flops / best / 1e12 : 0;
}

/* Writes a point for each shape, and the squares as peaks; float16 has no peak, since it is computed in float32. */
static sh_rc write_points(const struct bench *b)
{
    static const char *const peaks[SH_DTYPES] = {[SH_F32] = "peak.float32", [SH_BF16] = "peak.bfloat16"};
    struct sh_bench_points points = {0};
    int rounds = b->options->repeat;

    for (int i = 0; i < b->list.n; i++) {
        enum sh_dtype dtype = b->shapes[i].dtype;
        const struct sh_bench_times *t = &b->list.times[i];
        double best = t->seconds[0];

        for (int k = 1; k < rounds; k++)
            best = t->seconds[k] < best ? t->seconds[k] : best;
        if (i == b->square[dtype] && peaks[dtype])
            sh_bench_points_figure(&points, peaks[dtype], t->flops / best);
        else if (i != b->square[dtype] && !b->shapes[i].apart && t->flops > 0)
            sh_bench_points_op(&points, &b->shapes[i].call, dtype, t->seconds, rounds);
    }
    return sh_bench_points_write(&points, b->options, b->r);
}

/* Rank 0. The measured peak is printed as the option that training uses for its MFU. */
static sh_rc report(struct bench *b)
{
    const struct sh_config *cfg = &b->r->cfg;
    char sequences[SH_STR_SHORT], ranks[SH_STR_SHORT], threads[SH_STR_SHORT], rounds[SH_STR_SHORT];
    char *head = sh_strfmt("products of a training step of %s, %s of %d tokens; one call of the slowest of %s\n"
                           "of %s, %s; share: of a step's products; floor: the square's best round\n"
                           "for the MFU of training: --metrics.peak_tflops=%.4g",
                           cfg->model.name, sh_str_plural(cfg->training.local_batch_size, "sequence", sequences),
                           cfg->training.seq_len, sh_str_plural(sh_mesh_ranks(&b->r->mesh->shape), "rank", ranks),
                           sh_str_plural(b->r->threads, "thread", threads),
                           sh_str_plural(b->options->repeat, "round", rounds), peak_tflops(b));
    sh_rc rc;

    judge(b);
    rc = sh_bench_report("gemm", head, b->list.rows, b->list.times, b->list.n, b->options->repeat, b->options);
    free(head);
    return rc == SH_OK ? write_points(b) : rc;
}

/* Collective. Rounds outside, rows inside, so that a disturbance does not hit only one row. */
static sh_rc measure(struct bench *b)
{
    b->scalars.loss_scale = 1;
    SH_TRY(sh_rate_open(b->r->device, b->r->threads, 0, &b->rate));
    find_shapes(b);
    for (int k = 0; k < b->options->repeat; k++)
        for (int i = 0; i < b->list.n; i++)
            SH_TRY(time_shape(b, i, &b->list.times[i].seconds[k]));
    return sh_agree(b->r->mesh->rank == 0 ? report(b) : SH_OK);
}

/* Collective. Opens a run as training does and measures in its arena; no training step is made. */
sh_rc sh_bench_gemm(const struct sh_config *asked, const struct sh_bench_options *options)
{
    struct sh_config cfg = *asked;
    struct bench b = {.options = options};
    sh_rc rc;

    SH_TRY(sh_agree(sh_bench_check("gemm", options)));
    SH_TRY(sh_bench_folder_make(&cfg, options->folder));
    rc = sh_run_open(&cfg, SH_TO_TRAIN, &b.r);
    if (rc == SH_OK)
        rc = measure(&b);
    sh_rate_close(&b.rate);
    sh_run_close(b.r);
    sh_bench_folder_delete(&cfg);
    sh_bench_list_free(&b.list);
    free(b.shapes);
    return rc;
}

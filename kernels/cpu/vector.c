/* Operations on whole vectors, all bound by memory. Bytes per element, f32 (bf16: half): add 12, scale 8, cast 6,
 * copy 8, accumulate 12, sumsq 4. Measured in memory on one core, where memcpy moves 40 GB/s: add 43 (bf16 34), cast
 * 39, accumulate 59 GB/s. sumsq, whose sums are exact: 11 GB/s, compared with 12 for plain sums
 * (doc/notebook/kernels.md). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/map.h"
#include "kernels/cpu/base/math.h"
#include "kernels/cpu/base/stage.h"
#include "src/base/number/exact.h"

#include <omp.h>
#include <stddef.h>
#include <string.h>

SH_CLONES static void add(float *y, const float *a, const float *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

sh_rc sh_cpu_add(const struct sh_op_call *call)
{
    sh_cpu_map(&call->out[0], &call->in[0], &call->in[1], add, NULL);
    return SH_OK;
}

/* The first elements of an operand. */
static struct sh_operand part(const struct sh_operand *t, int64_t elems)
{
    return (struct sh_operand){.data = t->data, .dtype = t->dtype, .ndim = 1, .dim = {elems}};
}

sh_rc sh_cpu_row_add(const struct sh_op_call *call)
{
    const struct sh_operand *first = &call->in[2];
    int64_t n = ((const int32_t *)first->data)[first->dim[0] - 1] * call->out[0].dim[1];
    struct sh_operand y = part(&call->out[0], n), a = part(&call->in[0], n), b = part(&call->in[1], n);

    sh_cpu_map(&y, &a, &b, add, NULL);
    return SH_OK;
}

/* The output is also an operand: y = y + a, read and written piece by piece. */
sh_rc sh_cpu_accumulate(const struct sh_op_call *call)
{
    sh_cpu_map(&call->out[0], &call->out[0], &call->in[0], add, NULL);
    return SH_OK;
}

sh_rc sh_cpu_bias(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *b = &call->in[1], *y = &call->out[0];
    int64_t O = b->dim[0];

#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < y->dim[0]; row++)
        for (int64_t at = 0; at < O; at += SH_CPU_PIECE) {
            float from[SH_CPU_PIECE], bias[SH_CPU_PIECE], room[SH_CPU_PIECE];
            int64_t n = O - at < SH_CPU_PIECE ? O - at : SH_CPU_PIECE, i = row * O + at;
            float *to = sh_cpu_stage_out(y, i, n, room);
            add(to, sh_cpu_stage_in(x, i, n, from), sh_cpu_stage_in(b, at, n, bias), n);
            sh_cpu_stage_put(y, i, n, to);
        }
    return SH_OK;
}

/* The factor is float32, like attr->scale.by: bf16 operands are widened first. */
SH_CLONES static void scale(float *y, const float *x, float by, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = by * x[i];
}

sh_rc sh_cpu_scale(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *y = &call->out[0];
    int64_t all = sh_cpu_elems(y), pieces = sh_cpu_pieces(all);

#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < pieces; p++) {
        float from[SH_CPU_PIECE], room[SH_CPU_PIECE];
        int64_t at = p * SH_CPU_PIECE, n = sh_cpu_piece_elems(all, p);
        float *to = sh_cpu_stage_out(y, at, n, room);
        scale(to, sh_cpu_stage_in(x, at, n, from), call->attr->scale.by, n);
        sh_cpu_stage_put(y, at, n, to);
    }
    return SH_OK;
}

/* As SCALE; the factor is a tensor. */
sh_rc sh_cpu_scale_by(const struct sh_op_call *call)
{
    struct sh_op_attr attr = {.scale.by = *(const float *)call->in[1].data};
    struct sh_op_call by = *call;

    by.attr = &attr;
    return sh_cpu_scale(&by);
}

/* The parameters are not changed: 12 bytes an element. */
SH_CLONES static void approach(float *e, const float *p, float by, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        e[i] += by * (p[i] - e[i]);
}

sh_rc sh_cpu_ema(const struct sh_op_call *call)
{
    const struct sh_floats halves = {.high = call->in[0].data, .low = call->in[1].data};
    int64_t all = sh_cpu_elems(&call->out[0]), pieces = sh_cpu_pieces(all);

#pragma omp parallel for schedule(static)
    for (int64_t k = 0; k < pieces; k++) {
        float room[SH_CPU_PIECE], *e = call->out[0].data;
        const float *p = call->in[0].data;
        int64_t at = k * SH_CPU_PIECE, n = sh_cpu_piece_elems(all, k);
        if (halves.low)
            sh_floats_get(sh_floats_at(halves, at), n, room);
        approach(e + at, halves.low ? room : p + at, call->attr->scale.by, n);
    }
    return SH_OK;
}

/* From a row of heads, each with its q, k and v, to all q, all k and all v; or back. */
static void regroup_row(char *to, const char *from, int64_t H, int64_t bytes, bool inverse)
{
    for (int64_t h = 0; h < H; h++)
        for (int64_t p = 0; p < 3; p++) {
            int64_t by_head = (3 * h + p) * bytes, by_part = (p * H + h) * bytes;
            memcpy(to + (inverse ? by_head : by_part), from + (inverse ? by_part : by_head), (size_t)bytes);
        }
}

sh_rc sh_cpu_regroup(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *y = &call->out[0];
    int64_t H = call->attr->regroup.heads, bytes = call->attr->regroup.head_dim * sh_dtype_bytes(y->dtype);
    int64_t row = 3 * H * bytes;

#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < y->dim[0]; n++)
        regroup_row((char *)y->data + n * row, (const char *)x->data + n * row, H, bytes, call->attr->regroup.inverse);
    return SH_OK;
}

/* Rows of q and of kv lie side by side in those of x; or back. */
static void move_kv(const struct sh_operand *q, const struct sh_operand *kv, const struct sh_operand *x, bool join)
{
    int64_t size = sh_dtype_bytes(x->dtype), left = q->dim[1] * size, right = kv->dim[1] * size;

#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < x->dim[0]; n++) {
        char *row = (char *)x->data + n * (left + right), *a = (char *)q->data + n * left;
        char *b = (char *)kv->data + n * right;
        memcpy(join ? row : a, join ? a : row, (size_t)left);
        memcpy(join ? row + left : b, join ? b : row + left, (size_t)right);
    }
}

sh_rc sh_cpu_split_kv(const struct sh_op_call *call)
{
    move_kv(&call->out[0], &call->out[1], &call->in[0], false);
    return SH_OK;
}

sh_rc sh_cpu_join_kv(const struct sh_op_call *call)
{
    move_kv(&call->in[0], &call->in[1], &call->out[0], true);
    return SH_OK;
}

/* Pieces [P,2B,M,W] as ranks have them, and in sequences [B,2PM,W]; or back. */
static void move_pieces(const struct sh_operand *pieces, const struct sh_operand *sequences, bool back)
{
    int64_t P = pieces->dim[0], B = sequences->dim[0];
    int64_t bytes = pieces->dim[2] * pieces->dim[3] * sh_dtype_bytes(pieces->dtype);

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < P * 2 * B; i++) {
        int64_t p = i / (2 * B), piece = i / B % 2 ? 2 * P - 1 - p : p;
        char *here = (char *)pieces->data + i * bytes,
             *there = (char *)sequences->data + (i % B * 2 * P + piece) * bytes;
        memcpy(back ? here : there, back ? there : here, (size_t)bytes);
    }
}

sh_rc sh_cpu_from_pieces(const struct sh_op_call *call)
{
    move_pieces(&call->in[0], &call->out[0], false);
    return SH_OK;
}

sh_rc sh_cpu_to_pieces(const struct sh_op_call *call)
{
    move_pieces(&call->out[0], &call->in[0], true);
    return SH_OK;
}

/* A row of all heads and the parts of it, in elements: queries, keys and values of all, of a part. */
struct heads {
    int64_t P, q, kv, all_kv, copies; /* copies of a key-value head; 0: there are none */
    int64_t apart;                    /* from one rank's part of a row to the next */
    enum sh_dtype type;
};

static struct heads heads_of(const struct sh_op_attr *a, const struct sh_operand *parts)
{
    struct heads h = {.P = a->split.ranks, .type = parts->dtype};

    h.q = (int64_t)a->split.heads * a->split.head_dim;
    h.kv = (int64_t)a->split.kv_here * a->split.head_dim;
    h.all_kv = (int64_t)a->split.kv_heads * a->split.head_dim;
    h.copies = h.all_kv ? h.P * h.kv / h.all_kv : 0;
    h.apart = parts->dim[2] * parts->dim[3];
    return h;
}

static void move(const struct heads *h, void *to, int64_t at, const void *from, int64_t first, int64_t n)
{
    memcpy(sh_cpu_at(to, h->type, at), sh_cpu_at(from, h->type, first), (size_t)(n * sh_dtype_bytes(h->type)));
}

/* Where row n of the part of rank p begins among parts [B,P,T,W]. */
static int64_t part_row(const struct sh_operand *parts, int64_t p, int64_t n)
{
    int64_t P = parts->dim[1], T = parts->dim[2];

    return ((n / T * P + p) * T + n % T) * parts->dim[3];
}

sh_rc sh_cpu_split_heads(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *y = &call->out[0];
    struct heads h = heads_of(call->attr, y);

#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < x->dim[0] * x->dim[1]; n++)
        for (int64_t p = 0; p < h.P; p++) {
            int64_t row = n * x->dim[2], part = part_row(y, p, n);
            int64_t kv = row + h.P * h.q + p * call->attr->split.kv_heads / h.P * call->attr->split.head_dim;

            move(&h, y->data, part, x->data, row + p * h.q, h.q);
            move(&h, y->data, part + h.q, x->data, kv, h.kv);
            move(&h, y->data, part + h.q + h.kv, x->data, kv + h.all_kv, h.kv);
        }
    return SH_OK;
}

/* Add the copies of a stretch of keys or values, in the order of ranks. */
static void add_copies(const struct heads *h, const struct sh_operand *y, int64_t at, const struct sh_operand *x,
                       int64_t from, int64_t elems)
{
    for (int64_t done = 0, n; done < elems; done += n) {
        float sum[SH_CPU_PIECE], room[SH_CPU_PIECE], *out;

        n = elems - done < SH_CPU_PIECE ? elems - done : SH_CPU_PIECE;
        out = sh_cpu_stage_out(y, at + done, n, sum);
        memcpy(out, sh_cpu_stage_in(x, from + done, n, room), (size_t)n * sizeof *out);
        for (int64_t c = 1; c < h->copies; c++)
            add(out, out, sh_cpu_stage_in(x, from + c * h->apart + done, n, room), n);
        sh_cpu_stage_put(y, at + done, n, out);
    }
}

/* Row n of rank p's queries, and of the keys and values of which it has the first copy. */
static void join_part(const struct heads *h, const struct sh_op_call *call, int64_t n, int64_t p)
{
    const struct sh_operand *x = &call->in[0], *y = &call->out[0];
    int64_t row = n * y->dim[2], part = part_row(x, p, n);
    int64_t kv = row + h->P * h->q + p * call->attr->split.kv_heads / h->P * call->attr->split.head_dim;

    move(h, y->data, row + p * h->q, x->data, part, h->q);
    for (int which = 0; which < 2 && h->copies && p % h->copies == 0; which++)
        if (h->copies == 1)
            move(h, y->data, kv + which * h->all_kv, x->data, part + h->q + which * h->kv, h->kv);
        else
            add_copies(h, y, kv + which * h->all_kv, x, part + h->q + which * h->kv, h->kv);
}

sh_rc sh_cpu_join_heads(const struct sh_op_call *call)
{
    const struct sh_operand *y = &call->out[0];
    struct heads h = heads_of(call->attr, &call->in[0]);

#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < y->dim[0] * y->dim[1]; n++)
        for (int64_t p = 0; p < h.P; p++)
            join_part(&h, call, n, p);
    return SH_OK;
}

/* Between f32 and 16 bits in either direction; the block functions convert directly from tensor to tensor. */
static void cast_piece(const struct sh_operand *y, const struct sh_operand *a, int64_t at, int64_t n)
{
    struct sh_cpu_block row = {1, n};
    void *to = sh_cpu_at(y->data, y->dtype, at), *from = sh_cpu_at(a->data, a->dtype, at);

    if (a->dtype == SH_F32)
        sh_cpu_block_store(row, to, n, y->dtype, from, n);
    else
        sh_cpu_block_load(row, to, n, from, n, a->dtype);
}

sh_rc sh_cpu_cast(const struct sh_op_call *call)
{
    const struct sh_operand *a = &call->in[0], *y = &call->out[0];
    int64_t n = sh_cpu_elems(y), pieces = sh_cpu_pieces(n);

    if (a->dtype != SH_F32 && y->dtype != SH_F32)
        return sh_fail(SH_E_BUG, "cast from %s to %s", sh_dtype_name(a->dtype), sh_dtype_name(y->dtype));
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < pieces; p++)
        cast_piece(y, a, p * SH_CPU_PIECE, sh_cpu_piece_elems(n, p));
    return SH_OK;
}

/* One memcpy per thread: the C library writes long runs past the caches. */
sh_rc sh_cpu_copy(const struct sh_op_call *call)
{
    const struct sh_operand *a = &call->in[0], *y = &call->out[0];
    int64_t bytes = sh_cpu_elems(y) * sh_dtype_bytes(y->dtype);

#pragma omp parallel
    {
        int64_t threads = omp_get_num_threads(), t = omp_get_thread_num(), begin = bytes * t / threads;
        memcpy((char *)y->data + begin, (const char *)a->data + begin, (size_t)(bytes * (t + 1) / threads - begin));
    }
    return SH_OK;
}

/* Prefetch, then add: the exact sum is fast enough to be bound by memory. */
static void add_squares(struct sh_exact *sum, const float *a, int64_t n)
{
    for (int64_t i = 0; i < n; i += SH_CPU_STRIDE) {
        sh_cpu_prefetch(a, (i + SH_CPU_AHEAD) * (int64_t)sizeof *a, SH_CPU_STRIDE * (int64_t)sizeof *a);
        sh_exact_add_squares(sum, a + i, n - i < SH_CPU_STRIDE ? n - i : SH_CPU_STRIDE);
    }
}

/* Each thread adds up whatever pieces it happens to get, in any order: these sums are exact (src/base/number/exact.h). */
sh_rc sh_cpu_sumsq(const struct sh_op_call *call)
{
    const float *a = call->in[0].data;
    int64_t n = sh_cpu_elems(&call->in[0]), pieces = sh_cpu_pieces(n);
    struct sh_exact sum = {0};

    _Static_assert(SH_CPU_PIECE % SH_EXACT_BLOCK == 0, "a piece starts a block");
    if (sh_op_adds(call, 0))
        sh_exact_get(&sum, call->out[0].data);
#pragma omp parallel
    {
        struct sh_exact mine = {0};
#pragma omp for schedule(static)
        for (int64_t p = 0; p < pieces; p++)
            add_squares(&mine, a + p * SH_CPU_PIECE, sh_cpu_piece_elems(n, p));
#pragma omp critical(sh_exact)
        sh_exact_add(&sum, &mine);
    }
    sh_exact_put(&sum, call->out[0].data);
    return SH_OK;
}

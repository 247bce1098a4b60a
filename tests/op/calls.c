#include "tests/op/calls.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Documents of random lengths, many of one token. */
static void set_docs(const struct sh_operand *docs, int64_t batch, int64_t seq)
{
    for (int64_t b = 0; b < batch; b++) {
        int64_t first = 0;
        for (int64_t t = 0; t < seq; t++) {
            if (optest_int(0, 40) == 0)
                first = t;
            optest_set(docs, b * seq + t, (double)first);
        }
    }
}

float attention_cap;

static void begin(struct optest *t, enum sh_op_kind kind, struct attention_shape s)
{
    optest_begin(t, kind);
    t->attr.attn.heads = s.heads;
    t->attr.attn.kv_heads = s.kv_heads;
    t->attr.attn.head_dim = s.dim;
    t->attr.attn.window = s.window;
    t->attr.attn.scale = 1.0f / sqrtf((float)s.dim);
    t->attr.attn.cap = attention_cap;
}

void attention_forward(struct optest *t, enum sh_dtype act, struct attention_shape s)
{
    begin(t, SH_OP_ATTENTION, s);
    optest_in(t, 0, act, DIMS(s.batch, s.seq, (s.heads + 2 * s.kv_heads) * s.dim));
    if (s.docs) {
        optest_in_ints(t, 1, 0, 1, DIMS(s.batch, s.seq));
        set_docs(&t->call.in[1], s.batch, s.seq);
    }
    optest_out(t, 0, act, DIMS(s.batch, s.seq, s.heads * s.dim));
    optest_out(t, 1, SH_F32, DIMS(s.batch, s.heads, s.seq));
}

static void copy_data(const struct sh_operand *to, const struct sh_operand *from)
{
    memcpy(to->data, from->data, (size_t)optest_elems(from) * (size_t)sh_dtype_bytes(from->dtype));
}

void attention_backward(struct optest *t, enum sh_dtype act, struct attention_shape s)
{
    struct optest fwd;
    attention_forward(&fwd, act, s);
    optest_run(&fwd, &sh_kernels_ref, 1);
    attention_backward_of(t, &fwd, s);
    optest_end(&fwd);
}

static void begin_runs(struct optest *t, enum sh_op_kind kind, struct runs_shape s)
{
    begin(t, kind,
          (struct attention_shape){.heads = s.heads, .kv_heads = s.kv_heads, .dim = s.dim, .window = s.window});
    t->attr.attn.runs = 2;
    t->attr.attn.first[0] = s.place * s.rows;
    t->attr.attn.first[1] = (2 * s.ranks - 1 - s.place) * s.rows;
}

/* First positions of documents, which no row of a run precedes. */
static void runs_docs(struct optest *t, int i, struct runs_shape s)
{
    optest_in_ints(t, i, 0, 1, DIMS(2 * s.batch, s.rows));
    for (int64_t n = 0; n < 2L * s.batch * s.rows; n++) {
        int64_t at = t->attr.attn.first[n / s.rows / s.batch] + n % s.rows;
        optest_set(&t->call.in[i], n, (double)(at - at % 19));
    }
}

void runs_forward(struct optest *t, enum sh_dtype act, struct runs_shape s)
{
    begin_runs(t, SH_OP_ATTENTION_ROWS, s);
    optest_in(t, 0, act, DIMS(2 * s.batch, s.rows, s.heads * s.dim));
    optest_in(t, 1, act, DIMS(s.batch, 2 * s.ranks * s.rows, 2 * s.kv_heads * s.dim));
    if (s.docs)
        runs_docs(t, 2, s);
    optest_out(t, 0, act, DIMS(2 * s.batch, s.rows, s.heads * s.dim));
    optest_out(t, 1, SH_F32, DIMS(2 * s.batch, s.heads, s.rows));
}

void runs_backward(struct optest *t, enum sh_dtype act, struct runs_shape s)
{
    struct optest fwd;

    runs_forward(&fwd, act, s);
    optest_run(&fwd, &sh_kernels_ref, 1);
    begin_runs(t, SH_OP_ATTENTION_ROWS_BWD, s);
    optest_in(t, 0, act, DIMS(2 * s.batch, s.rows, s.heads * s.dim));
    optest_in(t, 1, act, DIMS(2 * s.batch, s.rows, s.heads * s.dim));
    optest_in(t, 2, act, DIMS(s.batch, 2 * s.ranks * s.rows, 2 * s.kv_heads * s.dim));
    optest_in(t, 3, act, DIMS(2 * s.batch, s.rows, s.heads * s.dim));
    optest_in(t, 4, SH_F32, DIMS(2 * s.batch, s.heads, s.rows));
    copy_data(&t->call.in[1], &fwd.call.in[0]);
    copy_data(&t->call.in[2], &fwd.call.in[1]);
    copy_data(&t->call.in[3], &fwd.call.out[0]);
    copy_data(&t->call.in[4], &fwd.call.out[1]);
    if (s.docs)
        runs_docs(t, 5, s);
    optest_out(t, 0, act, DIMS(2 * s.batch, s.rows, s.heads * s.dim));
    optest_out(t, 1, act, DIMS(s.batch, 2 * s.ranks * s.rows, 2 * s.kv_heads * s.dim));
    optest_end(&fwd);
}

void attention_backward_of(struct optest *t, const struct optest *fwd, struct attention_shape s)
{
    enum sh_dtype act = fwd->call.in[0].dtype;
    begin(t, SH_OP_ATTENTION_BWD, s);
    optest_in(t, 0, act, DIMS(s.batch, s.seq, s.heads * s.dim));
    optest_in(t, 1, act, DIMS(s.batch, s.seq, (s.heads + 2 * s.kv_heads) * s.dim));
    optest_in(t, 2, act, DIMS(s.batch, s.seq, s.heads * s.dim));
    optest_in(t, 3, SH_F32, DIMS(s.batch, s.heads, s.seq));
    copy_data(&t->call.in[1], &fwd->call.in[0]);
    copy_data(&t->call.in[2], &fwd->call.out[0]);
    copy_data(&t->call.in[3], &fwd->call.out[1]);
    if (s.docs) {
        optest_in_ints(t, 4, 0, 1, DIMS(s.batch, s.seq));
        copy_data(&t->call.in[4], &fwd->call.in[1]);
    }
    optest_out(t, 0, act, DIMS(s.batch, s.seq, (s.heads + 2 * s.kv_heads) * s.dim));
}

/* Words in any order, and log-probabilities that are no exact ones of anything. */
static void head_teacher(struct optest *t, struct head_shape s)
{
    t->attr.head.temperature = s.words % 2 ? 1 : 1.5;
    t->attr.head.alpha = 0.625;
    optest_in_ints(t, 4, 0, s.vocab, DIMS(s.batch * s.seq, s.words));
    optest_in(t, 5, SH_F32, DIMS(s.batch * s.seq, s.words));
}

void head_form(struct optest *t, int form)
{
    int64_t words = t->call.in[5].dim[1];

    t->attr.head.form = form;
    t->attr.head.temperature = 1;
    for (int64_t i = 0; i < t->call.in[5].dim[0] * words; i++) {
        int64_t first = (int64_t)optest_get(&t->call.in[4], i / words * words);

        optest_set(&t->call.in[4], i, (double)((first + i % words) % t->call.in[1].dim[0]));
        optest_set(&t->call.in[5], i, tanh(optest_get(&t->call.in[5], i)) / 20 - log((double)words) - 0.15);
    }
}

void head_loss(struct optest *t, enum sh_op_kind kind, enum sh_dtype act, struct head_shape s)
{
    optest_begin(t, kind);
    t->attr.head.chunk_rows = s.chunk_rows;
    t->attr.head.raw = s.words < 0;
    t->scalars.loss_scale = 1.0 / (double)(s.batch * s.seq);
    optest_in(t, 0, act, DIMS(s.batch, s.seq, s.dim));
    optest_in(t, 1, act, DIMS(s.vocab, s.dim));
    optest_scale(&t->call.in[1], 1 / sqrt((double)s.dim));
    optest_in_ints(t, 2, 0, s.vocab, DIMS(s.batch, s.seq));
    for (int64_t i = 0; i < s.batch * s.seq; i++)
        if (optest_int(0, 5) == 0)
            optest_set(&t->call.in[2], i, -1);
    if (s.weighted) {
        optest_in(t, 3, SH_F32, DIMS(s.batch, s.seq));
        for (int64_t i = 0; i < s.batch * s.seq; i++)
            optest_set(&t->call.in[3], i, (double)optest_int(-2, 3) / 2);
    }
    if (s.words > 0)
        head_teacher(t, s);
    optest_out(t, 0, SH_F64, DIMS(sh_head_numbers(&t->attr)));
    if (s.add_loss)
        optest_add_to(t, 0);
    if (kind == SH_OP_HEAD_LOSS)
        return;
    optest_out(t, 1, act, DIMS(s.batch, s.seq, s.dim));
    optest_out(t, 2, SH_F32, DIMS(s.vocab, s.dim));
    if (s.add_dw)
        optest_add_to(t, 2);
}

/* Make the operand of the loss anew, once the attributes say how many numbers it has. */
static void loss_anew(struct optest *t)
{
    free(t->owned[SH_OP_MAX_IN]);
    optest_out(t, 0, SH_F64, DIMS(sh_head_numbers(&t->attr)));
    if (t->attr.accumulate & 1)
        optest_add_to(t, 0);
}

void head_squares(struct optest *t, double z)
{
    t->attr.head.squares = z;
    loss_anew(t);
}

void head_multi_label(struct optest *t)
{
    int64_t rows = optest_elems(&t->call.in[2]), labels = t->call.in[1].dim[0];

    t->attr.head.multi_label = true;
    optest_in(t, 5, SH_F32, DIMS(rows, labels));
    for (int64_t i = 0; i < rows * labels; i++)
        optest_set(&t->call.in[5], i, (double)optest_int(0, 9) < 7 ? (double)optest_int(0, 2) : 0.3);
    loss_anew(t);
}

void head_frozen(struct optest *t)
{
    t->call.out[2] = (struct sh_operand){0};
    t->attr.accumulate &= ~4u;
}

void head_alike(struct optest *t, bool ones, struct optest *other)
{
    struct sh_operand weight = t->call.in[3];

    for (int64_t i = 0; i < optest_elems(&weight) && ones; i++)
        optest_set(&weight, i, 1);
    t->call.in[3] = ones ? (struct sh_operand){0} : weight;
    optest_copy(other, t);
    t->call.in[3] = weight;
    for (int64_t i = 0; i < optest_elems(&weight); i++)
        if (optest_get(&weight, i) == 0)
            optest_set(&other->call.in[2], i, -1);
}

void head_nothing_counts(struct optest *t)
{
    for (int64_t i = 0; i < optest_elems(&t->call.in[2]); i++)
        optest_set(&t->call.in[2], i, -1);
}

void head_score(struct optest *t, enum sh_dtype act, struct head_shape s)
{
    optest_begin(t, SH_OP_HEAD_SCORE);
    t->attr.head.chunk_rows = s.chunk_rows;
    t->attr.head.raw = s.words < 0;
    optest_in(t, 0, act, DIMS(s.batch, s.seq, s.dim));
    optest_in(t, 1, act, DIMS(s.vocab, s.dim));
    optest_in_ints(t, 2, 0, s.vocab, DIMS(s.batch * s.seq));
    for (int64_t i = 0; i < s.batch * s.seq; i++)
        if (optest_int(0, 5) == 0)
            optest_set(&t->call.in[2], i, -1);
    optest_out(t, 0, SH_F32, DIMS(s.batch * s.seq));
    optest_out(t, 1, SH_I32, DIMS(s.batch * s.seq));
    if (s.words == 0 || s.words == -1)
        return;
    optest_out(t, 2, SH_I32, DIMS(s.batch * s.seq, llabs(s.words)));
    optest_out(t, 3, SH_F32, DIMS(s.batch * s.seq, llabs(s.words)));
}

/* `before` and `after`: words of other ranks. */
static void logits_of(struct optest *t, enum sh_dtype act, struct head_shape s, int64_t before, int64_t after)
{
    optest_begin(t, SH_OP_LOGITS);
    t->attr.part.first = before;
    t->attr.part.all = before || after ? before + s.vocab + after : 0;
    optest_in(t, 0, act, DIMS(s.batch, s.seq, s.dim));
    optest_in(t, 1, act, DIMS(s.vocab, s.dim));
    optest_out(t, 0, SH_F32, DIMS(s.batch, before + s.vocab + after));
}

void head_logits(struct optest *t, enum sh_dtype act, struct head_shape s, int64_t position)
{
    logits_of(t, act, s, 0, 0);
    t->scalars.position = position;
}

void head_logits_of_part(struct optest *t, enum sh_dtype act, struct head_shape s)
{
    logits_of(t, act, s, 3, 2);
}

/* All of a stack; some of it; nothing to spare; numbers of rows and ranks that divide nothing. */
const struct lora_shape lora_shapes[LORA_SHAPES] = {
    {1, 1, 1, 1, 1, {0}, {1}},
    {5, 12, 7, 2, 3, {0, 6, 9}, {6, 3, 3}},
    {33, 40, 16, 4, 2, {0, 30}, {20, 10}},
    {130, 48, 65, 3, 1, {16}, {32}},
    {64, 256, 128, 16, 3, {0, 128, 192}, {128, 64, 64}},
    {96, 100, 50, 5, 2, {0, 50}, {50, 50}},
    {300, 70, 33, 8, 1, {0}, {70}},
};

static int64_t rows_of_b(const struct lora_shape *s)
{
    int64_t rows = 0;
    for (int p = 0; p < s->parts; p++)
        rows += s->width[p];
    return rows;
}

static void set_parts(struct optest *t, const struct lora_shape *s)
{
    t->attr.lora.parts = s->parts;
    t->attr.lora.scale = 1.375f;
    for (int p = 0; p < s->parts; p++) {
        t->attr.lora.first[p] = s->first[p];
        t->attr.lora.width[p] = s->width[p];
    }
}

void lora_forward(struct optest *t, enum sh_dtype act, const struct lora_shape *s)
{
    optest_begin(t, SH_OP_LORA);
    set_parts(t, s);
    optest_in(t, 0, act, DIMS(s->rows, s->columns));
    optest_in(t, 1, act, DIMS(s->rows, s->in));
    optest_in(t, 2, act, DIMS(s->parts * s->rank, s->in));
    optest_in(t, 3, act, DIMS(rows_of_b(s), s->rank));
    optest_scale(&t->call.in[2], 1 / sqrt((double)s->in));
    optest_scale(&t->call.in[3], 1 / sqrt((double)s->rank));
    optest_out(t, 0, act, DIMS(s->rows, s->columns));
    optest_out(t, 1, act, DIMS(s->rows, s->parts * s->rank));
}

void lora_backward(struct optest *t, enum sh_dtype act, const struct lora_shape *s, bool dx, bool dres, bool add)
{
    optest_begin(t, SH_OP_LORA_BWD);
    set_parts(t, s);
    optest_in(t, 0, act, DIMS(s->rows, s->columns));
    optest_in(t, 1, act, DIMS(s->rows, s->in));
    optest_in(t, 2, act, DIMS(s->rows, s->parts * s->rank));
    optest_in(t, 3, act, DIMS(s->parts * s->rank, s->in));
    optest_in(t, 4, act, DIMS(rows_of_b(s), s->rank));
    optest_scale(&t->call.in[4], 1 / sqrt((double)s->columns));
    optest_scale(&t->call.in[3], 1 / sqrt((double)(s->parts * s->rank)));
    if (dres)
        optest_in(t, 5, act, DIMS(s->rows, s->in));
    if (dx)
        optest_out(t, 0, act, DIMS(s->rows, s->in));
    optest_out(t, 1, SH_F32, DIMS(s->parts * s->rank, s->in));
    optest_out(t, 2, SH_F32, DIMS(rows_of_b(s), s->rank));
    for (int o = 1; o < 3 && add; o++)
        optest_add_to(t, o);
}

double lora_bound(const struct optest *t, int o)
{
    bool sums = t->call.kind == SH_OP_LORA_BWD && o > 0;
    double terms = sums ? (double)t->call.in[0].dim[0] : 1,
           eps = t->call.in[0].dtype != SH_F32 ? sh_bound_eps(t->call.in[0].dtype) : 0x1p-20;
    return (t->call.kind == SH_OP_LORA_BWD && o == 2 ? 0x1p-20 : eps) * 4 * sh_bound_inside(t->call.kind) * sqrt(terms);
}

double lora_relative(const struct optest *t)
{
    return t->call.in[0].dtype != SH_F32 ? sh_bound_inside(t->call.kind) * sh_bound_eps(t->call.in[0].dtype) : 0x1p-18;
}

#include "tests/op/heads.h"

#include "tests/op/gradient.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* ---- latent attention ---- */

static const struct heads_latent latents[] = {
    {1, 1, 1, 2, 1}, {5, 3, 8, 4, 6}, {3, 2, 128, 64, 128}, {2, 5, 0, 6, 6}, {2, 1, 3, 1100, 2}};
enum { LATENTS = sizeof latents / sizeof *latents };

static void begin_latent(struct optest *t, enum sh_op_kind kind, const struct heads_latent *l)
{
    optest_begin(t, kind);
    t->attr.latent.heads = l->H;
    t->attr.latent.plain = l->P;
    t->attr.latent.turned = l->R;
    t->attr.latent.value = l->V;
}

void heads_begin_latent_heads(struct optest *t, enum sh_dtype act, const struct heads_latent *l)
{
    begin_latent(t, SH_OP_LATENT_HEADS, l);
    optest_in(t, 0, act, DIMS(l->rows, l->H * (l->P + l->R)));
    optest_in(t, 1, act, DIMS(l->rows, l->H * (l->P + l->V)));
    optest_in(t, 2, act, DIMS(l->rows, l->R));
    optest_out(t, 0, act, DIMS(l->rows, 3 * l->H * (l->P + l->R)));
}

/* outs: bit i: output i is wanted. */
void heads_begin_latent_heads_bwd(struct optest *t, enum sh_dtype act, const struct heads_latent *l, unsigned outs)
{
    const int width[] = {l->H * (l->P + l->R), l->H * (l->P + l->V), l->R};

    begin_latent(t, SH_OP_LATENT_HEADS_BWD, l);
    optest_in(t, 0, act, DIMS(l->rows, 3 * l->H * (l->P + l->R)));
    for (int i = 0; i < 3; i++)
        if (outs & 1u << i)
            optest_out(t, i, act, DIMS(l->rows, width[i]));
}

static void begin_latent_values(struct optest *t, enum sh_op_kind kind, enum sh_dtype act, const struct heads_latent *l)
{
    const int width[] = {l->H * (l->P + l->R), l->H * l->V};
    int back = kind == SH_OP_LATENT_VALUES_BWD;

    begin_latent(t, kind, l);
    optest_in(t, 0, act, DIMS(l->rows, width[back]));
    optest_out(t, 0, act, DIMS(l->rows, width[!back]));
}

/* What is only moved has equal bits. */
void heads_latent_cases(const struct delta_device *on)
{
    optest_seed(70);
    for (int i = 0; i < LATENTS * on->acts; i++) {
        const struct heads_latent *l = &latents[i / on->acts];
        enum sh_dtype act = delta_acts[i % on->acts];
        const struct sh_bound made[] = {{0, 0}, {0, 0}, sh_bound_sum(act, l->H)};
        struct optest t;

        heads_begin_latent_heads(&t, act, l);
        on->check(&t, 1, made, -1, -1);
        optest_end(&t);
        heads_begin_latent_heads_bwd(&t, act, l, 7);
        on->check(&t, 3, made, -1, -1);
        optest_end(&t);
        heads_begin_latent_heads_bwd(&t, act, l, 1);
        on->check(&t, 1, made, -1, -1);
        optest_end(&t);
        for (int back = 0; back < 2; back++) {
            begin_latent_values(&t, back ? SH_OP_LATENT_VALUES_BWD : SH_OP_LATENT_VALUES, act, l);
            on->check(&t, 1, made, -1, -1);
            optest_end(&t);
        }
    }
}

/* ---- norms of values, and factors of blocks ---- */

const struct heads_values heads_values_shapes[HEADS_VALUES] = {{1, 1, 1, 1, 2}, {5, 4, 2, 8, 4},   {3, 4, 2, 16, 2},
                                                               {2, 3, 3, 6, 3}, {2, 2, 1, 512, 1}, {2, 2, 1, 1500, 1}};

static void begin_values(struct optest *t, enum sh_op_kind kind, const struct heads_values *v)
{
    optest_begin(t, kind);
    t->attr.values.heads = v->H;
    t->attr.values.kv_heads = v->K;
    t->attr.values.head_dim = v->D;
    t->attr.values.kv_in = v->kv_in;
    t->attr.values.eps = 0.1F;
}

void heads_begin_value_norm(struct optest *t, enum sh_dtype act, enum sh_dtype number, const struct heads_values *v)
{
    begin_values(t, SH_OP_VALUE_NORM, v);
    optest_in(t, 0, act, DIMS(v->rows, (v->H + v->kv_in) * v->D));
    optest_out(t, 0, act, DIMS(v->rows, (v->H + 2 * v->K) * v->D));
    optest_out(t, 1, number, DIMS(v->rows, v->K));
}

/* f has run. */
void heads_begin_value_norm_bwd(struct optest *t, const struct optest *f, const struct heads_values *v)
{
    begin_values(t, SH_OP_VALUE_NORM_BWD, v);
    optest_in(t, 0, f->call.out[0].dtype, f->call.out[0].ndim, f->call.out[0].dim);
    gradient_give(t, 1, &f->call.in[0]);
    gradient_give(t, 2, &f->call.out[1]);
    optest_out(t, 0, f->call.in[0].dtype, f->call.in[0].ndim, f->call.in[0].dim);
}

void heads_value_norms(const struct delta_device *on)
{
    optest_seed(80);
    for (int i = 0; i < HEADS_VALUES * on->acts; i++) {
        const struct heads_values *v = &heads_values_shapes[i / on->acts];
        enum sh_dtype act = delta_acts[i % on->acts];
        const struct sh_bound made[] = {sh_bound_sum(act, 32), sh_bound_sum(SH_F32, v->D)},
                              back = sh_bound_sum(act, 64);
        struct optest f, b;

        heads_begin_value_norm(&f, act, SH_F32, v);
        on->check(&f, 2, made, -1, -1);
        optest_run(&f, &sh_kernels_ref, 1);
        heads_begin_value_norm_bwd(&b, &f, v);
        on->check(&b, 1, &back, -1, -1);
        optest_end(&f);
        optest_end(&b);
    }
}

void heads_factors(const struct delta_device *on)
{
    optest_seed(82);
    for (int i = 0; i < on->acts; i++) {
        const struct sh_bound made = sh_bound_sum(delta_acts[i], 1);
        struct optest t;

        optest_begin(&t, SH_OP_SCALE_BY);
        optest_in(&t, 0, delta_acts[i], DIMS(3000));
        optest_in(&t, 1, SH_F32, DIMS(1));
        optest_out(&t, 0, delta_acts[i], DIMS(3000));
        on->check(&t, 1, &made, 0, 0);
        optest_end(&t);
    }
}

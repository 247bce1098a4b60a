/* Calls of Muon's operations. */
#include "tests/op/muon.h"

#include "kernels/muon.h"
#include "src/base/number/rng.h"

struct sh_op_scalars muon_scalars(bool nesterov)
{
    return (struct sh_op_scalars){.lr = 0.125f,
                                  .weight_decay = 0.25f,
                                  .momentum = 0.75f,
                                  .nesterov = nesterov,
                                  .grad_scale = 0.5f,
                                  .seed = 11,
                                  .update = 7};
}

/* n elements in three runs, with gaps; the states in a type. */
void muon_begin(struct optest *t, enum sh_op_kind kind, int64_t n, enum sh_dtype states)
{
    optest_begin(t, kind);
    t->scalars = muon_scalars(true);
    if (kind == SH_OP_MUON_APPLY)
        optest_in(t, 0, SH_F32, DIMS(n));
    optest_out(t, 0, SH_F32, DIMS(n));
    optest_add_to(t, 0);
    if (kind == SH_OP_MUON_MOMENTUM) {
        optest_out(t, 1, states, DIMS(n));
        optest_add_to(t, 1);
    }
    t->attr.runs.count = 3;
    t->runs[0] = (struct sh_decay_run){.end = n / 3, .decay = true, .tensor = sh_rng_name("a")};
    t->runs[1] = (struct sh_decay_run){.begin = n / 2, .end = n - n / 5, .tensor = sh_rng_name("b"), .origin = -9};
    t->runs[2] = (struct sh_decay_run){.begin = n - n / 5, .end = n, .decay = true, .tensor = sh_rng_name("c")};
}

void muon_begin_matrices(struct optest *t, int kind, int64_t n, int64_t origin, const struct sh_matrix *of, int count)
{
    optest_begin(t, SH_OP_ORTHO);
    optest_out(t, 0, SH_F32, DIMS(n));
    optest_add_to(t, 0);
    t->attr.ortho.kind = kind;
    t->attr.ortho.steps = 5;
    t->attr.ortho.count = count;
    t->attr.ortho.origin = origin;
    t->call.matrices = of;
    for (int i = 0; i < count; i++) {
        int64_t a = sh_matrix_short(&of[i]), b = sh_matrix_long(&of[i]);

        t->attr.ortho.most_short = a > t->attr.ortho.most_short ? a : t->attr.ortho.most_short;
        t->attr.ortho.most_long = b > t->attr.ortho.most_long ? b : t->attr.ortho.most_long;
    }
}

/* A matrix of rows end to end. */
struct sh_matrix muon_plain(int64_t at, int64_t out, int64_t in)
{
    return (struct sh_matrix){.at = at,
                              .out = out,
                              .in = in,
                              .row_step = in,
                              .col_step = 1,
                              .block = out,
                              .block_stride = out,
                              .repeat = 1,
                              .stride = out * in,
                              .scale = 1};
}

/* Wide, tall, square and a vector; columns of a wider matrix; blocks of two rows, every six, that begin at the third;
 * three copies. Between and around them lie other elements. */
const struct sh_matrix muon_layouts[MUON_LAYOUTS] = {
    {105, 7, 11, 11, 1, 7, 7, 1, 77, 1, 0, 0}, {182, 13, 5, 5, 1, 13, 13, 1, 65, 0.5f, 0, 0},
    {250, 8, 8, 8, 1, 8, 8, 1, 64, 2, 0, 0},   {320, 1, 9, 9, 1, 1, 1, 1, 9, 1, 0, 0},
    {340, 4, 6, 1, 12, 4, 4, 1, 4, 1, 0, 0},   {450, 6, 9, 9, 1, 2, 6, 3, 162, 1, 0, 0},
};

/* The same matrices with a mean of squares for each row; rows of a matrix follow those of the one before. */
void muon_begin_rows(struct optest *t, struct sh_matrix of[MUON_LAYOUTS], int64_t *rows)
{
    *rows = 5;
    for (int i = 0; i < MUON_LAYOUTS; i++) {
        of[i] = muon_layouts[i];
        of[i].row = *rows;
        of[i].row_stride = of[i].out / of[i].block * of[i].block_stride;
        *rows += of[i].repeat * of[i].row_stride;
    }
    optest_begin(t, SH_OP_ORTHO_ROWS);
    t->scalars.muon_beta2 = 0.75f;
    optest_out(t, 0, SH_F32, DIMS(MUON_ROOM));
    optest_add_to(t, 0);
    optest_out(t, 1, SH_F32, DIMS(*rows));
    optest_add_to(t, 1);
    for (int64_t i = 0; i < *rows; i++)
        optest_set(&t->call.out[1], i, 0.125 + (double)(i % 7));
    t->attr.ortho.count = MUON_LAYOUTS;
    t->attr.ortho.origin = 100;
    t->attr.ortho.row_origin = 2;
    t->attr.ortho.most_long = 13;
    t->call.matrices = of;
}

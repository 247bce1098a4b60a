/* Muon (Jordan, 2024): momentum, the orthogonal factor of each matrix, and the step. All of it in double, rounded once. */
#include "kernels/momentum.h"
#include "kernels/muon.h"
#include "kernels/ref/ref.h"

#include <math.h>

static void add_momentum(const struct sh_op_call *call, const struct sh_decay_run *run, int64_t i)
{
    const struct sh_op_scalars *s = call->scalars;
    double mu = (double)s->momentum, g = sh_ref_get(&call->out[0], i) * (double)s->grad_scale;
    double m = mu * sh_ref_get(&call->out[1], i) + (1 - mu) * g;

    sh_ref_set(&call->out[0], i, s->nesterov ? (1 - mu) * g + mu * m : m);
    sh_ref_state_set(call, run, 0, i, m);
}

sh_rc sh_ref_muon_momentum(const struct sh_op_call *call)
{
    for (int r = 0; r < call->attr->runs.count; r++)
        for (int64_t i = call->runs[r].begin; i < call->runs[r].end; i++)
            add_momentum(call, &call->runs[r], i);
    return SH_OK;
}

static void apply(const struct sh_op_call *call, bool decay, int64_t i)
{
    struct sh_floats whole = {.whole = call->out[0].data};
    struct sh_floats halves = {.high = call->out[0].data, .low = call->out[1].data};
    struct sh_floats at = sh_floats_at(call->out[1].data ? halves : whole, i);
    double lr = (double)call->scalars->lr, keep = decay ? 1 - lr * (double)call->scalars->weight_decay : 1;
    double u = sh_ref_get(&call->in[0], i);
    float p;

    sh_floats_get(at, 1, &p);
    if (call->scalars->cautious_decay && (u == 0 || p == 0 || (u < 0) != (p < 0)))
        keep = 1;
    p = (float)((double)p * keep - lr * u);
    sh_floats_put(at, 1, &p);
}

sh_rc sh_ref_muon_apply(const struct sh_op_call *call)
{
    for (int r = 0; r < call->attr->runs.count; r++)
        for (int64_t i = call->runs[r].begin; i < call->runs[r].end; i++)
            apply(call, call->runs[r].decay, i);
    return SH_OK;
}

/* c [m,n] = a [m,k] b [k,n], or b' of b [n,k]. */
static void product(const double *a, const double *b, bool turned, int64_t m, int64_t n, int64_t k, double *c)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;

            for (int64_t l = 0; l < k; l++)
                sum += a[i * k + l] * (turned ? b[j * k + l] : b[l * n + j]);
            c[i * n + j] = sum;
        }
}

/* x [m,n] = a x + (b x x' + c (x x')^2) x. Scratch follows x. */
static void step(const double abc[3], double *x, int64_t m, int64_t n)
{
    double *next = x + m * n, *gram = next + m * n, *square = gram + m * m;

    product(x, x, true, m, m, n, gram);
    product(gram, gram, false, m, m, m, square);
    for (int64_t i = 0; i < m * m; i++)
        gram[i] = abc[1] * gram[i] + abc[2] * square[i];
    product(gram, x, false, m, n, m, next);
    for (int64_t i = 0; i < m * n; i++)
        x[i] = abc[0] * x[i] + next[i];
}

static void make_orthogonal(const struct sh_op_call *call, const struct sh_matrix *of, int64_t k)
{
    int64_t m = sh_matrix_short(of), n = sh_matrix_long(of), origin = call->attr->ortho.origin;
    double *x = call->work, squares = 0, factor;

    for (int64_t i = 0; i < m * n; i++) {
        x[i] = sh_ref_get(&call->out[0], sh_matrix_place(of, k, i / n, i % n) - origin);
        squares += x[i] * x[i];
    }
    factor = squares == 0 ? 0 : 1 / (sqrt(squares) * sh_ortho_row_of(call->attr->ortho.kind)->room);
    for (int64_t i = 0; i < m * n; i++)
        x[i] *= factor;
    for (int i = 0; i < call->attr->ortho.steps; i++)
        step(sh_ortho_step(call->attr->ortho.kind, i), x, m, n);
    for (int64_t i = 0; i < m * n; i++)
        sh_ref_set(&call->out[0], sh_matrix_place(of, k, i / n, i % n) - origin, (double)of->scale * x[i]);
}

int64_t sh_ref_ortho_work_bytes(const struct sh_op_call *call)
{
    int64_t m = call->attr->ortho.most_short, n = call->attr->ortho.most_long;

    return (2 * m * n + 2 * m * m) * (int64_t)sizeof(double);
}

sh_rc sh_ref_ortho(const struct sh_op_call *call)
{
    for (int r = 0; r < call->attr->ortho.count; r++)
        for (int64_t k = 0; k < call->matrices[r].repeat; k++)
            make_orthogonal(call, &call->matrices[r], k);
    return SH_OK;
}

int64_t sh_ref_ortho_rows_work_bytes(const struct sh_op_call *call)
{
    return call->attr->ortho.most_long * (int64_t)sizeof(double);
}

/* Row after row, as the paper has it; `by` [rows] is what each is multiplied by. */
static void even_rows(const struct sh_op_call *call, const struct sh_matrix *of, int64_t k)
{
    int64_t origin = call->attr->ortho.origin;
    double b = (double)call->scalars->muon_beta2, before = 0, after = 0, *by = call->work, all;

    for (int64_t r = 0; r < of->out; r++) {
        int64_t at = sh_matrix_row(of, k, r) - call->attr->ortho.row_origin;
        double squares = 0, v;

        for (int64_t c = 0; c < of->in; c++)
            squares += pow(sh_ref_get(&call->out[0], sh_matrix_element(of, k, r, c) - origin) / (double)of->scale, 2);
        v = b * sh_ref_get(&call->out[1], at) + (1 - b) * squares / (double)of->in;
        sh_ref_set(&call->out[1], at, v);
        by[r] = 1 / sqrt(fmax(v, SH_ORTHO_LEAST));
        before += squares;
        after += squares * by[r] * by[r];
    }
    all = sh_ortho_rows_factor(before, after);
    for (int64_t e = 0; e < of->out * of->in; e++) {
        int64_t at = sh_matrix_element(of, k, e / of->in, e % of->in) - origin;

        sh_ref_set(&call->out[0], at, sh_ref_get(&call->out[0], at) * by[e / of->in] * all);
    }
}

sh_rc sh_ref_ortho_rows(const struct sh_op_call *call)
{
    for (int r = 0; r < call->attr->ortho.count; r++)
        for (int64_t k = 0; k < call->matrices[r].repeat; k++)
            even_rows(call, &call->matrices[r], k);
    return SH_OK;
}

/* Who owns which matrices of Muon, and which matrices a parameter holds. */
#include "kernels/muon.h"
#include "src/config/family.h"
#include "src/optim/matrices.h"
#include "src/optim/owners.h"
#include "tests/unit/tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- owners ---- */

static double largest(const double *load, int n)
{
    double most = 0;

    for (int i = 0; i < n; i++)
        most = fmax(most, load[i]);
    return most;
}

/* The best of all ways to cut n matrices for the ranks from r on. */
static double best_of_all(const double *work, int n, const double *load, int r, int ranks)
{
    double best = INFINITY, sum = load[r];

    if (r == ranks - 1) {
        for (int i = 0; i < n; i++)
            sum += work[i];
        return sum;
    }
    for (int mine = 0; mine <= n; mine++) {
        best = fmin(best, fmax(sum, best_of_all(work + mine, n - mine, load, r + 1, ranks)));
        sum += mine < n ? work[mine] : 0;
    }
    return best;
}

static void as_good_as_any(void **state)
{
    (void)state;
    srand(1);
    for (int trial = 0; trial < 300; trial++) {
        double work[7], load[4], before[4], all = 0, had = 0, has = 0;
        int n = rand() % 8, ranks = 1 + rand() % 4, place[7];

        for (int i = 0; i < n; i++)
            all += work[i] = 1 + rand() % 20;
        for (int r = 0; r < ranks; r++)
            had += load[r] = before[r] = rand() % 3 ? 0 : rand() % 20;
        sh_owners_place(work, n, ranks, load, place);
        for (int r = 0; r < ranks; r++)
            has += load[r];
        assert_true(has == had + all);
        assert_true(largest(load, ranks) == best_of_all(work, n, before, 0, ranks));
        for (int i = 0; i < n; i++)
            assert_true(place[i] >= (i ? place[i - 1] : 0) && place[i] < ranks);
    }
}

/* A block of Llama 3.1 8B, by its operations: q, k, v, o, gate, up, down. */
static void block_of_8b(double work[7])
{
    static const double out[] = {4096, 1024, 1024, 4096, 14336, 14336, 14336};

    for (int i = 0; i < 7; i++) {
        double m = fmin(out[i], 4096), n = fmax(out[i], 4096);

        work[i] = 4 * m * m * n + 2 * m * m * m;
    }
}

/* As many units as it takes for the busiest rank to have at most a few percent more than the mean; all, if that cannot
 * be. */
static void waves_of_8b(void **state)
{
    static const struct {
        int ranks, most_units;
        double most;
    } rows[] = {{1, 1, 1}, {2, 1, 1.06}, {4, 1, 1.06}, {8, 2, 1.06}, {64, 16, 1.06}, {512, 32, 4.3}};
    double work[32 * 7];
    int n[32];

    (void)state;
    for (int u = 0; u < 32; u++) {
        block_of_8b(work + 7 * u);
        n[u] = 7;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int wave = sh_owners_wave(work, n, 32, rows[i].ranks), place[7];
        double *load = calloc((size_t)rows[i].ranks, sizeof *load), all = 0;

        assert_non_null(load);
        for (int u = 0; u < wave; u++)
            sh_owners_place(work + 7 * u, 7, rows[i].ranks, load, place);
        for (int r = 0; r < rows[i].ranks; r++)
            all += load[r];
        print_message("%d ranks: waves of %d units, busiest %.3f of the mean\n", rows[i].ranks, wave,
                      largest(load, rows[i].ranks) * rows[i].ranks / all);
        assert_true(wave <= rows[i].most_units);
        assert_true(largest(load, rows[i].ranks) * rows[i].ranks <= rows[i].most * all);
        free(load);
    }
}

/* ---- matrices ---- */

/* Add the matrices of one parameter; returns the program. */
static struct sh_program *add(const struct sh_model *m, enum sh_param_role role, int ndim, const int64_t *dim,
                              struct sh_ortho how)
{
    struct sh_program *p = sh_program_create(SH_F32);
    struct sh_saved saved = {.name = "w", .role = role, .ndim = ndim, .elems = 1};
    struct sh_param param = {.ndim = ndim, .unit_elems = 1000, .elems = 1};

    for (int i = 0; i < ndim; i++) {
        saved.dim[i] = param.dim[i] = dim[i];
        saved.elems *= dim[i];
        param.elems *= dim[i];
    }
    param.saved = sh_program_add_saved(p, &saved);
    sh_program_add_param(p, &param);
    sh_matrices_add(p, &p->params[0], m, &how);
    return p;
}

/* Each element of the parameter is in one matrix. */
static void covers(const struct sh_program *p)
{
    int64_t n = p->params[0].elems;
    char *seen = calloc((size_t)n, 1);

    assert_non_null(seen);
    for (int i = 0; i < p->n_matrices; i++) {
        const struct sh_matrix *x = &p->matrices[i];

        for (int64_t k = 0; k < x->repeat; k++)
            for (int64_t e = 0; e < x->out * x->in; e++) {
                int64_t at = sh_matrix_place(x, k, e / sh_matrix_long(x), e % sh_matrix_long(x)) - 1000;

                assert_true(at >= 0 && at < n && !seen[at]);
                seen[at] = 1;
            }
    }
    assert_null(memchr(seen, 0, (size_t)n));
    free(seen);
}

static void parts_of_products(void **state)
{
    static const struct {
        int family;
        enum sh_param_role role;
        int ndim;
        int64_t dim[3];
        int split, matrices; /* rows of the table; then the first row's outputs, inputs and copies */
        int64_t out, in, repeat;
    } rows[] = {
        {SH_FAMILY_LLAMA, SH_PARAM_Q, 2, {24, 20}, SH_MUON_SPLIT_QKV, 1, 24, 20, 1},
        {SH_FAMILY_LLAMA, SH_PARAM_Q, 2, {24, 20}, SH_MUON_SPLIT_HEADS, 1, 4, 20, 6},
        {SH_FAMILY_LLAMA, SH_PARAM_K, 2, {8, 20}, SH_MUON_SPLIT_HEADS, 1, 4, 20, 2},
        {SH_FAMILY_LLAMA, SH_PARAM_O, 2, {20, 24}, SH_MUON_SPLIT_HEADS, 1, 20, 24, 1},
        {SH_FAMILY_PHI3, SH_PARAM_Q, 2, {40, 20}, SH_MUON_SPLIT_QKV, 3, 24, 20, 1},
        {SH_FAMILY_PHI3, SH_PARAM_Q, 2, {40, 20}, SH_MUON_SPLIT_HEADS, 3, 4, 20, 6},
        {SH_FAMILY_PHI3, SH_PARAM_Q, 2, {40, 20}, SH_MUON_SPLIT_NONE, 1, 40, 20, 1},
        {SH_FAMILY_PHI3, SH_PARAM_UP, 2, {60, 20}, SH_MUON_SPLIT_QKV, 2, 30, 20, 1},
        {SH_FAMILY_LLAMA, SH_PARAM_UP, 2, {30, 20}, SH_MUON_SPLIT_QKV, 1, 30, 20, 1},
        {SH_FAMILY_GPT2, SH_PARAM_Q, 2, {20, 40}, SH_MUON_SPLIT_QKV, 3, 24, 20, 1},
        {SH_FAMILY_GPT2, SH_PARAM_DOWN, 2, {30, 20}, SH_MUON_SPLIT_QKV, 1, 20, 30, 1},
        {SH_FAMILY_GPT_NEOX, SH_PARAM_Q, 2, {72, 20}, SH_MUON_SPLIT_QKV, 3, 24, 20, 1},
        {SH_FAMILY_GPT_NEOX, SH_PARAM_Q, 2, {72, 20}, SH_MUON_SPLIT_HEADS, 3, 4, 20, 6},
        {SH_FAMILY_QWEN3_MOE, SH_PARAM_EXPERT_UP, 3, {5, 14, 20}, SH_MUON_SPLIT_QKV, 2, 7, 20, 5},
        {SH_FAMILY_QWEN3_MOE, SH_PARAM_EXPERT_DOWN, 3, {5, 20, 7}, SH_MUON_SPLIT_QKV, 1, 20, 7, 5},
        {SH_FAMILY_NEMOTRON_H, SH_PARAM_EXPERT_UP, 3, {5, 7, 20}, SH_MUON_SPLIT_QKV, 1, 7, 20, 5},
        {SH_FAMILY_GRANITEMOEHYBRID, SH_PARAM_SHARED_UP, 2, {18, 20}, SH_MUON_SPLIT_QKV, 2, 9, 20, 1},
        {SH_FAMILY_QWEN2_MOE, SH_PARAM_SHARED_UP, 2, {9, 20}, SH_MUON_SPLIT_QKV, 1, 9, 20, 1},
        {SH_FAMILY_NEMOTRON_H, SH_PARAM_SHARED_UP, 2, {9, 20}, SH_MUON_SPLIT_QKV, 1, 9, 20, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_model m = {.family = rows[i].family,
                             .dim = 20,
                             .ffn_dim = 30,
                             .n_heads = 6,
                             .n_kv_heads = 2,
                             .head_dim = 4,
                             .n_experts = 5,
                             .expert_ffn_dim = 7,
                             .shared_ffn_dim = 9};
        struct sh_program *p;

        if (rows[i].family == SH_FAMILY_GPT_NEOX)
            m.n_kv_heads = 6;
        p = add(&m, rows[i].role, rows[i].ndim, rows[i].dim, (struct sh_ortho){.split = rows[i].split});
        assert_int_equal(p->n_matrices, rows[i].matrices);
        assert_int_equal(p->matrices[0].out, rows[i].out);
        assert_int_equal(p->matrices[0].in, rows[i].in);
        assert_int_equal(p->matrices[0].repeat, rows[i].repeat);
        covers(p);
        sh_program_destroy(p);
    }
}

/* Of model.ffn: matrices of any size, of which one of 2F columns has the gate, whatever the family has. */
static void parts_of_statements(void **state)
{
    static const struct {
        int family;
        enum sh_param_role role;
        int64_t dim[2], matrices, out, in;
    } rows[] = {
        {SH_FAMILY_LLAMA, SH_PARAM_UP, {7, 20}, 1, 7, 20},  {SH_FAMILY_LLAMA, SH_PARAM_UP, {60, 20}, 2, 30, 20},
        {SH_FAMILY_PHI3, SH_PARAM_UP, {8, 20}, 1, 8, 20},   {SH_FAMILY_LLAMA, SH_PARAM_DOWN, {20, 7}, 1, 20, 7},
        {SH_FAMILY_GPT2, SH_PARAM_DOWN, {7, 20}, 1, 20, 7},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct sh_model m = {.family = rows[i].family, .dim = 20, .ffn_dim = 30, .ffn = "y = linear(x, y, C)"};
        struct sh_program *p = add(&m, rows[i].role, 2, rows[i].dim, (struct sh_ortho){.split = SH_MUON_SPLIT_QKV});

        assert_int_equal(p->n_matrices, rows[i].matrices);
        assert_int_equal(p->matrices[0].out, rows[i].out);
        assert_int_equal(p->matrices[0].in, rows[i].in);
        covers(p);
        sh_program_destroy(p);
    }
}

/* Of a matrix [10,40] and of one [40,10], whichever way it is stored. */
static void scales(void **state)
{
    static const double wanted[][2] = {[SH_ADJUST_ORIGINAL] = {1, 2},
                                       [SH_ADJUST_MATCH_RMS_ADAMW] = {1.2649110640673518, 1.2649110640673518},
                                       [SH_ADJUST_SPECTRAL_UNCLAMPED] = {0.5, 2}};

    (void)state;
    for (int adjust = 0; adjust < 3; adjust++)
        for (int tall = 0; tall < 2; tall++)
            for (int turned = 0; turned < 2; turned++) {
                struct sh_model m = {.family = turned ? SH_FAMILY_GPT2 : SH_FAMILY_LLAMA,
                                     .dim = tall ? 10 : 40,
                                     .ffn_dim = tall ? 40 : 10,
                                     .n_heads = 1,
                                     .n_kv_heads = 1,
                                     .head_dim = 4};
                const int64_t dim[] = {turned ? m.dim : m.ffn_dim, turned ? m.ffn_dim : m.dim};
                struct sh_program *p = add(&m, SH_PARAM_UP, 2, dim, (struct sh_ortho){.adjust = adjust});

                assert_true(fabs((double)p->matrices[0].scale - wanted[adjust][tall]) < 1e-6);
                sh_program_destroy(p);
            }
}

/* What AdamW updates comes first in a unit, and only that has a mean of squares: as many elements on each rank as the
 * first one has. So have copies for saves. */
static void states_of_others(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int copies = 0; copies < 2; copies++) {
            struct sh_build b = tiny_build(&tiny_models[1], 1);
            struct sh_program *p;
            int shorter = 0;

            b.options.optim = sh_optim_of(SH_OPTIM_MUON);
            b.options.snapshot = copies;
            p = tiny_program(&b, tiny_mesh(ranks, 1, 1, ranks - 1));
            for (int i = 0; i < p->n_units; i++) {
                const struct sh_unit *u = &p->units[i];
                int64_t first = p->tensors[u->state[0]].dim[0], second = p->tensors[u->state[1]].dim[0];
                int64_t others = (u->others + 63) / 64 * 64;

                assert_int_equal(first, u->chunk);
                assert_int_equal(second, others > u->chunk ? u->chunk : others);
                assert_int_equal(u->snapshot == SH_NONE ? 2 * first + second : p->tensors[u->snapshot].dim[0],
                                 2 * first + second);
                for (int k = u->first_param; k < u->first_param + u->n_params; k++) {
                    bool matrix = sh_param_info(p->saved[p->params[k].saved].role)->matrix;

                    assert_true(matrix == (p->params[k].unit_elems >= u->others));
                }
                shorter += second < first;
            }
            assert_true(shorter > 0);
            sh_program_destroy(p);
        }
}

/* ---- exchanges ---- */

/* Whether anything is computed between the start of operation `start` of a section and the wait for it. */
static bool beside_work(const struct sh_program *p, const struct sh_section *s, int start)
{
    for (int i = start + 1; i < s->n_ops; i++) {
        const struct sh_op *op = &p->ops[s->first_op + i];

        if (op->kind == SH_OP_WAIT && op->attr.waits_for == start)
            return false;
        if (op->kind != SH_OP_WAIT && op->kind != SH_OP_RELEASE && !sh_op_starts(sh_op_info(op->kind)))
            return true;
    }
    return false;
}

/* How many exchanges of matrices a section has, and how many of them have no work beside them. */
static void count_exchanges(const struct sh_program *p, enum sh_section_kind kind, int *all, int *alone)
{
    const struct sh_section *s = sh_program_section(p, kind);

    *all = *alone = 0;
    for (int i = 0; i < s->n_ops; i++)
        if (sh_program_cuts(p, &p->ops[s->first_op + i])) {
            ++*all;
            *alone += !beside_work(p, s, i);
        }
}

/* Of an update right after its step only the first way out of each wave has nothing beside it. Of one in the next forward
 * only that of the first wave. */
static void matrices_travel_beside_work(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 8; ranks *= 2)
        for (int carry = 0; carry < 2; carry++) {
            enum sh_section_kind kind = carry ? SH_SECTION_ONLY : SH_SECTION_UPDATE;
            struct sh_build b = tiny_build(&tiny_models[1], 1);
            struct sh_program *p;
            int all, alone, waves;

            b.model.n_layers = 6;
            b.options.optim = sh_optim_of(SH_OPTIM_MUON);
            b.options.forward_prefetch = 1;
            b.offload.carry = carry;
            p = tiny_program(&b, tiny_mesh(ranks, 1, 1, 0));
            count_exchanges(p, kind, &all, &alone);
            waves = 0;
            for (int i = 0; i < p->n_ops; i++)
                waves = sh_program_cuts(p, &p->ops[i]) && p->ops[i].attr.exchange.wave >= waves
                            ? p->ops[i].attr.exchange.wave + 1
                            : waves;
            print_message("%d ranks, %s: %d waves, %d exchanges, %d alone\n", ranks, carry ? "carried" : "at once",
                          waves, all, alone);
            assert_int_equal(all, 2 * 6);
            assert_true(alone <= (carry ? 1 : waves));
            sh_program_destroy(p);
        }
}

/* Whether an operation of a kind, or any in the forward if SH_OP_KINDS, is between a start and the wait for it. */
static bool has_beside(const struct sh_program *p, const struct sh_section *s, int start, enum sh_op_kind kind)
{
    for (int i = start + 1; i < s->n_ops; i++) {
        const struct sh_op *op = &p->ops[s->first_op + i];

        if (op->kind == SH_OP_WAIT && op->attr.waits_for == start)
            return false;
        if (kind == SH_OP_KINDS ? op->phase == SH_PHASE_FORWARD && op->kind == SH_OP_LINEAR : op->kind == kind)
            return true;
    }
    return false;
}

/* The first or the last operation of a section that has the buffer; -1: none. */
static int use_of(const struct sh_program *p, const struct sh_section *s, int room, bool last)
{
    for (int k = 0; k < s->n_ops; k++) {
        int i = last ? s->n_ops - 1 - k : k;
        const struct sh_op *op = &p->ops[s->first_op + i];

        if (op->kind == SH_OP_WAIT)
            op = &p->ops[s->first_op + op->attr.waits_for];
        if ((op->in[0] != SH_NONE && sh_tensor_root(p, op->in[0]) == room) ||
            (op->out[0] != SH_NONE && sh_tensor_root(p, op->out[0]) == room))
            return i;
    }
    return -1;
}

/* How many buffers of matrices are in use at once, at most: so many when one of them is first used. */
static int most_rooms(const struct sh_program *p, const struct sh_section *s)
{
    int most = 0;

    for (int t = 0; t < p->n_tensors; t++) {
        int at = strstr(p->tensors[t].name, ".matrices") ? use_of(p, s, t, false) : -1, n = 0;

        for (int other = 0; at >= 0 && other < p->n_tensors; other++)
            n += strstr(p->tensors[other].name, ".matrices") && use_of(p, s, other, false) <= at &&
                 use_of(p, s, other, true) >= at;
        most = n > most ? n : most;
    }
    return most;
}

/* What replicas give each other travels beside the forward of units before; that of the first wave beside the making of the
 * second. Over several nodes a wave is made where it is used. Either way two buffers are in use. */
static void replicas_exchange_beside_work(void **state)
{
    (void)state;
    for (int near = 0; near < 2; near++) {
        struct sh_build b = tiny_build(&tiny_models[1], 1);
        const struct sh_section *s;
        struct sh_program *p;
        int waves = 0;

        b.model.n_layers = 24;
        b.options.optim = sh_optim_of(SH_OPTIM_MUON);
        b.options.ortho.near = near;
        b.options.forward_prefetch = 1;
        b.offload.carry = true;
        p = tiny_program(&b, tiny_mesh(2, 2, 1, 0));
        s = sh_program_section(p, SH_SECTION_ONLY);
        for (int i = 0; i < s->n_ops; i++) {
            const struct sh_op *op = &p->ops[s->first_op + i];

            if (!sh_program_cuts(p, op) || !op->attr.exchange.sharers)
                continue;
            assert_true(near == has_beside(p, s, i, op->attr.exchange.wave ? SH_OP_KINDS : SH_OP_ORTHO));
            waves++;
        }
        assert_true(waves >= 3);
        assert_int_equal(most_rooms(p, s), 2);
        sh_program_destroy(p);
    }
}

/* Replicas that each have all of a unit give each other its matrices while those of the next of its wave are made. */
static void units_are_exchanged_as_they_are_made(void **state)
{
    struct sh_build b = tiny_build(&tiny_models[1], 1);
    const struct sh_section *s;
    struct sh_program *p;
    int n = 0, beside = 0, waves = 0;

    (void)state;
    b.model.n_layers = 6;
    b.options.optim = sh_optim_of(SH_OPTIM_MUON);
    p = tiny_program(&b, tiny_mesh(1, 2, 1, 0));
    s = sh_program_section(p, SH_SECTION_UPDATE);
    for (int i = 0; i < s->n_ops; i++)
        if (sh_program_cuts(p, &p->ops[s->first_op + i])) {
            n++;
            beside += has_beside(p, s, i, SH_OP_ORTHO);
            waves = p->ops[s->first_op + i].attr.exchange.wave + 1;
        }
    assert_int_equal(n, 6);
    assert_int_equal(beside, n - waves);
    sh_program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_good_as_any),
        cmocka_unit_test(waves_of_8b),
        cmocka_unit_test(parts_of_products),
        cmocka_unit_test(scales),
        cmocka_unit_test(parts_of_statements),
        cmocka_unit_test(states_of_others),
        cmocka_unit_test(matrices_travel_beside_work),
        cmocka_unit_test(replicas_exchange_beside_work),
        cmocka_unit_test(units_are_exchanged_as_they_are_made),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

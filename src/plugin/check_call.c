#include "src/plugin/check_call.h"

#include "src/base/time.h"
#include "src/plugin/process.h"
#include "src/plugin/trial_gpu.h"

#include <math.h>
#include <omp.h>

enum { SMALL = 300, THREADS = 3 }; /* SMALL: elements that are all tried; of more, some */

/* ---- outside ---- */

static bool is_whole(struct sh_subject *s, struct sh_trial *t, sherd_kernel kernel)
{
    const char *spoiled = sh_trial_spoiled(t);
    char text[SH_SUBJECT_WHERE];

    if (spoiled)
        return sh_subject_wrong(s, "writes to %s outside of the output and of its scratch (%s)", spoiled,
                                sh_subject_where(t, kernel, text));
    for (int64_t i = 0; t->size.guard == SH_GUARD_NAN && i < sh_operand_elems(&t->call.out[0]); i++)
        if (isnan(sh_trial_out(t, i)))
            return sh_subject_wrong(s, "element %lld of the output is not written, or follows from memory outside (%s)",
                                    (long long)i, sh_subject_where(t, kernel, text));
    return true;
}

/* The same bits whatever lies around operands, and in the output before. */
static bool check_outside_of(struct sh_subject *s, int i, enum sh_dtype act, sherd_kernel kernel)
{
    struct sh_trial t[SH_GUARDS];
    char text[SH_SUBJECT_WHERE];
    bool right = true;

    for (int g = 0; g < SH_GUARDS; g++) {
        struct sh_trial_size size = sh_subject_size(i, act);

        size.guard = g;
        sh_trial_make(s->row, s->number, &size, &t[g]);
        right = right && sh_subject_run(s, &t[g], kernel) && is_whole(s, &t[g], kernel);
        if (right && !sh_trial_same(&t[0], &t[g]))
            right = sh_subject_wrong(s, "the result follows from memory outside of the inputs (%s)",
                                     sh_subject_where(&t[g], kernel, text));
    }
    for (int g = 0; g < SH_GUARDS; g++)
        sh_trial_free(&t[g]);
    return right;
}

bool sh_call_check_outside(struct sh_subject *s)
{
    return sh_subject_each(s, check_outside_of);
}

/* ---- NaN ---- */

static bool has_nan(const struct sh_trial *t)
{
    bool found = false;

    for (int64_t i = 0; i < sh_operand_elems(&t->call.out[0]); i++)
        found |= isnan(sh_trial_out(t, i)) != 0;
    return found;
}

/* Whether the output of ref follows from element j of the first input at all. */
static bool depends(struct sh_trial *t, struct sh_trial *other, int64_t j)
{
    struct sh_operand *x = &other->call.in[0];
    const double was = sh_operand_get(x, j), tries[] = {was + 1, was - 1, -was, 0.5};
    bool found = false;

    for (int k = 0; k < 4 && !found; k++) {
        sh_operand_set(x, j, tries[k]);
        found = t->row->ref(&other->call) == 0 && !sh_trial_same(t, other);
    }
    sh_operand_set(x, j, was);
    return found;
}

/* x of an operation and dy of a backward: what is lost here, nobody sees. */
static bool check_nan_of(struct sh_subject *s, int i, enum sh_dtype act, sherd_kernel kernel)
{
    struct sh_trial_size size = sh_subject_size(i, act);
    struct sh_trial t, other;
    char text[SH_SUBJECT_WHERE];
    bool right = true;

    sh_trial_make(s->row, s->number, &size, &t);
    sh_trial_make(s->row, s->number, &size, &other);
    right = sh_subject_run(s, &t, s->row->ref);
    for (int64_t j = 0, n = sh_operand_elems(&t.call.in[0]); right && j < n; j += n < SMALL ? 1 : n / 8) {
        double was = sh_operand_get(&other.call.in[0], j);

        if (!depends(&t, &other, j))
            continue;
        sh_operand_set(&other.call.in[0], j, NAN);
        right = sh_subject_run(s, &other, kernel);
        if (right && !has_nan(&other))
            right = sh_subject_wrong(
                s,
                "a NaN at element %lld of %s, in place of %.5g, does not reach the output; where it does not follow from x, store 0 * x (%s)",
                (long long)j, t.shape.in[0].name, was, sh_subject_where(&t, kernel, text));
        sh_operand_set(&other.call.in[0], j, was);
    }
    sh_trial_free(&t);
    sh_trial_free(&other);
    return right;
}

bool sh_call_check_nan(struct sh_subject *s)
{
    return sh_subject_each(s, check_nan_of);
}

/* ---- bits ---- */

/* One more call that must give the bits of `t`, or of its row `first_row`. */
static bool same_bits(struct sh_subject *s, struct sh_trial *t, const struct sh_trial_size *size, sherd_kernel kernel,
                      const char *what)
{
    struct sh_trial other;
    char text[SH_SUBJECT_WHERE];
    bool right, same = true;

    sh_trial_make(s->row, s->number, size, &other);
    right = sh_subject_run(s, &other, kernel);
    for (int64_t r = 0; right && r < size->rows; r++)
        same &= sh_trial_same_row(t, size->first_row + r, &other, r);
    sh_trial_free(&other);
    return right && !same ? sh_subject_wrong(s, "other bits %s (%s)", what, sh_subject_where(t, kernel, text)) : right;
}

/* Parts of the rows, as ranks, micro-steps and tiles have them. */
static bool check_parts(struct sh_subject *s, struct sh_trial *t, sherd_kernel kernel)
{
    int64_t rows = t->size.rows;
    bool right = true;

    for (int64_t first = 0; first < rows; first += rows < 100 ? 1 : rows / 4)
        for (int64_t n = 1; n <= rows - first; n = n < rows - first && 2 * n > rows - first ? rows - first : 2 * n) {
            struct sh_trial_size part = t->size;

            part.first_row = first;
            part.rows = n;
            right = right && same_bits(s, t, &part, kernel, "when a call has only some of the rows");
        }
    return right;
}

static bool check_bits_of(struct sh_subject *s, int i, enum sh_dtype act, sherd_kernel kernel)
{
    static const int shifts[] = {1, 3, 5};
    struct sh_trial_size size = sh_subject_size(i, act), again = size;
    struct sh_trial t;
    bool right;

    omp_set_num_threads(1);
    sh_trial_make(s->row, s->number, &size, &t);
    right = sh_subject_run(s, &t, kernel);
    for (int threads = 1; threads <= THREADS; threads++) {
        omp_set_num_threads(threads);
        right = right && same_bits(s, &t, &size, kernel,
                                   threads == 1 || kernel == s->row->cuda ? "in a second call"
                                                                          : "with another number of threads");
    }
    for (int k = 0; k < 3; k++) {
        again.shift = shifts[k];
        right = right && same_bits(s, &t, &again, kernel, "at other addresses");
    }
    omp_set_num_threads(1);
    right = right && check_parts(s, &t, kernel);
    sh_trial_free(&t);
    return right;
}

/* So many rows that threads meet. */
static bool check_threads(struct sh_subject *s, sherd_kernel kernel)
{
    const struct sh_trial_size size = sh_subject_size(SH_SUBJECT_LARGE, SH_F32);
    struct sh_trial t;
    bool right;

    sh_trial_make(s->row, s->number, &size, &t);
    right = sh_subject_run(s, &t, kernel);
    omp_set_num_threads(THREADS);
    for (int i = 0; i < 4; i++)
        right = right && same_bits(s, &t, &size, kernel, "with another number of threads");
    omp_set_num_threads(1);
    sh_trial_free(&t);
    return right;
}

bool sh_call_check_bits(struct sh_subject *s)
{
    return sh_subject_each(s, check_bits_of) && (s->brief || !s->row->cpu || check_threads(s, s->row->cpu));
}

/* ---- in place ---- */

static bool check_in_place_of(struct sh_subject *s, int i, enum sh_dtype act, sherd_kernel kernel)
{
    struct sh_trial_size size = sh_subject_size(i, act), over = size;
    struct sh_trial t, in_place;
    char text[SH_SUBJECT_WHERE];
    bool right;

    over.in_place = true;
    sh_trial_make(s->row, s->number, &size, &t);
    sh_trial_make(s->row, s->number, &over, &in_place);
    right = t.call.in[s->row->in_place - 1].dim[1] == t.call.out[0].dim[1]
                ? true
                : sh_subject_wrong(s, "the output has not the size of the input whose memory it may take");
    right = right && sh_subject_run(s, &t, kernel) && sh_subject_run(s, &in_place, kernel);
    if (right && !sh_trial_same(&t, &in_place))
        right = sh_subject_wrong(s, "other bits when the output takes the memory of an input (%s)",
                                 sh_subject_where(&t, kernel, text));
    sh_trial_free(&t);
    sh_trial_free(&in_place);
    return right;
}

bool sh_call_check_in_place(struct sh_subject *s)
{
    return s->row->in_place ? sh_subject_each(s, check_in_place_of) : true;
}

/* ---- queue ---- */

static bool is_all_nan(const struct sh_trial *t)
{
    bool all = true;

    for (int64_t i = 0; i < sh_operand_elems(&t->call.out[0]); i++)
        all &= isnan(sh_trial_out(t, i)) != 0;
    return all;
}

/* Operands come to the GPU only after the kernel was called: work in another stream finds NaN. */
bool sh_call_check_queue(struct sh_subject *s)
{
    struct sh_trial_size size = sh_subject_size(0, SH_F32);
    struct sh_trial t, late;
    char text[SH_SUBJECT_WHERE];
    bool right;

    if (!sh_trial_gpu_is_open())
        return true;
    sh_trial_make(s->row, s->number, &size, &t);
    sh_trial_make(s->row, s->number, &size, &late);
    right = sh_subject_run(s, &t, s->row->cuda) && sh_subject_run_late(s, &late, s->row->cuda, true);
    if (right && (is_all_nan(&late) || !sh_trial_same(&t, &late)))
        right = sh_subject_wrong(s, "it does not wait for the work that is in call->queue (%s)",
                                 sh_subject_where(&t, s->row->cuda, text));
    sh_trial_free(&t);
    sh_trial_free(&late);
    return right;
}

/* ---- process ---- */

struct repeated {
    const struct sh_trial *t;
    sherd_kernel kernel;
};

static void call_again(const void *of)
{
    const struct repeated *r = of;

    r->kernel(&r->t->call);
}

bool sh_call_check_process(struct sh_subject *s)
{
    const sherd_kernel kernels[] = {s->row->ref, s->row->cpu};
    const struct sh_trial_size size = sh_subject_size(SH_SUBJECT_LARGE - 1, SH_F32);
    const char *done = NULL;
    char text[SH_SUBJECT_WHERE];

    for (int k = 0; k < 2 && kernels[k] && !done; k++) {
        struct sh_trial t;

        sh_subject_take_numbers(s, 0);
        sh_trial_make(s->row, s->number, &size, &t);
        if (!sh_subject_run(s, &t, kernels[k]))
            return false;
        done = sh_plugin_done_to_process(call_again, &(struct repeated){&t, kernels[k]});
        sh_subject_where(&t, kernels[k], text);
        sh_trial_free(&t);
    }
    return done ? sh_subject_wrong(s, "%s (%s)", done, text) : true;
}

/* ---- flops ---- */

/* Seconds of the fastest of a few calls. */
static double seconds_of(const struct sh_trial *t, sherd_kernel kernel)
{
    double best = INFINITY;

    for (int i = 0; i < 5; i++) {
        int64_t begin = sh_now_ns();

        kernel(&t->call);
        best = fmin(best, (double)(sh_now_ns() - begin) * 1e-9);
    }
    return best;
}

/* Operations a second of what Sherd has for SWIGLU. */
static double usual_rate(const struct sh_trial_size *size, bool ref)
{
    static const struct sherd_op swiglu = {
        .name = "swiglu", .shape = "gu [N,2F] act -> h [N,F] act", .flops = "5NF", .backward = ""};
    static const struct sh_op_attr attr;
    struct sh_op_call call = {.kind = SH_OP_SWIGLU, .attr = &attr};
    double best = INFINITY;
    struct sh_trial t;

    sh_trial_make(&swiglu, NULL, size, &t);
    call.in[0] = t.call.in[0];
    call.out[0] = t.call.out[0];
    for (int i = 0; i < 5; i++) {
        int64_t begin = sh_now_ns();

        if ((ref ? &sh_kernels_ref : &sh_kernels_cpu)->run[SH_OP_SWIGLU](&call) != SH_OK)
            break;
        best = fmin(best, (double)(sh_now_ns() - begin) * 1e-9);
    }
    sh_trial_free(&t);
    return 5.0 * (double)sh_operand_elems(&call.out[0]) / best;
}

/* What a step is predicted to take follows from this number. */
bool sh_call_check_flops(struct sh_subject *s)
{
    enum { TIMES = 30 };
    const struct sh_trial_size size = {.rows = 64, .width = 1024, .act = SH_F32, .rounded = SH_F32};
    const struct sh_op_call none = {0};
    const sherd_kernel kernel = s->row->cpu ? s->row->cpu : s->row->ref;
    double rate, fast = usual_rate(&size, false), slow = usual_rate(&size, true);
    struct sh_trial t;
    bool right;

    sh_trial_make(s->row, s->number, &size, &t);
    right = sh_subject_run(s, &t, kernel);
    rate = sh_formula_value(&t.shape.flops, &t.letters, &none) / seconds_of(&t, kernel);
    sh_trial_free(&t);
    if (!right || (rate < TIMES * fast && rate > slow / TIMES))
        return right;
    return sh_subject_wrong(
        s, "by its flops it would do %.2g operations a second; swiglu does %.2g, and %.2g by its ref kernel", rate,
        fast, slow);
}

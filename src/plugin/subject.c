#include "src/plugin/subject.h"

#include "src/plugin/trial_gpu.h"
#include "src/plugin/trying.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

static const struct {
    int64_t rows, width;
} sizes[] = {{3, 5}, {7, 9},  {1, 1},    {13, 17}, {1, 2},  {2, 1},    {5, 3},
             {4, 8}, {2, 33}, {4099, 2}, {1, 515}, {31, 7}, {65549, 2}};
_Static_assert(sizeof sizes / sizeof sizes[0] == SH_SUBJECT_LARGE + 1, "the last is the large one");
static const enum sh_dtype acts[] = {SH_F32, SH_BF16, SH_F16};
enum { ACTS = sizeof acts / sizeof acts[0] };

int sh_subject_sizes(const struct sh_subject *s)
{
    return s->brief ? 2 : SH_SUBJECT_LARGE;
}

struct sh_trial_size sh_subject_size(int i, enum sh_dtype act)
{
    return (struct sh_trial_size){.rows = sizes[i].rows, .width = sizes[i].width, .act = act, .rounded = act};
}

void sh_subject_take_numbers(struct sh_subject *s, int size)
{
    for (int k = 0; k < SHERD_NUMBERS; k++) {
        const struct sherd_number *n = &s->forward->number[k];
        double more = n->value + 0.25 * fabs(n->value) + 0.125;

        s->number[k] = size % 3 == 0   ? n->value
                       : size % 3 == 2 ? n->min + (n->value - n->min) / 4
                       : more < n->max ? more
                                       : (n->min + n->value) / 2;
    }
}

/* Keeps the first. Returns false, for the caller to return. */
bool sh_subject_wrong(struct sh_subject *s, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    if (!s->wrong[0])
        vsnprintf(s->wrong, sizeof s->wrong, fmt, args);
    va_end(args);
    return false;
}

const char *sh_subject_where(const struct sh_trial *t, sherd_kernel kernel, char text[SH_SUBJECT_WHERE])
{
    const struct sh_operand *x = &t->call.in[t->shape.n_in - 1];

    snprintf(text, SH_SUBJECT_WHERE, "%s, %s [%lld,%lld] %s",
             kernel == t->row->ref   ? "ref"
             : kernel == t->row->cpu ? "cpu"
                                     : "cuda",
             t->shape.in[t->shape.n_in - 1].name, (long long)x->dim[0], (long long)x->dim[1], sh_dtype_name(x->dtype));
    return text;
}

/* A kernel's failure is a result, too; that of a GPU is the last. */
bool sh_subject_run_late(struct sh_subject *s, struct sh_trial *t, sherd_kernel kernel, bool late)
{
    char text[SH_SUBJECT_WHERE];
    int rc;

    sh_trying_call(sh_subject_where(t, kernel, text));
    if (!sh_trial_gpu_is_open() || kernel != t->row->cuda)
        rc = kernel(&t->call);
    else if (sh_trial_gpu_run(t, late, &rc) != SH_OK)
        sh_trying_end(sh_error_text());
    return rc == 0 || sh_subject_wrong(s, "the kernel returned %d (%s)", rc, sh_subject_where(t, kernel, text));
}

bool sh_subject_run(struct sh_subject *s, struct sh_trial *t, sherd_kernel kernel)
{
    return sh_subject_run_late(s, t, kernel, false);
}

/* Nothing runs in float16 on GPUs. */
bool sh_subject_each(struct sh_subject *s, sh_subject_try *f)
{
    bool right = true;

    for (int i = 0; i < sh_subject_sizes(s); i++)
        for (int a = 0; a < ACTS; a++) {
            sh_subject_take_numbers(s, i);
            right = right && f(s, i, acts[a], s->row->ref);
            if (s->row->cpu)
                right = right && f(s, i, acts[a], s->row->cpu);
            if (sh_trial_gpu_is_open() && acts[a] != SH_F16)
                right = right && f(s, i, acts[a], s->row->cuda);
        }
    return right;
}

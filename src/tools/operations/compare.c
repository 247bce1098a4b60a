#include "src/tools/operations/operations.h"

#include "kernels/bound.h"
#include "kernels/rows.h"
#include "src/base/mem.h"
#include "src/run/run.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- copies ---- */

static int64_t bytes_of(const struct sh_operand *o)
{
    return sh_operand_elems(o) * sh_dtype_bytes(o->dtype);
}

static void *copy_of(const struct sh_operations *c, const struct sh_operand *o)
{
    int64_t bytes = bytes_of(o);
    char *copy = sh_calloc((size_t)bytes + 1, 1);

    if (c->r->device->gpu)
        sh_exec_get_at(c->r->exec, copy, o->data, bytes);
    else if (bytes)
        memcpy(copy, o->data, (size_t)bytes);
    return copy;
}

static struct sh_operand *operand(struct sh_op_call *call, int slot)
{
    return slot < SH_OP_MAX_IN ? &call->in[slot] : &call->out[slot - SH_OP_MAX_IN];
}

static void free_copies(struct sh_operations *c)
{
    for (int i = 0; i < SH_OP_MAX_IN + SH_OP_MAX_OUT; i++) {
        free(c->memory[i]);
        c->memory[i] = NULL;
    }
}

/* Outputs, too: some are added to, and rows that belong to no expert are never written. */
static void copy_operands(struct sh_operations *c, const struct sh_op_call *call)
{
    c->before = *call;
    for (int i = 0; i < SH_OP_MAX_IN + SH_OP_MAX_OUT; i++) {
        struct sh_operand *o = operand(&c->before, i);

        if (o->data)
            o->data = c->memory[i] = copy_of(c, o);
    }
}

/* ---- reference ---- */

static sh_rc run_one(struct sh_op_call *call)
{
    const struct sh_kernel_table *ref = &sh_kernels_ref;
    sh_rc rc;

    call->work_bytes = sh_rows_work_bytes(ref, call, 1);
    call->work = sh_calloc((size_t)call->work_bytes + 1, 1);
    call->queue = NULL;
    rc = sh_rows_run(ref->run[call->kind], call);
    free(call->work);
    return rc;
}

/* The first output of the first kind goes into the second, as rows as wide as the second one's first output. It is the
 * one that the kernel made, which is compared by itself: the reference's may be the other of two neighbours in a narrow
 * type, which is more than rounding explains of a sum of few rows.
 *   made  in  the kernel's first output, in the host's memory */
static sh_rc run_pair(const struct sh_op_call *fused, void *made, enum sh_op_kind first, enum sh_op_kind second)
{
    int n_in = sh_op_info(first)->n_in, n_out = sh_op_info(first)->n_out;
    struct sh_op_attr attr = *fused->attr, attr2 = *fused->attr;
    struct sh_op_call a = *fused, b = *fused;
    const struct sh_operand *to = &fused->out[n_out];
    int64_t width = to->dim[to->ndim - 1];

    attr.accumulate &= (1u << n_out) - 1;
    attr2.accumulate >>= n_out;
    a.kind = first;
    a.attr = &attr;
    b.kind = second;
    b.attr = &attr2;
    b.in[0] = fused->out[0];
    b.in[0].data = made;
    b.in[0].ndim = 2;
    b.in[0].dim[0] = sh_operand_elems(&fused->out[0]) / width;
    b.in[0].dim[1] = width;
    for (int k = 1; k < SH_OP_MAX_IN; k++)
        b.in[k] = k < sh_op_info(second)->n_in ? fused->in[n_in + k - 1] : (struct sh_operand){0};
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        b.out[k] = k < sh_op_info(second)->n_out ? fused->out[n_out + k] : (struct sh_operand){0};
    SH_TRY(run_one(&a));
    return run_one(&b);
}

/*   done  in  the call of the kernel, which has run */
static sh_rc run_reference(const struct sh_operations *c, struct sh_op_call *call, const struct sh_op_call *done)
{
    enum sh_op_kind first, second;
    void *made;
    sh_rc rc;

    if (sh_kernels_ref.run[call->kind])
        return run_one(call);
    if (!sh_fuse_pair(call->kind, &first, &second))
        return sh_fail(SH_E_BUG, "%s has no reference", sh_op_info(call->kind)->name);
    made = copy_of(c, &done->out[0]);
    rc = run_pair(call, made, first, second);
    free(made);
    return rc;
}

/* ---- comparing ---- */

static int64_t width_of(const struct sh_operand *o)
{
    return o->data && o->ndim ? o->dim[o->ndim - 1] : 0;
}

/* The longest sum behind an element: no longer than the operations that it takes, nor than the rows and columns of what
 * is read. Sums in f64 are of numbers that were computed from rows. */
static double terms_of(const struct sh_op_call *call, const struct sh_operand *out)
{
    double most = 0, flops = sh_op_cost(call).flops / (double)sh_operand_elems(out);

    if (out->dtype == SH_F64)
        return (double)width_of(&call->in[0]) + 64;
    for (int i = 0; i < SH_OP_MAX_IN; i++) {
        const struct sh_operand *o = &call->in[i];
        int64_t width = width_of(o);

        if (width)
            most = fmax(most, 2 * fmax((double)width, (double)(sh_operand_elems(o) / width)));
    }
    return fmin(flops, most);
}

static enum sh_dtype narrowest(const struct sh_op_call *call)
{
    enum sh_dtype found = SH_F32;

    for (int i = 0; i < SH_OP_MAX_IN + SH_OP_MAX_OUT; i++) {
        const struct sh_operand *o = i < SH_OP_MAX_IN ? &call->in[i] : &call->out[i - SH_OP_MAX_IN];

        if (o->data && (o->dtype == SH_BF16 || o->dtype == SH_F16))
            found = o->dtype;
    }
    return found;
}

/* What rounding inside adds, of the size of what is added up. Muon's products of bfloat16: a smaller factor than that of
 * float32, whose bound would be above 1. */
static double inside_of(const struct sh_op_call *call)
{
    if (call->kind == SH_OP_ORTHO && call->attr->ortho.narrow)
        return 64 * sh_bound_eps(SH_BF16);
    return sh_bound_inside(call->kind) * sh_bound_eps(narrowest(call));
}

static double longest_row(const struct sh_operand *o)
{
    int64_t width = width_of(o), rows = sh_operand_elems(o) / width;
    double longest = 0;

    for (int64_t row = 0; row < rows; row++) {
        double sum = 0;

        for (int64_t i = row * width; i < (row + 1) * width; i++)
            sum += sh_operand_get(o, i) * sh_operand_get(o, i);
        longest = isfinite(sum) ? fmax(longest, sum) : longest;
    }
    return sqrt(longest);
}

/* The size of what a logit adds up, terms of either sign. Few logits may all be next to nothing. */
static double logit_size(const struct sh_op_call *call)
{
    return longest_row(&call->in[0]) * longest_row(&call->in[1]) / sqrt((double)width_of(&call->in[0]));
}

/* The size of what was added up: the reference's largest number stands for it, except for scores, and for a loss whose
 * weights have both signs, as those of answers to learn and to avoid; a row's loss is about that of any word, or a
 * logit. */
static double size_of(const struct sh_op_call *call, const struct sh_operand *reference)
{
    const struct sh_operand *weight = &call->in[3];
    double largest = 0, sum = 0, row;

    for (int64_t i = 0; i < sh_operand_elems(reference); i++) {
        double x = fabs(sh_operand_get(reference, i));

        largest = isfinite(x) ? fmax(largest, x) : largest;
    }
    if (call->kind == SH_OP_HEAD_SCORE)
        return fmax(largest, logit_size(call));
    if (call->kind != SH_OP_HEAD_LOSS_GRAD || reference != &call->out[0] || !weight->data)
        return largest;
    row = call->attr->head.raw ? logit_size(call) : log((double)call->in[1].dim[0]);
    for (int64_t i = 0; i < sh_operand_elems(weight); i++)
        sum += fabs(sh_operand_get(weight, i)) * row;
    return fmax(largest, sum);
}

/* What was added up may be twice its size. */
static struct sh_bound bound_of(const struct sh_op_call *call, const struct sh_operand *reference)
{
    struct sh_bound b = sh_bound_sum(reference->dtype, terms_of(call, reference));

    b.atol += inside_of(call);
    b.atol = b.atol * size_of(call, reference) + (reference->dtype == SH_F16 ? 0x1p-23 : FLT_MIN);
    return b;
}

/* Numbers that are no numbers by themselves: choices, and parts of parameters and of states, which are compared by what
 * they are parts of. */
static bool is_exact(const struct sh_operand *o)
{
    return o->dtype == SH_I32;
}

static bool is_part(const struct sh_operand *o)
{
    return o->dtype == SH_I16 || o->dtype == SH_U8;
}

static void say(struct sh_operations *c, int op, int k, int64_t at, const struct sh_operand *reference,
                const struct sh_operand *result, struct sh_bound bound)
{
    const struct sh_program *p = c->r->p;
    char label[SH_OP_LABEL], shape[64] = "";
    double want = sh_operand_get(reference, at), got = sh_operand_get(result, at);

    sh_program_label(p, &p->ops[op], label);
    for (int i = 0, n = 0; i < reference->ndim; i++)
        n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%lld", i ? "," : "", (long long)reference->dim[i]);
    snprintf(c->text[c->wrong], SH_OPERATIONS_TEXT,
             "%s: element %lld of %s [%s] %s is %.9g; in float64 it is %.9g, and rounding explains %.2g", label,
             (long long)at, p->tensors[p->ops[op].out[k]].name, shape, sh_dtype_name(reference->dtype), got, want,
             bound.atol + bound.rtol * fabs(want));
}

/* Returns the largest share of its bound, and where. */
static double compare(const struct sh_operand *reference, const struct sh_operand *result, struct sh_bound bound,
                      int64_t *at)
{
    double most = 0;

    for (int64_t i = 0; i < sh_operand_elems(reference); i++) {
        double share = sh_bound_share(bound, sh_operand_get(reference, i), sh_operand_get(result, i));

        if (share > most) {
            most = share;
            *at = i;
        }
    }
    return most;
}

static void compare_outputs(struct sh_operations *c, int op)
{
    const struct sh_op_call *call = sh_exec_call(c->r->exec, op);
    double *most = &c->share[call->kind];
    bool wrong = false;

    for (int k = 0; k < SH_OP_MAX_OUT && !wrong; k++) {
        const struct sh_operand *reference = &c->before.out[k];
        struct sh_operand result = call->out[k];
        struct sh_bound bound = {0};
        int64_t at = 0;
        double share;

        if (!reference->data || is_part(reference))
            continue;
        result.data = copy_of(c, &call->out[k]);
        if (!is_exact(reference))
            bound = bound_of(&c->before, reference);
        share = compare(reference, &result, bound, &at);
        *most = fmax(*most, share);
        wrong = share > 1;
        if (wrong && c->wrong < SH_OPERATIONS_LISTED)
            say(c, op, k, at, reference, &result, bound);
        free(result.data);
    }
    c->wrong += wrong;
    c->operations[call->kind]++;
}

/* Called by the executor around each operation. */
static void look(void *arg, int op, bool done)
{
    struct sh_operations *c = arg;
    const struct sh_program *p = c->r->p;
    const struct sh_op *o = &p->ops[op];

    if (p->streams[o->stream].runs != SH_RUNS_KERNELS || sh_op_info(o->kind)->marker || c->rc != SH_OK)
        return;
    if (!done) {
        copy_operands(c, sh_exec_call(c->r->exec, op));
        return;
    }
    c->rc = run_reference(c, &c->before, sh_exec_call(c->r->exec, op));
    if (c->rc == SH_OK)
        compare_outputs(c, op);
    free_copies(c);
}

void sh_operations_begin(struct sh_operations *c, struct sh_run *r)
{
    *c = (struct sh_operations){.r = r};
    sh_exec_set_look(r->exec, SH_LOOKS, look, c);
}

void sh_operations_end(struct sh_operations *c)
{
    sh_exec_set_look(c->r->exec, SH_LOOKS, NULL, NULL);
    free_copies(c);
}

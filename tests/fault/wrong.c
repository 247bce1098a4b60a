/* Linked into sherd_wrong, which is `sherd` with one wrong kernel: after call WRONG_CALL of a kernel on rank WRONG_RANK its
 * output is damaged, as WRONG_HOW says, and "LABEL: CHANGE" goes to standard error: the operation, and whether any bit has
 * changed; "unread", also of later calls, if a flip is in room for rows that have not come. With WRONG_AGAIN=True every later call of that operation is damaged, too. With WRONG_CALL=count rank 0 says at the end how many calls there were before each step: "calls 0 57 93". With
 * WRONG_HOW=weight nothing is wrong but one bit of the weight of the next product, from its call on. With
 * WRONG_HOW=stale the call is not of a kernel but of a gather, of which there are "gathers 0 8 16": what it brings goes elsewhere, so what is read is old.
 * WRONG_RANK=all: on all ranks. */
#include "kernels/rows.h"
#include "src/comm/comm.h"
#include "src/device/device.h"
#include "tests/fault/shim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 8 };

static char label[64] = "start", wrong[64];
static long calls[STEPS + 1], gathers[STEPS + 1]; /* at the begin of each step */
static long n_calls, n_gathers;

void __real_sh_comm_note(struct sh_comm *c, int64_t step, const char *doing);
void __wrap_sh_comm_note(struct sh_comm *c, int64_t step, const char *doing);
sh_rc __real_sh_rows_run(sh_kernel kernel, const struct sh_op_call *call);
sh_rc __wrap_sh_rows_run(sh_kernel kernel, const struct sh_op_call *call);
sh_rc __real_sh_comm_start(struct sh_comm *c, const struct sh_coll *coll, int64_t *ticket);
sh_rc __wrap_sh_comm_start(struct sh_comm *c, const struct sh_coll *coll, int64_t *ticket);

/* In one write: a launcher mixes the lines of several ranks where they are written in pieces. */
static void say_counts(const char *what, const long *before, long all)
{
    char text[(STEPS + 2) * 21] = "";

    for (int i = 0, n = 0; i <= STEPS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, " %ld", before[i]);
    fprintf(stderr, "%s%s %ld\n", what, text, all);
}

static void say_calls(void)
{
    say_counts("calls", calls, n_calls);
    say_counts("gathers", gathers, n_gathers);
}

/* Whether the calls of this rank are to be wrong. */
static bool is_wrong_rank(void)
{
    const char *rank = getenv("WRONG_RANK");

    return rank && !strcmp(rank, "all") ? true : shim_rank() == (rank ? atoi(rank) : 0);
}

static bool is_how(const char *how)
{
    const char *given = getenv("WRONG_HOW");

    return given && !strcmp(given, how);
}

void __wrap_sh_comm_note(struct sh_comm *c, int64_t step, const char *doing)
{
    snprintf(label, sizeof label, "%s", doing);
    for (int64_t i = step; i > 0 && i <= STEPS && !calls[i]; i--) {
        calls[i] = n_calls;
        gathers[i] = n_gathers;
    }
    __real_sh_comm_note(c, step, doing);
}

/* The first output that is an array of floats. */
static const struct sh_operand *choose(const struct sh_op_call *call, int64_t *n)
{
    for (int k = 0; k < SH_OP_MAX_OUT; k++) {
        const struct sh_operand *o = &call->out[k];

        *n = 1;
        for (int i = 0; i < o->ndim; i++)
            *n *= o->dim[i];
        if (o->data && *n > 1 && (o->dtype == SH_F32 || o->dtype == SH_BF16))
            return o;
    }
    return NULL;
}

static void put(const struct sh_operand *o, int64_t i, float v)
{
    if (o->dtype == SH_F32)
        ((float *)o->data)[i] = v;
    else
        ((sh_bf16 *)o->data)[i] = sh_f32_to_bf16(v);
}

static float get(const struct sh_operand *o, int64_t i)
{
    return o->dtype == SH_F32 ? ((const float *)o->data)[i] : sh_bf16_to_f32(((const sh_bf16 *)o->data)[i]);
}

static void flip(const struct sh_operand *o, int64_t i)
{
    *((unsigned char *)o->data + i * sh_dtype_bytes(o->dtype)) ^= 1;
}

static void damage(const struct sh_operand *o, int64_t n, const char *how)
{
    for (int64_t i = 0; i < n; i++)
        if (!strcmp(how, "scale"))
            put(o, i, 1.5F * get(o, i));
        else if (!strcmp(how, "tile") && i >= n / 2 && i < n / 2 + 16)
            put(o, i, 0);
        else if (!strcmp(how, "shift") && i + 1 < n)
            put(o, i, get(o, i + 1));
        else if (!strcmp(how, "element") && i == n / 3)
            put(o, i, 2 * get(o, i) + 1e-3F);
        else if (!strcmp(how, "nan") && i == n / 3)
            put(o, i, NAN);
        else if (!strcmp(how, "bias"))
            put(o, i, get(o, i) + 1e-3F);
        else if (!strcmp(how, "border") && i >= n - 4)
            put(o, i, 1.0F - get(o, i));
        else if (!strcmp(how, "flip") && i == n / 3)
            flip(o, i);
}

static void say(FILE *out, const char *change)
{
    if (out)
        fprintf(out, "wrong: %s: %s\n", label, change);
}

/* How many of an output's n elements are of rows that have come (kernels/op.h). */
static int64_t count_live(const struct sh_op_call *call, const struct sh_operand *o, int64_t n)
{
    static const int place[SH_OP_ROOM] = {[SH_OP_EXPERT_LINEAR] = 1,
                                          [SH_OP_EXPERT_LINEAR_BWD_X] = 1,
                                          [SH_OP_SWIGLU_ROWS] = 3,
                                          [SH_OP_SWIGLU_ROWS_BWD] = 4,
                                          [SH_OP_ROW_ADD] = 2};
    const struct sh_operand *first = &call->in[place[call->kind]];

    return place[call->kind] && first->data ? n / o->dim[0] * ((const int32_t *)first->data)[first->dim[0] - 1] : n;
}

/* out: where to say it; NULL: nowhere. */
static sh_rc run_wrong(sh_kernel kernel, const struct sh_op_call *call, const char *how, FILE *out)
{
    int64_t n, bytes;
    const struct sh_operand *o = choose(call, &n);
    char *before;
    sh_rc rc;

    if (o && !strcmp(how, "skip")) {
        say(out, "changed");
        return SH_OK;
    }
    rc = __real_sh_rows_run(kernel, call);
    if (!o) {
        say(out, "nothing");
        return rc;
    }
    bytes = n * sh_dtype_bytes(o->dtype);
    before = malloc((size_t)bytes);
    if (!before)
        abort();
    memcpy(before, o->data, (size_t)bytes);
    damage(o, n, how);
    if (!strcmp(how, "flip") && n / 3 >= count_live(call, o, n))
        say(stderr, "unread");
    else
        say(out, memcmp(before, o->data, (size_t)bytes) != 0 ? "changed" : "nothing");
    free(before);
    return rc;
}

/* What a gather that is not waited for would leave: whatever was there. */
sh_rc __wrap_sh_comm_start(struct sh_comm *c, const struct sh_coll *coll, int64_t *ticket)
{
    const char *which = getenv("WRONG_CALL");
    struct sh_coll lost = *coll;
    size_t bytes;
    sh_rc rc;

    if (coll->kind != SH_OP_ALL_GATHER || n_gathers++ != (which && is_how("stale") ? atol(which) : -1) ||
        !is_wrong_rank())
        return __real_sh_comm_start(c, coll, ticket);
    bytes = (size_t)(coll->count * sh_comm_group_size(c, coll->group) * sh_dtype_bytes(coll->dtype));
    lost.recv = calloc(bytes, 1);
    if (!lost.recv)
        abort();
    rc = __real_sh_comm_start(c, &lost, ticket);
    if (rc == SH_OK)
        rc = sh_comm_wait(c, *ticket);
    fprintf(stderr, "wrong: %s: %s\n", coll->label, memcmp(lost.recv, coll->recv, bytes) ? "changed" : "nothing");
    return rc;
}

/* As if the memory of a parameter had changed. */
static void change_weight(const struct sh_op_call *call, long from)
{
    static bool done;

    if (done || n_calls <= from || call->kind != SH_OP_LINEAR)
        return;
    done = true;
    flip(&call->in[1], 0);
    fprintf(stderr, "wrong: weight of %s: changed\n", label);
}

sh_rc __wrap_sh_rows_run(sh_kernel kernel, const struct sh_op_call *call)
{
    const char *which = getenv("WRONG_CALL"), *again = getenv("WRONG_AGAIN");

    if (kernel == sh_device_cpu.kernels->prepare || kernel == sh_kernels_ref.run[call->kind])
        return __real_sh_rows_run(kernel, call);
    if (n_calls++ == 0 && which && !strcmp(which, "count") && shim_rank() == 0)
        atexit(say_calls);
    if (!which || !strcmp(which, "count") || is_how("stale") || !is_wrong_rank())
        return __real_sh_rows_run(kernel, call);
    if (is_how("weight")) {
        change_weight(call, atol(which));
        return __real_sh_rows_run(kernel, call);
    }
    if (n_calls - 1 == atol(which)) {
        snprintf(wrong, sizeof wrong, "%s", again && !strcmp(again, "True") ? label : "");
        return run_wrong(kernel, call, getenv("WRONG_HOW"), stderr);
    }
    return strcmp(wrong, label) ? __real_sh_rows_run(kernel, call) : run_wrong(kernel, call, getenv("WRONG_HOW"), NULL);
}

#include "tests/unit/simulate_coll.h"

#include "src/base/mem.h"
#include "src/comm/sum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int64_t bytes_of(const struct sim_rank *r, int tensor)
{
    return sh_tensor_bytes(&r->p->tensors[tensor]);
}

/* The operation of `peer` that meets operation i of `r`: the same place in the same queue. */
static int meets(const struct sim_rank *r, int i, const struct sim_rank *peer, const struct sh_section *section)
{
    const struct sh_op *op = &r->p->ops[i];
    int before = 0;

    for (int k = section->first_op; k < i; k++)
        before += sh_op_info(r->p->ops[k].kind)->async && r->p->ops[k].stream == op->stream &&
                  r->p->ops[k].attr.group == op->attr.group;
    for (int k = section->first_op; k < section->first_op + section->n_ops; k++) {
        const struct sh_op *other = &peer->p->ops[k];

        if (!sh_op_info(other->kind)->async || other->stream != op->stream || other->attr.group != op->attr.group ||
            before--)
            continue;
        assert_int_equal(other->kind, op->kind);
        assert_int_equal(bytes_of(peer, other->out[0]), bytes_of(r, op->out[0]));
        return k;
    }
    fail_msg("operation %d meets nothing on another rank", i - section->first_op);
    return SH_NONE;
}

static int peer_rank(const struct sim_rank *r, int i, int member)
{
    return sh_group_member(&r->mesh, r->p->ops[i].attr.group, member);
}

bool sim_coll_can_complete(const struct sim *s, const struct sim_rank *r, int i, const struct sh_section *section)
{
    const struct sh_op *op = &r->p->ops[i];

    for (int m = 0; m < sh_group_size(&r->mesh, op->attr.group); m++) {
        const struct sim_rank *peer = &s->ranks[peer_rank(r, i, m)];
        int k = meets(r, i, peer, section), after = peer->p->ops[k].attr.after;

        if (!peer->flights[k].started)
            return false;
        if (after != SH_NONE && !sim_coll_can_complete(s, peer, section->first_op + after, section))
            return false;
    }
    return true;
}

/* Result of collective i of rank r; allocated. Sums are made by the rule of src/comm. */
static char *result(const struct sim *s, const struct sim_rank *r, int i, const struct sh_section *section,
                    int64_t *bytes)
{
    const struct sh_op *op = &r->p->ops[i];
    enum sh_dtype dtype = r->p->tensors[op->out[0]].dtype;
    int size = sh_group_size(&r->mesh, op->attr.group), index = sh_group_index(&r->mesh, op->attr.group);
    bool gather = op->kind == SH_OP_ALL_GATHER, chained = op->kind == SH_OP_ALL_REDUCE && op->attr.after != SH_NONE;
    int64_t part = bytes_of(r, gather ? op->in[0] : op->out[0]);
    char *all = sh_calloc((size_t)(size * part) + 1, 1);
    const void *source[SIM_MAX_RANKS];

    assert_in_range(size, 1, SIM_MAX_RANKS);
    for (int m = 0; m < size; m++) {
        const struct sim_rank *peer = &s->ranks[peer_rank(r, i, m)];
        int k = meets(r, i, peer, section);
        int64_t peer_bytes;
        char *made = chained ? result(s, peer, section->first_op + op->attr.after, section, &peer_bytes) : NULL;
        const char *sent = made ? made : peer->flights[k].sent;

        source[m] = all + m * part;
        memcpy(all + m * part, op->kind == SH_OP_REDUCE_SCATTER ? sent + index * part : sent, (size_t)part);
        free(made);
    }
    *bytes = gather ? size * part : part;
    if (!gather)
        sh_comm_sum(dtype, all, source, size, part / sh_dtype_bytes(dtype));
    return all;
}

void sim_coll_start(struct sim_rank *r, int i)
{
    const struct sh_op *op = &r->p->ops[i];
    struct sim_flight *f = &r->flights[i];
    int from = op->kind == SH_OP_ALL_REDUCE ? op->out[0] : op->in[0];
    char *in = r->arena + r->p->tensors[from].offset_bytes, *out = r->arena + r->p->tensors[op->out[0]].offset_bytes;

    f->started = true;
    f->sent_bytes = bytes_of(r, from);
    f->sent = sh_calloc((size_t)f->sent_bytes + 1, 1);
    memcpy(f->sent, in, (size_t)f->sent_bytes);
    memset(out, SIM_POISON, (size_t)bytes_of(r, op->out[0]));
    if (in >= out && in < out + bytes_of(r, op->out[0]) && op->kind == SH_OP_ALL_GATHER)
        memcpy(in, f->sent, (size_t)f->sent_bytes);
}

/* Another collective that goes on with the result of i. */
static bool goes_on(const struct sim_rank *r, int i, const struct sh_section *section)
{
    for (int k = i + 1; k < section->first_op + section->n_ops; k++)
        if (r->flights[k].started && r->p->ops[k].attr.after == i - section->first_op)
            return true;
    return false;
}

void sim_coll_finish(const struct sim *s, struct sim_rank *r, int i, const struct sh_section *section)
{
    const struct sh_op *op = &r->p->ops[i];
    struct sim_flight *f = &r->flights[i];
    int64_t bytes;
    char *out;

    assert_false(f->waited);
    f->waited = true;
    if (op->kind != SH_OP_ALL_REDUCE &&
        memcmp(r->arena + r->p->tensors[op->in[0]].offset_bytes, f->sent, (size_t)f->sent_bytes))
        fail_msg("%s, operation %d: what is sent changed under way", sh_section_name(section->kind),
                 i - section->first_op);
    if (goes_on(r, i, section))
        return;
    out = result(s, r, i, section, &bytes);
    memcpy(r->arena + r->p->tensors[op->out[0]].offset_bytes, out, (size_t)bytes);
    free(out);
}

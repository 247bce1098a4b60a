#include "src/pass/lifetime.h"
#include "src/pass/pass.h"

#include "src/base/hash.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

struct check {
    const struct sh_program *p;
    const struct sh_section *section;
    struct sh_life *life; /* [tensors] */
    bool *written;        /* [tensors] by storage root */
    bool *gathered;       /* [tensors] by storage root: gathered and not yet released */
};

static const struct sh_op *op_at(const struct check *c, int i)
{
    return &c->p->ops[c->section->first_op + i];
}

static sh_rc broken(const struct check *c, int i, const char *what)
{
    return sh_fail(SH_E_BUG, "program check: %s, operation %d (%s): %s", sh_section_name(c->section->kind), i,
                   sh_op_info(op_at(c, i)->kind)->name, what);
}

static bool names_tensor(const struct check *c, int t)
{
    return t >= 0 && t < c->p->n_tensors;
}

static sh_rc check_operands(const struct check *c, int i)
{
    const struct sh_op *op = op_at(c, i);
    const struct sh_op_info *info = sh_op_info(op->kind);

    for (int k = 0; k < SH_OP_MAX_IN; k++)
        if (op->in[k] == SH_NONE ? k < info->n_in && !(info->opt_in >> k & 1u) : k >= info->n_in || !names_tensor(c, op->in[k]))
            return broken(c, i, "an input is missing or too many");
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op->out[k] == SH_NONE ? k < info->n_out && !(info->opt_out >> k & 1u)
                                  : k >= info->n_out || !names_tensor(c, op->out[k]))
            return broken(c, i, "an output is missing or too many");
    return SH_OK;
}

static bool has_value(const struct check *c, int t)
{
    int root = sh_tensor_root(c->p, t);

    return c->p->tensors[root].persistent || c->written[root];
}

static sh_rc check_reads(const struct check *c, int i)
{
    const struct sh_op *op = op_at(c, i);

    for (int k = 0; k < SH_OP_MAX_IN; k++)
        if (op->in[k] != SH_NONE && !has_value(c, op->in[k]))
            return broken(c, i, "reads what nothing has written");
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op->out[k] != SH_NONE && ((op->attr.accumulate >> k & 1u) || (sh_op_info(op->kind)->rw_out >> k & 1u)) &&
            !has_value(c, op->out[k]))
            return broken(c, i, "adds to what nothing has written");
    return SH_OK;
}

/* A gathered unit is read between the wait for its gather and its release, and at no other time. */
static sh_rc check_gathered(struct check *c, int i)
{
    const struct sh_op *op = op_at(c, i);

    for (int k = 0; k < SH_OP_MAX_IN; k++) {
        int root = op->in[k] == SH_NONE ? SH_NONE : sh_tensor_root(c->p, op->in[k]);

        if (root != SH_NONE && c->p->tensors[root].mem == SH_MEM_GATHERED && !c->gathered[root])
            return broken(c, i, "reads a unit that is not gathered");
    }
    if (op->kind == SH_OP_RELEASE)
        c->gathered[sh_tensor_root(c->p, op->in[0])] = false;
    if (op->kind == SH_OP_WAIT && op_at(c, op->attr.waits_for)->kind == SH_OP_ALL_GATHER)
        c->gathered[sh_tensor_root(c->p, op_at(c, op->attr.waits_for)->out[0])] = true;
    return SH_OK;
}

static void mark_writes(struct check *c, int i)
{
    const struct sh_op *op = op_at(c, i);

    if (op->kind == SH_OP_WAIT)
        op = op_at(c, op->attr.waits_for);
    else if (sh_op_info(op->kind)->comm)
        return; /* its result exists after the wait */
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op->out[k] != SH_NONE)
            c->written[sh_tensor_root(c->p, op->out[k])] = true;
}

static sh_rc check_waits(const struct check *c)
{
    for (int i = 0; i < c->section->n_ops; i++) {
        int waits = 0;

        if (!sh_op_info(op_at(c, i)->kind)->comm)
            continue;
        if (op_at(c, i)->attr.after >= i)
            return broken(c, i, "starts after a collective that comes later");
        for (int k = i + 1; k < c->section->n_ops; k++)
            waits += op_at(c, k)->kind == SH_OP_WAIT && op_at(c, k)->attr.waits_for == i;
        if (waits != 1)
            return broken(c, i, "is not waited for exactly once");
    }
    return SH_OK;
}

static sh_rc check_released(const struct check *c)
{
    for (int t = 0; t < c->p->n_tensors; t++)
        if (c->gathered[t])
            return broken(c, c->section->n_ops - 1, "a gathered unit is never released");
    return SH_OK;
}

static bool overlap(const struct sh_tensor *a, const struct sh_tensor *b)
{
    return a->offset_bytes < b->offset_bytes + sh_tensor_bytes(b) && b->offset_bytes < a->offset_bytes + sh_tensor_bytes(a);
}

/* Two tensors in the same place: allowed only when their lives do not meet, or meet in one operation that works in place. */
static bool may_share(const struct check *c, int a, int b)
{
    int in, out;

    if (c->life[a].first > c->life[b].first) {
        int t = a;

        a = b;
        b = t;
    }
    if (c->life[a].last < c->life[b].first)
        return true;
    return c->life[a].last == c->life[b].first &&
           sh_lifetime_inplace(c->p, c->section, c->life, c->life[a].last, &in, &out) && in == a && out == b;
}

static int by_offset(const void *a, const void *b, void *program)
{
    const struct sh_tensor *t = ((const struct sh_program *)program)->tensors;
    int64_t x = t[*(const int *)a].offset_bytes, y = t[*(const int *)b].offset_bytes;

    return (x > y) - (x < y);
}

static sh_rc check_overlap(const struct check *c)
{
    const struct sh_program *p = c->p;
    int *alive = sh_calloc((size_t)p->n_tensors + 1, sizeof *alive), n = 0;
    sh_rc rc = SH_OK;

    for (int t = 0; t < p->n_tensors; t++)
        if (c->life[t].first != SH_NONE)
            alive[n++] = t;
    qsort_r(alive, (size_t)n, sizeof *alive, by_offset, (void *)(uintptr_t)p);
    for (int i = 0; i < n && rc == SH_OK; i++) {
        const struct sh_tensor *t = &p->tensors[alive[i]];

        if (t->offset_bytes < p->persistent_bytes || t->offset_bytes + sh_tensor_bytes(t) > p->arena_bytes)
            rc = sh_fail(SH_E_BUG, "program check: %s lies outside of the arena", t->name);
        for (int k = i + 1; k < n && rc == SH_OK && p->tensors[alive[k]].offset_bytes < t->offset_bytes + sh_tensor_bytes(t); k++)
            if (overlap(t, &p->tensors[alive[k]]) && !may_share(c, alive[i], alive[k]))
                rc = sh_fail(SH_E_BUG, "program check: %s: %s and %s share memory while both live",
                             sh_section_name(c->section->kind), t->name, p->tensors[alive[k]].name);
    }
    free(alive);
    return rc;
}

static sh_rc check_section(struct check *c)
{
    memset(c->written, 0, (size_t)c->p->n_tensors * sizeof *c->written);
    memset(c->gathered, 0, (size_t)c->p->n_tensors * sizeof *c->gathered);
    sh_lifetime_of_section(c->p, c->section, c->life);
    for (int i = 0; i < c->section->n_ops; i++) {
        SH_TRY(check_operands(c, i));
        SH_TRY(check_reads(c, i));
        SH_TRY(check_gathered(c, i));
        mark_writes(c, i);
    }
    SH_TRY(check_waits(c));
    SH_TRY(check_released(c));
    return check_overlap(c);
}

static sh_rc check_views(const struct sh_program *p)
{
    for (int i = 0; i < p->n_tensors; i++) {
        const struct sh_tensor *v = &p->tensors[i];

        if (v->base == SH_NONE || v->dtype != p->tensors[v->base].dtype)
            continue;
        if (v->base_elems < 0 || v->base_elems + sh_tensor_elems(v) > sh_tensor_elems(&p->tensors[v->base]))
            return sh_fail(SH_E_BUG, "program check: view %s leaves %s", v->name, p->tensors[v->base].name);
    }
    return SH_OK;
}

sh_rc sh_pass_check(const struct sh_program *p)
{
    struct check c = {.p = p};
    sh_rc rc = check_views(p);

    c.life = sh_calloc((size_t)p->n_tensors + 1, sizeof *c.life);
    c.written = sh_calloc((size_t)p->n_tensors + 1, sizeof *c.written);
    c.gathered = sh_calloc((size_t)p->n_tensors + 1, sizeof *c.gathered);
    for (int i = 0; i < p->n_sections && rc == SH_OK; i++) {
        c.section = &p->sections[i];
        rc = check_section(&c);
    }
    free(c.life);
    free(c.written);
    free(c.gathered);
    return rc;
}

static uint64_t mix(uint64_t h, int64_t v)
{
    return sh_mix64(h ^ (uint64_t)v);
}

uint64_t sh_pass_hash(const struct sh_program *p)
{
    uint64_t h = 1;

    for (int s = 0; s < p->n_sections; s++) {
        h = mix(h, p->sections[s].kind);
        h = mix(h, p->sections[s].repeat);
        for (int i = 0; i < p->sections[s].n_ops; i++) {
            const struct sh_op *op = &p->ops[p->sections[s].first_op + i];

            if (!sh_op_info(op->kind)->comm)
                continue;
            h = mix(h, op->kind);
            h = mix(h, op->attr.axis);
            h = mix(h, op->stream);
            h = mix(h, op->unit);
            h = mix(h, sh_tensor_bytes(&p->tensors[op->out[0]]));
        }
    }
    return h;
}

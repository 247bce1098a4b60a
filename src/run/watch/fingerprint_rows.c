#include "src/run/watch/fingerprint_rows.h"

#include "src/base/hash.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* ---- logical places ---- */

bool sh_print_cut(const struct sh_tensor *t, const struct sh_print_batch *batch, struct sh_print_cut *out)
{
    int64_t here = batch->tokens / batch->parts, elems = sh_tensor_elems(t), width;

    if (t->ndim == 0 || elems == 0)
        return false;
    if (t->dim[0] == batch->sequences * here ||
        (t->ndim > 2 && t->dim[0] == batch->runs * batch->sequences && t->dim[1] == here / batch->runs)) {
        width = elems / (batch->sequences * here);
        *out = (struct sh_print_cut){here, width, {batch->part * here}, batch->tokens};
        if (batch->runs == 2)
            *out = (struct sh_print_cut){here / 2,
                                         width,
                                         {batch->part * here / 2, (2 * batch->parts - 1 - batch->part) * here / 2},
                                         batch->tokens};
        return true;
    }
    if (t->dim[0] != batch->sequences || batch->parts > 1 || t->ndim < 2)
        return false;
    width = t->dim[t->ndim - 1];
    *out = (struct sh_print_cut){elems / batch->sequences / width, width, {0}, elems / batch->sequences / width};
    return true;
}

struct sh_print_batch sh_print_batch_of(const struct sh_model_batch *batch, int64_t tokens, bool gathers,
                                        const struct sh_mesh_shape *mesh)
{
    return (struct sh_print_batch){.sequences = batch->batch,
                                   .tokens = tokens,
                                   .parts = sh_group_size(mesh, mesh->context),
                                   .runs = gathers ? 2 : 1,
                                   .part = sh_group_index(mesh, mesh->context)};
}

bool sh_print_sorts_rows(enum sh_op_kind kind)
{
    switch ((int)kind) {
    case SH_OP_ROW_GATHER:
    case SH_OP_EXPERT_LINEAR:
    case SH_OP_EXPERT_LINEAR_BWD_X:
    case SH_OP_SWIGLU_ROWS:
    case SH_OP_SWIGLU_ROWS_BWD:
    case SH_OP_EXPERT_BIAS:
    case SH_OP_ROW_ADD: return true;
    default: return false;
    }
}

/* Not what is written in tiles, whose parts are views. */
static bool is_recorded(const struct sh_program *p, const struct sh_op *op, int tensor,
                        const struct sh_print_batch *batch)
{
    const struct sh_tensor *t = &p->tensors[tensor];
    struct sh_print_cut cut;
    bool floats = t->dtype == SH_F32 || t->dtype == SH_BF16 || t->dtype == SH_F16;

    return floats && (t->mem == SH_MEM_ACT || t->mem == SH_MEM_ACT_GRAD) && !op->tiles &&
           !sh_print_sorts_rows(op->kind) && p->streams[op->stream].runs == SH_RUNS_KERNELS &&
           !sh_op_info(op->kind)->marker && sh_print_cut(t, batch, &cut);
}

/* ---- names ---- */

static int find(const struct sh_print_rows *rows, const char *name)
{
    uint64_t hash = sh_hash64(name, strlen(name));

    for (int i = 0; i < rows->n; i++)
        if (rows->row[i].hash == hash && !strcmp(rows->row[i].name, name))
            return i;
    return SH_NONE;
}

/* name: owned by the row from now on. */
static int add(struct sh_print_rows *rows, char *name, const char *kind)
{
    uint64_t hash = sh_hash64(name, strlen(name));

    rows->row = sh_grow(rows->row, rows->n, &rows->most, sizeof *rows->row);
    rows->row[rows->n] =
        (struct sh_print_row){.name = name, .kind = kind, .hash = hash, .seed = hash, .section = SH_NONE};
    return rows->n++;
}

/* The same for what an operation makes. */
static int add_made(struct sh_print_rows *rows, char *name, const struct sh_op *op)
{
    int row = add(rows, name, sh_op_info(op->kind)->name);
    char *first;

    if (op->phase != SH_PHASE_RECOMPUTE)
        return row;
    first = sh_strfmt("%s%s", sh_phase_name(SH_PHASE_FORWARD), strchr(name, ' '));
    rows->row[row].seed = sh_hash64(first, strlen(first));
    free(first);
    return row;
}

static bool is_param(const struct sh_program *p, int tensor)
{
    enum sh_mem mem = p->tensors[sh_tensor_root(p, tensor)].mem;

    return mem == SH_MEM_PARAM || mem == SH_MEM_FROZEN || mem == SH_MEM_GATHERED || mem == SH_MEM_UNPACKED;
}

/* Several tensors of a block have one name; the parameter that an operation reads tells most of them apart. */
static char *name_of(const struct sh_program *p, const struct sh_op *op, int tensor, int number)
{
    const char *param = NULL;
    char count[16] = "";

    for (int i = SH_OP_MAX_IN - 1; i >= 0; i--)
        if (op->in[i] != SH_NONE && is_param(p, op->in[i]))
            param = p->tensors[op->in[i]].name;
    if (number > 1)
        snprintf(count, sizeof count, " (%d)", number);
    return sh_strfmt("%s %s%s%s%s", sh_phase_name(op->phase), p->tensors[tensor].name, param ? " of " : "",
                     param ? param : "", count);
}

/* The row of an output, by its name and by how often the section has made one of that name. */
static int row_of(struct sh_print_rows *rows, const struct sh_program *p, const struct sh_op *op, int tensor,
                  int section)
{
    for (int number = 1;; number++) {
        char *name = name_of(p, op, tensor, number);
        int row = find(rows, name);

        if (row == SH_NONE)
            row = add_made(rows, name, op);
        else
            free(name);
        if (rows->row[row].section != section) {
            rows->row[row].section = section;
            return row;
        }
    }
}

/* made: [tensors] the row that each root tensor holds now. */
static void list_inputs(struct sh_print_row *row, const struct sh_program *p, const struct sh_op *op, const int *holds)
{
    row->n_in = 0;
    for (int i = 0; i < SH_OP_MAX_IN; i++) {
        int held = op->in[i] == SH_NONE ? SH_NONE : holds[sh_tensor_root(p, op->in[i])];

        if (held != SH_NONE)
            row->in[row->n_in++] = held;
    }
}

static void add_section(struct sh_print_rows *rows, const struct sh_program *p, int section,
                        const struct sh_print_batch *batch)
{
    const struct sh_section *s = &p->sections[section];
    int *holds = sh_calloc((size_t)p->n_tensors, sizeof *holds);

    for (int i = 0; i < p->n_tensors; i++)
        holds[i] = SH_NONE;
    holds[sh_tensor_root(p, p->port[SH_PORT_TOKENS])] = rows->tokens;
    for (int i = s->first_op; i < s->first_op + s->n_ops; i++) {
        const struct sh_op *op = &p->ops[i];
        int row[SH_OP_MAX_OUT];

        for (int k = 0; k < SH_OP_MAX_OUT; k++) {
            bool recorded = op->out[k] != SH_NONE && is_recorded(p, op, op->out[k], batch);

            row[k] = recorded ? row_of(rows, p, op, op->out[k], section) : SH_NONE;
            rows->made[i * SH_OP_MAX_OUT + k] = row[k];
            if (recorded)
                list_inputs(&rows->row[row[k]], p, op, holds);
        }
        for (int k = 0; k < SH_OP_MAX_OUT; k++)
            if (op->out[k] != SH_NONE)
                holds[sh_tensor_root(p, op->out[k])] = row[k];
    }
    free(holds);
}

/* ---- all ---- */

static void add_states(struct sh_print_rows *rows, const struct sh_program *p)
{
    rows->state = rows->n;
    for (int i = 0; i < p->n_saved; i++)
        for (int k = 0; k <= p->n_states; k++)
            add(rows, sh_strfmt("%s %s", k ? p->state[k - 1].name : "parameter", p->saved[i].name), NULL);
}

void sh_print_rows_make(const struct sh_program *p, const struct sh_print_batch *batch, struct sh_print_rows *out)
{
    *out = (struct sh_print_rows){0};
    out->made = sh_calloc((size_t)p->n_ops * SH_OP_MAX_OUT, sizeof *out->made);
    for (int i = 0; i < p->n_ops * SH_OP_MAX_OUT; i++)
        out->made[i] = SH_NONE;
    add_states(out, p);
    out->tokens = add(out, sh_strdup("tokens"), NULL);
    for (int i = 0; i < p->n_sections; i++)
        if (sh_program_is_micro_step(&p->sections[i]))
            add_section(out, p, i, batch);
    out->gradient = out->n;
    for (int i = 0; i < p->n_saved; i++)
        add(out, sh_strfmt("gradient %s", p->saved[i].name), NULL);
}

void sh_print_rows_free(struct sh_print_rows *rows)
{
    for (int i = 0; i < rows->n; i++)
        free(rows->row[i].name);
    free(rows->row);
    free(rows->made);
    *rows = (struct sh_print_rows){0};
}

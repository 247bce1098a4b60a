#include "src/run/watch/fingerprint_rows.h"

#include "src/base/hash.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* ---- logical places ---- */

/* Rows of tokens, [n, ...] or [sequences, rows of one, ...]. */
static bool has_rows(const struct sh_tensor *t, int64_t n, int64_t sequences)
{
    return t->dim[0] == n || (t->ndim > 2 && t->dim[0] == sequences && t->dim[0] * t->dim[1] == n);
}

bool sh_print_cut(const struct sh_tensor *t, const struct sh_print_batch *batch, struct sh_print_cut *out)
{
    int64_t tokens = batch->tokens / batch->parts, all = batch->sequences * tokens, own = all / batch->ranks;
    int64_t elems = sh_tensor_elems(t), pieces = batch->runs * batch->sequences, second = 2 * batch->parts - 1;

    if (t->ndim == 0 || elems == 0)
        return false;
    *out = (struct sh_print_cut){.rows = all / pieces,
                                 .first = {batch->part * (tokens / batch->runs), (second - batch->part) * (tokens / 2)},
                                 .all = batch->tokens,
                                 .here = all,
                                 .stripe = all,
                                 .part = batch->ranks > 1};
    if (batch->ranks > 1 && has_rows(t, own, 1)) {
        out->here = own;
        out->stripe = own / batch->stripes;
        out->step = all / batch->stripes;
        out->begin = batch->place * out->stripe;
        out->part = false;
    } else if (!has_rows(t, all, pieces)) {
        if (t->dim[0] != batch->sequences || batch->parts > 1 || t->ndim < 2)
            return false;
        out->rows = out->all = elems / batch->sequences / t->dim[t->ndim - 1];
        out->here = out->stripe = batch->sequences * out->rows;
    }
    out->width = elems / out->here;
    return true;
}

int64_t sh_print_place(const struct sh_print_cut *c, const struct sh_print_batch *batch, int64_t row, int64_t *sequence,
                       int64_t *at)
{
    int64_t flat = c->begin + row / c->stripe * c->step + row % c->stripe, piece = flat / c->rows;
    int64_t of_stripe = c->stripe - row % c->stripe, of_piece = c->rows - flat % c->rows;

    *sequence = piece % batch->sequences;
    *at = c->first[piece / batch->sequences] + flat % c->rows;
    return of_stripe < of_piece ? of_stripe : of_piece;
}

struct sh_print_batch sh_print_batch_of(const struct sh_build *build, int64_t tokens)
{
    const struct sh_mesh_shape *mesh = &build->options.mesh;

    return (struct sh_print_batch){.sequences = build->batch.batch,
                                   .tokens = tokens,
                                   .parts = sh_group_size(mesh, mesh->context),
                                   .runs = build->options.gather ? 2 : 1,
                                   .part = sh_group_index(mesh, mesh->context),
                                   .ranks = sh_group_size(mesh, mesh->tensor),
                                   .place = sh_group_index(mesh, mesh->tensor),
                                   .stripes = build->tensor_tiles > 1 ? build->tensor_tiles : 1};
}

bool sh_print_sorts_rows(enum sh_op_kind kind)
{
    switch ((int)kind) {
    case SH_OP_ROW_GATHER:
    case SH_OP_EXPERT_LINEAR:
    case SH_OP_EXPERT_LINEAR_BWD_X:
    case SH_OP_SWIGLU_ROWS:
    case SH_OP_SWIGLU_ROWS_BWD:
    case SH_OP_SQUARED_RELU_ROWS:
    case SH_OP_SQUARED_RELU_ROWS_BWD:
    case SH_OP_EXPERT_BIAS:
    case SH_OP_ROW_ADD: return true;
    default: return false;
    }
}

static bool is_made(const struct sh_tensor *t)
{
    bool floats = t->dtype == SH_F32 || t->dtype == SH_BF16 || t->dtype == SH_F16;

    return floats && (t->mem == SH_MEM_ACT || t->mem == SH_MEM_ACT_GRAD);
}

/* Not what is written in tiles, whose parts are views. */
static bool is_recorded(const struct sh_program *p, const struct sh_op *op, int tensor,
                        const struct sh_print_batch *batch, struct sh_print_cut *cut)
{
    return !op->tiles && !sh_print_sorts_rows(op->kind) && p->streams[op->stream].runs == SH_RUNS_KERNELS &&
           sh_print_cut(&p->tensors[tensor], batch, cut);
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
static char *name_of(const struct sh_program *p, const struct sh_op *op, int tensor, int number, int parts)
{
    const char *param = NULL;
    char count[16] = "", part[32] = "";

    for (int i = SH_OP_MAX_IN - 1; i >= 0; i--)
        if (op->in[i] != SH_NONE && is_param(p, op->in[i]))
            param = p->tensors[op->in[i]].name;
    if (number > 1)
        snprintf(count, sizeof count, " (%d)", number);
    if (parts > 1)
        snprintf(part, sizeof part, " (in %d parts)", parts);
    return sh_strfmt("%s %s%s%s%s%s", sh_phase_name(op->phase), p->tensors[tensor].name, param ? " of " : "",
                     param ? param : "", count, part);
}

/* Whether the section has made a tensor of that name, but for pieces of `whole`. */
static bool is_taken(const struct sh_print_rows *rows, char *name, int section, int whole)
{
    int row = find(rows, name);

    free(name);
    return row != SH_NONE && rows->row[row].section == section && rows->row[row].root != whole;
}

/* The row of an output, by its name and by how often the section has made one of that name, in parts or not, with a record or
 * not: other meshes and tiles give others a record. */
static int row_of(struct sh_print_rows *rows, const struct sh_program *p, const struct sh_op *op, int tensor,
                  int section, int ranks, bool part)
{
    int number = 1, row, root = sh_tensor_root(p, tensor);
    int whole = sh_tensor_elems(&p->tensors[tensor]) < sh_tensor_elems(&p->tensors[root]) ? root : SH_NONE;
    char *name;

    while (is_taken(rows, name_of(p, op, tensor, number, 1), section, whole) ||
           (ranks > 1 && is_taken(rows, name_of(p, op, tensor, number, ranks), section, whole)))
        number++;
    name = name_of(p, op, tensor, number, part ? ranks : 1);
    row = find(rows, name);
    if (row == SH_NONE)
        row = add_made(rows, name, op);
    else
        free(name);
    rows->row[row].section = section;
    rows->row[row].root = root;
    return row;
}

/* A walk over the operations of one micro-step, of one program or of all stages.
 *   holds  [stages][tensors] the row that each root tensor holds now
 *   came   [stages][tensors] of what another stage sends: the border and direction; SH_NONE: it does not
 *   sent   [borders of chunks and directions] which stage sends what
 *   known  what each row reads is known already */
struct walk {
    struct sh_print_rows *rows;
    const struct sh_print_batch *batch;
    const struct sh_program *const *p;
    int n, layers;
    bool known;
    int **holds, **came;
    struct sent {
        int stage, root;
    } * sent;
};

/* An operation that a stage has a row of; and where it would stand if one stage had all blocks. */
struct place {
    int stage, op, depth;
};

static void begin_walk(struct walk *w)
{
    w->holds = sh_calloc((size_t)w->n, sizeof *w->holds);
    w->came = sh_calloc((size_t)w->n, sizeof *w->came);
    w->sent = sh_calloc(2 * (size_t)w->layers + 2, sizeof *w->sent);
    for (int s = 0; s < w->n; s++) {
        const struct sh_program *p = w->p[s];
        int tokens = p->port[SH_PORT_TOKENS];

        w->holds[s] = sh_calloc((size_t)p->n_tensors, sizeof **w->holds);
        w->came[s] = sh_calloc((size_t)p->n_tensors, sizeof **w->came);
        for (int i = 0; i < p->n_tensors; i++)
            w->holds[s][i] = w->came[s][i] = SH_NONE;
        if (tokens != SH_NONE && s == 0)
            w->holds[s][sh_tensor_root(p, tokens)] = w->rows->tokens;
    }
}

static void end_walk(struct walk *w)
{
    for (int s = 0; s < w->n; s++) {
        free(w->holds[s]);
        free(w->came[s]);
    }
    free(w->holds);
    free(w->came);
    free(w->sent);
}

/* Nothing changes a tensor between its sending and its use. */
static int held(const struct walk *w, int stage, int tensor)
{
    int root = sh_tensor_root(w->p[stage], tensor), came = w->came[stage][root];

    if (w->holds[stage][root] != SH_NONE || came == SH_NONE)
        return w->holds[stage][root];
    return w->holds[w->sent[came].stage][w->sent[came].root];
}

static void list_inputs(struct walk *w, int row, int stage, const struct sh_op *op)
{
    struct sh_print_row *to = &w->rows->row[row];

    to->n_in = 0;
    to->more = false;
    for (int i = 0; i < SH_OP_MAX_IN; i++) {
        int in = op->in[i] == SH_NONE ? SH_NONE : held(w, stage, op->in[i]);

        if (in != SH_NONE)
            to->in[to->n_in++] = in;
        else if (op->in[i] != SH_NONE && is_made(&w->p[stage]->tensors[sh_tensor_root(w->p[stage], op->in[i])]))
            to->more = true;
    }
}

/* The row of output k; SH_NONE: it has no record. */
static int find_row(struct walk *w, int stage, const struct sh_op *op, int k)
{
    const struct sh_program *p = w->p[stage];
    int ranks = w->batch->ranks, row;
    struct sh_print_cut cut;
    bool recorded;

    if (op->out[k] == SH_NONE || !is_made(&p->tensors[op->out[k]]) || sh_op_info(op->kind)->marker ||
        sh_program_is_message(op))
        return SH_NONE;
    recorded = is_recorded(p, op, op->out[k], w->batch, &cut);
    row = row_of(w->rows, p, op, op->out[k], w->rows->sections, ranks, recorded && cut.part);
    if (!recorded)
        return SH_NONE;
    if (!w->known)
        list_inputs(w, row, stage, op);
    return row;
}

/* row: out, of the outputs. */
static void walk_over(struct walk *w, int stage, const struct sh_op *op, int row[SH_OP_MAX_OUT])
{
    const struct sh_program *p = w->p[stage];

    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        row[k] = find_row(w, stage, op, k);
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op->out[k] != SH_NONE)
            w->holds[stage][sh_tensor_root(p, op->out[k])] = row[k];
}

static void add_section(struct sh_print_rows *rows, const struct sh_program *p, int section, int micro,
                        const struct sh_print_batch *batch, bool known)
{
    const struct sh_section *s = &p->sections[section];
    struct walk w = {.rows = rows, .batch = batch, .p = &p, .n = 1, .known = known};

    begin_walk(&w);
    for (int i = s->first_op; i < s->first_op + s->n_ops; i++)
        if (p->ops[i].micro == micro)
            walk_over(&w, 0, &p->ops[i], rows->made + (ptrdiff_t)i * SH_OP_MAX_OUT);
    end_walk(&w);
    rows->sections++;
}

/* ---- of stages ---- */

static int depth_of(const struct walk *w, int stage, const struct sh_op *op)
{
    int layers = w->layers + 1, outside = stage ? layers : 0, depth = op->block == SH_NONE ? outside : op->block + 1;

    return op->phase == SH_PHASE_FORWARD ? depth : 2 * layers - depth;
}

static void note_message(struct walk *w, int stage, const struct sh_op *op)
{
    int at = 2 * op->attr.link.border + (op->phase != SH_PHASE_FORWARD);

    if (op->kind == SH_OP_SEND)
        w->sent[at] = (struct sent){stage, sh_tensor_root(w->p[stage], op->in[0])};
    else
        w->came[stage][sh_tensor_root(w->p[stage], op->out[0])] = at;
}

static int compare_places(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    return x->depth != y->depth   ? (x->depth > y->depth) - (x->depth < y->depth)
           : x->stage != y->stage ? (x->stage > y->stage) - (x->stage < y->stage)
                                  : (x->op > y->op) - (x->op < y->op);
}

/* Those of the first micro-step of a step, of all stages, in the order of one stage. Returns their number; the caller frees
 * them. */
static int find_places(struct walk *w, struct place **places)
{
    int n = 0, most = 0;

    *places = NULL;
    for (int s = 0; s < w->n; s++)
        for (int i = 0; i < w->p[s]->n_sections; i++) {
            const struct sh_section *section = &w->p[s]->sections[i];

            for (int k = section->first_op; sh_program_is_micro_step(section) && k < section->first_op + section->n_ops;
                 k++) {
                const struct sh_op *op = &w->p[s]->ops[k];

                if (op->micro)
                    continue;
                if (sh_program_is_message(op))
                    note_message(w, s, op);
                *places = sh_grow(*places, n, &most, sizeof **places);
                (*places)[n++] = (struct place){s, k, depth_of(w, s, op)};
            }
        }
    if (n)
        qsort(*places, (size_t)n, sizeof **places, compare_places);
    return n;
}

static void add_stages(struct sh_print_rows *rows, const struct sh_pipe_stages *stages, int layers,
                       const struct sh_print_batch *batch)
{
    struct walk w = {.rows = rows,
                     .batch = batch,
                     .p = (const struct sh_program *const *)stages->p,
                     .n = stages->n,
                     .layers = layers};
    struct place *places;
    int n, row[SH_OP_MAX_OUT];

    begin_walk(&w);
    n = find_places(&w, &places);
    for (int i = 0; i < n; i++) {
        const struct sh_op *op = &w.p[places[i].stage]->ops[places[i].op];

        if (!sh_program_is_message(op))
            walk_over(&w, places[i].stage, op, row);
    }
    free(places);
    end_walk(&w);
    rows->sections++;
}

/* ---- all ---- */

static void add_states(struct sh_print_rows *rows, const struct sh_program *p)
{
    rows->state = rows->n;
    for (int i = 0; i < p->n_saved; i++)
        for (int k = 0; k <= p->n_states; k++)
            add(rows, sh_strfmt("%s %s", k ? p->state[k - 1].name : "parameter", p->saved[i].name), NULL);
}

void sh_print_rows_make(const struct sh_program *p, const struct sh_print_batch *batch,
                        const struct sh_pipe_stages *stages, int layers, struct sh_print_rows *out)
{
    *out = (struct sh_print_rows){0};
    out->made = sh_calloc((size_t)p->n_ops * SH_OP_MAX_OUT, sizeof *out->made);
    for (int i = 0; i < p->n_ops * SH_OP_MAX_OUT; i++)
        out->made[i] = SH_NONE;
    add_states(out, p);
    out->tokens = add(out, sh_strdup("tokens"), NULL);
    if (stages->n)
        add_stages(out, stages, layers, batch);
    for (int i = 0; i < p->n_sections; i++)
        for (int u = 0; sh_program_is_micro_step(&p->sections[i]) && u < p->unrolled; u++)
            add_section(out, p, i, u, batch, stages->n > 0);
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

/* Activations of the first blocks that, between the forward that makes them and the backward that reads them, live in a
 * file, or in the host's memory next to a GPU's. They wait the longest; those of the last two blocks would have to come
 * back before they are gone.
 *
 * An activation leaves after its last use in the forward, and its memory is free when the forward of the following
 * block is over. It comes back to other memory at the start of the backward of the block after its own, so that one
 * block's backward hides the fetch. With full recomputation one border per block is kept, and the memory of a step no
 * longer grows with the depth.
 *
 *   before   F0 F1 F2 F3 F4  B4 B3 B2 B1 B0
 *   after    F0 E0 F1 e0 F2 F3 F4  B4 B3 B2 f0 B1 w0 B0       (of block 0: E eviction, e its wait, f fetch, w its wait)
 *
 * A micro-step leaves nothing there for the next one, so all use the same places; in the list of a stage, where micro-steps
 * overlap, one that has come back leaves its place to the next one of its size. Activations that do not fill whole
 * pages of a file stay: statistics and the like, of small batches. So do keys and values that later blocks read. The host's memory takes any bytes. */
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/pass/build.h"
#include "src/pass/home.h"

#include <stdlib.h>

/* An activation that moves. Places are operations of the old section. */
struct away {
    int root, home, back; /* storage on the device, in the lower tier, and on the device again */
    int last;             /* its last use in the forward, after which it leaves */
    int gone, fetched;    /* operations before which its eviction is waited for, and its fetch starts */
    int first;            /* its first use after the forward, before which the fetch is waited for */
    int evict, fetch;     /* where the moves are in the new section */
};

/* A place in the lower tier. */
struct home {
    int tensor, until; /* it is free after that operation of the old section */
};

struct spill {
    const struct sh_build *b;
    struct sh_program *p;
    int tier, in, out, blocks; /* rows of the tier and of the streams; how many blocks, from the first on */
    bool file;                 /* the tier is a file */
    struct home *homes;
    int n_homes, cap_homes;
    const struct sh_section *s;
    struct use *use; /* [tensors of the old section] by storage root */
    struct away *away;
    int n, cap;
    int *copy; /* [tensors] what replaces it after the forward; SH_NONE: itself */
    int n_copy;
    struct sh_op *op;
    int n_op, cap_op; /* the new section */
};

/* How the section uses a storage. */
struct use {
    int block;       /* the block that makes it; SH_NONE: none */
    int last, first; /* last use in the forward, and first use after it; SH_NONE */
    bool changes;    /* it changes after the forward, or another rank sees it, or the host where it is */
};

static const struct sh_op *op_of(const struct spill *s, int i)
{
    return &s->p->ops[s->s->first_op + i];
}

static bool is_forward(const struct spill *s, int i)
{
    return op_of(s, i)->phase == SH_PHASE_FORWARD;
}

/* An operation of the model, which belongs to a block or to none. */
static bool computes(const struct spill *s, int i)
{
    const struct sh_op_info *info = sh_op_info(op_of(s, i)->kind);

    return !sh_op_starts(info) && !info->marker;
}

/* A collective that exchanges rows of the model, or the wait for one. What it makes exists from the wait on, which is
 * still next to it, so the wait uses both of its sides. */
static const struct sh_op *exchange_of(const struct spill *s, int i)
{
    const struct sh_op *op = op_of(s, i);

    if (op->kind == SH_OP_WAIT)
        op = op_of(s, op->attr.waits_for);
    return sh_op_info(op->kind)->async && op->unit == SH_NONE ? op : NULL;
}

static void note_read(const struct spill *s, int t, int i)
{
    struct use *u = &s->use[sh_tensor_root(s->p, t)];

    if (is_forward(s, i))
        u->last = i;
    else if (u->first == SH_NONE)
        u->first = i;
}

static void note_write(const struct spill *s, int t, int i)
{
    struct use *u = &s->use[sh_tensor_root(s->p, t)];

    u->changes |= !is_forward(s, i) || (!computes(s, i) && !exchange_of(s, i));
    if (is_forward(s, i) && u->last == SH_NONE)
        u->block = op_of(s, i)->block;
    if (is_forward(s, i))
        u->last = i;
}

static void note_uses(struct spill *s)
{
    for (int t = 0; t < s->p->n_tensors; t++)
        s->use[t] = (struct use){.block = SH_NONE, .last = SH_NONE, .first = SH_NONE};
    for (int i = 0; i < s->s->n_ops; i++) {
        const struct sh_op *op = exchange_of(s, i) ? exchange_of(s, i) : op_of(s, i);

        for (int k = 0; k < SH_OP_MAX_IN; k++)
            if (op->in[k] != SH_NONE)
                note_read(s, op->in[k], i);
        if (sh_program_counts_rows(op))
            s->use[sh_tensor_root(s->p, op->in[1])].changes = true;
        for (int k = 0; k < SH_OP_MAX_OUT; k++)
            if (op->out[k] != SH_NONE)
                note_write(s, op->out[k], i);
    }
}

static bool may_move(const struct spill *s, int t)
{
    const struct sh_tensor *x = &s->p->tensors[t];
    const struct use *u = &s->use[t];

    return x->mem == SH_MEM_ACT && x->base == SH_NONE && !x->persistent && !u->changes && u->block >= 0 &&
           u->block < s->blocks && u->first != SH_NONE && op_of(s, u->last)->block != SH_NONE &&
           op_of(s, u->last)->block <= u->block + 1 && (!s->file || sh_tensor_bytes(x) % SH_FILE_PAGE == 0);
}

/* Where the forward of the block after the last use is over. */
static int gone_at(const struct spill *s, const struct use *u)
{
    int block = op_of(s, u->last)->block, i = u->last + 1;

    while (is_forward(s, i) && (!computes(s, i) || op_of(s, i)->block == block || op_of(s, i)->block == block + 1))
        i++;
    return i;
}

/* Where the backward of the next block of its micro-step starts, which runs just before the block of its first use; at the
 * latest at that use. */
static int fetched_at(const struct spill *s, const struct use *u, int gone)
{
    const struct sh_op *first = op_of(s, u->first), *op;

    for (int i = gone; i < u->first; i++) {
        op = op_of(s, i);
        if (!is_forward(s, i) && computes(s, i) && first->block != SH_NONE && op->block == first->block + 1 &&
            op->micro == first->micro)
            return i;
    }
    return u->first;
}

/* Storage in bytes, which is what moves; the tensor becomes a view of it. */
static int bytes_below(struct spill *s, int t)
{
    int64_t bytes = sh_tensor_bytes(&s->p->tensors[t]);
    struct sh_tensor below = sh_tensor_make(SH_MEM_ACT, SH_U8, 1, &bytes, "%.40s.kept", s->p->tensors[t].name);
    int root;

    below.space = s->p->tensors[t].space;
    root = sh_program_add_tensor(s->p, &below);
    s->p->tensors[t].base = root;
    s->p->tensors[t].base_elems = 0;
    return root;
}

static int another(struct spill *s, int like, const char *what, int tier)
{
    const struct sh_tensor *l = &s->p->tensors[like];
    struct sh_tensor t = sh_tensor_make(SH_MEM_ACT, SH_U8, 1, l->dim, "%.40s.%s", l->name, what);

    t.persistent = tier != 0;
    t.tier = tier;
    t.space = tier ? SH_SPACE_OWN : l->space;
    return sh_program_add_tensor(s->p, &t);
}

/* The first home of its size that is free when it leaves; so each section has the same ones. */
static int home_of(struct spill *s, const struct away *a)
{
    int k = 0;

    while (k < s->n_homes && (s->homes[k].until >= a->last || sh_tensor_bytes(&s->p->tensors[s->homes[k].tensor]) !=
                                                                  sh_tensor_bytes(&s->p->tensors[a->root])))
        k++;
    if (k == s->n_homes) {
        s->homes = sh_grow(s->homes, k, &s->cap_homes, sizeof *s->homes);
        s->homes[s->n_homes++].tensor = another(s, a->root, "home", s->tier);
    }
    s->homes[k].until = a->first;
    return s->homes[k].tensor;
}

static void choose(struct spill *s)
{
    int n_tensors = s->p->n_tensors;

    for (int k = 0; k < s->n_homes; k++)
        s->homes[k].until = SH_NONE;
    for (int t = 0; t < n_tensors; t++) {
        struct away a = {.last = s->use[t].last, .first = s->use[t].first};

        if (!may_move(s, t))
            continue;
        a.gone = gone_at(s, &s->use[t]);
        a.fetched = fetched_at(s, &s->use[t], a.gone);
        a.root = bytes_below(s, t);
        a.home = home_of(s, &a);
        a.back = another(s, a.root, "back", 0);
        s->away = sh_grow(s->away, s->n, &s->cap, sizeof *s->away);
        s->away[s->n++] = a;
    }
}

static int push(struct spill *s, struct sh_op op)
{
    s->op = sh_grow(s->op, s->n_op, &s->cap_op, sizeof *s->op);
    s->op[s->n_op] = op;
    return s->n_op++;
}

/* In the phase and block of the operation next to which it stands, and of the micro-step of what moves. */
static int push_move(struct spill *s, enum sh_op_kind kind, int from, int to, int beside)
{
    struct sh_op op = sh_program_op(kind);

    op.in[0] = from;
    op.out[0] = to;
    op.stream = kind == SH_OP_FETCH ? s->in : s->out;
    op.phase = op_of(s, beside)->phase;
    op.block = op_of(s, beside)->block;
    op.micro = op_of(s, beside)->micro;
    return push(s, op);
}

static void push_wait(struct spill *s, int move, int beside)
{
    struct sh_op wait = sh_program_op(SH_OP_WAIT);

    wait.attr.waits_for = move;
    wait.phase = op_of(s, beside)->phase;
    wait.block = op_of(s, beside)->block;
    wait.micro = s->op[move].micro;
    push(s, wait);
}

static void push_before(struct spill *s, int i)
{
    for (int k = 0; k < s->n; k++)
        if (s->away[k].gone == i)
            push_wait(s, s->away[k].evict, i);
    for (int k = 0; k < s->n; k++)
        if (s->away[k].fetched == i)
            s->away[k].fetch = push_move(s, SH_OP_FETCH, s->away[k].home, s->away[k].back, i);
    for (int k = 0; k < s->n; k++)
        if (s->away[k].first == i)
            push_wait(s, s->away[k].fetch, i);
}

/* What replaces a tensor after the forward: a view of what came back, or itself. */
static int translate(struct spill *s, int t)
{
    struct sh_tensor copy;

    if (t == SH_NONE || t >= s->n_copy || s->copy[t] != SH_NONE)
        return t == SH_NONE || t >= s->n_copy ? t : s->copy[t];
    for (int k = 0; k < s->n; k++)
        if (sh_tensor_root(s->p, t) == s->away[k].root) {
            if (t == s->away[k].root)
                return s->copy[t] = s->away[k].back;
            copy = s->p->tensors[t];
            copy.base = translate(s, copy.base);
            return s->copy[t] = sh_program_add_tensor(s->p, &copy);
        }
    return s->copy[t] = t;
}

/* References between operations are positions within the section, so they are renumbered. */
static void rebuild(struct spill *s)
{
    int *place = sh_calloc((size_t)s->s->n_ops + 1, sizeof *place);

    for (int i = 0; i < s->s->n_ops; i++) {
        struct sh_op op = *op_of(s, i);

        push_before(s, i);
        for (int k = 0; k < SH_OP_MAX_IN && !is_forward(s, i); k++)
            op.in[k] = translate(s, op.in[k]);
        if (op.kind == SH_OP_WAIT)
            op.attr.waits_for = place[op.attr.waits_for];
        if (op.attr.after != SH_NONE)
            op.attr.after = place[op.attr.after];
        place[i] = push(s, op);
        for (int k = 0; k < s->n; k++)
            if (s->away[k].last == i)
                s->away[k].evict = push_move(s, SH_OP_EVICT, s->away[k].root, s->away[k].home, i);
    }
    free(place);
}

static void spill_section(struct spill *s, int section)
{
    s->s = &s->p->sections[section];
    s->use = sh_calloc((size_t)s->p->n_tensors + 1, sizeof *s->use);
    s->n = s->n_op = 0;
    note_uses(s);
    choose(s);
    s->n_copy = s->p->n_tensors;
    s->copy = sh_calloc((size_t)s->n_copy + 1, sizeof *s->copy);
    for (int t = 0; t < s->n_copy; t++)
        s->copy[t] = SH_NONE;
    if (s->n) {
        rebuild(s);
        sh_program_set_ops(s->p, section, s->op, s->n_op);
    }
    free(s->use);
    free(s->copy);
}

static sh_rc none_moves(const struct spill *s)
{
    const char *where = s->file ? "nvme" : "cpu";
    bool stages = sh_group_size(&s->b->options.mesh, s->b->options.mesh.pipeline) > 1;
    char blocks[SH_STR_SHORT];

    if (s->blocks <= 0)
        return sh_fail(SH_E_USAGE,
                       "offload.activations=%s: activations of the last two blocks stay in memory, and the model has "
                       "%s; leave it out",
                       where, sh_str_plural(s->b->model.n_layers, "block", blocks));
    if (!s->file)
        return sh_fail(SH_E_USAGE, "offload.activations=cpu: blocks %s keep nothing for a backward; leave it out",
                       stages ? "of the first stage" : "before the last two");
    return sh_fail(
        SH_E_USAGE,
        "offload.activations=nvme: no activation%s that may leave memory fills whole pages of %d bytes; leave it "
        "out, or give a larger training.local_batch_size",
        stages ? " of the first stage" : "", SH_FILE_PAGE);
}

/* Nothing changes unless it is asked for. The first stage has the first blocks: others may have nothing to move. A budget may ask for activations that cannot move, and sees that nothing
 * moves. */
sh_rc sh_pass_spill(const struct sh_build *b, struct sh_program *p)
{
    int most = b->model.n_layers - 2;
    struct spill s = {.b = b,
                      .p = p,
                      .file = !b->snapshot_on_host,
                      .blocks = b->offload.act_blocks < most ? b->offload.act_blocks : most};
    bool first = sh_group_index(&b->options.mesh, b->options.mesh.pipeline) == 0;
    sh_rc rc = SH_OK;

    if (!b->offload.act_blocks || sh_program_micro_step(p, 0) == SH_NONE)
        return SH_OK;
    s.tier = sh_pass_home_tier(b, p);
    s.in = sh_pass_moving_stream(p, "in");
    s.out = sh_pass_moving_stream(p, "out");
    for (int i = 0; i < p->n_sections; i++)
        if (sh_program_is_micro_step(&p->sections[i]))
            spill_section(&s, i);
    if (first && !s.n_homes && !b->fit_homes)
        rc = none_moves(&s);
    free(s.homes);
    free(s.away);
    free(s.op);
    return rc;
}

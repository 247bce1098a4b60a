/* Layers cut over ranks: the micro-steps of a stage's step become one list of operations, in the order of the schedule.
 * What a micro-step makes is its own; parameters are read by all, and gradients of parameters are added to from the
 * second micro-step on. The inputs of all micro-steps lie end to end, filled by the host before the step.
 *
 *   stage 1 of 4, 3 micro-steps   F0 F1 F2 B0 B1 B2, with messages around each: R arrives, w its wait, S is sent, s its
 *                                 wait
 *   before   R F S   R B S                                               one micro-step
 *   after    R0 R1 w F0 S0  R2 w F1 s0 S1  R0' w F2 s1 S2  R1' w B0 ...
 *
 * A message is asked for one item ahead, and the wait for one that is sent comes after the next item's work: so each
 * travels alongside an item's work, and at most two of a direction need memory. That this order cannot hang is checked for
 * the lists of all stages (links.h).
 *
 * Messages of each link and direction have their own stream, so that none waits for one of another neighbour. */
#include "src/base/mem.h"
#include "src/config/words.h"
#include "src/model/objective.h"
#include "src/pass/build.h"
#include "src/pass/pipeline/links.h"
#include "src/pass/pipeline/order.h"

#include <stdlib.h>
#include <string.h>

enum { OPS_MAX = 500000 };

struct pipe {
    const struct sh_build *b;
    struct sh_program *p;
    struct sh_op *old; /* of one micro-step */
    int n_old, n_tensors;
    int split;     /* the first operation that is not of the forward */
    bool *weights; /* [n_old] operations that make gradients of weights only, if these come later */
    int *chunk;    /* [n_old] of this stage's blocks */
    struct sh_pipe pipe;
    int place, steps;
    int *of; /* [steps][n_tensors] what stands for a tensor in a micro-step; SH_NONE: not made yet */
    int *
        port; /* [n_tensors] the tensor with the inputs of all micro-steps; SH_NONE: it is no port that the host fills */
};

static bool is_message(const struct sh_op *op)
{
    return sh_program_is_message(op);
}

static int stream_of(const struct pipe *f, const struct sh_op *op)
{
    bool back;
    int border = sh_program_border(op, f->place, f->pipe.stages, &back);

    return sh_links_stream(f->p, f->pipe.stages, border, back);
}

/* The storage of what all micro-steps share: parameters, their gradients, tables, results that the host reads. */
static bool is_shared(const struct pipe *f, int t)
{
    const struct sh_tensor *x = &f->p->tensors[t];

    return x->param != SH_NONE || x->grad_of != SH_NONE || x->mem == SH_MEM_CONST || t == f->p->port[SH_PORT_ROUTERS];
}

static int translate(struct pipe *f, int u, int t)
{
    int *mine = t == SH_NONE ? NULL : &f->of[(size_t)u * (size_t)f->n_tensors + (size_t)t];
    struct sh_tensor copy;

    if (t == SH_NONE || (is_shared(f, sh_tensor_root(f->p, t)) && f->port[t] == SH_NONE))
        return t;
    if (*mine != SH_NONE)
        return *mine;
    copy = f->p->tensors[t];
    if (f->port[t] != SH_NONE) {
        copy.base = f->port[t];
        copy.base_elems = u * sh_tensor_elems(&copy);
    } else if (copy.base != SH_NONE) {
        copy.base = translate(f, u, copy.base);
    }
    return *mine = sh_program_add_tensor(f->p, &copy);
}

/* Later micro-steps add to what routers report; and, unless a tree joins what each brings, to gradients of parameters and to
 * the loss. */
static void accumulate(const struct pipe *f, struct sh_op *op)
{
    for (int k = 0; k < SH_OP_MAX_OUT; k++) {
        int root = op->out[k] == SH_NONE ? SH_NONE : sh_tensor_root(f->p, op->out[k]);
        bool sum = root != SH_NONE && (f->p->tensors[root].grad_of != SH_NONE || root == f->p->port[SH_PORT_LOSS]);

        if (root != SH_NONE && (root == f->p->port[SH_PORT_ROUTERS] || (sum && !f->b->options.reproducible)))
            op->attr.accumulate |= 1u << k;
    }
}

static int add(struct pipe *f, int u, int i)
{
    struct sh_op op = f->old[i];

    for (int k = 0; k < SH_OP_MAX_IN; k++)
        op.in[k] = translate(f, u, op.in[k]);
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        op.out[k] = translate(f, u, op.out[k]);
    op.micro = u;
    if (op.tiles) /* each micro-step has its own runs */
        op.tiles = op.tiles * f->steps + u;
    if (u > 0)
        accumulate(f, &op);
    if (is_message(&op)) {
        op.attr.group = f->b->options.mesh.pipeline;
        op.attr.link.micro = u;
        op.stream = stream_of(f, &op);
    }
    return sh_program_add_op(f->p, &op);
}

static void add_wait(struct pipe *f, int message)
{
    const struct sh_op *of = &f->p->ops[message];
    struct sh_op wait = sh_program_op(SH_OP_WAIT);

    wait.phase = of->phase;
    wait.micro = of->micro;
    wait.attr.waits_for = message;
    sh_program_add_op(f->p, &wait);
}

static bool belongs(const struct pipe *f, int i, const struct sh_pipe_item *item)
{
    enum sh_pipe_part part = i < f->split ? SH_PIPE_FORWARD : f->weights[i] ? SH_PIPE_WEIGHTS : SH_PIPE_BACKWARD;

    return part == item->part && f->chunk[i] == item->chunk;
}

/* The message of a kind in an item; SH_NONE: it has none. */
static int find(const struct pipe *f, const struct sh_pipe_item *item, enum sh_op_kind kind)
{
    for (int i = 0; i < f->n_old; i++)
        if (f->old[i].kind == kind && belongs(f, i, item))
            return i;
    return SH_NONE;
}

/* Ask for what an item needs from another stage. Returns the operation, SH_NONE if it needs nothing. */
static int ask(struct pipe *f, const struct sh_pipe_item *item)
{
    int i = find(f, item, SH_OP_RECEIVE);

    return i == SH_NONE ? SH_NONE : add(f, item->micro, i);
}

static void work(struct pipe *f, const struct sh_pipe_item *item)
{
    for (int i = 0; i < f->n_old; i++)
        if (belongs(f, i, item) && !is_message(&f->old[i]) && f->old[i].phase != SH_PHASE_INIT)
            add(f, item->micro, i);
}

static void emit(struct pipe *f, const struct sh_pipe_item *items, int n)
{
    int asked = n ? ask(f, &items[0]) : SH_NONE, sent = SH_NONE;

    for (int k = 0; k < n; k++) {
        int came = asked, out = find(f, &items[k], SH_OP_SEND);

        asked = k + 1 < n ? ask(f, &items[k + 1]) : SH_NONE;
        if (came != SH_NONE)
            add_wait(f, came);
        work(f, &items[k]);
        if (sent != SH_NONE)
            add_wait(f, sent);
        sent = out == SH_NONE ? SH_NONE : add(f, items[k].micro, out);
    }
    if (sent != SH_NONE)
        add_wait(f, sent);
}

/* Whether the host reads what each micro-step leaves in a port: losses, if it joins them in a tree, and the values of
 * answers, of which it takes the extremes. */
static bool is_read_each(const struct pipe *f, int port)
{
    const struct sh_model_batch *b = &f->b->batch;
    bool values = sh_objective_of(b->objective)->counts == SH_COUNTS_ANSWERS &&
                  sh_cfg_loss_takes(b->pairs.loss) & SH_TAKES_NUMBERS;

    return (port == SH_PORT_LOSS && f->b->options.reproducible) || (port == SH_PORT_SUMS && values);
}

/* Ports of all micro-steps in place of those of one: what the host fills, or reads of each. */
static void widen_ports(struct pipe *f)
{
    for (int port = 0; port < SH_PORTS; port++) {
        int t = f->p->port[port];
        struct sh_tensor all;

        if (t == SH_NONE || !(sh_port_row(port)->in || is_read_each(f, port)))
            continue;
        all = f->p->tensors[t];
        all.dim[0] *= f->steps;
        f->port[t] = f->p->port[port] = sh_program_add_tensor(f->p, &all);
    }
    f->p->unrolled = f->steps;
}

/* Roots of what an operation of the backward reads, or writes before the gradients of weights are due. */
static void mark(const struct pipe *f, const struct sh_op *op, bool writes, bool *marks)
{
    for (int k = 0; k < SH_OP_MAX_IN; k++)
        if (op->in[k] != SH_NONE)
            marks[sh_tensor_root(f->p, op->in[k])] = true;
    for (int k = 0; writes && k < SH_OP_MAX_OUT; k++)
        if (op->out[k] != SH_NONE)
            marks[sh_tensor_root(f->p, op->out[k])] = true;
}

/* Whether all results are gradients of parameters, and unmarked. */
static bool may_wait(const struct pipe *f, const struct sh_op *op, const bool *marks)
{
    for (int k = 0; k < SH_OP_MAX_OUT; k++) {
        int root = op->out[k] == SH_NONE ? SH_NONE : sh_tensor_root(f->p, op->out[k]);

        if (root != SH_NONE && (f->p->tensors[root].grad_of == SH_NONE || marks[root]))
            return false;
    }
    return op->out[0] != SH_NONE;
}

/* The last operation that writes into the storage of each tensor.
 *   last  out  [tensors], by root */
static void find_last_writes(const struct pipe *f, int *last)
{
    for (int i = 0; i < f->n_old; i++)
        for (int k = 0; k < SH_OP_MAX_OUT; k++)
            if (f->old[i].out[k] != SH_NONE)
                last[sh_tensor_root(f->p, f->old[i].out[k])] = i;
}

/* Whether a later operation writes what this one reads: a tile, what another tile had there. */
static bool is_overwritten(const struct pipe *f, int i, const int *last)
{
    for (int k = 0; k < SH_OP_MAX_IN; k++)
        if (f->old[i].in[k] != SH_NONE && last[sh_tensor_root(f->p, f->old[i].in[k])] > i)
            return true;
    return false;
}

/* Operations of the backward whose results are gradients of parameters that nothing else in the micro-step reads or adds
 * to, so that each sum keeps its order, and whose operands stay what they are. Those of a run of tiles stay, since a tile's
 * tensors do not outlive it. */
static void find_weights(struct pipe *f)
{
    bool *marks = sh_calloc((size_t)f->n_tensors + 1, sizeof *marks), again = true;
    int *last = sh_calloc((size_t)f->n_tensors + 1, sizeof *last);

    find_last_writes(f, last);
    for (int i = f->split; i < f->n_old; i++) {
        f->weights[i] = !f->old[i].tiles && !is_overwritten(f, i, last);
        mark(f, &f->old[i], false, marks);
    }
    while (again) {
        again = false;
        for (int i = f->split; i < f->n_old; i++)
            if (f->weights[i] && !may_wait(f, &f->old[i], marks))
                f->weights[i] = false, again = true;
        for (int i = f->split; i < f->n_old; i++)
            if (!f->weights[i])
                mark(f, &f->old[i], true, marks);
    }
    free(last);
    free(marks);
}

/* A chunk ends by what it sends, in either half. The backward begins with the last one. */
static void find_chunks(struct pipe *f)
{
    int chunk = 0;

    for (int i = 0; i < f->n_old; i++) {
        if (i == f->split)
            chunk = f->pipe.chunks - 1;
        f->chunk[i] = chunk;
        if (f->old[i].kind == SH_OP_SEND)
            chunk += i < f->split ? 1 : -1;
    }
}

/* Tables are made once, outside of the step. */
static void keep_init(struct pipe *f)
{
    for (int i = 0; i < f->n_old; i++)
        if (f->old[i].phase == SH_PHASE_INIT)
            sh_program_add_op(f->p, &f->old[i]);
}

/* A micro-step that is only evaluated is one forward through all chunks. */
static void emit_all(struct pipe *f)
{
    struct sh_pipe_item *items = sh_calloc(SH_PIPE_PARTS * (size_t)f->steps * (size_t)f->pipe.chunks, sizeof *items);
    int n = 0;

    keep_init(f);
    if (f->split < f->n_old)
        n = sh_pipe_items(&f->pipe, f->place, items);
    else
        for (; n < f->pipe.chunks; n++)
            items[n].chunk = n;
    emit(f, items, n);
    free(items);
}

static sh_rc check_size(const struct pipe *f)
{
    if ((int64_t)f->n_old * f->steps <= OPS_MAX)
        return SH_OK;
    return sh_fail(SH_E_USAGE,
                   "parallelism.pipeline_parallel_degree=%d: a step of %d micro-steps of %d operations is one list, of "
                   "at most %d; give a larger training.local_batch_size, or more stages",
                   f->pipe.stages, f->steps, f->n_old, OPS_MAX);
}

static void make_step(struct pipe *f)
{
    size_t n = (size_t)f->n_tensors + 1;

    f->old = sh_calloc((size_t)f->n_old + 1, sizeof *f->old);
    f->of = sh_calloc(n * (size_t)f->steps, sizeof *f->of);
    f->port = sh_calloc(n, sizeof *f->port);
    memset(f->of, 0xff, n * (size_t)f->steps * sizeof *f->of); /* SH_NONE */
    memset(f->port, 0xff, n * sizeof *f->port);
    memcpy(f->old, f->p->ops, (size_t)f->n_old * sizeof *f->old);
    while (f->split < f->n_old && f->old[f->split].phase <= SH_PHASE_FORWARD)
        f->split++;
    f->weights = sh_calloc((size_t)f->n_old + 1, sizeof *f->weights);
    f->chunk = sh_calloc((size_t)f->n_old + 1, sizeof *f->chunk);
    find_chunks(f);
    if (f->pipe.weights_apart)
        find_weights(f);
    sh_links_add_streams(f->p, f->pipe.stages, f->pipe.chunks > 1);
    widen_ports(f);
    f->p->n_ops = 0;
    emit_all(f);
    free(f->old);
    free(f->weights);
    free(f->chunk);
    free(f->of);
    free(f->port);
}

sh_rc sh_pass_pipeline(const struct sh_build *b, struct sh_program *micro)
{
    const struct sh_mesh_shape *mesh = &b->options.mesh;
    struct pipe f = {.b = b,
                     .p = micro,
                     .n_old = micro->n_ops,
                     .n_tensors = micro->n_tensors,
                     .pipe = {.stages = sh_group_size(mesh, mesh->pipeline),
                              .micro_steps = b->options.micro_steps,
                              .chunks = b->options.chunks,
                              .weights_apart = b->options.weights_apart},
                     .place = sh_group_index(mesh, mesh->pipeline),
                     .steps = b->options.micro_steps};

    if (f.pipe.stages == 1)
        return SH_OK;
    SH_TRY(check_size(&f));
    make_step(&f);
    return SH_OK;
}

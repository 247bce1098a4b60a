/* The check pass refuses each error that is planted in a correct program. */
#include "src/base/mem.h"
#include "tests/unit/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A program and one of its sections, for the functions that plant errors. */
struct plant {
    struct sh_program *p;
    struct sh_section *s;
};

static struct sh_op *op_at(const struct plant *l, int i)
{
    return &l->p->ops[l->s->first_op + i];
}

/* Find the n-th operation of a kind, n = 0, 1, ...; with `waits`, find waits for that kind. */
static int find(const struct plant *l, enum sh_op_kind kind, bool waits, int n)
{
    for (int i = 0; i < l->s->n_ops; i++) {
        const struct sh_op *op = op_at(l, i);
        bool wait = op->kind == SH_OP_WAIT;

        if (wait == waits && (wait ? op_at(l, op->attr.waits_for) : op)->kind == kind && n-- == 0)
            return i;
    }
    fail_msg("the program has no such operation");
    return SH_NONE;
}

static int newest(const struct plant *l, enum sh_op_kind kind)
{
    int found = SH_NONE;

    for (int i = 0; i < l->s->n_ops; i++)
        found = op_at(l, i)->kind == kind ? i : found;
    assert_int_not_equal(found, SH_NONE);
    return found;
}

static void shift_index(int *index, int from, int to)
{
    if (*index == from)
        *index = to;
    else if (from < *index && *index <= to)
        --*index;
    else if (to <= *index && *index < from)
        ++*index;
}

/* Move operation `from` to place `to`; references to operations of the section are updated. */
static void move(const struct plant *l, int from, int to)
{
    struct sh_op op = *op_at(l, from);

    if (from < to)
        memmove(op_at(l, from), op_at(l, from + 1), (size_t)(to - from) * sizeof op);
    else
        memmove(op_at(l, to + 1), op_at(l, to), (size_t)(from - to) * sizeof op);
    *op_at(l, to) = op;
    for (int i = 0; i < l->s->n_ops; i++) {
        shift_index(&op_at(l, i)->attr.waits_for, from, to);
        if (op_at(l, i)->attr.after != SH_NONE)
            shift_index(&op_at(l, i)->attr.after, from, to);
    }
}

static void drop(const struct plant *l, int i)
{
    move(l, i, l->s->n_ops - 1);
    l->s->n_ops--;
}

static void drop_wait_for_gather(struct plant *l)
{
    drop(l, find(l, SH_OP_ALL_GATHER, true, 2));
}

static void drop_wait_for_scatter(struct plant *l)
{
    drop(l, find(l, SH_OP_REDUCE_SCATTER, true, 1));
}

static void drop_release(struct plant *l)
{
    drop(l, find(l, SH_OP_RELEASE, false, 1));
}

static void release_twice(struct plant *l)
{
    *op_at(l, find(l, SH_OP_RELEASE, false, 3)) = *op_at(l, find(l, SH_OP_RELEASE, false, 2));
}

static void release_before_use(struct plant *l)
{
    move(l, find(l, SH_OP_RELEASE, false, 1), find(l, SH_OP_LINEAR, false, 0));
}

static void wait_twice(struct plant *l)
{
    op_at(l, find(l, SH_OP_ALL_GATHER, true, 2))->attr.waits_for = find(l, SH_OP_ALL_GATHER, false, 1);
}

static void wait_for_compute(struct plant *l)
{
    op_at(l, find(l, SH_OP_ALL_GATHER, true, 2))->attr.waits_for = find(l, SH_OP_EMBED, false, 0);
}

static void wait_for_nothing(struct plant *l)
{
    op_at(l, find(l, SH_OP_ALL_GATHER, true, 2))->attr.waits_for = -5;
}

static void wait_before_start(struct plant *l)
{
    move(l, find(l, SH_OP_ALL_GATHER, true, 2), 0);
}

static void after_itself(struct plant *l)
{
    int i = find(l, SH_OP_ALL_REDUCE, false, 1);

    op_at(l, i)->attr.after = i;
}

static void sum_without_after(struct plant *l)
{
    op_at(l, find(l, SH_OP_ALL_REDUCE, false, 1))->attr.after = SH_NONE;
}

static void read_before_wait(struct plant *l)
{
    move(l, find(l, SH_OP_EMBED, false, 0), find(l, SH_OP_ALL_GATHER, true, 0));
}

static void read_before_write(struct plant *l)
{
    move(l, find(l, SH_OP_ATTENTION, false, 1), find(l, SH_OP_LINEAR, false, 4));
}

static void reduced_before_complete(struct plant *l)
{
    move(l, find(l, SH_OP_REDUCE_SCATTER, false, 3), newest(l, SH_OP_NORM_BWD));
}

static void add_to_nothing(struct plant *l)
{
    op_at(l, find(l, SH_OP_HEAD_LOSS_GRAD, false, 0))->attr.accumulate |= 1u << 2;
}

static void input_missing(struct plant *l)
{
    op_at(l, find(l, SH_OP_LINEAR, false, 1))->in[1] = SH_NONE;
}

static void output_too_many(struct plant *l)
{
    struct sh_op *op = op_at(l, find(l, SH_OP_LINEAR, false, 1));

    op->out[1] = op->out[0];
}

static void no_such_tensor(struct plant *l)
{
    op_at(l, find(l, SH_OP_LINEAR, false, 1))->in[0] = l->p->n_tensors;
}

static int root_of(const struct plant *l, int tensor)
{
    return sh_tensor_root(l->p, tensor);
}

static void lay_upon(const struct plant *l, int a, int b)
{
    l->p->tensors[a].offset_bytes = l->p->tensors[b].offset_bytes;
}

static void living_share_memory(struct plant *l)
{
    const struct sh_op *op = op_at(l, find(l, SH_OP_NORM, false, 1));

    lay_upon(l, root_of(l, op->out[0]), root_of(l, op->in[0]));
}

static void persistent_share_memory(struct plant *l)
{
    lay_upon(l, l->p->units[1].state[0], l->p->units[1].compute);
}

static void transient_on_persistent(struct plant *l)
{
    lay_upon(l, root_of(l, op_at(l, find(l, SH_OP_NORM, false, 1))->out[0]), l->p->units[0].compute);
}

static void outside_of_the_arena(struct plant *l)
{
    l->p->tensors[root_of(l, op_at(l, find(l, SH_OP_NORM, false, 1))->out[0])].offset_bytes = l->p->arena_bytes;
}

static void kernel_among_collectives(struct plant *l)
{
    op_at(l, find(l, SH_OP_NORM, false, 1))->stream = SH_STREAM_GATHER;
}

static void collective_among_kernels(struct plant *l)
{
    op_at(l, find(l, SH_OP_ALL_GATHER, false, 1))->stream = SH_STREAM_COMPUTE;
}

static void no_such_stream(struct plant *l)
{
    op_at(l, find(l, SH_OP_ALL_GATHER, false, 1))->stream = l->p->n_streams;
}

static void operand_out_of_reach(struct plant *l)
{
    l->p->tensors[op_at(l, find(l, SH_OP_NORM, false, 1))->out[0]].tier =
        sh_program_add_tier(l->p, "host", SH_TIER_HOST);
}

static void view_leaves_its_base(struct plant *l)
{
    for (int t = 0; t < l->p->n_tensors; t++)
        if (l->p->tensors[t].base != SH_NONE) {
            l->p->tensors[t].base_elems += 1000000;
            return;
        }
}

static void norm_sum_too_early(struct plant *l)
{
    move(l, find(l, SH_OP_ALL_REDUCE, false, 0), find(l, SH_OP_SUMSQ, false, 2));
}

/* The shard of the gradient lives between sections, so it has a value before; the operation that reads it writes
 * another tensor. */
static void sum_is_read_meanwhile(struct plant *l)
{
    int first = find(l, SH_OP_REDUCE_SCATTER, false, 0), next = first + 1, squares = 0;
    struct sh_op read;

    while (sh_op_info(op_at(l, next)->kind)->async || op_at(l, next)->in[0] == SH_NONE)
        next++;
    while (l->p->ops[squares].kind != SH_OP_SUMSQ)
        squares++;
    assert_true(l->p->tensors[op_at(l, first)->out[0]].persistent && op_at(l, next)->kind != SH_OP_WAIT);
    read = l->p->ops[squares];
    read.phase = op_at(l, next)->phase;
    read.in[0] = op_at(l, first)->out[0];
    read.attr.accumulate = 0;
    *op_at(l, next) = read;
}

static struct sh_tensor *tensor_of(const struct plant *l, int tensor)
{
    return &l->p->tensors[tensor];
}

static void another_weight(struct plant *l)
{
    op_at(l, find(l, SH_OP_LINEAR, false, 1))->in[1] = op_at(l, find(l, SH_OP_LINEAR, false, 2))->in[1];
}

static void weight_of_other_order(struct plant *l)
{
    op_at(l, find(l, SH_OP_LINEAR, false, 0))->attr.linear.w_in_out = true;
}

static void rounded_statistics(struct plant *l)
{
    tensor_of(l, op_at(l, find(l, SH_OP_NORM, false, 1))->out[1])->dtype = SH_BF16;
}

static void operands_of_two_types(struct plant *l)
{
    tensor_of(l, op_at(l, find(l, SH_OP_LINEAR, false, 2))->in[0])->dtype = SH_BF16;
}

static void half_a_gate(struct plant *l)
{
    tensor_of(l, op_at(l, find(l, SH_OP_SWIGLU, false, 0))->out[0])->dim[1]--;
}

static void heads_of_another_size(struct plant *l)
{
    op_at(l, find(l, SH_OP_ATTENTION, false, 0))->attr.attn.head_dim++;
}

static void short_rotation(struct plant *l)
{
    tensor_of(l, op_at(l, find(l, SH_OP_ROPE, false, 0))->in[1])->dim[0]--;
}

static void less_than_the_shards(struct plant *l)
{
    op_at(l, find(l, SH_OP_REDUCE_SCATTER, false, 0))->in[0] = l->p->port[SH_PORT_LOSS];
}

static void norm_into_the_loss(struct plant *l)
{
    op_at(l, find(l, SH_OP_EXACT_ROUND, false, 0))->out[0] = l->p->port[SH_PORT_LOSS];
}

static void copy_into_targets(struct plant *l)
{
    struct sh_op *op = op_at(l, find(l, SH_OP_EMBED, false, 0));

    *op = sh_program_op(SH_OP_COPY);
    op->in[0] = l->p->port[SH_PORT_TOKENS];
    op->out[0] = l->p->port[SH_PORT_TARGETS];
}

static void product_is_added(struct plant *l)
{
    op_at(l, find(l, SH_OP_LINEAR, false, 1))->attr.accumulate = 1;
}

static void remainder_of_f32(struct plant *l)
{
    struct sh_op *op = op_at(l, find(l, SH_OP_ADAMW, false, 0));

    op->out[3] = op->out[2];
}

static void masters_without_remainder(struct plant *l)
{
    struct sh_op *op = op_at(l, find(l, SH_OP_ADAMW, false, 0));
    struct sh_tensor p = *tensor_of(l, op->out[0]);

    p.dtype = SH_BF16;
    p.persistent = false; /* else it would lie upon the one that it is like */
    op->out[0] = sh_program_add_tensor(l->p, &p);
}

static void no_wait_for_fetch(struct plant *l)
{
    drop(l, find(l, SH_OP_FETCH, true, 1));
}

static void never_put_back(struct plant *l)
{
    drop(l, find(l, SH_OP_EVICT, true, 1));
    drop(l, find(l, SH_OP_EVICT, false, 1));
}

static void no_wait_for_evict(struct plant *l)
{
    drop(l, find(l, SH_OP_EVICT, true, 0));
}

static void used_before_it_is_there(struct plant *l)
{
    move(l, find(l, SH_OP_ADAMW, false, 1), find(l, SH_OP_FETCH, true, 1));
}

static void changed_on_its_way_back(struct plant *l)
{
    move(l, find(l, SH_OP_EVICT, false, 0), find(l, SH_OP_ADAMW, false, 0));
}

static void put_back_elsewhere(struct plant *l)
{
    op_at(l, newest(l, SH_OP_EVICT))->out[0] = op_at(l, find(l, SH_OP_EVICT, false, 0))->out[0];
}

static void fetched_the_wrong_way(struct plant *l)
{
    struct sh_op *op = op_at(l, find(l, SH_OP_FETCH, false, 0));
    int in = op->in[0];

    op->in[0] = op->out[0];
    op->out[0] = in;
}

static void fetched_as_a_kernel(struct plant *l)
{
    op_at(l, find(l, SH_OP_FETCH, false, 0))->stream = SH_STREAM_COMPUTE;
}

static void fetched_between_pages(struct plant *l)
{
    l->p->tensors[l->p->slices[0].copy].offset_bytes += 256;
}

static void computed_in_the_file(struct plant *l)
{
    op_at(l, find(l, SH_OP_ADAMW, false, 0))->out[1] = l->p->slices[0].home;
}

/* Place the view where its base was before the base moved. */
static void computed_in_a_view_of_the_file(struct plant *l)
{
    struct sh_op *op = op_at(l, find(l, SH_OP_ADAMW, false, 0));
    struct sh_tensor view = l->p->tensors[op->out[1]];

    view.base = l->p->slices[0].home;
    view.base_elems = 0;
    op->out[1] = sh_program_add_tensor(l->p, &view);
}

static void homes_share_their_place(struct plant *l)
{
    l->p->tensors[l->p->slices[1].home].offset_bytes = l->p->tensors[l->p->slices[0].home].offset_bytes;
}

static void home_between_pages(struct plant *l)
{
    l->p->tiers[sh_program_file_tier(l->p)].bytes += 256;
    l->p->tensors[l->p->slices[l->p->n_slices - 1].home].offset_bytes += 256;
}

static void copies_share_their_place(struct plant *l)
{
    lay_upon(l, l->p->slices[0].copy, l->p->slices[1].copy);
}

static void gathered_before_its_update(struct plant *l)
{
    move(l, find(l, SH_OP_ALL_GATHER, false, 0), 0);
}

static void updated_behind_the_backward(struct plant *l)
{
    move(l, find(l, SH_OP_ADAMW, false, 0), l->s->n_ops - 1);
}

static void carried_without_an_update(struct plant *l)
{
    op_at(l, find(l, SH_OP_ADAMW, false, 1))->phase = SH_PHASE_FORWARD;
}

static void kept_is_read_before_it_is_back(struct plant *l)
{
    move(l, find(l, SH_OP_FETCH, true, 0), l->s->n_ops - 1);
}

static void fetched_before_it_is_gone(struct plant *l)
{
    move(l, find(l, SH_OP_FETCH, false, 0), find(l, SH_OP_EVICT, true, 0));
}

static void kept_is_changed_on_its_way(struct plant *l)
{
    int evict = find(l, SH_OP_EVICT, false, 0);

    move(l, evict, 0);
}

/* The rows of a tile are not made, but those of the first one twice. */
static void tile_is_missing(struct plant *l)
{
    for (int i = 0; i < l->s->n_ops; i++) {
        int out = op_at(l, i)->out[0];

        if (op_at(l, i)->tiles && out != SH_NONE && l->p->tensors[out].base != SH_NONE &&
            l->p->tensors[out].base_elems) {
            l->p->tensors[out].base_elems = 0;
            return;
        }
    }
    fail_msg("the program has no tiles");
}

static struct sh_program *tiled_program(void)
{
    struct sh_build b = tiny_build(&tiny_models[1], 2);

    b.recompute = tiny_recomputes[TINY_FULL];
    b.tile_rows = b.row_block = 3;
    b.evaluate = true;
    return tiny_program(&b, tiny_mesh(2, 2, 1, 1));
}

/* A product of the next tile writes over the rows that are on their way. */
static void tile_is_under_way(struct plant *l)
{
    for (int i = 1; i < l->s->n_ops; i++)
        if (op_at(l, i)->kind == SH_OP_LINEAR && op_at(l, i - 1)->kind == SH_OP_REDUCE_SCATTER && op_at(l, i)->tiles) {
            l->p->tensors[op_at(l, i)->out[0]].base_elems = 0;
            return;
        }
    fail_msg("no product has tiles");
}

/* A product reads the rows of its tile before they are there. */
static void tile_is_read_too_early(struct plant *l)
{
    int wait = SH_NONE;

    for (int i = 0; i + 1 < l->s->n_ops; i++)
        if (op_at(l, i)->kind == SH_OP_WAIT && op_at(l, i + 1)->kind == SH_OP_LINEAR && op_at(l, i + 1)->tiles)
            wait = i;
    assert_true(wait != SH_NONE);
    move(l, wait, wait + 1);
}

static struct sh_program *striped_program(void)
{
    static const int axes[SH_AXES] = {2, 1, 1, 1, 1, 1, 1};
    struct sh_build b = tiny_build(&tiny_models[0], 1);

    b.model.n_heads = b.model.n_kv_heads = 4;
    b.tensor_tiles = 2;
    return tiny_program(&b, sh_mesh_shape_of(axes, 0));
}

static struct sh_program *right_program(int rank)
{
    struct sh_build b = tiny_build(&tiny_models[1], 1);

    b.recompute = tiny_recomputes[TINY_SELECTIVE];
    return tiny_program(&b, tiny_mesh(2, 2, 1, rank));
}

/* A program with all states in a file. */
static struct sh_program *sliced_program(void)
{
    struct sh_build b = tiny_build(&tiny_models[1], 1);

    b.act = SH_BF16;
    b.model.ffn_dim = 500;
    b.offload = (struct sh_offload){.optimizer_16 = 16, .buffers = 3, .slice_elems = SH_SLICE_MULTIPLE};
    return tiny_program(&b, tiny_mesh(2, 2, 1, 1));
}

/* A program whose update is carried into the forward of the next step. */
static struct sh_program *carried_program(int optimizer_16)
{
    struct sh_build b = tiny_build(&tiny_models[1], 1);

    b.act = SH_BF16;
    b.model.ffn_dim = 500;
    b.offload = (struct sh_offload){
        .optimizer_16 = optimizer_16, .buffers = 3, .slice_elems = SH_SLICE_MULTIPLE, .carry = true};
    return tiny_program(&b, tiny_mesh(2, 2, 1, 1));
}

/* A program with activations in a file, or in host memory. */
static struct sh_program *spilled_program(bool on_host)
{
    struct sh_build b = tiny_build(&tiny_models[1], 1);

    b.model.n_layers = 5;
    b.model.dim = 1024;
    b.snapshot_on_host = on_host;
    b.offload.act_blocks = 1;
    return tiny_program(&b, tiny_mesh(2, 1, 1, 1));
}

struct error {
    const char *name;
    enum sh_section_kind section;
    void (*plant)(struct plant *l);
    const char *says;
};

/* clang-format off */
static const struct error table[] = {
    {"a wait for a gather is missing", SH_SECTION_ONLY, drop_wait_for_gather, "not gathered"},
    {"a wait for a reduction is missing", SH_SECTION_ONLY, drop_wait_for_scatter, "never waited for"},
    {"a release is missing", SH_SECTION_ONLY, drop_release, "never released"},
    {"a unit is released twice", SH_SECTION_ONLY, release_twice, "not gathered"},
    {"a unit is released before its last use", SH_SECTION_ONLY, release_before_use, "not gathered"},
    {"a collective is waited for twice", SH_SECTION_ONLY, wait_twice, "a second time"},
    {"a wait for no collective", SH_SECTION_ONLY, wait_for_compute, "does not wait for a collective"},
    {"a wait for no operation", SH_SECTION_ONLY, wait_for_nothing, "does not wait for a collective"},
    {"a wait before the start", SH_SECTION_ONLY, wait_before_start, "does not wait for a collective"},
    {"a collective after itself", SH_SECTION_ONLY, after_itself, "does not follow a collective"},
    {"a sum over replicas beside its reduction", SH_SECTION_ONLY, sum_without_after, "under way"},
    {"a unit is read before it is gathered", SH_SECTION_ONLY, read_before_wait, "not gathered"},
    {"an activation is read before it is written", SH_SECTION_ONLY, read_before_write, "nothing has written"},
    {"a gradient is written while it is reduced", SH_SECTION_ONLY, reduced_before_complete, "under way"},
    {"a sum is read while it is made", SH_SECTION_ONLY, sum_is_read_meanwhile, "under way"},
    {"something is added to nothing", SH_SECTION_ONLY, add_to_nothing, "adds to what nothing"},
    {"an input is missing", SH_SECTION_ONLY, input_missing, "an input is missing"},
    {"an output too many", SH_SECTION_ONLY, output_too_many, "an output is missing, or there are too many"},
    {"a kernel among collectives", SH_SECTION_ONLY, kernel_among_collectives, "its stream does not run"},
    {"a collective among kernels", SH_SECTION_ONLY, collective_among_kernels, "its stream does not run"},
    {"a stream that is none", SH_SECTION_ONLY, no_such_stream, "its stream does not run"},
    {"an operand on the host", SH_SECTION_ONLY, operand_out_of_reach, "does not lie on the device"},
    {"an operand that is no tensor", SH_SECTION_ONLY, no_such_tensor, "an input is missing, or there are too many"},
    {"two living tensors in one place", SH_SECTION_ONLY, living_share_memory, "share memory"},
    {"two lasting tensors in one place", SH_SECTION_ONLY, persistent_share_memory, "share memory"},
    {"an activation on a parameter", SH_SECTION_ONLY, transient_on_persistent, "share memory"},
    {"a tensor behind the arena", SH_SECTION_ONLY, outside_of_the_arena, "outside of the arena"},
    {"a view that leaves its base", SH_SECTION_ONLY, view_leaves_its_base, "extends beyond"},
    {"a norm summed before it is complete", SH_SECTION_NORM, norm_sum_too_early, "under way"},
    {"a weight of another shape", SH_SECTION_ONLY, another_weight, "which is not y [N,O] act"},
    {"a weight stored the other way", SH_SECTION_ONLY, weight_of_other_order, "which is not w [O,I] act"},
    {"statistics in bf16", SH_SECTION_ONLY, rounded_statistics, "bf16, which is not rstd [N] f32"},
    {"operands of two types", SH_SECTION_ONLY, operands_of_two_types, "bf16, which is not y [N,C] act"},
    {"a gate without all of its values", SH_SECTION_ONLY, half_a_gate, "which is not gu [N,2F] act"},
    {"heads that do not fill a row", SH_SECTION_ONLY, heads_of_another_size, "which is not qkv [B,T,HD+2KD] act"},
    {"a rotation of fewer positions", SH_SECTION_ONLY, short_rotation, "which is not cs [P>=T,R] f32"},
    {"a reduction of less than its result", SH_SECTION_ONLY, less_than_the_shards, "which is not full [m>=n] sum"},
    {"a result of another section", SH_SECTION_NORM, norm_into_the_loss, "uses a port of other sections"},
    {"data that an operation writes", SH_SECTION_ONLY, copy_into_targets, "writes what the host fills"},
    {"a product that is added to", SH_SECTION_ONLY, product_is_added, "y cannot be added to"},
    {"a remainder of masters in f32", SH_SECTION_UPDATE, remainder_of_f32, "which is not r [n] i16"},
    {"masters in bf16 without one", SH_SECTION_UPDATE, masters_without_remainder, "r is absent, which is not r [n] i16"},
};
/* clang-format on */

/* clang-format off */
static const struct error sliced_table[] = {
    {"a wait for a fetch is missing", SH_SECTION_UPDATE, no_wait_for_fetch, "adds to what nothing has written"},
    {"a wait for an eviction is missing", SH_SECTION_UPDATE, no_wait_for_evict, "never waited for"},
    {"a slice that is not put back", SH_SECTION_UPDATE, never_put_back, "never put back"},
    {"a slice is used before it is there", SH_SECTION_UPDATE, used_before_it_is_there, "adds to what nothing"},
    {"a slice changes on its way back", SH_SECTION_UPDATE, changed_on_its_way_back, "under way"},
    {"a slice goes where another is from", SH_SECTION_UPDATE, put_back_elsewhere, "another one's home"},
    {"a fetch to the file", SH_SECTION_UPDATE, fetched_the_wrong_way, "between the device and a tier"},
    {"a fetch among kernels", SH_SECTION_UPDATE, fetched_as_a_kernel, "its stream does not run"},
    {"a slice between pages", SH_SECTION_UPDATE, fetched_between_pages, "not page-aligned"},
    {"a kernel on a file", SH_SECTION_UPDATE, computed_in_the_file, "does not lie on the device"},
    {"a kernel on a view of a file", SH_SECTION_UPDATE, computed_in_a_view_of_the_file, "does not lie on the device"},
    {"two slices in one place of the file", SH_SECTION_UPDATE, homes_share_their_place, "overlaps another one"},
    {"a place of the file between pages", SH_SECTION_UPDATE, home_between_pages, "whole pages"},
    {"two slices in one place", SH_SECTION_UPDATE, copies_share_their_place, "share memory"},
};

static const struct error carried_table[] = {
    {"a carried slice is used before it is there", SH_SECTION_ONLY, used_before_it_is_there, "adds to what nothing"},
    {"a wait for a carried fetch is missing", SH_SECTION_ONLY, no_wait_for_fetch, "adds to what nothing"},
    {"a wait for a carried eviction is missing", SH_SECTION_ONLY, no_wait_for_evict, "never waited for"},
    {"a carried slice that is not put back", SH_SECTION_ONLY, never_put_back, "never put back"},
    {"a carried slice changes on its way back", SH_SECTION_ONLY, changed_on_its_way_back, "under way"},
    {"a carried slice goes where another is from", SH_SECTION_ONLY, put_back_elsewhere, "another one's home"},
    {"a kernel of the forward on a file", SH_SECTION_ONLY, computed_in_the_file, "does not lie on the device"},
    {"a gather before the update of its unit", SH_SECTION_ONLY, gathered_before_its_update, "was already used"},
    {"an update with nothing pending", SH_SECTION_ONLY, carried_without_an_update, "adds to what nothing has written"},
};
static const struct error spilled_table[] = {
    {"an activation is read before it is back", SH_SECTION_ONLY, kept_is_read_before_it_is_back, "nothing has written"},
    {"an activation comes back before it is gone", SH_SECTION_ONLY, fetched_before_it_is_gone, "under way"},
    {"an activation leaves before it is made", SH_SECTION_ONLY, kept_is_changed_on_its_way, "nothing has written"},
    {"a wait for an activation is missing", SH_SECTION_ONLY, no_wait_for_evict, "under way"},
    {"a wait for an activation that comes back is missing", SH_SECTION_ONLY, no_wait_for_fetch, "nothing has written"},
};
static const struct error tiled_table[] = {
    {"a tile is missing", SH_SECTION_ONLY, tile_is_missing, "reads what nothing has written"},
    {"a tile of the validation is missing", SH_SECTION_EVAL, tile_is_missing, "reads what nothing has written"},
};
static const struct error striped_table[] = {
    {"a tile on its way is written over", SH_SECTION_ONLY, tile_is_under_way, "under way"},
    {"a tile is read before it is there", SH_SECTION_ONLY, tile_is_read_too_early, "nothing has written"},
};
static const struct error carried_in_memory[] = {
    {"an update behind the backward", SH_SECTION_ONLY, updated_behind_the_backward, "gradient of a later step"},
};
/* clang-format on */

static struct sh_section *section_of(struct sh_program *p, enum sh_section_kind kind)
{
    return &p->sections[sh_program_section(p, kind) - p->sections];
}

/* Takes ownership of the program p. */
static bool is_refused(const struct error *e, struct sh_program *p)
{
    struct plant l = {.p = p, .s = section_of(p, e->section)};
    bool refused, said;

    e->plant(&l);
    sh_error_clear();
    refused = sh_pass_check(NULL, p) == SH_E_BUG;
    said = refused && strstr(sh_error_text(), e->says);
    if (!said)
        print_error("%s: %s\n", e->name, refused ? sh_error_text() : "passed");
    sh_program_destroy(p);
    return said;
}

static void planted_errors_are_refused(void **state)
{
    int wrong = 0;

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        wrong += !is_refused(&table[i], right_program(1));
    for (size_t i = 0; i < sizeof sliced_table / sizeof *sliced_table; i++)
        wrong += !is_refused(&sliced_table[i], sliced_program());
    for (size_t i = 0; i < sizeof carried_table / sizeof *carried_table; i++)
        wrong += !is_refused(&carried_table[i], carried_program(16));
    for (size_t i = 0; i < sizeof spilled_table / sizeof *spilled_table; i++)
        for (int on_host = 0; on_host < 2; on_host++)
            wrong += !is_refused(&spilled_table[i], spilled_program(on_host));
    for (size_t i = 0; i < sizeof tiled_table / sizeof *tiled_table; i++)
        wrong += !is_refused(&tiled_table[i], tiled_program());
    for (size_t i = 0; i < sizeof striped_table / sizeof *striped_table; i++)
        wrong += !is_refused(&striped_table[i], striped_program());
    for (size_t i = 0; i < sizeof carried_in_memory / sizeof *carried_in_memory; i++)
        wrong += !is_refused(&carried_in_memory[i], carried_program(0));
    assert_int_equal(wrong, 0);
}

/* Replace `operand` by a tensor that has one element more in its last dim, or another type; returns whether that is
 * refused as a misfit. */
static bool misfit_is_refused(struct sh_program *p, int *operand, bool type)
{
    struct sh_tensor other = p->tensors[*operand];
    int before = *operand;
    bool refused;

    if (type)
        other.dtype = other.dtype == SH_F64 ? SH_F32 : SH_F64;
    else
        other.dim[other.ndim - 1]++;
    other.base = SH_NONE;
    other.persistent = false; /* else it would lie upon the one that it is like */
    *operand = sh_program_add_tensor(p, &other);
    sh_error_clear();
    refused = sh_pass_check(NULL, p) == SH_E_BUG && strstr(sh_error_text(), "which is not");
    if (!refused)
        print_error("%s as %s: '%s'\n", other.name, type ? sh_dtype_name(other.dtype) : "one more", sh_error_text());
    *operand = before;
    return refused;
}

static int misfits_of(struct sh_program *p, struct sh_op *op)
{
    int wrong = 0;

    for (int type = 0; type < 2; type++) {
        for (int k = 0; k < SH_OP_MAX_IN; k++)
            wrong += op->in[k] != SH_NONE && !misfit_is_refused(p, &op->in[k], type);
        for (int k = 0; k < SH_OP_MAX_OUT; k++)
            wrong += op->out[k] != SH_NONE && !misfit_is_refused(p, &op->out[k], type);
    }
    return wrong;
}

/* Try every operand of every operation of a micro-step. Collectives and markers accept any type, and tensors larger
 * than their part. */
static void every_dim_and_type_counts(void **state)
{
    static const int models[] = {1, 4};
    int wrong = 0;

    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct sh_build b = tiny_build(&tiny_models[models[m]], 1);
        struct sh_program *p;
        const struct sh_section *s;

        b.kernels = &sh_kernels_cpu;
        p = tiny_program(&b, tiny_mesh(2, 1, 1, 0));
        s = sh_program_section(p, SH_SECTION_ONLY);
        for (int i = s->first_op; i < s->first_op + s->n_ops; i++)
            if (!sh_op_info(p->ops[i].kind)->async && !sh_op_info(p->ops[i].kind)->marker)
                wrong += misfits_of(p, &p->ops[i]);
        sh_program_destroy(p);
    }
    assert_int_equal(wrong, 0);
}

/* Valid reorderings are accepted: the check refuses errors, not orders. */
static void other_orders_pass(void **state)
{
    struct plant l = {.p = right_program(1)};

    (void)state;
    l.s = section_of(l.p, SH_SECTION_ONLY);
    move(&l, find(&l, SH_OP_ALL_GATHER, false, 3), 0);
    move(&l, find(&l, SH_OP_REDUCE_SCATTER, true, 0), l.s->n_ops - 1);
    assert_int_equal(sh_pass_check(NULL, l.p), SH_E_BUG); /* both are alive longer than planned */
    assert_non_null(strstr(sh_error_text(), "share memory"));
    assert_int_equal(sh_pass_place(&(struct sh_build){.kernels = &sh_kernels_ref, .threads = 1}, l.p), SH_OK);
    assert_int_equal(sh_pass_check(NULL, l.p), SH_OK);
    sh_program_destroy(l.p);
}

static void the_hash_tells_orders_apart(void **state)
{
    struct plant l = {.p = right_program(1)};
    uint64_t hash = sh_pass_hash(l.p);
    int first, second;

    (void)state;
    l.s = section_of(l.p, SH_SECTION_ONLY);
    move(&l, find(&l, SH_OP_LINEAR, false, 0), find(&l, SH_OP_LINEAR, false, 2));
    assert_int_equal(sh_pass_hash(l.p), hash); /* the order of computation may differ between ranks */
    first = find(&l, SH_OP_ALL_GATHER, false, 1);
    second = find(&l, SH_OP_ALL_GATHER, false, 2);
    move(&l, second, first);
    assert_int_not_equal(sh_pass_hash(l.p), hash);
    move(&l, first, second);
    assert_int_equal(sh_pass_hash(l.p), hash);
    l.p->sections[2].repeat++;
    assert_int_not_equal(sh_pass_hash(l.p), hash);
    sh_program_destroy(l.p);
}

/* Ranks that have tiles of other rows add in another order. */
static void the_hash_tells_tiles_apart(void **state)
{
    struct sh_program *p = tiled_program();
    uint64_t hash = sh_pass_hash(p);
    int i = 0;

    (void)state;
    while (!p->ops[i].tiles)
        i++;
    p->tensors[p->ops[i].in[0]].dim[0]--;
    assert_int_not_equal(sh_pass_hash(p), hash);
    sh_program_destroy(p);
}

/* Everything on which ranks must agree for a collective to work changes the hash. */
static void the_hash_tells_collectives_apart(void **state)
{
    struct plant l = {.p = right_program(1)};
    uint64_t hash = sh_pass_hash(l.p);
    struct sh_op *gather;

    (void)state;
    l.s = section_of(l.p, SH_SECTION_ONLY);
    gather = op_at(&l, find(&l, SH_OP_ALL_GATHER, false, 1));
    gather->kind = SH_OP_ALL_REDUCE;
    assert_int_not_equal(sh_pass_hash(l.p), hash);
    gather->kind = SH_OP_ALL_GATHER;
    gather->unit++;
    assert_int_not_equal(sh_pass_hash(l.p), hash);
    gather->unit--;
    gather->stream = SH_STREAM_REDUCE;
    assert_int_not_equal(sh_pass_hash(l.p), hash);
    gather->stream = SH_STREAM_GATHER;
    l.p->tensors[gather->out[0]].dim[0]++;
    assert_int_not_equal(sh_pass_hash(l.p), hash);
    l.p->tensors[gather->out[0]].dim[0]--;
    assert_int_equal(sh_pass_hash(l.p), hash);
    sh_program_destroy(l.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planted_errors_are_refused), cmocka_unit_test(every_dim_and_type_counts),
        cmocka_unit_test(other_orders_pass),          cmocka_unit_test(the_hash_tells_orders_apart),
        cmocka_unit_test(the_hash_tells_tiles_apart), cmocka_unit_test(the_hash_tells_collectives_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

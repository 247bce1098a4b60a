/* Plans do not change: digests of several hundred plans over a grid of models, strategies, meshes and options, each
 * over every tensor with its place, every operation and every section. A faster pass must not change a single byte; if
 * a plan is meant to change, `test_pass_same --print` prints the new rows. */
#include "src/base/hash.h"
#include "src/base/number/rng.h"
#include "tests/unit/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 24, PLANS = 24 }; /* plans per row */

static const uint64_t expected[ROWS] = {
#include "tests/unit/plans.inc"
};

static uint64_t mix(uint64_t h, int64_t v)
{
    return sh_mix64(h ^ (uint64_t)v);
}

static uint64_t mix_all(uint64_t h, const int *v, int n)
{
    for (int i = 0; i < n; i++)
        h = mix(h, v[i]);
    return h;
}

static uint64_t mix_text(uint64_t h, const char *s)
{
    while (*s)
        h = mix(h, *s++);
    return h;
}

/* The digests are older than frozen parameters, masters with f16, and packed parameters. */
static int number_of_mem(enum sh_mem mem)
{
    return (int)mem - (mem > SH_MEM_FROZEN) - (mem > SH_MEM_MASTER) - (mem > SH_MEM_UNPACKED);
}

static uint64_t of_tensor(uint64_t h, const struct sh_tensor *t)
{
    h = mix_text(h, t->name);
    h = mix_all(
        h,
        (const int[]){number_of_mem(t->mem), t->dtype, t->ndim, t->base, t->param, t->grad_of, t->persistent, t->space},
        8);
    for (int i = 0; i < t->ndim; i++)
        h = mix(h, t->dim[i]);
    return mix(mix(h, t->base_elems), t->offset_bytes);
}

static uint64_t mix_value(uint64_t h, double v)
{
    int64_t bits;

    memcpy(&bits, &v, sizeof bits);
    return mix(h, bits);
}

/* Return the number of a group by its name: in the digests, groups have the numbers of the axes that they replaced. */
static int number_of(const struct sh_program *p, const struct sh_op *op)
{
    static const char *const names[] = {"shard", "replicate", "inner", "world"};
    int row = sh_program_find_group(p->groups, p->n_groups, op->attr.group), i = 0;

    while (row != SH_NONE && i < 4 && strcmp(names[i], p->groups[row].name))
        i++;
    return row == SH_NONE ? 0 : i;
}

/* Mix collectives like sh_pass_hash(), except for those numbers. */
static uint64_t of_collectives(const struct sh_program *p)
{
    uint64_t h = 1;

    for (int s = 0; s < p->n_sections; s++) {
        h = mix(mix(h, p->sections[s].kind), p->sections[s].repeat);
        for (int i = p->sections[s].first_op; i < p->sections[s].first_op + p->sections[s].n_ops; i++) {
            const struct sh_op *op = &p->ops[i];

            if (!sh_op_info(op->kind)->async)
                continue;
            h = mix_all(h, (const int[]){op->kind, number_of(p, op), op->stream, op->unit}, 4);
            h = mix(h, sh_tensor_bytes(&p->tensors[op->out[0]]));
        }
    }
    return h;
}

/* Attributes that are newer than the digests count only if they differ from the earlier behaviour. */
static bool counts(const struct sh_op_attr *a, const struct sh_attr_field *f)
{
    if (!strcmp(f->name, "plus_one"))
        return a->norm.plus_one;
    if (!strcmp(f->name, "pairs"))
        return a->attn.pairs;
    if (!strcmp(f->name, "turned") && f->letter == 0)
        return a->rope.turned;
    if (!strcmp(f->name, "divisors"))
        return a->rope.divisors;
    if (!strcmp(f->name, "of"))
        return a->runs.of;
    if (!strcmp(f->name, "window"))
        return a->attn.window;
    if (!strcmp(f->name, "temperature") || !strcmp(f->name, "alpha"))
        return a->head.temperature != 0;
    if (!strcmp(f->name, "sequences") || !strcmp(f->name, "others"))
        return sh_attr_value(a, f) != 0;
    if (!strcmp(f->name, "raw"))
        return a->head.raw;
    if (!strcmp(f->name, "multi_label"))
        return a->head.multi_label;
    if (!strcmp(f->name, "narrow"))
        return a->ortho.narrow;
    if (!strcmp(f->name, "cap") || !strcmp(f->name, "form") || !strcmp(f->name, "squares"))
        return sh_attr_value(a, f) != 0;
    for (int i = 0; i < 2; i++) /* parts of all words */
        if (f == &sh_op_info(SH_OP_EMBED)->attrs[i] || f == &sh_op_info(SH_OP_LOGITS)->attrs[i])
            return a->part.all;
    return strcmp(f->name, "rotary_dim") != 0 || a->attn.rotary_dim != a->attn.head_dim;
}

/* Of the inputs, those that the digests know; a later one counts if it is there. */
enum { INPUTS = 6 };

static uint64_t of_op(uint64_t h, const struct sh_program *p, const struct sh_op *op)
{
    const struct sh_op_attr *a = &op->attr;

    h = mix_all(h, (const int[]){op->kind, op->work, op->stream, op->phase, op->block, op->unit}, 6);
    h = mix_all(h, op->in, INPUTS);
    for (int k = INPUTS; k < SH_OP_MAX_IN; k++)
        h = op->in[k] == SH_NONE ? h : mix(h, op->in[k]);
    h = mix_all(h, op->out, SH_OP_MAX_OUT);
    h = mix_all(h, (const int[]){(int)a->accumulate, number_of(p, op), a->waits_for, a->after}, 4);
    h = a->row_block ? mix(h, a->row_block) : h;
    for (const struct sh_attr_field *f = sh_op_info(op->kind)->attrs; f && f->name; f++)
        if (counts(a, f))
            h = mix_value(h, sh_attr_value(a, f));
    return h;
}

static uint64_t of_unit(uint64_t h, const struct sh_unit *u)
{
    h = mix(mix(mix_text(h, u->name), u->elems), u->chunk);
    h = mix_all(h,
                (const int[]){u->first_param, u->n_params, u->compute, u->remainder, u->state[0], u->state[1], u->full,
                              u->snapshot, u->grad_shard, 0, u->grad_full},
                11);
    return mix_all(h, u->grad_level, SH_GRAD_LEVELS);
}

/* Kinds that did not exist when the digests were taken: they count only if they have bytes. */
static bool is_newer(int mem)
{
    return mem == SH_MEM_FROZEN || mem == SH_MEM_MASTER || mem == SH_MEM_UNPACKED || mem == SH_MEM_KV ||
           mem == SH_MEM_FETCHED;
}

static uint64_t of_program(const struct sh_program *p)
{
    uint64_t h = of_collectives(p);
    int64_t bytes[SH_MEM_KINDS];

    sh_pass_memory(p, bytes);
    for (int i = 0; i < SH_MEM_KINDS; i++)
        h = is_newer(i) && !bytes[i] ? h : mix(h, bytes[i]);
    for (int i = 0; i < p->n_tensors; i++)
        h = of_tensor(h, &p->tensors[i]);
    for (int i = 0; i < p->n_ops; i++)
        h = of_op(h, p, &p->ops[i]);
    for (int i = 0; i < p->n_units; i++)
        h = of_unit(h, &p->units[i]);
    for (int i = 0; i < p->n_runs; i++)
        h = mix(mix(mix(h, p->runs[i].begin), p->runs[i].end), p->runs[i].decay);
    for (int i = 0; i < p->n_sections; i++) {
        const struct sh_section *s = &p->sections[i];

        h = mix_all(h, (const int[]){(int)s->kind, s->first_op, s->n_ops, s->repeat, s->micro_step}, 5);
        h = mix(h, s->peak_bytes);
    }
    h = mix(mix(mix(h, p->persistent_bytes), p->own_bytes), p->segment.group_bytes);
    return mix(mix(mix(h, p->segment.peer_bytes), p->arena_bytes), p->n_tiers > 1 ? p->tiers[1].bytes : 0);
}

/* The sequence of random draws of plan `plan` of the grid. */
struct draw {
    uint64_t plan, n;
};

static int draw(struct draw *d, int below)
{
    return (int)(sh_mix64(d->plan * 4096 + d->n++) % (uint64_t)below);
}

static void draw_mesh(struct draw *d, struct sh_build *b)
{
    static const int shards[] = {1, 2, 3, 4, 8}, replicas[] = {1, 1, 2, 3};
    int shard = shards[draw(d, 5)], replicate = replicas[draw(d, 4)], inner = 1, segment = draw(d, 3);
    bool resharded = !b->options.strategy.params_resident && !b->options.strategy.keep_after_forward;
    struct sh_mesh_request request;

    if (resharded && !segment && shard % 2 == 0 && draw(d, 2))
        inner = 2;
    request = (struct sh_mesh_request){.shard = shard, .replicate = replicate, .inner = inner};
    assert_int_equal(sh_mesh_shape_make(&request, shard * replicate, draw(d, shard * replicate), &b->options.mesh),
                     SH_OK);
    if (segment && shard * replicate > 1) {
        b->options.segment_ranks = segment == 1 ? shard * replicate : shard;
        b->options.segment_rank = b->options.mesh.rank % b->options.segment_ranks;
    }
    if (b->options.segment_ranks == 1)
        b->options.segment_ranks = 0;
}

static void draw_options(struct draw *d, struct sh_build *b)
{
    static const int micros[] = {1, 2, 3, 4, 8};
    struct sh_pass_options *o = &b->options;
    int strategy = draw(d, TINY_STRATEGIES);

    o->strategy.params_resident = tiny_strategies[strategy].params_resident;
    o->strategy.keep_after_forward = tiny_strategies[strategy].keep_after_forward;
    o->strategy.sync_last_only = draw(d, 2);
    o->micro_steps = micros[draw(d, 5)];
    o->snapshot = draw(d, 2);
    o->reduce = draw(d, 3) ? SH_F32 : SH_BF16;
    o->decay_all = draw(d, 4) == 0;
    o->forward_prefetch = draw(d, 4);
    o->backward_prefetch = draw(d, 4);
    o->gathers_alive = draw(d, 3) ? 0 : draw(d, 4) + 1;
    if (o->reduce == SH_F32 && o->micro_steps != 3 && draw(d, 3) == 0)
        o->reproducible = o->strategy.sync_last_only = true;
}

static struct sh_build draw_build(struct draw *d)
{
    int batch = draw(d, 3) + 1; /* drawn first: compilers differ in which argument of a call they evaluate first */
    struct sh_build b = tiny_build(&tiny_models[draw(d, TINY_MODELS)], batch);

    b.model.n_layers = draw(d, 9) + 1;
    b.model.ffn_dim = draw(d, 2) ? 20 : 500;
    b.model.vocab_size = draw(d, 2) ? 13 : 1000;
    b.batch.seq = draw(d, 2) ? TINY_SEQ : 120;
    b.model.max_seq_len = b.batch.seq;
    b.batch.docs = draw(d, 3) == 0;
    b.act = draw(d, 2) ? SH_BF16 : SH_F32;
    b.kernels = draw(d, 2) ? &sh_kernels_cuda : &sh_kernels_ref;
    b.snapshot_on_host = draw(d, 4) == 0;
    b.evaluate = draw(d, 3) == 0;
    b.recompute = tiny_recomputes[draw(d, TINY_RECOMPUTES)];
    b.options.training = draw(d, 12) > 0;
    draw_options(d, &b);
    if (!b.options.training)
        b.evaluate = !(b.logits = draw(d, 2));
    draw_mesh(d, &b);
    return b;
}

static struct sh_program *plan_of(const struct sh_build *b)
{
    struct sh_program *p = NULL;
    sh_rc rc = sh_pass_build(b, &p);

    if (rc != SH_OK && rc != SH_E_MEMORY)
        fail_msg("%s", sh_error_text());
    return p;
}

/* Draw a budget between the needs without and with full recomputation, or a little less than the latter. */
static void draw_budget(struct draw *d, struct sh_build *b)
{
    int64_t bytes[2];
    int level = 0;

    for (int i = 0; i < 2; i++) {
        struct sh_program *p;

        b->recompute = tiny_recomputes[i ? TINY_FULL : TINY_NONE];
        p = plan_of(b);
        bytes[i] = p->arena_bytes;
        sh_program_destroy(p);
    }
    b->fit = true;
    b->limit_bytes = bytes[1] + (bytes[0] - bytes[1]) * (draw(d, 9) - 1) / 8;
    assert_int_equal(sh_pass_fit(b, &level), SH_OK);
}

static uint64_t digest(int row)
{
    uint64_t h = 0;

    for (int i = 0; i < PLANS; i++) {
        struct draw d = {.plan = (uint64_t)(row * PLANS + i)};
        struct sh_build b = draw_build(&d);
        struct sh_program *p;

        if (b.options.training && draw(&d, 3) == 0)
            draw_budget(&d, &b);
        p = plan_of(&b);
        h = mix(h, (int64_t)of_program(p));
        sh_program_destroy(p);
    }
    return h;
}

static void plans_are_what_they_were(void **state)
{
    (void)state;
    for (int row = 0; row < ROWS; row++)
        if (digest(row) != expected[row])
            fail_msg("a plan of row %d differs from what it was", row);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_are_what_they_were),
    };

    for (int row = 0; argc == 2 && !strcmp(argv[1], "--print") && row < ROWS; row++)
        printf("    0x%016llx,\n", (unsigned long long)digest(row));
    return argc == 2 ? 0 : cmocka_run_group_tests(tests, NULL, NULL);
}

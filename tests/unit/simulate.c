#include "tests/unit/simulate.h"
#include "tests/unit/simulate_coll.h"

#include "kernels/rows.h"
#include "src/base/mem.h"
#include "src/base/number/nf4.h"
#include "src/base/number/rng.h"
#include "src/layout/layout.h"
#include "src/program/saved.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GUARD = 4096, GUARD_BYTE = 0xa5 };

void *sim_data(const struct sim *s, int rank, int tensor)
{
    const struct sim_rank *r = &s->ranks[rank];
    const struct sh_tensor *t = &r->p->tensors[tensor];

    return (t->tier ? r->file : r->arena) + t->offset_bytes;
}

/* Return the remainders from element `at` of the chunk on; *n is reduced to how many of them are contiguous. */
static int16_t *remainders(const struct sim *s, int rank, const struct sh_unit *u, int64_t at, int64_t *n)
{
    const struct sh_program *p = s->ranks[rank].p;

    for (int i = u->first_slice; i < u->first_slice + u->n_slices; i++) {
        const struct sh_slice *slice = &p->slices[i];

        if (at < slice->first || at >= slice->first + slice->n)
            continue;
        *n = *n < slice->first + slice->n - at ? *n : slice->first + slice->n - at;
        return (int16_t *)(void *)(s->ranks[rank].file + p->tensors[slice->home].offset_bytes) + (at - slice->first);
    }
    *n = *n < u->held - at ? *n : u->held - at;
    return (int16_t *)sim_data(s, rank, u->remainder) + at;
}

/* Return the masters from element `at` of the chunk on; *n is reduced to how many of them are contiguous. */
static struct sh_floats masters(const struct sim *s, int rank, const struct sh_unit *u, int64_t at, int64_t *n)
{
    if (s->ranks[rank].p->act != SH_BF16)
        return (struct sh_floats){.whole =
                                      (float *)sim_data(s, rank, u->master == SH_NONE ? u->compute : u->master) + at};
    return (struct sh_floats){.high = (sh_bf16 *)sim_data(s, rank, u->compute) + at,
                              .low = u->trainable ? remainders(s, rank, u, at, n) : NULL};
}

static void create_rank(struct sim_rank *r, const struct sh_build *build)
{
    struct sh_build mine = *build;

    mine.options.mesh = r->mesh;
    if (sh_pass_build(&mine, &r->p) != SH_OK)
        fail_msg("%s", sh_error_text());
    r->memory = aligned_alloc(GUARD, (size_t)(r->p->arena_bytes + 2 * GUARD + GUARD - 1) / GUARD * GUARD);
    assert_non_null(r->memory);
    r->arena = r->memory + GUARD;
    memset(r->memory, GUARD_BYTE, (size_t)r->p->arena_bytes + 2 * GUARD);
    memset(r->arena, 0, (size_t)r->p->arena_bytes);
    if (r->p->n_tiers > 1)
        r->file = sh_calloc((size_t)r->p->tiers[1].bytes + 1, 1);
    r->flights = sh_calloc((size_t)r->p->n_ops + 1, sizeof *r->flights);
}

static struct sh_range own_range(const struct sim_rank *r, const struct sh_unit *u)
{
    return sh_layout_owned_chunk(u->elems, u->chunk, sh_group_index(&r->mesh, u->shard));
}

bool sim_round_frozen;

/* Make n initial values of a parameter from element `first` on; they do not depend on the rank. */
static void initial_values(const struct sim *s, const struct sh_param *param, uint64_t seed, int64_t first, int64_t n,
                           float *out)
{
    const struct sh_program *p = s->ranks[0].p;
    const struct sh_saved *saved = sh_saved_of(p, param);
    uint64_t key = sh_rng_key(seed, saved->name);
    struct sh_rng_runs run;

    for (int64_t i = 0; i < n; i++)
        out[i] = saved->init == SH_INIT_ONE ? 1 : 0;
    for (int64_t at = 0; at < n; at += run.n * run.count) {
        run = sh_saved_run(p, param, first + at, n - at);
        if (saved->init == SH_INIT_NORMAL)
            assert_int_equal(
                s->kernels->fill_normal(key, &run, saved->init_std, (struct sh_floats){.whole = out + at}, NULL),
                SH_OK);
        for (int64_t i = 0; saved->init == SH_INIT_UNIFORM && i < run.count; i++)
            sh_rng_fill_uniform(key, run.first + i * run.stride, run.n, saved->init_std, out + at + i * run.n);
    }
}

/* Fill weights in four bits: into the packed unit, or, unpacked again, into a unit that is not packed. Chunks of the
 * latter may begin and end within blocks, which are packed as a whole nevertheless. */
static void fill_rounded(const struct sim *s, int rank, const struct sh_param *param, uint64_t seed, int64_t first,
                         int64_t n, int64_t at)
{
    const struct sh_unit *u = &s->ranks[rank].p->units[param->unit];
    int64_t begin = first / SH_NF4_ELEMS * SH_NF4_ELEMS, blocks = (first + n - begin + SH_NF4_ELEMS - 1) / SH_NF4_ELEMS;
    float *values = sh_calloc((size_t)blocks + 1, SH_NF4_ELEMS * sizeof *values);
    char *packed = sh_calloc((size_t)blocks + 1, SH_NF4_BLOCK_BYTES);

    initial_values(s, param, seed, begin, blocks * SH_NF4_ELEMS, values);
    sh_nf4_pack(values, blocks, packed);
    sh_nf4_unpack(packed, blocks, values);
    if (u->packed) {
        assert_true(begin == first && n % SH_NF4_ELEMS == 0);
        memcpy((char *)sim_data(s, rank, u->compute) + sh_nf4_bytes(at), packed, (size_t)sh_nf4_bytes(n));
    } else {
        struct sh_floats to = masters(s, rank, u, at, &(int64_t){n}); /* frozen: all contiguous */

        /* Round like the kernel: ties to even. */
        for (int64_t i = 0; i < blocks * SH_NF4_ELEMS; i++)
            values[i] = to.high ? sh_bf16_to_f32(sh_f32_to_bf16(values[i])) : values[i];
        sh_floats_put(to, n, values + (first - begin));
    }
    free(packed);
    free(values);
}

/* Fill the unit's elements `mine`, whose masters are contiguous. */
static void fill_stretch(const struct sim *s, int rank, const struct sh_param *param, uint64_t seed,
                         struct sh_range mine, struct sh_range own)
{
    const struct sh_unit *u = &s->ranks[rank].p->units[param->unit];
    struct sh_floats to = masters(s, rank, u, mine.begin - own.begin, &(int64_t){mine.end - mine.begin});
    float *values;

    if (u->packed ||
        (sim_round_frozen && !u->trainable && sh_param_info(sh_saved_of(s->ranks[0].p, param)->role)->packs)) {
        fill_rounded(s, rank, param, seed, mine.begin - param->unit_elems, mine.end - mine.begin,
                     mine.begin - own.begin);
        return;
    }
    values = sh_calloc((size_t)(mine.end - mine.begin) + 1, sizeof *values);
    initial_values(s, param, seed, mine.begin - param->unit_elems, mine.end - mine.begin, values);
    sh_floats_put(to, mine.end - mine.begin, values);
    free(values);
}

static void fill_param(const struct sim *s, int rank, const struct sh_param *param, uint64_t seed)
{
    const struct sim_rank *r = &s->ranks[rank];
    const struct sh_unit *u = &r->p->units[param->unit];
    struct sh_range own = own_range(r, u);
    struct sh_range all =
        sh_layout_intersect(own, (struct sh_range){param->unit_elems, param->unit_elems + param->elems});
    int64_t n;

    for (int64_t at = all.begin; at < all.end; at += n) {
        n = all.end - at;
        masters(s, rank, u, at - own.begin, &n);
        fill_stretch(s, rank, param, seed, (struct sh_range){at, at + n}, own);
    }
}

struct sim *sim_create(const struct sh_build *build, int shard, int replicate, int inner, uint64_t seed)
{
    return sim_create_on(build, (const int[SH_AXES]){1, 1, 1, inner, shard / inner, replicate, 1}, seed);
}

struct sim *sim_create_on(const struct sh_build *build, const int axes[SH_AXES], uint64_t seed)
{
    struct sh_mesh_shape first = sh_mesh_shape_of(axes, 0);
    struct sim *s = sh_calloc(1, sizeof *s);

    s->world = sh_mesh_ranks(&first);
    s->kernels = build->kernels;
    s->ranks = sh_calloc((size_t)s->world, sizeof *s->ranks);
    for (int rank = 0; rank < s->world; rank++) {
        s->ranks[rank].mesh = sh_mesh_shape_of(axes, rank);
        create_rank(&s->ranks[rank], build);
        if (sh_group_size(&first, first.pipeline) == 1)
            assert_int_equal(sh_pass_hash(s->ranks[rank].p), sh_pass_hash(s->ranks[0].p));
        for (int i = 0; i < s->ranks[rank].p->n_params; i++)
            fill_param(s, rank, &s->ranks[rank].p->params[i], seed);
    }
    sim_run(s, SH_SECTION_INIT);
    return s;
}

void sim_destroy(struct sim *s)
{
    for (int rank = 0; rank < s->world; rank++) {
        struct sim_rank *r = &s->ranks[rank];

        for (int64_t i = 0; i < GUARD; i++)
            if ((unsigned char)r->memory[i] != GUARD_BYTE ||
                (unsigned char)r->arena[r->p->arena_bytes + i] != GUARD_BYTE)
                fail_msg("rank %d: memory beside the arena was touched", rank);
        free(r->memory);
        free(r->file);
        free(r->flights);
        sh_program_destroy(r->p);
    }
    free(s->ranks);
    free(s);
}

static void compute(const struct sim *s, struct sim_rank *r, const struct sh_op *op)
{
    struct sh_op_call call;

    sh_program_call(r->p, op, &(struct sh_bases){{r->arena}}, &call);
    call.scalars = s->pending && sh_op_info(op->kind)->runs ? &s->later : &s->scalars;
    if (sh_rows_run(s->kernels->run[op->kind], &call) != SH_OK)
        fail_msg("%s", sh_error_text());
}

/* Poison the memory that the move will write, until its wait. */
static void start_move(struct sim_rank *r, const struct sh_op *op)
{
    const struct sh_tensor *to = &r->p->tensors[op->out[0]];

    memset((op->kind == SH_OP_FETCH ? r->arena : r->file) + to->offset_bytes, SIM_POISON, (size_t)sh_tensor_bytes(to));
}

static void finish_move(struct sim_rank *r, const struct sh_op *op)
{
    const struct sh_tensor *from = &r->p->tensors[op->in[0]], *to = &r->p->tensors[op->out[0]];

    if (op->kind == SH_OP_FETCH)
        memcpy(r->arena + to->offset_bytes, r->file + from->offset_bytes, (size_t)sh_tensor_bytes(to));
    else
        memcpy(r->file + to->offset_bytes, r->arena + from->offset_bytes, (size_t)sh_tensor_bytes(to));
}

/* Continue until the section ends or a wait cannot complete. */
static void advance(const struct sim *s, struct sim_rank *r, const struct sh_section *section)
{
    for (; r->at < section->n_ops; r->at++) {
        int i = section->first_op + r->at, waited;
        const struct sh_op *op = &r->p->ops[i];

        if (!s->pending && sh_program_carried(section, op))
            continue;
        if (sh_op_info(op->kind)->async) {
            sim_coll_start(r, i);
        } else if (sh_op_info(op->kind)->moves) {
            start_move(r, op);
        } else if (op->kind == SH_OP_WAIT &&
                   sh_op_info(r->p->ops[section->first_op + op->attr.waits_for].kind)->moves) {
            finish_move(r, &r->p->ops[section->first_op + op->attr.waits_for]);
        } else if (op->kind == SH_OP_WAIT) {
            waited = section->first_op + op->attr.waits_for;
            if (!sim_coll_can_complete(s, r, waited, section))
                return;
            sim_coll_finish(s, r, waited, section);
        } else if (op->kind == SH_OP_RELEASE) {
            memset(r->arena + r->p->tensors[op->in[0]].offset_bytes, SIM_POISON,
                   (size_t)sh_tensor_bytes(&r->p->tensors[op->in[0]]));
        } else {
            compute(s, r, op);
        }
    }
}

static void begin_section(struct sim_rank *r)
{
    memset(r->arena + r->p->persistent_bytes, SIM_POISON, (size_t)(r->p->arena_bytes - r->p->persistent_bytes));
    r->at = 0;
}

static void end_section(struct sim_rank *r)
{
    for (int i = 0; i < r->p->n_ops; i++) {
        assert_int_equal(r->flights[i].started, r->flights[i].waited);
        free(r->flights[i].sent);
        free(r->flights[i].received);
        free(r->flights[i].parts);
        free(r->flights[i].before);
        r->flights[i] = (struct sim_flight){0};
    }
}

void sim_run_section(struct sim *s, int section)
{
    const struct sh_section *first = &s->ranks[0].p->sections[section];
    int done, before = -1, all = 0;

    for (int rank = 0; rank < s->world; rank++)
        all += s->ranks[rank].p->sections[section].n_ops;
    if (s->pending && first->kind != SH_SECTION_FIRST && first->kind != SH_SECTION_ONLY)
        assert_int_equal(first->kind, SH_SECTION_UPDATE);
    for (int rank = 0; rank < s->world; rank++)
        begin_section(&s->ranks[rank]);
    sim_meetings_open(s, section);
    for (;;) {
        done = 0;
        for (int rank = 0; rank < s->world; rank++) {
            int in_turn = s->last_first ? s->world - 1 - rank : rank;

            advance(s, &s->ranks[in_turn], &s->ranks[in_turn].p->sections[section]);
            done += s->ranks[in_turn].at;
        }
        if (done == all)
            break;
        if (done == before)
            fail_msg("%s: every rank waits for another", sh_section_name(first->kind));
        before = done;
    }
    for (int rank = 0; rank < s->world; rank++)
        end_section(&s->ranks[rank]);
    sim_meetings_close(s);
    s->pending = false;
}

void sim_put_off(struct sim *s)
{
    assert_true(!s->pending && sh_program_carries(s->ranks[0].p));
    s->later = s->scalars;
    s->pending = true;
}

void sim_run(struct sim *s, enum sh_section_kind kind)
{
    sim_run_section(s, (int)(sh_program_section(s->ranks[0].p, kind) - s->ranks[0].p->sections));
}

int64_t sim_param_elems(const struct sim *s)
{
    int64_t n = 0;

    for (int i = 0; i < s->ranks[0].p->n_saved; i++)
        n += s->ranks[0].p->saved[i].elems;
    return n;
}

/* Get the n elements of a unit that a rank owns. */
static void get_owned(const struct sim *s, int rank, const struct sh_unit *u, int64_t n, float *out)
{
    if (u->packed)
        sh_nf4_unpack(sim_data(s, rank, u->compute), n / SH_NF4_ELEMS, out);
    else
        for (int64_t at = 0, here; at < n; at += here) {
            here = n - at;
            struct sh_floats from = masters(s, rank, u, at, &here);

            sh_floats_get(from, here, out + at);
        }
}

/* Where a saved tensor begins among all, one after the other. */
static int64_t begin_of(const struct sh_program *p, int saved)
{
    int64_t begin = 0;

    for (int i = 0; i < saved; i++)
        begin += p->saved[i].elems;
    return begin;
}

/* Put elements [range) of a unit, which a rank has, among those of all saved tensors; if another rank has had them, they
 * must be the same. Or get them from there. */
static void place(const struct sim *s, int rank, const struct sh_unit *u, struct sh_range range, float *values,
                  float *all, bool *known)
{
    const struct sh_program *p = s->ranks[rank].p;

    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct sh_param *param = &p->params[i];
        struct sh_range mine =
            sh_layout_intersect(range, (struct sh_range){param->unit_elems, param->unit_elems + param->elems});
        int64_t begin = begin_of(p, param->saved);
        struct sh_rng_runs run;

        for (int64_t at = mine.begin; at < mine.end; at += run.n) {
            run = sh_saved_run(p, param, at - param->unit_elems, mine.end - at);
            for (int64_t k = 0; k < run.n; k++) {
                float *value = &values[at - range.begin + k];
                int64_t to = begin + run.first + k;

                if (known && known[to] && memcmp(&all[to], value, sizeof *value))
                    fail_msg("%s differs between ranks", p->saved[param->saved].name);
                if (known) {
                    known[to] = true;
                    all[to] = *value;
                } else {
                    *value = all[to];
                }
            }
        }
    }
}

static void same_packed(const struct sim *s, int rank, const struct sh_unit *u, const float *masters)
{
    float *values = sh_calloc((size_t)u->elems + 1, sizeof *values);

    sh_nf4_unpack(sim_data(s, rank, u->full), u->elems / SH_NF4_ELEMS, values);
    if (memcmp(masters, values, (size_t)u->elems * sizeof *values))
        fail_msg("%s: the full copy on rank %d is not what the chunks are", u->name, rank);
    free(values);
}

/* Coded from the masters in the compute type, whatever rank has coded which block. */
static void same_coded(const struct sim *s, int rank, const struct sh_unit *u, const float *masters)
{
    float *values = sh_calloc((size_t)u->elems + 1, sizeof *values);
    unsigned char *codes = sh_calloc((size_t)sh_code8_bytes(u->elems) + 1, 1);
    enum sh_dtype act = s->ranks[rank].p->act;

    for (int64_t i = 0; i < u->elems; i++) {
        sh_bf16 high;
        int16_t low;

        sh_floats_split(masters[i], &high, &low);
        values[i] = act == SH_F32   ? masters[i]
                    : act == SH_F16 ? sh_f16_to_f32(sh_f32_to_f16(masters[i]))
                                    : sh_bf16_to_f32(high);
    }
    sh_code8_put(codes, SH_CODE8_LINEAR, u->elems, values);
    if (memcmp(codes, sim_data(s, rank, u->full), (size_t)sh_code8_bytes(u->elems)))
        fail_msg("%s: the full copy on rank %d is not in the codes of the masters", u->name, rank);
    free(values);
    free(codes);
}

/* The source of gathers must be the masters in the compute type. */
static void same_full(const struct sim *s, int rank, const struct sh_unit *u, const float *masters)
{
    const void *full = sim_data(s, rank, u->full);
    enum sh_dtype act = s->ranks[rank].p->act;

    for (int64_t i = 0; i < u->elems; i++) {
        float value = masters[i];
        sh_bf16 high;
        int16_t low;

        sh_floats_split(value, &high, &low);
        if (act == SH_F32 ? memcmp((const float *)full + i, &value, sizeof value)
                          : ((const uint16_t *)full)[i] != (act == SH_F16 ? sh_f32_to_f16(value) : high))
            fail_msg("%s: the full copy on rank %d is not what the masters are", u->name, rank);
    }
}

void sim_params(const struct sim *s, float *out)
{
    int64_t elems = sim_param_elems(s);
    bool *known = sh_calloc((size_t)elems + 1, sizeof *known);

    for (int rank = 0; rank < s->world; rank++)
        for (int i = 0; i < s->ranks[rank].p->n_units; i++) {
            const struct sh_unit *u = &s->ranks[rank].p->units[i];
            struct sh_range own = own_range(&s->ranks[rank], u);
            float *values = sh_calloc((size_t)(own.end - own.begin) + 1, sizeof *values);

            get_owned(s, rank, u, own.end - own.begin, values);
            place(s, rank, u, own, values, out, known);
            free(values);
        }
    for (int64_t i = 0; i < elems; i++)
        assert_true(known[i]);
    for (int rank = 0; rank < s->world; rank++)
        for (int i = 0; i < s->ranks[rank].p->n_units; i++) {
            const struct sh_unit *u = &s->ranks[rank].p->units[i];
            float *values = sh_calloc((size_t)u->elems + 1, sizeof *values);

            if (u->full != SH_NONE) {
                place(s, rank, u, (struct sh_range){0, u->elems}, values, out, NULL);
                (u->packed ? same_packed : u->coded ? same_coded : same_full)(s, rank, u, values);
            }
            free(values);
        }
    free(known);
}

struct sh_op_scalars sim_scalars(int step, double loss_scale)
{
    return (struct sh_op_scalars){.loss_scale = loss_scale,
                                  .router_scale = loss_scale,
                                  .lr = 0.02f,
                                  .beta1 = 0.9f,
                                  .beta2 = 0.95f,
                                  .adam_eps = 1e-3f,
                                  .weight_decay = 0.1f,
                                  .beta1_pow = pow(0.9, step + 1),
                                  .beta2_pow = pow(0.95, step + 1),
                                  .grad_scale = 0.5f};
}

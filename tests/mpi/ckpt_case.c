#include "tests/mpi/ckpt_case.h"

#include "src/base/clones.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/layout/layout.h"
#include "src/mesh/mesh.h"

#include <dirent.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int test_rank, test_world;

/* Sizes with primes, ones, every number of dims, less and more than a digest block of 2^20 elements. */
/* clang-format off */
static const struct sh_ckpt_tensor large[] = {
    {"wte.weight", 2, {1021, 1031}, 1052651, SH_PARAM_EMBED, 0},
    {"layers.0.norm.weight", 1, {13}, 13, SH_PARAM_NORM, 0},
    {"layers.0.attn.weight", 2, {127, 64}, 8128, SH_PARAM_Q, 0},
    {"layers.0.bias", 1, {1}, 1, SH_PARAM_BIAS, 0},
    {"layers.1.conv.weight", 3, {3, 5, 7}, 105, SH_PARAM_UP, 0},
    {"layers.1.deep.weight", 4, {2, 3, 5, 7}, 210, SH_PARAM_DOWN, 0},
    {"layers.1.wide", 2, {1, 65537}, 65537, SH_PARAM_O, 0},
    {"head.weight", 2, {1 << 11, 1 << 9}, 1 << 20, SH_PARAM_HEAD, 0},
};

/* For tests that save or load a thousand times. */
static const struct sh_ckpt_tensor small[] = {
    {"wte.weight", 2, {101, 103}, 10403, SH_PARAM_EMBED, 0},
    {"layers.0.norm.weight", 1, {13}, 13, SH_PARAM_NORM, 0},
    {"layers.0.bias", 1, {1}, 1, SH_PARAM_BIAS, 0},
    {"layers.0.conv.weight", 3, {3, 5, 7}, 105, SH_PARAM_UP, 0},
    {"layers.0.wide", 2, {1, 6553}, 6553, SH_PARAM_O, 0},
};
/* clang-format on */

/* 240 MB of state, for tests of memory. */
static const struct sh_ckpt_tensor big[] = {
    {"wte.weight", 2, {10007, 1009}, 10097063, SH_PARAM_EMBED, 0},
    {"layers.0.norm.weight", 1, {1009}, 1009, SH_PARAM_NORM, 0},
    {"layers.0.attn.weight", 2, {3001, 2003}, 6011003, SH_PARAM_Q, 0},
    {"head.weight", 2, {1009, 3967}, 4002703, SH_PARAM_HEAD, 0},
};

const struct sh_ckpt_tensor *test_tensors = large;
int test_n_tensors = sizeof large / sizeof large[0];
struct sh_ckpt_states test_states = {3, {"model", "optimizer/exp_avg", "optimizer/exp_avg_sq"}, false};

void use_small_model(void)
{
    test_tensors = small;
    test_n_tensors = sizeof small / sizeof small[0];
}

void use_big_model(void)
{
    test_tensors = big;
    test_n_tensors = sizeof big / sizeof big[0];
}

void check_that(bool ok, const char *file, int line, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "rank %d: %s:%d: failed: %s (last error: %s)\n", test_rank, file, line, what, sh_error_text());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

void check_fails(sh_rc rc, sh_rc expected, const char *says)
{
    if (rc != expected)
        fprintf(stderr, "rank %d: got %d instead of %d\n", test_rank, (int)rc, (int)expected);
    CHECK(rc == expected);
    if (says && sh_error_text()[0] && !strstr(sh_error_text(), says)) {
        fprintf(stderr, "rank %d: \"%s\" does not say \"%s\"\n", test_rank, sh_error_text(), says);
        CHECK(false);
    }
    long long texts = sh_error_text()[0] != '\0';
    CHECK(sh_mesh_sum_i64(&texts, 1) == SH_OK && texts == 1);
    sh_error_clear();
}

/* Any bit pattern, including NaN with payloads: a checkpoint moves bits, not numbers. Parameters, which may be in
 * halves, have only one kind of NaN. Words of 32 bits, without branches, so that processors make many at a time. */
static uint32_t known_bits(int state, int tensor, int64_t i)
{
    uint32_t bits = ((uint32_t)i * 3 + (uint32_t)state) * 0x9e3779b1u + (uint32_t)tensor * 0x85157af5u;
    bits = (bits ^ (bits >> 15)) * 0x9e3779b9u;
    bits = (bits ^ (bits >> 13)) * 0xbf58476du;
    bits ^= bits >> 16;
    return state == SH_CKPT_MODEL && (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
}

enum { BLOCK = 512 }; /* elements made or compared at a time, which is most of the work of these tests */

/* Make the next block of elements, up to `end`. Returns how many. */
SH_CLONES static int known_values(int state, int tensor, int64_t at, int64_t end, float value[BLOCK])
{
    uint32_t bits[BLOCK];
    int n = end - at < BLOCK ? (int)(end - at) : BLOCK;
#pragma omp simd
    for (int i = 0; i < n; i++)
        bits[i] = known_bits(state, tensor, at + i);
    memcpy(value, bits, (size_t)n * sizeof *value);
    return n;
}

/* One rank saves from one array and its neighbour from halves, which must not show in the file; all load alike. */
static struct sh_floats make_room(int state, int tensor, int64_t n, bool fill)
{
    float *room = malloc((size_t)(n + 1) * 4);
    memset(room, 0xa5, (size_t)(n + 1) * 4);
    return sh_floats_in(room, n, state == SH_CKPT_MODEL && (tensor + (fill ? test_rank : 0)) % 2 == 0);
}

static void add_piece(struct sh_ckpt_set *set, int tensor, int64_t begin, int64_t end, bool fill)
{
    struct sh_ckpt_piece p = {.tensor = tensor, .begin = begin, .elems = end - begin};
    for (int s = 0; s < test_states.n; s++) {
        p.data[s] = make_room(s, tensor, end - begin, fill);
        for (int64_t n, at = begin; fill && at < end; at += n) {
            float value[BLOCK];
            n = known_values(s, tensor, at, end, value);
            sh_floats_put(sh_floats_at(p.data[s], at - begin), n, value);
        }
    }
    struct sh_ckpt_piece *pieces = (struct sh_ckpt_piece *)set->pieces;
    pieces = sh_realloc(pieces, (size_t)set->n_pieces + 1, sizeof *pieces);
    pieces[set->n_pieces++] = p;
    set->pieces = pieces;
}

/* Add the part of all tensors, laid end to end, that lies in `mine`. */
static void add_range(struct sh_ckpt_set *set, struct sh_range mine, bool fill)
{
    int64_t at = 0;
    for (int t = 0; t < test_n_tensors; t++) {
        struct sh_range own = sh_layout_intersect((struct sh_range){at, at + test_tensors[t].elems}, mine);
        if (own.begin < own.end || t % 3 == 0) /* now and then an empty piece, which is allowed */
            add_piece(set, t, own.begin < own.end ? own.begin - at : 0, own.begin < own.end ? own.end - at : 0, fill);
        at += test_tensors[t].elems;
    }
}

static void add_crumbs(struct sh_ckpt_set *set, bool fill)
{
    int turn = 0;
    for (int t = 0; t < test_n_tensors; t++) {
        int64_t elems = test_tensors[t].elems, step = elems / 13 + 1;
        for (int64_t begin = 0; begin < elems; begin += step, turn++)
            if ((turn * 7 + turn / 3) % test_world == test_rank)
                add_piece(set, t, begin, begin + step < elems ? begin + step : elems, fill);
    }
}

static int64_t total_elems(void)
{
    int64_t total = 0;
    for (int t = 0; t < test_n_tensors; t++)
        total += test_tensors[t].elems;
    return total;
}

static struct sh_range shard_range(int replicas)
{
    int shards = test_world / replicas;
    return sh_layout_owned(total_elems(), shards, test_rank % shards);
}

static struct sh_range written_range(int replicas)
{
    return sh_layout_split(shard_range(replicas), replicas, test_rank / (test_world / replicas));
}

static struct sh_range own_range(enum ckpt_cut cut)
{
    int owner = cut == CUT_FIRST_RANK ? 0 : test_world - 1;
    if (cut == CUT_EVERYTHING)
        return (struct sh_range){0, total_elems()};
    if (cut == CUT_FIRST_RANK || cut == CUT_LAST_RANK)
        return (struct sh_range){0, owner == test_rank ? total_elems() : 0};
    return written_range(cut == CUT_REPLICAS && test_world % 2 == 0 ? 2 : 1);
}

static struct sh_ckpt_set make_range_set(struct sh_range own, bool fill)
{
    struct sh_ckpt_set set = {.states = test_states, .tensors = test_tensors, .n_tensors = test_n_tensors};
    add_range(&set, own, fill);
    return set;
}

struct sh_ckpt_set make_mesh_set(int replicas, bool fill)
{
    return make_range_set(fill ? written_range(replicas) : shard_range(replicas), fill);
}

struct sh_ckpt_set make_set(enum ckpt_cut cut, bool fill)
{
    struct sh_ckpt_set set = {.states = test_states, .tensors = test_tensors, .n_tensors = test_n_tensors};
    if (cut != CUT_CRUMBS)
        return make_range_set(own_range(cut), fill);
    add_crumbs(&set, fill);
    return set;
}

void free_set(struct sh_ckpt_set *set)
{
    for (int i = 0; i < set->n_pieces; i++)
        for (int s = 0; s < SH_CKPT_STATES_MAX; s++)
            free(sh_floats_array(set->pieces[i].data[s], 0));
    free((void *)set->pieces);
    *set = (struct sh_ckpt_set){0};
}

static long wrong_in_piece(const struct sh_ckpt_piece *p, int state)
{
    long wrong = 0;
    for (int64_t n, at = 0; at < p->elems; at += n) {
        float value[BLOCK], expected[BLOCK];
        n = known_values(state, p->tensor, p->begin + at, p->begin + p->elems, expected);
        sh_floats_get(sh_floats_at(p->data[state], at), n, value);
        for (int64_t i = 0; i < n && memcmp(value, expected, (size_t)n * 4) != 0; i++)
            wrong += memcmp(&value[i], &expected[i], 4) != 0;
    }
    return wrong;
}

long wrong_elements(const struct sh_ckpt_set *set)
{
    long wrong = 0;
    for (int i = 0; i < set->n_pieces; i++)
        for (int s = 0; s < set->states.n; s++)
            if (!sh_floats_none(set->pieces[i].data[s]))
                wrong += wrong_in_piece(&set->pieces[i], s);
    return wrong;
}

struct sh_ckpt_meta test_meta(int64_t step)
{
    return (struct sh_ckpt_meta){.step = step,
                                 .samples = step * 32,
                                 .tokens = step * 32768,
                                 .updates = step - 1,
                                 .config = (char *)"training:\n  steps: 7\n",
                                 .guard = (char *)""};
}

static char folder[256] = "/tmp/test_ckpt.XXXXXX";

void use_folder(const char *path)
{
    CHECK(strlen(path) < sizeof folder);
    strcpy(folder, path);
}

sh_rc save_set(const char *to, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta, int64_t *bytes)
{
    return sh_ckpt_save(to, set, meta, &(struct sh_ckpt_options){.hints = "", .threads = 1}, bytes);
}

sh_rc load_set(const char *path, const struct sh_ckpt_set *set, struct sh_ckpt_meta *meta)
{
    struct sh_ckpt_load_report report;
    return sh_ckpt_load(path, set, &(struct sh_ckpt_load_options){0}, meta, &report);
}

const char *make_folder(void)
{
    CHECK(test_rank != 0 || mkdtemp(folder));
    CHECK(sh_mesh_bcast(folder, sizeof folder, 0) == SH_OK);
    return folder;
}

void remove_folder(void)
{
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    sh_mesh_barrier();
    CHECK(test_rank != 0 || system(command) == 0);
}

int files_in_folder(void)
{
    int n = 0;
    DIR *d = opendir(folder);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

unsigned long long file_hash(const char *path, long *bytes)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return 0;
    fseek(f, 0, SEEK_END);
    *bytes = ftell(f);
    rewind(f);
    unsigned char *all = malloc((size_t)*bytes + 1);
    size_t got = fread(all, 1, (size_t)*bytes, f);
    fclose(f);
    unsigned long long h = sh_hash64(all, got);
    free(all);
    return h;
}

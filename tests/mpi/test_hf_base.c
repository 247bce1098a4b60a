/* The base of adapters, read block by block for a merge: checkpoints and folders that fit, and each way not to fit. Its
 * largest matrix has more than one block. */
#include "tests/mpi/mpitest.h"

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/file/digest.h"
#include "io/foreign/hf/base.h"
#include "io/foreign/hf/export.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/number/mixsum.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { IN = 1024, OUT = 1025, RANK = 2, ALPHA = 6, MOST = 3 };

#define Q                                                                            \
    {                                                                                \
        .name = "m.q_proj.weight", .role = SH_PARAM_Q, .ndim = 2, .dim = { OUT, IN } \
    }
#define O                                                                         \
    {                                                                             \
        .name = "m.o_proj.weight", .role = SH_PARAM_O, .ndim = 2, .dim = { 5, 7 } \
    }
#define NORM                                                                     \
    {                                                                            \
        .name = "m.norm.weight", .role = SH_PARAM_NORM, .ndim = 1, .dim = { 96 } \
    }
#define A(...)                                        \
    {                                                 \
        .name = "m.q_proj.lora_A.weight", __VA_ARGS__ \
    }
#define B(...)                                        \
    {                                                 \
        .name = "m.q_proj.lora_B.weight", __VA_ARGS__ \
    }
#define MATRIX(rows, columns) .ndim = 2, .dim = {rows, columns}

/* Tensors up to the first without a name. */
typedef const struct sh_ckpt_tensor list[MOST + 1];

static list model = {Q, NORM, O}, adapters = {A(MATRIX(RANK, IN)), B(MATRIX(OUT, RANK))};

static const struct misfit {
    const char *what;
    list tensors;
    const char *says;
} not_adapters[] = {
    {"A alone", {A(MATRIX(RANK, IN))}, "only one of its two adapters"},
    {"B alone", {B(MATRIX(OUT, RANK))}, "only one of its two adapters"},
    {"A is a vector", {A(.ndim = 1, .dim = {RANK * IN}), B(MATRIX(OUT, RANK))}, "adapters of another kind"},
    {"B is a vector", {A(MATRIX(RANK, IN)), B(.ndim = 1, .dim = {RANK * OUT})}, "adapters of another kind"},
    {"A has other inputs", {A(MATRIX(RANK, IN + 1)), B(MATRIX(OUT, RANK))}, "do not fit its 1024 inputs"},
    {"B has other outputs", {A(MATRIX(RANK, IN)), B(MATRIX(OUT + 1, RANK))}, "do not fit its 1024 inputs"},
    {"A and B differ in rank", {A(MATRIX(RANK, IN)), B(MATRIX(OUT, RANK + 1))}, "do not fit its 1024 inputs"},
    {"a matrix of another model",
     {A(MATRIX(RANK, IN)), B(MATRIX(OUT, RANK)), {.name = "m.x_proj.lora_A.weight", MATRIX(RANK, IN)}},
     "has 1 adapter tensors that fit no weight"},
};

static const struct misfit bases[] = {
    {"the model in another order", {O, Q, NORM}, NULL},
    {"a base without a matrix", {Q, NORM}, "has no m.o_proj.weight of this model"},
    {"a base with another matrix",
     {Q, NORM, {.name = "m.o_proj.weight", MATRIX(5, 8)}},
     "has no m.o_proj.weight of this model"},
};

static char top[64];
static int64_t step; /* of the checkpoint that was saved last */
static struct sh_config cfg;

/* A number with more digits than bfloat16 has. */
static float value(uint64_t tensor, int64_t i)
{
    return (float)((int)(sh_mix64(tensor + (uint64_t)i) % 65536) - 32768) / 65536;
}

static uint64_t key(const struct sh_ckpt_tensor *t)
{
    return sh_hash64(t->name, strlen(t->name));
}

static float *numbers(const struct sh_ckpt_tensor *t)
{
    float *x = sh_calloc((size_t)t->elems, sizeof *x);
    for (int64_t i = 0, tensor = (int64_t)key(t); i < t->elems && test_rank() == 0; i++)
        x[i] = value((uint64_t)tensor, i);
    return x;
}

/* A set of the tensors, with their numbers on rank 0. Freed with free_set(). */
struct filled {
    struct sh_ckpt_set set;
    struct sh_ckpt_tensor tensor[MOST];
    struct sh_ckpt_piece piece[MOST];
};

static void fill(const struct sh_ckpt_tensor *tensors, struct filled *out)
{
    *out = (struct filled){.set = {.states = sh_ckpt_states_of(NULL, 0), .tensors = out->tensor, .pieces = out->piece}};
    for (int n = 0; n < MOST && tensors[n].name; n++) {
        out->tensor[n] = tensors[n];
        out->tensor[n].elems = tensors[n].dim[0] * (tensors[n].ndim > 1 ? tensors[n].dim[1] : 1);
        out->piece[n] = (struct sh_ckpt_piece){
            .tensor = n, .elems = out->tensor[n].elems, .data = {{.whole = numbers(&out->tensor[n])}}};
        out->set.n_tensors = n + 1;
    }
    out->set.n_pieces = test_rank() == 0 ? out->set.n_tensors : 0;
}

static void free_set(struct filled *f)
{
    for (int i = 0; i < f->set.n_tensors; i++)
        free(f->piece[i].data[0].whole);
}

/* The path of a new checkpoint, freed with free(). */
static char *save(const struct sh_ckpt_tensor *tensors, char *base)
{
    struct sh_ckpt_meta meta = {.step = ++step, .config = (char *)"", .guard = (char *)"", .base = base};
    struct filled f;
    int64_t bytes;
    fill(tensors, &f);
    CHECK_OK(sh_ckpt_save(top, &f.set, &meta, &(struct sh_ckpt_options){.hints = "", .threads = 1}, &bytes));
    free_set(&f);
    return sh_strfmt("%s/step-%08lld.h5", top, (long long)step);
}

/* A folder with these tensors; the last number is infinite on request. */
static char *write_folder(const struct sh_ckpt_tensor *tensors, bool infinite)
{
    const struct sh_hf_export how = {
        .type = SH_MOVE_F32, .max_shard_bytes = 1 << 30, .timeout_seconds = 200, .source = ""};
    char *path = sh_strfmt("%s/folder-%lld", top, (long long)++step);
    struct filled f;
    fill(tensors, &f);
    if (infinite)
        f.piece[f.set.n_tensors - 1].data[0].whole[f.piece[f.set.n_tensors - 1].elems - 1] = 1.0f / 0.0f;
    CHECK_OK(sh_hf_export(path, &cfg, &f.set, &how));
    free_set(&f);
    return path;
}

/* The sum of the base's numbers as a run uses them. */
static char *base_text(bool rounded)
{
    struct filled f;
    uint64_t sum = 0;
    fill(model, &f);
    for (int i = 0; i < f.set.n_tensors; i++) {
        struct sh_floats x = {.whole = f.piece[i].data[0].whole};
        struct sh_floats high = sh_floats_in(sh_calloc((size_t)f.tensor[i].elems, 4), f.tensor[i].elems, true);
        high.low = NULL;
        if (rounded) {
            sh_floats_put(high, f.tensor[i].elems, x.whole);
            sh_floats_get(high, f.tensor[i].elems, x.whole);
        }
        sum += sh_mixsum(x, f.tensor[i].elems, sh_ckpt_base_place(f.tensor[i].name, 0));
        free(high.high);
    }
    free_set(&f);
    return sh_ckpt_base_text(sum, "nowhere");
}

/* Elements [at, at + n) of W + ALPHA / RANK * B A. */
static void check_numbers(const struct sh_ckpt_tensor *t, int64_t at, int64_t n, const float *x)
{
    uint64_t w = key(t), a = key(&adapters[0]), b = key(&adapters[1]);
    for (int64_t i = at; i < at + n; i++) {
        double sum = 0;
        for (int64_t r = 0; r < RANK && t->role == SH_PARAM_Q; r++)
            sum += (double)value(b, i / IN * RANK + r) * (double)value(a, r * IN + i % IN);
        CHECK(x[i - at] == (float)((double)value(w, i) + (double)ALPHA / RANK * sum));
    }
}

static sh_rc read_all(struct sh_hf_base *b, const struct sh_ckpt_set *set)
{
    float *out = sh_calloc(SH_CKPT_BLOCK_ELEMS, sizeof *out);
    sh_rc rc = SH_OK;
    for (int t = 0; t < set->n_tensors; t++)
        for (int64_t n, at = 0; at < set->tensors[t].elems && rc == SH_OK; at += n) {
            n = set->tensors[t].elems - at < SH_CKPT_BLOCK_ELEMS ? set->tensors[t].elems - at : SH_CKPT_BLOCK_ELEMS;
            rc = sh_hf_base_read(b, t, at, n, out);
            if (rc == SH_OK)
                check_numbers(&set->tensors[t], at, n, out);
        }
    free(out);
    return rc == SH_OK ? sh_hf_base_check(b) : rc;
}

/* Merge on rank 0. */
static sh_rc merge(const char *of, const char *path)
{
    struct sh_hf_base b;
    struct filled f;
    fill(model, &f);
    sh_rc rc = sh_hf_base_open(of, NULL, path, false, &cfg, &f.set, &b);
    if (rc == SH_OK)
        rc = read_all(&b, &f.set);
    sh_hf_base_close(&b);
    free_set(&f);
    return rc;
}

/* Expect these words in the error, or no error. Frees the paths. */
static void try(const char *what, char *of, char *path, const char *says)
{
    sh_rc rc = test_rank() == 0 ? merge(of, path) : SH_OK;
    if (!says)
        CHECK_OK(rc);
    else if (test_rank() == 0)
        CHECK(rc == SH_E_DATA && strstr(sh_error_text(), says));
    sh_error_clear();
    free(of);
    free(path);
    test_end(what);
}

static void merge_onto(bool rounded)
{
    char *text = base_text(rounded);
    cfg.training.mixed_precision_param = rounded ? SH_PRECISION_BFLOAT16 : SH_PRECISION_FLOAT32;
    try("a checkpoint", save(adapters, text), save(model, NULL), NULL);
    try("a folder", save(adapters, text), write_folder(model, false), NULL);
    free(text);
}

int main(int argc, char **argv)
{
    static const char *const arguments[] = {"model.name=debug"};
    char command[128];
    CHECK_OK(sh_mesh_start(&argc, &argv));
    CHECK_OK(sh_config_load(NULL, 1, arguments, &cfg));
    cfg.lora.rank = RANK;
    cfg.lora.alpha = ALPHA;
    strcpy(top, "test_hf_base.XXXXXX");
    if (test_rank() == 0 && !mkdtemp(top))
        top[0] = '\0';
    CHECK_OK(sh_mesh_bcast(top, sizeof top, 0));
    for (int rounded = 1; rounded >= 0; rounded--)
        merge_onto(rounded);
    char *text = base_text(false), *other = base_text(true);
    for (size_t i = 0; i < sizeof not_adapters / sizeof *not_adapters; i++)
        try(not_adapters[i].what, save(not_adapters[i].tensors, text), sh_strdup("nowhere"), not_adapters[i].says);
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++)
        try(bases[i].what, save(adapters, text), save(bases[i].tensors, NULL), bases[i].says);
    try("a number that is none", save(adapters, text), write_folder(model, true), "is not a finite number");
    try("other numbers", save(adapters, other), save(model, NULL), "was trained on numbers other than those");
    free(text);
    free(other);
    snprintf(command, sizeof command, "rm -rf %s", top);
    if (test_rank() == 0)
        CHECK(system(command) == 0);
    int status = bad_tests ? 1 : 0;
    sh_mesh_stop();
    return status;
}

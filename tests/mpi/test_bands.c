/* Ranks that hold bands of the matrices instead of whole ones: initial values, checkpoints, folders of transformers and
 * sums of a base have the same bits, and each loads what the other has saved. No configuration makes such ranks yet, so
 * this test cuts a small model itself, over an axis of tensor ranks. */
#include "tests/mpi/mpitest.h"

#include "io/foreign/hf/export.h"
#include "io/foreign/hf/load.h"
#include "io/file/direct.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/pass/shard/shard.h"
#include "src/pass/build.h"
#include "src/program/saved.h"
#include "src/run/run.h"
#include "src/run/save/frozen.h"
#include "src/run/save/map.h"
#include "src/run/save/shards.h"
#include "src/run/save/snapshot.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Which dimension of a matrix the tensor ranks cut, and of how many equal matrices it consists, one band of each. */
static const struct {
    const char *ending;
    int cut, parts;
} cuts[] = {{"embed_tokens.weight", 0, 1}, {"qkv_proj.weight", 0, 3},  {"o_proj.weight", 1, 1},
            {"gate_up_proj.weight", 0, 2}, {"down_proj.weight", 1, 1}, {"experts.weight", 0, 1},
            {"across.weight", 1, 2}};

/* What the program of a rank is made for. */
struct kind {
    enum sh_dtype act;
    bool frozen, packed;
    int tensor, replicate; /* ranks on these axes */
    int as;                /* the place on the axis whose bands it has; -1: its own */
};

static struct sh_config cfg;
static const struct sh_device *device = &sh_device_cpu;
static char folder[] = "bands-XXXXXX";

static void load_config(void)
{
    static const char *const set[] = {
        "model.name=custom",  "model.family=phi3", "model.n_layers=1",    "model.dim=256",       "model.n_heads=4",
        "model.n_kv_heads=4", "model.ffn_dim=256", "model.vocab_size=64", "model.max_seq_len=8", "training.steps=1"};

    CHECK_OK(sh_config_load(NULL, (int)(sizeof set / sizeof *set), set, &cfg));
}

/* ---- programs ---- */

static bool ends_in(const char *name, const char *ending)
{
    size_t n = strlen(name), m = strlen(ending);

    return n >= m && !strcmp(name + n - m, ending);
}

/* The row of cuts for a tensor; -1: none. */
static int cut_of(const struct sh_saved *s)
{
    int i = sizeof cuts / sizeof *cuts - 1;

    while (i >= 0 && !ends_in(s->name, cuts[i].ending))
        i--;
    return i;
}

/* What place `index` of `size` holds of it. */
static struct sh_param hold(const struct sh_program *p, int saved, int index, int size)
{
    const struct sh_saved *s = &p->saved[saved];
    int i = cut_of(s);
    struct sh_param param = {.saved = saved, .ndim = s->ndim, .elems = s->elems, .trainable = true};

    memcpy(param.dim, s->dim, sizeof param.dim);
    if (i < 0 || size == 1)
        return param;
    param.cut = cuts[i].cut;
    param.n_bands = cuts[i].parts;
    param.dim[param.cut] /= size;
    param.elems /= size;
    for (int k = 0; k < param.n_bands; k++) {
        int64_t whole = s->dim[param.cut] / param.n_bands, n = whole / size;

        param.band[k] = (struct sh_band){k * whole + index * n, n};
    }
    return param;
}

/* Add a unit of the tensors that are cut, or of the others. The latter belong to all tensor ranks together. */
static void add_unit(struct sh_program *p, const struct kind *k, const struct sh_mesh_shape *mesh, bool cut)
{
    int tensor = 1 << SH_AXIS_TENSOR, index = k->as < 0 ? sh_group_index(mesh, (sh_group)tensor) : k->as;
    int unit = sh_program_add_unit(p, cut ? "matrices" : "others");

    for (int i = 0; i < p->n_saved; i++) {
        struct sh_param param = hold(p, i, index, k->tensor);

        if ((cut_of(&p->saved[i]) >= 0) != cut)
            continue;
        param.unit = unit;
        param.unit_elems = p->units[unit].elems;
        p->units[unit].elems += param.elems;
        p->units[unit].n_params++;
        sh_program_add_param(p, &param);
    }
    p->units[unit].shard = mesh->shard | (cut ? 0 : (sh_group)tensor);
    p->units[unit].replicate = mesh->replicate;
    p->units[unit].packed = cut && k->packed;
    if (k->frozen)
        sh_program_freeze(p, unit);
}

/* The tensors of the model, and two of more forms; one has uniform values. */
static void add_saved(struct sh_program *p)
{
    struct sh_program *model = sh_program_create(SH_F32);
    struct sh_saved s = {.name = "experts.weight",
                         .role = SH_PARAM_UP,
                         .ndim = 3,
                         .dim = {8, 16, 64},
                         .elems = 8 * 16 * 64,
                         .init = SH_INIT_NORMAL,
                         .init_std = 0.5f,
                         .trainable = true};

    sh_model_emit(&cfg.model, &(struct sh_model_batch){.batch = 1, .seq = 8, .out = SH_MODEL_LOSS}, model);
    for (int i = 0; i < model->n_saved; i++)
        sh_program_add_saved(p, &model->saved[i]);
    sh_program_destroy(model);
    sh_program_add_saved(p, &s);
    strcpy(s.name, "across.weight");
    s.dim[1] = 512;
    s.ndim = 2;
    s.elems = 8 * 512;
    s.init = SH_INIT_UNIFORM;
    sh_program_add_saved(p, &s);
}

/* The state of a rank, without operations. */
static void make_program(struct sh_run *r, const struct kind *k, const struct sh_mesh_shape *mesh)
{
    struct sh_program *micro = sh_program_create(k->act);

    r->build = (struct sh_build){.act = k->act,
                                 .kernels = device->kernels,
                                 .packed = k->packed,
                                 .threads = 1,
                                 .options = {.mesh = *mesh,
                                             .micro_steps = 1,
                                             .training = true,
                                             .optim = sh_optim_of(cfg.optimizer.name),
                                             .snapshot = !k->frozen}};
    add_saved(micro);
    add_unit(micro, k, mesh, true);
    add_unit(micro, k, mesh, false);
    CHECK_OK(sh_saved_check(micro));
    r->p = sh_program_create(k->act);
    if (device->gpu)
        sh_program_add_tier(r->p, "host", SH_TIER_HOST);
    sh_shard_state(micro, &r->build.options, r->p);
    sh_shard_init(micro, &r->build.options, r->p);
    sh_program_destroy(micro);
}

/* ---- runs ---- */

static struct sh_mesh_shape shape_of(const struct kind *k)
{
    const int axes[SH_AXES] = {k->tensor, 1, 1, 1, test_world() / k->tensor / k->replicate, k->replicate, 1};

    return sh_mesh_shape_of(axes, test_rank());
}

static struct sh_run *begin(const struct kind *k)
{
    struct sh_run *r = sh_calloc(1, sizeof *r);

    r->cfg = cfg;
    r->device = device;
    r->threads = 1;
    r->step = 7;
    r->mesh = sh_calloc(1, sizeof *r->mesh);
    *r->mesh = (struct sh_mesh){.shape = shape_of(k), .rank = test_rank(), .world = test_world(), .n_nodes = 1};
    make_program(r, k, &r->mesh->shape);
    CHECK_OK(sh_pass_place(&r->build, r->p));
    CHECK_OK(sh_exec_create(r->p, r->device, NULL, -1, NULL, &r->exec));
    r->map = sh_map_make(r->p, &r->mesh->shape, r->exec);
    return r;
}

static void end(struct sh_run *r)
{
    sh_map_free(r->map);
    sh_exec_destroy(r->exec);
    sh_program_destroy(r->p);
    free(r->base.path);
    free(r->mesh);
    free(r);
}

/* The saved element that element i of a parameter is, by its place in each dimension. */
static int64_t saved_elem(const struct sh_program *p, const struct sh_param *param, int64_t i)
{
    const struct sh_saved *s = sh_saved_of(p, param);
    int64_t at = 0, place[SH_MAX_DIMS];

    for (int d = param->ndim - 1; d >= 0; d--) {
        place[d] = i % param->dim[d];
        i /= param->dim[d];
    }
    for (int k = 0, found = 0; k < param->n_bands && !found; k++) {
        found = place[param->cut] < param->band[k].n;
        place[param->cut] += found ? param->band[k].first : -param->band[k].n;
    }
    for (int d = 0; d < s->ndim; d++)
        at = at * s->dim[d] + place[d];
    return at;
}

/* A number that bfloat16 has, of element e of a tensor in a state. */
static float value(int saved, int state, int64_t e)
{
    return (float)((int)(sh_mix64(sh_mix64((uint64_t)(saved * 8 + state)) + (uint64_t)e) % 255) - 127) / 4;
}

/* What a visit does: give all elements their values, or zeros, or compare them. */
struct visit {
    const struct sh_run *r;
    enum { FILL, CLEAR, COMPARE, COMPARE_PARAMETERS } what;
};

static void visit_param(const struct visit *v, const struct sh_map_stretch *s, const struct sh_param *param, int state)
{
    struct sh_range range = sh_map_cut(s->range, param);
    struct sh_floats here = sh_floats_at(s->state[state], range.begin - s->range.begin);
    int64_t n = range.end - range.begin;
    float *want = sh_calloc((size_t)n + 1, sizeof *want), *found = sh_calloc((size_t)n + 1, sizeof *found);

    for (int64_t i = 0; i < n && v->what != CLEAR; i++)
        want[i] = value(param->saved, state, saved_elem(v->r->p, param, range.begin + i - param->unit_elems));
    if (n > 0 && v->what <= CLEAR)
        sh_exec_put_floats(v->r->exec, here, want, n);
    if (n > 0)
        sh_exec_get_floats(v->r->exec, found, here, n);
    CHECK(memcmp(want, found, (size_t)n * sizeof *want) == 0);
    free(want);
    free(found);
}

static void look(const struct sh_map_stretch *s, void *arg)
{
    const struct visit *v = arg;
    const struct sh_unit *u = &v->r->p->units[s->unit];
    int states = v->what == COMPARE_PARAMETERS ? 1 : v->r->map->n_states;

    for (int i = u->first_param; i < u->first_param + u->n_params; i++)
        for (int k = 0; k < states; k++)
            visit_param(v, s, &v->r->p->params[i], k);
}

static void visit_all(struct sh_run *r, int what)
{
    struct visit v = {.r = r, .what = what};

    sh_map_visit_all(r, what <= CLEAR, look, &v);
}

/* ---- files ---- */

static char *path_of(const char *name, const char *file)
{
    return sh_strfmt("%s/%s%s", folder, name, file);
}

static unsigned long long hash_of(const char *name, const char *file)
{
    char *path = path_of(name, file);
    FILE *f = fopen(path, "rb");
    size_t most = 16 << 20, n;
    char *all = sh_calloc(most, 1);
    unsigned long long hash;

    CHECK(f != NULL);
    n = f ? fread(all, 1, most, f) : 0;
    CHECK(n > 0 && n < most);
    hash = sh_hash64(all, n);
    if (f)
        fclose(f);
    free(all);
    free(path);
    return hash;
}

static sh_rc save_shards(const struct sh_shards *s, const char *name, enum sh_cfg_io io)
{
    const struct sh_ckpt_options options = {.io_method = io, .hints = "", .timeout_seconds = 300, .threads = 1};
    struct sh_ckpt_meta meta = {.step = 7, .config = (char *)"", .guard = (char *)""};
    char *path = path_of(name, "");
    int64_t bytes;
    sh_rc rc = sh_ckpt_save(path, &s->set, &meta, &options, &bytes);

    free(path);
    sh_mesh_barrier();
    return rc;
}

static unsigned long long save(struct sh_run *r, const char *name, enum sh_cfg_io io, enum sh_shards_way way)
{
    struct sh_shards s;

    sh_shards_make(r, way, &s);
    if (way == SH_SHARDS_SNAPSHOT) {
        sh_snapshot_copy(&s);
        sh_snapshot_wait(&s);
    }
    CHECK_OK(save_shards(&s, name, io));
    sh_shards_free(&s);
    return hash_of(name, "/step-00000007.h5");
}

/* How often files were opened to be read past the page cache. */
static int direct_reads;

void __real_sh_file_direct_open(const char *path, int fd, bool writing, struct sh_file_direct *out);
void __wrap_sh_file_direct_open(const char *path, int fd, bool writing, struct sh_file_direct *out);
void __wrap_sh_file_direct_open(const char *path, int fd, bool writing, struct sh_file_direct *out)
{
    direct_reads += !writing;
    __real_sh_file_direct_open(path, fd, writing, out);
}

/* Columns are short runs, between those of other ranks on the same pages. */
static void load(struct sh_run *r, const char *name)
{
    bool columns = r->p->params[0].n_bands > 0;
    char *path = path_of(name, "/step-00000007.h5");
    struct sh_ckpt_load_options options = sh_shards_options(r);
    struct sh_ckpt_load_report report;
    struct sh_ckpt_meta meta = {0};
    struct sh_shards s;

    options.trust = SH_TRUST_ANY;
    visit_all(r, CLEAR);
    sh_shards_make(r, SH_SHARDS_LOAD, &s);
    direct_reads = 0;
    CHECK_OK(sh_ckpt_load(path, &s.set, &options, &meta, &report));
    CHECK(test_world() > 2 || direct_reads == !columns); /* more ranks have small parts */
    sh_shards_put(&s);
    sh_shards_free(&s);
    sh_ckpt_meta_free(&meta);
    free(path);
    visit_all(r, COMPARE);
}

static sh_rc export(struct sh_run *r, const char *name)
{
    const struct sh_hf_export options = {
        .type = SH_MOVE_F32, .max_shard_bytes = INT64_MAX, .timeout_seconds = 300, .source = ""};
    char *path = path_of(name, "");
    struct sh_shards s;
    sh_rc rc;

    sh_shards_make(r, SH_SHARDS_SAVE, &s);
    rc = sh_hf_export(path, &cfg, &s.set, &options);
    sh_shards_free(&s);
    free(path);
    sh_mesh_barrier();
    return rc;
}

static void import(struct sh_run *r, const char *name)
{
    char *path = path_of(name, "");
    struct sh_ckpt_load_options options = sh_shards_options(r);
    struct sh_shards s;

    options.trust = SH_TRUST_ANY;
    visit_all(r, CLEAR);
    sh_shards_make(r, SH_SHARDS_LOAD, &s);
    CHECK_OK(sh_hf_load(path, "phi3", &s.set, &options, NULL));
    sh_shards_put(&s);
    sh_shards_free(&s);
    free(path);
    visit_all(r, COMPARE_PARAMETERS);
}

/* ---- tests ---- */

/* Between whole tensors and bands, in both directions. */
static void same_bits(struct sh_run *whole, struct sh_run *bands)
{
    unsigned long long want;

    CHECK_OK(sh_run_init_state(whole));
    CHECK_OK(sh_run_init_state(bands));
    want = save(whole, "drawn", SH_IO_DIRECT, SH_SHARDS_SAVE);
    CHECK(save(bands, "drawn-bands", SH_IO_DIRECT, SH_SHARDS_SAVE) == want);
    visit_all(whole, FILL);
    want = save(whole, "whole", SH_IO_DIRECT, SH_SHARDS_SAVE);
    load(bands, "whole");
    CHECK(save(bands, "bands", SH_IO_DIRECT, SH_SHARDS_SAVE) == want);
    CHECK(save(bands, "bands", SH_IO_MPIIO, SH_SHARDS_SAVE) == want);
    CHECK(save(bands, "bands", SH_IO_DIRECT, SH_SHARDS_SNAPSHOT) == want);
    load(whole, "bands");
    CHECK_OK(export(whole, "hf-whole"));
    CHECK_OK(export(bands, "hf-bands"));
    CHECK(hash_of("hf-whole", "/model.safetensors") == hash_of("hf-bands", "/model.safetensors"));
    import(bands, "hf-whole");
    import(whole, "hf-bands");
}

/* A base has one sum, and packed matrices consist of the same blocks. */
static uint64_t base_sum(struct kind k, enum sh_provenance_kind from)
{
    uint64_t sum;
    struct sh_run *r;

    k.frozen = true;
    r = begin(&k);
    snprintf(r->cfg.hf.assets_path, sizeof r->cfg.hf.assets_path, "%s/hf-whole", folder);
    snprintf(r->cfg.checkpoint.initial_load_path, sizeof r->cfg.checkpoint.initial_load_path,
             "%s/whole/step-00000007.h5", folder);
    r->cfg.checkpoint.initial_load_in_hf = from == SH_FROM_FOLDER;
    r->cfg.checkpoint.trust = SH_TRUST_ANY;
    CHECK_OK(sh_frozen_load(r, NULL, NULL));
    CHECK_OK(sh_frozen_check(r, sh_frozen_changed(r)));
    sum = r->base.sum;
    end(r);
    return sum;
}

static void same_base(struct kind whole, struct kind bands)
{
    for (int packed = 0; packed < 2; packed++) {
        uint64_t want;

        whole.packed = bands.packed = packed;
        want = base_sum(whole, SH_FROM_CHECKPOINT);
        CHECK(want != 0);
        CHECK(base_sum(bands, SH_FROM_CHECKPOINT) == want);
        CHECK(base_sum(whole, SH_FROM_FOLDER) == want);
        CHECK(base_sum(bands, SH_FROM_FOLDER) == want);
    }
}

/* The parameter of an element of a unit. */
static const struct sh_param *param_at(const struct sh_program *p, int unit, int64_t at)
{
    int i = p->units[unit].first_param;

    while (at >= p->params[i].unit_elems + p->params[i].elems)
        i++;
    return &p->params[i];
}

/* States that are rounded stochastically: each element of a chunk has the random bits of its place in its tensor. */
static void same_random_bits(const struct kind *k)
{
    struct sh_mesh_shape mesh = shape_of(k);
    int64_t left = 0;
    struct sh_run r;

    make_program(&r, k, &mesh);
    r.p->state[0].dtype = r.p->state[1].dtype = SH_BF16;
    sh_shard_update(&r.build, r.p);
    for (int i = 0; i < r.p->n_ops; i++) {
        const struct sh_unit *u = &r.p->units[r.p->ops[i].unit == SH_NONE ? 0 : r.p->ops[i].unit];
        struct sh_range own = sh_layout_owned_chunk(u->elems, u->chunk, sh_group_index(&mesh, u->shard));
        int runs = sh_op_info(r.p->ops[i].kind)->runs ? r.p->ops[i].attr.runs.count : 0;

        left += runs ? own.end - own.begin : 0;
        for (const struct sh_decay_run *d = &r.p->runs[r.p->ops[i].attr.runs.first]; runs > 0; runs--, d++)
            for (int64_t e = d->begin; e < d->end; e++, left--) {
                const struct sh_param *param = param_at(r.p, r.p->ops[i].unit, own.begin + e);
                const char *name = sh_saved_of(r.p, param)->name;

                CHECK(d->tensor == sh_rng_name(name));
                CHECK(e - d->origin == saved_elem(r.p, param, own.begin + e - param->unit_elems));
            }
    }
    CHECK(r.p->n_runs > 0 && left == 0);
    sh_program_destroy(r.p);
}

/* All ranks have the bands of the first, as many elements as there are in all, but not each of them. */
static void refuse_overlap(struct kind k)
{
    char *path = path_of("refused", "");
    struct sh_shards s;
    struct sh_run *r;
    long long said;

    k.as = 0;
    r = begin(&k);
    sh_shards_make(r, SH_SHARDS_SAVE, &s);
    CHECK(save_shards(&s, "refused", SH_IO_DIRECT) == SH_E_BUG);
    said = strstr(sh_error_text(), "hold some elements of ") != NULL;
    CHECK_OK(sh_mesh_sum_i64(&said, 1));
    CHECK(said == 1);
    sh_shards_free(&s);
    CHECK(export(r, "refused-hf") == SH_E_BUG);
    CHECK(test_rank() > 0 || rmdir(path) == 0); /* it is empty */
    sh_error_clear();
    end(r);
    free(path);
}

static void try_bands(int tensor, int replicate, enum sh_dtype act)
{
    struct kind whole = {.act = act, .tensor = 1, .replicate = 1, .as = -1}, cut = whole;
    struct sh_run *a, *b;
    char text[64], *command;

    cut.tensor = tensor;
    cut.replicate = replicate;
    a = begin(&whole);
    b = begin(&cut);
    same_bits(a, b);
    end(a);
    end(b);
    same_base(whole, cut);
    same_random_bits(&cut);
    if (tensor > 1)
        refuse_overlap(cut);
    sh_mesh_barrier();
    command = sh_strfmt("rm -rf '%s'/*", folder);
    CHECK(test_rank() > 0 || system(command) == 0);
    free(command);
    snprintf(text, sizeof text, "%s, %d tensor ranks, %d replicas, %s", device->name, tensor, replicate,
             sh_dtype_name(act));
    test_end(text);
}

int main(int argc, char **argv)
{
    if (sh_mesh_start(&argc, &argv) != SH_OK)
        return 1;
    load_config();
    CHECK(test_rank() > 0 || mkdtemp(folder) != NULL);
    CHECK_OK(sh_mesh_bcast(folder, sizeof folder, 0));
    for (int tensor = 1 + (test_world() % 2 == 0); tensor <= 4; tensor *= 2)
        for (int replicate = 1; replicate <= 2; replicate++)
            if (test_world() % (tensor * replicate) == 0)
                try_bands(tensor, replicate, replicate == 1 ? SH_BF16 : SH_F32);
#ifdef SH_CUDA_EMULATED
    struct sh_device_info info;

    setenv("SHERD_EMULATED_GPUS", "16", 1);
    device = sh_device_find("cuda");
    CHECK_OK(device->open(test_rank(), &info));
    if (test_world() % 2 == 0)
        try_bands(2, 1, SH_BF16);
#endif
    CHECK(test_rank() > 0 || rmdir(folder) == 0);
    test_end("nothing is left");
    sh_mesh_stop();
    return bad_tests != 0;
}

/* A program whose rows travel in waves to the ranks of their experts and back: each row comes back, in its place, and
 * each rank gets what is for its experts. Random numbers of rows, and all of them for one expert. */
#include "tests/mpi/mpitest.h"

#include "src/base/mem.h"
#include "src/base/hash.h"
#include "src/comm/comm.h"
#include "src/exec/exec.h"
#include "src/pass/build.h"

#include <stdlib.h>
#include <string.h>

/* A rank has at most ROWS rows of WIDTH elements; SEGMENT of them may be for one expert. */
enum { ROWS = 96, SEGMENT = 24, WIDTH = 5, HERE = 2, ROOM = 40 };

static const struct sh_device *device = &sh_device_cpu;
static const char *backend; /* NULL: the only one */
static struct sh_mesh *mesh;
static struct sh_comm *comm;
static struct sh_group_use group;

struct waves {
    struct sh_program *p;
    struct sh_exec *exec;
    int n, first, x, z;
    int *got; /* [n] what arrives in each wave */
    int *groups;
};

/* ---- the program ---- */

static int add(struct waves *w, bool stays, enum sh_dtype type, int ndim, const int64_t *dim, const char *name)
{
    struct sh_tensor t = sh_tensor_make(SH_MEM_ACT, type, ndim, dim, "%s", name);

    t.persistent = stays;
    return sh_program_add_tensor(w->p, &t);
}

static int add_wave(struct waves *w, int wave)
{
    int64_t world = test_world();
    struct sh_op op = sh_program_op(SH_OP_ROUTE_WAVE);

    op.attr.wave.wave = wave;
    op.attr.wave.place = test_rank();
    op.attr.wave.room = ROOM;
    op.in[0] = w->first;
    op.out[0] = add(w, false, SH_I32, 3, (const int64_t[]){2, world, world}, "parts");
    op.out[1] = w->groups[wave] = add(w, true, SH_I32, 1, (const int64_t[]){world * HERE + 1}, "groups");
    sh_program_append(w->p, op);
    return op.out[0];
}

/* The wait stays behind, so that an operation can come in between. */
static int start(struct waves *w, int x, int parts, int y, int wave, bool back)
{
    struct sh_op op = sh_program_op(SH_OP_ALL_TO_ALL);

    op.stream = SH_STREAM_GATHER;
    op.attr.group = sh_group_world(&mesh->shape);
    op.attr.exchange.row_elems = WIDTH;
    op.attr.exchange.back = back;
    op.attr.exchange.wave = wave;
    op.attr.accumulate = back;
    op.in[0] = x;
    op.in[1] = parts;
    op.out[0] = y;
    sh_program_append(w->p, op);
    return w->p->sections[0].n_ops - 1;
}

static void wait_for(struct waves *w, int started)
{
    struct sh_op op = sh_program_op(SH_OP_WAIT);

    op.attr.waits_for = started;
    sh_program_append(w->p, op);
}

/* The next wave is made while the one before it is under way: its numbers must not take the place of those. */
static void make_program(struct waves *w)
{
    int64_t world = test_world();
    int parts;

    w->p = sh_program_create(SH_F32);
    w->n = (int)world * HERE * (int)world + 1; /* a segment in each, and an empty one */
    w->got = sh_calloc((size_t)w->n, sizeof *w->got);
    w->groups = sh_calloc((size_t)w->n + 1, sizeof *w->groups);
    w->first = add(w, true, SH_I32, 2, (const int64_t[]){world, world * HERE + 1}, "first");
    w->x = add(w, true, SH_F32, 1, (const int64_t[]){ROWS * WIDTH}, "x");
    w->z = add(w, true, SH_F32, 1, (const int64_t[]){ROWS * WIDTH}, "z");
    sh_program_use_group(w->p, &mesh->shape, sh_group_world(&mesh->shape), SH_STREAM_GATHER);
    sh_program_add_section(w->p, SH_SECTION_ONLY, 1);
    parts = add_wave(w, 0);
    for (int i = 0, there; i < w->n; i++) {
        int mine = parts;

        w->got[i] = add(w, true, SH_F32, 1, (const int64_t[]){ROOM * WIDTH}, "got");
        there = start(w, w->x, mine, w->got[i], i, false);
        if (i + 1 < w->n)
            parts = add_wave(w, i + 1);
        wait_for(w, there);
        wait_for(w, start(w, w->got[i], mine, w->z, i, true));
    }
}

/* ---- the numbers ---- */

/* Where the rows of `rank` for each expert begin. */
static void count_rows(int32_t *first, int rank, int seed, int experts)
{
    for (int e = 0; e < experts; e++) {
        uint64_t dice = sh_mix64(sh_mix64((uint64_t)(seed * 64 + rank)) + (uint64_t)e);
        int n = seed == 0 ? 0 : seed == 1 ? (e == experts / 2) * SEGMENT : (int)(dice % (SEGMENT + 1));

        first[e + 1] = first[e] + (first[e] + n <= ROWS ? n : 0);
    }
}

static float value(int rank, int i)
{
    return (float)(rank * ROWS * WIDTH + i);
}

static void *tensor(struct waves *w, int t)
{
    int64_t bytes = sh_tensor_bytes(&w->p->tensors[t]);
    void *host = sh_calloc((size_t)bytes, 1);

    sh_exec_get_at(w->exec, host, sh_exec_data(w->exec, t), bytes);
    return host;
}

static void set_tensor(struct waves *w, int t, const void *host)
{
    sh_exec_put_at(w->exec, sh_exec_data(w->exec, t), host, sh_tensor_bytes(&w->p->tensors[t]));
}

/* All rows for the experts of this rank, expert by expert and rank by rank, in the order of the waves. */
static void check_got(struct waves *w, const int32_t *first)
{
    int world = test_world(), experts = world * HERE, wave = 0;
    int32_t *groups = tensor(w, w->groups[0]);
    float *got = tensor(w, w->got[0]);

    for (int e = 0; e < HERE; e++)
        for (int from = 0; from < world; from++) {
            const int32_t *row = first + from * (experts + 1) + test_rank() * HERE + e;
            int n = row[1] - row[0], at = from * HERE + e;

            if (n && groups[at + 1] == groups[at] && wave + 1 < w->n) {
                free(groups);
                free(got);
                groups = tensor(w, w->groups[++wave]);
                got = tensor(w, w->got[wave]);
            }
            CHECK(!n || groups[at + 1] - groups[at] == n);
            for (int i = 0; i < n * WIDTH; i++)
                CHECK(got[groups[at] * WIDTH + i] == value(from, row[0] * WIDTH + i));
        }
    free(groups);
    free(got);
}

static void run(struct waves *w, int seed)
{
    int world = test_world(), experts = world * HERE;
    int32_t *first = sh_calloc((size_t)(world * (experts + 1)), sizeof *first);
    float x[ROWS * WIDTH], before[ROWS * WIDTH], *z;

    for (int i = 0; i < world; i++)
        count_rows(first + i * (experts + 1), i, seed, experts);
    for (int i = 0; i < ROWS * WIDTH; i++) {
        x[i] = value(test_rank(), i);
        before[i] = -1;
    }
    set_tensor(w, w->first, first);
    set_tensor(w, w->x, x);
    set_tensor(w, w->z, before);
    sh_exec_run(w->exec, SH_SECTION_ONLY);
    check_got(w, first);
    z = tensor(w, w->z);
    for (int i = 0; i < ROWS * WIDTH; i++)
        CHECK(z[i] == (i < first[test_rank() * (experts + 1) + experts] * WIDTH ? x[i] : -1));
    free(first);
    free(z);
}

/* ---- runs ---- */

static void open_comm(bool in_mpi)
{
    struct sh_mesh_request req = test_request(test_world(), 1);

    CHECK_OK(sh_mesh_create(&req, &mesh));
    group = (struct sh_group_use){"world", sh_group_world(&mesh->shape), 1u << SH_STREAM_GATHER};
    struct sh_comm_options opt = {.timeout_seconds = in_mpi ? 0 : 600,
                                  .inline_progress = in_mpi,
                                  .history = 16,
                                  .device = device,
                                  .backend = backend,
                                  .groups = &group,
                                  .n_groups = 1,
                                  .streams = sh_streams,
                                  .n_streams = SH_STREAMS};
    CHECK_OK(sh_mesh_open(mesh, group.axes));
    CHECK_OK(sh_comm_create(mesh, &opt, &comm));
}

static struct waves begin(void)
{
    struct waves w = {0};
    struct sh_build build = {
        .act = SH_F32, .kernels = device->kernels, .threads = 1, .options = {.mesh = mesh->shape, .micro_steps = 1}};

    make_program(&w);
    CHECK_OK(sh_pass_place(&build, w.p));
    return w;
}

static void end(struct waves *w)
{
    sh_exec_destroy(w->exec);
    sh_program_destroy(w->p);
    free(w->got);
    free(w->groups);
    sh_comm_destroy(comm);
    sh_mesh_destroy(mesh);
}

static void run_all(bool in_mpi)
{
    struct waves w;

    open_comm(in_mpi);
    w = begin();
    CHECK_OK(sh_exec_create(w.p, device, comm, -1, NULL, &w.exec));
    for (int seed = 0; seed < 12; seed++)
        run(&w, seed);
    end(&w);
}

static void test_there_and_back(bool in_mpi)
{
    run_all(in_mpi);
    sh_mesh_wait_in_mpi(false);
    test_end(in_mpi ? "rows there and back, inside MPI" : "rows there and back");
}

/* A stall and a trace name the wave. */
static void test_labels(void)
{
    char label[SH_OP_LABEL];
    struct waves w;

    open_comm(false);
    w = begin();
    sh_program_label(w.p, &w.p->ops[w.p->n_ops - 2], label);
    CHECK(strstr(label, test_world() == 1 ? "all_to_all wave 2" : "all_to_all wave ") != NULL);
    sh_program_label(w.p, &w.p->ops[0], label);
    CHECK(strstr(label, "route_wave wave 0") != NULL);
    end(&w);
    test_end("labels");
}

#ifdef SH_CUDA_EMULATED
static void test_gpus(void)
{
    static const char *const backends[] = {"nccl", "mpi"};
    struct sh_device_info info;

    setenv("SHERD_EMULATED_GPUS", "16", 1);
    device = sh_device_find("cuda");
    CHECK_OK(device->open(test_rank(), &info));
    for (int i = 0; i < 2; i++) {
        backend = backends[i];
        run_all(false);
    }
    device->close();
    test_end("rows there and back between GPUs");
}
#endif

int main(int argc, char **argv)
{
    sh_rc rc = sh_mesh_start(&argc, &argv);

    if (rc == SH_OK) {
        test_there_and_back(false);
        test_there_and_back(true);
        test_labels();
#ifdef SH_CUDA_EMULATED
        test_gpus();
#endif
    }
    int status = sh_mesh_report(rc);
    sh_mesh_stop();
    return status != 0 ? status : bad_tests > 0;
}

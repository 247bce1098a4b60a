/* Checkpoints by each I/O method, next to plain programs that write the same number of bytes. The table defines the
 * comparisons: a method with the better of the plain writes, verification with the same save without it, a snapshot
 * with a memcpy. Each file is deleted before the next one is written, so that a disk needs room for only one. */
#include "src/tools/bench/bench.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/base/time.h"
#include "src/run/run.h"
#include "src/run/save/map.h"
#include "src/run/save/shards.h"
#include "src/run/save/snapshot.h"
#include "src/tools/bench/baseline.h"
#include "src/tools/bench/empty.h"
#include "src/tools/bench/folder.h"
#include "src/tools/bench/points.h"
#include "src/tools/bench/rows.h"

#include <stdio.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The order of the table. The phases of the direct save come last, one row each. */
/* clang-format off */
enum row {
    WRITE, WRITE_MPIIO, WRITE_BEST, SAVE_DIRECT, SAVE_DIRECT_VERIFIED, SAVE_CACHED, SAVE_CACHED_VERIFIED, SAVE_MPIIO, SAVE_MPIIO_VERIFIED, SAVE_ASYNC,
    READ, LOAD, COPY, SNAPSHOT, STALL, EMPTY, PHASE, ROWS = PHASE + SH_CKPT_PHASES
};
/* clang-format on */

/* `against` names another row of this table. */
static const struct sh_bench_row rows[ROWS] = {
    [WRITE] = {.name = "write and fdatasync, one rank"},
    [WRITE_MPIIO] = {.name = "plain MPI-IO and sync, all ranks"},
    [WRITE_BEST] = {.name = "the better of both"},
    [SAVE_DIRECT] = {.name = "save direct", .against = "the better of both"},
    [SAVE_DIRECT_VERIFIED] = {.name = "save direct, verified", .against = "save direct"},
    [SAVE_CACHED] = {.name = "save through the page cache", .against = "the better of both"},
    [SAVE_CACHED_VERIFIED] = {.name = "save so, verified there", .against = "save through the page cache"},
    [SAVE_MPIIO] = {.name = "save mpiio", .against = "the better of both"},
    [SAVE_MPIIO_VERIFIED] = {.name = "save mpiio, verified", .against = "save mpiio"},
    [SAVE_ASYNC] = {.name = "asynchronous save, verified", .against = "save direct"},
    [READ] = {.name = "read cold, one rank"},
    [LOAD] = {.name = "load cold", .against = "read cold, one rank"},
    [COPY] = {.name = "memcpy of the state"},
    [SNAPSHOT] = {.name = "snapshot of the state", .against = "memcpy of the state"},
    [STALL] = {.name = "stall of an asynchronous save", .against = "memcpy of the state"},
    [EMPTY] = {.name = "lay out and index 405B's tensors"},
    [PHASE + SH_CKPT_SUMS] = {.name = "of save direct: sums into the file"},
    [PHASE + SH_CKPT_LAYOUT] = {.name = "of save direct: layout"},
    [PHASE + SH_CKPT_WRITE] = {.name = "of save direct: sums and writes"},
    [PHASE + SH_CKPT_SYNC] = {.name = "of save direct: fsync"},
    [PHASE + SH_CKPT_VERIFY] = {.name = "of save direct: reading back"},
    [PHASE + SH_CKPT_COMMIT] = {.name = "of save direct: commit"},
};

struct bench {
    struct sh_run *r;
    const struct sh_bench_options *options;
    char *plain, *saved;      /* files */
    struct sh_shards state;   /* what this rank saves */
    int64_t bytes, own_bytes; /* of all ranks, of this rank */
    int round;
    struct sh_bench_times times[ROWS];
};

/* Stores a time in this round's column. */
static void put(struct bench *b, int row, double seconds)
{
    b->times[row].seconds[b->round] = seconds;
}

/* Returns the seconds since `begin`. */
static double since(int64_t begin)
{
    return sh_seconds_since(begin);
}

/* Collective. The better of both shows what the file system can do from this job. */
static sh_rc plain_writes(struct bench *b)
{
    double alone, together;

    SH_TRY(sh_baseline_mpiio(b->plain, b->bytes, &together));
    sh_bench_folder_drop(b->plain);
    SH_TRY(sh_baseline_write(b->plain, b->bytes, &alone));
    put(b, WRITE, alone);
    put(b, WRITE_MPIIO, together);
    put(b, WRITE_BEST, alone < together ? alone : together);
    return SH_OK;
}

/* The same save counts for two rows: as it is, and without the phase that reads back. */
static sh_rc save(struct bench *b, enum sh_cfg_io io_method, enum sh_cfg_verify verify, enum row without, enum row with)
{
    struct sh_ckpt_times times;
    struct sh_ckpt_options options = {
        .io_method = io_method, .verify = verify, .hints = "", .threads = b->r->threads, .times = &times};
    struct sh_ckpt_meta meta = {.step = b->r->step};
    char *folder = sh_run_checkpoint_folder(b->r);
    int64_t bytes, begin;
    double seconds;
    sh_rc rc;

    sh_mesh_own_mpi();
    sh_mesh_barrier();
    begin = sh_now_ns();
    rc = sh_ckpt_save(folder, &b->state.set, &meta, &options, &bytes);
    seconds = since(begin);
    free(folder);
    SH_TRY(rc);
    put(b, with, seconds);
    put(b, without, seconds - times.seconds[SH_CKPT_VERIFY]);
    for (int i = 0; without == SAVE_DIRECT && i < SH_CKPT_PHASES; i++)
        put(b, PHASE + i, times.seconds[i]);
    return SH_OK;
}

/* Saves as training does, with a pause between two polls in place of a training step. */
static sh_rc save_async(struct bench *b)
{
    const struct timespec step = {.tv_nsec = 20 * 1000 * 1000};
    struct sh_run_saved saved;

    SH_TRY(sh_run_save(b->r, "", &saved));
    while (sh_run_is_saving(b->r)) {
        nanosleep(&step, NULL);
        SH_TRY(sh_run_save_poll(b->r, false, &saved));
    }
    put(b, SAVE_ASYNC, saved.seconds);
    put(b, STALL, saved.stall);
    free(saved.path);
    return SH_OK;
}

/* Collective. The file is first dropped from the page cache: a load after a restart finds it cold. */
static sh_rc load(struct bench *b)
{
    struct sh_ckpt_meta meta = {0};
    struct sh_ckpt_load_report report;
    struct sh_shards p;
    int64_t begin;
    sh_rc rc;

    sh_shards_make(b->r, SH_SHARDS_LOAD, &p);
    sh_baseline_drop(b->saved);
    sh_mesh_own_mpi();
    sh_mesh_barrier();
    begin = sh_now_ns();
    rc = sh_ckpt_load(b->saved, &p.set, &(struct sh_ckpt_load_options){0}, &meta, &report);
    put(b, LOAD, since(begin));
    sh_shards_free(&p);
    sh_ckpt_meta_free(&meta);
    return rc;
}

/* Collective. Copies first by memcpy, then in the way that the run copies its state before an asynchronous save. */
static sh_rc memory(struct bench *b)
{
    struct sh_shards copy;
    double seconds;
    int64_t begin;

    SH_TRY(sh_baseline_copy(b->own_bytes, &seconds));
    put(b, COPY, seconds);
    sh_shards_make(b->r, SH_SHARDS_SNAPSHOT, &copy);
    sh_mesh_barrier();
    begin = sh_now_ns();
    sh_snapshot_copy(&copy);
    sh_snapshot_wait(&copy);
    sh_mesh_barrier();
    put(b, SNAPSHOT, since(begin));
    sh_shards_free(&copy);
    return SH_OK;
}

/* Collective; only rank 0 works. */
static sh_rc empty(struct bench *b)
{
    double seconds = 0;

    SH_TRY(sh_agree(b->r->mesh->rank == 0 ? sh_bench_empty(b->plain, &seconds) : SH_OK));
    put(b, EMPTY, seconds);
    return SH_OK;
}

/* The order is fixed: each save needs the previous file to be gone, and the load needs the file that it
 * reads. */
static sh_rc round_of_all(struct bench *b)
{
    double seconds;

    SH_TRY(plain_writes(b));
    SH_TRY(sh_baseline_read(b->plain, &seconds));
    put(b, READ, seconds);
    sh_bench_folder_drop(b->plain);
    SH_TRY(save(b, SH_IO_DIRECT, SH_VERIFY_CACHE, SAVE_CACHED, SAVE_CACHED_VERIFIED));
    sh_bench_folder_drop(b->saved);
    SH_TRY(save(b, SH_IO_DIRECT, SH_VERIFY_DISK, SAVE_DIRECT, SAVE_DIRECT_VERIFIED));
    SH_TRY(load(b));
    sh_bench_folder_drop(b->saved);
    SH_TRY(save(b, SH_IO_MPIIO, SH_VERIFY_DISK, SAVE_MPIIO, SAVE_MPIIO_VERIFIED));
    sh_bench_folder_drop(b->saved);
    SH_TRY(memory(b));
    SH_TRY(save_async(b));
    sh_bench_folder_drop(b->saved);
    return empty(b);
}

/* Codes are made on the host. */
static void fill_codes(const struct bench *b, struct sh_floats to, uint64_t key, struct sh_range range)
{
    enum { PIECE = 1 << 15 };
    float *room = sh_calloc(PIECE, sizeof *room);

    for (int64_t at = 0, n = range.end - range.begin; at < n; at += PIECE) {
        int64_t here = n - at < PIECE ? n - at : PIECE;

        sh_rng_fill_normal(key, range.begin + at, here, 1.0f, room);
        for (int64_t i = 0; to.law == SH_CODE8_FOURTH && i < here; i++)
            room[i] = fabsf(room[i]); /* squares */
        sh_exec_put_floats(b->r->exec, sh_floats_at(to, at), room, here);
    }
    free(room);
}

/* Fills the state with arbitrary numbers other than zero, wherever it lives: a disk may be fast with zeros. */
static void fill_stretch(const struct sh_map_stretch *s, void *arg)
{
    const struct bench *b = arg;

    for (int k = 0; k < b->r->map->n_states; k++)
        if (s->state[k].coded)
            fill_codes(b, s->state[k], (uint64_t)k, s->range);
        else
            sh_exec_fill_normal(
                b->r->exec, s->state[k], (uint64_t)k,
                (struct sh_rng_runs){.first = s->range.begin, .n = s->range.end - s->range.begin, .count = 1}, 1.0f);
}

/* Rows that do not depend on the size have no GB/s. */
static bool is_about_bytes(int row)
{
    return row != EMPTY && row != PHASE + SH_CKPT_LAYOUT && row != PHASE + SH_CKPT_SYNC &&
           row != PHASE + SH_CKPT_COMMIT;
}

/* Collective. Sizes are summed over ranks as integers, since each rank owns a different part. */
static sh_rc measure(struct bench *b)
{
    long long all;

    sh_shards_make(b->r, SH_SHARDS_SAVE, &b->state);
    sh_map_visit_all(b->r, true, fill_stretch, b);
    for (int i = 0; i < b->state.set.n_pieces; i++)
        b->own_bytes += b->state.pieces[i].elems * b->state.set.states.n * (int64_t)sizeof(float);
    all = b->own_bytes;
    SH_TRY(sh_mesh_sum_i64(&all, 1));
    b->bytes = all;
    for (int i = 0; i < ROWS; i++)
        b->times[i].bytes = is_about_bytes(i) ? b->bytes : 0;
    SH_TRY(sh_run_can_save(b->r));
    for (b->round = 0; b->round < b->options->repeat; b->round++)
        SH_TRY(round_of_all(b));
    return SH_OK;
}

/* Bandwidths of the nodes that took part; a job on all nodes measures the file system itself. */
static sh_rc write_points(const struct bench *b)
{
    struct sh_bench_points points = {0};
    int rounds = b->options->repeat;
    double write = (double)b->bytes / sh_bench_median(b->times[SAVE_DIRECT].seconds, rounds);
    int nodes = (sh_mesh_ranks(&b->r->mesh->shape) + b->r->mesh->node_size - 1) / b->r->mesh->node_size;

    sh_bench_points_figure(&points, "disk.write", write);
    sh_bench_points_figure(&points, "disk.each_node", write / nodes);
    sh_bench_points_figure(&points, "disk.read", (double)b->bytes / sh_bench_median(b->times[LOAD].seconds, rounds));
    return sh_bench_points_write(&points, b->options, b->r);
}

/* Rank 0. */
static sh_rc report(const struct bench *b)
{
    char ranks[SH_STR_SHORT], threads[SH_STR_SHORT], rounds[SH_STR_SHORT];
    char *head = sh_strfmt("checkpoint of %s, %.3f GB, %s of %s, %s, in %s",
                           b->r->cfg.model.name[0] ? b->r->cfg.model.name : "a model", (double)b->bytes / 1e9,
                           sh_str_plural(sh_mesh_ranks(&b->r->mesh->shape), "rank", ranks),
                           sh_str_plural(b->r->threads, "thread", threads),
                           sh_str_plural(b->options->repeat, "round", rounds), b->options->folder);
    sh_rc rc = sh_bench_report("io", head, rows, b->times, ROWS, b->options->repeat, b->options);

    free(head);
    return rc == SH_OK ? write_points(b) : rc;
}

/* Collective; the save itself expects the folder. */
static sh_rc make_checkpoint_folder(const struct bench *b)
{
    char *folder = sh_run_checkpoint_folder(b->r);
    sh_rc rc = sh_agree(b->r->mesh->rank == 0 ? sh_mkdir_p(folder) : SH_OK);

    free(folder);
    return rc;
}

/* Collective, also after a failure. */
static void delete_folder(const struct bench *b, const struct sh_config *cfg)
{
    char *folder = b->r ? sh_run_checkpoint_folder(b->r) : NULL;

    if (b->plain)
        sh_bench_folder_drop(b->plain);
    if (b->saved)
        sh_bench_folder_drop(b->saved);
    sh_mesh_barrier();
    if (folder)
        rmdir(folder); /* a rank that comes second finds it gone */
    sh_bench_folder_delete(cfg);
    free(folder);
}

/* Settings that the benchmark makes itself: both kinds of save are measured, whatever the configuration says. */
static void prepare(struct sh_config *cfg)
{
    cfg->checkpoint.enable = true;
    /* Only then does the plan have memory for the snapshot. */
    cfg->checkpoint.async_mode = SH_ASYNC_ASYNC;
    cfg->checkpoint.io = SH_IO_AUTO;
    cfg->checkpoint.hints[0] = '\0';
    strcpy(cfg->checkpoint.folder, "checkpoint");
}

/* Collective. The struct is on the heap: its times are too large for a stack. */
sh_rc sh_bench_io(const struct sh_config *asked, const struct sh_bench_options *options)
{
    struct sh_config cfg = *asked;
    struct bench *b = sh_calloc(1, sizeof *b);
    sh_rc rc;

    b->options = options;
    prepare(&cfg);
    SH_TRY_OUT(sh_agree(sh_bench_check("io", options)));
    SH_TRY_OUT(sh_bench_folder_make(&cfg, options->folder));
    rc = sh_agree(sh_bench_refuse_replaced("io", options, asked, &cfg));
    if (rc == SH_OK)
        rc = sh_run_open(&cfg, SH_TO_TRAIN, &b->r);
    if (rc == SH_OK) {
        b->plain = sh_path_join(cfg.job.dump_folder, "plain");
        /* The step of a run that has just started. */
        b->saved = sh_path_join(cfg.job.dump_folder, "checkpoint/step-00000000.h5");
        rc = make_checkpoint_folder(b);
    }
    if (rc == SH_OK)
        rc = measure(b);
    if (rc == SH_OK)
        rc = sh_agree(b->r->mesh->rank == 0 ? report(b) : SH_OK);
    delete_folder(b, &cfg);
out:
    sh_shards_free(&b->state);
    free(b->plain);
    free(b->saved);
    sh_run_close(b->r);
    free(b);
    return rc;
}

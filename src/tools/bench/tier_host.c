/* Copies between GPUs and pinned memory of their host, with the queues and copies that move homes in training, in
 * pieces of a slice. All ranks of a node copy at once, since they share its memory. */
#include "src/tools/bench/tier_host.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/base/time.h"
#include "src/mesh/mesh.h"
#include "src/plan/topology.h"
#include "src/tools/bench/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 40 << 20, DEPTH = 3, WAYS = 2 };
enum row { TO_GPU, TO_HOST, BOTH, ROWS };

static const struct sh_bench_row rows[ROWS] = {
    [TO_GPU] = {.name = "to the GPU"}, [TO_HOST] = {.name = "to the host"}, [BOTH] = {.name = "both ways"}};

struct bench {
    const struct sh_bench_options *options;
    const struct sh_device *device;
    struct sh_topology at;
    struct sh_topology_gpu gpu;
    char *on_gpu, *pinned; /* [WAYS][DEPTH][piece] */
    int64_t piece, pieces; /* bytes; number that a measurement moves in each direction */
    void *queue[WAYS];     /* to the GPU, to the host */
    int round;
    struct sh_bench_times times[ROWS];
};

static int64_t memory_bytes(const struct bench *b)
{
    return WAYS * DEPTH * b->piece;
}

/* Each direction has separate pieces, as have slices that come and go. */
static void start(const struct bench *b, int way, int64_t i)
{
    int64_t at = (way * DEPTH + i % DEPTH) * b->piece;
    char *to = (way == TO_GPU ? b->on_gpu : b->pinned) + at;
    const char *from = (way == TO_GPU ? b->pinned : b->on_gpu) + at;

    b->device->copy(b->queue[way], to, from, b->piece);
}

/* All ranks start together, and the time is that of the slowest. Collective. */
static sh_rc measure(struct bench *b, enum row row)
{
    int64_t begin;
    double seconds;
    sh_rc rc = SH_OK;

    sh_mesh_barrier();
    begin = sh_now_ns();
    for (int64_t i = 0; i < b->pieces; i++)
        for (int way = 0; way < WAYS; way++)
            if (row == BOTH || row == (enum row)way)
                start(b, way, i);
    for (int way = 0; way < WAYS && rc == SH_OK; way++)
        rc = b->device->queue_check(b->queue[way]);
    seconds = sh_seconds_since(begin);
    SH_TRY(sh_agree(rc));
    SH_TRY(sh_mesh_max(&seconds, 1));
    b->times[row].seconds[b->round] = seconds;
    b->times[row].bytes = b->pieces * b->piece * (row == BOTH ? 2 : 1);
    return SH_OK;
}

/* The first copies of a process are not counted: they pay for objects that the driver creates then. */
static sh_rc measure_all(struct bench *b)
{
    SH_TRY(measure(b, BOTH));
    for (b->round = 0; b->round < b->options->repeat; b->round++)
        for (int row = 0; row < ROWS; row++)
            SH_TRY(measure(b, (enum row)row));
    return SH_OK;
}

/* Bytes per second of a GPU. */
static double rate(const struct bench *b, enum row row)
{
    return (double)b->times[row].bytes / sh_bench_median(b->times[row].seconds, b->options->repeat);
}

/* A plan assumes that each direction runs at its rate whatever the other does, so both rates are reduced by the factor
 * that they lose when they run together. */
static sh_rc report(const struct bench *b)
{
    double in = rate(b, TO_GPU), out = rate(b, TO_HOST), share = fmin(1, rate(b, BOTH) / (in + out));
    char ranks[SH_STR_SHORT], rounds[SH_STR_SHORT];
    char *head = sh_strfmt("between GPUs and pinned memory of their host, %s; %s; bytes of each GPU\n"
                           "%lld copies of %.3f MB each way; both ways: bytes of both directions\n"
                           "for a GPU: --offload.rates=host=%.4g/%.4g",
                           sh_str_plural(b->at.world, "rank", ranks),
                           sh_str_plural(b->options->repeat, "round", rounds), (long long)b->pieces,
                           (double)b->piece / 1e6, in * share, out * share);
    sh_rc rc = sh_bench_report("tier", head, rows, b->times, ROWS, b->options->repeat, b->options);

    free(head);
    return rc;
}

static sh_rc no_gpu(const char *why)
{
    return sh_fail(
        SH_E_USAGE,
        "sherd bench tier: name the folder for the scratch files, and nothing else; without a folder it measures "
        "between GPUs and their host, but there is no GPU: %s",
        why);
}

/* Collective. */
static sh_rc open_gpu(const struct sh_config *cfg, struct bench *b)
{
    char why[256] = "this sherd was built without CUDA";

    b->device = sh_device_find("cuda");
    SH_TRY(sh_topology_find(cfg, b->device && b->device->count(why) > 0, &b->at));
    SH_TRY(sh_agree(b->at.gpu ? SH_OK : no_gpu(why)));
    return sh_topology_open_gpu(cfg, b->device, &b->at, &b->gpu);
}

static sh_rc make_memory(struct bench *b)
{
    int64_t part = b->options->bytes / DEPTH;

    b->piece = part < PIECE_BYTES ? part : PIECE_BYTES;
    b->pieces = b->options->bytes / b->piece;
    SH_TRY(b->device->arena_create(memory_bytes(b), 0, -1, &b->on_gpu));
    SH_TRY(b->device->host_create(memory_bytes(b), &b->pinned));
    memset(b->pinned, 1, (size_t)memory_bytes(b));
    for (int way = 0; way < WAYS; way++)
        b->queue[way] = b->device->queue_create(false);
    return SH_OK;
}

static void free_all(struct bench *b)
{
    for (int way = 0; way < WAYS; way++)
        if (b->queue[way]) {
            b->device->queue_drain(b->queue[way]);
            b->device->queue_destroy(b->queue[way]);
        }
    if (b->pinned)
        b->device->host_destroy(b->pinned, memory_bytes(b));
    if (b->on_gpu)
        b->device->arena_destroy(b->on_gpu, memory_bytes(b));
    if (b->gpu.sharing && b->device->close)
        b->device->close();
    free(b);
}

sh_rc sh_bench_tier_host(const struct sh_config *cfg, const struct sh_bench_options *options)
{
    struct bench *b = sh_calloc(1, sizeof *b);
    sh_rc rc;

    b->options = options;
    SH_TRY_OUT(sh_agree(sh_bench_check("tier", options)));
    SH_TRY_OUT(open_gpu(cfg, b));
    SH_TRY_OUT(sh_agree(make_memory(b)));
    SH_TRY_OUT(measure_all(b));
    rc = sh_agree(b->at.rank == 0 ? report(b) : SH_OK);
out:
    free_all(b);
    return rc;
}

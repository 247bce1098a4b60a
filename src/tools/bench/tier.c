/* Scratch files, moved by the engine that moves tensors in training, with the same extents and as many of them in
 * flight. The file is written before anything is measured: the first write of reserved space is slower than later ones,
 * and a disk's cache makes the first minutes faster than the rest. */
#include "src/tools/bench/bench.h"

#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/number/size.h"
#include "src/base/string/str.h"
#include "src/base/time.h"
#include "src/mesh/mesh.h"
#include "src/tier/tier.h"
#include "src/tools/bench/rows.h"
#include "src/tools/bench/tier_host.h"

#include <stdlib.h>

/* An extent is that of a slice of 4 Mi elements with its remainder and moments; one arrives, one is in use, one leaves.
 * A measurement moves a part of the file: in each direction as many bytes as take a few seconds. */
enum { EXTENT_BYTES = 40 << 20, DEPTH = 3, SPAN_SECONDS = 5, AT_A_TIME = 24 };
#define SPAN_BYTES (4ll << 30)

enum row { WRITE_PLAIN, READ_PLAIN, MIXED_PLAIN, WRITE, READ, MIXED, ROWS };

/* `against` names another row of this table. */
static const struct sh_bench_row rows[ROWS] = {
    [WRITE_PLAIN] = {.name = "write, no sums"},
    [READ_PLAIN] = {.name = "read, no sums"},
    [MIXED_PLAIN] = {.name = "mixed, no sums"},
    [WRITE] = {.name = "write", .against = "write, no sums"},
    [READ] = {.name = "read", .against = "read, no sums"},
    [MIXED] = {.name = "mixed", .against = "mixed, no sums"},
};

struct bench {
    const struct sh_bench_options *options;
    int rank, world, nodes, node_rank, node_size;
    char *memory;   /* [DEPTH][extent] */
    int64_t extent; /* bytes */
    struct sh_tier_file *plain, *summed;
    int64_t written; /* bytes that this rank wrote before the measurements */
    int64_t span;    /* extents that a measurement moves on each rank */
    int round;
    struct sh_bench_times times[ROWS];
};

/* Returns the seconds since `begin`. */
static double since(int64_t begin)
{
    return sh_seconds_since(begin);
}

static char *buffer(const struct bench *b, int64_t i)
{
    return b->memory + i % DEPTH * b->extent;
}

/* Moves extents first .. first + n - 1 in one direction. After a failure, open tickets are left to the close. */
static sh_rc move_all(const struct bench *b, struct sh_tier_file *f, bool writing, int64_t first, int64_t n)
{
    int64_t ticket[DEPTH];

    for (int64_t i = 0; i < n + DEPTH; i++) {
        int64_t at = (first + i) * b->extent, *slot = &ticket[i % DEPTH];

        if (i >= DEPTH && i - DEPTH < n)
            SH_TRY(sh_tier_wait(f, *slot));
        if (i < n)
            SH_TRY(writing ? sh_tier_start_write(f, at, buffer(b, i), b->extent, slot)
                           : sh_tier_start_read(f, at, buffer(b, i), b->extent, slot));
    }
    return SH_OK;
}

static sh_rc write_all(const struct bench *b, struct sh_tier_file *f)
{
    return move_all(b, f, true, 0, b->span);
}

static sh_rc read_all(const struct bench *b, struct sh_tier_file *f)
{
    return move_all(b, f, false, 0, b->span);
}

/* Each extent arrives and leaves again, like an update that takes no time. */
static sh_rc mix_all(const struct bench *b, struct sh_tier_file *f)
{
    int64_t in[DEPTH], out[DEPTH];

    for (int64_t i = 0; i < b->span + DEPTH; i++) {
        int64_t came = i - 1;

        if (i >= DEPTH)
            SH_TRY(sh_tier_wait(f, out[i % DEPTH]));
        if (i < b->span)
            SH_TRY(sh_tier_start_read(f, i * b->extent, buffer(b, i), b->extent, &in[i % DEPTH]));
        if (came < 0 || came >= b->span)
            continue;
        SH_TRY(sh_tier_wait(f, in[came % DEPTH]));
        SH_TRY(sh_tier_start_write(f, came * b->extent, buffer(b, came), b->extent, &out[came % DEPTH]));
    }
    return SH_OK;
}

/* Writes the file in a loop, some extents at a time, until it was written twice or the time is over. Then sets the
 * number of extents that a measurement moves: as many of the written ones as fit its time. Local. */
static sh_rc write_before(struct bench *b, int64_t *span)
{
    int64_t n = b->options->bytes / b->extent, most = SPAN_BYTES / b->extent, done = 0, begin = sh_now_ns();
    double each;

    while (done == 0 || (done < 2 * n && since(begin) < (double)b->options->seconds)) {
        int64_t some = n - done % n < AT_A_TIME ? n - done % n : AT_A_TIME;

        SH_TRY(move_all(b, b->summed, true, done % n, some));
        done += some;
    }
    each = since(begin) / (double)done;
    b->written = done * b->extent;
    *span = done < n ? done : n;
    *span = *span < most ? *span : most;
    if ((double)*span * each > SPAN_SECONDS)
        *span = (int64_t)(SPAN_SECONDS / each);
    *span = *span < DEPTH ? DEPTH : *span;
    return SH_OK;
}

/* Collective. All ranks move as much as the one that moves least, so that they share the disk until the end. */
static sh_rc prepare(struct bench *b)
{
    struct sh_tier_settings s = {.folder = b->options->folder, .bytes = b->options->bytes, .verify = true};
    int64_t span = 0;
    double least;
    sh_rc rc;

    s.bytes -= s.bytes % SH_TIER_ALIGN;
    SH_TRY(sh_agree(sh_tier_open(&s, &b->summed)));
    sh_mesh_barrier();
    rc = write_before(b, &span);
    SH_TRY(sh_agree(rc));
    least = -(double)span;
    SH_TRY(sh_mesh_max(&least, 1));
    b->span = (int64_t)-least;
    s.bytes = b->span * b->extent;
    s.verify = false;
    rc = sh_tier_open(&s, &b->plain);
    return sh_agree(rc == SH_OK ? write_all(b, b->plain) : rc);
}

/* Collective: all ranks start together, and the time is that of the slowest. */
static sh_rc measure_row(struct bench *b, enum row row, struct sh_tier_file *f,
                         sh_rc (*move)(const struct bench *, struct sh_tier_file *))
{
    int64_t begin;
    double seconds;
    sh_rc rc;

    sh_mesh_barrier();
    begin = sh_now_ns();
    rc = move(b, f);
    seconds = since(begin);
    SH_TRY(sh_agree(rc));
    SH_TRY(sh_mesh_max(&seconds, 1));
    b->times[row].seconds[b->round] = seconds;
    b->times[row].bytes = b->span * b->extent * b->world * (move == mix_all ? 2 : 1);
    return SH_OK;
}

static sh_rc measure(struct bench *b)
{
    for (b->round = 0; b->round < b->options->repeat; b->round++) {
        SH_TRY(measure_row(b, WRITE_PLAIN, b->plain, write_all));
        SH_TRY(measure_row(b, WRITE, b->summed, write_all));
        SH_TRY(measure_row(b, READ_PLAIN, b->plain, read_all));
        SH_TRY(measure_row(b, READ, b->summed, read_all));
        SH_TRY(measure_row(b, MIXED_PLAIN, b->plain, mix_all));
        SH_TRY(measure_row(b, MIXED, b->summed, mix_all));
    }
    return SH_OK;
}

/* Bytes per second of one node. */
static double rate(const struct bench *b, enum row row)
{
    return (double)b->times[row].bytes / b->nodes / sh_bench_median(b->times[row].seconds, b->options->repeat);
}

/* Rank 0. */
static sh_rc report(const struct bench *b)
{
    const char *network = sh_tier_network(b->options->folder);
    char *note = network
                     ? sh_strfmt("\n%s, over a network: training accepts it with offload.allow_network=true", network)
                     : sh_strdup("");
    char ranks[SH_STR_SHORT], nodes[SH_STR_SHORT], rounds[SH_STR_SHORT];
    char *head = sh_strfmt("scratch files in %s, %s on %s, %.3f GB per rank, %.3f GB written before; %s\n"
                           "%d extents of %.3f MB per rank, %d under way; mixed: bytes of both directions%s\n"
                           "for a node, with sums: --offload.rates=file=%.4g/%.4g,mixed=%.4g",
                           b->options->folder, sh_str_plural(b->world, "rank", ranks),
                           sh_str_plural(b->nodes, "node", nodes), (double)b->options->bytes / 1e9,
                           (double)b->written / 1e9, sh_str_plural(b->options->repeat, "round", rounds), (int)b->span,
                           (double)b->extent / 1e6, DEPTH, note, rate(b, READ), rate(b, WRITE), rate(b, MIXED));
    sh_rc rc = sh_bench_report("tier", head, rows, b->times, ROWS, b->options->repeat, b->options);

    free(head);
    free(note);
    return rc;
}

/* Collective. One rank of each node checks for all of its ranks. */
static sh_rc check(struct bench *b)
{
    int64_t more = b->options->bytes < SPAN_BYTES ? b->options->bytes : SPAN_BYTES;
    long long nodes;
    int smallest;

    sh_mesh_world(&b->rank, &b->world);
    SH_TRY(sh_mesh_nodes(&b->node_rank, &b->node_size, &smallest));
    nodes = b->node_rank == 0;
    SH_TRY(sh_mesh_sum_i64(&nodes, 1));
    b->nodes = (int)nodes;
    return sh_agree(b->node_rank == 0
                        ? sh_tier_check(b->options->folder, sh_size_mul(b->options->bytes + more, b->node_size), true)
                        : SH_OK);
}

/* Fills with arbitrary numbers other than zero: a disk may be fast with zeros. */
static sh_rc make_memory(struct bench *b)
{
    int64_t third = b->options->bytes / DEPTH;
    uint64_t *words;

    b->extent = third < EXTENT_BYTES ? third - third % SH_TIER_ALIGN : EXTENT_BYTES;
    b->memory = aligned_alloc(SH_TIER_ALIGN, (size_t)(DEPTH * b->extent));
    if (!b->memory)
        return sh_fail(SH_E_MEMORY, "cannot allocate %lld bytes for transfers", (long long)(DEPTH * b->extent));
    words = (uint64_t *)(void *)b->memory;
    for (int64_t i = 0; i < DEPTH * b->extent / 8; i++)
        words[i] = sh_mix64((uint64_t)i + 1);
    return SH_OK;
}

/* Collective. The struct is on the heap: its times are too large for a stack. Files are closed before the memory is
 * freed, since their threads may still use it. */
sh_rc sh_bench_tier(const struct sh_config *cfg, const struct sh_bench_options *options)
{
    struct bench *b;
    sh_rc rc;

    if (!options->folder)
        return sh_bench_tier_host(cfg, options);
    b = sh_calloc(1, sizeof *b);
    b->options = options;
    SH_TRY_OUT(sh_agree(sh_bench_check("tier", options)));
    SH_TRY_OUT(check(b));
    SH_TRY_OUT(sh_agree(make_memory(b)));
    SH_TRY_OUT(prepare(b));
    SH_TRY_OUT(measure(b));
    rc = sh_agree(b->rank == 0 ? report(b) : SH_OK);
out:
    sh_tier_close(b->plain);
    sh_tier_close(b->summed);
    free(b->memory);
    free(b);
    return rc;
}

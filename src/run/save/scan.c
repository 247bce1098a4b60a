#include "src/run/save/scan.h"

#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/run/run.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK = 1 << 16, BLOCK_BYTES = 1 << 18 };

struct sh_scan {
    const struct sh_run *r;
    void *queue;
    uint64_t *slots; /* [SH_DAMAGE_SLOTS] pinned; NULL: the host scans by itself */
    int n_slots;     /* asked for and not read yet */
    struct asked {
        uint64_t *to;
        int64_t first;
    } asked[SH_DAMAGE_SLOTS];
};

/* A device that cannot even count is lost, and the others wait in a collective: end the job. */
static void must(sh_rc rc)
{
    if (rc != SH_OK)
        sh_stop(rc);
}

struct sh_scan *sh_scan_open(const struct sh_run *r)
{
    struct sh_scan *scan = sh_calloc(1, sizeof *scan);
    char *memory = NULL;

    scan->r = r;
    scan->queue = sh_exec_queue(r->exec);
    if (r->device->kernels->count_bad)
        must(r->device->host_create(SH_DAMAGE_SLOTS * sizeof *scan->slots, &memory));
    scan->slots = (uint64_t *)(void *)memory;
    return scan;
}

static void add(struct asked a, uint64_t number)
{
    *a.to += a.first ? sh_mix64(number ^ (uint64_t)a.first) : number;
}

/* Kernels put their counts into slots on the device. Reading drains the queue, so it is done once for many slots. */
static void read_slots(struct sh_scan *scan)
{
    must(scan->r->device->kernels->take_slots(scan->slots, scan->n_slots, scan->queue));
    scan->r->device->queue_drain(scan->queue);
    for (int i = 0; i < scan->n_slots; i++)
        add(scan->asked[i], scan->slots[i]);
    scan->n_slots = 0;
}

void sh_scan_close(struct sh_scan *scan)
{
    if (scan->n_slots)
        read_slots(scan);
    if (scan->slots)
        scan->r->device->host_destroy((char *)scan->slots, SH_DAMAGE_SLOTS * sizeof *scan->slots);
    free(scan);
}

/* A full set of slots is read first. */
static int next_slot(struct sh_scan *scan, struct asked a)
{
    if (scan->n_slots == SH_DAMAGE_SLOTS)
        read_slots(scan);
    scan->asked[scan->n_slots] = a;
    return scan->n_slots++;
}

/* Look at the numbers through a buffer that stays in the cache; halves are joined in it. */
static bool any_bad(const struct sh_run *r, struct sh_floats data, int64_t n)
{
    int bad = 0;

#pragma omp parallel reduction(+ : bad)
    {
        /* Each thread ORs into a private copy of `bad`; the reduction adds what the threads found. */
        float *buffer = sh_calloc(BLOCK, sizeof *buffer);

#pragma omp for schedule(static)
        for (int64_t at = 0; at < n; at += BLOCK) {
            int64_t here = n - at < BLOCK ? n - at : BLOCK;

            sh_exec_get_floats(r->exec, buffer, sh_floats_at(data, at), here);
            for (int64_t i = 0; i < here; i++)
                bad |= !isfinite(buffer[i]);
        }
        free(buffer);
    }
    return bad != 0;
}

/* The sum does not depend on which thread takes which block; the block's number is mixed into its hash. */
static uint64_t hash_data(const char *data, int64_t bytes)
{
    int64_t blocks = (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES;
    uint64_t sum = 0;

#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t left = bytes - b * BLOCK_BYTES, n = left < BLOCK_BYTES ? left : BLOCK_BYTES;

        sum += sh_mix64(sh_hash64(data + b * BLOCK_BYTES, (size_t)n) + (uint64_t)b + 1);
    }
    return sum;
}

void sh_scan_bad(struct sh_scan *scan, struct sh_floats x, int64_t n, uint64_t *to)
{
    struct asked a = {.to = to};

    if (scan->slots)
        must(scan->r->device->kernels->count_bad(x, n, next_slot(scan, a), scan->queue));
    else
        add(a, any_bad(scan->r, x, n));
}

void sh_scan_sum(struct sh_scan *scan, const void *data, int64_t bytes, int64_t first, uint64_t *to)
{
    struct asked a = {.to = to, .first = first};

    if (scan->slots)
        must(scan->r->device->kernels->sum_words(data, bytes, next_slot(scan, a), scan->queue));
    else
        add(a, hash_data(data, bytes));
}

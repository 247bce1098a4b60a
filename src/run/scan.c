#include "src/run/scan.h"

#include "src/base/mem.h"
#include "src/run/run.h"

#include <stdlib.h>
#include <string.h>

struct sh_scan {
    const struct sh_run *r;
    void *queue;
    uint64_t *slots;  /* [SH_DAMAGE_SLOTS] pinned */
    int n_slots;      /* asked for and not read yet */
    uint64_t *number; /* all that were read */
    int n, cap;
};

/* A device that cannot even count is lost, and the others wait in a collective: end the job. */
static void must(sh_rc rc)
{
    if (rc != SH_OK)
        sh_stop(rc);
}

bool sh_scan_can(const struct sh_run *r)
{
    return r->device->kernels->count_bad != NULL;
}

struct sh_scan *sh_scan_open(const struct sh_run *r)
{
    struct sh_scan *scan = sh_calloc(1, sizeof *scan);
    char *memory;

    *scan = (struct sh_scan){.r = r, .queue = sh_exec_queue(r->exec)};
    must(r->device->host_create(SH_DAMAGE_SLOTS * sizeof *scan->slots, &memory));
    scan->slots = (uint64_t *)(void *)memory;
    return scan;
}

void sh_scan_close(struct sh_scan *scan)
{
    scan->r->device->host_destroy((char *)scan->slots, SH_DAMAGE_SLOTS * sizeof *scan->slots);
    free(scan->number);
    free(scan);
}

/* Kernels put their counts into slots on the device. Reading drains the queue, so it is done once for many slots. */
static void read_slots(struct sh_scan *scan)
{
    must(scan->r->device->kernels->take_slots(scan->slots, scan->n_slots, scan->queue));
    scan->r->device->queue_drain(scan->queue);
    for (int i = 0; i < scan->n_slots; i++) {
        scan->number = sh_grow(scan->number, scan->n, &scan->cap, sizeof *scan->number);
        scan->number[scan->n++] = scan->slots[i];
    }
    scan->n_slots = 0;
}

/* A full set of slots is read first; the order of the numbers is that of the requests. */
static int next_slot(struct sh_scan *scan)
{
    if (scan->n_slots == SH_DAMAGE_SLOTS)
        read_slots(scan);
    return scan->n_slots++;
}

/* Count of numbers in x that are not finite; the count appears in sh_scan_read() at this request's position. */
void sh_scan_bad(struct sh_scan *scan, struct sh_floats x, int64_t n)
{
    must(scan->r->device->kernels->count_bad(x, n, next_slot(scan), scan->queue));
}

void sh_scan_sum(struct sh_scan *scan, const void *data, int64_t bytes)
{
    must(scan->r->device->kernels->sum_words(data, bytes, next_slot(scan), scan->queue));
}

const uint64_t *sh_scan_read(struct sh_scan *scan)
{
    if (scan->n_slots)
        read_slots(scan);
    return scan->number;
}

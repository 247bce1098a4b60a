#include "src/run/look.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

struct sh_look {
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

bool sh_look_can(const struct sh_run *r)
{
    return r->device->kernels->count_bad != NULL;
}

struct sh_look *sh_look_open(const struct sh_run *r)
{
    struct sh_look *look = sh_calloc(1, sizeof *look);
    char *memory;

    *look = (struct sh_look){.r = r, .queue = sh_exec_queue(r->exec)};
    must(r->device->host_create(SH_DAMAGE_SLOTS * sizeof *look->slots, &memory));
    look->slots = (uint64_t *)(void *)memory;
    return look;
}

void sh_look_close(struct sh_look *look)
{
    look->r->device->host_destroy((char *)look->slots, SH_DAMAGE_SLOTS * sizeof *look->slots);
    free(look->number);
    free(look);
}

/* Kernels put their counts into slots on the device. Reading drains the queue, so it is done once for many slots. */
static void read_slots(struct sh_look *look)
{
    must(look->r->device->kernels->take_slots(look->slots, look->n_slots, look->queue));
    look->r->device->queue_drain(look->queue);
    for (int i = 0; i < look->n_slots; i++) {
        look->number = sh_grow(look->number, look->n, &look->cap, sizeof *look->number);
        look->number[look->n++] = look->slots[i];
    }
    look->n_slots = 0;
}

/* A full set of slots is read first; the order of the numbers is that of the requests. */
static int next_slot(struct sh_look *look)
{
    if (look->n_slots == SH_DAMAGE_SLOTS)
        read_slots(look);
    return look->n_slots++;
}

/* Count of numbers in x that are not finite; the count appears in sh_look_read() at this request's position. */
void sh_look_bad(struct sh_look *look, struct sh_floats x, int64_t n)
{
    must(look->r->device->kernels->count_bad(x, n, next_slot(look), look->queue));
}

void sh_look_sum(struct sh_look *look, const void *data, int64_t bytes)
{
    must(look->r->device->kernels->sum_words(data, bytes, next_slot(look), look->queue));
}

const uint64_t *sh_look_read(struct sh_look *look)
{
    if (look->n_slots)
        read_slots(look);
    return look->number;
}

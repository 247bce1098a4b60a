#include "io/move/ring.h"

#include "io/file/direct.h"
#include "src/base/mem.h"
#include "src/mesh/segment.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A sleeper rechecks at this interval, since give_up may fall between its check and its sleep. */
enum { NAP_NS = 50000000 };
enum { SLOTS = SH_MOVE_RING_SLOTS, SLOT_BYTES = SH_MOVE_CHUNK_BYTES + 2 * SH_FILE_ALIGN };

/* State of a slot, padded to a cache line. The kernel can wait on its words, across processes. */
struct state {
    _Alignas(SH_CACHE_LINE) _Atomic uint32_t round; /* chunks written so far */
    _Atomic uint32_t filled;                        /* bytes of the current one */
};

struct head {
    uint64_t mark; /* identifies the segment */
    _Atomic uint32_t given_up;
    struct state slot[SLOTS];
};
enum { HEAD_BYTES = 4096, RING_BYTES = HEAD_BYTES + SLOTS * SLOT_BYTES };
_Static_assert(sizeof(struct head) <= HEAD_BYTES, "the slots begin after the head, at a page");

struct sh_move_ring {
    struct head *head;
};

/* A ring in shared memory through which the ranks of a node pass chunks to the rank that writes. Chunk `job` uses slot
 * job % SLOTS in round job / SLOTS:
 *  producers  enter (wait for the round), fill, add
 *  writer     wait (until all bytes are there), write, leave (next round)
 * Collective in `group`; *out stays NULL if memory cannot be shared. */
sh_rc sh_move_ring_create(MPI_Comm group, struct sh_move_ring **out)
{
    int fd;
    SH_TRY(sh_segment_share(group, RING_BYTES, &fd));
    if (fd < 0)
        return SH_OK;
    void *map = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int error = errno;
    close(fd);
    if (map == MAP_FAILED)
        return sh_fail(SH_E_MEMORY, "cannot map %d bytes to pass a checkpoint to its writer: %s", RING_BYTES,
                       strerror(error));
    *out = sh_calloc(1, sizeof **out);
    (*out)->head = map;
    return SH_OK;
}

void sh_move_ring_destroy(struct sh_move_ring *ring)
{
    if (ring)
        munmap(ring->head, RING_BYTES);
    free(ring);
}

/* Wakes all waiters: several producers may wait for one slot. */
static void wake(_Atomic uint32_t *word)
{
    /* The word lies in shared memory, so the futex is not a private one. */
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Waits until *word is `wanted`; false: given up. */
static bool wait_until(struct sh_move_ring *ring, _Atomic uint32_t *word, uint32_t wanted)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    for (uint32_t seen; (seen = atomic_load(word)) != wanted;) {
        if (atomic_load(&ring->head->given_up))
            return false;
        syscall(SYS_futex, word, FUTEX_WAIT, seen, &nap, NULL, 0);
    }
    return true;
}

/* NULL: given up by some rank. Several ranks may enter the same job and fill different parts of it. */
char *sh_move_ring_enter(struct sh_move_ring *ring, int64_t job)
{
    if (!wait_until(ring, &ring->head->slot[job % SLOTS].round, (uint32_t)(job / SLOTS)))
        return NULL;
    return (char *)ring->head + HEAD_BYTES + job % SLOTS * SLOT_BYTES;
}

void sh_move_ring_add(struct sh_move_ring *ring, int64_t job, int64_t bytes)
{
    atomic_fetch_add(&ring->head->slot[job % SLOTS].filled, (uint32_t)bytes);
    wake(&ring->head->slot[job % SLOTS].filled);
}

/* The writer's side: returns false if a producer has failed. */
bool sh_move_ring_wait(struct sh_move_ring *ring, int64_t job, int64_t bytes)
{
    return wait_until(ring, &ring->head->slot[job % SLOTS].filled, (uint32_t)bytes);
}

void sh_move_ring_leave(struct sh_move_ring *ring, int64_t job)
{
    struct state *slot = &ring->head->slot[job % SLOTS];
    /* The order matters: once the round has moved on, a producer may add to `filled`. */
    atomic_store(&slot->filled, 0);
    atomic_fetch_add(&slot->round, 1);
    wake(&slot->round);
}

/* Call after a failure on any rank, so that none waits for bytes that never come. */
void sh_move_ring_give_up(struct sh_move_ring *ring)
{
    atomic_store(&ring->head->given_up, 1);
    for (int i = 0; i < SLOTS; i++) {
        wake(&ring->head->slot[i].round);
        wake(&ring->head->slot[i].filled);
    }
}

/* The CPU as a device: work is done where it is put, and an event is the time of its mark. */
#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/device/device.h"

#include "kernels/rows.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE_BYTES = 1 << 21 };

/* `aligned`: the byte of it that lies on a huge page boundary. */
static sh_rc reserve(int64_t bytes, int64_t aligned, char **memory)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = ((size_t)bytes + page - 1) / page * page, before;
    char *p = mmap(NULL, whole + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return sh_fail(SH_E_MEMORY, "the arena of %lld bytes cannot be allocated: %s", (long long)bytes,
                       strerror(errno));
    before = -(uintptr_t)(p + aligned) % HUGE_PAGE_BYTES;
    *memory = p + before;
    if ((before && munmap(p, before)) || munmap(p + before + whole, HUGE_PAGE_BYTES - before))
        return sh_fail(SH_E_BUG, "an arena of %lld bytes, %lld of them before the segment, does not end at a page: %s",
                       (long long)bytes, (long long)aligned, strerror(errno));
    return SH_OK;
}

/* Zeroed, because the pages are new; touched only when used, so a plan may be larger than what a test uses. */
static sh_rc memory_create(int64_t bytes, char **memory)
{
    return reserve(bytes, 0, memory);
}

/* The segment is mapped over the end of the reserved range, so that kernels see own and shared memory as one arena: one
 * base address and offsets from it. */
static sh_rc arena_create(int64_t own_bytes, int64_t segment_bytes, int segment_fd, char **arena)
{
    int64_t bytes = own_bytes + segment_bytes;
    char *p;

    SH_TRY(reserve(bytes, segment_bytes ? own_bytes : 0, &p)); /* shared memory gets huge pages only when aligned */
    if (segment_bytes && mmap(p + own_bytes, (size_t)segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                              segment_fd, 0) == MAP_FAILED) {
        munmap(p, (size_t)bytes);
        return sh_fail(SH_E_MEMORY, "the node's segment of %lld bytes cannot be mapped: %s", (long long)segment_bytes,
                       strerror(errno));
    }
    madvise(p, (size_t)bytes, MADV_HUGEPAGE); /* a hint: fewer faults at the start, fewer misses later */
    *arena = p;
    return SH_OK;
}

/* One call for both parts of an arena: unmapping does not ask which file a page belongs to. */
static void memory_destroy(char *memory, int64_t bytes)
{
    munmap(memory, (size_t)bytes);
}

/* Threads of a process share its memory; a GPU must be chosen in each thread. */
static void attach(void)
{
}

/* NULL is the queue of the CPU. Callers test it to see whether calls are asynchronous. */
static void *queue_create(bool urgent)
{
    (void)urgent;
    return NULL;
}

/* Calls are complete when they return, so there is never anything to wait for or to free. */
static void queue_nothing(void *queue)
{
    (void)queue;
}

/* The label is for profilers of GPUs. */
static sh_rc run_cpu(const struct sh_op_call *call, const char *label)
{
    (void)label;
    return sh_rows_run(sh_kernels_cpu.run[call->kind], call);
}

static sh_rc run_ref(const struct sh_op_call *call, const char *label)
{
    (void)label;
    return sh_rows_run(sh_kernels_ref.run[call->kind], call);
}

/* memmove: on the CPU the ranges may overlap. */
static void copy(void *queue, void *to, const void *from, int64_t bytes)
{
    (void)queue;
    if (bytes && to != from)
        memmove(to, from, (size_t)bytes);
}

/* An event is its time, in ns. */
static void *event_create(bool timed)
{
    (void)timed;
    return sh_calloc(1, sizeof(int64_t));
}

/* All work before the mark is done, so the time is now. */
static void event_mark(void *event, void *queue)
{
    (void)queue;
    *(int64_t *)event = sh_now_ns();
}

/* The work that the event marks is already done, because every call is done on the spot. */
static void queue_after(void *queue, void *event)
{
    (void)queue;
    (void)event;
}

static bool event_is_done(void *event)
{
    (void)event;
    return true;
}

static void event_wait(void *event)
{
    (void)event;
}

static int64_t event_ns(void *event)
{
    return *(int64_t *)event;
}

/* Exact here; GPUs round to a float. */
static int64_t event_span_ns(void *begin, void *end)
{
    return event_ns(end) - event_ns(begin);
}

/* The two CPU devices differ only in their kernels. */
#define ON_THE_SPOT                                                                                                \
    .attach = attach, .arena_create = arena_create, .arena_destroy = memory_destroy, .host_create = memory_create, \
    .host_destroy = memory_destroy, .queue_create = queue_create, .queue_destroy = queue_nothing,                  \
    .queue_drain = queue_nothing, .copy = copy, .put = copy, .get = copy, .event_create = event_create,            \
    .event_destroy = free, .event_mark = event_mark, .queue_after = queue_after, .event_is_done = event_is_done,   \
    .event_wait = event_wait, .event_ns = event_ns, .event_span_ns = event_span_ns

const struct sh_device sh_device_cpu = {.name = "cpu", .kernels = &sh_kernels_cpu, .run = run_cpu, ON_THE_SPOT};
const struct sh_device sh_device_ref = {.name = "ref", .kernels = &sh_kernels_ref, .run = run_ref, ON_THE_SPOT};

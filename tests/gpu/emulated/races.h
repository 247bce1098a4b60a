/* A race detector for emulated kernels, part of cuda_on_cpu.cc: with SH_EMULATED_RACES defined, every CUDA thread is
 * a fiber of ThreadSanitizer, and only the barriers below order them. So a race is found in any order of execution,
 * with a report of both places and exit status 66. Only the kernels are compiled with -fsanitize=thread; this runtime
 * is not, so its own accesses between threads are not attributed to them.
 *
 * What is ordered: the threads of a warp at its barriers, those of a block at its barriers, a launch after the
 * previous one, as in one stream. Blocks are not ordered, but stacks and shared memory are reused: even and odd
 * blocks have separate ones, and a block is ordered after the previous one of its parity. So a race between two
 * blocks is found if one of them is even and the other odd.
 *
 * Without SH_EMULATED_RACES all of this is empty. */
#ifndef SH_TESTS_GPU_EMULATED_RACES_H
#define SH_TESTS_GPU_EMULATED_RACES_H

#include <cstddef>

#ifdef SH_EMULATED_RACES
#include <sys/mman.h>

extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *at);
void __tsan_release(void *at);
}

namespace races
{
constexpr bool ON = true;
constexpr unsigned THREADS = 1024, NO_SYNC = 1;
constexpr size_t POOL = 1 << 20, GAP = 128;

/* Its address represents a barrier. ThreadSanitizer keeps one per 8 bytes. */
struct alignas(8) meeting {
    char bytes[8];
};

struct parity {
    void *fibers[THREADS], *keeper;
    meeting begin, end, block[2], warps[THREADS / 32][2];
    char *pool; /* shared memory */
    size_t used;
};

inline parity both[2];
inline parity *now = &both[0];
inline void *scheduler;
inline meeting launched;

/* The scheduler makes the pools: ThreadSanitizer also intercepts mmap, and counts it as a write. */
inline void begin_launch()
{
    scheduler = __tsan_get_current_fiber();
    for (parity &p : both)
        if (!p.pool)
            p.pool =
                static_cast<char *>(mmap(nullptr, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    __tsan_release(&launched);
}

inline void end_launch()
{
    for (parity &p : both)
        __tsan_acquire(&p.end);
}

/* A fiber that only sees blocks of this parity orders this block after the previous one. */
inline void begin_block(size_t turn)
{
    now = &both[turn % 2];
    now->used = 0;
    if (!now->keeper)
        now->keeper = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(now->keeper, NO_SYNC);
    __tsan_acquire(&now->end);
    __tsan_release(&now->begin);
    __tsan_switch_to_fiber(scheduler, NO_SYNC);
}

inline void to_thread(unsigned thread)
{
    if (!now->fibers[thread])
        now->fibers[thread] = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(now->fibers[thread], NO_SYNC);
}

inline void to_scheduler()
{
    __tsan_switch_to_fiber(scheduler, NO_SYNC);
}

inline void begin_thread()
{
    __tsan_acquire(&launched);
    __tsan_acquire(&now->begin);
}

inline void end_thread()
{
    __tsan_release(&now->end);
}

/* The barrier that thread `thread` reaches, its `count`-th, and leaves once all have reached it. Consecutive ones
 * differ: otherwise a thread that leaves late would be ordered after what others do on their way to the next one. */
inline void *barrier(bool of_block, unsigned thread, unsigned count)
{
    return of_block ? &now->block[count % 2] : &now->warps[thread / 32][count % 2];
}

inline void come(void *at)
{
    __tsan_release(at);
}

inline void go(void *at)
{
    __tsan_acquire(at);
}

/* Filled by plain stores: ThreadSanitizer intercepts memset and would count it as the thread's access. */
inline void *shared(size_t bytes, unsigned char fill)
{
    char *data = now->pool + now->used;
    now->used += (bytes + GAP - 1) / GAP * GAP + GAP;
    for (size_t i = 0; i < bytes; i++)
        const_cast<volatile char *>(data)[i] = static_cast<char>(fill);
    return data;
}

inline unsigned set()
{
    return now == &both[1];
}
} // namespace races

#else

namespace races
{
constexpr bool ON = false;
inline void begin_launch()
{
}
inline void end_launch()
{
}
inline void begin_block(size_t)
{
}
inline void begin_thread()
{
}
inline void end_thread()
{
}
inline void *barrier(bool, unsigned, unsigned)
{
    return nullptr;
}
inline void come(void *)
{
}
inline void go(void *)
{
}
inline void *shared(size_t, unsigned char)
{
    return nullptr;
}
inline unsigned set()
{
    return 0;
}
} // namespace races
#endif
#endif

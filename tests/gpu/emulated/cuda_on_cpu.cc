#include "tests/gpu/emulated/cuda_on_cpu.h"
#include "tests/gpu/emulated/emulated.h"
#include "tests/gpu/emulated/races.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <sys/mman.h>
#include <ucontext.h>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace
{
using sh_emulated::place;

constexpr unsigned WARP = 32, MAX_THREADS = 1024, MOST_DELAYED = 256;
constexpr size_t STACK = 128 << 10, GUARD = 64 << 10;

enum state { READY, AT_WARP, AT_BLOCK, ENDED };

struct fiber {
    ucontext_t at;
#ifdef __x86_64__
    void *jump[5];
#else
    jmp_buf jump;
#endif
    void *fake_stack; /* for the address sanitizer */
    char *stack;
    enum state state;
    place where;
    uint3 index;
    unsigned exchanges, waits[2]; /* [of the block] */
    bool started;
};

struct piece {
    const void *key;
    std::unique_ptr<void, void (*)(void *)> data;
};

fiber all_fibers[2][MAX_THREADS], *fibers, scheduler; /* [parity of the block, for races.h] */
unsigned current, n_threads;
unsigned warp_turn[MAX_THREADS];                /* the threads of each warp, in the order in which they run */
uint64_t boxes[2][MAX_THREADS / WARP][2][WARP]; /* likewise */
std::vector<piece> pieces;                      /* of shared memory */
size_t dynamic_bytes, shared_bytes;
const char *kernel_name;
const std::function<void()> *thread_body;
enum sh_emulated_order order;
uint64_t dice;

/* From the scheduler to a fiber and back. swapcontext() makes two system calls and is 40 times slower than a long
 * jump, but the sanitizers take a long jump for the end of all frames in between. */
#ifdef SH_EMULATED_RACES
void enter(fiber &f)
{
    races::to_thread(current);
    swapcontext(&scheduler.at, &f.at);
}

void arrive(fiber &)
{
}

void leave(fiber &f)
{
    races::to_scheduler();
    swapcontext(&f.at, &scheduler.at);
}
#elif defined WITH_ASAN
const void *host_stack;
size_t host_stack_bytes;

void enter(fiber &f)
{
    __sanitizer_start_switch_fiber(&scheduler.fake_stack, f.stack, STACK);
    swapcontext(&scheduler.at, &f.at);
    __sanitizer_finish_switch_fiber(scheduler.fake_stack, nullptr, nullptr);
}

void arrive(fiber &f)
{
    __sanitizer_finish_switch_fiber(f.fake_stack, &host_stack, &host_stack_bytes);
}

void leave(fiber &f)
{
    __sanitizer_start_switch_fiber(&f.fake_stack, host_stack, host_stack_bytes);
    swapcontext(&f.at, &scheduler.at);
    arrive(f);
}
#else
/* The compiler's own jump saves three words, where the library's also looks for handlers of cancellation. */
#ifdef __x86_64__
#define SAVE(f) __builtin_setjmp((f).jump)
#define JUMP(f) __builtin_longjmp((f).jump, 1)
#else
#define SAVE(f) _setjmp((f).jump)
#define JUMP(f) _longjmp((f).jump, 1)
#endif

[[noreturn, gnu::noinline]] void jump(fiber &f)
{
    JUMP(f);
}

[[gnu::noinline]] void enter(fiber &f)
{
    if (SAVE(scheduler))
        return;
    if (f.started)
        jump(f);
    f.started = true;
    setcontext(&f.at);
}

void arrive(fiber &)
{
}

[[gnu::noinline]] void leave(fiber &f)
{
    if (!SAVE(f))
        jump(scheduler);
}
#endif

[[noreturn]] void die(const char *what)
{
    fprintf(stderr, "emulated kernel %s: %s\n", kernel_name, what);
    abort();
}

/* A fiber lives as long as the process and runs one thread after another. */
void live()
{
    arrive(fibers[current]);
    for (;;) {
        races::begin_thread();
        (*thread_body)();
        races::end_thread();
        fibers[current].state = ENDED;
        fibers[current].where = {"", 0};
        leave(fibers[current]);
    }
}

/* Below the stack are pages that may not be touched. Stacks begin at different places of their pages, or all of them
 * would share the same few lines of the caches. */
void make_fiber(fiber &f)
{
    constexpr size_t COLOURS = 64, COLOUR = 9 * 64;
    void *room = mmap(nullptr, STACK + GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED || mprotect((char *)room + GUARD, STACK, PROT_READ | PROT_WRITE))
        die("no memory for the stack of a thread");
    f.stack = (char *)room + GUARD;
    getcontext(&f.at);
    f.at.uc_stack.ss_sp = f.stack;
    f.at.uc_stack.ss_size = STACK - (size_t)(&f - fibers) % COLOURS * COLOUR;
    f.at.uc_link = nullptr;
    makecontext(&f.at, live, 0);
}

void begin_threads()
{
    for (unsigned i = 0; i < n_threads; i++) {
        fiber &f = fibers[i];
        if (!f.stack)
            make_fiber(f);
        f.state = READY;
        f.exchanges = f.waits[0] = f.waits[1] = 0;
        f.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
    }
}

/* splitmix64: Steele, Lea, Flood, OOPSLA 2014. */
unsigned roll(size_t sides)
{
    uint64_t z = dice += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (unsigned)((z ^ (z >> 31)) % sides);
}

void put_in_order(std::vector<unsigned> &turn, size_t n)
{
    turn.resize(n);
    std::iota(turn.begin(), turn.end(), 0u);
    if (order == SH_EMULATED_BACKWARD)
        std::reverse(turn.begin(), turn.end());
    for (size_t i = n; order == SH_EMULATED_SHUFFLED && i > 1; i--)
        std::swap(turn[i - 1], turn[roll(i)]);
}

bool same_place(const place &a, const place &b)
{
    return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file));
}

/* Let threads [first, first + n) continue once all of them wait at the same place. */
bool release(unsigned first, unsigned n, enum state waiting)
{
    for (unsigned i = first; i < first + n; i++)
        if (fibers[i].state != waiting || !same_place(fibers[i].where, fibers[first].where))
            return false;
    for (unsigned i = first; i < first + n; i++)
        fibers[i].state = READY;
    return true;
}

/* A warp runs as far as it can before another one does, which exposes a block barrier that is missing between warps. */
void run_warp(unsigned first)
{
    do {
        for (unsigned n = first; n < first + WARP; n++) {
            unsigned i = warp_turn[n];
            if (fibers[i].state != READY)
                continue;
            current = i;
            threadIdx = fibers[i].index;
            enter(fibers[i]);
        }
    } while (release(first, WARP, AT_WARP));
}

void run_warps(const std::vector<unsigned> &turn)
{
    unsigned n[MAX_THREADS / WARP] = {0};
    for (unsigned i : turn)
        warp_turn[i / WARP * WARP + n[i / WARP]++] = i;
    for (unsigned i : turn)
        if (fibers[i].state == READY)
            run_warp(i / WARP * WARP);
}

bool all_ended()
{
    for (unsigned i = 0; i < n_threads; i++)
        if (fibers[i].state != ENDED)
            return false;
    return true;
}

void describe(const char *what, unsigned i)
{
    const fiber &f = fibers[i];
    fprintf(stderr, "%s thread %u ", what, i);
    if (f.state == ENDED)
        fprintf(stderr, "has ended");
    else
        fprintf(stderr, "waits for its %s at %s:%d", f.state == AT_WARP ? "warp" : "block", f.where.file, f.where.line);
}

/* No thread can continue: two of them wait for each other at different places, or for one that has ended. Trouble in
 * a warp is reported before that of its block, which it causes. */
[[noreturn]] void tell_divergence()
{
    unsigned a = 0, b = 0;
    for (unsigned i = n_threads; i-- > 0;)
        if (fibers[i].state == AT_WARP || (fibers[a].state != AT_WARP && fibers[i].state == AT_BLOCK))
            a = i;
    unsigned first = fibers[a].state == AT_WARP ? a / WARP * WARP : 0;
    unsigned n = fibers[a].state == AT_WARP ? WARP : n_threads;
    for (unsigned i = first; i < first + n; i++)
        if (fibers[i].state != fibers[a].state || !same_place(fibers[i].where, fibers[a].where))
            b = i;
    fprintf(stderr, "emulated kernel %s, block %u,%u,%u: divergent barrier:", kernel_name, blockIdx.x, blockIdx.y,
            blockIdx.z);
    describe("", a);
    describe(",", b);
    fputs("\n", stderr);
    abort();
}

void run_block(std::vector<unsigned> &turn)
{
    begin_threads();
    do {
        put_in_order(turn, n_threads);
        run_warps(turn);
    } while (release(0, n_threads, AT_BLOCK));
    if (!all_ended())
        tell_divergence();
    pieces.clear();
    shared_bytes = 0;
}

void check_launch(dim3 grid)
{
    if (n_threads == 0 || n_threads > MAX_THREADS || n_threads % WARP)
        die("a block wants a multiple of 32 threads, 1024 at most");
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        die("a grid has at least 1 block, and at most 2^31-1 x 65535 x 65535");
    if (dynamic_bytes > sh_emulated::shared_limit())
        die("more shared memory than a block can have");
}
} // namespace

/* Programs that have only kernels lack the other doubles. */
size_t sh_emulated::shared_limit()
{
    const char *kib = getenv("SHERD_EMULATED_SHARED_KIB");
    return (size_t)(kib ? atol(kib) : 227) << 10;
}

extern "C" void sh_emulated_set_order(enum sh_emulated_order next)
{
    order = next;
}

void sh_emulated::launch(const char *kernel, dim3 grid, dim3 block, size_t shared, const std::function<void()> &thread)
{
    std::vector<unsigned> blocks, turn;

    kernel_name = kernel;
    thread_body = &thread;
    gridDim = grid;
    blockDim = block;
    n_threads = block.x * block.y * block.z;
    dynamic_bytes = shared;
    check_launch(grid);
    put_in_order(blocks, (size_t)grid.x * grid.y * grid.z);
    races::begin_launch();
    for (size_t i = 0; i < blocks.size(); i++) {
        unsigned b = blocks[i];
        blockIdx = {b % grid.x, b / grid.x % grid.y, b / (grid.x * grid.y)};
        races::begin_block(i);
        fibers = all_fibers[races::set()];
        run_block(turn);
    }
    races::end_launch();
}

int (*sh_emulated_launch)(void *stream, void (*work)(void *arg), void *arg);

namespace
{
struct launched {
    const char *kernel;
    dim3 grid, block;
    size_t shared;
    std::function<void()> thread;
};

void run_launched(void *arg)
{
    std::unique_ptr<launched> l(static_cast<launched *>(arg));
    sh_emulated::launch(l->kernel, l->grid, l->block, l->shared, l->thread);
}
} // namespace

int sh_emulated::put(void *stream, const char *kernel, dim3 grid, dim3 block, size_t shared,
                     std::function<void()> thread)
{
    auto *l = new launched{kernel, grid, block, shared, std::move(thread)};
    if (sh_emulated_launch)
        return sh_emulated_launch(stream, run_launched, l);
    run_launched(l);
    return 0;
}

static void wait(enum state state, place at)
{
    fiber &f = fibers[current];
    void *barrier = races::barrier(state == AT_BLOCK, current, f.waits[state == AT_BLOCK]++);
    f.state = state;
    f.where = at;
    races::come(barrier);
    leave(f);
    races::go(barrier);
}

void sh_emulated::wait_block(place at)
{
    wait(AT_BLOCK, at);
}

void sh_emulated::wait_warp(place at)
{
    wait(AT_WARP, at);
}

unsigned sh_emulated::lane()
{
    return current % WARP;
}

uint64_t *sh_emulated::mailbox()
{
    return boxes[races::set()][current / WARP][fibers[current].exchanges++ % 2];
}

void sh_emulated::want_full_mask(unsigned mask, place at)
{
    if (mask == ~0u)
        return;
    fprintf(stderr, "%s:%d: ", at.file, at.line);
    die("all lanes take part in shuffles here: the mask must be ~0u");
}

void *sh_emulated::shared(const void *key, size_t bytes)
{
    for (const piece &p : pieces)
        if (p.key == key)
            return p.data.get();
    shared_bytes += bytes;
    if (shared_bytes > shared_limit())
        die("more shared memory than a block can have");
    void *data = races::shared(bytes, 0xff);
    if (races::ON) {
        pieces.push_back({key, {data, [](void *) {}}});
        return data;
    }
    if (posix_memalign(&data, 16, bytes))
        die("no memory for shared memory");
    memset(data, 0xff, bytes);
    pieces.push_back({key, {data, free}});
    return data;
}

unsigned sh_emulated::parity()
{
    return races::set();
}

/* Not from the standard library: the race detector tracks what that allocates. */
static struct {
    sh_emulated::delayed copy[MOST_DELAYED];
    unsigned n, next;
} delayed_by[MAX_THREADS];

void sh_emulated::delay(const delayed &copy)
{
    auto &mine = delayed_by[current];
    if (mine.n == MOST_DELAYED)
        die("more copies under way than are imitated");
    mine.copy[mine.n++] = copy;
}

bool sh_emulated::next_delayed(delayed *copy)
{
    auto &mine = delayed_by[current];
    if (mine.next == mine.n) {
        mine.next = mine.n = 0;
        return false;
    }
    *copy = mine.copy[mine.next++];
    return true;
}

void *sh_emulated::dynamic_shared()
{
    return shared(&dynamic_bytes, dynamic_bytes);
}

#include "src/plugin/process.h"

#include <fenv.h>
#include <malloc.h>
#include <omp.h>
#include <stdbool.h>

enum { CALLS = 64, WARM = 4, SMALLEST = 16 }; /* bytes: no allocation takes less */

/* Bytes that are allocated. What the first calls of a library keep is in it from then on. */
static size_t count_heap(void)
{
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
    struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
#else
    return 0;
#endif
}

static bool has_subnormals(void)
{
    volatile float smallest = 0x1p-126f, half = smallest * 0.5f;

    return half != 0;
}

static const char *name_change(int threads, size_t heap)
{
    if (count_heap() >= heap + CALLS * SMALLEST)
        return "each call keeps memory that it allocates";
    if (omp_get_max_threads() != threads)
        return "a call changes the number of threads";
    if (fegetround() != FE_TONEAREST)
        return "a call changes how numbers are rounded";
    return has_subnormals() ? NULL : "a call makes subnormal numbers 0";
}

const char *sh_plugin_done_to_process(void (*call)(const void *of), const void *of)
{
    const int were = omp_get_max_threads(), threads = were + 1;
    const char *change;
    size_t heap;
    fenv_t plain;

    fegetenv(&plain);
    omp_set_num_threads(threads); /* earlier calls may have set what they set */
    for (int i = 0; i < WARM; i++)
        call(of);
    heap = count_heap();
    for (int i = 0; i < CALLS; i++)
        call(of);
    change = name_change(threads, heap);
    omp_set_num_threads(were);
    fesetenv(&plain);
    return change;
}

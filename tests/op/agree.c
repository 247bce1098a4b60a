#include "tests/op/agree.h"

struct way {
    int threads, shift;
    bool alias;
};

static void run_way(const struct optest *t, struct way way, int alias_in, int alias_out, struct optest *out)
{
    optest_copy(out, t);
    optest_shift(out, way.shift);
    if (way.alias)
        optest_alias(out, alias_in, alias_out);
    optest_run(out, &sh_kernels_cpu, way.threads);
}

void agree(const struct optest *t, int n, const struct sh_bound *bound, int alias_in, int alias_out)
{
    static const struct way ways[] = {
        {.threads = 2},
        {.threads = 3},
        {.threads = 1, .shift = 1},
        {.threads = 2, .shift = 5},
        {.threads = 1, .alias = true},
        {.threads = 2, .shift = 3, .alias = true},
    };
    struct optest ref, first, other;
    optest_copy(&ref, t);
    optest_run(&ref, &sh_kernels_ref, 1);
    run_way(t, (struct way){.threads = 1}, -1, -1, &first);
    for (int i = 0; i < n; i++)
        if (t->call.out[i].data)
            optest_within(&ref, &first, i, bound[i].atol, bound[i].rtol);
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        if (ways[w].alias && alias_in < 0)
            continue;
        run_way(t, ways[w], alias_in, alias_out, &other);
        for (int i = 0; i < n; i++)
            if (t->call.out[i].data)
                optest_same(&first, &other, i);
        optest_end(&other);
    }
    optest_end(&first);
    optest_end(&ref);
}

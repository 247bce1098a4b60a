/* Instruction sets of the kernels under ONEDNN_MAX_CPU_ISA, each case in its own process, because the answer
 * is cached. */
#include "sherd_config.h"

#include "src/base/isa.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(HAVE_DNNL) && defined(__x86_64__)
#include <dnnl.h>
#endif

/* The sets of AArch64 follow those of x86-64. */
#ifdef __aarch64__
enum { NONE = SH_ISA_BFMMLA, AVX2, AVX512, BF16, ALL = SH_ISAS };
#define LEAST "ASIMD"
#define LEAST_SMALL "asimd"
#else
enum { NONE = 0, AVX2 = SH_ISA_AVX2 + 1, AVX512, BF16, ALL = SH_ISA_BFMMLA };
#define LEAST "AVX"
#define LEAST_SMALL "avx"
#endif

/* end: the instruction sets before it are allowed. */
static const struct row {
    const char *onednn, *dnnl;
    int end;
} rows[] = {
    {NULL, NULL, ALL},
#ifdef __aarch64__
    {"ASIMD", NULL, NONE},  {"asimd", NULL, NONE}, {"SVE_128", NULL, ALL}, {"SVE_256", NULL, ALL},
    {"SVE_512", NULL, ALL}, {"AVX2", NULL, ALL},   {NULL, "ASIMD", NONE},  {"SVE_128", "ASIMD", ALL},
    {"", "ASIMD", NONE},
#else
    {"SSE41", NULL, NONE},
    {"AVX", NULL, NONE},
    {"AVX2", NULL, AVX2},
    {"avx2", NULL, AVX2},
    {"Avx2", NULL, AVX2},
    {"AVX2_VNNI", NULL, AVX2},
    {"AVX512_CORE", NULL, AVX512},
    {"AVX512_CORE_VNNI", NULL, AVX512},
    {"AVX512_CORE_BF16", NULL, BF16},
    {"AVX512_CORE_AMX", NULL, ALL},
    {NULL, "AVX2", AVX2},
    {"AVX", "AVX2", NONE},
    {"AVX2", "AVX", AVX2},
    {"", "AVX2", AVX2},
    {"AVX3", "AVX2", ALL},
#endif
    {"ALL", NULL, ALL},     {"", NULL, ALL},       {"AVX3", NULL, ALL},    {"AVX2 ", NULL, ALL},
};

static void put(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

/* The sets that oneDNN may use, as an end; -1: built without oneDNN, or its numbers are not those of x86's sets. It asks
 * the system about AMX, so AMX is left out. */
static int end_of_dnnl(void)
{
#if defined(HAVE_DNNL) && defined(__x86_64__)
    unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    static const struct {
        unsigned isa;
        int end;
    } known[] = {{dnnl_cpu_isa_avx512_core_bf16, BF16}, {dnnl_cpu_isa_avx512_core, AVX512}, {dnnl_cpu_isa_avx2, AVX2}};

    for (int i = 0; i < 3; i++)
        if ((isa & known[i].isa) == known[i].isa)
            return known[i].end;
    return NONE;
#else
    return -1;
#endif
}

struct answer {
    int end, dnnl;
    bool noted;
    char text[SH_ISA_TEXT];
};

/* The sets that Sherd uses, as an end. If a set is allowed although an earlier one is not, an end that no row has. */
static int end_of_sherd(void)
{
    int end = NONE;

    while (end < ALL && sh_isa_has((enum sh_isa)end))
        end++;
    for (int isa = 0; isa < SH_ISAS; isa++)
        if ((isa < NONE || isa >= end) && sh_isa_has((enum sh_isa)isa))
            return -2;
    return end;
}

static struct answer ask(const struct row *r)
{
    struct answer a = {0};
    int pipes[2], status;
    pid_t child;

    assert_int_equal(pipe(pipes), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        put("ONEDNN_MAX_CPU_ISA", r->onednn);
        put("DNNL_MAX_CPU_ISA", r->dnnl);
        a.end = end_of_sherd();
        a.dnnl = end_of_dnnl();
        a.noted = sh_isa_describe(a.text);
        _exit(write(pipes[1], &a, sizeof a) != sizeof a);
    }
    assert_int_equal(read(pipes[0], &a, sizeof a), sizeof a);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(pipes[0]);
    close(pipes[1]);
    return a;
}

static void words_limit(void **state)
{
    int cpu = ask(&rows[0]).end;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int want = rows[i].end < cpu ? rows[i].end : cpu, got = ask(&rows[i]).end;
        if (got != want)
            fail_msg("row %zu (%s, %s): %d, not %d", i, rows[i].onednn ? rows[i].onednn : "none",
                     rows[i].dnnl ? rows[i].dnnl : "none", got, want);
    }
}

/* One variable controls both: the library's own answer must be the same. */
static void agrees_with_dnnl(void **state)
{
    (void)state;
    if (ask(&rows[0]).dnnl < 0) {
        print_message("no answer of oneDNN\n");
        skip();
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct answer a = ask(&rows[i]);
        int mine = a.end > BF16 ? BF16 : a.end;
        if (mine != a.dnnl)
            fail_msg("row %zu (%s, %s): %d, and oneDNN %d", i, rows[i].onednn ? rows[i].onednn : "none",
                     rows[i].dnnl ? rows[i].dnnl : "none", mine, a.dnnl);
    }
}

static void says_what_limits(void **state)
{
    struct answer plain = ask(&rows[0]), limited = ask(&(struct row){LEAST, NULL, 0}),
                  unknown = ask(&(struct row){"AVX3", NULL, 0}), older = ask(&(struct row){NULL, LEAST_SMALL, 0});

    (void)state;
    assert_false(plain.noted);
    assert_null(strstr(plain.text, "CPU_ISA"));
    assert_true(unknown.noted);
    assert_non_null(strstr(unknown.text, "; ONEDNN_MAX_CPU_ISA=AVX3 is not a word of oneDNN"));
    assert_memory_equal(unknown.text, plain.text, strlen(plain.text));
    assert_int_equal(limited.noted, plain.end > NONE);
    if (limited.noted) {
        assert_non_null(strstr(limited.text, "; ONEDNN_MAX_CPU_ISA=" LEAST " forbids the processor's "));
        assert_non_null(strstr(limited.text, plain.text));
        assert_non_null(strstr(older.text, "; DNNL_MAX_CPU_ISA=" LEAST_SMALL " forbids"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_limit),
        cmocka_unit_test(agrees_with_dnnl),
        cmocka_unit_test(says_what_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

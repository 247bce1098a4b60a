#include "src/base/isa.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *const name[] = {
    [SH_ISA_F16C] = "F16C",      [SH_ISA_AVX2] = "AVX2",
    [SH_ISA_AVX512] = "AVX-512", [SH_ISA_AVX512_BF16] = "AVX-512 with bf16",
    [SH_ISA_AMX] = "AMX",
};
_Static_assert(sizeof name / sizeof name[0] == SH_ISAS, "each has a name");

/* oneDNN's words, including those of newer versions. A word allows the sets before `end`. */
static const struct {
    const char *word;
    int end;
} words[] = {
    {"SSE41", SH_ISA_F16C},
    {"AVX", SH_ISA_F16C},
    {"AVX2", SH_ISA_AVX512},
    {"AVX2_VNNI", SH_ISA_AVX512},
    {"AVX2_VNNI_2", SH_ISA_AVX512},
    {"AVX512_CORE", SH_ISA_AVX512_BF16},
    {"AVX512_CORE_VNNI", SH_ISA_AVX512_BF16},
    {"AVX512_CORE_BF16", SH_ISA_AMX},
    {"AVX512_CORE_FP16", SH_ISA_AMX},
    {"AVX10_1_512", SH_ISA_AMX},
    {"AVX512_CORE_AMX", SH_ISAS},
    {"AVX512_CORE_AMX_FP16", SH_ISAS},
    {"AVX10_1_512_AMX", SH_ISAS},
    {"AVX10_1_512_AMX_FP16", SH_ISAS},
    {"ALL", SH_ISAS},
#ifdef __aarch64__ /* words of oneDNN; Sherd has no kernels for these sets, so they limit none */
    {"ASIMD", SH_ISAS},
    {"SVE_128", SH_ISAS},
    {"SVE_256", SH_ISAS},
    {"SVE_512", SH_ISAS},
#endif
    {"DEFAULT", SH_ISAS},
};

/* What was found. Each set includes the earlier ones, so one end marks the sets of the processor and one those that the
 * user allows. */
static struct {
    int of_cpu, allowed;
    const char *variable; /* NULL: none is set */
    char word[64];
    bool known;
} found;

#ifdef __x86_64__
#include <cpuid.h>

/* By number if not all compilers know the name of the feature. For AVX and AVX-512, the answer includes whether the
 * system saves the registers. */
static bool cpu_has(enum sh_isa isa)
{
    unsigned a, b, c, d;

    switch (isa) {
    case SH_ISA_F16C: return __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
    case SH_ISA_AVX2: return __builtin_cpu_supports("avx2");
    case SH_ISA_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    case SH_ISA_AVX512_BF16: return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 5 & 1;
    case SH_ISA_AMX: return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 24 & 1 && d >> 22 & 1;
    default: return false;
    }
}
#else
static bool cpu_has(enum sh_isa isa)
{
    (void)isa;
    return false;
}
#endif

/* Read the variables like oneDNN: the newer name first, and an empty value counts as unset. */
static void find_variable(void)
{
    static const char *const variables[] = {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"};

    for (int i = 0; i < 2 && !found.variable; i++) {
        const char *word = getenv(variables[i]);

        if (!word || !*word)
            continue;
        found.variable = variables[i];
        snprintf(found.word, sizeof found.word, "%s", word);
    }
}

static void find(void)
{
    while (found.of_cpu < SH_ISAS && cpu_has((enum sh_isa)found.of_cpu))
        found.of_cpu++;
    found.allowed = SH_ISAS;
    find_variable();
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcasecmp(found.word, words[i].word) == 0) {
            found.allowed = words[i].end;
            found.known = true;
        }
}

static void find_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, find);
}

bool sh_isa_has(enum sh_isa isa)
{
    find_once();
    return (int)isa < found.of_cpu && (int)isa < found.allowed;
}

const char *sh_isa_architecture(void)
{
#if defined(__x86_64__)
    return "x86-64";
#elif defined(__aarch64__)
    return "AArch64";
#else
    return "other";
#endif
}

/* There are no kernels for AArch64, but compilers use ASIMD there, which every processor has. */
static const char *last_before(int end)
{
    if (end)
        return name[end - 1];
    return strcmp(sh_isa_architecture(), "AArch64") == 0 ? "ASIMD" : "plain loops";
}

bool sh_isa_describe(char text[SH_ISA_TEXT])
{
    find_once();
    if (found.allowed < found.of_cpu)
        snprintf(text, SH_ISA_TEXT, "%s; %s=%s forbids the processor's %s", last_before(found.allowed), found.variable,
                 found.word, last_before(found.of_cpu));
    else if (found.variable && !found.known)
        snprintf(text, SH_ISA_TEXT, "%s; %s=%s is not a word of oneDNN and forbids nothing", last_before(found.of_cpu),
                 found.variable, found.word);
    else
        snprintf(text, SH_ISA_TEXT, "%s", last_before(found.of_cpu));
    return found.allowed < found.of_cpu || (found.variable && !found.known);
}

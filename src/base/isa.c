#include "sherd_config.h"

#include "src/base/isa.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *const name[] = {
    [SH_ISA_F16C] = "F16C",      [SH_ISA_AVX2] = "AVX2",
    [SH_ISA_AVX512] = "AVX-512", [SH_ISA_AVX512_BF16] = "AVX-512 with bf16",
    [SH_ISA_AMX] = "AMX",        [SH_ISA_BFMMLA] = "ASIMD with BFMMLA",
};
_Static_assert(sizeof name / sizeof name[0] == SH_ISAS, "each has a name");

/* The sets of this architecture: those from FIRST on, before END. */
#if defined(__x86_64__)
enum { FIRST = SH_ISA_F16C, END = SH_ISA_BFMMLA };
#elif defined(__aarch64__)
enum { FIRST = SH_ISA_BFMMLA, END = SH_ISAS };
#else
enum { FIRST = 0, END = 0 };
#endif

/* oneDNN's words, including those of newer versions. A word allows the sets before `end`. */
static const struct {
    const char *word;
    int end;
} words[] = {
#ifdef __aarch64__
    {"ASIMD", FIRST}, {"SVE_128", END}, {"SVE_256", END}, {"SVE_512", END},
#else
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
    {"AVX512_CORE_AMX", END},
    {"AVX512_CORE_AMX_FP16", END},
    {"AVX10_1_512_AMX", END},
    {"AVX10_1_512_AMX_FP16", END},
#endif
    {"ALL", END},     {"DEFAULT", END},
};

/* What was found. Each set of an architecture includes its earlier ones, so one end marks the sets of the processor and one
 * those that the user allows. */
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
#elif defined(__aarch64__) && defined(HAVE_BFMMLA)
#include <sys/auxv.h>

/* By number, as not all headers know the name HWCAP2_BF16. */
static bool cpu_has(enum sh_isa isa)
{
    return isa == SH_ISA_BFMMLA && getauxval(AT_HWCAP2) >> 14 & 1;
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
    found.of_cpu = FIRST;
    while (found.of_cpu < END && cpu_has((enum sh_isa)found.of_cpu))
        found.of_cpu++;
    found.allowed = END;
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
    return (int)isa >= FIRST && (int)isa < found.of_cpu && (int)isa < found.allowed;
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

/* Compilers use ASIMD on AArch64, where every processor has it. */
static const char *last_before(int end)
{
    if (end > FIRST)
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

/* Names, numbers and units are those of NVIDIA's nvml.h, which is not part of a toolkit's runtime, so they are copied
 * here. */
#include "src/device/nvml.h"

#include "src/base/library.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* NVML_CLOCK_SM and NVML_TEMPERATURE_GPU. */
enum { CLOCK_SM = 1, TEMPERATURE_GPU = 0 };
/* NVML_P2P_CAPS_INDEX_NVLINK; NVML_TOPOLOGY_...: what two GPUs have in common at most. */
enum { CAPS_NVLINK = 2, MULTIPLE = 20, NODE = 40 };

static const char *const files[] = {"libnvidia-ml.so.1", NULL};

/* A pointer is NULL if this library lacks the function. */
static struct {
    int (*init)(void);
    int (*shutdown)(void);
    int (*handle)(const char *bus, void **gpu);
    const char *(*words)(int rc);
    int (*power)(void *gpu, unsigned *milliwatts);
    int (*limit)(void *gpu, unsigned *milliwatts);
    int (*usual)(void *gpu, unsigned *milliwatts);
    int (*clock)(void *gpu, int which, unsigned *mhz);
    int (*most)(void *gpu, int which, unsigned *mhz);
    int (*temperature)(void *gpu, int which, unsigned *celsius);
    int (*reasons)(void *gpu, unsigned long long *bits);
    int (*reaches)(void *gpu, void *other, int caps, int *status);
    int (*common)(void *gpu, void *other, int *level);
} nvml;

static void *gpu; /* NULL: none is open */

/* clang-format off */
static const struct sh_library_symbol needed[] = {
    {"nvmlInit_v2", &nvml.init},
    {"nvmlShutdown", &nvml.shutdown},
    {"nvmlDeviceGetHandleByPciBusId_v2", &nvml.handle},
    {NULL, NULL}};

/* Some are newer than the drivers of a cluster; the two of reasons are one function whose name changed. */
static const struct sh_library_symbol optional[] = {
    {"nvmlErrorString", &nvml.words},
    {"nvmlDeviceGetPowerUsage", &nvml.power},
    {"nvmlDeviceGetEnforcedPowerLimit", &nvml.limit},
    {"nvmlDeviceGetPowerManagementDefaultLimit", &nvml.usual},
    {"nvmlDeviceGetClockInfo", &nvml.clock},
    {"nvmlDeviceGetMaxClockInfo", &nvml.most},
    {"nvmlDeviceGetTemperature", &nvml.temperature},
    {"nvmlDeviceGetCurrentClocksThrottleReasons", &nvml.reasons},
    {"nvmlDeviceGetCurrentClocksEventReasons", &nvml.reasons},
    {"nvmlDeviceGetP2PStatus", &nvml.reaches},
    {"nvmlDeviceGetTopologyCommonAncestor", &nvml.common}};

static const struct {
    uint64_t bits; /* nvmlClocksThrottleReason... */
    const char *name;
} reason[SH_NVML_REASONS] = {
    {0x004, "power"},
    {0x020 | 0x040, "heat"}, /* by software, by hardware */
    {0x080, "brake"},
    {0x008, "hardware"},
    {0x002 | 0x100, "setting"}, /* for applications, for displays */
    {0x010, "sync"}};
/* clang-format on */

const char *sh_nvml_reason(int i)
{
    return reason[i].name;
}

/* A function that an older library lacks stays NULL. */
static void load_optional(void)
{
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++)
        if (sh_library_load(files, (struct sh_library_symbol[]){optional[i], {NULL, NULL}}) != SH_OK)
            sh_error_clear();
}

/* 0 is NVML_SUCCESS. An old library may have no text for the number, so the number is shown as well. */
static sh_rc told(int rc, const char *what)
{
    if (rc == 0)
        return SH_OK;
    return sh_fail(SH_E_USAGE, "%s: %s says: %s (%d)", what, files[0], nvml.words ? nvml.words(rc) : "error", rc);
}

/* By bus, not by index: NVML numbers all GPUs of the node, whatever CUDA_VISIBLE_DEVICES leaves of them. */
sh_rc sh_nvml_open(const char *bus)
{
    void *found = NULL;
    sh_rc rc;

    SH_TRY(sh_library_load(files, needed));
    load_optional();
    SH_TRY(told(nvml.init(), "cannot be started"));
    rc = told(nvml.handle(bus, &found), bus);
    if (rc == SH_OK)
        gpu = found;
    else
        nvml.shutdown();
    return rc;
}

static double number(int rc, unsigned value, double unit)
{
    return rc == 0 ? value * unit : NAN;
}

/* Call a function with these arguments; NAN if it is missing or fails, for instance on a GPU that does not support
 * it. */
static double ask(int (*function)(void *, unsigned *), double unit)
{
    unsigned value = 0;
    int rc = function ? function(gpu, &value) : -1;

    return number(rc, value, unit);
}

/* Clocks and temperatures, which come in several kinds. */
static double ask_for(int (*function)(void *, int, unsigned *), int which)
{
    unsigned value = 0;
    int rc = function ? function(gpu, which, &value) : -1;

    return number(rc, value, 1);
}

/* NVML's bits become bits of our own reasons: two of NVML's may be one reason to a reader. */
static unsigned held(void)
{
    unsigned long long bits = 0;
    unsigned out = 0;

    if (!nvml.reasons || nvml.reasons(gpu, &bits) != 0)
        return 0;
    for (int i = 0; i < SH_NVML_REASONS; i++)
        if (bits & reason[i].bits)
            out |= 1U << i;
    return out;
}

/* NVML reports milliwatts; watts are shown. Nothing here fails: a value that cannot be read is NAN, and the run
 * continues. */
void sh_nvml_read(struct sh_nvml_state *s)
{
    *s = (struct sh_nvml_state){.watts = NAN, NAN, NAN, .mhz = NAN, NAN, .celsius = NAN};
    if (!gpu)
        return;
    s->watts = ask(nvml.power, 1e-3);
    s->limit_watts = ask(nvml.limit, 1e-3);
    s->usual_watts = ask(nvml.usual, 1e-3);
    s->mhz = ask_for(nvml.clock, CLOCK_SM);
    s->most_mhz = ask_for(nvml.most, CLOCK_SM);
    s->celsius = ask_for(nvml.temperature, TEMPERATURE_GPU);
    s->held = held();
}

enum sh_nvml_way sh_nvml_way_to(const char *bus)
{
    void *other = NULL;
    int status = -1, level = 0;

    if (!gpu || nvml.handle(bus, &other) != 0)
        return SH_NVML_UNKNOWN;
    if (nvml.reaches && nvml.reaches(gpu, other, CAPS_NVLINK, &status) == 0 && status == 0)
        return SH_NVML_LINK;
    if (!nvml.common || nvml.common(gpu, other, &level) != 0)
        return SH_NVML_UNKNOWN;
    return level <= MULTIPLE ? SH_NVML_SWITCH : level <= NODE ? SH_NVML_HOST : SH_NVML_SYSTEM;
}

void sh_nvml_close(void)
{
    if (gpu)
        nvml.shutdown();
    gpu = NULL;
}

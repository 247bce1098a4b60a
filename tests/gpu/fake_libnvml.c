/* A double of libnvidia-ml: four GPUs whose figures follow from their place on the bus, and ways in which such a
 * library fails or they are joined, chosen by the word in SHERD_NVML:
 *   start       it cannot be started
 *   lost        the GPUs are missing
 *   unsupported no figure is supported, as in a virtual machine
 *   partly      clock and reasons are not supported, as on consumer cards
 *   pairs       NVLink joins the first and the third, and the second and the fourth; the bus joins others over both processors
 *   late        each figure takes an hour
 * A letter is added to the file SHERD_NVML_MARK when that hour begins (a), and when the library is shut down (z).
 * Built with -DFEW it has the necessary functions and no others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };

static int is(const char *word)
{
    const char *asked = getenv("SHERD_NVML");

    return asked && !strcmp(asked, word);
}

static void mark(char letter)
{
    const char *path = getenv("SHERD_NVML_MARK");
    FILE *f = path ? fopen(path, "a") : NULL;

    if (f) {
        fputc(letter, f);
        fclose(f);
    }
}

int nvmlInit_v2(void)
{
    return is("start") ? DRIVER_NOT_LOADED : 0;
}

int nvmlShutdown(void)
{
    mark('z');
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **gpu)
{
    static int place[4];
    unsigned number;

    if (is("lost") || sscanf(bus, "00000000:%02x:00.0", &number) != 1 || number < 1 || number > 4)
        return NOT_FOUND;
    place[number - 1] = (int)number;
    *gpu = &place[number - 1];
    return 0;
}

#ifndef FEW
const char *nvmlErrorString(int rc)
{
    return rc == DRIVER_NOT_LOADED ? "Driver Not Loaded" : rc == NOT_FOUND ? "Not Found" : "Not Supported";
}

static int tell(void *gpu, unsigned *out, unsigned first, unsigned second)
{
    if (is("late")) {
        mark('a');
        sleep(3600);
    }
    if (is("unsupported"))
        return NOT_SUPPORTED;
    *out = *(int *)gpu == 1 ? first : second;
    return 0;
}

int nvmlDeviceGetPowerUsage(void *gpu, unsigned *milliwatts)
{
    return tell(gpu, milliwatts, 650500, 500000);
}

int nvmlDeviceGetEnforcedPowerLimit(void *gpu, unsigned *milliwatts)
{
    return tell(gpu, milliwatts, 700000, 500000);
}

int nvmlDeviceGetPowerManagementDefaultLimit(void *gpu, unsigned *milliwatts)
{
    return tell(gpu, milliwatts, 700000, 700000);
}

/* which: 1 is the multiprocessors' clock */
int nvmlDeviceGetClockInfo(void *gpu, int which, unsigned *mhz)
{
    return is("partly") || which != 1 ? NOT_SUPPORTED : tell(gpu, mhz, 1700, 1200);
}

int nvmlDeviceGetMaxClockInfo(void *gpu, int which, unsigned *mhz)
{
    return which != 1 ? NOT_SUPPORTED : tell(gpu, mhz, 1980, 1980);
}

/* which: 0 is the chip's sensor */
int nvmlDeviceGetTemperature(void *gpu, int which, unsigned *celsius)
{
    return which != 0 ? NOT_SUPPORTED : tell(gpu, celsius, 60, 81);
}

/* NVLink joins all, unless the word is "partly"; then the bus does, over both processors. */
int nvmlDeviceGetP2PStatus(void *gpu, void *other, int caps, int *status)
{
    unsigned no = 1, apart = is("partly") || (is("pairs") && (*(int *)gpu - *(int *)other) % 2);
    int rc = gpu == other || caps != 2 ? NOT_SUPPORTED : tell(gpu, &no, apart, apart);

    *status = (int)no;
    return rc;
}

int nvmlDeviceGetTopologyCommonAncestor(void *gpu, void *other, int *level)
{
    unsigned found = 0;
    int rc = gpu == other ? NOT_SUPPORTED : tell(gpu, &found, 50, 50);

    *level = (int)found;
    return rc;
}

/* The first GPU waits for work, so nothing limits it; the second is limited by its power limit and by heat. */
#ifdef OLD
int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *bits)
#else
int nvmlDeviceGetCurrentClocksEventReasons(void *gpu, unsigned long long *bits)
#endif
{
    unsigned out = 0;
    int rc = is("partly") ? NOT_SUPPORTED : tell(gpu, &out, 0x1, 0x4 | 0x40);

    *bits = out;
    return rc;
}
#endif

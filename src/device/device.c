#include "src/device/device.h"

#include "sherd_config.h"

#include <string.h>

/* The table of devices: a new one is a row here and a file with its functions. */
static const struct sh_device *const devices[] = {
    &sh_device_cpu,
    &sh_device_ref,
#ifdef HAVE_CUDA
    &sh_device_cuda,
#endif
};

/* NULL for "cuda" in a build without it: the caller explains how to build with it. */
const struct sh_device *sh_device_find(const char *name)
{
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (!strcmp(devices[i]->name, name))
            return devices[i];
    return NULL;
}

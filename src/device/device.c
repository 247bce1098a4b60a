#include "src/device/device.h"

#include "sherd_config.h"

#include <string.h>

static const struct sh_device *const devices[] = {
    &sh_device_cpu,
    &sh_device_ref,
#ifdef HAVE_CUDA
    &sh_device_cuda,
#endif
};

const struct sh_device *sh_device_find(const char *name)
{
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (!strcmp(devices[i]->name, name))
            return devices[i];
    return NULL;
}

#include "src/plugin/trial_gpu.h"

#include "src/base/mem.h"
#include "src/device/device.h"

#include <stdlib.h>
#include <string.h>

enum {
    LATE_BYTES = 64 << 20,
    LATE_COPIES = 8
}; /* tens of microseconds each: longer than it takes to launch a kernel */

static struct {
    const struct sh_device *device; /* NULL: not open */
    void *queue;
    char *arena;
    int64_t bytes;
} gpu;

sh_rc sh_trial_gpu_open(void)
{
    const struct sh_device *cuda = sh_device_find("cuda");
    struct sh_device_info info;
    char why[256];

    if (!cuda)
        return sh_fail(SH_E_USAGE,
                       "cuda: this sherd was built without CUDA; configure it --with-cuda, or leave the option out");
    if (!cuda->count(why))
        return sh_fail(SH_E_USAGE, "cuda: there is no GPU to try kernels on: %s", why);
    SH_TRY(cuda->open(0, &info));
    gpu.device = cuda;
    gpu.queue = cuda->queue_create(false);
    return SH_OK;
}

void sh_trial_gpu_close(void)
{
    if (!gpu.device)
        return;
    if (gpu.arena)
        gpu.device->arena_destroy(gpu.arena, gpu.bytes);
    gpu.device->queue_destroy(gpu.queue);
    gpu.device->close();
    memset(&gpu, 0, sizeof gpu);
}

bool sh_trial_gpu_is_open(void)
{
    return gpu.device != NULL;
}

static sh_rc grow(int64_t bytes)
{
    if (bytes <= gpu.bytes)
        return SH_OK;
    if (gpu.arena)
        gpu.device->arena_destroy(gpu.arena, gpu.bytes);
    gpu.arena = NULL;
    gpu.bytes = 0;
    SH_TRY(gpu.device->arena_create(bytes, 0, -1, &gpu.arena));
    gpu.bytes = bytes;
    return SH_OK;
}

/* Copies behind the trial's place that keep the queue busy; until they are done that place is NaN. */
static void delay(int64_t place)
{
    char *nan = sh_calloc(1, (size_t)place), *from = gpu.arena + place;

    memset(nan, 0xff, (size_t)place);
    gpu.device->put(gpu.queue, gpu.arena, nan, place);
    gpu.device->queue_drain(gpu.queue);
    for (int i = 0; i < LATE_COPIES; i++)
        gpu.device->copy(gpu.queue, from + LATE_BYTES, from, LATE_BYTES);
    free(nan);
}

static void *there(const struct sh_trial *t, void *here)
{
    return here ? gpu.arena + ((char *)here - t->memory) : NULL;
}

sh_rc sh_trial_gpu_run(struct sh_trial *t, bool late, int *returned)
{
    struct sherd_call call = t->call;

    SH_TRY(grow(t->bytes + (late ? 2 * LATE_BYTES : 0)));
    if (late)
        delay(t->bytes);
    for (int i = 0; i < t->shape.n_in; i++)
        call.in[i].data = there(t, call.in[i].data);
    call.out[0].data = there(t, call.out[0].data);
    call.work = there(t, call.work);
    call.queue = gpu.queue;
    gpu.device->put(gpu.queue, gpu.arena, t->memory, t->bytes);
    *returned = t->row->cuda(&call);
    SH_TRY(gpu.device->queue_check(gpu.queue));
    gpu.device->get(gpu.queue, t->memory, gpu.arena, t->bytes);
    return SH_OK;
}

/* A driver without a device, for test_cudnn_plan: cuDNN makes plans for a GPU that is described to it, and only asks
 * the driver to accept its kernels. Built as a shared library named libcuda.so.1. Every function that cuDNN looks up
 * must exist; those in the list below are not called, or need no answer. */
#include <stddef.h>

enum { NO_DEVICE = 100, NOT_FOUND = 500, VERSION = 13000 };

static char something[4096]; /* what handles point at */

/* clang-format off */
#define FUNCTION(name) int name(void); int name(void) { return 0; }
FUNCTION(cuCtxGetCurrent) FUNCTION(cuCtxGetLimit) FUNCTION(cuCtxPopCurrent) FUNCTION(cuCtxPushCurrent)
FUNCTION(cuDeviceGet) FUNCTION(cuKernelGetAttribute) FUNCTION(cuKernelSetAttribute) FUNCTION(cuLaunchCooperativeKernel)
FUNCTION(cuLaunchKernel) FUNCTION(cuLaunchKernelEx) FUNCTION(cuLibraryLoadFromFile) FUNCTION(cuLibraryUnload)
FUNCTION(cuLinkAddData) FUNCTION(cuLinkComplete) FUNCTION(cuLinkCreate) FUNCTION(cuLinkDestroy)
FUNCTION(cuOccupancyMaxPotentialClusterSize) FUNCTION(cuStreamGetCtx)
    /* clang-format on */

    int cuInit(unsigned flags);
int cuInit(unsigned flags)
{
    (void)flags;
    return NO_DEVICE;
}

int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version)
{
    *version = VERSION;
    return 0;
}

int cuDeviceGetCount(int *count);
int cuDeviceGetCount(int *count)
{
    *count = 0;
    return 0;
}

static int words(const char **text)
{
    *text = "there is no device";
    return 0;
}

int cuGetErrorString(int error, const char **text);
int cuGetErrorString(int error, const char **text)
{
    (void)error;
    return words(text);
}

int cuGetErrorName(int error, const char **text);
int cuGetErrorName(int error, const char **text)
{
    (void)error;
    return words(text);
}

int cuLibraryLoadData(void **library);
int cuLibraryLoadData(void **library)
{
    *library = something;
    return 0;
}

int cuLibraryGetKernel(void **kernel);
int cuLibraryGetKernel(void **kernel)
{
    *kernel = something;
    return 0;
}

int cuGetProcAddress_v2(const char *name, void **function);
int cuGetProcAddress_v2(const char *name, void **function)
{
    (void)name;
    *function = NULL;
    return NOT_FOUND;
}

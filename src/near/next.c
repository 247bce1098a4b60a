#include "src/near/next.h"

#include "src/near/pulse.h"

#include <pthread.h>
#include <stdio.h>

static struct {
    pthread_mutex_t lock;
    bool begun, any;
    char address[SH_NEXT_TEXT];
} next = {.lock = PTHREAD_MUTEX_INITIALIZER};

void sh_next_begin(void)
{
    pthread_mutex_lock(&next.lock);
    next.begun = true;
    pthread_mutex_unlock(&next.lock);
}

sh_rc sh_next_tell(const char *address)
{
    bool begun;

    pthread_mutex_lock(&next.lock);
    begun = next.begun;
    if (begun) {
        snprintf(next.address, sizeof next.address, "%s", address);
        next.any = true;
    }
    pthread_mutex_unlock(&next.lock);
    return begun ? SH_OK : sh_fail(SH_E_COMM, "this keeper has no watch: it was started without " SH_PULSE_VARIABLE);
}

bool sh_next_take(char address[SH_NEXT_TEXT])
{
    bool any;

    pthread_mutex_lock(&next.lock);
    any = next.any;
    if (any)
        snprintf(address, SH_NEXT_TEXT, "%s", next.address);
    next.any = false;
    pthread_mutex_unlock(&next.lock);
    return any;
}

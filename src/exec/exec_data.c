/* What travels between the device and the host: tensors, slices, and copies alongside the operations. */
#include "src/exec/exec_state.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* No caller can continue with an address that is invalid. */
void *sh_exec_data(struct sh_exec *e, int tensor)
{
    const struct sh_tensor *t = &e->p->tensors[tensor < 0 ? 0 : tensor];

    if (tensor < 0 || !e->at.tier[t->tier])
        sh_stop(sh_fail(SH_E_BUG, "%s has no address: it lies in no memory", tensor < 0 ? "no tensor" : t->name));
    return e->at.tier[t->tier] + t->offset_bytes;
}

void sh_exec_put(struct sh_exec *e, enum sh_port port, const void *host)
{
    int tensor = e->p->port[port];

    if (tensor != SH_NONE)
        sh_exec_put_at(e, sh_exec_data(e, tensor), host, sh_tensor_bytes(&e->p->tensors[tensor]));
}

/* Waits for the queue, so what is returned is the result of all operations before. */
void sh_exec_get(struct sh_exec *e, enum sh_port port, void *host)
{
    int tensor = e->p->port[port];

    sh_exec_get_at(e, host, sh_exec_data(e, tensor), sh_tensor_bytes(&e->p->tensors[tensor]));
}

sh_rc sh_exec_lend(struct sh_exec *e, int slice, bool change, char **extent)
{
    if (!e->host)
        return sh_moves_lend(e->moves, slice, change, extent);
    *extent = sh_exec_data(e, e->p->slices[slice].home);
    return SH_OK;
}

void sh_exec_give_back(struct sh_exec *e)
{
    if (e->moves)
        sh_moves_give_back(e->moves);
}

void sh_exec_forget_slices(struct sh_exec *e)
{
    e->pending = false;
    if (e->moves)
        sh_moves_forget(e->moves);
    if (e->host) {
        e->device->queue_drain(e->copies);
        sh_host_moves_forget(e->host);
    }
}

/* Whether an address is in the host tier, which the host itself reads and writes once the queue is drained. */
static bool is_home(const struct sh_exec *e, const void *at)
{
    int host = e->host ? sh_program_host_tier(e->p) : SH_NONE;
    const char *begin = host == SH_NONE ? NULL : e->at.tier[host];

    if (!begin || (const char *)at < begin || (const char *)at >= begin + e->p->tiers[host].bytes)
        return false;
    e->device->queue_drain(e->queue);
    return true;
}

/* The bytes of `host` may be reused on return. */
void sh_exec_put_at(struct sh_exec *e, void *device, const void *host, int64_t bytes)
{
    if (is_home(e, device))
        memcpy(device, host, (size_t)bytes);
    else
        e->device->put(e->queue, device, host, bytes);
}

void sh_exec_get_at(struct sh_exec *e, void *host, const void *device, int64_t bytes)
{
    if (is_home(e, device))
        memcpy(host, device, (size_t)bytes);
    else
        e->device->get(e->queue, host, device, bytes);
}

/* Halves are split and joined, and blocks packed, coded and back, in pieces that stay in the cache but are large enough
 * for a GPU's transfer to the host. */
enum { PIECE = 32768 };

_Static_assert(PIECE % SH_NF4_ELEMS == 0 && PIECE % SH_CODE8_ELEMS == 0, "whole blocks");

/* Room for at most PIECE elements, laid out like `like`, in `memory`, which has 4 bytes for each. */
static struct sh_floats room_like(struct sh_floats like, void *memory, int64_t n)
{
    if (like.packed)
        return (struct sh_floats){.packed = memory};
    if (like.coded)
        return (struct sh_floats){.coded = memory, .law = like.law};
    return sh_floats_in(memory, n, true);
}

/* A float32 in two halves is a bfloat16 and the 16 bits that remain (sh_floats_put()). The state of a unit with a
 * remainder is stored in this way, and everybody outside sees floats. */
void sh_exec_put_floats(struct sh_exec *e, struct sh_floats device, const float *host, int64_t n)
{
    void *memory;

    if (device.whole) {
        sh_exec_put_at(e, device.whole, host, n * (int64_t)sizeof *host);
        return;
    }
    memory = sh_calloc(PIECE, sizeof *host);
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t here = n - at < PIECE ? n - at : PIECE;
        struct sh_floats to = sh_floats_at(device, at), room = room_like(device, memory, here);

        sh_floats_put(room, here, host + at);
        for (int i = 0; i < SH_FLOATS_ARRAYS && sh_floats_array(to, i); i++)
            sh_exec_put_at(e, sh_floats_array(to, i), sh_floats_array(room, i), sh_floats_bytes(to, here));
    }
    free(memory);
}

/* The inverse of sh_exec_put_floats(). */
void sh_exec_get_floats(struct sh_exec *e, float *host, struct sh_floats device, int64_t n)
{
    void *memory;

    if (device.whole) {
        sh_exec_get_at(e, host, device.whole, n * (int64_t)sizeof *host);
        return;
    }
    memory = sh_calloc(PIECE, sizeof *host);
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t here = n - at < PIECE ? n - at : PIECE;
        struct sh_floats from = sh_floats_at(device, at), room = room_like(device, memory, here);

        for (int i = 0; i < SH_FLOATS_ARRAYS && sh_floats_array(from, i); i++)
            sh_exec_get_at(e, sh_floats_array(room, i), sh_floats_array(from, i), sh_floats_bytes(from, here));
        room.low = from.low ? room.low : NULL;
        sh_floats_get(room, here, host + at);
    }
    free(memory);
}

/* Element i of a parameter has the same value on any mesh: it depends on key and index only, so `first` is the index of
 * the first element here. */
void sh_exec_fill_normal(struct sh_exec *e, struct sh_floats device, uint64_t key, struct sh_rng_runs runs, float std)
{
    sh_rc rc = e->device->kernels->fill_normal(key, &runs, std, device, e->queue);

    if (rc != SH_OK)
        sh_stop(rc);
}

/* From here to sh_exec_copies_end() copies and sums go to the second queue. It starts when the operations given so far
 * are done; later operations run alongside it. */
void sh_exec_copies_begin(struct sh_exec *e)
{
    e->device->event_mark(e->before_copies, e->queue);
    e->device->queue_after(e->copies, e->before_copies);
}

void sh_exec_copy(struct sh_exec *e, void *host, const void *device, int64_t bytes)
{
    e->device->copy(e->copies, host, device, bytes);
}

void sh_exec_widen(struct sh_exec *e, float *host, struct sh_floats device, int64_t n)
{
    sh_rc rc = e->device->kernels->widen(device, n, host, e->copies);

    if (rc != SH_OK)
        sh_stop(rc);
}

/* On the queue of copies: it reads the same state as they do and must end before the update. */
void sh_exec_mixsum(struct sh_exec *e, struct sh_floats device, int64_t first, int64_t n, uint64_t place,
                    uint64_t *sums)
{
    sh_rc rc = e->device->kernels->mixsum(device, first, n, place, sums, e->copies);

    if (rc != SH_OK)
        sh_stop(rc);
}

/* Pinned memory of at least that many bytes, owned by the executor and valid until a larger request. Ask for it while
 * no copy is under way, so that the old one can be freed at once. */
void *sh_exec_host(struct sh_exec *e, int64_t bytes)
{
    sh_rc rc = SH_OK;

    if (bytes <= e->extra_bytes)
        return e->extra;
    if (e->extra)
        e->device->host_destroy(e->extra, e->extra_bytes);
    e->extra_bytes = bytes;
    rc = e->device->host_create(bytes, &e->extra);
    if (rc != SH_OK)
        sh_stop(rc);
    return e->extra;
}

void sh_exec_copies_end(struct sh_exec *e)
{
    e->device->event_mark(e->copied, e->copies);
}

/* The host waits. The device's operations wait at the next update or init section instead. */
void sh_exec_copies_wait(struct sh_exec *e)
{
    e->device->event_wait(e->copied);
}

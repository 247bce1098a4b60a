/* The driver copies host memory that is not pinned in pieces anyway, and meanwhile the host waits and queues stand
 * still. Here the pieces are our own: the host fills one while another travels. */
#include "src/device/cuda.h"

#include <string.h>

/* Larger pieces are not faster over PCIe 5. One more piece than a micro-step puts (tokens, targets, documents): with
 * fewer the host would wait in a put for everything in the queue. */
enum { PIECES = 4, PIECE_BYTES = 4 << 20 };

static struct {
    char *memory;
    cudaEvent_t used; /* when the last copy from or to it is done */
} piece[PIECES];
static int newest;

/* Pinned once for the life of the process: pinning takes milliseconds, which a step must not pay. */
sh_rc sh_cudart_copy_open(void)
{
    for (int i = 0; i < PIECES; i++) {
        if (cudaMallocHost((void **)&piece[i].memory, PIECE_BYTES) != cudaSuccess)
            return sh_fail(SH_E_MEMORY, "cannot allocate %d bytes of pinned host memory; see ulimit -l", PIECE_BYTES);
        sh_cudart_must(cudaEventCreateWithFlags(&piece[i].used, cudaEventDisableTiming), "create an event");
    }
    return SH_OK;
}

void sh_cudart_copy_close(void)
{
    for (int i = 0; i < PIECES; i++)
        if (piece[i].memory) {
            cudaEventDestroy(piece[i].used);
            cudaFreeHost(piece[i].memory);
            piece[i].memory = NULL;
        }
}

/* The least recently used piece, free to be written. */
static int take(void)
{
    newest = (newest + 1) % PIECES;
    sh_cudart_must(cudaEventSynchronize(piece[newest].used), "wait for a copy");
    return newest;
}

/* The event marks when the piece may be filled again; take() waits for it. */
static void travel(int i, void *to, const void *from, int64_t bytes, enum cudaMemcpyKind kind, void *queue)
{
    sh_cudart_must(cudaMemcpyAsync(to, from, (size_t)bytes, kind, queue), "copy");
    sh_cudart_must(cudaEventRecord(piece[i].used, queue), "record an event");
}

/* A large transfer goes in pieces; the last one is shorter. */
static int64_t next_bytes(int64_t left)
{
    return left < PIECE_BYTES ? left : PIECE_BYTES;
}

/* Returns when the last piece is filled, not when it has arrived: `host` is free again, the queue holds the rest. */
void sh_cudart_put(void *queue, void *device, const void *host, int64_t bytes)
{
    for (int64_t at = 0, n; at < bytes; at += n) {
        int i = take();

        n = next_bytes(bytes - at);
        memcpy(piece[i].memory, (const char *)host + at, (size_t)n);
        travel(i, (char *)device + at, piece[i].memory, n, cudaMemcpyHostToDevice, queue);
    }
}

/* Starts the next piece before the last one is copied out: the transfer and the memcpy overlap. */
static int begin_get(void *queue, const void *device, int64_t bytes)
{
    int i = take();

    travel(i, piece[i].memory, device, bytes, cudaMemcpyDeviceToHost, queue);
    return i;
}

void sh_cudart_get(void *queue, void *host, const void *device, int64_t bytes)
{
    const char *from = device;
    int ahead = bytes ? begin_get(queue, from, next_bytes(bytes)) : 0;

    for (int64_t at = 0, n; at < bytes; at += n) {
        int i = ahead;

        n = next_bytes(bytes - at);
        if (at + n < bytes)
            ahead = begin_get(queue, from + at + n, next_bytes(bytes - at - n));
        if (at + n < bytes)
            sh_cudart_event_wait(piece[i].used);
        else
            sh_cudart_event_rest(queue, piece[i].used);
        memcpy((char *)host + at, piece[i].memory, (size_t)n);
    }
}

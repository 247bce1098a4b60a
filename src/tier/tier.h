/* The scratch file of a rank: tensors that live on disk instead of in memory, moved in whole extents alongside the
 * training.
 *
 * Order of calls: sh_tier_check once per node and folder, before anything is allocated; sh_tier_open; then any number
 * of start_read and start_write, and one wait for each; sh_tier_close.
 *
 * The file has no name: it is gone with the process, however that ends. All of it is reserved, so a disk that another
 * job fills later makes no write fail. It is never fsynced: a new start loads a checkpoint, not this file. Transfers go
 * past the page cache (O_DIRECT), which would keep in memory what was to leave it. A few threads of the process work
 * through one queue, in the order of the starts, in parts of SH_TIER_PART_BYTES; they sleep in the kernel.
 *
 * Alignment: `at`, `bytes` and the address of `memory` are multiples of SH_TIER_ALIGN, bytes > 0, at + bytes within the
 * file. Anything else is SH_E_BUG.
 *
 * Ownership: memory is lent from start to wait. Until then memory that is read into is undefined, and memory that is
 * written must not change.
 *
 * Order of transfers: two that overlap in the file, at least one of them a write, are never under way together: the
 * second start is SH_E_BUG until the first one's ticket has been waited for. Which one came first is then never a
 * matter of luck. Ordering accesses to memory is the caller's business.
 *
 * What may be read: only what was written. A checksum is kept for the bytes that one write put between two multiples of
 * SH_TIER_PART_BYTES of the file (the whole write if it crosses none), and a read covers such pieces whole: one extent,
 * several that touch, or an extent from one such multiple to another. A read of anything else is SH_E_BUG, with and
 * without `verify`.
 *
 * Threads of the caller: all functions except open and close may be called from any of its threads; a ticket is waited
 * for once. A child made by fork() has none of the I/O threads and must not call anything here; exec closes the file.
 *
 * Errors: SH_E_DATA with the folder, the offset in the file, and the cause in the system's words, or "damaged" when
 * what came back differs from what was written. The text names no tensor: a caller that knows it puts it in front with
 * sh_fail_prefix. A file that failed once continues to take requests; the run is expected to end. All functions are
 * local. */
#ifndef SH_TIER_TIER_H
#define SH_TIER_TIER_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define SH_TIER_ALIGN 4096
#define SH_TIER_PART_BYTES (4ll << 20)
#define SH_TIER_THREADS 4

struct sh_tier_file;

struct sh_tier_settings {
    const char *folder; /* copied */
    int64_t bytes;      /* > 0, a multiple of SH_TIER_ALIGN; all of it is reserved */
    int threads;        /* 1 .. 64; 0: SH_TIER_THREADS */
    bool verify;        /* checksum what is written, compare when it comes back: 0.065 core seconds per GB */
};

/* Of this rank, since open. */
struct sh_tier_usage {
    int64_t read_bytes, written_bytes; /* of requests that have succeeded */
    int64_t waited_ns;                 /* in sh_tier_wait: time that no other work hid */
};

/* Check that `folder` can hold need_bytes of scratch files: the total that all ranks of this node that use it will open
 * there. Nothing stays in the folder. 0 bytes: check everything except the free space.
 * Errors: one line with the cure. SH_E_USAGE: the folder lies in memory (tmpfs, ramfs), or on a network file system and
 * allow_network is false. SH_E_DATA: no folder, no permission to write, no transfers past the page cache (O_DIRECT) of
 * aligned pages, fewer bytes free than needed. */
sh_rc sh_tier_check(const char *folder, int64_t need_bytes, bool allow_network);

/* How many bytes are free in the folder for this user; INT64_MAX if the system does not say. */
int64_t sh_tier_free_bytes(const char *folder);

/* The network file system that the folder is on, such as "NFS"; NULL: none, or the folder cannot be examined. */
const char *sh_tier_network(const char *folder);

/* Create a file without a name, of which nothing may be read before it was written, and its threads, which take no
 * signals. Errors: SH_E_DATA: as sh_tier_check, which alone checks the kind of file system; a file that would be too
 * large for the file system, a quota or a limit; SH_E_MEMORY: no threads. */
sh_rc sh_tier_open(const struct sh_tier_settings *s, struct sh_tier_file **out);

/* Wait for transfers under way, drop their results, end the threads. NULL: nothing to do. */
void sh_tier_close(struct sh_tier_file *f);

/* Start to move the bytes [at, at + bytes) of the file; returns at once.
 *   memory  [bytes], lent until the wait
 *   ticket  out  > 0, never the same twice
 * Errors: SH_E_BUG as above; a failed transfer shows in the wait. */
sh_rc sh_tier_start_read(struct sh_tier_file *f, int64_t at, void *memory, int64_t bytes, int64_t *ticket);
sh_rc sh_tier_start_write(struct sh_tier_file *f, int64_t at, const void *memory, int64_t bytes, int64_t *ticket);

/* Return when the transfer is complete; the ticket is spent. Errors: SH_E_DATA; SH_E_BUG: no such ticket. */
sh_rc sh_tier_wait(struct sh_tier_file *f, int64_t ticket);

/* Start and wait in one. */
sh_rc sh_tier_read(struct sh_tier_file *f, int64_t at, void *memory, int64_t bytes);
sh_rc sh_tier_write(struct sh_tier_file *f, int64_t at, const void *memory, int64_t bytes);

/* Set *out to the figures of one moment, even while transfers are under way. */
void sh_tier_usage(struct sh_tier_file *f, struct sh_tier_usage *out);

/* Bytes rounded up to a multiple of SH_TIER_ALIGN. */
static inline int64_t sh_tier_align(int64_t bytes)
{
    return (bytes + SH_TIER_ALIGN - 1) / SH_TIER_ALIGN * SH_TIER_ALIGN;
}

#endif

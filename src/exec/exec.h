/* The executor: runs the sections of a program, in the order in which their operations stand.
 *
 * One thread puts operations of the compute stream into one queue of the device; a collective is started where it stands,
 * after everything before it, and its result is there after its wait; so is a move between tiers. On the CPU each operation is done when its call
 * returns. On a GPU the host runs ahead of it; what the host reads (sh_exec_get) it waits for. */
#ifndef SH_EXEC_EXEC_H
#define SH_EXEC_EXEC_H

#include "src/comm/comm.h"
#include "src/device/device.h"
#include "src/program/program.h"
#include "src/metrics/trace.h"

struct sh_exec;

struct sh_exec_time {
    double compute, exposed_comm,
        exposed_offload;               /* seconds of what came to its end since the last sh_exec_take_time */
    int64_t read_bytes, written_bytes; /* of moves to and from the device in the sections since then */
};

/* The scratch file of a program with a file tier (src/tier/tier.h). */
struct sh_exec_file {
    const char *folder;
    bool verify;
};

/* The program, device and channels are lent until sh_exec_destroy. Allocates the arena, and touches nothing of it, the
 * arena of host memory where the program has one, whose slices are zeros, and opens the scratch file where it has a file
 * tier, for which the device must be the host; prepares the kernels. Errors: SH_E_MEMORY; those of sh_tier_open(); those of a kernel's preparation, with
 * the name of the operation.
 *   segment_fd  the file of the program's segment, for the time of the call; -1 when it has none
 *   file        for the time of the call; its fields count where the program has a file tier */
sh_rc sh_exec_create(const struct sh_program *p, const struct sh_device *device, struct sh_comm *comm, int segment_fd,
                     const struct sh_exec_file *file, struct sh_exec **out);
void sh_exec_destroy(struct sh_exec *e);

/* Run one section of the program, or the first of a kind. Collective over the mesh; a failure inside stops the
 * job. */
void sh_exec_run_section(struct sh_exec *e, const struct sh_section *s);
void sh_exec_run(struct sh_exec *e, enum sh_section_kind kind);

/* The update, whose scalars are set. Where the program carries it (sh_program_carries()) and it is not to be done now, it is
 * pending: the next step's first micro-step carries it out, or settle, whichever comes first. Until then the parameters and
 * states are those before it, and no other section may run. Update and settle, which does nothing where none is pending, are
 * collective; is_pending is local, and the same on all ranks. */
void sh_exec_update(struct sh_exec *e, bool now);
void sh_exec_settle(struct sh_exec *e);
bool sh_exec_is_pending(const struct sh_exec *e);

void *sh_exec_queue(struct sh_exec *e);                          /* that of the operations; NULL on the CPU */
struct sh_op_scalars *sh_exec_scalars(struct sh_exec *e);        /* of all operations but updates */
struct sh_op_scalars *sh_exec_update_scalars(struct sh_exec *e); /* of those; as they are when it is carried out */
/* Device address; of a snapshot and of a slice in the host tier: pinned host memory, which kernels of the device reach too. What lies in a file has none: SH_E_BUG, and the job ends. */
void *sh_exec_data(struct sh_exec *e, int tensor);
void sh_exec_put(struct sh_exec *e, int tensor, const void *host); /* the whole tensor */
void sh_exec_get(struct sh_exec *e, int tensor, void *host);

/* The extent of a slice, a row of the program's table, between sections. It is in memory until others are asked for or a
 * section runs, and changes go to the file then. One is lent at a time: lend waits for who has one, give_back ends that.
 * In the host tier it is always there, and what is queued may still write it: it is looked at by what is queued too, or by
 * sh_exec_get_at() and the like. Any thread. Errors: SH_E_DATA with unit and elements; nothing is lent then. */
sh_rc sh_exec_lend(struct sh_exec *e, int slice, bool change, char **extent);
void sh_exec_give_back(struct sh_exec *e);

/* All slices become zeros, as they are at first, and an update that is pending is dropped. */
void sh_exec_forget_slices(struct sh_exec *e);

/* Copies between device addresses, or a slice of the host tier, and any host memory, in order with the operations; done on
 * return. One thread at a time, attached to the device. */
void sh_exec_put_at(struct sh_exec *e, void *device, const void *host, int64_t bytes);
void sh_exec_get_at(struct sh_exec *e, void *host, const void *device, int64_t bytes);

/* The same of floats that on the device may be in halves; `host` is one array. */
void sh_exec_put_floats(struct sh_exec *e, struct sh_floats device, const float *host, int64_t n);
void sh_exec_get_floats(struct sh_exec *e, float *host, struct sh_floats device, int64_t n);

/* Numbers of src/base/rng.h, made on the device, in order with the operations. Stops the job when a GPU fails. */
void sh_exec_fill_normal(struct sh_exec *e, struct sh_floats device, uint64_t key, int64_t first, int64_t n, float std);

/* Copies to the host arena beside the operations: begin, copy ..., end; what runs between writes nothing that is
 * copied, so UPDATE and INIT wait until they are done, and sh_exec_copies_wait() lets the host wait. */
void sh_exec_copies_begin(struct sh_exec *e);
void sh_exec_copy(struct sh_exec *e, void *host, const void *device, int64_t bytes);
void sh_exec_copies_end(struct sh_exec *e);

/* Among the copies, of the device's memory before it travels: sums of parts as the kernel table's mixsum has them, into
 * sums [parts], which sh_exec_host() lent. Only where the device has memory of its own. Stops the job when a GPU fails. */
void sh_exec_mixsum(struct sh_exec *e, struct sh_floats device, int64_t n, uint64_t place, uint64_t *sums);

/* Pinned host memory of its own for that, kept until the end: at least `bytes`, whose contents are lost when it grows.
 * Stops the job with SH_E_MEMORY when it cannot be had. */
void *sh_exec_host(struct sh_exec *e, int64_t bytes);
void sh_exec_copies_wait(struct sh_exec *e);

void sh_exec_set_step(struct sh_exec *e, int64_t step);        /* for reports of a stall */
void sh_exec_set_trace(struct sh_exec *e, struct sh_trace *t); /* NULL: none */
void sh_exec_set_sync(struct sh_exec *e, bool sync); /* wait for a GPU after each operation; one that fails is named */
struct sh_exec_time sh_exec_take_time(struct sh_exec *e); /* and start again from zero */

#endif

/* The executor: runs the sections of a program, their operations in the order in which they are listed.
 *
 * One thread puts operations of the compute stream into one queue of the device. A collective or a move between tiers
 * starts at its place in the list, after everything before it; its result exists after its wait. On the CPU each
 * operation is done when its call returns. On a GPU the host runs ahead, and waits only for what it reads
 * (sh_exec_get) and for the numbers of rows that it sends (counts.h). */
#ifndef SH_EXEC_EXEC_H
#define SH_EXEC_EXEC_H

#include "src/comm/comm.h"
#include "src/device/device.h"
#include "src/program/program.h"
#include "src/metrics/trace.h"

struct sh_exec;

struct sh_exec_time {
    double compute, exposed_comm, exposed_offload; /* seconds of what has ended since the last sh_exec_take_time */
    int64_t read_bytes, written_bytes;             /* of moves to and from the device in the sections since then */
};

/* The scratch file of a program with a file tier (src/tier/tier.h). */
struct sh_exec_file {
    const char *folder;
    bool verify;
};

/* The program, device and channels are lent until sh_exec_destroy. Allocates the arena without touching it, and the
 * arena of host memory if the program has one, whose slices become zeros. Opens the scratch file if the program has a
 * file tier, for which the device must be the host. Prepares the kernels. Errors: SH_E_MEMORY; those of sh_tier_open();
 * those of a kernel's preparation, with the name of the operation.
 *   segment_fd  the file of the program's segment, used only during the call; -1 if it has none
 *   file        used only during the call; its fields count only if the program has a file tier */
sh_rc sh_exec_create(const struct sh_program *p, const struct sh_device *device, struct sh_comm *comm, int segment_fd,
                     const struct sh_exec_file *file, struct sh_exec **out);
void sh_exec_destroy(struct sh_exec *e);

/* Run one section of the program, or the first of a kind. Collective over the mesh; a failure inside stops the
 * job. */
void sh_exec_run_section(struct sh_exec *e, const struct sh_section *s);
void sh_exec_run(struct sh_exec *e, enum sh_section_kind kind);

/* Run the update, whose scalars are set. If the program can carry it (sh_program_carries()) and `now` is false, the
 * update is pending: either the next step's first micro-step or settle carries it out, whichever comes first. Until
 * then parameters and states are those before the update, and no other section may run. Settle does nothing if no
 * update is pending. Update and settle are collective; is_pending is local, and the same on all ranks. */
void sh_exec_update(struct sh_exec *e, bool now);
void sh_exec_settle(struct sh_exec *e);
bool sh_exec_is_pending(const struct sh_exec *e);

void *sh_exec_queue(struct sh_exec *e);                          /* the queue of the operations; NULL on the CPU */
struct sh_op_scalars *sh_exec_scalars(struct sh_exec *e);        /* of all operations but updates */
struct sh_op_scalars *sh_exec_update_scalars(struct sh_exec *e); /* of updates; read when an update is carried out */
/* The device address of a tensor; for a snapshot or a slice in the host tier it is in pinned host memory, which kernels
 * of the device reach too. A tensor in a file has none: SH_E_BUG, and the job ends. */
void *sh_exec_data(struct sh_exec *e, int tensor);
/* The whole tensor of a port. Put does nothing if the program has no such port; get then ends the job. */
void sh_exec_put(struct sh_exec *e, enum sh_port port, const void *host);
void sh_exec_get(struct sh_exec *e, enum sh_port port, void *host);

/* Lend the extent of a slice, a row of the program's table, between sections. The extent is in memory until others are
 * asked for or a section runs; then changes go to the file. One is lent at a time: lend waits until the last one is
 * given back. In the host tier the extent is always there, but queued work may still write it: look at it with queued
 * work too, or with sh_exec_get_at() and the like. Any thread. Errors: SH_E_DATA with unit and elements; nothing is
 * lent then. */
sh_rc sh_exec_lend(struct sh_exec *e, int slice, bool change, char **extent);
void sh_exec_give_back(struct sh_exec *e);

/* Set all slices to zeros, as they are at first, and drop an update that is pending. */
void sh_exec_forget_slices(struct sh_exec *e);

/* Copy between a device address, or a slice of the host tier, and any host memory, in order with the operations; done
 * on return. One thread at a time, attached to the device. */
void sh_exec_put_at(struct sh_exec *e, void *device, const void *host, int64_t bytes);
void sh_exec_get_at(struct sh_exec *e, void *host, const void *device, int64_t bytes);

/* The same for floats, which may be in halves on the device; `host` is one array. */
void sh_exec_put_floats(struct sh_exec *e, struct sh_floats device, const float *host, int64_t n);
void sh_exec_get_floats(struct sh_exec *e, float *host, struct sh_floats device, int64_t n);

/* Fill with runs of normal numbers of src/base/number/rng.h, end to end, made on the device, in order with the operations.
 * Stops the job if a GPU fails. */
void sh_exec_fill_normal(struct sh_exec *e, struct sh_floats device, uint64_t key, struct sh_rng_runs runs, float std);

/* Copies to the host arena alongside the operations: begin, copy ..., end. What runs meanwhile must not write what is
 * copied, so UPDATE and INIT wait until the copies are done; sh_exec_copies_wait() lets the host wait. */
void sh_exec_copies_begin(struct sh_exec *e);
void sh_exec_copy(struct sh_exec *e, void *host, const void *device, int64_t bytes);
void sh_exec_copies_end(struct sh_exec *e);

/* Among the copies, only if the device has memory of its own: copy n floats in codes to float32 in the host arena; and sum
 * parts of the device's memory before it travels, as the kernel table's mixsum does, into sums [parts], which sh_exec_host()
 * lent. Both stop the job if a GPU fails. */
void sh_exec_widen(struct sh_exec *e, float *host, struct sh_floats device, int64_t n);
void sh_exec_mixsum(struct sh_exec *e, struct sh_floats device, int64_t first, int64_t n, uint64_t place,
                    uint64_t *sums);

/* Separate pinned host memory for those sums, kept until the end: at least `bytes`, whose contents are lost when it
 * grows. Stops the job with SH_E_MEMORY if it cannot be allocated. */
void *sh_exec_host(struct sh_exec *e, int64_t bytes);
void sh_exec_copies_wait(struct sh_exec *e);

/* Call `look` with the number of each operation of the program before it is run, and when it has been run; NULL: nothing.
 * The outputs of a kernel and of a wait can then be read with sh_exec_get_at(), and what they read before. Norms may be
 * measured in a step that somebody else looks at. */
enum sh_exec_looks { SH_LOOKS, SH_LOOKS_FOR_NORMS, SH_EXEC_LOOKS };
void sh_exec_set_look(struct sh_exec *e, enum sh_exec_looks who, void (*look)(void *arg, int op, bool done), void *arg);

/* The call of a kernel, whose operands are device addresses. Lent. */
const struct sh_op_call *sh_exec_call(const struct sh_exec *e, int op);

void sh_exec_set_step(struct sh_exec *e, int64_t step);        /* for reports of a stall */
void sh_exec_set_trace(struct sh_exec *e, struct sh_trace *t); /* NULL: none */
void sh_exec_set_sync(struct sh_exec *e, bool sync); /* wait for a GPU after each operation; a failing one is named */
struct sh_exec_time sh_exec_take_time(struct sh_exec *e); /* and start again from zero */

#endif

/* Shared by the files of the shard pass. */
#ifndef SH_PASS_SHARD_H
#define SH_PASS_SHARD_H

#include "src/layout/layout.h"
#include "src/pass/build.h"
#include "src/pass/pass.h"

/* Write the units and their persistent tensors for one rank into the empty program `out`. */
void sh_shard_state(const struct sh_program *micro, const struct sh_pass_options *opt, struct sh_program *out);
void sh_shard_snapshot(const struct sh_pass_options *opt, struct sh_program *p, struct sh_unit *u);

/* Append the section `kind`, made from a micro-step with the parameters of `out` (its batch may differ: EVAL).
 *   micro_step  of a training section: the first one that runs it; else 0
 * With options.reproducible it reads and writes the levels of the tree that belong to that micro-step. */
void sh_shard_section(const struct sh_program *micro, const struct sh_pass_options *opt, enum sh_section_kind kind,
                      int micro_step, int repeat, struct sh_program *out);

/* Append INIT (constant tables, compute copies of the parameters), LOSS, NORM, UPDATE. */
void sh_shard_init(const struct sh_program *micro, const struct sh_pass_options *opt, struct sh_program *out);
void sh_shard_loss(const struct sh_pass_options *opt, struct sh_program *out);
void sh_shard_norm(const struct sh_pass_options *opt, struct sh_program *out);
void sh_shard_update(const struct sh_build *b, struct sh_program *out);

/* Append what follows from a unit's new masters: the cast to what is computed with, and the gather of a full copy that
 * stays. */
void sh_shard_refresh(const struct sh_pass_options *opt, struct sh_program *p, int unit, enum sh_phase phase);

/* A view of `base` from element `first` on; returns its index. */
int sh_shard_view(struct sh_program *p, int base, int64_t first, int ndim, const int64_t *dim, const char *name);

/* n elements of a unit's parameters as they are gathered, [n] act, packed [n/64,36] u8 or coded [n/64,68] u8; n elements
 * from `first` on of a unit that lies so in `base`, as a view of it; and where an element is there, in elements of act or
 * bytes. */
struct sh_tensor sh_shard_stored(const struct sh_program *p, const struct sh_unit *u, enum sh_mem mem, int64_t n,
                                 const char *what);
int sh_shard_stretch(struct sh_program *p, const struct sh_unit *u, int base, int64_t first, int64_t n);
int64_t sh_shard_place(const struct sh_unit *u, int64_t elem);

/* Elements of a rank's chunk of a unit over `size` ranks. */
int64_t sh_shard_cut(const struct sh_unit *u, int size);

/* What a section has unpacked or decoded. weight: [micro tensors] for the run `tiles` of tiles, SH_NONE; freed by its owner. */
struct sh_shard_unpacked {
    const struct sh_program *micro;
    struct sh_program *out;
    int *weight;
    int tiles;
};

/* The tensor with the weight `t` of the micro-step, unpacked or decoded for its operation `next`. full: the unit in blocks,
 * gathered or resident; rows: of experts, in the section; SH_NONE. */
int sh_shard_unpacked(struct sh_shard_unpacked *u, const struct sh_op *next, int t, int full, int rows);

/* The space of gradients of a type: of whole units until they are reduced, and of chunks that replicas sum. In a
 * segment other ranks read the gradients that are sent, which are all of one type. */
enum sh_space sh_shard_unreduced_space(const struct sh_pass_options *opt, const struct sh_unit *u, enum sh_dtype dtype);
enum sh_space sh_shard_reduced_space(const struct sh_pass_options *opt, const struct sh_unit *u, enum sh_dtype dtype);

/* Into how many chunks a unit is cut, which of them is this rank's, and how many ranks have the same one. */
int sh_shard_chunks(const struct sh_pass_options *opt, const struct sh_unit *u);
int sh_shard_index(const struct sh_pass_options *opt, const struct sh_unit *u);
int sh_shard_replicas(const struct sh_pass_options *opt, const struct sh_unit *u);

/* Set the runs of weight decay of all updates of the program: new rows of its table replace the old ones. */
void sh_shard_renew_runs(const struct sh_pass_options *opt, struct sh_program *p);

/* Elements of the rank's chunk that an operation updates, padding included. */
struct sh_range sh_shard_updated(const struct sh_program *p, const struct sh_op *op);

#endif

/* Shared by the files of the shard pass. */
#ifndef SH_PASS_SHARD_H
#define SH_PASS_SHARD_H

#include "src/pass/pass.h"

/* A view of `base` from element `first` on; returns its index. */
int sh_shard_view(struct sh_program *p, int base, int64_t first, int ndim, const int64_t *dim, const char *name);

/* Where gradients of a type lie: of whole units until they are reduced, and chunks that replicas sum. In a segment
 * others look at those that are sent, which are of one type. */
enum sh_space sh_shard_unreduced_space(const struct sh_pass_options *opt, const struct sh_unit *u, enum sh_dtype dtype);
enum sh_space sh_shard_reduced_space(const struct sh_pass_options *opt, const struct sh_unit *u, enum sh_dtype dtype);

/* In how many chunks a unit is cut, which of them is this rank's, and how many ranks have the same. */
int sh_shard_chunks(const struct sh_pass_options *opt, const struct sh_unit *u);
int sh_shard_index(const struct sh_pass_options *opt, const struct sh_unit *u);
int sh_shard_replicas(const struct sh_pass_options *opt, const struct sh_unit *u);

/* A collective of unit `unit` over a group and the wait for it, appended to the newest section of p; returns the
 * collective's index in the section. `in` or `out` SH_NONE where the kind has none. `after`: index of another one that comes before. */
int sh_shard_collective(struct sh_program *p, enum sh_op_kind kind, int stream, sh_group group, int unit,
                        int in, int out, int after, enum sh_phase phase);

/* early[units]: the operation of the micro-step after which a unit can be reduced early, before the embedding's backward
 * adds the rows of its tokens; SH_NONE: reduced when all of it is there. And those rows, in elements of the unit. */
void sh_shard_early(const struct sh_program *micro, const struct sh_pass_options *opt, int *early);
struct sh_op_rows sh_shard_rows(const struct sh_program *micro, int unit);

/* Whether they cut no block of exact sums in two, so that both reductions can add squares. */
bool sh_shard_whole_blocks(const struct sh_op_rows *rows);

/* A plain operation appended to the newest section. */
void sh_shard_op(struct sh_program *p, struct sh_op op);

#endif

/* The copy of the state that an asynchronous save writes while training continues, and that a GPU's files are written
 * from if the plan has room for it. It lies in the units' snapshots, which hold what this rank writes. */
#ifndef SH_SAVE_SNAPSHOT_H
#define SH_SAVE_SNAPSHOT_H

struct sh_run;
struct sh_shards;

/* Copy the state into the snapshot that `p`, newly made with SH_SHARDS_SNAPSHOT, describes, and compute its early sums
 * on the way. On CPUs all threads of the rank do both in one pass. On a GPU the copy runs alongside training, and the
 * GPU sums its own memory before the data travels, so the sums also cover the transfer. sh_snapshot_wait() waits for
 * it. Local. */
void sh_snapshot_copy(struct sh_shards *p);
void sh_snapshot_wait(const struct sh_shards *p);

/* Describe what is written while training waits: on a GPU with planned snapshots, a finished copy, else the state
 * itself. Local. */
void sh_snapshot_now(const struct sh_run *r, struct sh_shards *out);

/* Touch the pages of the snapshot before the first copy: page faults while training waits would take longer than the
 * copy. */
void sh_snapshot_touch(const struct sh_run *r);

#endif

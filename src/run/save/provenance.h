/* What a run began from, and which data it trains on. The notes of its checkpoints say both by content, with a path for
 * the reader: folders move, and other weights take the place of old ones. A run continues only for a start that names
 * what it began from, or names nothing; otherwise a start with another model would train the old one. Changed data is
 * said (changes.h), never refused. */
#ifndef SH_SAVE_PROVENANCE_H
#define SH_SAVE_PROVENANCE_H

#include "src/base/err.h"

#include <stdbool.h>

struct sh_ckpt_meta;
struct sh_data;
struct sh_run;

/* Where the trained parameters of a new run are from. */
enum sh_provenance_kind { SH_FROM_VALUES, SH_FROM_CHECKPOINT, SH_FROM_FOLDER, SH_FROM_ADAPTER };

/* Texts of the notes, freed by sh_provenance_free(); NULL: not known. */
struct sh_provenance {
    char *begun;     /* "initial values", or kind, digest and path */
    char *data;      /* sh_data_text() of the training data */
    char *data_then; /* the same when the checkpoint was saved that this process continues from */
};

/* What the configuration says that a new run begins from. Local. */
enum sh_provenance_kind sh_provenance_of(const struct sh_run *r);

/* Note that the run begins from what the configuration names; `path` is where that was found. Collective, agreed.
 * Errors: SH_E_DATA: it cannot be read. */
sh_rc sh_provenance_begin(struct sh_run *r, const char *path);

/* Note the training data. Collective, agreed. Errors: SH_E_DATA. */
sh_rc sh_provenance_data(struct sh_run *r, const struct sh_data *data);

/* Before a run continues from a folder of checkpoints: if the configuration names a beginning, compare it with that of
 * the run, and say which of both counts. One that cannot be found passes if the run began from the same path, since it
 * may be gone by now. Local: rank 0. Errors: SH_E_USAGE: the run began from something else. */
sh_rc sh_provenance_check(const struct sh_run *r, const char *folder);

/* Before the state of a checkpoint is used: its plug-ins are those of this run, by the sums of their files, or
 * plugin.allow_change says that they may differ. Local: all ranks have read the same. Errors: SH_E_USAGE, with both. */
sh_rc sh_provenance_plugins(const struct sh_run *r, const char *path, const struct sh_ckpt_meta *meta);

/* Whether `sherd ckpt import` made a checkpoint of what another program left. Local. */
bool sh_provenance_outside(const struct sh_ckpt_meta *meta);

/* Take the notes of a checkpoint that the run continues from, and make those of one that it saves; the text is freed
 * with free(). Local. */
void sh_provenance_take(struct sh_run *r, const struct sh_ckpt_meta *meta);
char *sh_provenance_notes(const struct sh_run *r);
void sh_provenance_free(struct sh_provenance *o);

#endif

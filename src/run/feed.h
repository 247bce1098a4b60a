/* The sequences of one micro-step of this rank, so that memory does not grow with the global batch. open and close are
 * local, though all ranks call them; errors are those of sh_data_open(). */
#ifndef SH_RUN_FEED_H
#define SH_RUN_FEED_H

#include "io/data/data.h"
#include "src/config/config.h"

struct sh_run;

struct sh_feed {
    struct sh_data *data;
    int32_t *tokens, *targets, *docs; /* [sequences, T] */
    int64_t sequences;                /* local_batch_size */
    bool with_docs;
};
sh_rc sh_feed_open(struct sh_run *r, const char *path, bool shuffle, struct sh_feed *f);
void sh_feed_close(struct sh_feed *f);
/* How the data set of a path is opened; "" is data.mix. Errors: SH_E_DATA: the model's tokenizer.json cannot be read. */
sh_rc sh_feed_options(const struct sh_config *cfg, const char *path, bool shuffle, struct sh_data_options *opt);
/* What data.packing=auto stands for with the files of a path, or of data.mix with "": the program depends on it. To be
 * asked before a program is planned. Errors: SH_E_USAGE: data.mix cannot be read. */
sh_rc sh_feed_settle(struct sh_config *cfg, const char *path);
/* A note on standard error where a large vocabulary meets ids that are all bytes: tokens of another tokenizer than the
 * model's, most likely. Looks at a few windows. Local. */
void sh_feed_note_bytes(const struct sh_data *d, const char *path, int vocab_size);
/* One line about rows of documents: how many, how full, what is left out; or, without documents, about a strategy for
 * those that are too long. Local. */
void sh_feed_note_rows(const struct sh_data *d, enum sh_cfg_excess excess);
/* Copy what was read into the program's tensors. Local. */
void sh_feed_put(struct sh_run *r, const struct sh_feed *f);

#endif

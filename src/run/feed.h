/* The sequences of one micro-step of this rank: only these are in memory, so it does not grow with the global batch.
 * Open and close are local, although all ranks call them; errors are those of sh_data_open(). */
#ifndef SH_RUN_FEED_H
#define SH_RUN_FEED_H

#include "io/data/data.h"
#include "src/config/config.h"
#include "src/program/port.h"

struct sh_run;
struct sh_reference; /* reference.h */
struct sh_teacher;   /* teacher.h */

struct sh_feed {
    struct sh_data *data;
    int32_t *tokens, *targets, *docs; /* [sequences, T] */
    float *weights;                   /* of targets, [sequences, T]; NULL: the run has none */
    int64_t units;                    /* their sum over what was read, as of sh_data_weigh() */
    float *wanted;     /* [sequences, T, labels] from 0 to 1, of texts with several; NULL: there are none */
    double *number;    /* [labels] of one text, and */
    int64_t *document; /* [sequences, T] which text begins at a place: scratch for them */
    struct sh_reference *reference; /* of answers, else NULL */
    struct sh_teacher *teacher;     /* of a run that learns from one, else NULL */
    int32_t *part;     /* the rows of this rank, if it has a part of each sequence: [sequences, n], or so many
                                         for each word of a teacher */
    int labels;        /* targets must be below it; 0: they are tokens */
    int64_t sequences; /* of a micro-step */
    int length;        /* with data.length_schedule: documents have so many tokens; 0: the data's own documents */
    bool with_docs;
    bool noted; /* how the work of its first rows is shared */
};
sh_rc sh_feed_open(struct sh_run *r, const char *path, bool shuffle, struct sh_feed *f);
void sh_feed_close(struct sh_feed *f);
/* The options that open the data set of a path; "" stands for data.mix. Errors: SH_E_DATA: the model's tokenizer.json
 * cannot be read. */
sh_rc sh_feed_options(const struct sh_config *cfg, const char *path, bool shuffle, struct sh_data_options *opt);
/* Replace data.packing=auto, and data.token_weight=auto if it is the path of training, by what they stand for with the files of a path, or of data.mix if the path is "". Call it
 * before a program is planned, because the program depends on the packing. Errors: SH_E_USAGE: data.mix cannot be
 * read. */
sh_rc sh_feed_settle(struct sh_config *cfg, const char *path);
/* Print a note on standard error if the vocabulary is large and all ids are below 256: most likely the tokens come from
 * another tokenizer than the model's. Looks at a few windows. Local. */
void sh_feed_note_bytes(const struct sh_data *d, const char *path, int vocab_size);
/* Log one line about rows of documents: how many, how full, how many are left out. If there are no documents, log that
 * a strategy for documents that are too long has no effect. Local. */
void sh_feed_note_rows(const struct sh_data *d, enum sh_cfg_excess excess);
/* Read samples [first, first + n) of the run; *unmasked as from sh_data_read(). Local. */
sh_rc sh_feed_read(struct sh_feed *f, int64_t first, int64_t n, int64_t *unmasked);
/* Copy the sequences that were read into the program's tensors, as those of micro-step `micro`. Local. */
void sh_feed_put(struct sh_run *r, struct sh_feed *f, int micro);
/* Read a port with n numbers for each place, of all ranks that have parts of the sequences, into [sequences,T,n]. The type
 * is that of the port. Local. */
void sh_feed_take(const struct sh_run *r, enum sh_port port, void *to);

#endif

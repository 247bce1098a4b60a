/* The token files of a data set with what lies beside them, and windows of them. Files are read with pread and not mapped: a file
 * that shrinks or an I/O error is then an error code, whereas a mapping would kill the process with SIGBUS. Local;
 * reading changes nothing, so several threads may read. */
#ifndef IO_DATA_FILES_H
#define IO_DATA_FILES_H

#include "io/data/data.h"
#include "io/data/format.h"
#include "io/data/handles.h"

struct sh_foreign;

enum sh_data_beside { SH_DATA_MASK, SH_DATA_WEIGHT, SH_DATA_BESIDES };

struct sh_data_file {
    int handle;                  /* of the tokens */
    int beside[SH_DATA_BESIDES]; /* handles, of what the set has beside its tokens (beside.h) */
    int token_bytes;             /* 2 or 4 */
    int64_t offset;              /* bytes before the first token */
    int64_t tokens;
    int64_t first_window; /* windows in the files before this one */
    /* For document files only. */
    bool has_documents;
    int64_t documents, first_document; /* first_document: number of documents in the files before this one */
    int64_t offsets_at, mask_at;       /* bytes; mask_at 0: the file has no mask, or it is not used */
    uint64_t tokenizer;                /* hash of tokenizer.json; 0: not known */
    int vocab_size;                    /* words of the tokenizer */
    int64_t learned;                   /* targets that count; 0: not known, or there is no mask */
    char chat_template[SH_DOCUMENT_TEMPLATE];
    bool pairs;         /* its documents are pairs of answers */
    bool labels;        /* they are answers with a label each */
    int64_t numbers_at; /* bytes; 0: documents have no numbers */
    int width;          /* numbers of each document that has some */
};

struct sh_data_files {
    struct sh_handles *handles;
    struct sh_data_file *file;
    int n;
    bool mismatched;           /* each answer of the set has a mismatched one beside it (documents.h) */
    int64_t kept;              /* most tokens that an answer has in its row: its beginning; 0: it has all */
    bool has[SH_DATA_BESIDES]; /* true: every file has such a thing; false: none has */
    int seq_len, vocab_size;
    enum sh_cfg_packing packing;        /* never auto */
    int64_t windows, tokens, documents; /* of all files; windows only with concat */
};

/* How many of an answer's tokens its row has. */
static inline int64_t sh_data_files_kept(const struct sh_data_files *set, int64_t tokens)
{
    return set->kept && tokens > set->kept ? set->kept : tokens;
}

/* Open all files that match opt->path, in the order of their names, and check headers and sizes. The first file decides
 * what packing "auto" means. Errors: see sh_data_open. */
sh_rc sh_data_files_open(const struct sh_data_options *opt, struct sh_data_files *out);
void sh_data_files_close(struct sh_data_files *files);

/* Chain a sample of each file and of what lies beside it to *hash (io/file/sample.h): 16 MiB in all, or 16 KiB of each file if they
 * are more than 1024. Errors: SH_E_DATA. */
sh_rc sh_data_files_sample(const struct sh_data_files *files, uint64_t *hash);

/* Read window w, which is seq_len + 1 tokens. ids out [seq_len + 1]. Errors: SH_E_DATA. */
sh_rc sh_data_files_window(const struct sh_data_files *files, int64_t w, int32_t *ids);

/* Read tokens [first, first + n) of one file and check them against the vocabulary. Errors: SH_E_DATA. */
sh_rc sh_data_files_ids(const struct sh_data_files *files, const struct sh_data_file *f, int64_t first, int n,
                        int32_t *ids);

/* What the file of bare ids looks like instead; NULL: nothing, or it has a header. Errors: SH_E_DATA. */
sh_rc sh_data_files_foreign(const struct sh_data_files *files, const struct sh_data_file *f,
                            const struct sh_foreign **is);

/* Read which targets of window w count. mask out [seq_len]: 0 or 1; only if the set has masks. Errors: SH_E_DATA. */
sh_rc sh_data_files_mask(const struct sh_data_files *files, int64_t w, unsigned char *mask);

/* Read what the targets of window w weigh. weight out [seq_len]; only if the set has weights. Errors: SH_E_DATA. */
sh_rc sh_data_files_weights(const struct sh_data_files *files, int64_t w, float *weight);

#endif

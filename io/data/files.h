/* The token files of a data set with their masks, and windows of them. Read with pread and not mapped: a file that shrinks or an I/O
 * error is then an error code, where a mapping would kill the process with SIGBUS. Local; reading changes nothing, so
 * several threads may read. */
#ifndef IO_DATA_FILES_H
#define IO_DATA_FILES_H

#include "io/data/data.h"
#include "io/data/handles.h"

struct sh_data_file {
    int handle;      /* of the tokens */
    int mask;        /* handle of its mask; where the set has masks */
    int token_bytes; /* 2 or 4 */
    int64_t offset;  /* bytes before the first token */
    int64_t tokens;
    int64_t first_window; /* windows in the files before this one */
    /* Of a document file. */
    bool has_documents;
    int64_t documents, first_document; /* first_document: those in the files before this one */
    int64_t offsets_at, mask_at;       /* bytes; mask_at 0: it has none, or it is not used */
    uint64_t tokenizer;                /* hash of tokenizer.json; 0: not known */
    int vocab_size;                    /* words of the tokenizer */
};

struct sh_data_files {
    struct sh_handles *handles;
    struct sh_data_file *file;
    int n;
    bool masked; /* each file has a mask, or none has */
    int seq_len, vocab_size;
    enum sh_cfg_packing packing;        /* never auto */
    int64_t windows, tokens, documents; /* of all files; windows: with concat */
};

/* Open all files that opt->path names, in the order of their names, and check headers and sizes. The first one decides
 * what packing "auto" is. Errors: see sh_data_open. */
sh_rc sh_data_files_open(const struct sh_data_options *opt, struct sh_data_files *out);
void sh_data_files_close(struct sh_data_files *files);

/* Window w: seq_len + 1 tokens. ids out [seq_len + 1]. Errors: SH_E_DATA. */
sh_rc sh_data_files_window(const struct sh_data_files *files, int64_t w, int32_t *ids);

/* Tokens [first, first + n) of one file, checked against the vocabulary. Errors: SH_E_DATA. */
sh_rc sh_data_files_ids(const struct sh_data_files *files, const struct sh_data_file *f, int64_t first, int n,
                        int32_t *ids);

/* Which of its targets count. mask out [seq_len]: 0 or 1; only where the set has masks. Errors: SH_E_DATA. */
sh_rc sh_data_files_mask(const struct sh_data_files *files, int64_t w, unsigned char *mask);

#endif

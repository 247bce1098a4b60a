/* Tokenizers, one row each, and text files to token files. All functions are local. */
#ifndef IO_TOKEN_TOKEN_H
#define IO_TOKEN_TOKEN_H

#include "src/base/err.h"

#include <stddef.h>
#include <stdint.h>

struct sh_token_ops {
    const char *name;
    int vocab_size;

    /* Text to ids. A long text comes in pieces that end at line ends where there are any.
     *   ids  out [bytes]: never more ids than bytes
     *   n    out: ids written */
    sh_rc (*encode)(const unsigned char *text, size_t bytes, uint32_t *ids, size_t *n);

    /* Ids to text. *text freed with free(), *bytes long and a '\0' behind that. Errors: SH_E_DATA: an unknown id. */
    sh_rc (*decode)(const uint32_t *ids, size_t n, char **text, size_t *bytes);
};

/* "byte": one id a byte, 256 words. */
extern const struct sh_token_ops sh_token_byte;

/* By name. Errors: SH_E_USAGE naming those there are. */
sh_rc sh_token_find(const char *name, const struct sh_token_ops **out);

struct sh_token_options {
    const char *tokenizer;       /* name; NULL: "byte" */
    const char *const *inputs;   /* text files, taken one after the other */
    int n_inputs;
    const char *output;          /* .bin file of tokens, written anew */
    const char *val_output;      /* NULL: no validation file */
    double val_fraction;         /* of the bytes, from the end; in (0, 1) when val_output is given */
};

struct sh_token_report {
    int64_t bytes;               /* read */
    int64_t tokens, val_tokens;  /* written to output and to val_output */
    int vocab_size;
};

/* Tokenize files. The validation part starts at a line begin (if the text has lines), so no line is in both.
 * Errors: SH_E_USAGE: options that do not fit; SH_E_DATA: a file. No incomplete file is left behind. */
sh_rc sh_token_file(const struct sh_token_options *opt, struct sh_token_report *report);

#endif

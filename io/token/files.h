/* Text files to a token file: many threads encode, and what is written does not depend on how many. Local.
 *
 * A document is a line of jsonl, a text file, or the stretch of one up to a line that separates them. It becomes:
 * what the tokenizer's post-processor puts in front, its ids, what that puts behind, the end of a text unless it is
 * there already. The tokenizer "byte" has no documents: the text of all files, a token a byte. */
#ifndef IO_TOKEN_FILES_H
#define IO_TOKEN_FILES_H

#include "io/token/token.h"

/* AUTO: by the end of the name, before .gz or .zst. */
enum sh_token_format {
    SH_FORMAT_AUTO,
    SH_FORMAT_TEXT,
    SH_FORMAT_JSONL,
    SH_FORMAT_SEGMENTS, /* these are lines of jsonl that are conversations (chat.h) */
    SH_FORMAT_MESSAGES,
    SH_FORMAT_COMPLETION
};

struct sh_token_progress {
    int64_t taken, total;  /* bytes of the files, packed as they lie there; total 0: not known */
    int64_t bytes, tokens; /* of text, and what they became */
};

struct sh_token_options {
    const char *tokenizer;     /* as of sh_tokenizer_open(); NULL: "byte" */
    const char *const *inputs; /* text files, taken one after the other; "-": standard input, with a format */
    int n_inputs;
    const char *output;     /* .bin file of tokens, or of documents, written anew */
    const char *val_output; /* NULL: no validation file */
    double val_fraction;    /* of the bytes, from the end; in (0, 1) when val_output is given */
    enum sh_token_format format;
    const char *field;      /* of jsonl; NULL: "text", of conversations "messages" */
    const char *separator;  /* of text: a line that is just this ends a document, and is no part of it; NULL: none */
    const char *end;        /* word that ends a document; NULL: the one that the model's folder names */
    bool no_begin, no_end;  /* leave out what stands in front of each document, behind it */
    bool documents;         /* document files instead of token files; conversations always are, with a mask */
    const char *template;   /* of conversations, by name; NULL: none */
    bool special_in_text;   /* of conversations: messages may have special tokens in them */
    bool replace_invalid;   /* U+FFFD for what is not UTF-8, which is refused otherwise */
    int threads;            /* that encode; 0: as many as the process may use */
    size_t piece_bytes;     /* text read at a time, for tests; 0: 1 MiB */
    int64_t document_bytes; /* the longest document or line, for tests; 0: 1 GiB */
    /* (optional) Called now and then, in the caller's thread. */
    void (*progress)(void *ctx, const struct sh_token_progress *p);
    void *progress_ctx;
};

struct sh_token_report {
    int64_t bytes;              /* of text */
    int64_t documents, empty;   /* written; without text, left out. Of kinds that have documents */
    int64_t tokens, val_tokens; /* written to output and to val_output */
    int vocab_size;
};

/* Tokenize files. The validation part starts at a line begin (if the text has lines), so no line is in both; packed
 * files have none. Memory: some MiB a thread, and the longest document.
 * Errors: SH_E_USAGE: options that do not fit; SH_E_DATA: a file, with its line or byte. No incomplete file is left
 * behind. */
sh_rc sh_token_file(const struct sh_token_options *opt, struct sh_token_report *report);

#endif

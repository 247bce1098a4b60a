/* Turns text files into a token file: many threads encode, and the output does not depend on how many. Local.
 *
 * A document is a line of jsonl, a text file, or the part of a text file up to a separator line. It becomes: the ids
 * that the tokenizer's post-processor puts in front, the ids of the text, the ids that the post-processor appends, and
 * the end-of-text token unless it is there already. The tokenizer "byte" has no documents: its output is the text of
 * all files, one token per byte. */
#ifndef IO_TOKEN_FILES_H
#define IO_TOKEN_FILES_H

#include "src/text/token/token.h"

/* AUTO: by the file name's suffix, ignoring .gz or .zst. */
enum sh_token_format {
    SH_FORMAT_AUTO,
    SH_FORMAT_TEXT,
    SH_FORMAT_JSONL,
    SH_FORMAT_SEGMENTS, /* this and the next ones: lines of jsonl that are conversations (chat.h) */
    SH_FORMAT_MESSAGES,
    SH_FORMAT_COMPLETION,
    SH_FORMAT_SHAREGPT,
    SH_FORMAT_ALPACA,
    SH_FORMAT_PREFERENCE,
    SH_FORMAT_UNPAIRED,
    SH_FORMAT_LABELLED,   /* a text and the number of its label, which becomes the document's last token */
    SH_FORMAT_REWARD,     /* as PREFERENCE, for a head that scores answers */
    SH_FORMAT_NUMBERED,   /* a text and a number to be learned */
    SH_FORMAT_MULTI_LABEL /* a text and any number of labels */
};

struct sh_token_progress {
    int64_t taken, total;  /* bytes of the files as stored, still packed; total 0: not known */
    int64_t bytes, tokens; /* bytes of text, and the tokens they became */
};

struct sh_token_options {
    const char *tokenizer;     /* as for sh_tokenizer_open(); NULL: "byte" */
    const char *const *inputs; /* text files, read one after the other; "-": standard input, which needs a format */
    int n_inputs;
    const char *output;     /* .bin file of tokens or of documents; an existing file is replaced */
    const char *val_output; /* NULL: no validation file */
    double val_fraction;    /* share of the bytes, taken from the end; in (0, 1) when val_output is given */
    enum sh_token_format format;
    const char *labels;     /* of MULTI_LABEL: how many there are, or their names with commas between; NULL else */
    const char *field;      /* key of jsonl; NULL: "text", or that of the form of conversations */
    const char *separator;  /* for text: a line equal to this ends a document and is not part of it; NULL: none */
    const char *end;        /* word that ends a document; NULL: the one that the model's folder names */
    bool no_begin, no_end;  /* leave out the tokens in front of each document, after each document */
    bool documents;         /* document files instead of token files; conversations always are, with a mask */
    const char *template;   /* name of the chat template for conversations; NULL: none */
    bool special_in_text;   /* for conversations: messages may contain special tokens */
    bool replace_invalid;   /* replace invalid UTF-8 by U+FFFD; otherwise it is refused */
    int threads;            /* threads that encode; 0: as many as the process may use */
    size_t piece_bytes;     /* bytes of text read at a time, for tests; 0: 1 MiB */
    int64_t document_bytes; /* limit on the bytes of a document or line, for tests; 0: 1 GiB */
    /* (optional) Called from time to time, in the caller's thread. */
    void (*progress)(void *ctx, const struct sh_token_progress *p);
    void *progress_ctx;
};

struct sh_token_report {
    int64_t bytes;              /* of text */
    int64_t documents, empty;   /* written; left out for lack of text. For kinds that have documents */
    int64_t tokens, val_tokens; /* written to output and to val_output */
    int64_t learned;            /* of both; 0: there is no mask */
    int64_t across;             /* of them, those that stand for the end of a prompt and the beginning of its answer */
    int vocab_size;
};

/* Tokenize files. The validation part starts at the start of a line (if the text has lines), so no line is in both
 * parts; packed files cannot have a validation part. Memory: a few MiB per thread, plus the longest document.
 * Errors: SH_E_USAGE: options that do not fit together; SH_E_DATA: a bad file, with line or byte. No incomplete file is
 * left behind. */
sh_rc sh_corpus_tokenize(const struct sh_token_options *opt, struct sh_token_report *report);

#endif

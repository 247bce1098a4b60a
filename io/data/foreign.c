/* Training on a gzip file would run without an error: its bytes are numbers below 65536, too. So a bare file is
 * compared with the kinds of files that people give by mistake, and the answer says what to do with such a file. */
#include "io/data/foreign.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define TOKENIZE "`sherd tokenize FILE -o FILE.bin` makes a token file of it"
#define UNPACK "unpack it, then `sherd tokenize` the text"
#define EXPORT \
    "write its token ids with numpy's tofile() as uint16 or uint32, or its text to a file for `sherd tokenize`"

/* These are long enough that ids hardly ever begin like this by chance. */
static const struct {
    const char *bytes;
    size_t n, at;
    struct sh_foreign is;
} magics[] = {
#define MAGIC(text) .bytes = text, .n = sizeof text - 1
    {MAGIC("\x1f\x8b\x08"), .is = {"a gzip file", UNPACK}},
    {MAGIC("\x28\xb5\x2f\xfd"), .is = {"a zstd file", UNPACK}},
    {MAGIC("\xfd"
           "7zXZ"),
     .is = {"an xz file", UNPACK}},
    {MAGIC("BZh"), .is = {"a bzip2 file", UNPACK}},
    {MAGIC("PK\x03\x04"), .is = {"a zip file (such as .npz or .pt)", EXPORT}},
    {MAGIC("PAR1"), .is = {"a Parquet file", EXPORT}},
    {MAGIC("ARROW1"), .is = {"an Arrow file", EXPORT}},
    {MAGIC("\x89HDF\r\n\x1a\n"), .is = {"an HDF5 file", EXPORT}},
    {MAGIC("\x93NUMPY"), .is = {"a numpy file", EXPORT}},
    {MAGIC("MMIDIDX"), .is = {"the index of a Megatron data set", "give its .bin file, with data.token_type"}},
    {MAGIC("{\""), .at = 8, .is = {"a safetensors file", "give a file of token ids"}},
#undef MAGIC
};

static const struct sh_foreign json = {"JSON", "put its text into a plain file for `sherd tokenize`"};
static const struct sh_foreign text = {"text", TOKENIZE};

/* Return the length of the UTF-8 character at s, 0 if there is none or it is not printable. A character that is cut off
 * at the end of the head is as long as the rest of the head. */
static size_t printable(const unsigned char *s, size_t left)
{
    size_t n = *s >= 0xf0 ? 4 : *s >= 0xe0 ? 3 : 2;

    if (*s < 0x80)
        return *s >= 0x20 ? *s != 0x7f : *s == '\t' || *s == '\n' || *s == '\r' || *s == '\f';
    if (*s < 0xc2 || *s > 0xf4 || (*s == 0xc2 && left > 1 && s[1] < 0xa0))
        return 0;
    for (size_t i = 1; i < n && i < left; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    return n < left ? n : left;
}

/* An empty file is not text. All of the head must be printable. */
static bool is_text(const unsigned char *head, size_t bytes)
{
    size_t at = bytes >= 3 && !memcmp(head, "\xef\xbb\xbf", 3) ? 3 : 0; /* a byte order mark */

    while (at < bytes) {
        size_t n = printable(head + at, bytes - at);
        if (!n)
            return false;
        at += n;
    }
    return bytes > 0;
}

/* jsonl or an array, judging by the first character. */
static bool is_json(const unsigned char *head, size_t bytes)
{
    size_t at = 0;

    while (at < bytes && strchr(" \t\r\n", head[at]))
        at++;
    return at + 1 < bytes && (head[at] == '{' || (head[at] == '[' && strchr(" \t\r\n[{\"", head[at + 1])));
}

/* Check magic numbers first; then text, because 4 KiB of token ids are hardly ever printable UTF-8. */
const struct sh_foreign *sh_data_foreign(const unsigned char *head, size_t bytes)
{
    for (size_t i = 0; i < sizeof magics / sizeof magics[0]; i++)
        if (bytes >= magics[i].at + magics[i].n && !memcmp(head + magics[i].at, magics[i].bytes, magics[i].n))
            return &magics[i].is;
    if (!is_text(head, bytes))
        return NULL;
    /* JSON is text, too, but has a different cure. */
    return is_json(head, bytes) ? &json : &text;
}

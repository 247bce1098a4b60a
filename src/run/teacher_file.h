/* The file of what a teacher finds likely: a header, then a record for each window of the data, in their order. A record
 * is its sum, the hash of its tokens, its T * K words, those of a place after each other, the likeliest first, of 2 bytes,
 * or of 4 if there are more than 65536, and their natural log-probabilities in float16. Little-endian. */
#ifndef SH_RUN_TEACHER_FILE_H
#define SH_RUN_TEACHER_FILE_H

#include "src/base/hash.h"

#include <string.h>

#define SH_TEACHER_MAGIC "SHRDTOP1"

struct sh_teacher_header {
    char magic[8];
    int64_t windows, words;
    int32_t seq_len, top_k;
    int64_t documents;  /* 1: the teacher kept them apart; else 0 */
    uint64_t tokenizer; /* sh_hash64() of its tokenizer.json, 0: not known */
    uint64_t sum;       /* of what comes before */
};

struct sh_teacher_record {
    uint64_t sum; /* of the rest of the record */
    uint64_t tokens;
};

static inline uint64_t sh_teacher_header_sum(const struct sh_teacher_header *h)
{
    return sh_hash64(h, offsetof(struct sh_teacher_header, sum));
}

static inline int64_t sh_teacher_id_bytes(const struct sh_teacher_header *h)
{
    return h->words > 65536 ? 4 : 2;
}

static inline int64_t sh_teacher_record_bytes(const struct sh_teacher_header *h)
{
    return (int64_t)sizeof(struct sh_teacher_record) + (int64_t)h->seq_len * h->top_k * (sh_teacher_id_bytes(h) + 2);
}

static inline int64_t sh_teacher_record_at(const struct sh_teacher_header *h, int64_t window)
{
    return (int64_t)sizeof *h + window * sh_teacher_record_bytes(h);
}

static inline uint64_t sh_teacher_record_sum(const struct sh_teacher_header *h, const char *record)
{
    return sh_hash64(record + sizeof(uint64_t), (size_t)sh_teacher_record_bytes(h) - sizeof(uint64_t));
}

#endif

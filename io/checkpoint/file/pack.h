/* An index as bytes: the end of a checkpoint file, and what rank 0 sends to the others. doc/checkpoint-format.md
 * describes it byte by byte. Equal indexes have equal bytes. Local, no state, no files. */
#ifndef IO_CHECKPOINT_PACK_H
#define IO_CHECKPOINT_PACK_H

#include "io/checkpoint/file/index.h"

/* The last bytes of a file: the place of the index, and the digest of its bytes. */
enum { SH_CKPT_FOOTER_BYTES = 64 };
struct sh_ckpt_footer {
    int64_t at, bytes;
    struct sh_hash128 digest;
    uint32_t major, minor;
};
void sh_ckpt_footer_pack(const struct sh_ckpt_footer *footer, unsigned char out[SH_CKPT_FOOTER_BYTES]);

/* Whether the bytes are a footer at all; *out is not checked. */
bool sh_ckpt_footer_unpack(const unsigned char bytes[SH_CKPT_FOOTER_BYTES], struct sh_ckpt_footer *out);

/* Bytes of a packed index, which depend only on names, texts and the numbers of tensors and blocks. */
int64_t sh_ckpt_packed_bytes(const struct sh_ckpt_index *index);

/* The most that a file of `file_bytes` can contain; a longer one is not worth reading. */
int64_t sh_ckpt_packed_most(int64_t file_bytes);

/* Returns [sh_ckpt_packed_bytes()], freed with free(). */
unsigned char *sh_ckpt_pack(const struct sh_ckpt_index *index);

/* The step in the first bytes of a packed index. false: they are not the start of one. */
enum { SH_CKPT_HEAD_BYTES = 136 };
bool sh_ckpt_packed_step(const unsigned char head[SH_CKPT_HEAD_BYTES], int64_t *step);

bool sh_ckpt_packed_same(const struct sh_ckpt_index *a, const struct sh_ckpt_index *b);

/* Unpack an index, trusting nothing: every length is compared with the bytes left and every offset with file_bytes,
 * tensors overlap neither each other nor the bytes before and after them, texts have no zero bytes, names can be
 * printed and are distinct, the numbers are in range, and meta data, names, shapes and sums match the digest over them.
 * The tensors must fill all bytes between HDF5's structures and `end`.
 *   end   in   where data ends: the offset of the index
 * Errors: SH_E_DATA with `path` and the reason. */
sh_rc sh_ckpt_unpack(const unsigned char *bytes, int64_t n, const char *path, int64_t file_bytes, int64_t end,
                     struct sh_ckpt_index *out);

#endif

#include "io/file/sample.h"

#include "io/file/file.h"
#include "src/base/hash.h"

#include <unistd.h>

static sh_rc add(int fd, const char *path, int64_t at, int64_t bytes, uint64_t *hash)
{
    unsigned char block[SH_FILE_SAMPLE_BYTES];

    SH_TRY(sh_file_read(fd, path, block, bytes, at));
    *hash = sh_mix64(*hash ^ sh_hash64(block, (size_t)bytes));
    return SH_OK;
}

/* Where block i of `blocks` begins. */
static int64_t place(int64_t bytes, int i, int blocks)
{
    int64_t last = bytes - SH_FILE_SAMPLE_BYTES;

    return blocks > 1 ? last / (blocks - 1) * i + last % (blocks - 1) * i / (blocks - 1) : last / 2;
}

sh_rc sh_file_sample(int fd, const char *path, int64_t at, int64_t bytes, int blocks, uint64_t *hash)
{
    const int64_t size = SH_FILE_SAMPLE_BYTES;

    *hash = sh_mix64(*hash ^ (uint64_t)bytes);
    for (int i = 0; bytes > blocks * size && i < blocks; i++)
        SH_TRY(add(fd, path, at + place(bytes, i, blocks), size, hash));
    for (int64_t done = 0; bytes <= blocks * size && done < bytes; done += size)
        SH_TRY(add(fd, path, at + done, bytes - done < size ? bytes - done : size, hash));
    return SH_OK;
}

sh_rc sh_file_sample_all(const char *path, int blocks, uint64_t *hash)
{
    int64_t bytes;
    int fd;
    sh_rc rc;

    SH_TRY(sh_file_open(path, &fd, &bytes));
    rc = sh_file_sample(fd, path, 0, bytes, blocks, hash);
    close(fd);
    return rc;
}

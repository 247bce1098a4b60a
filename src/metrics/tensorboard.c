/* Files of events as TensorBoard reads them, written by hand: a record is a length, its checksum, the data and their
 * checksum, all little-endian; the data are a protocol buffer of four fields.
 * Source: tensorflow/core/lib/io/record_writer.cc and tensorflow/core/util/event.proto (field numbers). */
#include "src/metrics/table.h"

#include "src/base/file.h"
#include "src/base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct sh_events {
    FILE *file;
    char *path;
};

/* ---- checksums ---- */

/* CRC-32C (Castagnoli), as in iSCSI. */
static uint32_t crc_of(const void *data, size_t n)
{
    const uint32_t polynomial = 0x82f63b78; /* reflected */
    const unsigned char *at = data;
    uint32_t crc = ~UINT32_C(0);

    for (size_t i = 0; i < n; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
    }
    return ~crc;
}

/* Mask a checksum, so that the checksum of data that contain checksums is still useful. */
static uint32_t masked(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

/* ---- a protocol buffer, into memory that grows ---- */

enum field {
    EVENT_TIME = 1 << 3 | 1, /* number and wire type: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes */
    EVENT_STEP = 2 << 3 | 0,
    EVENT_VERSION = 3 << 3 | 2,
    EVENT_SUMMARY = 5 << 3 | 2,
    EVENT_SESSION = 7 << 3 | 2,
    SESSION_STATUS = 1 << 3 | 0,
    SUMMARY_VALUE = 1 << 3 | 2,
    VALUE_TAG = 1 << 3 | 2,
    VALUE_SIMPLE = 2 << 3 | 5,
};
enum { SESSION_START = 1 };

static void put_little(FILE *out, uint64_t bits, int bytes)
{
    for (int i = 0; i < bytes; i++)
        fputc((int)(bits >> 8 * i & 0xff), out);
}

/* Seven bits per byte, the lowest first; the upper bit says that more follow. */
static void put_varint(FILE *out, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        fputc((int)(v & 0x7f) | 0x80, out);
    fputc((int)v, out);
}

static void put_bytes(FILE *out, enum field field, const void *data, size_t n)
{
    put_varint(out, field);
    put_varint(out, n);
    fwrite(data, 1, n, out);
}

/* Eight bytes, little-endian whatever the machine's order. */
static void put_double(FILE *out, enum field field, double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof bits);
    put_varint(out, field);
    put_little(out, bits, 8);
}

/* TensorBoard's scalars have single precision. */
static void put_float(FILE *out, enum field field, double v)
{
    float narrow = (float)v;
    uint32_t bits;

    memcpy(&bits, &narrow, sizeof bits);
    put_varint(out, field);
    put_little(out, bits, 4);
}

/* A message that is a field of another one: it is written separately first, since its length precedes it. */
struct part {
    FILE *out;
    char *data;
    size_t n;
};

static sh_rc begin(struct part *p)
{
    p->out = open_memstream(&p->data, &p->n);
    return p->out ? SH_OK : sh_fail(SH_E_MEMORY, "out of memory: no room for an event");
}

/* The data are complete once the stream is closed; freed with free(). */
static sh_rc end(struct part *p)
{
    bool failed = ferror(p->out) != 0;

    if (fclose(p->out) == 0 && !failed)
        return SH_OK;
    free(p->data);
    return sh_fail(SH_E_MEMORY, "out of memory: no room for an event");
}

/* ---- records ---- */

/* Flushed each time: whoever looks at a running job reads whole records. */
static sh_rc write_record(struct sh_events *e, const void *data, size_t n)
{
    unsigned char length[8];

    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)n >> 8 * i & 0xff);
    fwrite(length, 1, sizeof length, e->file);
    put_little(e->file, masked(crc_of(length, sizeof length)), 4);
    fwrite(data, 1, n, e->file);
    put_little(e->file, masked(crc_of(data, n)), 4);
    if (fflush(e->file) != 0 || ferror(e->file))
        return sh_fail(SH_E_DATA, "write %s: %s", e->path, strerror(errno));
    return SH_OK;
}

/* Seconds since 1970, which the viewer shows as time of day. */
static double wall_time(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* An event with one field in addition to its time and step. */
static sh_rc write_event(struct sh_events *e, int64_t step, enum field field, const void *data, size_t n)
{
    struct part event;
    sh_rc rc;

    SH_TRY(begin(&event));
    put_double(event.out, EVENT_TIME, wall_time());
    put_varint(event.out, EVENT_STEP);
    put_varint(event.out, (uint64_t)step);
    put_bytes(event.out, field, data, n);
    SH_TRY(end(&event));
    rc = write_record(e, event.data, event.n);
    free(event.data);
    return rc;
}

/* The first event names the format. The start of a session makes a reader drop what an earlier file has for its step
 * and later ones. */
static sh_rc write_start(struct sh_events *e, int64_t step)
{
    static const char version[] = "brain.Event:2";
    static const unsigned char session[] = {SESSION_STATUS, SESSION_START};

    SH_TRY(write_event(e, 0, EVENT_VERSION, version, sizeof version - 1));
    return write_event(e, step + 1, EVENT_SESSION, session, sizeof session);
}

/* With the process number in the name, two starts within a second make two files. */
sh_rc sh_events_open(const char *folder, int64_t step, struct sh_events **out)
{
    struct sh_events *e;
    char host[64] = "", *path;
    FILE *file;
    sh_rc rc;

    SH_TRY(sh_mkdir_p(folder));
    if (gethostname(host, sizeof host - 1) != 0 || !host[0])
        snprintf(host, sizeof host, "localhost");
    path =
        sh_strfmt("%s/events.out.tfevents.%010lld.%s.%lld", folder, (long long)time(NULL), host, (long long)getpid());
    rc = sh_open_output(path, "w", &file);
    if (rc != SH_OK) {
        free(path);
        return rc;
    }
    e = sh_calloc(1, sizeof *e);
    *e = (struct sh_events){.file = file, .path = path};
    rc = write_start(e, step);
    if (rc == SH_OK)
        *out = e;
    else
        sh_events_close(e);
    return rc;
}

static sh_rc put_value(FILE *out, const char *tag, double v)
{
    struct part value;

    SH_TRY(begin(&value));
    put_bytes(value.out, VALUE_TAG, tag, strlen(tag));
    put_float(value.out, VALUE_SIMPLE, v);
    SH_TRY(end(&value));
    put_bytes(out, SUMMARY_VALUE, value.data, value.n);
    free(value.data);
    return SH_OK;
}

sh_rc sh_events_write(struct sh_events *e, enum sh_metrics_event kind, const void *event)
{
    const int64_t *step = event; /* with which each event begins */
    struct part summary;
    sh_rc rc = SH_OK;

    SH_TRY(begin(&summary));
    for (int i = 0; i < sh_metric_rows && rc == SH_OK; i++) {
        const struct sh_metric *row = &sh_metric_table[i];

        if (row->tag && row->event == kind && sh_metric_is_given(row, event))
            rc = put_value(summary.out, row->tag, sh_metric_number(row, event));
    }
    if (end(&summary) != SH_OK)
        return SH_E_MEMORY;
    if (rc == SH_OK && summary.n)
        rc = write_event(e, *step, EVENT_SUMMARY, summary.data, summary.n);
    free(summary.data);
    return rc;
}

void sh_events_close(struct sh_events *e)
{
    if (!e)
        return;
    fclose(e->file);
    free(e->path);
    free(e);
}

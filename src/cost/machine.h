/* A machine as the prices of src/cost need it: the rates of its devices and networks, and points measured on it.
 *
 * A machine is named by a preset ("h100-80x8-ndr400": 8 of that device per node, with 400 Gb/s of network each;
 * "h100-80x8" has no network) or by a YAML file with the keys of sh_machine_keys. Keys that the file does not give come
 * from the preset of its `device.kind`. `sherd help --machine` prints the keys. Local. */
#ifndef SH_COST_MACHINE_H
#define SH_COST_MACHINE_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { SH_WORK_DIMS = 3 }; /* dimensions of the work of a whole step: prices.h */
enum { SH_MACHINE_NAME = 64, SH_MACHINE_SOURCE = 512, SH_MACHINE_KEYS_MAX = 64, SH_POINT_DIMS = 6 };

/* Where a figure comes from. */
enum sh_machine_from { SH_FROM_PRESET, SH_FROM_FILE, SH_FROM_MEASUREMENT };

/* A measurement; a row of `points`. `what` says which fields are used. */
enum sh_point_what {
    SH_POINT_OP,     /* kind, type, dims, seconds */
    SH_POINT_COLL,   /* kind, ranks, nodes, bytes, seconds */
    SH_POINT_BESIDE, /* kind: a collective; beside; slowdown */
    SH_POINT_FIGURE, /* figure: a key of the file; value */
    SH_POINT_STEP,   /* kind: "step"; type, dims of prices.h; value: measured over predicted computation seconds */
};
struct sh_machine_point {
    enum sh_point_what what;
    char kind[32], type[12], axis[16], beside[32], figure[48];
    int n_dims;
    double dims[SH_POINT_DIMS];
    double ranks, nodes, bytes, seconds, value, slowdown, rounds, spread;
};

/* Figures in SI units: seconds, bytes, operations per second; one way, and per node if the key says so. */
struct sh_machine {
    char name[SH_MACHINE_NAME], source[SH_MACHINE_SOURCE];
    struct {
        double devices, price_per_device_hour;
    } node;
    struct {
        char kind[SH_MACHINE_NAME];
        double memory_bytes, reserved_bytes, launch_seconds, watts;
    } device;
    struct {
        double bfloat16, float32;
    } peak;
    struct {
        double share, half, experts;
    } product;
    struct {
        double forward, backward, ordered, ordered_bytes, own;
    } attention;
    struct {
        double bytes_per_second, share;
    } memory;
    struct {
        double bytes_per_second, hop_seconds, nvls_bytes_per_second, barrier_seconds;
    } inside;
    struct {
        double bytes_per_second, share, hop_seconds, base_seconds, crowding, taper;
    } network;
    struct {
        double slowdown, serial;
    } overlap;
    struct {
        double node;
    } spread;
    struct {
        double write, read, each_node;
    } disk;
    struct {
        double write, read;
    } scratch; /* of the local disk of a node */
    struct {
        double device_hours, restart_seconds, end_seconds, start_seconds;
    } failure;
    struct {
        double memory_bytes, step_seconds, read, write; /* read, write: rates of moves between a GPU and its host */
    } host;
    struct {
        double computation;
    } fit;

    enum sh_machine_from from[SH_MACHINE_KEYS_MAX]; /* by row of sh_machine_keys */
    struct sh_machine_point *points;
    int n_points, cap_points;
};

struct sh_machine_key {
    const char *name; /* "product.share" */
    size_t offset;    /* in struct sh_machine */
    bool text;        /* char[] of `max` bytes, with the final 0 */
    double min, max;  /* of numbers, inclusive */
    const char *unit; /* "" for shares and texts */
    const char *help;
};
extern const struct sh_machine_key sh_machine_keys[];
extern const int sh_machine_n_keys;

/* Load a machine from a file or, if there is no such file, by the name of a preset.
 * Errors: SH_E_USAGE "file:line: ..." with the nearest key, or with the presets if the name is not one; SH_E_DATA. */
sh_rc sh_machine_load(const char *name_or_file, struct sh_machine *out);
/* The same for a job. A device alone, such as "h100", has one rank; with more it stands for the usual node of that
 * device, h100-80x8, if there is one. */
sh_rc sh_machine_load_for(const char *name_or_file, int64_t ranks, struct sh_machine *out);
/* The same for a text; `name` stands for it in messages. */
sh_rc sh_machine_parse(const char *text, size_t bytes, const char *name, struct sh_machine *out);
/* Errors: SH_E_USAGE: no such preset; the message lists the presets. */
sh_rc sh_machine_preset(const char *name, struct sh_machine *out);
void sh_machine_close(struct sh_machine *m);

/* Whether its devices are GPUs. */
bool sh_machine_is_gpu(const struct sh_machine *m);

/* The row of a key, -1 if there is none. Its value in a machine, for number keys only. */
int sh_machine_key_find(const char *name);
double *sh_machine_figure(struct sh_machine *m, int key);
const char *sh_machine_from_name(enum sh_machine_from from);

/* Write points to a file: points of the same kind and sizes are replaced; everything else stays, comments included. A
 * missing file is created, with `kind` as its device. Errors: SH_E_USAGE, SH_E_DATA: the file. */
sh_rc sh_machine_add_points(const char *path, const char *kind, const struct sh_machine_point *points, int n);

/* The same for a fit: "step" points of an earlier fit are removed. */
sh_rc sh_machine_add_fit(const char *path, const char *kind, const struct sh_machine_point *points, int n);

/* Print a point as a line of the file, without the line break. */
void sh_machine_print_point(const struct sh_machine_point *p, FILE *out);

/* Print the keys and the presets as text. */
void sh_machine_help(FILE *out);

/* Print each figure with its unit and its origin. */
void sh_machine_print(const struct sh_machine *m, FILE *out);

#endif

/* Malicious checkpoint files: HDF5 files that open normally but have objects that reach outside the file, or are not
 * what they seem. Each is refused with the object's name before any data is read. They are of format 1.0, which HDF5
 * reads. */
#include "tests/mpi/ckpt_case.h"

#include "src/mesh/mesh.h"

#include <hdf5.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[256], good[300], outside[300];

static const char victim[] = "/model/layers.0.norm.weight"; /* [13] */

static hid_t plain(void)
{
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_layout(dcpl, H5D_CONTIGUOUS);
    H5Pset_alloc_time(dcpl, H5D_ALLOC_TIME_EARLY);
    return dcpl;
}

static void put(hid_t file, const char *name, hid_t type, int ndim, const hsize_t *dim, hid_t dcpl)
{
    hid_t space = ndim ? H5Screate_simple(ndim, dim, NULL) : H5Screate(H5S_NULL);
    hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    H5Sclose(space);
    H5Pclose(dcpl);
    if (set >= 0)
        H5Dclose(set);
}

static const hsize_t thirteen[1] = {13};

static void external_storage(hid_t f)
{
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(dcpl, "/etc/passwd", 0, 52);
    put(f, victim, H5T_IEEE_F32LE, 1, thirteen, dcpl);
}

static void soft_link(hid_t f)
{
    H5Lcreate_soft("/optimizer/exp_avg/layers.0.norm.weight", f, victim, H5P_DEFAULT, H5P_DEFAULT);
}

static void external_link(hid_t f)
{
    H5Lcreate_external(outside, victim, f, victim, H5P_DEFAULT, H5P_DEFAULT);
}

static void virtual_data(hid_t f)
{
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(1, thirteen, NULL);
    H5Pset_virtual(dcpl, space, outside, victim, space);
    H5Sclose(space);
    put(f, victim, H5T_IEEE_F32LE, 1, thirteen, dcpl);
}

static void compact(hid_t f)
{
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_layout(dcpl, H5D_COMPACT);
    put(f, victim, H5T_IEEE_F32LE, 1, thirteen, dcpl);
}

static void chunked_and_filtered(hid_t f)
{
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(dcpl, 1, thirteen);
    H5Pset_shuffle(dcpl);
    put(f, victim, H5T_IEEE_F32LE, 1, thirteen, dcpl);
}

static void no_space_taken(hid_t f)
{
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_alloc_time(dcpl, H5D_ALLOC_TIME_LATE);
    put(f, victim, H5T_IEEE_F32LE, 1, thirteen, dcpl);
}

static void big_endian(hid_t f)
{
    put(f, victim, H5T_IEEE_F32BE, 1, thirteen, plain());
}

static void integers(hid_t f)
{
    put(f, victim, H5T_STD_I32LE, 1, thirteen, plain());
}

static void texts_of_any_length(hid_t f)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);
    put(f, victim, type, 1, thirteen, plain());
    H5Tclose(type);
}

static void five_dims(hid_t f)
{
    const hsize_t dim[5] = {13, 1, 1, 1, 1};
    put(f, victim, H5T_IEEE_F32LE, 5, dim, plain());
}

static void no_dims(hid_t f)
{
    put(f, victim, H5T_IEEE_F32LE, 0, NULL, plain());
}

static void huge(hid_t f)
{
    const hsize_t dim[2] = {(hsize_t)1 << 31, (hsize_t)1 << 31};
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_alloc_time(dcpl, H5D_ALLOC_TIME_LATE);
    put(f, victim, H5T_IEEE_F32LE, 2, dim, dcpl);
}

static void another_shape(hid_t f)
{
    const hsize_t dim[1] = {14};
    put(f, victim, H5T_IEEE_F32LE, 1, dim, plain());
}

static void a_group(hid_t f)
{
    H5Gclose(H5Gcreate2(f, victim, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
}

static void nothing(hid_t f)
{
    (void)f;
}

static void set_number(hid_t f, const char *name, int64_t value)
{
    hid_t space = H5Screate(H5S_SCALAR);
    H5Adelete_by_name(f, "/meta", name, H5P_DEFAULT);
    hid_t attr = H5Acreate_by_name(f, "/meta", name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(attr >= 0 && H5Awrite(attr, H5T_NATIVE_INT64, &value) >= 0 && H5Aclose(attr) >= 0);
    H5Sclose(space);
}

static void newer_format(hid_t f)
{
    set_number(f, "format_major", 3);
}

static void second_format(hid_t f)
{
    set_number(f, "format_major", 2);
}

static void other_step(hid_t f)
{
    set_number(f, "step", 8);
}

static void set_format(hid_t f, const char *word)
{
    hid_t space = H5Screate(H5S_SCALAR), type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, strlen(word));
    H5Adelete_by_name(f, "/meta", "format", H5P_DEFAULT);
    hid_t attr = H5Acreate_by_name(f, "/meta", "format", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(attr >= 0 && H5Awrite(attr, type, word) >= 0 && H5Aclose(attr) >= 0);
    H5Tclose(type);
    H5Sclose(space);
}

static void other_format(hid_t f)
{
    set_format(f, "other-thing");
}

static void longer_format(hid_t f)
{
    set_format(f, "sherd-checkpoints");
}

static void endless_format(hid_t f)
{
    static char word[60000];
    memset(word, 'x', sizeof word - 1);
    set_format(f, word);
}

static void number_as_format(hid_t f)
{
    set_number(f, "format", 1);
}

static void later_minor_version(hid_t f)
{
    set_number(f, "format_minor", 9);
}

static void text_as_number(hid_t f)
{
    hid_t space = H5Screate(H5S_SCALAR);
    H5Adelete_by_name(f, "/meta", "tokens", H5P_DEFAULT);
    hid_t attr = H5Acreate_by_name(f, "/meta", "tokens", H5T_C_S1, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Sclose(space);
    H5Aclose(attr);
}

static void no_meta(hid_t f)
{
    H5Ldelete(f, "/meta", H5P_DEFAULT);
}

static void meta_elsewhere(hid_t f)
{
    H5Ldelete(f, "/meta", H5P_DEFAULT);
    H5Lcreate_external(outside, "/meta", f, "/meta", H5P_DEFAULT, H5P_DEFAULT);
}

static void control_characters(hid_t f)
{
    put(f, "/model/a\033[31m%n%s\n", H5T_IEEE_F32LE, 1, thirteen, plain());
}

static void control_characters_beyond_ascii(hid_t f)
{
    put(f,
        "/model/a\xc2\x9b"
        "31mb",
        H5T_IEEE_F32LE, 1, thirteen, plain());
}

static void no_text(hid_t f)
{
    put(f, "/model/a\xff", H5T_IEEE_F32LE, 1, thirteen, plain());
}

static void long_name(hid_t f)
{
    static char name[10000] = "/model/";
    memset(name + strlen(name), 'x', sizeof name - 1 - strlen(name));
    put(f, name, H5T_IEEE_F32LE, 1, thirteen, plain());
}

static const struct {
    bool removes_victim; /* and its links, before the change */
    void (*change)(hid_t file);
    const char *says;
} cases[] = {
    {true, external_storage, "has its data in another file"},
    {true, soft_link, "link to elsewhere"},
    {true, external_link, "link to elsewhere"},
    {true, virtual_data, "not stored in one piece"},
    {true, compact, "not stored in one piece"},
    {true, chunked_and_filtered, "not stored in one piece"},
    {true, no_space_taken, "has no space in the file"},
    {true, big_endian, "another element type"},
    {true, integers, "another element type"},
    {true, texts_of_any_length, ""},
    {true, five_dims, "at most 4 dims"},
    {true, no_dims, ""},
    {true, huge, ""},
    {true, another_shape, "stands where"},
    {true, a_group, "layers.0.norm.weight"},
    {true, nothing, "but /model has 7"},
    {false, newer_format, "format version 3"},
    {false, second_format, "has format 2, but no separate index"},
    {false, other_step, "does not match its digest"},
    {false, text_as_number, "not a number"},
    {false, no_meta, "/meta"},
    {false, meta_elsewhere, "link to elsewhere"},
    {false, control_characters, "impossible name"},
    {false, control_characters_beyond_ascii, "impossible name"},
    {false, no_text, "impossible name"},
    {false, long_name, "impossible name"},
    {false, other_format, "is not \"sherd-checkpoint\""},
    {false, longer_format, "is not \"sherd-checkpoint\""},
    {false, endless_format, "is not \"sherd-checkpoint\""},
    {false, number_as_format, "is not \"sherd-checkpoint\""},
    {false, later_minor_version, "its index is not at its end"},
};

/* Copy the good file and open the copy for changes. */
static hid_t open_copy(void)
{
    char command[700];
    snprintf(command, sizeof command, "cp '%s' '%s'", good, path);
    CHECK(system(command) == 0);
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_libver_bounds(fapl, H5F_LIBVER_V110, H5F_LIBVER_V110);
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, fapl);
    H5Pclose(fapl);
    CHECK(file >= 0);
    return file;
}

static void change_file(size_t i)
{
    hid_t file = open_copy();
    if (cases[i].removes_victim)
        CHECK(H5Ldelete(file, victim, H5P_DEFAULT) >= 0);
    cases[i].change(file);
    CHECK(H5Fclose(file) >= 0);
}

/* A file may ask for a filter that HDF5 would load from HDF5_PLUGIN_PATH. Ranks that let HDF5 read a file have turned
 * that off. */
static void no_plugins(void)
{
    unsigned kinds = ~0U;
    if (test_rank == 0)
        CHECK(H5PLget_loading_state(&kinds) >= 0 && kinds == 0);
}

/* Without the changes, these files are good. */
static void loads(void)
{
    struct sh_ckpt_set set = make_set(CUT_FLAT, false);
    struct sh_ckpt_meta meta;
    CHECK(sh_ckpt_load(good, &set, &meta) == SH_OK && wrong_elements(&set) == 0);
    sh_ckpt_meta_free(&meta);
    free_set(&set);
    sh_mesh_barrier();
}

static void all_cases(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sh_ckpt_set set = {.states = test_states, .tensors = test_tensors, .n_tensors = test_n_tensors};
        struct sh_ckpt_meta meta;
        if (test_rank == 0)
            change_file(i);
        sh_mesh_barrier();
        check_fails(sh_ckpt_load(path, &set, &meta), SH_E_DATA, cases[i].says);
        sh_mesh_barrier();
    }
}

static void save_good(const char *folder)
{
    struct sh_ckpt_set set = make_set(CUT_FLAT, true);
    struct sh_ckpt_meta meta = test_meta(7);
    int64_t bytes;
    CHECK(sh_ckpt_save(folder, &set, &meta, &bytes) == SH_OK);
    snprintf(good, sizeof good, "%s/good.h5", folder);
    snprintf(outside, sizeof outside, "%s/outside.h5", folder);
    if (test_rank == 0) {
        make_format_1_0(path);
        CHECK(rename(path, good) == 0 && link(good, outside) == 0);
    }
    free_set(&set);
}

/* A run would take over the guard's state only after the load, too late for an older checkpoint. */
static void guard_is_read(const char *folder)
{
    static const char *const guards[] = {"\xff\xe2\x80\xa8", "1 0x1p+0 0x1p+0 0; loss_scale 3 0 1"};
    struct sh_ckpt_set set = make_set(CUT_FLAT, true);
    struct sh_ckpt_meta meta = test_meta(7);
    int64_t bytes;
    for (int i = 0; i < 2; i++) {
        meta.guard = (char *)(uintptr_t)guards[i];
        check_fails(sh_ckpt_save(folder, &set, &meta, &bytes), SH_E_DATA, "in the checkpoint is not readable");
    }
    meta.guard = (char *)"1 0x1p+0 0x1p+0 0; loss_scale 0x1p+1 0 1";
    CHECK(sh_ckpt_save(folder, &set, &meta, &bytes) == SH_OK);
    free_set(&set);
}

int main(int argc, char **argv)
{
    CHECK(sh_mesh_start(&argc, &argv) == SH_OK);
    MPI_Comm_rank(MPI_COMM_WORLD, &test_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &test_world);
    const char *folder = make_folder();
    snprintf(path, sizeof path, "%s/step-00000007.h5", folder);
    save_good(folder);
    loads();
    all_cases();
    no_plugins();
    guard_is_read(folder);
    remove_folder();
    if (test_rank == 0)
        printf("test_ckpt_hostile: %d ranks: ok\n", test_world);
    sh_mesh_stop();
    return 0;
}

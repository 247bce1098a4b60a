# SHERD_MPI: find MPI without taking the user's compiler away.
#
# A compiler that links MPI as it is (CC=mpicc, Cray's cc) is used as it is. Else the flags are read from an mpicc wrapper
# (`mpicc -show`), so that GCC and Clang both work with any MPI that is installed.
# Sets mpi_CPPFLAGS, mpi_LIBS, sherd_mpi_kind (openmpi | mpich | other), MPIRUN and MPIRUN_FLAGS, and a row of the table.
AC_DEFUN([SHERD_MPI], [
AC_ARG_WITH([mpi], [AS_HELP_STRING([--with-mpi=auto|openmpi|mpich|DIR],
    [which MPI, when CC is not an MPI compiler itself @<:@auto@:>@])], [], [with_mpi=auto])
AC_ARG_VAR([MPIRUN], [program that starts MPI programs in the tests (mpirun, mpiexec, srun)])
mpi_CPPFLAGS=
mpi_LIBS=
sherd_wrapper=
AS_CASE([$with_mpi],
    [auto|yes], [sherd_wrappers="mpicc mpicc.openmpi mpicc.mpich"],
    [openmpi|mpich], [sherd_wrappers="mpicc.$with_mpi mpicc"],
    [/*], [sherd_wrappers=$with_mpi/bin/mpicc],
    [AC_MSG_ERROR([--with-mpi=$with_mpi: say auto, openmpi, mpich or a folder that begins with / and has bin/mpicc])])

AC_MSG_CHECKING([whether $CC links MPI programs by itself])
SHERD_MPI_LINKS([sherd_have_mpi=yes], [sherd_have_mpi=no])
AC_MSG_RESULT([$sherd_have_mpi])
AS_IF([test $sherd_have_mpi = yes], [SHERD_MPI_KIND
    sherd_mpi_where=$CC])
for sherd_try in $sherd_wrappers; do
    AS_IF([test $sherd_have_mpi = no], [SHERD_MPI_WRAPPER([$sherd_try])])
done
AS_IF([test $sherd_have_mpi = no], [
    SHERD_MISSING([no MPI found (looked for: CC=$CC itself, $sherd_wrappers; see config.log)],
        [libopenmpi-dev openmpi-bin   (or libmpich-dev mpich)], [openmpi-devel   (then: module load mpi)], [openmpi],
        [--with-mpi=DIR, where DIR has bin/mpicc, or CC=mpicc])])
AS_CASE([$with_mpi], [openmpi|mpich], [AS_IF([test $sherd_mpi_kind != $with_mpi], [
    AC_MSG_ERROR([--with-mpi=$with_mpi was asked for, but $sherd_mpi_where is $sherd_mpi_name; drop one of the two])])])
SHERD_MPIRUN
SHERD_RESULT([MPI], [$sherd_mpi_name], [$sherd_mpi_where, started by ${MPIRUN:-nothing that was found}])
AC_SUBST([mpi_CPPFLAGS])
AC_SUBST([mpi_LIBS])
])

AC_DEFUN([SHERD_MPI_LINKS], [
SHERD_TRY_LINK([$mpi_CPPFLAGS], [$mpi_LIBS], [#include <mpi.h>], [MPI_Init(0, 0); MPI_Finalize();], [$1], [$2])
])

# SHERD_MPI_WRAPPER(PROGRAM): take PROGRAM's flags if it is there, links, and is of the kind that was asked for.
AC_DEFUN([SHERD_MPI_WRAPPER], [
AS_UNSET([ac_cv_path_sherd_wrapper])
AC_PATH_PROG([sherd_wrapper], [$1])
AS_UNSET([ac_cv_path_sherd_wrapper])
AS_IF([test -n "$sherd_wrapper"], [
    SHERD_SHOWN_FLAGS([mpi], [$sherd_wrapper])
    AC_MSG_CHECKING([whether $CC links MPI programs with the flags of $sherd_wrapper])
    SHERD_MPI_LINKS([sherd_have_mpi=yes], [sherd_have_mpi=no])
    AC_MSG_RESULT([$sherd_have_mpi])
    AS_IF([test $sherd_have_mpi = yes], [SHERD_MPI_KIND
        sherd_mpi_where=$sherd_wrapper])
    AS_CASE([$with_mpi:$sherd_mpi_kind], [openmpi:openmpi|mpich:mpich], [], [openmpi:*|mpich:*], [sherd_have_mpi=no])])
sherd_wrapper=
])

# SHERD_SHOWN_FLAGS(NAME, WRAPPER): split what `WRAPPER -show` prints into NAME_CPPFLAGS and NAME_LIBS. The words before
# the first option are the compiler's name, which is the user's to choose.
AC_DEFUN([SHERD_SHOWN_FLAGS], [
$1_CPPFLAGS=
$1_LIBS=
for sherd_word in `$2 -show 2>/dev/null | tr ' ' '\n' | sed -n '/^-/,$p'`; do
    AS_CASE([$sherd_word],
        [-I*|-D*], [$1_CPPFLAGS="$$1_CPPFLAGS $sherd_word"],
        [-O*|-g*|-W@<:@a-k@:>@*|-f*], [],
        [$1_LIBS="$$1_LIBS $sherd_word"])
done
])

# Which MPI the header says it is, for HDF5's sake and the launcher's.
AC_DEFUN([SHERD_MPI_KIND], [
sherd_mpi_kind=other
sherd_mpi_name="unknown kind"
SHERD_MACRO_VALUE([sherd_version], [$mpi_CPPFLAGS], [mpi.h], [OMPI_MAJOR_VERSION OMPI_MINOR_VERSION OMPI_RELEASE_VERSION])
AS_CASE([$sherd_version], [@<:@0-9@:>@*], [
    sherd_mpi_kind=openmpi
    sherd_mpi_name="Open MPI $sherd_version"])
SHERD_MACRO_VALUE([sherd_version], [$mpi_CPPFLAGS], [mpi.h], [MPICH_VERSION])
AS_CASE([$sherd_version], [@<:@0-9@:>@*], [
    sherd_mpi_kind=mpich
    sherd_mpi_name="MPICH $sherd_version"])
])

# The launcher of the same MPI: beside the compiler, then in PATH. Another MPI's mpirun would start N programs of one rank
# each, so its --version must tell that it is the right one.
AC_DEFUN([SHERD_MPIRUN], [
sherd_bin=`AS_DIRNAME(["$sherd_mpi_where"])`
AS_IF([test -z "$MPIRUN"], [
    for sherd_name in mpirun.$sherd_mpi_kind mpiexec.$sherd_mpi_kind mpirun mpiexec; do
        for sherd_file in "$sherd_bin/$sherd_name" `command -v $sherd_name`; do
            AS_IF([test -z "$MPIRUN" && test -x "$sherd_file"], [
                AS_CASE([$sherd_mpi_kind:`$sherd_file --version 2>&1`],
                    [openmpi:*Open?MPI*|openmpi:*OpenRTE*|mpich:*HYDRA*|mpich:*Intel*|other:*], [MPIRUN=$sherd_file])])
        done
    done])
AC_MSG_CHECKING([for the launcher of $sherd_mpi_name])
AC_MSG_RESULT([${MPIRUN:-none}])
])

# SHERD_MPI: find MPI, and keep the user's compiler.
#
# A compiler that already links MPI (CC=mpicc, Cray's cc) is used as it is. Otherwise the flags are read from an mpicc
# wrapper (`mpicc -show`), so that GCC and Clang both work with any installed MPI. The first wrapper found decides: if
# its flags do not link, configure ends, because trying the next one would build with an MPI that nobody chose. Sets
# mpi_CPPFLAGS, mpi_LIBS, sherd_mpi_kind (openmpi | mpich | intel | abi | other), MPIRUN, and a row of the table. abi is
# the binary interface of MPI 5, which libraries of several MPIs have: the one that is loaded decides, not this build.
AC_DEFUN([SHERD_MPI], [
AC_ARG_WITH([mpi], [AS_HELP_STRING([--with-mpi=auto|openmpi|mpich|abi|DIR],
    [which MPI, if CC is not an MPI compiler itself @<:@auto@:>@])], [], [with_mpi=auto])
AC_ARG_VAR([MPIRUN], [program that starts MPI programs in the tests (mpirun, mpiexec, srun)])
mpi_CPPFLAGS=
mpi_LIBS=
AS_CASE([$with_mpi],
    [auto|yes], [sherd_wrappers="mpicc mpicc.openmpi mpicc.mpich"],
    [openmpi|mpich], [sherd_wrappers="mpicc.$with_mpi mpicc"],
    [abi], [sherd_wrappers=mpicc_abi],
    [/*], [sherd_wrappers=$with_mpi/bin/mpicc
        AS_IF([test ! -x "$sherd_wrappers"], [AC_MSG_ERROR([--with-mpi=$with_mpi: there is no program $sherd_wrappers])])
        # Intel's wrapper finds its installation by this variable; no other MPI reads it.
        I_MPI_ROOT=$with_mpi
        export I_MPI_ROOT],
    [AC_MSG_ERROR([--with-mpi=$with_mpi: say auto, openmpi, mpich, abi or a folder that begins with / and has bin/mpicc])])

AC_MSG_CHECKING([whether $CC links MPI programs by itself])
SHERD_MPI_LINKS([sherd_have_mpi=yes], [sherd_have_mpi=no])
AC_MSG_RESULT([$sherd_have_mpi])
AS_IF([test $sherd_have_mpi = yes], [SHERD_MPI_COMPILER])
for sherd_try in $sherd_wrappers; do
    AS_IF([test $sherd_have_mpi = no], [SHERD_MPI_WRAPPER([`command -v "$sherd_try"`])])
done
AS_IF([test $sherd_have_mpi = no], [SHERD_MPI_MISSING])
SHERD_MPIRUN
SHERD_RESULT([MPI], [$sherd_mpi_name], [$sherd_mpi_where, started by ${MPIRUN:-no launcher that was found}])
AS_IF([test $sherd_mpi_kind = abi],
    [AC_DEFINE([SHERD_MPI_ABI], [1], [Built for the binary interface of MPI 5, so that the library that is loaded may be of another MPI.])])
AC_SUBST([mpi_CPPFLAGS])
AC_SUBST([mpi_LIBS])
])

AC_DEFUN([SHERD_MPI_LINKS], [
SHERD_TRY_LINK([$mpi_CPPFLAGS], [$mpi_LIBS], [#include <mpi.h>], [MPI_Init(0, 0); MPI_Finalize();], [$1], [$2])
])

# CC links MPI by itself. If --with-mpi names an MPI, it must be the same one.
AC_DEFUN([SHERD_MPI_COMPILER], [
SHERD_MPI_KIND
set dummy $CC
shift
AS_CASE(["$[]1"], [*ccache|*distcc], [shift])
sherd_mpi_where=`command -v "$[]1"`
AS_CASE([$with_mpi:$sherd_mpi_kind:$sherd_mpi_where],
    [auto:*|yes:*|openmpi:openmpi:*|mpich:mpich:*|abi:abi:*|/*:*:"$with_mpi"/bin/*], [],
    [AC_MSG_ERROR([--with-mpi=$with_mpi was asked for, but CC=$CC links $sherd_mpi_name by itself (a wrapper, or by CPATH and LIBRARY_PATH); drop one of the two])])
])

# SHERD_MPI_WRAPPER(FILE): use its flags if it exists and is of the kind that was asked for.
AC_DEFUN([SHERD_MPI_WRAPPER], [
sherd_wrapper=$1
AS_IF([test -n "$sherd_wrapper"], [
    SHERD_SHOWN_FLAGS([mpi], [$sherd_wrapper])
    SHERD_MPI_KIND
    AS_CASE([$with_mpi:$sherd_mpi_kind],
        [openmpi:openmpi|mpich:mpich|abi:abi|auto:*|yes:*|/*], [
            AC_MSG_CHECKING([whether $CC links MPI programs with the flags of $sherd_wrapper])
            SHERD_MPI_LINKS([sherd_have_mpi=yes], [sherd_have_mpi=no])
            AC_MSG_RESULT([$sherd_have_mpi])
            AS_IF([test $sherd_have_mpi = no], [AC_MSG_ERROR([$CC does not link MPI programs with what "$sherd_wrapper -show" prints (see config.log).
  Repair that installation, or name another one: --with-mpi=openmpi|mpich|DIR, or CC=mpicc])])
            sherd_mpi_where=$sherd_wrapper])])
])

# SHERD_SHOWN_FLAGS(NAME, WRAPPER): split what `WRAPPER -show` prints into NAME_CPPFLAGS and NAME_LIBS. The words before
# the first option are the compiler's name, which is the user's to choose. Intel MPI puts paths in quotes, and has a
# library path whose $ORIGIN a shell has eaten; make would eat the rest.
AC_DEFUN([SHERD_SHOWN_FLAGS], [
$1_CPPFLAGS=
$1_LIBS=
for sherd_word in `$2 -show 2>/dev/null | tr -d '"' | tr ' ' '\n' | sed -n '/^-/,$p'`; do
    AS_CASE([$sherd_word],
        [-I*|-D*], [$1_CPPFLAGS="$$1_CPPFLAGS $sherd_word"],
        [-O*|-g*|-W@<:@a-k@:>@*|-f*|*\$*], [],
        [$1_LIBS="$$1_LIBS $sherd_word"])
done
])

# Find out from the header which MPI this is, to choose HDF5 and the launcher. Intel MPI's header names an MPICH too, and
# headers of an MPI's own may have the numbers of the ABI as well.
AC_DEFUN([SHERD_MPI_KIND], [
sherd_mpi_kind=other
sherd_mpi_name="unknown kind"
sherd_mpi_version=
SHERD_MPI_KIND_IF([abi], [MPI ABI], [MPI_ABI_VERSION MPI_ABI_SUBVERSION])
SHERD_MPI_KIND_IF([openmpi], [Open MPI], [OMPI_MAJOR_VERSION OMPI_MINOR_VERSION OMPI_RELEASE_VERSION])
SHERD_MPI_KIND_IF([mpich], [MPICH], [MPICH_VERSION])
SHERD_MPI_KIND_IF([intel], [Intel MPI], [I_MPI_VERSION])
])

# SHERD_MPI_KIND_IF(KIND, NAME, MACROS): it is this kind if mpi.h defines its version.
AC_DEFUN([SHERD_MPI_KIND_IF], [
SHERD_MACRO_VALUE([sherd_version], [$mpi_CPPFLAGS], [mpi.h], [$3])
AS_CASE([$sherd_version], [@<:@0-9@:>@*], [
    sherd_mpi_kind=$1
    sherd_mpi_version=$sherd_version
    sherd_mpi_name="$2 $sherd_version"])
])

# End configure, with the package of the MPI that was asked for.
AC_DEFUN([SHERD_MPI_MISSING], [
sherd_how="--with-mpi=DIR, where DIR has bin/mpicc, or CC=mpicc"
AS_CASE([$with_mpi],
    [mpich], [SHERD_MISSING([no MPICH found (looked for: CC=$CC itself, $sherd_wrappers; see config.log)], [libmpich-dev mpich],
        [mpich-devel   (then: module load mpi/mpich-x86_64)], [mpich], [$sherd_how])],
    [openmpi], [SHERD_MISSING([no Open MPI found (looked for: CC=$CC itself, $sherd_wrappers; see config.log)],
        [libopenmpi-dev openmpi-bin], [openmpi-devel   (then: module load mpi)], [openmpi], [$sherd_how])],
    [abi], [AC_MSG_ERROR([no mpicc_abi found in PATH, the compiler for the binary interface of MPI 5 (see config.log).
  MPICH 5 has it (PyPI: mpich); for one MPI only: --with-mpi=openmpi|mpich|DIR])],
    [SHERD_MISSING([no MPI found (looked for: CC=$CC itself, $sherd_wrappers; see config.log)],
        [libopenmpi-dev openmpi-bin   (or libmpich-dev mpich)], [openmpi-devel   (then: module load mpi)], [openmpi],
        [$sherd_how])])
])

# Find the launcher of the same MPI: next to its compiler, then in PATH. Another MPI's mpirun would start N programs of
# one rank each, so its --version must name the right MPI; in PATH, where another installation may come first, it must
# also name the same version.
AC_DEFUN([SHERD_MPIRUN], [
AC_MSG_CHECKING([for the launcher of $sherd_mpi_name])
AS_IF([test -n "$MPIRUN" && (command -v "$MPIRUN") >/dev/null || test -z "$MPIRUN"], [],
    [AC_MSG_ERROR([MPIRUN=$MPIRUN: there is no such program])])
sherd_bin=`AS_DIRNAME(["$sherd_mpi_where"])`
for sherd_place in "$sherd_bin/" ""; do
    for sherd_name in mpirun.$sherd_mpi_kind mpiexec.$sherd_mpi_kind mpirun mpiexec; do
        sherd_file=`command -v "$sherd_place$sherd_name"`
        AS_IF([test -z "$MPIRUN" && test -n "$sherd_file"], [
            AS_CASE([$sherd_mpi_kind:`$sherd_file --version 2>&1`],
                [openmpi:*Open?MPI*|openmpi:*OpenRTE*|mpich:*HYDRA*|intel:*Intel*MPI*|other:*|abi:*],
                    [AS_CASE([$sherd_place:`$sherd_file --version 2>&1`],
                        [?*:*|:*"$sherd_mpi_version"*], [MPIRUN=$sherd_file])])])
    done
done
AC_MSG_RESULT([${MPIRUN:-none}])
])

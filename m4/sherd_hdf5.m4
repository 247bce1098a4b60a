# SHERD_HDF5: find a parallel HDF5 that was built for the MPI in use. Call SHERD_MPI first.
#
# Tried in turn: --with-hdf5=DIR; CC as it is (h5pcc, Cray's cc); pkg-config by the kind of MPI (Debian's names), then
# by the plain name; h5pcc. Sets hdf5_CPPFLAGS, hdf5_LIBS and a row of the table.
#
# Releases before 1.10.7, and 1.12.0, which is older than 1.10.7, have bugs in the collective handling of a file's
# metadata. The damage would only be noticed when the file is read back, so these releases are refused here.
AC_DEFUN([SHERD_HDF5], [
AC_ARG_WITH([hdf5], [AS_HELP_STRING([--with-hdf5=auto|DIR], [parallel HDF5 @<:@auto@:>@])], [], [with_hdf5=auto])
have_hdf5=no
sherd_hdf5_seen=
# Intel MPI has MPICH's binary interface, so an HDF5 that was built with MPICH works.
AS_CASE([$sherd_mpi_kind], [intel], [sherd_hdf5_kind=mpich], [sherd_hdf5_kind=$sherd_mpi_kind])
AS_CASE([$with_hdf5],
    [auto|yes|check], [
        SHERD_HDF5_TRY([$CC itself], [hdf5_CPPFLAGS=; hdf5_LIBS=])
        for sherd_module in hdf5-$sherd_hdf5_kind hdf5; do
            AS_IF([$PKG_CONFIG --exists $sherd_module 2>/dev/null], [
                SHERD_HDF5_TRY([pkg-config $sherd_module], [
                    hdf5_CPPFLAGS=`$PKG_CONFIG --cflags $sherd_module`
                    hdf5_LIBS=`$PKG_CONFIG --libs $sherd_module`])])
        done
        for sherd_tool in `command -v h5pcc.$sherd_hdf5_kind` `command -v h5pcc`; do
            SHERD_HDF5_TRY([$sherd_tool], [SHERD_SHOWN_FLAGS([hdf5], [$sherd_tool])])
        done],
    [/*], [SHERD_HDF5_TRY([$with_hdf5], [SHERD_PREFIX([hdf5], [$with_hdf5], [-lhdf5], [hdf5.h], [hdf5/$sherd_hdf5_kind])])],
    [AC_MSG_ERROR([--with-hdf5=$with_hdf5: say auto or a folder that begins with /; Sherd cannot be built without HDF5])])
AS_IF([test $have_hdf5 = no], [
    AS_CASE([$sherd_hdf5_kind], [other], [sherd_package=mpich], [sherd_package=$sherd_hdf5_kind])
    SHERD_MISSING([no parallel HDF5 for $sherd_mpi_name found (seen:${sherd_hdf5_seen:- nothing})],
        [libhdf5-$sherd_package-dev], [hdf5-$sherd_package-devel], [hdf5+mpi ^$sherd_package],
        [--with-hdf5=DIR, configured with --enable-parallel and the same MPI, or CC=h5pcc])])
SHERD_MACRO_VALUE([sherd_hdf5_version], [$hdf5_CPPFLAGS $mpi_CPPFLAGS], [hdf5.h],
    [H5_VERS_MAJOR H5_VERS_MINOR H5_VERS_RELEASE])
SHERD_RESULT([HDF5], [$sherd_hdf5_version, parallel], [$sherd_hdf5_where])
AC_SUBST([hdf5_CPPFLAGS])
AC_SUBST([hdf5_LIBS])
])

# SHERD_HDF5_TRY(WHERE, FLAGS): FLAGS sets hdf5_CPPFLAGS and hdf5_LIBS. Does nothing once an HDF5 was found.
AC_DEFUN([SHERD_HDF5_TRY], [
AS_IF([test $have_hdf5 = no], [
    $2
    AC_MSG_CHECKING([for parallel HDF5 ($1)])
    SHERD_TRY_LINK([$mpi_CPPFLAGS $hdf5_CPPFLAGS], [$mpi_LIBS $hdf5_LIBS $mpi_LIBS], [#include <hdf5.h>], [H5open();],
        [SHERD_HDF5_JUDGE], [sherd_verdict="not there"])
    AC_MSG_RESULT([$sherd_verdict])
    AS_CASE([$sherd_verdict],
        [yes], [have_hdf5=yes
            sherd_hdf5_where="$1"],
        [not?there], [],
        [sherd_hdf5_seen="$sherd_hdf5_seen $1 ($sherd_verdict);"])])
])

# An HDF5 that links may still be too old or serial, or may pull in a second MPI, which would crash at the first
# MPI_Comm passed to it. A second MPI shows in the libraries that the linked program loads. MPI's flags come first, as
# in Makefile.am: HDF5's own flags may name the headers and the folder of another MPI, which would silently replace
# ours.
AC_DEFUN([SHERD_HDF5_JUDGE], [
sherd_verdict="serial"
sherd_keep_CPPFLAGS=$CPPFLAGS
sherd_keep_LIBS=$LIBS
CPPFLAGS="$CPPFLAGS $mpi_CPPFLAGS $hdf5_CPPFLAGS"
LIBS="$mpi_LIBS $hdf5_LIBS $mpi_LIBS $LIBS"
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([#include <hdf5.h>
#define VERSION (H5_VERS_MAJOR * 1000000 + H5_VERS_MINOR * 1000 + H5_VERS_RELEASE)
#if VERSION < 1010007 || (VERSION >= 1011000 && VERSION < 1012001)
#error old
#endif], [])],
    [SHERD_HDF5_JUDGE_BUILD],
    [sherd_verdict="too old: before 1.10.7, and in 1.12.0, ranks can damage the metadata that they share"])
CPPFLAGS=$sherd_keep_CPPFLAGS
LIBS=$sherd_keep_LIBS
])

# Judge how an HDF5 that is new enough was built.
AC_DEFUN([SHERD_HDF5_JUDGE_BUILD], [
AC_LINK_IFELSE([AC_LANG_PROGRAM([#include <hdf5.h>
#include <mpi.h>
#ifndef H5_HAVE_PARALLEL
#error serial
#endif], [MPI_Init(0, 0); return H5Pset_fapl_mpio(H5P_DEFAULT, MPI_COMM_WORLD, MPI_INFO_NULL) < 0;])], [
    sherd_verdict=yes
    # One library may have two names (libmpich.so.12 and libmpi.so.12), so count their files. That of MPI 5's ABI is one too.
    sherd_mpis=`(ldd conftest$EXEEXT 2>/dev/null) | sed -n 's/^.*libmpi\(ch\|_abi\)*\.so\.@<:@0-9@:>@* => \(@<:@^ @:>@*\) .*/\2/p' |
        while read sherd_file; do readlink -f "$sherd_file"; done | sort -u | wc -l`
    AS_IF([test $sherd_mpis -gt 1], [sherd_verdict="built for another MPI"])])
])

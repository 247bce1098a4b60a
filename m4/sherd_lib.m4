# SHERD_LIB(NAME, DEFAULT, MODULE, HEADER, LIBS, CALL, DEBIAN, RHEL, SPACK, VERSION-MACROS, WITHOUT)
#
# Find one library, in the same way as every other: --with-NAME=check|yes|no|DIR. DEFAULT is `yes` for a library that
# Sherd requires and `check` for an optional one. MODULE is pkg-config's name for it (empty: it has none); HEADER and
# LIBS are for finding it without pkg-config; CALL is a statement that must link. DEBIAN, RHEL and SPACK are package
# names for the message; WITHOUT says in the table what is lost without an optional library. Sets NAME_CPPFLAGS,
# NAME_LIBS, have_NAME=yes|no and a row of the table; if it is found also sherd_NAME_version, and defines HAVE_NAME.
AC_DEFUN([SHERD_LIB], [
AC_ARG_WITH([$1], [AS_HELP_STRING([--with-$1=check|yes|no|DIR], [header $4, $5 @<:@$2@:>@])], [], [with_$1=$2])
have_$1=no
SHERD_LIB_PLACE([$1], [$3], [$5], [$4])
AS_IF([test "$with_$1" != no], [
    AC_MSG_CHECKING([for $1 ($sherd_where)])
    SHERD_TRY_LINK([$$1_CPPFLAGS], [$$1_LIBS], [SHERD_LIB_INCLUDES
#include <$4>], [$6], [have_$1=yes])
    AC_MSG_RESULT([$have_$1])])
AS_IF([test "$have_$1" = yes], [
        AC_DEFINE([HAVE_]m4_toupper([$1]), [1], [Define to 1 when $1 is there.])
        SHERD_MACRO_VALUE([sherd_version], [$$1_CPPFLAGS], [$4], [$10])
        AS_IF([test -n "$3" && test -z "$10"], [sherd_version=`$PKG_CONFIG --modversion $3 2>/dev/null`])
        sherd_$1_version=$sherd_version
        SHERD_RESULT([$1], [${sherd_version:-found}], [$sherd_where])],
    [$1_CPPFLAGS=
    $1_LIBS=
    AS_CASE([$with_$1:$2], [check:*|no:check], [SHERD_RESULT([$1], [no], [$11])],
        [SHERD_MISSING([$1 is missing or does not link ($4, looked in: ${sherd_where:-nowhere}; see config.log)],
            [$7], [$8], [$9], [--with-$1=DIR, where DIR has include/ and lib/])])])
AC_SUBST([$1_CPPFLAGS])
AC_SUBST([$1_LIBS])
])

# What must come before some headers (cmocka.h, pcre2.h).
m4_define([SHERD_LIB_INCLUDES], [#define PCRE2_CODE_UNIT_WIDTH 8
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>])

# SHERD_LIB_PLACE(NAME, MODULE, LIBS, HEADER): turn --with-NAME into NAME_CPPFLAGS, NAME_LIBS and sherd_where, which
# says where the library is.
AC_DEFUN([SHERD_LIB_PLACE], [
$1_CPPFLAGS=
$1_LIBS="$3"
AS_CASE([$with_$1],
    [no], [sherd_where="--with-$1=no"],
    [yes|check], [
        AS_IF([test -n "$2" && $PKG_CONFIG --exists "$2" 2>/dev/null], [
            $1_CPPFLAGS=`$PKG_CONFIG --cflags $2`
            $1_LIBS=`$PKG_CONFIG --libs $2`
            sherd_where="pkg-config $2"],
            [sherd_where="compiler's paths"])],
    [/*], [
        SHERD_PREFIX([$1], [$with_$1], [$3], [$4])
        sherd_where=$with_$1],
    [AC_MSG_ERROR([--with-$1=$with_$1: say check, yes, no or a folder that begins with /])])
])

# SHERD_PREFIX(NAME, DIR, LIBS, HEADER, [SUBFOLDER]): set the flags for a library below DIR. The path is kept in the
# program, because such libraries are seldom where the loader looks by itself. Debian has libraries in
# lib/x86_64-linux-gnu, and headers and libraries for one MPI in a SUBFOLDER (hdf5/openmpi) there and in include. With a
# DIR that lacks the header or the library, the compiler's own paths would silently win. So a missing header is an error
# here, and for a missing library the flags name a file that does not exist.
AC_DEFUN([SHERD_PREFIX], [
sherd_first=`expr "X$3" : 'X-l\(@<:@^ @:>@*\)'`
sherd_libdir=
$1_CPPFLAGS=
for sherd_sub in m4_default([$5], [.]) .; do
    AS_IF([test -z "$$1_CPPFLAGS" && test -f "$2/include/$sherd_sub/$4"], [$1_CPPFLAGS="-I$2/include/$sherd_sub"])
    for sherd_place in lib lib64 lib/$host_cpu-$host_os; do
        AS_IF([test -z "$sherd_libdir" && ls "$2/$sherd_place/$sherd_sub/lib$sherd_first".* >/dev/null 2>&1],
            [sherd_libdir=$2/$sherd_place/$sherd_sub])
    done
done
$1_CPPFLAGS=`AS_ECHO(["$$1_CPPFLAGS"]) | sed 's,/\.$,,'`
sherd_libdir=`AS_ECHO(["$sherd_libdir"]) | sed 's,/\.$,,'`
AS_IF([test -z "$$1_CPPFLAGS"], [AC_MSG_ERROR([--with-$1=$2: there is no $2/include/m4_ifval([$5], [[@<:@$5/@:>@]])$4])])
AS_IF([test -n "$sherd_libdir"], [$1_LIBS="-L$sherd_libdir -Wl,-rpath,$sherd_libdir $3"], [$1_LIBS="$2/lib/lib$sherd_first.so"])
])
